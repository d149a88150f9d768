"""Collectives of worlds that sessions make: a call's part has this rank's refs, and runs on the world's thread.

No rank leaves the others waiting: a part that is refused here meets them all the same, with a signature that none of
them has. So all ranks raise, nothing was exchanged, and the world goes on.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Final, NamedTuple

import msgspec

from atomr_mp import errors
from atomr_mp.protocol import values
from atomr_mp.protocol.declaration.checks import check_apart
from atomr_mp.protocol.ref_collectives import (
    ALL_GATHER,
    ALL_REDUCE,
    ALL_TO_ALL,
    ALL_TO_ALL_V,
    BARRIER,
    BROADCAST,
    COLLECTIVES,
    REDUCE,
    REDUCE_SCATTER,
    SENDRECV,
)
from atomr_mp_workers.memory.actor_memory import ActorMemory
from atomr_mp_workers.memory.arrays import DeviceArray
from atomr_mp_workers.requests.method import Method, Resolve
from atomr_mp_workers.worlds.exchange.world import OwnWorld


class CollectivePart(NamedTuple):
    """One rank's part of a collective."""

    collective: str
    x: Any = None
    """The rank's array; for `all_to_all_v` a list of one for each rank; None for a barrier."""
    out: DeviceArray | None = None
    """Where the result goes; None for new memory."""
    operator: str = "sum"
    factor: Any = None
    root: int = 0
    to: int | None = None
    from_: int | None = None


class RefusedPart(NamedTuple):
    """A part that this rank does not take part with. It has no arrays, so its method is not asked for any."""

    error: errors.RequestError


class CollectiveMethod(Method):
    """The request that runs the collectives of one world.

    Args:
        name: Its name.
        world: The world's number.
        rank: This process's rank.
        collectives: Runs the calls.
    """

    thread = True
    apart = True

    def __init__(self, name: str, world: int, rank: int, collectives: RefCollectives) -> None:
        super().__init__(name, collectives.run)
        self.world = world
        self._rank: Final = rank
        self.refused = RefusedPart

    def arguments(self, body: bytes, frames: Sequence[memoryview], resolve: Resolve) -> tuple[Any, ...]:
        """Decode a part."""
        given = values.Decoder[Any](GivenPart, writable=False).decode(body, frames, resolve)
        part = CollectivePart(
            given.collective, given.x, given.out, given.operator, given.factor, given.root, given.to, given.from_
        )
        arrays = part.x if part.collective == ALL_TO_ALL_V and isinstance(part.x, list) else [part.x]
        if part.collective == BARRIER:
            arrays = []
        if part.collective not in COLLECTIVES or not all(isinstance(each, DeviceArray) for each in arrays):
            raise errors.InvalidRequest("a collective takes refs, one for each rank")
        if part.out is not None and not isinstance(part.out, DeviceArray):
            raise errors.InvalidRequest("`out` of a collective takes refs")
        if part.out is not None:
            check_apart("`out`", part.out.layout)
        return (part,)

    def written(self, arguments: tuple[Any, ...]) -> list[DeviceArray]:
        """Return the output, if it is given."""
        (part,) = arguments
        return [] if part.out is None else [part.out]

    def read(self, arguments: tuple[Any, ...], arrays: Sequence[DeviceArray]) -> list[DeviceArray]:
        """Return the inputs; those of a broadcast are read on the root only."""
        (part,) = arguments
        if part.collective == BROADCAST and part.root != self._rank:
            return []
        return [array for array in arrays if array is not part.out]

    def undefined_after(self, _arguments: tuple[Any, ...], error: errors.AtomrError) -> Sequence[DeviceArray] | None:
        """Return nothing if nothing was written; None for all outputs.

        Nothing is where this rank has refused its part, where the ranks have differed, and where there was no memory
        for what collectives need: that is found first.
        """
        found_first = isinstance(error, errors.InvalidRequest | errors.WorldMismatch)
        return () if found_first or (isinstance(error, errors.OutOfMemory) and not error.exception) else None


