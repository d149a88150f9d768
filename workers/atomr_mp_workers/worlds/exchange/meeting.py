"""Where the ranks of a world meet: signatures are shown and compared, and ranks wait for each other by bells.

A rank that meets first waits; the last one to meet rings all others. A rank that meets stores its number, passes a
fence, and looks at the numbers of the others, so at least one of the ranks sees that all have met. A rank that ends a
gang call stores that, passes a fence, and looks which ranks wait for it; one that is about to wait looks at what has
ended.
"""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Callable, Sequence
from typing import Final, NoReturn

from atomr_mp import errors
from atomr_mp.protocol.world import Signature, WorldPageDamagedError
from atomr_mp.protocol.world.memory import MAILBOX_SLOTS, SLOT_BYTES
from atomr_mp_workers.fault_points import hooks
from atomr_mp_workers.worlds.epoch_place import EpochPlace
from atomr_mp_workers.worlds.exchange.call_checks import check_call, differing, in_later_call, place
from atomr_mp_workers.worlds.exchange.signatures import Agreement, both_sides, in_words, sequence_of

LOOK_MS: Final = 1000
"""Interval of looks of a rank that waits at its own lines. Code of its process may have written over them."""


class Meeting:
    """One process's side of the collectives of one epoch. Used on the world's thread, except where it says otherwise.

    Args:
        place: What this process has of the epoch.
    """

    def __init__(self, place: EpochPlace) -> None:
        rank, readers, bells = place.rank, place.readers, place.bells
        self.name: Final = place.name
        self.rank: Final = rank
        self.size: Final = len(readers)
        self.epoch: Final = place.epoch
        self.parts: Final[Sequence[int]] = (rank,)
        """The ranks whose part of a reduction in two steps is computed here."""
        self.mailboxes: Final = tuple(place.mailboxes)
        self.number = 0
        """Number of the latest collective step that this rank has met."""
        self._writer: Final = place.writer
        self._own: Final = readers[rank]
        self._peers: Final = tuple((other, reader) for other, reader in enumerate(readers) if other != rank)
        self._bells: Final = tuple(bells)
        self._bell: Final = bells[rank]
        self._others: Final = tuple(bells[other] for other, _ in self._peers)
        self._ended: Final = place.ended
        self._left_waiting: Final = place.left_waiting
        self._sequence = self._thread = 0
        self._method = ""
        self._agreement: Agreement | None = None
        """The latest collective of this gang call."""
        self._waits: Callable[[bool], object] = bool
        self._joined = False
        """Whether all peers have been seen to have joined; their lines are of this epoch since then."""
        self._seen: Final = [0] * len(readers)
        """How often each rank has met, as far as was seen."""
        self._cause: tuple[int, str, bool] | None = None
        """The rank and cause by which this meeting was aborted, and whether that rank has diverged in this call."""
        self._fence: Final = threading.Lock()
        self._poll: Final = select.poll()
        self._poll.register(bells[rank], select.POLLIN)

    def begin(
        self, sequence: int, waits: Callable[[bool], object] = bool, _limit_ns: int = 0, method: str = ""
    ) -> None:
        """Take collectives of a gang call from now on, of this thread.

        Args:
            sequence: The number of its entry.
            waits: Called with True before this rank waits for others, and with False behind that.
            _limit_ns: How long the call may wait; the watchdog ends the process then.
            method: The method that runs, for errors; empty for none of an actor.
        """
        self._sequence, self._thread, self._waits = sequence, threading.get_ident(), waits
        self._method, self._agreement = method, None
        if self._cause is not None:
            self._cause = in_later_call(*self._cause)

    def end(self) -> None:
        """Take no more collectives, and ring the peers that wait. The end was stored before (`MemberWriter.end`)."""
        self._sequence = self._thread = 0
        self._waits = bool
        self._pass_fence()
        for rank, reader in self._peers:
            try:
                waits = reader.met() > self.number or not reader.is_open
            except WorldPageDamagedError:
                waits = True
            if waits:
                _ring(self._bells[rank])

    def settled(self) -> errors.RequestError | None:
        """Return None: a collective that has failed has raised its error."""
        return None

    def check(self) -> None:
        """Refuse what cannot meet now: before a rank writes to its mailbox.

        Raises:
            InvalidRequest: No gang call runs, or another thread asks.
            CollectiveAborted: The epoch is over, or was given up here.
        """
        check_call(self.name, self._thread)
        self._raise_if_over()

    def meet(self, agreement: Agreement, step: int) -> None:
        """Meet all ranks: wait until each has called this, and compare what they call.

        What this rank has written to its mailbox before can be read by all after it. The wait has no bound of its own;
        it ends with the epoch. The first step has called `check` before.

        Args:
            agreement: What all ranks have to call.
            step: Which step of that it is, from 0.

        Raises:
            WorldMismatch: A rank calls something else. All ranks raise it, and all go on with the next number.
            CollectiveAborted: The epoch is over; or a rank has ended the gang call without it, which ends the epoch.
        """
        if step:
            self._raise_if_over()
        if hooks.hook is not None:
            hooks.hook("world_meet", "")
        self._agreement = agreement
        signature = agreement.signature(step, self._sequence)
        number = self.number = self._writer.meet(signature)
        with self._fence:  # as in `_pass_fence`
            pass
        if self._all_have_met(number):
            for bell in self._others:
                _ring(bell)
        else:
            self._wait(number)
        self._compare(number, signature)

    def distrust(self, rank: int, why: str) -> NoReturn:
        """Give the epoch up, for a rank's memory is not as it can be.

        Raises:
            CollectiveAborted: In any case.
        """
        self._abort(rank, f"the memory of rank {rank} is damaged: {why}")

    def mismatch(self, other: int, why: str) -> errors.WorldMismatch:
        """Return the error of ranks that have called different things.

        Args:
            other: A rank that has called something else.
            why: Both sides, in words.
        """
        return differing(self.name, self._method, self.rank, other, why)

    def _wait(self, number: int) -> None:
        """Wait until all have met a number, or the epoch is over."""
        self._waits(True)
        try:
            while True:
                self._poll.poll(LOOK_MS)
                _hush(self._bell)
                if self._own.met() != number:
                    self.distrust(self.rank, "its own lines were changed")
                if self._all_have_met(number):  # even in an epoch that is over since: what they have written stays
                    return
                self._raise_if_over()
        finally:
            self._waits(False)

    def _all_have_met(self, number: int) -> bool:
        """Return whether all peers have met a number.

        Raises:
            CollectiveAborted: One will not.
        """
        if not self._joined:
            self._joined = all(reader.is_open for _, reader in self._peers)
            if not self._joined:
                return False  # the peer will meet later, and ring
        complete = True
        for rank, reader in self._peers:
            try:
                met = reader.met()
                if met < self._seen[rank]:
                    raise WorldPageDamagedError("a rank has met less often than before")
                self._seen[rank] = met
                if met < number:
                    # What a peer has met, it has met before it ended; so the end is loaded first.
                    if reader.ended() >= self._sequence and reader.met() < number:
                        self._abort(rank, f"rank {rank} has ended the call without it", diverged=True)
                    complete = False
                elif met > number + 1:
                    raise WorldPageDamagedError("a rank has met more often than it can have")
            except WorldPageDamagedError as damage:
                self.distrust(rank, str(damage))
        return complete

    def _compare(self, number: int, signature: Signature) -> None:
        """Compare the signatures of all."""
        own, different = self._own.record(number), None
        for rank, reader in self._peers:
            if reader.record(number) == own:  # with its number and sum, so these hold as well
                continue
            try:
                found = reader.signature(number)
            except WorldPageDamagedError as damage:
                self.distrust(rank, str(damage))
            if found == signature:
                continue
            theirs = sequence_of(found)
            if theirs > self._sequence:
                self._abort(rank, f"rank {rank} has ended the call without it", diverged=True)
            if theirs < self._sequence:  # the peer waits in a call that has ended here, and gives the epoch up as well
                self._abort(self.rank, f"rank {self.rank} has ended the call before without it")
            different = different or (rank, found)
        if different is not None:
            other, found = different
            one, two = sorted([(self.rank, signature), (other, found)], key=lambda each: each[0])
            raise self.mismatch(other, both_sides(*one, *two))

    def _raise_if_over(self) -> None:
        over = self._ended()
        if over is not None:
            raise over
        if self._cause is not None:
            rank, cause, diverged = self._cause
            raise self._aborted(rank, cause, diverged=diverged)

    def _abort(self, rank: int, cause: str, *, diverged: bool = False) -> NoReturn:
        over = self._ended()  # whoever has left for that has ended its call as well, and is not its cause
        if over is not None:
            raise over
        self._cause = rank, cause, diverged
        self._left_waiting(rank)
        raise self._aborted(rank, cause, diverged=diverged)

    def _aborted(self, rank: int, cause: str, *, diverged: bool) -> errors.CollectiveAborted:
        called = self._agreement
        what = "a collective" if called is None else in_words(called.signature(0, self._sequence))
        return errors.CollectiveAborted(
            f"{what} was aborted in {place(self.name, self._method)}: {cause}",
            maybe_executed=True,
            world=self.name,
            epoch=self.epoch,
            rank=rank,
            cause=cause,
            diverged=diverged,
        )

    def _pass_fence(self) -> None:
        """Order the stores before this before the loads behind it: a lock's instructions do."""
        with self._fence:
            pass


