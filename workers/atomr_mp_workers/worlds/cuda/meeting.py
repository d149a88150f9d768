"""The host's side of meetings on GPUs: it looks on, and raises the errors that kernels find.

Collectives go on the stream and return at once. So an error is raised by the next collective, or at the end of the gang
call: all ranks have found it by then. After a mismatch all further collectives of the call raise the same error, on all
ranks.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, NoReturn

from atomr_mp import errors
from atomr_mp.protocol.world import Signature, WorldPageDamagedError
from atomr_mp.protocol.world.page import MOST
from atomr_mp_workers.fault_points import hooks
from atomr_mp_workers.worlds.cuda import layout as places
from atomr_mp_workers.worlds.epoch_place import EpochPlace
from atomr_mp_workers.worlds.exchange.call_checks import check_call, differing, in_later_call, place
from atomr_mp_workers.worlds.exchange.pairs import awaited_in_vain, sent_in_vain
from atomr_mp_workers.worlds.exchange.signatures import both_sides, in_words

if TYPE_CHECKING:
    from atomr_mp_workers.worlds.cuda.exchange import CudaExchange

SLACK_NS: Final = 10_000_000_000
UNLIMITED_NS: Final = 2**62


GLANCES: Final = 2
"""So many times a kernel must have looked for a header in vain behind its sender's end, as looks of the host see it.

What the sender has sent has come by then. The first of these may have been stored before the end, and seen behind it.
A kernel whose GPU does other processes' work meanwhile does not look at all, however long that takes.
"""


class Vain(NamedTuple):
    """The glances at a header that has not come, behind its sender's end."""

    waiting: int = 0
    """The collective."""
    glanced: int = 0
    """The number that the kernel has stored by the latest of them."""
    glances: int = 0

    def after(self, waiting: int, glanced: int) -> Vain:
        """Return these facts as they are after one more look of the host."""
        if waiting != self.waiting:
            return Vain(waiting, glanced)
        return self if glanced == self.glanced else Vain(waiting, glanced, self.glances + 1)


