"""The collectives of a world by NCCL: what `OwnWorld` says of each one, as a meeting on the host and calls of NCCL.

The meeting comes last of all that may fail on one rank: arguments are checked, and memory is taken, before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import cupy
import numpy as np

from atomr_mp import errors
from atomr_mp.protocol.world.collectives import Collective
from atomr_mp.protocol.world.page import MOST, sum_of
from atomr_mp_workers.worlds.cuda.arrays import Given, Result, current_stream, given_parts
from atomr_mp_workers.worlds.exchange.arguments import check_rank, part_shape
from atomr_mp_workers.worlds.exchange.collectives import Collectives
from atomr_mp_workers.worlds.exchange.meeting import Rehearsal
from atomr_mp_workers.worlds.exchange.operators import check_computes, check_operator, factor_of
from atomr_mp_workers.worlds.exchange.pairs import unmatched
from atomr_mp_workers.worlds.exchange.signatures import Agreement
from atomr_mp_workers.worlds.nccl.arithmetic import ReductionWay, from_wire, is_direct, reduced, to_wire, way_of
from atomr_mp_workers.worlds.nccl.library import BYTES, NCCL_OPERATORS, TYPES, Piece
from atomr_mp_workers.worlds.nccl.meeting import NcclMeeting

_PROGRAM_MASK: Final = 2**48 - 1


class NcclCollectives:
    """The collectives of one meeting. They meet on the host, go on the current stream, and return.

    Args:
        meeting: Where the ranks meet.
    """

    def __init__(self, meeting: NcclMeeting | Rehearsal) -> None:
        self._meeting: Final = meeting
        self._device: Final = meeting if isinstance(meeting, NcclMeeting) else None
        """Takes calls of NCCL; None in a rehearsal."""
        self._host: Final = Collectives(meeting)
        """Exchanges numbers."""
        self._rank: Final = meeting.rank
        self._size: Final = meeting.size
        self._word: Any = None
        """A byte on the device, for barriers."""

    @property
    def steps(self) -> int:
        """How often this rank has met the others."""
        return self._meeting.number

    def settle(self) -> None:
        """Wait for the collectives so far, and raise the error of one that has failed."""
        if self._device is not None:
            self._device.settle()

    def refuse(self) -> None:
        """Meet the others with a signature that none of them has, unless all refuse."""
        self._host.refuse()

    def meet_for_program(self, name: int) -> None:
        """Meet the others at the begin or the end of a program, which all name alike, once what was put has ended."""
        self.settle()
        self._host.meet_for_program(name & _PROGRAM_MASK)

    def barrier(self) -> None:
        """Meet without data, on the host and on the stream."""
        stream = current_stream(None)
        self._meeting.check()
        self._check_stream(stream)
        if self._word is None:
            with stream:
                self._word = cupy.zeros(1, np.uint8)
        self._meeting.meet(Agreement(Collective.BARRIER), 0)
        if self._device is not None:
            at = int(self._word.data.ptr)
            self._device.put(stream, "all_reduce", at, at, 1, BYTES, NCCL_OPERATORS["max"])

    def all_reduce(self, x: Any, operator: Any, factor: Any, out: Any) -> Any:
        """Return all ranks' arrays reduced to one, on all ranks."""
        given = Given(x)
        return self._reduce(Collective.ALL_REDUCE, given, operator, factor, Result(out, given.shape, given))

    def reduce(self, x: Any, root: int, operator: Any, factor: Any, out: Any) -> Any:
        """Return them reduced to one on one rank, None on the others."""
        given = Given(x)
        root = check_rank(root, "root", self._meeting.name, self._size)
        target = Result(out, given.shape, given) if root == self._rank else None
        return self._reduce(Collective.REDUCE, given, operator, factor, target, root)

    def reduce_scatter(self, x: Any, operator: Any, factor: Any, out: Any) -> Any:
        """Return this rank's part of the arrays reduced to one."""
        given = Given(x)
        target = Result(out, part_shape(given.shape, self._meeting.name, self._size), given)
        return self._reduce(Collective.REDUCE_SCATTER, given, operator, factor, target)

    def all_gather(self, x: Any, out: Any) -> Any:
        """Return all ranks' arrays, one behind the other."""
        given = Given(x)
        target = Result(out, (self._size, *given.shape), given)
        source = self._begin(given, target, same_places=False)
        self._meeting.meet(Agreement(Collective.ALL_GATHER, given.size, given.name), 0)
        self._gather(given.stream, _bytes(source.array), _bytes(target.array))
        return target.done(given.stream, self.settle)

    def broadcast(self, x: Any, root: int, out: Any) -> Any:
        """Return one rank's array, on all ranks."""
        given = Given(x)
        root = check_rank(root, "root", self._meeting.name, self._size)
        target = Result(out, given.shape, given)
        source = self._begin(given, target, same_places=True)
        self._meeting.meet(Agreement(Collective.BROADCAST, given.size, given.name, root=root), 0)
        if self._device is None:
            _copy(given.stream, _bytes(source.array), _bytes(target.array))
        elif given.nbytes:
            self._device.put(given.stream, "broadcast", source.address, target.address, given.nbytes, root)
        return target.done(given.stream, self.settle)

    def all_to_all(self, x: Any, out: Any) -> Any:
        """Return this rank's parts of all ranks' arrays."""
        given = Given(x)
        part_shape(given.shape, self._meeting.name, self._size)
        target = Result(out, given.shape, given)
        source = self._begin(given, target, same_places=False)
        self._meeting.meet(Agreement(Collective.ALL_TO_ALL, given.size, given.name), 0)
        rows = _bytes(source.array).reshape(self._size, -1)
        self._exchange(given.stream, list(rows), list(_bytes(target.array).reshape(self._size, -1)))
        return target.done(given.stream, self.settle)

    def all_to_all_v(self, parts: Sequence[Any]) -> list[Any]:
        """Return the parts of all ranks that are for this one. Their lengths are exchanged on the host."""
        given = given_parts(parts, self._size)
        first = given[0]
        row = int(np.prod(first.shape[1:], dtype=np.int64))
        self._meeting.check()
        self._check_stream(first.stream)
        agreement = Agreement(Collective.ALL_TO_ALL_V, row, first.name)
        self._meeting.meet(agreement, 0)
        lengths = self._host.all_gather(np.array([each.shape[0] for each in given], np.int64), None).tolist()
        most = MOST // max(1, row * first.array.dtype.itemsize)
        for rank, line in enumerate(lengths):
            if min(line) < 0 or max(line) > most:
                self._meeting.distrust(rank, "a number beside its data is larger than can be")
        results = self._made_or_refused([(line[self._rank], *first.shape[1:]) for line in lengths], first)
        agreement.elements = sum_of([each for line in lengths for each in line], 0)
        self._meeting.meet(agreement, 1)
        sent, received = [_bytes(each.array) for each in given], [_bytes(each.array) for each in results]
        self._exchange(first.stream, sent, received)
        return [each.done(first.stream, self.settle) for each in results]

    def sendrecv(self, x: Any, to: int | None, from_: int | None, out: Any) -> Any:
        """Return the array that another rank sends to this one."""
        given = Given(x)
        pair = [-1 if each is None else self._checked(each, what) for each, what in ((to, "to"), (from_, "from_"))]
        target = None if from_ is None else Result(out, given.shape, given)
        source = self._begin(given, target, same_places=False)
        self._meeting.meet(Agreement(Collective.SENDRECV, given.size, given.name), 0)
        pairs = self._host.all_gather(np.array(pair, np.int64), None).tolist()
        for rank, line in enumerate(pairs):
            if min(line) < -1 or max(line) >= self._size:
                self._meeting.distrust(rank, "a number beside its data is larger than can be")
        if self._device is not None:
            self._check_pairs(pairs)
            sent = [] if to is None else [(to, source.address, source.nbytes)]
            received = [] if from_ is None or target is None else [(from_, target.address, given.nbytes)]
            self._put_pieces(given.stream, sent, received)
        elif target is not None:
            _copy(given.stream, _bytes(source.array), _bytes(target.array))
        return None if target is None else target.done(given.stream, self.settle)

    # --- parts of them ----------------------------------------------------------------------------------------------

    def _reduce(
        self, kind: Collective, given: Given, operator: Any, factor: Any, target: Result | None, root: int = -1
    ) -> Any:
        """Reduce arrays; the result is not wanted where there is no target."""
        check_operator(operator)
        check_computes(operator, given.name)
        number = None if factor is None else factor_of(factor, operator, given.name)
        source, stream = self._begin(given, target, same_places=kind is not Collective.REDUCE_SCATTER), given.stream
        way = way_of(operator, given.name, self._size, scaled=factor is not None or self._device is None)
        with stream:
            x = to_wire(source.array, given.name, way, number)
            y = self._room(way, given, target, x)
        agreement = Agreement(kind, given.size, given.name, operator=operator, root=root, factor=factor is not None)
        self._meeting.meet(agreement, 0)
        if given.size:
            self._put_reduction(kind, stream, way, x, y, root)
            if target is not None:
                with stream:
                    if way.gathers or self._device is None:
                        y = self._reduced_here(kind, way, x, y)
                    from_wire(y, target.array, given.name, way, self._size)
        return None if target is None else target.done(stream, self.settle)

    def _room(self, way: ReductionWay, given: Given, target: Result | None, x: Any) -> Any:
        """Return where NCCL writes to: the result itself, or a vector in its type; on the current stream."""
        if self._device is None:
            return None
        if way.gathers:
            return cupy.empty((self._size, x.size), x.dtype)
        if target is None:
            return x  # is not written
        if is_direct(given.name, way):
            return target.array.reshape(-1).view(x.dtype)
        return cupy.empty(x.size * target.array.size // max(1, given.size), x.dtype)

    def _put_reduction(self, kind: Collective, stream: Any, way: ReductionWay, x: Any, y: Any, root: int) -> None:
        if self._device is None:
            return
        if way.gathers:
            self._gather(stream, _bytes(x), _bytes(y))
            return
        ends, how = (int(x.data.ptr), int(y.data.ptr)), (TYPES[way.wire], NCCL_OPERATORS[way.operator])
        if kind is Collective.REDUCE:
            self._device.put(stream, "reduce", *ends, x.size, *how, root)
        elif kind is Collective.REDUCE_SCATTER:
            self._device.put(stream, "reduce_scatter", *ends, x.size // self._size, *how)
        else:
            self._device.put(stream, "all_reduce", *ends, x.size, *how)

    def _reduced_here(self, kind: Collective, way: ReductionWay, x: Any, gathered: Any) -> Any:
        """Return all ranks' elements reduced to one, or this rank's part; in a rehearsal its own stand for all."""
        total = reduced([x] * self._size if gathered is None else gathered, way.operator)
        return total.reshape(self._size, -1)[self._rank] if kind is Collective.REDUCE_SCATTER else total

    def _begin(self, given: Given, target: Result | None, *, same_places: bool) -> Given:
        """Refuse what cannot meet now, and return the input, apart from where the result goes."""
        self._meeting.check()
        self._check_stream(given.stream)
        return given if target is None else target.apart(given, same_places=same_places)

    def _check_stream(self, stream: Any) -> None:
        """Refuse a collective that would go into a CUDA graph.

        Raises:
            Unsupported: It would.
        """
        if stream.is_capturing():
            raise errors.Unsupported(
                f'collectives of world {self._meeting.name!r} cannot be captured, since its engine is "nccl": a CUDA '
                "graph would keep a communicator that ends with its epoch. Capture what lies between them, or set the "
                'world\'s engine to "mailboxes"'
            )

    def _gather(self, stream: Any, x: Any, y: Any) -> None:
        """Give all ranks' bytes to all."""
        if self._device is None:
            with stream:
                y.reshape(self._size, -1)[...] = x.reshape(1, -1)
        elif x.size:
            self._device.put(stream, "all_gather", int(x.data.ptr), int(y.data.ptr), x.size)

    def _exchange(self, stream: Any, sent: Sequence[Any], received: Sequence[Any]) -> None:
        """Send bytes to each rank, and receive bytes from each rank."""
        if self._device is None:
            for each in received:
                _copy(stream, sent[self._rank], each)
            return
        own, theirs = sent[self._rank], received[self._rank]
        _copy(stream, own, theirs)
        pieces = [
            [
                (rank, int(each.data.ptr), each.size)
                for rank, each in enumerate(side)
                if each.size and rank != self._rank
            ]
            for side in (sent, received)
        ]
        self._put_pieces(stream, *pieces)

    def _put_pieces(self, stream: Any, sent: list[Piece], received: list[Piece]) -> None:
        sent, received = ([each for each in side if each[2]] for side in (sent, received))
        if self._device is not None and (sent or received):
            self._device.put(stream, "exchange", sent, received)

    def _made_or_refused(self, shapes: Sequence[tuple[int, ...]], like: Given) -> list[Result]:
        """Return new arrays. If there is no memory for them, the others meet a refusal."""
        try:
            return [Result(None, shape, like) for shape in shapes]
        except Exception:
            self.refuse()
            raise

    def _check_pairs(self, pairs: list[list[int]]) -> None:
        """Compare what ranks send with what the others receive.

        Raises:
            WorldMismatch: They do not go together. All ranks raise it.
        """
        found = unmatched(pairs, -1)
        if found is not None:
            raise self._meeting.mismatch(found.rank if found.rank != self._rank else found.other, found.why)

    def _checked(self, rank: Any, what: str) -> int:
        return check_rank(rank, what, self._meeting.name, self._size)


def _bytes(array: Any) -> Any:
    """Return a row-major array's bytes as a vector."""
    return array.reshape(-1).view(np.uint8)


def _copy(stream: Any, x: Any, y: Any) -> None:
    """Copy bytes, as many as both have."""
    with stream:
        count = min(x.size, y.size)
        y[:count] = x[:count]
