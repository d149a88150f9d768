"""The collectives of a world on GPUs: what `OwnWorld` says of each one, as launches of kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import cupy
import numpy as np

from atomr_mp.protocol.world.collectives import Collective
from atomr_mp.protocol.world.page import MOST
from atomr_mp_workers.worlds.cuda.arrays import Given, Result, current_stream, given_parts
from atomr_mp_workers.worlds.cuda.kernels import HALVES
from atomr_mp_workers.worlds.cuda.layout import GIVES, PAIRED, WANTS
from atomr_mp_workers.worlds.cuda.meeting import NOWHERE, CudaMeeting, CudaRehearsal
from atomr_mp_workers.worlds.exchange.arguments import check_rank, part_shape
from atomr_mp_workers.worlds.exchange.operators import OPERATORS, check_computes, check_operator, factor_of
from atomr_mp_workers.worlds.exchange.signatures import Agreement

ALL: Final = -1
"""In the place of the rank whose bytes are read: all ranks'."""

MOST_KNOWN: Final = 64
"""Reductions that are kept at hand."""

Known = Callable[[Any, int, int], None]
"""Puts a reduction that was called before on a stream, from an address and to one."""


class CudaCollectives:
    """The collectives of one meeting. They go on the current stream, and return at once.

    Args:
        meeting: Where the ranks meet.
    """

    def __init__(self, meeting: CudaMeeting | CudaRehearsal) -> None:
        self._meeting: Final = meeting
        self._exchange: Final = meeting.exchange
        self._rank: Final = meeting.rank
        self._size: Final = meeting.size
        self._known: Final[dict[tuple[Any, int, str], Known]] = {}
        """By element type, number of elements and operator."""

    @property
    def steps(self) -> int:
        """How many collectives this rank has begun."""
        return self._meeting.number

    def settle(self) -> None:
        """Wait for the collectives so far, and raise the error of one that has failed."""
        self._meeting.settle()

    def refuse(self) -> None:
        """Meet the others with a signature that none of them has, unless all refuse."""
        self._meet(Agreement(Collective.REFUSED))
        self._meeting.settle()

    def meet_for_program(self, name: int) -> None:
        """Meet the others at the begin or the end of a program, which all name alike; wait for them."""
        self._meet(Agreement(Collective.PROGRAM, name & 2**48 - 1))
        self._meeting.settle()

    def barrier(self) -> None:
        """Meet without data."""
        self._meet(Agreement(Collective.BARRIER))

    def all_reduce(self, x: Any, operator: Any, factor: Any, out: Any) -> Any:
        """Return all ranks' arrays reduced to one, on all ranks."""
        if type(x) is cupy.ndarray and factor is None and (out is None or out is x) and type(operator) is str:
            known = self._known.get((x.dtype, x.size, operator))
            if known is not None and x.flags.c_contiguous:
                self._meeting.check()
                result = cupy.empty(x.shape, x.dtype) if out is None else x
                known(cupy.cuda.get_current_stream(), x.data.ptr, result.data.ptr)
                return result
        given = Given(x)
        number = _checked_operator(operator, given.name)
        target = Result(out, given.shape, given)
        self._reduce(Collective.ALL_REDUCE, given, operator, number, factor, target)
        return target.done(given.stream, self._meeting.settle)

    def reduce(self, x: Any, root: int, operator: Any, factor: Any, out: Any) -> Any:
        """Return them reduced to one on one rank, None on the others."""
        given = Given(x)
        number = _checked_operator(operator, given.name)
        root = self._checked(root, "root")
        target = Result(out, given.shape, given) if root == self._rank else None
        self._reduce(Collective.REDUCE, given, operator, number, factor, target, root)
        return None if target is None else target.done(given.stream, self._meeting.settle)

    def reduce_scatter(self, x: Any, operator: Any, factor: Any, out: Any) -> Any:
        """Return this rank's part of the arrays reduced to one."""
        given = Given(x)
        number = _checked_operator(operator, given.name)
        shape = part_shape(given.shape, self._meeting.name, self._size)
        target = Result(out, shape, given)
        agreement = Agreement(
            Collective.REDUCE_SCATTER, given.size, given.name, operator=operator, factor=factor is not None
        )
        self._meeting.check()
        wire, source = self._scaled(target.apart(given, same_places=False), operator, factor)
        rows = source.data.ptr, source.nbytes // self._size, self._size
        types = wire, given.name
        self._exchange.pull(
            given.stream, self._signature(agreement), types, rows, target.address, number, GIVES | WANTS
        )
        return target.done(given.stream, self._meeting.settle)

    def all_gather(self, x: Any, out: Any) -> Any:
        """Return all ranks' arrays, one behind the other."""
        given = Given(x)
        target = Result(out, (self._size, *given.shape), given)
        agreement = Agreement(Collective.ALL_GATHER, given.size, given.name)
        self._move(agreement, target.apart(given, same_places=False), 1, target, ALL, GIVES | WANTS)
        return target.done(given.stream, self._meeting.settle)

    def broadcast(self, x: Any, root: int, out: Any) -> Any:
        """Return one rank's array, on all ranks."""
        given = Given(x)
        root = self._checked(root, "root")
        target = Result(out, given.shape, given)
        agreement = Agreement(Collective.BROADCAST, given.size, given.name, root=root)
        how = WANTS | GIVES * (root == self._rank or self._meeting.is_rehearsal)
        self._move(agreement, target.apart(given, same_places=True), 1, target, root, how)
        return target.done(given.stream, self._meeting.settle)

    def all_to_all(self, x: Any, out: Any) -> Any:
        """Return this rank's parts of all ranks' arrays."""
        given = Given(x)
        part_shape(given.shape, self._meeting.name, self._size)
        target = Result(out, given.shape, given)
        agreement = Agreement(Collective.ALL_TO_ALL, given.size, given.name)
        self._move(agreement, target.apart(given, same_places=False), self._size, target, ALL, GIVES | WANTS)
        return target.done(given.stream, self._meeting.settle)

    def all_to_all_v(self, parts: Sequence[Any]) -> list[Any]:
        """Return the parts of all ranks that are for this one. Waits for their lengths."""
        given = given_parts(parts, self._size)
        first = given[0]
        stream, row = first.stream, int(np.prod(first.shape[1:], dtype=np.int64))
        item = first.array.dtype.itemsize
        # The lengths differ by rank, so a row's size is agreed on with the type, and the lengths are exchanged.
        agreement = Agreement(Collective.ALL_TO_ALL_V, row, first.name)
        with stream:
            counts = cupy.asarray(np.array([each.shape[0] for each in given], np.int64))
            gathered = cupy.empty((self._size, self._size), np.int64)
        self._meeting.check()
        rows = int(counts.data.ptr), int(counts.nbytes), 1
        self._exchange.move(stream, self._signature(agreement), rows, int(gathered.data.ptr), ALL, GIVES | WANTS)
        self._meeting.settle()
        lengths = gathered.get(stream=stream)
        width = row * item
        self._check_lengths(lengths, MOST // max(1, width))
        most = int(lengths.max()) * width
        with stream:
            padded = cupy.empty((self._size, most), np.uint8)
            received = cupy.empty((self._size, most), np.uint8)
            for place, each in enumerate(given):
                if each.nbytes:
                    padded[place, : each.nbytes] = each.array.reshape(-1).view(np.uint8)
        again = Agreement(Collective.ALL_TO_ALL_V, int(lengths.sum()) & 2**48 - 1, first.name)
        self._meeting.check()
        rows = int(padded.data.ptr), most, self._size
        self._exchange.move(stream, self._signature(again), rows, int(received.data.ptr), ALL, GIVES | WANTS)
        results = []
        with stream:
            for place in range(self._size):
                length = int(lengths[place, self._rank])
                made = Result(None, (length, *first.shape[1:]), first)
                if length * width:
                    made.array.reshape(-1).view(np.uint8)[...] = received[place, : length * width]
                results.append(made.done(stream, self._meeting.settle))
        return results

    def _check_lengths(self, lengths: Any, most: int) -> None:
        """Give the epoch up if lengths cannot be that ranks have sent: they are read from other processes' memory."""
        for rank, row in enumerate(lengths.tolist()):
            if min(row) < 0 or max(row) > most:
                self._meeting.distrust(rank, "a number beside its data is larger than can be")

    def sendrecv(self, x: Any, to: int | None, from_: int | None, out: Any) -> Any:
        """Return the array that another rank sends to this one."""
        given = Given(x)
        to, from_ = self._checked(to, "to", none=True), self._checked(from_, "from_", none=True)
        target = None if from_ == NOWHERE else Result(out, given.shape, given)
        agreement = Agreement(Collective.SENDRECV, given.size, given.name)
        source = given if target is None else target.apart(given, same_places=True)
        how = PAIRED | GIVES * (to != NOWHERE or self._meeting.is_rehearsal) | WANTS * (target is not None)
        pair = to | from_ << 16
        self._move(agreement, source, 1, target, 0 if from_ == NOWHERE else from_, how, pair)
        return None if target is None else target.done(given.stream, self._meeting.settle)

    def _meet(self, agreement: Agreement) -> None:
        self._meeting.check()
        stream = current_stream(None)
        self._exchange.move(stream, self._signature(agreement), (0, 0, 1), 0, 0, 0)

    def _move(
        self, agreement: Agreement, x: Given, rows: int, target: Result | None, from_: int, how: int, pair: int = 0
    ) -> None:
        self._meeting.check()
        self._exchange.move(
            x.stream,
            self._signature(agreement, pair),
            (x.address, x.nbytes // rows, rows),
            0 if target is None else target.address,
            from_,
            how,
        )

    def _reduce(
        self,
        kind: Collective,
        given: Given,
        operator: str,
        number: int,
        factor: Any,
        target: Result | None,
        root: int = -1,
    ) -> None:
        """Reduce all elements; the result is not wanted where there is no target."""
        agreement = Agreement(kind, given.size, given.name, operator=operator, root=root, factor=factor is not None)
        self._meeting.check()
        source = given if target is None else target.apart(given, same_places=True)
        wire, elements = self._scaled(source, operator, factor)
        known = self._exchange.reduction(
            self._signature(agreement),
            (wire, given.name),
            given.size,
            number,
            GIVES | WANTS * (target is not None),
        )
        known(given.stream, int(elements.data.ptr), 0 if target is None else target.address)
        if kind is Collective.ALL_REDUCE and factor is None:
            if len(self._known) == MOST_KNOWN:
                self._known.clear()
            self._known[given.array.dtype, given.size, operator] = known

    def _scaled(self, x: Given, operator: str, factor: Any) -> tuple[str, Any]:
        """Return this rank's elements, multiplied by its factor, and the type in which they are sent."""
        if factor is None:
            return x.name, x.array
        number = factor_of(factor, operator, x.name)
        wire = "float32" if x.name in HALVES else x.name
        with x.stream:
            made = cupy.empty(x.shape, np.float32 if x.name in HALVES else x.array.dtype)
        self._exchange.scale(x.stream, (x.name, wire), x.address, int(made.data.ptr), x.size, number)
        return wire, made

    def _signature(self, agreement: Agreement, pair: int = 0) -> tuple[int, int]:
        """Return the signature of a collective as kernels take it, with a pair; the gang call is in the table."""
        found = agreement.signature(0, 0)
        packed = (
            found.elements & 2**48 - 1 | found.dtype << 48 | (found.operator & 7 | (found.operator >> 8) << 3) << 56
        )
        return packed, found.kind | (found.root & 0xFF) << 8 | pair << 32

    def _checked(self, rank: Any, what: str, *, none: bool = False) -> int:
        """Return a rank that a method names; for None, where that may be, what stands for none.

        Raises:
            InvalidRequest: There is no such rank.
        """
        if rank is None and none:
            return NOWHERE
        return check_rank(rank, what, self._meeting.name, self._size)


def _checked_operator(operator: Any, name: str) -> int:
    """Return the kernels' number of an operator.

    Raises:
        InvalidRequest: There is no such operator, or not for this type.
    """
    check_operator(operator)
    check_computes(operator, name)
    return OPERATORS.index(operator)
