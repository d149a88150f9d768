"""The collectives of a world, over mailboxes: each rank writes chunks to its own, and reads those of the others.

Each step of a collective is one meeting. Before it a rank writes to one half of its mailbox, after it all read there;
the next step uses the other half. A rank writes to a half again only after all have met once more, so after all have
read. A half has two slots: one for what is given, one for what is computed, or for the numbers that go with it.

Nothing that is read from another process's memory is used as a place or a size, but for counts, which have a sum and
bounds.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from atomr_mp import errors
from atomr_mp.protocol.world.collectives import Collective
from atomr_mp.protocol.world.memory import MAILBOX_SLOTS, SLOT_BYTES
from atomr_mp.protocol.world.page import MOST, sum_of
from atomr_mp_workers.worlds.exchange.arguments import check_rank, part_shape
from atomr_mp_workers.worlds.exchange.elements import Arithmetic, Array, Make, Target, given
from atomr_mp_workers.worlds.exchange.meeting import Meeting, Rehearsal
from atomr_mp_workers.worlds.exchange.operators import check_operator
from atomr_mp_workers.worlds.exchange.pairs import unmatched
from atomr_mp_workers.worlds.exchange.signatures import Agreement

SMALL_BYTES: Final = 16 * 2**10
"""Up to this size each rank reduces all elements for itself, in one step."""

LINE_BYTES: Final = 64
"""Parts of a reduction begin at whole lines of the processor's cache."""

MOST_KNOWN: Final = 64
"""Sizes of small reductions that are kept at hand."""

_WORD: Final[np.dtype[Any]] = np.dtype(np.uint64)


class _Known(NamedTuple):
    """A reduction of few elements, as it was called before."""

    agreement: Agreement
    arithmetic: Arithmetic
    places: tuple[list[Array], ...]
    """By half and rank: the elements in the mailbox."""


