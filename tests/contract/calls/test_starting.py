"""Contract of calls that come before their pool is ready, and of refusals by what was last heard."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

import atomr_mp
from atomr_mp import errors
from tests.support import (
    ACTORS,
    BACKEND,
    DEADLINE_S,
    Gate,
    Ledger,
    in_loop,
    local_client,
    running,
    settled,
    wait_generation,
)

STARTING = f"{ACTORS}/starting.py:Starting"


@contextlib.contextmanager
def early(ledger: Ledger) -> Iterator[tuple[atomr_mp.Pool, Gate]]:
    """Lend a client of a pool whose one worker waits at a gate in its actor's `setup`."""
    run_dir = ledger.run_dir()
    options = ["--backend", BACKEND, "--gpus", "1", "--actor", STARTING, "--run-dir", str(run_dir)]
    with (
        ledger.gate("start") as gate,
        subprocess.Popen([sys.executable, "-m", "atomr_mp.cli", "start", *options], stdout=subprocess.DEVNULL) as pool,
        running(pool),
    ):
        gate.wait()
        with atomr_mp.connect(run_dir=run_dir) as client:
            yield client, gate
        gate.open()
        pool.send_signal(signal.SIGTERM)
        pool.wait(DEADLINE_S)


def test_calls_of_a_pool_that_starts_wait_until_it_is_ready(ledger: Ledger) -> None:
    """In threads and event loops, calls, streams, maps and actors; a wrong name is refused then."""
    with early(ledger) as (pool, gate):
        assert pool.methods == []
        plain = pool.call("Starting.echo", 1)
        named = pool.call("Starting.echo", kwargs={"value": 2, "again": 3})
        wrong, misnamed = pool.call("Starting.missing"), pool.call("Starting.echo", kwargs={"valeu": 1})
        stream = pool.stream("Starting.count", 3)
        no_stream = pool.stream("Starting.echo", 1)

        async def use() -> list[object]:
            called = pool.call("Starting.echo", 4), pool.actor("Starting").echo(5)
            opened, mapped = pool.stream("Starting.count", 2), pool.amap("Starting.echo", range(2))
            with pytest.raises(errors.InvalidRequest, match="the pool is starting"):
                pool.call("Starting.echo", 6, kwargs={"again": 7})
            gate.open()
            return [[await each for each in called], [n async for n in opened], [n async for n in mapped]]

        assert in_loop(use) == [[[4, None], [5, None]], [0, 1], [[0, None], [1, None]]]
        assert (plain.result(), named.result()) == ([1, None], [2, 3])
        assert list(stream) == [0, 1, 2]
        for refused in (wrong, misnamed, no_stream):
            with pytest.raises(errors.InvalidRequest, match=r"Starting\.missing|valeu|does not stream"):
                refused.result()
        with pytest.raises(errors.InvalidRequest, match=r"did you mean Starting\.echo"):
            pool.call("Starting.ecko")


def test_a_thread_waits_for_what_it_has_to_know_of_a_pool_that_starts(ledger: Ledger) -> None:
    """To put arguments by position and by name together; at most until the deadline."""
    with early(ledger) as (pool, gate):
        with pytest.raises(errors.DeadlineExceeded, match="the pool was starting still"):
            pool.call("Starting.echo", 1, kwargs={"again": 2}, deadline_s=0.01)
        with pytest.raises(errors.DeadlineExceeded, match="was not sent: no worker has taken it"):
            pool.call("Starting.echo", 1, deadline_s=0.01).result()
        gate.open()
        assert pool.call("Starting.echo", 1, kwargs={"again": 2}).result() == [1, 2]


def test_after_the_loss_of_a_pool_that_starts_calls_say_so(ledger: Ledger) -> None:
    """The client does not get the error that the request does not exist."""
    with early(ledger) as (pool, _):
        waits = pool.call("Starting.echo", 1)
        os.kill(pool.supervisor_pid, signal.SIGKILL)
        with pytest.raises(errors.PoolLost):
            waits.result()
        for ask in (lambda: pool.call("Starting.echo", 1), lambda: pool.actor("Starting"), lambda: pool.stream("A.b")):
            with pytest.raises(errors.PoolLost):
                ask()
    ledger.start().close()  # the next start removes what a killed supervisor has left


@pytest.mark.parametrize("in_a_loop", [False, True])
def test_a_method_that_a_reload_adds_is_known_at_once(ledger: Ledger, *, in_a_loop: bool) -> None:
    """Also to a client that has made no other call since."""
    file = ledger.path / "changing.py"
    text = "from atomr_mp_workers import Actor, method\n\n\nclass N(Actor):\n"
    one = "    @method(idempotent=True)\n    def {}(self, x: int) -> int:\n        return x\n"
    file.write_text(text + one.format("old"))
    with ledger.start(f"{file}:N") as pool, atomr_mp.connect(run_dir=pool.run_dir) as client:
        pool.wait_ready()

        async def use(method: str) -> int:
            answer: int = await client.call(method, 1)
            return answer

        assert asyncio.run(use("N.old")) == client.call("N.old", 1).result() == 1
        file.write_text(text + one.format("old") + one.format("new"))
        pool.reload()
        assert (asyncio.run(use("N.new")) if in_a_loop else client.call("N.new", 1).result()) == 1


def test_a_device_that_serves_again_is_not_refused_by_old_news(ledger: Ledger) -> None:
    """The first call after a restart finds it, though the client has read nothing meanwhile."""
    with (
        ledger.start(max_restarts=0, give_up=True) as pool,
        atomr_mp.connect(run_dir=pool.run_dir) as client,
    ):
        client.wait_ready()
        os.kill(pool.devices[0].pid, signal.SIGKILL)
        assert settled(lambda: pool.devices[0].state.value == "stopped")
        with pytest.raises(errors.DeviceUnavailable):
            client.call("Probe.echo", 1)
        pool.restart(0)
        wait_generation(pool, 2)
        local_client(client)._session.polled_ns = 2**63 - 1  # as if it had been read just now
        assert client.call("Probe.echo", 1).result() == 1
