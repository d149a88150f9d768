"""Ctrl-C wherever it may strike: nothing runs twice, no caller waits for ever, and the pool goes on as before."""

from __future__ import annotations

import asyncio
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np
import pytest

import atomr_mp
from atomr_mp import mapping
from atomr_mp.mapping import run as map_module
from tests.interrupted import Interrupted
from tests.support import ACTORS, DEADLINE_S, PROBE, Ledger, client_of, local_client, settled

SMALL: Final = np.arange(5_000)
LARGE: Final = np.arange(50_000)


@pytest.fixture(scope="module")
def shared() -> Iterator[tuple[Ledger, atomr_mp.Pool]]:
    """One pool for all tests."""
    with Ledger() as ledger, ledger.start(PROBE, f"{ACTORS}/mapped.py:Mapped") as pool:
        yield ledger, pool


@pytest.fixture
def pool(shared: tuple[Ledger, atomr_mp.Pool]) -> Iterator[atomr_mp.Pool]:
    """A client of the shared pool with no history."""
    with client_of(shared[1]) as own:
        yield own


def _note(pool: atomr_mp.Pool, number: int) -> None:
    assert pool.call("Probe.note", f"n{number}").result() == f"n{number}"


def _note_some(pool: atomr_mp.Pool, number: int) -> None:
    for reply in [pool.call("Probe.note", f"s{number}-{part}") for part in range(4)]:
        reply.result()


def _echo(pool: atomr_mp.Pool, _number: int) -> None:
    assert (pool.call("Probe.echo", SMALL).result() == SMALL).all()


def _echo_in_shared_memory(pool: atomr_mp.Pool, _number: int) -> None:
    assert (pool.call("Probe.echo", LARGE).result() == LARGE).all()


def _echo_host_array(pool: atomr_mp.Pool, number: int) -> None:
    array = pool.host_array(LARGE.shape, "int64")
    array[:] = number
    assert (pool.call("Probe.echo", array).result() == number).all()


def _put(pool: atomr_mp.Pool, _number: int) -> None:
    assert (pool.device().put(LARGE).numpy() == LARGE).all()


def _cancel(pool: atomr_mp.Pool, number: int) -> None:
    pool.call("Probe.note", f"c{number}").cancel()


def _call_back(pool: atomr_mp.Pool, number: int) -> None:
    answered = threading.Event()
    pool.call("Probe.note", f"b{number}").add_done_callback(lambda _: answered.set())
    assert answered.wait(DEADLINE_S)


def _map(pool: atomr_mp.Pool, number: int) -> None:
    items = [10 * number + part for part in range(3)]
    assert list(pool.map("Mapped.note_once", [["", item] for item in items])) == items


def _map_together(pool: atomr_mp.Pool, _number: int) -> None:
    assert list(pool.map("Mapped.square", range(3))) == [0, 1, 4]


def _is_well(pool: atomr_mp.Pool, number: int) -> None:
    """Check that another call has its own answer, and that nothing is kept of the interrupted call."""
    array = np.full(5_000, number)
    (link,) = local_client(pool)._blocking._links

    def all_came_back() -> bool:
        assert (pool.call("Probe.echo", array).result(DEADLINE_S / 3) == array).all()
        return not link.flight.requests

    assert settled(all_came_back), "what was interrupted is never answered"


def _has_run_nothing_twice(ledger: Ledger) -> None:
    runs = ledger.runs()
    assert len(runs) == len(set(runs)), "something has run twice"


@pytest.mark.parametrize(
    "use",
    [
        _note,
        _note_some,
        _echo,
        _echo_in_shared_memory,
        _echo_host_array,
        _put,
        _cancel,
        _call_back,
        _map,
        _map_together,
    ],
    ids=lambda use: use.__name__.strip("_"),
)
def test_what_is_interrupted_leaves_the_pool_well(
    notes: Ledger, pool: atomr_mp.Pool, use: Callable[[atomr_mp.Pool, int], None]
) -> None:
    """Before each line in turn: then another call gets its own answer, and no credit is kept."""
    use(pool, 0)  # what is made but once
    line = 1
    while Interrupted(line).by(lambda: use(pool, line)):  # noqa: B023 - called at once
        _is_well(pool, line)
        line += 1
    assert line > 100, "hardly anything was interrupted"
    _has_run_nothing_twice(notes)


def test_what_is_interrupted_in_an_event_loop_leaves_the_pool_well(notes: Ledger, pool: atomr_mp.Pool) -> None:
    """In a loop that is run without a handler of its own, and is used again."""

    async def note(number: int) -> None:
        assert await pool.call("Probe.note", f"a{number}") == f"a{number}"

    async def rest() -> bool:
        """Give what was interrupted its end, and all answers that are still to come; return whether they did."""
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        (link,) = local_client(pool)._loops[loop]._links
        until = time.monotonic() + DEADLINE_S / 3
        while link.flight.requests and time.monotonic() < until:
            await pool.call("Probe.note", f"r{time.monotonic()}")
        return not link.flight.requests

    loop = asyncio.new_event_loop()
    try:
        loop.run_until_complete(note(0))
        line = 1
        while Interrupted(line).by(lambda: loop.run_until_complete(note(line))):  # noqa: B023 - called at once
            assert loop.run_until_complete(rest()), "what was interrupted is never answered"
            line += 1
    finally:
        loop.close()
    _has_run_nothing_twice(notes)


