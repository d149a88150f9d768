"""A supervisor or a client that has no descriptor left: it goes on, and all is as before once there are some again."""

from __future__ import annotations

import contextlib
import errno
import functools
import itertools
import os
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np
import pytest

import atomr_mp
from atomr_mp import errors
from atomr_mp.operator.session import OperatorSession
from atomr_mp.process import adopt, zygote
from atomr_mp.process.files.events import read_events
from atomr_mp.protocol.messages import operators, session
from atomr_mp.protocol.messages.devices import DeviceState
from atomr_mp.supervisor.care import health
from atomr_mp.supervisor.care.helpers import Helpers
from atomr_mp.supervisor.loop import Loop
from tests.support import (
    BACKEND,
    DEADLINE_S,
    KEEPER,
    PROBE,
    Ledger,
    Watched,
    free_port,
    open_descriptors,
    settled,
    wait_generation,
    wait_state,
    wait_until,
)


@contextlib.contextmanager
def no_descriptors(pid: int) -> Iterator[None]:
    """Let a process open nothing but what takes the place of what it closes."""
    taken = open_descriptors(pid)
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    free = next(number for number in itertools.count() if number not in taken)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (free, before[1]))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, before)


@pytest.mark.parametrize("standby", ["none", "warm"])
def test_a_worker_s_end_is_seen(ledger: Ledger, standby: str) -> None:
    """The others are not harmed; its leftovers end, and the device is started again as soon as possible."""
    settings: dict[str, Any] = {
        "standby": standby,
        "max_restarts": 1000,
        "backoff_initial_s": 0.05,
        "backoff_max_s": 0.05,
    }
    with ledger.start(gpus=2, **settings) as pool:
        before = pool.devices[1]
        with Watched(pool.call("Probe.fork_and_start", device=1).result()) as left:
            with no_descriptors(pool.supervisor_pid):
                os.kill(before.pid, signal.SIGKILL)
                wait_until(pool, lambda: pool._client.devices[1].worker_pid != before.pid)
                assert pool.call("Probe.echo", 1, device=0).result() == 1
            wait_generation(pool, before.generation + 1, device=1)
            assert pool.call("Probe.echo", 2, device=1).result() == 2
            assert left.left() == []


def test_what_is_asked_is_answered_or_refused(ledger: Ledger) -> None:
    """A status, an inventory, a reload."""
    config = ledger.path / "pool.toml"
    config.write_text(f"actors = ['{PROBE}']\nbackend = '{BACKEND}'\n")
    with (
        atomr_mp.start(config=config, gpus=1, run_dir=ledger.run_dir(), standby="warm") as pool,
        OperatorSession(pool.run_dir / "session.sock") as asking,
        OperatorSession(pool.run_dir / "session.sock") as asking_for_all,
    ):
        with no_descriptors(pool.supervisor_pid):
            assert asking.status().workers[0].device.state is DeviceState.READY
            with pytest.raises(errors.Overloaded, match="Too many open files"):
                asking_for_all.inventory()
            with pytest.raises(errors.ConfigurationError, match=r"nothing was reloaded.*Too many open files"):
                asking.reload(30)
        assert asking.reload(30) == []
        assert pool.call("Probe.echo", 1).result() == 1


def test_a_client_s_first_large_array_is_refused(ledger: Ledger) -> None:
    """Its call was not sent, others go on, and it can be sent once there is room."""
    with ledger.start() as pool:
        command = [sys.executable, "-c", FIRST_LARGE_ARRAY, str(pool.run_dir)]
        ran = subprocess.run(command, check=False, capture_output=True, text=True, timeout=DEADLINE_S)
        assert ran.returncode == 0, ran.stderr
        assert ran.stdout.split() == ["1", "False", "2", "2000000"]


FIRST_LARGE_ARRAY: Final = """
import os, resource, sys
import numpy as np
import atomr_mp

with atomr_mp.connect(run_dir=sys.argv[1]) as pool:
    print(pool.call("Probe.echo", 1).result())
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) - 1, before[1]))
    try:
        pool.call("Probe.echo", np.ones(2_000_000)).result()
    except atomr_mp.errors.OutOfMemory as error:
        assert "Too many open files" in error.message, error.message
        print(error.maybe_executed)
    print(pool.call("Probe.echo", 2).result())
    resource.setrlimit(resource.RLIMIT_NOFILE, before)
    print(pool.call("Probe.echo", np.ones(2_000_000)).result().size)
"""


def test_who_has_no_descriptor_is_told_so_by_start_and_connect(ledger: Ledger) -> None:
    """However few there are, nothing is left of the attempts; libzmq would end the process."""
    address = f"tcp://127.0.0.1:{free_port()}"
    with ledger.start(listen=address, insecure=True) as pool:
        command = [sys.executable, "-c", FEW_DESCRIPTORS, str(pool.run_dir), address, PROBE, BACKEND]
        ran = subprocess.run(command, check=False, capture_output=True, text=True, timeout=DEADLINE_S)
        assert ran.returncode == 0, ran.stderr
        assert ran.stdout.split() == ["connect", "remote", "start"]


