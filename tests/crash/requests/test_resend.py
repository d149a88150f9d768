"""Requests that certainly did not start, and whose method says that they may then be sent to the next process."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections import Counter
from contextlib import ExitStack
from typing import Any, Final

import pytest

import atomr_mp
from atomr_mp import errors
from tests.support import ACTORS, DEADLINE_S, Ledger, settled, wait_generation

RESENT: Final = f"{ACTORS}/resent.py:Resent"
NEVER_MIND: Final[dict[str, Any]] = {"max_restarts": 1000, "backoff_initial_s": 0.0, "max_suspicions": 0}
CLIENTS: Final = 3
ENDS: Final = ("exit", "kill", "segv", "kill", "exit")
WINDOW: Final = 24


@pytest.mark.parametrize("standby", ["none", "hot"])
def test_what_waited_in_a_killed_worker_runs_once_in_the_next(ledger: Ledger, standby: str) -> None:
    """The running call ends with an error, and so do calls that may not be sent again."""
    with ledger.start(RESENT, standby=standby, **NEVER_MIND) as pool, ledger.gate("gate") as gate:
        held = pool.call("Resent.hold", "held", gate.path)
        (pid,) = gate.wait()
        waiting = [pool.call("Resent.note", f"{n}") for n in range(50)]
        here = pool.call("Resent.note_here", "here")
        assert settled(lambda: here.generation == 1)  # sent, though nobody waits for it
        os.kill(pid, signal.SIGKILL)
        assert [reply.result() for reply in waiting] == [f"{n}" for n in range(50)]
        assert {reply.generation for reply in waiting} == {2}
        for reply, executed in ((held, True), (here, False)):
            error = reply.exception()
            assert isinstance(error, errors.WorkerLost)
            assert error.maybe_executed is executed
        assert Counter(ledger.runs()) == Counter(["held", *(f"{n}" for n in range(50))])


def test_what_waited_in_an_event_loop_too(ledger: Ledger) -> None:
    """Callers notice the time alone."""

    async def use(pool: atomr_mp.Pool) -> tuple[list[Any], BaseException | None]:
        held = pool.call("Resent.hold", "held", gate.path)
        waiting = [pool.call("Resent.note", f"{n}") for n in range(50)]
        (pid,) = await asyncio.to_thread(gate.wait)
        os.kill(pid, signal.SIGKILL)
        return await asyncio.gather(*waiting), held.exception()

    with ledger.start(RESENT, **NEVER_MIND) as pool, ledger.gate("gate") as gate:
        results, lost = asyncio.run(use(pool))
        assert results == [f"{n}" for n in range(50)]
        assert isinstance(lost, errors.WorkerLost)
        assert lost.maybe_executed
        assert Counter(ledger.runs()) == Counter(["held", *results])


def test_no_client_that_wants_none_has_anything_sent_again(ledger: Ledger) -> None:
    """`max_replays=0` is for this as well."""
    with (
        ledger.start(RESENT, **NEVER_MIND) as pool,
        atomr_mp.connect(run_dir=pool.run_dir, max_replays=0) as other,
        ledger.gate("gate") as gate,
    ):
        wait_generation(other, 1)
        held = other.call("Resent.hold", "held", gate.path)
        (pid,) = gate.wait()
        waiting = other.call("Resent.note", "waited")
        assert settled(lambda: waiting.generation == 1)
        os.kill(pid, signal.SIGKILL)
        error = waiting.exception()
        assert isinstance(error, errors.WorkerLost)
        assert not error.maybe_executed
        assert held.exception() is not None
        assert ledger.runs() == ["held"]


class Caller(threading.Thread):
    """Has so many calls on their way until it is stopped.

    Args:
        number: Told in what its calls note.
        client: The client that calls.
        over: Set when it is to stop.
    """

    def __init__(self, number: int, client: atomr_mp.Pool, over: threading.Event) -> None:
        super().__init__()
        self._number, self._client, self._over = number, client, over
        self.replies: dict[str, atomr_mp.Reply] = {}
        self.failed: BaseException | None = None

    def run(self) -> None:
        """Do so."""
        try:
            while not self._over.is_set():
                first = len(self.replies)
                tags = [f"{self._number}-{n}" for n in range(first, first + WINDOW)]
                made = {tag: self._client.call("Resent.note", tag, deadline_s=DEADLINE_S) for tag in tags}
                self.replies |= made
                for reply in made.values():
                    reply.exception()
        except BaseException as error:  # noqa: BLE001 - told in the test's thread
            self.failed = error


def test_under_kills_nothing_that_did_not_start_is_an_error_and_nothing_runs_twice(ledger: Ledger) -> None:
    """Each end finds requests of all clients in the worker, some of which have started."""
    with ledger.start(RESENT, standby="hot", **NEVER_MIND) as pool, ExitStack() as stack:
        clients = [pool, *(stack.enter_context(atomr_mp.connect(run_dir=pool.run_dir)) for _ in range(CLIENTS - 1))]
        for client in clients:
            wait_generation(client, 1)
        over = threading.Event()
        callers = [Caller(number, client, over) for number, client in enumerate(clients)]
        for caller in callers:
            caller.start()
        for how in ENDS:
            lost = pool.call("Resent.fail", how, deadline_s=DEADLINE_S).exception()
            assert isinstance(lost, errors.WorkerLost), lost
        over.set()
        for caller in callers:
            caller.join()
            assert caller.failed is None
        ran = Counter(ledger.runs())
        assert set(ran.values()) == {1}
        for tag, reply in (each for caller in callers for each in caller.replies.items()):
            error = reply.exception()
            if error is None:
                assert ran[tag] == 1
            else:
                assert isinstance(error, errors.WorkerLost)
                assert error.maybe_executed, f"{tag} had not started"