def test_who_is_interrupted_while_another_thread_receives_harms_nobody(notes: Ledger, pool: atomr_mp.Pool) -> None:
    """The other thread waits on, and so do all later ones."""
    with notes.gate("led") as gate:
        held = pool.call("Probe.hold_on_thread", gate.path)
        leading = threading.Thread(target=held.exception)
        leading.start()
        assert settled(lambda: local_client(pool)._blocking._outcomes.leading is held)
        line = 1
        while Interrupted(line).by(lambda: _note(pool, line)):  # noqa: B023 - called at once
            _note(pool, -line)
            line += 1
        gate.open()
        leading.join(DEADLINE_S)
        assert held.done
    _has_run_nothing_twice(notes)


def _interrupted_once(condition: Callable[[], bool], waits: Callable[[], object]) -> None:
    """Check that something is interrupted when the condition holds, which has it wait."""

    def interrupt() -> None:
        assert settled(condition)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    interrupting = threading.Thread(target=interrupt)
    interrupting.start()
    with pytest.raises(KeyboardInterrupt):
        waits()
    interrupting.join()


def test_who_waits_is_interrupted_at_once(notes: Ledger, pool: atomr_mp.Pool) -> None:
    """For an answer, behind another receiving thread, for the supervisor, in a map, for a map's next item."""
    asked = threading.Event()

    def endless() -> Iterator[int]:
        while True:
            asked.set()
            signal.sigtimedwait([], DEADLINE_S / 3)
            yield 1

    with notes.gate("waits") as gate:
        lane = local_client(pool)._blocking
        first, second = (pool.call("Probe.hold_on_thread", gate.path, deadline_s=DEADLINE_S) for _ in range(2))
        _interrupted_once(lambda: lane._outcomes.leading is first, first.result)
        leading = threading.Thread(target=first.exception)
        leading.start()
        assert settled(lambda: lane._outcomes.leading is first)
        _interrupted_once(lambda: second in lane._followers.values(), second.result)
        _interrupted_once(
            lambda: bool(local_client(pool)._session._waiting),
            lambda: pool._client.wait_until(lambda: False, DEADLINE_S / 3),
        )
        _interrupted_once(asked.is_set, lambda: list(pool.map("Mapped.square", endless())))
        assert not first.done, "only the answer's deadline has ended some wait"
        gate.open(2)
        gate.wait(2)
        leading.join()
        assert second.exception() is None
        _interrupted_once(
            lambda: gate.wait() != [],
            lambda: list(pool.map("Mapped.pass_gate", [[gate.path, 1]], deadline_s=10 * DEADLINE_S)),
        )
        gate.open()
        _is_well(pool, 1)


def test_what_is_imported_late_is_imported_whole(pool: atomr_mp.Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A half-imported asyncio would stay, and could not be imported again in this process."""

    class Interrupting:
        def find_spec(self, name: str, *_: object) -> None:
            if name == "atomr_mp.mapping.run":
                signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(mapping, "run", map_module)  # to be there again afterwards
    monkeypatch.delitem(sys.modules, "atomr_mp.mapping.run")
    monkeypatch.setattr(sys, "meta_path", [Interrupting(), *sys.meta_path])
    with pytest.raises(KeyboardInterrupt):
        pool.map("Mapped.square", [])
    assert "atomr_mp.mapping.run" in sys.modules
    assert list(pool.map("Mapped.square", [3])) == [9]


def test_what_a_signal_handler_raises_sends_nothing_twice(
    notes: Ledger, pool: atomr_mp.Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if it is not put off, after a send of bytes that could not be sent at once."""

    def full(*_: object) -> int:
        raise BlockingIOError

    def send_and_raise(*arguments: Any) -> int:
        send(*arguments)
        raise SystemExit

    pool.call("Probe.note", "first").result()
    # Its thread may still be at the login. It looks once more after the next bytes if another thread has read the last.
    assert settled(lambda: pool.call("Probe.echo", 1).result() == 1 and not local_client(pool).courier._pending)
    lane = local_client(pool)._blocking
    connection: Any = lane._links[0].connection
    assert connection is not None
    send = connection._send
    monkeypatch.setattr(connection, "_pending", lambda _: None)
    monkeypatch.setattr(connection, "_send", full)
    monkeypatch.setattr(connection, "_writable", select.poll())  # never
    reply = pool.call("Probe.note", "second")
    monkeypatch.setattr(connection, "_send", send_and_raise)
    with pytest.raises(SystemExit), lane._lock:
        connection.advance()
    monkeypatch.undo()
    with lane._lock:
        connection.advance()
    assert reply.result() == "second"
    assert pool.call("Probe.note", "third").result() == "third"
    assert notes.runs() == ["first", "second", "third"]
