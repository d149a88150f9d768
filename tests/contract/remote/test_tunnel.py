"""A pool behind a relay, and the ordinary client that it carries: what only this client has, or has not."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest

import atomr_mp
from atomr_mp import errors
from atomr_mp.operator.session import OperatorSession
from atomr_mp.protocol.codec import ErrorInfo
from atomr_mp.protocol.messages import session
from atomr_mp.protocol.messages.tunnel import ChannelOpened
from atomr_mp.protocol.tunnel.clock import PoolClock
from atomr_mp.remote import keys
from atomr_mp.tunnel.memory_channel import MemoryCopier
from atomr_mp.tunnel.session import CarriedSession
from tests import remote as served
from tests.contract.calls.test_reused_exceptions import CALLS, STREAMS, failures
from tests.support import ACTORS, DEADLINE_S, KEEPER, PROBE, Gate, Ledger, settled
from tests.tcp_proxy import Proxy

SIZES = (0, 1, 131_072, 2**20 + 1, 2**23 + 5)
"""Elements of arrays: none, one, as many as go into shared memory, and more than one request copies."""


@pytest.fixture(scope="module")
def serving() -> Iterator[served.Served]:
    """A pool that listens, behind a relay."""
    with Ledger() as ledger:
        found = served.serve(ledger, PROBE, KEEPER, f"{ACTORS}/reusing.py:Reusing", gpus=2)
        served.admit(found.keys_dir, "bob")
        with found.pool, OperatorSession(found.pool.run_dir / "session.sock") as operator:
            operator.read_keys()
            yield found


@pytest.fixture
def pool(serving: served.Served) -> Iterator[atomr_mp.Pool]:
    """Alice's client."""
    with serving.client() as own:
        yield own


@pytest.mark.parametrize("size", SIZES)
def test_arrays_come_back_as_they_went(pool: atomr_mp.Pool, size: int) -> None:
    """As arguments and results of calls, and by refs; from rows and from columns."""
    content = np.arange(size, dtype="uint8").reshape(-1, 1)
    np.testing.assert_array_equal(pool.call("Probe.echo", content).result(), content)
    ref = pool.device(1).put(content)
    np.testing.assert_array_equal(ref.numpy(), content)
    out = np.empty_like(content)
    assert ref.numpy(out) is out
    np.testing.assert_array_equal(out, content)
    turned = np.asfortranarray(np.arange(2 * size, dtype="float32").reshape(2, size))
    np.testing.assert_array_equal(pool.device(0).put(turned).numpy(), turned)


