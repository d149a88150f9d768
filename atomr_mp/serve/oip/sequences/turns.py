"""Lets the requests of a sequence run one by one, each where the sequence's state is."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections import deque
from collections.abc import AsyncIterator, Iterable
from typing import Final

from atomr_mp import errors
from atomr_mp.client.reply import Reply, set_done
from atomr_mp.pool import Pool
from atomr_mp.protocol.messages.devices import DeviceState
from atomr_mp.serve.oip.models import Model
from atomr_mp.serve.oip.sequences.asked import START, AskedSequence
from atomr_mp.serve.oip.sequences.life import (
    SequenceOutcome,
    SequenceRecord,
    SequenceRefusal,
    SequenceState,
    admit,
    is_lost,
    outcome_of,
    refusal,
    settle,
)
from atomr_mp.serve.oip.sequences.table import SequenceTable, key_of
from atomr_mp.serve.problems import ClientLeft, Problem, retry_after
from atomr_mp.serve.served_request import ServedRequest
from atomr_mp.serve.source import PoolSource


class SequenceTurn:
    """One request of a sequence while it runs.

    Args:
        pool: The pool in which it runs.
        at: The device and the incarnation where it has to run, 0 for any; None for any device.
    """

    __slots__ = ("at", "outcome", "pool", "reply")

    def __init__(self, pool: Pool, at: tuple[int, int] | None) -> None:
        self.pool: Final = pool
        self.at: Final = at
        self.reply: Reply | None = None
        """The call, once it is made."""
        self.outcome: SequenceOutcome | None = None
        """How it has ended; None before that."""

    def failed(self, error: BaseException) -> None:
        """Note the error that the call has ended with, or that has kept it from being made."""
        if self.outcome is None:
            reply = self.reply
            self.outcome = outcome_of(error, sent=reply is not None, ran=reply is not None and reply.maybe_executed)

    @property
    def ran_at(self) -> tuple[int, int]:
        """The device and the incarnation that have the sequence's state."""
        if self.at is not None and self.at[1]:
            return self.at
        return (0, 0) if self.reply is None else (max(self.reply.device, 0), self.reply.generation)


class _Waiting:
    """A request that waits for its turn.

    Args:
        turn: Done once it is its turn.
        starts: Whether it begins the sequence.
    """

    __slots__ = ("is_cut", "starts", "turn")

    def __init__(self, turn: asyncio.Future[None], starts: bool) -> None:  # noqa: FBT001 - of one place
        self.turn: Final = turn
        self.starts: Final = starts
        self.is_cut = False
        """Whether the start that it stood behind was refused."""


def _cut(behind: Iterable[_Waiting]) -> None:
    """Refuse the requests behind a start that was refused, up to the next one."""
    for each in itertools.takewhile(lambda each: not each.starts, behind):
        each.is_cut = True


