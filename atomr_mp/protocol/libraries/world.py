"""The collectives of a world as steps of its programs. Pure.

No device has these requests: a step waits for the same step of all other ranks, so only programs that all ranks run
have it. What it computes is what the method of `context.world` with its name does. All ranks have outputs, since all
run the same steps: where a rank gets nothing, its output is 0.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Final, Literal

import msgspec

from atomr_mp import errors
from atomr_mp.protocol import dtypes
from atomr_mp.protocol.declaration.arguments import Sizes, reads, writes
from atomr_mp.protocol.declaration.factors import Scalar
from atomr_mp.protocol.libraries.base import LibraryRequest, Rule
from atomr_mp.protocol.libraries.elementwise import NUMERIC
from atomr_mp.protocol.refs import Operand
from atomr_mp.protocol.world.page import MAX_RANKS

WORLD: Final = "world"
"""The name of this library, by which a program has it."""

Size = Annotated[int, msgspec.Meta(ge=1, le=MAX_RANKS)]
"""How many ranks the world has."""

Rank = Annotated[int, msgspec.Meta(ge=0, lt=MAX_RANKS)]

Operator = Literal["sum", "prod", "min", "max", "avg"]

Multipliers = Annotated[tuple[Scalar, ...], msgspec.Meta(max_length=MAX_RANKS)]
"""By rank: the number by which its elements are multiplied first. Empty for none."""


def _scattered(request: Any, _sizes: Sizes) -> tuple[int, ...]:
    """The shape of x, its first length divided by the number of ranks."""
    shape: tuple[int, ...] = request.x.shape
    if not shape or shape[0] % request.ranks:
        raise errors.InvalidRequest(
            f"the first axis of an array of shape {shape} is not divisible by {request.ranks}, the number of ranks"
        )
    return (shape[0] // request.ranks, *shape[1:])


def _gathered(request: Any, _sizes: Sizes) -> tuple[int, ...]:
    """The shape of x, with the number of ranks before it."""
    return (request.ranks, *request.x.shape)


def _has_rows_for_all(request: Any, _sizes: Sizes) -> bool:
    """The first axis of x must be divisible by the number of ranks."""
    return bool(request.x.shape) and request.x.shape[0] % request.ranks == 0


def _has_root(request: Any, _sizes: Sizes) -> bool:
    """The root must be a rank of the world."""
    return bool(request.root < request.ranks)


def _has_average(request: Any, _sizes: Sizes) -> bool:
    """The operator "avg" needs elements that are no integers."""
    return bool(request.op != "avg" or "int" not in request.x.dtype)


def _has_order(request: Any, _sizes: Sizes) -> bool:
    """The operators "min" and "max" need elements that are not complex."""
    return request.op not in {"min", "max"} or not request.x.dtype.startswith("complex")


def _has_factors(request: Any, _sizes: Sizes) -> bool:
    """There must be a factor for each rank or none, and only the operators "sum" and "avg" have some."""
    given = len(request.multipliers)
    return not given or (given == request.ranks and request.op in {"sum", "avg"})


def _holds_factors(request: Any, _sizes: Sizes) -> bool:
    """A factor must be a number that elements can hold: a whole one for integers, no complex one unless they are."""
    try:
        for each in request.multipliers:
            dtypes.check_holds(request.x.dtype, complex(*each) if isinstance(each, tuple) else each)
    except errors.InvalidRequest:
        return False
    return True


def _has_pairs(request: Any, _sizes: Sizes) -> bool:
    """The pairs must be of ranks of the world; a rank sends to one at most, and receives from one at most."""
    senders, receivers = [pair[0] for pair in request.pairs], [pair[1] for pair in request.pairs]
    unique = len(set(senders)) == len(senders) and len(set(receivers)) == len(receivers)
    return unique and all(rank < request.ranks for rank in (*senders, *receivers))


_REDUCES: Final = (_has_average, _has_order, _has_factors, _holds_factors)


class _Collective(LibraryRequest, frozen=True):
    """Base of collectives whose outputs are like their inputs."""

    captured: ClassVar = False
    x: Annotated[Operand, reads("*dims")]
    ranks: Size
    out: Annotated[Operand | None, writes("*dims", alias=("x",))] = None


class AllReduce(_Collective, frozen=True):
    """Reduce the arrays of all ranks to one, on all ranks."""

    name: ClassVar = "all_reduce"
    types: ClassVar = {"T": NUMERIC}
    rules: ClassVar[tuple[Rule, ...]] = _REDUCES
    op: Operator = "sum"
    multipliers: Multipliers = ()


class Reduce(AllReduce, frozen=True):
    """Reduce the arrays of all ranks to one, on one rank; the output of the others is 0."""

    name: ClassVar = "reduce"
    rules: ClassVar[tuple[Rule, ...]] = (*_REDUCES, _has_root)
    root: Rank = 0


class ReduceScatter(LibraryRequest, frozen=True):
    """Give each rank its rows of what `all_reduce` gives."""

    name: ClassVar = "reduce_scatter"
    types: ClassVar = {"T": NUMERIC}
    rules: ClassVar[tuple[Rule, ...]] = _REDUCES
    captured: ClassVar = False
    x: Annotated[Operand, reads("*_")]
    ranks: Size
    out: Annotated[Operand | None, writes(_scattered)] = None
    op: Operator = "sum"
    multipliers: Multipliers = ()


class AllGather(LibraryRequest, frozen=True):
    """Give all ranks the arrays of all, in the order of ranks, along a new first axis."""

    name: ClassVar = "all_gather"
    captured: ClassVar = False
    x: Annotated[Operand, reads("*_")]
    ranks: Size
    out: Annotated[Operand | None, writes(_gathered)] = None


class Broadcast(_Collective, frozen=True):
    """Give all ranks the array of one."""

    name: ClassVar = "broadcast"
    rules: ClassVar[tuple[Rule, ...]] = (_has_root,)
    root: Rank = 0


class AllToAll(_Collective, frozen=True):
    """Send part i of the first axis to rank i."""

    name: ClassVar = "all_to_all"
    rules: ClassVar[tuple[Rule, ...]] = (_has_rows_for_all,)


class Sendrecv(_Collective, frozen=True):
    """Send arrays between ranks, all at once; the output of a rank to which none is sent is 0."""

    name: ClassVar = "sendrecv"
    rules: ClassVar[tuple[Rule, ...]] = (_has_pairs,)
    pairs: Annotated[tuple[tuple[Rank, Rank], ...], msgspec.Meta(max_length=MAX_RANKS)] = ()