def _ring(bell: int) -> None:
    try:  # `suppress` would take longer than the call
        os.eventfd_write(bell, 1)
    except BlockingIOError:  # full, so it will be heard
        return


def _hush(bell: int) -> None:
    try:
        os.eventfd_read(bell)
    except BlockingIOError:  # another has read it
        return


class Rehearsal:
    """A meeting with itself: this rank's data stands for that of all ranks. It waits for nothing.

    Args:
        name: The world's name.
        rank: This process's rank.
        size: How many ranks there are.
    """

    def __init__(self, name: str, rank: int, size: int) -> None:
        self.name: Final = name
        self.rank: Final = rank
        self.size: Final = size
        self.parts: Final[Sequence[int]] = range(size)
        self.mailboxes: Final = (memoryview(bytearray(MAILBOX_SLOTS * SLOT_BYTES)),) * size  # zeros, taken as used
        self.number = 0

    def check(self) -> None:
        """Refuse nothing."""

    def meet(self, agreement: Agreement, step: int) -> None:
        """Count a step."""
        agreement.signature(step, 0)
        self.number += 1

    def distrust(self, rank: int, why: str) -> NoReturn:
        """Say that this process has damaged its own memory.

        Raises:
            InternalError: In any case.
        """
        raise errors.InternalError(f"in a rehearsal of world {self.name!r} rank {rank}'s memory is damaged: {why}")

    def mismatch(self, other: int, why: str) -> errors.WorldMismatch:
        """Return the error of what cannot go together."""
        return errors.WorldMismatch(f"in world {self.name!r} {why}", world=self.name, rank=self.rank, other=other)
