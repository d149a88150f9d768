"""`p.world`: the collectives of a world as steps of its program."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, Final, NoReturn, Protocol

from atomr_mp import errors
from atomr_mp.libraries.base import LibraryDevice, LibraryReference, Number, factor, whole
from atomr_mp.protocol.declaration.factors import Scalar
from atomr_mp.protocol.libraries import world as messages
from atomr_mp.protocol.world_names import OF_STEPS, missing


class WorldDevice(LibraryDevice, Protocol):
    """A program that is recorded for a world."""

    @property
    def ranks(self) -> int:
        """How many ranks the world has."""


class WorldSteps(LibraryReference):
    """Collectives: each is a step that all ranks take together.

    A method returns the output that was left out, None if it was given. `out` may be `x` itself, where both have the
    same shape. Numbers, operators and factors are as in `context.world`; where a rank gets nothing, its output is 0.

    Args:
        device: The program, which knows how many ranks its world has.
    """

    library: ClassVar[str] = messages.WORLD

    def __init__(self, device: WorldDevice) -> None:
        super().__init__(device)
        self._ranks: Final = device.ranks

    def all_reduce(self, x: Any, op: messages.Operator = "sum", *, factor: Any = None, out: Any = None) -> Any:
        """Reduce the arrays of all ranks to one, element by element, on all ranks.

        Args:
            x: The array.
            op: "sum", "prod", "min", "max" or "avg".
            factor: A number by which elements are multiplied first, or one for each rank; for "sum" and "avg".
            out: The array to which the result goes.
        """
        return self._request(messages.AllReduce(x, self._ranks, out, op, self._factors(factor)), None)

    def reduce(
        self, x: Any, root: int = 0, op: messages.Operator = "sum", *, factor: Any = None, out: Any = None
    ) -> Any:
        """Reduce the arrays of all ranks to one, on the rank `root`. See `all_reduce`."""
        return self._request(messages.Reduce(x, self._ranks, out, op, self._factors(factor), _rank("root", root)), None)

    def reduce_scatter(self, x: Any, op: messages.Operator = "sum", *, factor: Any = None, out: Any = None) -> Any:
        """Give each rank as many rows of the first axis of what `all_reduce` gives, in the order of ranks."""
        return self._request(messages.ReduceScatter(x, self._ranks, out, op, self._factors(factor)), None)

    def all_gather(self, x: Any, *, out: Any = None) -> Any:
        """Give all ranks the arrays of all, in the order of ranks, along a new first axis."""
        return self._request(messages.AllGather(x, self._ranks, out), None)

    def broadcast(self, x: Any, root: int = 0, *, out: Any = None) -> Any:
        """Give all ranks the array of the rank `root`."""
        return self._request(messages.Broadcast(x, self._ranks, out, _rank("root", root)), None)

    def all_to_all(self, x: Any, *, out: Any = None) -> Any:
        """Send part *i* of the first axis to rank *i*; the parts that a rank gets lie in the order of ranks."""
        return self._request(messages.AllToAll(x, self._ranks, out), None)

    def sendrecv(self, x: Any, pairs: Iterable[tuple[int, int]], *, out: Any = None) -> Any:
        """Send arrays between ranks, all at once.

        Args:
            x: The array that is sent.
            pairs: Who sends to whom: (from, to). A rank sends to one at most, and receives from one at most.
            out: The array to which the received one goes.
        """
        return self._request(messages.Sendrecv(x, self._ranks, out, _pairs(pairs)), None)

    def __getattr__(self, name: str) -> NoReturn:
        missing(self, "a program of a world", name, OF_STEPS)

    def _factors(self, given: Number | Sequence[Number] | None) -> tuple[Scalar, ...]:
        """Return a factor for each rank, or none."""
        if given is None:
            return ()
        if isinstance(given, list | tuple):
            return tuple(factor("factor", each) for each in given)
        one: Any = given
        return (factor("factor", one),) * self._ranks


def _rank(name: str, given: Any) -> int:
    """Return the number of a rank; a bool is none."""
    if isinstance(given, bool):
        raise errors.InvalidRequest(f"{name} is {given}; it must be the number of a rank")
    return whole(name, given)


def _pairs(given: Any) -> tuple[tuple[int, int], ...]:
    """Return pairs of ranks.

    Raises:
        InvalidRequest: They are none.
    """
    try:
        return tuple((_rank("a sender of pairs", one), _rank("a receiver of pairs", other)) for one, other in given)
    except (TypeError, ValueError) as error:
        raise errors.InvalidRequest(f"pairs is {given!r:.200}; it must be pairs of ranks: (from, to)") from error


Reference: Final = WorldSteps