FEW_DESCRIPTORS: Final = """
import os, resource, sys, time
import atomr_mp

run_dir, address, actors, backend = sys.argv[1:]
before = resource.getrlimit(resource.RLIMIT_NOFILE)
tries = {
    "connect": lambda: atomr_mp.connect(run_dir=run_dir),
    "remote": lambda: atomr_mp.connect(address, insecure=True),
    "start": lambda: atomr_mp.start(actors=actors, gpus=1, backend=backend),
}

def count():
    return len(os.listdir("/proc/self/fd"))

for name, make in tries.items():
    make().close()  # imports what it needs
    opened, refused = count(), 0
    for more in range(4):
        resource.setrlimit(resource.RLIMIT_NOFILE, (opened - 1 + more, before[1]))
        try:
            make().close()
        except atomr_mp.errors.ConfigurationError as error:
            assert "ulimit -n" in error.message, error.message
            refused += 1
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert refused >= 2, refused
    until_s = time.monotonic() + 10
    while count() > opened:
        assert time.monotonic() < until_s, "descriptors are left"
        time.sleep(0.01)
    print(name)
"""


def test_a_worker_that_cannot_map_memory_says_so_and_tries_again(ledger: Ledger) -> None:
    """A client's memory, and what another device lends, are there for later requests once there is room."""
    with ledger.start(KEEPER, gpus=2) as pool:
        array = np.arange(200_000.0)
        lent = pool.device(1).put(array)
        uses: list[Callable[[], Any]] = [
            lambda: pool.call("Keeper.total", array, device=0).result(),
            lambda: pool.call("Keeper.total", lent, device=0).result(),
        ]
        with no_descriptors(pool.devices[0].pid):
            for use in uses:
                with pytest.raises(errors.Overloaded, match="could not map memory") as raised:
                    use()
                assert not raised.value.maybe_executed
                assert raised.value.retry_after_s > 0
        for use in uses:
            assert settled(functools.partial(gives, use, array.sum()))


def test_a_worker_that_has_no_descriptor_for_a_request_goes_on(ledger: Ledger) -> None:
    """The first requests of libraries import and compile; none ends it, whatever it lacks, or is a fault of its own."""
    with ledger.start(KEEPER) as pool:
        device, pid = pool.device(), pool.devices[0].pid
        kept = device.put(np.ones(4, complex))
        uses: list[Callable[[], Any]] = [
            lambda: device.kernels.compile(SOURCE).result(),
            lambda: device.rng.uniform(size=(3,)).result(),
            lambda: device.fft.fft(kept).result(),
        ]
        for use in uses:
            before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
            for more in (0, 1, 3, 6):
                with no_descriptors(pid):
                    resource.prlimit(pid, resource.RLIMIT_NOFILE, (max(open_descriptors(pid)) + 1 + more, before[1]))
                    with contextlib.suppress(errors.Overloaded, errors.OutOfMemory):
                        use()
        assert pool.devices[0].pid == pid
        np.testing.assert_array_equal(kept.numpy(), np.ones(4, complex))
        assert pool.status().devices[0].internal_errors == 0
        for use in uses:
            use()


SOURCE: Final = 'extern "C" __global__ void nothing(int* x) { x[0] = 1; }'


def gives(use: Callable[[], Any], expected: float) -> bool:
    """Whether a request gives this result; False if there is no room for it."""
    with contextlib.suppress(errors.Overloaded):
        assert use() == expected
        return True
    return False


def test_a_stop_behind_starts_that_failed_is_in_good_order(ledger: Ledger) -> None:
    """All are ordered at once: the pool's end finds a device that waits for its replacement and has no process."""
    with ledger.start(max_restarts=0, give_up=True) as pool, Watched([pool.supervisor_pid]) as supervisor:
        os.kill(pool.devices[0].pid, signal.SIGKILL)
        wait_state(pool, DeviceState.STOPPED)
        orders: list[session.FromClient] = [
            operators.RestartRequest(1, 0),
            operators.RestartRequest(2, 0),
            operators.StopRequest(3),
        ]
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
            client.connect(str(pool.run_dir / "session.sock"))
            hello = session.Hello(2, "operator", observer=True)
            client.sendall(session.frame(session.FROM_CLIENT.encode(hello)))
            assert client.recv(1)
            with no_descriptors(pool.supervisor_pid):
                client.sendall(b"".join(session.frame(session.FROM_CLIENT.encode(order)) for order in orders))
                assert not supervisor.left(DEADLINE_S)
    last = list(read_events(pool.run_dir / "events.jsonl"))[-1]
    assert last["event"] == "pool_end"


def test_a_zygote_that_cannot_be_watched_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is tried again later, and nothing is left of this one."""
    before, children = open_descriptors(), adopt.adopted_children(set())
    monkeypatch.setattr(os, "pidfd_open", refuse)
    with pytest.raises(errors.SetupFailed, match="no descriptor"):
        zygote.Zygote(None, "test", "/nowhere", "host", [], 2, {})
    assert open_descriptors() == before
    assert adopt.adopted_children(set(children)) == []


def test_gpus_are_watched_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """If there is no descriptor for it at first."""
    monkeypatch.setattr(health, "AGAIN_S", 0.0)
    loop = Loop()
    watch = health.HealthWatch(loop, Helpers(loop), [], {0: "GPU-0"})
    with monkeypatch.context() as patched:
        patched.setattr(socket, "socketpair", refuse)
        watch.start()
    started: list[str] = []

    def start(_self: Helpers, module: str, *_: object) -> None:
        started.append(module)
        loop.stop()

    monkeypatch.setattr(Helpers, "start", start)
    loop.run()
    watch.close()
    loop.close()
    assert started == [health.MODULE]


def refuse(*_: object) -> int:
    """Fail as a process does that has as many descriptors as it may."""
    raise OSError(errno.EMFILE, "no descriptor")