class RefCollectives:
    """Runs the collectives of one world on refs. The world's thread.

    Args:
        view: The world.
        memory: Makes results.
    """

    def __init__(self, view: OwnWorld, memory: ActorMemory) -> None:
        self._view: Final = view
        self._memory: Final = memory
        self._run: Final[dict[str, Callable[[CollectivePart], Any]]] = {
            BARRIER: self._barrier,
            ALL_REDUCE: self._all_reduce,
            REDUCE: self._reduce,
            REDUCE_SCATTER: self._reduce_scatter,
            ALL_GATHER: self._all_gather,
            BROADCAST: self._broadcast,
            ALL_TO_ALL: self._all_to_all,
            ALL_TO_ALL_V: self._all_to_all_v,
            SENDRECV: self._sendrecv,
        }

    def run(self, part: CollectivePart | RefusedPart) -> Any:
        """Take part in a collective; return the result if it is in new memory.

        Raises:
            RequestError: This part is refused.
            WorldMismatch: The ranks differ.
            CollectiveAborted: The epoch is over.
        """
        met = self._view.steps
        try:
            if isinstance(part, RefusedPart):
                raise part.error
            result = self._run[part.collective](part)
            self._view.settle()
            return result
        except (errors.WorldMismatch, errors.CollectiveAborted):
            raise
        except BaseException:
            if self._view.steps == met:
                with contextlib.suppress(errors.WorldMismatch, errors.CollectiveAborted):
                    self._view.refuse()
            raise

    def _barrier(self, _part: CollectivePart) -> None:
        self._view.barrier()

    def _all_reduce(self, part: CollectivePart) -> Any:
        out, array = self._target(part, part.x.shape)
        self._view.all_reduce(part.x, part.operator, factor=part.factor, out=array)
        return out

    def _reduce(self, part: CollectivePart) -> Any:
        if part.root != self._view.rank:
            self._view.reduce(part.x, part.root, part.operator, factor=part.factor)
            return None
        out, array = self._target(part, part.x.shape)
        self._view.reduce(part.x, part.root, part.operator, factor=part.factor, out=array)
        return out

    def _reduce_scatter(self, part: CollectivePart) -> Any:
        shape = part.x.shape
        if not shape or shape[0] % self._view.size:
            raise errors.InvalidRequest(
                f"the first axis of an array of shape {shape} is not divisible by {self._view.size}, the number of "
                "ranks"
            )
        out, array = self._target(part, (shape[0] // self._view.size, *shape[1:]))
        self._view.reduce_scatter(part.x, part.operator, factor=part.factor, out=array)
        return out

    def _all_gather(self, part: CollectivePart) -> Any:
        out, array = self._target(part, (self._view.size, *part.x.shape))
        self._view.all_gather(part.x, out=array)
        return out

    def _broadcast(self, part: CollectivePart) -> Any:
        out, array = self._target(part, part.x.shape)
        self._view.broadcast(part.x, part.root, out=array)
        return out

    def _all_to_all(self, part: CollectivePart) -> Any:
        out, array = self._target(part, part.x.shape)
        self._view.all_to_all(part.x, out=array)
        return out

    def _all_to_all_v(self, part: CollectivePart) -> Any:
        return [self._memory.own(each) for each in self._view.all_to_all_v(part.x)]

    def _sendrecv(self, part: CollectivePart) -> Any:
        if part.from_ is None:
            self._view.sendrecv(part.x, part.to, None)
            return None
        out, array = self._target(part, part.x.shape)
        self._view.sendrecv(part.x, part.to, part.from_, out=array)
        return out

    def _target(self, part: CollectivePart, shape: Sequence[int]) -> tuple[DeviceArray | None, Any]:
        """Return new memory for the result, or None if the caller gives some; and the array to write."""
        if part.out is not None:
            return None, part.out
        made = self._memory.empty(part.x.dtype, shape)
        made.writable = True
        return made, made


class GivenPart(msgspec.Struct, array_like=True, frozen=True):
    """A part as clients send it."""

    collective: str
    x: Any = None
    out: Any = None
    operator: str = "sum"
    factor: Any = None
    root: Annotated[int, msgspec.Meta(ge=0)] = 0
    to: Annotated[int, msgspec.Meta(ge=0)] | None = None
    from_: Annotated[int, msgspec.Meta(ge=0)] | None = None