def test_threads_and_an_event_loop_copy_at_the_same_time(pool: atomr_mp.Pool) -> None:
    """They take turns on one channel, and each gets its own."""
    failures: list[BaseException] = []

    def use(number: int) -> None:
        try:
            for step in range(4):
                content = np.full(300_000 + 400_000 * (number % 3), number * 10 + step, "float64")
                ref = pool.device(number % 2).put(content)
                np.testing.assert_array_equal(pool.call("Probe.echo", content).result(), content)
                np.testing.assert_array_equal(ref.numpy(), content)
        except BaseException as error:  # noqa: BLE001 - the main thread fails by it
            failures.append(error)

    async def use_loop() -> None:
        contents = [np.full(200_000, number, "float64") for number in range(8)]
        found = await asyncio.gather(*[pool.call("Probe.echo", content) for content in contents])
        np.testing.assert_array_equal(found, contents)

    threads = [threading.Thread(target=use, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    asyncio.run(use_loop())
    for thread in threads:
        thread.join()
    assert failures == []


def test_answers_that_a_loop_has_left_unread_give_their_memory_back(
    serving: served.Served, pool: atomr_mp.Pool
) -> None:
    """They are on their way, so the worker takes them for sent; the client lives on."""
    answered, left = threading.Event(), threading.Event()

    async def leave() -> None:
        await pool.call("Probe.echo", 1, device=0)
        ahead = [b"x" * 100_000] * 20  # more than the window takes
        replies.extend(pool.call("Probe.echo", each, device=0) for each in ahead + [np.zeros(300_000)] * 8)
        await asyncio.sleep(0)  # they are sent
        answered.set()
        left.wait(DEADLINE_S)  # the loop reads nothing meanwhile

    def leases() -> object:
        return serving.pool.device(0).statistics()["leases"]

    replies: list[atomr_mp.Reply] = []
    thread = threading.Thread(target=lambda: asyncio.run(leave()))
    thread.start()
    answered.wait(DEADLINE_S)
    assert settled(lambda: leases() == 8, DEADLINE_S)
    left.set()
    thread.join()

    async def another() -> None:
        assert await pool.call("Probe.echo", 2, device=0) == 2

    asyncio.run(another())  # which finds that the other has ended
    replies.clear()
    assert settled(lambda: pool.call("Probe.echo", 3, device=0).result() == 3 and leases() == 0, DEADLINE_S)


def test_a_loop_that_ends_takes_no_room_along(serving: served.Served, pool: atomr_mp.Pool) -> None:
    """Its calls wait for their arguments, and are not sent: no worker returns these."""
    del pool  # which would have to be of this key
    served.admit(serving.keys_dir, "small", max_bytes=2**26)
    with OperatorSession(serving.pool.run_dir / "session.sock") as operator:
        operator.read_keys()

    async def leave(client: atomr_mp.Pool) -> None:
        reply = client.call("Probe.echo", np.zeros(2**20))
        await asyncio.sleep(0)  # its arguments begin to travel
        del reply

    def has_room() -> bool:
        try:
            return len(client.call("Probe.echo", np.zeros(5 * 2**20)).result(DEADLINE_S)) == 5 * 2**20
        except errors.Overloaded:  # until the worker has returned what was sent
            return False

    with serving.connect("small") as client:
        client.wait_ready()
        for _ in range(12):
            asyncio.run(leave(client))
        assert settled(has_room, DEADLINE_S)


@pytest.mark.parametrize("where", ["local", "remote"])
def test_questions_end_in_time_and_after_the_end(serving: served.Served, where: str) -> None:
    """A supervisor that does not answer costs no more than the time that was given; a closed client asks no more."""
    client = serving.connect() if where == "remote" else atomr_mp.connect(run_dir=serving.pool.run_dir)
    with client:
        os.kill(serving.pool.supervisor_pid, signal.SIGSTOP)
        try:
            with pytest.raises(TimeoutError, match=r"within 0\.2 s"):
                client.status(timeout_s=0.2)
        finally:
            os.kill(serving.pool.supervisor_pid, signal.SIGCONT)
        assert client.status().devices
    for ask in (client.status, client.figures, lambda: client.restart(0), client.reload, client.wait_ready):
        with pytest.raises(errors.PoolLost, match="closed"):
            ask()


def test_an_event_loop_goes_on_while_its_arguments_travel(serving: served.Served) -> None:
    """Though the network stands still; the calls come in their order once it does not, and each with its argument."""
    host, _, port = serving.address.removeprefix("tcp://").rpartition(":")
    with Proxy(host, int(port)) as proxy, serving._replace(address=proxy.address).connect() as own:
        own.wait_ready()

        async def use() -> None:
            await own.call("Probe.echo", np.ones(300_000), device=0)
            proxy.stalled = {"up", "down"}
            contents = [np.full(2**20 + number, number, "float64") for number in range(4)]
            calls = [own.call("Probe.echo", content, device=0) for content in contents]
            behind = own.call("Probe.echo", "behind", device=0)
            ended: list[int] = []
            for number, call in enumerate([*calls, behind]):
                call.add_done_callback(functools.partial(lambda number, _: ended.append(number), number))
            proxy.heal()
            for content, found in zip(contents, await asyncio.gather(*calls), strict=True):
                np.testing.assert_array_equal(found, content)
            assert await behind == "behind"
            assert ended == sorted(ended)

        asyncio.run(use())


def test_a_result_whose_memory_went_before_it_was_read_has_run(
    pool: atomr_mp.Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The supervisor does not keep memory for ever."""

    def gone(*_arguments: object) -> None:
        raise errors.GpuRefStale("generation 1 has ended", device=0, generation=1)

    content = np.ones(300_000)
    reply = pool.call("Probe.echo", content, device=0)
    with monkeypatch.context() as patched:
        patched.setattr(MemoryCopier, "read", gone)
        with pytest.raises(errors.WorkerLost, match="was not read before") as lost:
            reply.result(DEADLINE_S)
    assert (lost.value.maybe_executed, lost.value.was_running) == (True, False)
    np.testing.assert_array_equal(reply.result(), content)


def test_memory_of_another_machine_is_not_seen_in_place(pool: atomr_mp.Pool) -> None:
    """What cannot be had is refused, typed; a copy is had."""
    ref = pool.device(0).put(np.arange(3))
    with pytest.raises(errors.Unsupported):
        ref.view()
    with pytest.raises(errors.Unsupported):
        pool.host_array((3,), "float32")
    with pytest.raises(errors.Unsupported):
        _ = pool.run_dir
    assert ref.numpy().tolist() == [0, 1, 2]


def test_the_relay_computes_nothing_and_is_told_apart(serving: served.Served, pool: atomr_mp.Pool) -> None:
    """It has loaded no NumPy, and shows its sessions with the names of their keys."""
    pool.call("Probe.echo", np.ones(200_000)).result()
    assert "numpy" not in Path(f"/proc/{serving.pid}/maps").read_text(encoding="utf-8")
    assert b"atomr_mp.relay" in Path(f"/proc/{serving.pid}/cmdline").read_bytes()

    def shown() -> list[str]:
        status = serving.pool.status().remote
        assert status is not None
        return [each.key for each in status.sessions]

    assert settled(lambda: shown() == ["alice"], DEADLINE_S)


def test_orders_need_the_right_to_give_them(serving: served.Served, pool: atomr_mp.Pool) -> None:
    """Every key may ask for the status; bob may not restart a device, and alice may."""
    with serving.connect("bob") as bob:
        assert bob.status().pool == pool.status().pool
        with pytest.raises(errors.NotAuthorized):
            bob.restart(0)
    generation = pool.devices[1].generation
    pool.restart(1)
    assert settled(lambda: pool.devices[1].generation > generation, DEADLINE_S)


@pytest.mark.parametrize("name", ["alice", "bob"])
def test_tracebacks_are_for_keys_that_operate(serving: served.Served, name: str) -> None:
    """Wherever a method may raise, bob gets the error's text without the place; alice sees the actor's inside."""
    with serving.connect(name) as own:
        own.wait_ready()
        for way in (*CALLS, "items", *STREAMS):
            for error in failures(own, way, "ordinary", 2):
                assert isinstance(error, errors.ActorFailed), error
                assert "number" in error.message
                assert bool(error.traceback_text) is (name == "alice"), way


def test_an_unknown_key_and_a_wrong_place_are_told_apart(serving: served.Served, tmp_path: Path) -> None:
    """A stranger is not admitted; at an address without a listener the pool is unreachable."""
    pair, server = keys.new_pair(), keys.read_server(serving.keys_dir).public
    stranger = tmp_path / "stranger.key"
    keys.write_new(stranger, keys.ClientKeys(name="eve", public=pair.public, secret=pair.secret, server=server))
    with pytest.raises(errors.NotAuthorized):
        atomr_mp.connect(serving.address, keys=stranger)
    with pytest.raises(errors.ConfigurationError):
        atomr_mp.connect("tcp://127.0.0.1:nowhere", keys=stranger)
    with pytest.raises(errors.PoolUnreachable):
        atomr_mp.connect("tcp://no-such-host.invalid:5570", keys=stranger)


def test_a_revoked_key_loses_its_sessions(serving: served.Served, tmp_path: Path) -> None:
    """At once, with all that was unanswered; the pool is not lost, and each use of it says so."""
    served.admit(serving.keys_dir, "carol")
    gate = Gate(tmp_path / "held")
    with contextlib.closing(gate), gate, OperatorSession(serving.pool.run_dir / "session.sock") as operator:
        operator.read_keys()
        with serving.connect("carol") as carol:
            carol.wait_ready()
            ref = carol.device(0).put(np.arange(3))
            held = [carol.call("Probe.hold_on_thread", gate.path), carol.call("Probe.hold_on_thread", gate.path)]
            gate.wait()
            keys.change_admitted(serving.keys_dir, lambda before: before.revoking("carol")[0])
            operator.read_keys()
            lost = threading.Event()
            carol.on_lost(lambda _: lost.set())
            with pytest.raises(errors.SessionLost, match="key carol was revoked"):
                carol._client.wait_until(lambda: False, DEADLINE_S)
            assert lost.wait(DEADLINE_S)
            unanswered = [reply.exception(DEADLINE_S) for reply in held]
            assert [(type(error), getattr(error, "maybe_executed", None)) for error in unanswered] == [
                (errors.SessionLost, True)
            ] * 2
            for use in (lambda: carol.call("Probe.echo", 2), ref.numpy, lambda: carol.device(0).put(np.arange(3))):
                with pytest.raises(errors.SessionLost, match="key carol was revoked"):
                    use()
            assert isinstance(carol.lost, errors.SessionLost)


@pytest.mark.parametrize("right", ["operate", "kernels"])
def test_a_key_that_loses_a_right_loses_the_sessions_that_began_with_it(serving: served.Served, right: str) -> None:
    """At once; those of others, and those that began without, go on, also when it gets the right back."""
    name = f"loses-{right}"
    served.admit(serving.keys_dir, name)

    def admit(*, may: bool) -> None:
        def change(before: keys.Admitted) -> keys.Admitted:
            changed = [
                msgspec.structs.replace(each, **{right: may}) if each.name == name else each for each in before.keys
            ]
            return msgspec.structs.replace(before, keys=changed)

        keys.change_admitted(serving.keys_dir, change)
        operator.read_keys()

    with OperatorSession(serving.pool.run_dir / "session.sock") as operator, serving.connect("bob") as bob:
        admit(may=True)
        with serving.connect(name) as before:
            before.wait_ready()
            admit(may=False)
            with pytest.raises(errors.SessionLost, match=f"key {name} is admitted without --{right} now"):
                before._client.wait_until(lambda: False, DEADLINE_S)
        with serving.connect(name) as later:
            later.wait_ready()
            admit(may=True)
            assert later.call("Probe.echo", 1).result(DEADLINE_S) == 1
        assert bob.call("Probe.echo", 2).result(DEADLINE_S) == 2


def test_a_forked_child_has_no_client(pool: atomr_mp.Pool) -> None:
    """It uses nothing of libzmq, and its parent goes on."""
    pool.call("Probe.echo", np.ones(200_000)).result()
    child = os.fork()
    if child == 0:
        signal.alarm(int(DEADLINE_S))
        try:
            pool.call("Probe.echo", 1)
        except errors.PoolLost:
            os._exit(7)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert pool.call("Probe.echo", 2).result() == 2


class ShiftedChannel:
    """A channel to a machine whose clock is ahead of this one's.

    Args:
        ahead_ns: By how much.
        way_ns: How long an answer took.
    """

    ended = refused = False
    error = None

    def __init__(self, ahead_ns: int, way_ns: int) -> None:
        asked_ns = time.monotonic_ns() - way_ns
        self.opened = ChannelOpened(max(0, asked_ns + way_ns // 3 + ahead_ns))
        self.clock = PoolClock()
        self.clock.measure(asked_ns, self.opened.now_ns, asked_ns + way_ns)
        self.comes: list[memoryview] = []

        self._eventfd = os.eventfd(0, os.EFD_CLOEXEC)

    def fileno(self) -> int:
        """Return a descriptor that never speaks."""
        return self._eventfd

    def receive(self) -> memoryview | None:
        """Return what comes next."""
        return self.comes.pop(0) if self.comes else None

    def signal(self) -> None:
        """Ignore it."""

    def send(self, data: memoryview) -> int:
        """Take all."""
        return len(data)

    def close(self) -> None:
        """Close its descriptor."""
        os.close(self._eventfd)


@pytest.mark.parametrize("ahead_ns", [0, 10**9, 7 * 86400 * 10**9, -(10**9)])
def test_times_of_another_clock_are_taken_on_the_safe_side(ahead_ns: int) -> None:
    """A call is called unstarted only if it was sent after the known time, whatever the error of the measurement."""
    way_ns = 20_000_000
    channel = ShiftedChannel(ahead_ns, way_ns)
    carried = CarriedSession(lambda: channel, "tcp://test", channel.clock)  # type: ignore[arg-type, return-value]
    assert abs(carried.clock.ahead_ns - ahead_ns) <= way_ns // 2 + 1
    assert ahead_ns or not carried.clock.ahead_ns
    known_ns = time.monotonic_ns() + ahead_ns
    ended = session.IncarnationEnded(0, 1, False, ErrorInfo.of(errors.WorkerLost("x")), [], known_ns)
    for message in (ended, session.IncarnationStopped(ended)):
        channel.comes.append(memoryview(session.frame(session.FROM_SUPERVISOR.encode(message))))
    first, second = carried.receive_waiting()
    assert isinstance(second, session.IncarnationStopped)
    for found in (first, second.ended):
        assert isinstance(found, session.IncarnationEnded)
        assert known_ns - ahead_ns <= found.known_since_ns <= known_ns - ahead_ns + 2 * way_ns
        assert msgspec.structs.replace(found, known_since_ns=known_ns) == ended
    carried.close()