class CudaMeeting:
    """One process's side of the collectives of one epoch. Used on the world's thread, except where it says otherwise.

    Args:
        place: What this process has of the epoch.
        exchange: The process's side of the world; it has joined the epoch.
        look_on: Has `look` called now and then from now on, until `is_idle`. Any thread.
    """

    is_rehearsal: Final = False

    def __init__(self, place: EpochPlace, exchange: CudaExchange, look_on: Callable[[CudaMeeting], None]) -> None:
        self.name: Final = place.name
        self.rank: Final = exchange.rank
        self.size: Final = exchange.size
        self.epoch: Final = place.epoch
        self.exchange: Final = exchange
        self.number = 0
        """How many collectives this rank has begun."""
        self._page: Final = exchange.page
        self._writer: Final = place.writer
        self._peers: Final = [(rank, reader) for rank, reader in enumerate(place.readers) if rank != exchange.rank]
        self._ended: Final = place.ended
        self._left_waiting: Final = place.left_waiting
        self._look_on: Final = look_on
        self._sequence = self._thread = self._mend = 0
        self._method = ""
        self._waits: Callable[[bool], object] = bool
        self._shown = 0
        """The collective in which this rank is shown to wait, 0 for none."""
        self._vain = Vain()
        """What is known of a collective that waits behind a peer's end."""
        self._error: errors.RequestError | None = None
        """The error of a collective of this gang call."""
        self._cause: tuple[int, str, bool] | None = None
        """The rank and cause by which the epoch was given up here, and whether that rank has diverged in this call."""
        self._lock: Final = threading.Lock()
        """Guards what looks share with the world's thread."""

    @property
    def is_idle(self) -> bool:
        """Whether no gang call runs. Any thread."""
        return not self._sequence

    def begin(self, sequence: int, waits: Callable[[bool], object] = bool, limit_ns: int = 0, method: str = "") -> None:
        """Take collectives of a gang call from now on, of this thread.

        Args:
            sequence: The number of its entry.
            waits: Called with True before this rank waits for others, and with False behind that.
            limit_ns: How long the call may wait before the watchdog ends its process, 0 for any time. A kernel waits
                longer than that, and ends by itself then.
            method: The method that runs, for errors; empty for none of an actor.
        """
        self._method = method
        if self._cause is not None:
            self._cause = in_later_call(*self._cause)
        if self._error is not None and self._mend:
            self._page[places.CODE] = 0
        mend, self._mend, self._error = self._mend, 0, None
        self._thread, self._waits, self._sequence = threading.get_ident(), waits, sequence
        self.exchange.begin(sequence, mend, limit_ns + SLACK_NS if limit_ns else UNLIMITED_NS)
        self._look_on(self)

    def end(self) -> None:
        """Take no more collectives."""
        with self._lock:
            self._sequence = self._thread = 0
            self._show(0)
            self._waits = bool

    def check(self) -> None:
        """Refuse what cannot meet now.

        Raises:
            InvalidRequest: No gang call runs, or another thread asks.
            WorldMismatch: The ranks have called different things in this gang call.
            CollectiveAborted: The epoch is over.
        """
        check_call(self.name, self._thread)
        found = self._found() or self._ended()
        if found is not None:
            raise found
        if hooks.hook is not None:
            hooks.hook("world_meet", "")
        self.number += 1

    def settle(self) -> None:
        """Wait for the collectives of this gang call, and raise the error of one that has failed.

        Raises:
            WorldMismatch: The ranks have called different things. All ranks raise it.
            CollectiveAborted: The epoch is over.
        """
        found = self.settled()
        if found is not None:
            raise found

    def settled(self) -> errors.RequestError | None:
        """Wait for the collectives of this gang call, and return the error of one that has failed, None if none has."""
        self.exchange.synchronize()
        return self._found()

    def _found(self) -> errors.RequestError | None:
        """Return the error of a collective of this gang call that has failed so far; None if all is well."""
        if self._error is None and self._page[places.CODE]:
            self._error = self._read()
        return self._error

    def distrust(self, rank: int, why: str) -> NoReturn:
        """Give the epoch up, for a rank's memory is not as it can be.

        Raises:
            CollectiveAborted: In any case.
        """
        if self._cause is None:
            self._give_up(rank, f"the memory of rank {rank} is damaged: {why}")
        raise self._aborted()

    def look(self) -> None:
        """Look whether this rank waits, and for whom: a rank that has ended the call will not come. Another thread."""
        with self._lock:
            if not self._sequence:
                return
            waiting = self._page[places.WAITING]
            self._show(waiting)
            if not waiting or self._cause is not None:
                self._vain = Vain()
                return
            glanced = self._page[places.GLANCED]
            for rank, reader in self._peers:
                try:
                    has_ended = reader.is_open and reader.ended() >= self._sequence
                except WorldPageDamagedError as damage:
                    self._give_up(rank, f"the memory of rank {rank} is damaged: {damage}")
                    return
                if has_ended:
                    self._vain = self._vain.after(waiting, glanced)
                    if self._vain.glances >= GLANCES:
                        self._give_up(rank, f"rank {rank} has ended the call without it", diverged=True)
                    return
            self._vain = Vain()

    def _give_up(self, rank: int, cause: str, *, diverged: bool = False) -> None:
        if self._ended() is not None:  # whoever has left for that has ended its call as well, and is not its cause
            return
        self._cause = rank, cause, diverged
        self._left_waiting(rank)

    def _show(self, waiting: int) -> None:
        """Show on the board and in the lines that this rank waits in a collective; 0 for none."""
        if waiting == self._shown:
            return
        if waiting:
            signature, _ = _unpacked([*self._page[places.WAITS_IN : places.WAITS_IN + 2].tolist(), 0])
            self._writer.show_wait(waiting % MOST, signature)
        else:
            self._writer.show_no_wait()
        if bool(waiting) != bool(self._shown):
            self._waits(bool(waiting))
        self._shown = waiting

    def _read(self) -> errors.RequestError:
        """Return the error that the page tells. Kernels write there, but any code of the process may have."""
        page = self._page
        code, rank, number = page[places.CODE], page[places.RANK], page[places.SEQUENCE]
        theirs = page[places.THEIRS : places.THEIRS + 3].tolist()
        if code == places.MISMATCH and rank < self.size:
            found, call = _unpacked(theirs)
            own, _ = _unpacked(page[places.OWN : places.OWN + 3].tolist())
            if call != self._sequence:
                diverged = rank if call > self._sequence else self.rank
                if self._cause is None:
                    self._give_up(diverged, f"rank {diverged} has ended the call without it", diverged=True)
                return self._aborted(in_words(own))
            self._mend = number
            sides = sorted([(self.rank, own), (rank, found)], key=lambda each: each[0])
            (one, ones), (other, others) = sides
            if own == found:
                why = f"the GPUs of rank {one} and rank {other} differ in their number of multiprocessors"
                return self._mismatch(rank, f"{both_sides(one, ones, other, others).partition(',')[0]}, but {why}")
            return self._mismatch(rank, both_sides(one, ones, other, others))
        if code == places.PAIRS:
            self._mend = number
            return self._mismatch(rank, _pairs(theirs))
        if code == places.LATE and self._cause is None:
            self._give_up(self.rank, "the others have not come within the kernel's own bound")
        if code == places.WORN and self._cause is None:
            self._give_up(self.rank, "the epoch has had as many collectives as it can")
        return self._aborted()

    def _mismatch(self, other: int, why: str) -> errors.WorldMismatch:
        return differing(self.name, self._method, self.rank, other, why)

    def _aborted(self, what: str = "a collective") -> errors.RequestError:
        if self._cause is not None:
            rank, cause, diverged = self._cause
            return errors.CollectiveAborted(
                f"{what} was aborted in {place(self.name, self._method)}: {cause}",
                maybe_executed=True,
                world=self.name,
                epoch=self.epoch,
                rank=rank,
                cause=cause,
                diverged=diverged,
            )
        over = self._ended()
        if over is not None:
            return over
        return errors.CollectiveAborted(
            f"a collective was aborted in {place(self.name, self._method)}",
            maybe_executed=True,
            world=self.name,
            epoch=self.epoch,
            rank=-1,
            cause="",
        )