class Collectives:
    """The collectives of one meeting. `OwnWorld` says what each one does.

    Args:
        meeting: Where the ranks meet.
        make: Makes copies and results, in memory that has a limit; None for NumPy's memory. All ranks give it, or none.
    """

    def __init__(self, meeting: Meeting | Rehearsal, make: Make | None = None) -> None:
        self._meeting: Final = meeting
        self._make: Final[Make] = make or np.empty
        self._is_limited: Final = make is not None
        self._rank: Final = meeting.rank
        self._size: Final = meeting.size
        self._bytes: Final = [np.frombuffer(each, np.uint8) for each in meeting.mailboxes]
        self._views: Final[dict[np.dtype[Any], list[list[Array]]]] = {}
        """By element type and rank: the slots."""
        self._arithmetics: Final[dict[tuple[str, str], Arithmetic]] = {}
        """By operator and element type: arithmetic without a factor."""
        self._known: Final[dict[tuple[str, str, int], _Known]] = {}
        """By operator, element type and number of elements: small reductions that may come again."""

    @property
    def steps(self) -> int:
        """How often this rank has met the others."""
        return self._meeting.number

    def settle(self) -> None:
        """Return: each collective has waited for the others."""

    def refuse(self) -> None:
        """Meet the others with a signature that none of them has, unless all refuse."""
        self._meeting.check()
        self._meeting.meet(Agreement(Collective.REFUSED), 0)

    def meet_for_program(self, name: int) -> None:
        """Meet the others at the begin or the end of a program, which all name alike."""
        self._meeting.check()
        self._meeting.meet(Agreement(Collective.PROGRAM, name), 0)

    def barrier(self) -> None:
        """Meet without data."""
        self._meeting.check()
        self._meeting.meet(Agreement(Collective.BARRIER), 0)

    def all_reduce(self, x: Any, operator: str, factor: Any, out: Any) -> Any:
        """Return all ranks' arrays reduced to one, on all ranks."""
        array, name = given(x, self._make)
        if factor is None and isinstance(operator, str):
            known = self._known.get((operator, name, array.size))
            if known is not None:
                return self._all_reduce_again(known, array, out)
        arithmetic = self._arithmetic(operator, array, name, factor)
        target = Target(out, array.shape, array.dtype, self._make)
        agreement = Agreement(Collective.ALL_REDUCE, array.size, name, operator=operator, factor=factor is not None)
        self._reduce(agreement, target.apart(array, same_places=True), arithmetic, target.flat)
        if factor is None and 0 < array.nbytes <= SMALL_BYTES:
            if len(self._known) == MOST_KNOWN:
                self._known.clear()
            places = tuple([each[: array.size] for each in self._half(half, array.dtype)] for half in range(2))
            self._known[operator, name, array.size] = _Known(agreement, arithmetic, places)
        return target.result(array.shape)

    def _all_reduce_again(self, known: _Known, array: Array, out: Any) -> Any:
        """Reduce a small array of a type and size that was reduced before, in two thirds of the time."""
        target, meeting = Target(out, array.shape, array.dtype, self._make), self._meeting
        meeting.check()
        places = known.places[(meeting.number + 1) % 2]
        places[self._rank][...] = array.reshape(-1)
        meeting.meet(known.agreement, 0)
        known.arithmetic.reduce(places, target.flat)
        return target.result(array.shape)

    def reduce(self, x: Any, root: int, operator: str, factor: Any, out: Any) -> Any:
        """Return them reduced to one on one rank, None on the others."""
        array, name = given(x, self._make)
        arithmetic = self._arithmetic(operator, array, name, factor)
        agreement = Agreement(
            Collective.REDUCE,
            array.size,
            name,
            operator=operator,
            root=self._checked(root, "root"),
            factor=factor is not None,
        )
        if self._rank != root:
            self._reduce(agreement, array, arithmetic, None)
            return None
        target = Target(out, array.shape, array.dtype, self._make)
        self._reduce(agreement, target.apart(array, same_places=True), arithmetic, target.flat)
        return target.result(array.shape)

    def reduce_scatter(self, x: Any, operator: str, factor: Any, out: Any) -> Any:
        """Return this rank's part of the arrays reduced to one."""
        array, name = given(x, self._make)
        shape = part_shape(array.shape, self._meeting.name, self._size)
        arithmetic = self._arithmetic(operator, array, name, factor)
        target = Target(out, shape, array.dtype, self._make)
        agreement = Agreement(Collective.REDUCE_SCATTER, array.size, name, operator=operator, factor=factor is not None)
        rows = target.apart(array, same_places=False).reshape(self._size, -1) if array.size else None
        rank, size, flat, meeting = self._rank, self._size, target.flat, self._meeting
        most = SLOT_BYTES // (size * arithmetic.wire.itemsize)
        meeting.check()
        for step, (begin, end) in enumerate(_chunks(array.size // size, most)):
            width = end - begin
            slots = self._slots(arithmetic.wire)
            if rows is not None:
                arithmetic.fill(slots[rank][: size * width].reshape(size, width), rows[:, begin:end])
            meeting.meet(agreement, step)
            if width:
                arithmetic.reduce([each[rank * width : (rank + 1) * width] for each in slots], flat[begin:end])
        return target.result(shape)

    def all_gather(self, x: Any, out: Any) -> Any:
        """Return all ranks' arrays, one behind the other."""
        array, name = given(x, self._make)
        shape = (self._size, *array.shape)
        target = Target(out, shape, array.dtype, self._make)
        source = target.apart(array, same_places=False).reshape(-1)
        rows = target.flat.reshape(self._size, array.size)
        agreement = Agreement(Collective.ALL_GATHER, array.size, name)
        meeting, rank = self._meeting, self._rank
        meeting.check()
        for step, (begin, end) in enumerate(_chunks(array.size, SLOT_BYTES // array.itemsize)):
            slots = self._slots(array.dtype)
            slots[rank][: end - begin] = source[begin:end]
            meeting.meet(agreement, step)
            for row, slot in zip(rows, slots, strict=True):
                row[begin:end] = slot[: end - begin]
        return target.result(shape)

    def broadcast(self, x: Any, root: int, out: Any) -> Any:
        """Return one rank's array, on all ranks."""
        array, name = given(x, self._make)
        target = Target(out, array.shape, array.dtype, self._make)
        source = target.apart(array, same_places=True).reshape(-1)
        agreement = Agreement(Collective.BROADCAST, array.size, name, root=self._checked(root, "root"))
        meeting, flat = self._meeting, target.flat
        gives = root in meeting.parts
        meeting.check()
        for step, (begin, end) in enumerate(_chunks(array.size, SLOT_BYTES // array.itemsize)):
            slot = self._slots(array.dtype)[root]
            if gives:
                slot[: end - begin] = source[begin:end]
            meeting.meet(agreement, step)
            flat[begin:end] = slot[: end - begin]
        return target.result(array.shape)

    def all_to_all(self, x: Any, out: Any) -> Any:
        """Return this rank's parts of all ranks' arrays."""
        array, name = given(x, self._make)
        part_shape(array.shape, self._meeting.name, self._size)
        target = Target(out, array.shape, array.dtype, self._make)
        source, size, rank = target.apart(array, same_places=False), self._size, self._rank
        width = array.size // size
        rows, results = source.reshape(size, width), target.flat.reshape(size, width)
        agreement = Agreement(Collective.ALL_TO_ALL, array.size, name)
        meeting = self._meeting
        meeting.check()
        for step, (begin, end) in enumerate(_chunks(width, SLOT_BYTES // (size * array.itemsize))):
            count = end - begin
            slots = self._slots(array.dtype)
            slots[rank][: size * count].reshape(size, count)[...] = rows[:, begin:end]
            meeting.meet(agreement, step)
            for result, slot in zip(results, slots, strict=True):
                result[begin:end] = slot[rank * count : (rank + 1) * count]
        return target.result(array.shape)

    def all_to_all_v(self, parts: Sequence[Any]) -> list[Array]:
        """Return the parts of all ranks that are for this one."""
        arrays, name, row = self._given_parts(parts)
        dtype, rank, size, meeting = arrays[0].dtype, self._rank, self._size, self._meeting
        sources = [each.reshape(-1) for each in arrays]
        width = SLOT_BYTES // (size * dtype.itemsize)
        agreement = Agreement(Collective.ALL_TO_ALL_V, row, name)
        meeting.check()
        slots, numbers = self._slots(dtype), self._numbers()
        self._fill_parts(slots, sources, 0, width)
        _write(numbers[rank], [len(each) for each in arrays], meeting.number + 1)
        meeting.meet(agreement, 0)
        most = min(MOST, MOST // dtype.itemsize // max(1, row))
        counts = [self._read(each, numbers[each], size, most) for each in range(size)]
        lengths = [row * each[rank] for each in counts]
        results = self._made_or_refused(lengths, dtype)
        _take_parts(slots, results, 0, width, rank)
        agreement.elements = sum_of([each for line in counts for each in line], 0)
        chunks = _chunks(row * max(map(max, counts)), width)
        if self._is_limited and len(chunks) == 1:
            meeting.meet(agreement, 1)  # all have memory for their results
        for step, (begin, _) in enumerate(chunks):
            if step:
                slots = self._slots(dtype)
                self._fill_parts(slots, sources, begin, width)
                meeting.meet(agreement, step)
                _take_parts(slots, results, begin, width, rank)
        rest = arrays[0].shape[1:]
        return [result.reshape(each[rank], *rest) for result, each in zip(results, counts, strict=True)]

    def _made_or_refused(self, lengths: Sequence[int], dtype: np.dtype[Any]) -> list[Array]:
        """Return new vectors. If there is no memory for them, the others meet a refusal.

        Raises:
            OutOfMemory: There is none.
        """
        try:
            return [self._make((length,), dtype) for length in lengths]
        except errors.OutOfMemory:
            with contextlib.suppress(errors.WorldMismatch, errors.CollectiveAborted):
                self.refuse()
            raise

    def sendrecv(self, x: Any, to: int | None, from_: int | None, out: Any) -> Any:
        """Return the array that another rank sends to this one."""
        array, name = given(x, self._make)
        target = None if from_ is None else Target(out, array.shape, array.dtype, self._make)
        source = (array if target is None else target.apart(array, same_places=True)).reshape(-1)
        pair = [self._checked(to, "to", none=True), self._checked(from_, "from_", none=True)]
        agreement = Agreement(Collective.SENDRECV, array.size, name)
        meeting, rank = self._meeting, self._rank
        meeting.check()
        for step, (begin, end) in enumerate(_chunks(array.size, SLOT_BYTES // array.itemsize)):
            slots, numbers = self._slots(array.dtype), self._numbers()
            if to is not None or from_ in meeting.parts:
                slots[rank][: end - begin] = source[begin:end]
            if not step:
                _write(numbers[rank], pair, meeting.number + 1)
            meeting.meet(agreement, step)
            if not step:
                self._check_pairs([self._read(each, numbers[each], 2, self._size) for each in range(self._size)])
            if target is not None and from_ is not None:
                target.flat[begin:end] = slots[from_][: end - begin]
        return None if target is None else target.result(array.shape)

    def _reduce(self, agreement: Agreement, array: Array, arithmetic: Arithmetic, flat: Array | None) -> None:
        """Reduce all elements: small arrays in one step, large ones in chunks whose parts the ranks share.

        While ranks share in one chunk's parts, they give the next chunk; so each chunk costs one meeting, and the last
        one another.

        Args:
            agreement: What all ranks call.
            array: This rank's array.
            arithmetic: The operator.
            flat: Where the result goes; None where it is not wanted.
        """
        source, total, wire, rank = array.reshape(-1), array.size, arithmetic.wire, self._rank
        meeting = self._meeting
        meeting.check()
        if total * wire.itemsize <= SMALL_BYTES:
            slots = self._slots(wire)
            arithmetic.fill(slots[rank][:total], source)
            meeting.meet(agreement, 0)
            if flat is not None and total:
                arithmetic.reduce([each[:total] for each in slots], flat)
            return
        chunks = _chunks(total, SLOT_BYTES // wire.itemsize)
        step, given_slots = 0, self._slots(wire)
        arithmetic.fill(given_slots[rank][: chunks[0][1]], source[: chunks[0][1]])
        meeting.meet(agreement, 0)
        for step, (begin, end) in enumerate(chunks, start=1):
            slots, results, count = self._slots(wire), self._slots(array.dtype, 1), end - begin
            if step < len(chunks):
                after, last = chunks[step]
                arithmetic.fill(slots[rank][: last - after], source[after:last])
            parts = [self._part(count, each, wire.itemsize) for each in range(self._size)]
            for each in meeting.parts:
                low, high = parts[each]
                if low < high:
                    arithmetic.reduce([slot[low:high] for slot in given_slots], results[rank][low:high])
            meeting.meet(agreement, step)
            if flat is not None:
                for slot, (low, high) in zip(results, parts, strict=True):
                    flat[begin + low : begin + high] = slot[low:high]
            given_slots = slots

    def _arithmetic(self, operator: str, array: Array, name: str, factor: Any) -> Arithmetic:
        """Return the arithmetic of an operator."""
        if factor is not None:
            return Arithmetic(operator, array.dtype, name, factor)
        check_operator(operator)
        found = self._arithmetics.get((operator, name))
        if found is None:
            found = self._arithmetics[operator, name] = Arithmetic(operator, array.dtype, name, None)
        return found

    def _part(self, count: int, rank: int, item_bytes: int) -> tuple[int, int]:
        """Return which elements of a chunk a rank reduces."""
        line = LINE_BYTES // item_bytes
        width = -(-count // (self._size * line)) * line
        return min(count, width * rank), min(count, width * (rank + 1))

    def _slots(self, dtype: np.dtype[Any], place: int = 0) -> list[Array]:
        """Return a slot of each rank's mailbox, of the half that the next step uses, as elements of a type."""
        return self._half((self._meeting.number + 1) % 2, dtype, place)

    def _half(self, half: int, dtype: np.dtype[Any], place: int = 0) -> list[Array]:
        """Return a slot of each rank's mailbox, of one half, as elements of a type."""
        views = self._views.get(dtype)
        if views is None:
            slots = range(0, MAILBOX_SLOTS * SLOT_BYTES, SLOT_BYTES)
            views = self._views[dtype] = [
                [each[begin : begin + SLOT_BYTES].view(dtype) for each in self._bytes] for begin in slots
            ]
        return views[2 * half + place]

    def _numbers(self) -> list[Array]:
        return self._slots(_WORD, 1)

    def _read(self, rank: int, numbers: Array, count: int, most: int) -> list[int]:
        """Return numbers that a rank has written beside its data.

        Raises:
            CollectiveAborted: They are not as they can be.
        """
        found: list[int] = numbers[: count + 1].tolist()
        total = found.pop()
        if total != sum_of(found, self._meeting.number):
            self._meeting.distrust(rank, "the numbers beside its data do not match their sum")
        if max(found) > most:
            self._meeting.distrust(rank, "a number beside its data is larger than can be")
        return found

    def _checked(self, rank: Any, what: str, *, none: bool = False) -> int:
        """Return a rank that a method names; for None, where that may be, the number behind the last rank.

        Raises:
            InvalidRequest: There is no such rank.
        """
        if rank is None and none:
            return self._size
        return check_rank(rank, what, self._meeting.name, self._size)

    def _given_parts(self, parts: Sequence[Any]) -> tuple[list[Array], str, int]:
        """Return the arrays for the ranks, their element type's name, and how many elements a row of them has.

        Raises:
            InvalidRequest: They are not one for each rank, or of different types or rows.
        """
        if len(parts) != self._size:
            raise errors.InvalidRequest(
                f"all_to_all_v takes an array for each of the {self._size} ranks, not {len(parts)}"
            )
        arrays, names = zip(*(given(each, self._make) for each in parts), strict=True)
        kinds = {(name, each.shape[1:] if each.ndim else None) for name, each in zip(names, arrays, strict=True)}
        if len(kinds) > 1 or not arrays[0].ndim:
            raise errors.InvalidRequest(
                "the arrays of all_to_all_v have to be of one type, and of one shape but for the first axis; they are "
                + ", ".join(f"{name}{list(each.shape)}" for name, each in zip(names, arrays, strict=True))
            )
        row = 1
        for length in arrays[0].shape[1:]:
            row *= length
        return list(arrays), names[0], row

    def _fill_parts(self, slots: list[Array], sources: list[Array], begin: int, width: int) -> None:
        """Write a chunk of each part to a place of its own."""
        own = slots[self._rank]
        for place, source in enumerate(sources):
            chunk = source[begin : begin + width]
            own[place * width : place * width + chunk.size] = chunk

    def _check_pairs(self, pairs: list[list[int]]) -> None:
        """Compare what ranks send with what the others receive.

        Raises:
            WorldMismatch: They do not go together. All ranks raise it.
        """
        found = None if isinstance(self._meeting, Rehearsal) else unmatched(pairs, self._size)
        if found is not None:
            raise self._meeting.mismatch(found.rank if found.rank != self._rank else found.other, found.why)


def _chunks(count: int, most: int) -> list[tuple[int, int]]:
    """Return where chunks begin and end. Without elements there is one all the same, for its meeting."""
    return [(begin, min(count, begin + most)) for begin in range(0, max(count, 1), most)]


def _take_parts(slots: list[Array], results: list[Array], begin: int, width: int, rank: int) -> None:
    """Read the chunk for a rank of each rank's parts."""
    for slot, result in zip(slots, results, strict=True):
        chunk = result[begin : begin + width]
        chunk[...] = slot[rank * width : rank * width + chunk.size]


def _write(numbers: Array, values: list[int], number: int) -> None:
    """Write numbers and their sum."""
    numbers[: len(values)] = values
    numbers[len(values)] = sum_of(values, number)