class SequenceTurns:
    """The turns of all sequences' requests in a front end. For the event loop's thread.

    Args:
        source: The source of the pool.
        table: The records of sequences.
    """

    def __init__(self, source: PoolSource, table: SequenceTable) -> None:
        self._source: Final = source
        self._table: Final = table
        self._queues: Final[dict[bytes, deque[_Waiting]]] = {}
        """Requests that wait for their turns, by sequence; a sequence with a request that runs is among them."""

    @contextlib.asynccontextmanager
    async def turn(
        self,
        served: ServedRequest,
        model: Model,
        asked: AskedSequence,
        deadline_s: float | None,
    ) -> AsyncIterator[SequenceTurn]:
        """Run a request in its turn; the block notes in the turn how it has ended.

        Args:
            served: The client's request.
            model: The model.
            asked: What the request says of its sequence.
            deadline_s: How long it may wait for its turn; None for any time.

        Raises:
            Problem: 400, the sequence has to begin anew; 503, another front end runs a request of it, or too many
                sequences are open.
            DeadlineExceeded: Its turn has not come in time.
            ClientLeft: The client has left.
            PoolUnreachable: There is no pool now.
        """
        key = key_of(model.name, asked.id)
        await self._wait(served, key, model, asked, deadline_s)
        try:
            try:
                turn = self._begin(key, model, asked)
            except BaseException:
                if asked.starts:
                    _cut(self._queues[key])
                raise
            try:
                yield turn
            except BaseException as error:
                turn.failed(error)
                raise
            finally:
                self._end(key, turn, asked, model.setting.idle_s)
        finally:
            self._next(key)

    # --- the record ------------------------------------------------------------------------------------------------

    def _begin(self, key: bytes, model: Model, asked: AskedSequence) -> SequenceTurn:
        table, pool, now_ns = self._table, self._source.pool, time.monotonic_ns()
        if not table.lock(key):
            raise Problem(
                503,
                "sequence_busy",
                f"a request of sequence {_shown(asked)} to model '{model.name}' runs in another process of the server; "
                "send the requests of a sequence one after the other, or on one stream",
                headers=(retry_after(0),),
            )
        try:
            found = admit(table.read(key), starts=asked.starts, epoch=pool.epoch, now_ns=now_ns)
            if isinstance(found, SequenceRefusal):
                if asked.ends:
                    table.forget(key)
                raise refusal(model.name, _shown(asked), found)
            at = found.at or self._place(pool, model.method, now_ns)
            running = SequenceRecord(
                SequenceState.RUNNING, pool.epoch, *(at or (0, 0)), now_ns + _nanoseconds(model.setting.idle_s)
            )
            generations = {each.index: each.generation for each in pool.devices}
            if not table.write(key, running, now_ns, lambda each: is_lost(each, pool.epoch, generations)):
                raise Problem(
                    503,
                    "sequences_full",
                    "as many sequences are open as there may be (the limit `sequences`); end some with sequence_end",
                    headers=(retry_after(0),),
                )
        except BaseException:
            table.unlock(key)
            raise
        return SequenceTurn(pool, at)

    def _place(self, pool: Pool, method: str, now_ns: int) -> tuple[int, int] | None:
        """Return the ready device with the fewest open sequences, in any incarnation; None if none is ready.

        Calls alone would not tell: most sequences that are open wait for their clients.
        """
        ready = [each.index for each in pool.devices_for(method) if each.admitted and each.state is DeviceState.READY]
        load = self._table.load(pool.epoch, now_ns) if len(ready) > 1 else {}
        return (min(ready, key=lambda device: load.get(device, 0)), 0) if ready else None

    def _end(self, key: bytes, turn: SequenceTurn, asked: AskedSequence, idle_s: float) -> None:
        table, now_ns = self._table, time.monotonic_ns()
        try:
            state = settle(turn.outcome or SequenceOutcome.NOT_RUN, starts=asked.starts, ends=asked.ends)
            if state is None:
                table.forget(key)
            else:
                record = SequenceRecord(state, turn.pool.epoch, *turn.ran_at, now_ns + _nanoseconds(idle_s))
                table.write(key, record, now_ns)
        finally:
            table.unlock(key)

    # --- the queue -------------------------------------------------------------------------------------------------

    async def _wait(
        self, served: ServedRequest, key: bytes, model: Model, asked: AskedSequence, deadline_s: float | None
    ) -> None:
        """Return when it is a request's turn, by arrival."""
        queue = self._queues.get(key)
        if queue is None:
            self._queues[key] = deque()
            return
        turn = asyncio.get_running_loop().create_future()
        waiting = _Waiting(turn, asked.starts)
        queue.append(waiting)
        is_ours = False
        try:
            left = asyncio.get_running_loop().create_future()
            with served.watching(left):
                await asyncio.wait({turn, left}, timeout=deadline_s, return_when=asyncio.FIRST_COMPLETED)
            if not turn.done():
                why = "it was not sent within its deadline: an earlier request of its sequence has no answer yet"
                raise ClientLeft if left.done() else errors.DeadlineExceeded(why, maybe_executed=False)
            if waiting.is_cut:
                raise refusal(model.name, _shown(asked), SequenceRefusal.BEHIND)
            is_ours = True
        finally:
            if not is_ours:
                behind = list(queue) if turn.done() else list(queue)[queue.index(waiting) + 1 :]
                if asked.starts:
                    _cut(behind)
                if turn.done():
                    self._next(key)
                else:
                    queue.remove(waiting)

    def _next(self, key: bytes) -> None:
        """Let the next request of a sequence run."""
        queue = self._queues[key]
        if queue:
            set_done(queue.popleft().turn)
        else:
            del self._queues[key]


def told(
    error: errors.AtomrError, outcome: SequenceOutcome | None, model: str, asked: AskedSequence
) -> errors.AtomrError | Problem:
    """Return the error of a request, which tells what it means for its sequence."""
    if isinstance(error, errors.StaleGeneration):
        return refusal(model, _shown(asked), SequenceRefusal.LOST)
    if outcome in {SequenceOutcome.LOST, SequenceOutcome.DOUBTFUL}:
        why = "its state is lost" if outcome is SequenceOutcome.LOST else "the request may have run or not"
        error.message += f"; sequence {_shown(asked)} has ended, since {why}: begin it anew, with {START}"
    return errors.unraised(error)


def _shown(asked: AskedSequence) -> str:
    return str(asked.id).encode("utf-8", "replace").decode()


def _nanoseconds(seconds: float) -> int:
    return int(seconds * 1e9)