class CudaRehearsal:
    """A meeting with itself, in `setup`: the table has no other process.

    Args:
        name: The world's name.
        exchange: The process's side of the world; it has joined no epoch.
    """

    is_rehearsal: Final = True

    def __init__(self, name: str, exchange: CudaExchange) -> None:
        self.name: Final = name
        self.rank: Final = exchange.rank
        self.size: Final = exchange.size
        self.exchange: Final = exchange
        self.number = 0

    def check(self) -> None:
        """Refuse nothing."""
        self.number += 1

    def settle(self) -> None:
        """Wait for nothing."""

    def distrust(self, rank: int, why: str) -> NoReturn:
        """Say that this process has damaged its own memory.

        Raises:
            InternalError: In any case.
        """
        raise errors.InternalError(f"in a rehearsal of world {self.name!r} rank {rank}'s memory is damaged: {why}")


def _unpacked(words: Sequence[int]) -> tuple[Signature, int]:
    """Return the signature that words stand for, and the number of its gang call; of any words."""
    first, second, third = words
    operator = first >> 56
    signature = Signature(
        first & 2**48 - 1, first >> 48 & 0xFF, operator & 7 | operator >> 3 << 8, second >> 8 & 0xFF, second & 0xFF
    )
    return signature, second >> 32 & 0xFFFFFFFF | (third & 0xFFFFFFFF) << 32


def _pairs(theirs: Sequence[int]) -> str:
    """Say which ranks of a `sendrecv` do not go together."""
    rank, pair, other, others = theirs[0] & 0xFFFFFFFF, theirs[0] >> 32, theirs[1] & 0xFFFFFFFF, theirs[1] >> 32
    to, from_ = pair & 0xFFFF, pair >> 16
    if to == other and others >> 16 != rank:
        return sent_in_vain(rank, other, others >> 16, NOWHERE)
    return awaited_in_vain(rank, from_, others & 0xFFFF, NOWHERE)


NOWHERE: Final = 0xFFFF
"""Stands for no rank in a pair."""
