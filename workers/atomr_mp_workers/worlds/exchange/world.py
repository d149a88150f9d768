"""`context.world`: what a method of a world's actor knows of its world, and the collectives that it calls there."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, NoReturn, Protocol

from atomr_mp import errors
from atomr_mp.protocol.keywords import checks_names
from atomr_mp.protocol.world_names import SYNONYMS, missing
from atomr_mp_workers.worlds.exchange.call_checks import outside
from atomr_mp_workers.worlds.exchange.meeting import Meeting, Rehearsal

if TYPE_CHECKING:
    from atomr_mp_workers.worlds.exchange.collectives import Collectives


class EpochOf(Protocol):
    """A meeting."""

    @property
    def epoch(self) -> int:
        """The number of its epoch."""


def through_memory(meeting: Meeting | Rehearsal, make: Callable[..., Any] | None = None) -> Collectives:
    """Return the collectives of the host backend.

    Args:
        meeting: Where the ranks meet.
        make: See `Collectives`.

    Raises:
        Unsupported: There is no NumPy.
    """
    try:
        from atomr_mp_workers.worlds.exchange.collectives import Collectives
    except ImportError as error:
        raise errors.Unsupported(
            f"collectives on the host backend need NumPy, which cannot be imported: {error}"
        ) from error
    return Collectives(meeting, make)


@checks_names
class OwnWorld:
    """A world, as a method of its actor sees it: several devices whose actors are called as one, by rank.

    **Who waits.** In a collective each rank waits until all have called it; the wait ends with the world's epoch. All
    ranks have to call the same collectives in the same order, in a call of the world, on the method's own thread. In
    `setup`, and while methods are called with their examples, nobody waits: this rank's data stands for that of all.

    **Arrays.** NumPy's, on a GPU CuPy's, the arrays that methods get for refs, and whatever NumPy takes for an array:
    of any shape, and empty or without dimensions too. Results are of the same kind. Those that are not row-major are
    copied first; those in the other order of bytes are converted; masked ones are refused. The shapes may differ by
    rank where the number of elements does not. Results are new arrays, or `out` itself: an array of the result's shape
    and type, row-major or with gaps, which may lie over `x`. After an error the content of `out` is undefined.

    **Numbers.** `op` is "sum", "prod", "min", "max" or "avg". It is computed in the order of ranks, so all ranks get
    the same bits, in all runs, whatever the number and place of elements. float16 and bfloat16 are computed in float32
    and rounded once. Whole numbers wrap as NumPy's do, and have no "avg"; complex ones have no "min" and "max"; bool
    and float8 are only moved. `factor` multiplies this rank's elements before a "sum" or "avg", each rank by its own;
    either all ranks give one or none.

    **Errors** of all collectives:

    - `WorldMismatch`: the ranks call different collectives, or with other types, numbers of elements, operators or
      roots. All ranks raise it. The next collective works; on a GPU that of the next call.
    - `CollectiveAborted`: a rank has died, or has ended the call without this collective; the epoch is over.
    - `InvalidRequest`: an argument is wrong, or no call of the world runs. If other ranks wait here meanwhile, the
      method's end aborts them.
    - `Unsupported`: there is no NumPy.

    Args:
        name: The world's name.
        rank: This process's rank, from 0.
        size: How many ranks there are.
        rehearse: Makes a meeting with itself, for `setup`.
        collectives: Makes the collectives of a meeting.
        graphs: Whether CUDA graphs may hold collectives.

    Attributes:
        name: The world's name.
        rank: This process's rank, from 0.
        size: How many ranks there are.
    """

    def __init__(
        self,
        name: str,
        rank: int,
        size: int,
        rehearse: Callable[[], Any] | None = None,
        collectives: Callable[[Any], Any] = through_memory,
        *,
        graphs: bool = True,
    ) -> None:
        self.name: Final = name
        self.rank: Final = rank
        self.size: Final = size
        self._rehearse: Final = rehearse or (lambda: Rehearsal(name, rank, size))
        self._through: Final = collectives
        self._graphs: Final = graphs
        self._epoch = 0
        self._meeting: EpochOf | None = None
        self._made: Any = None
        self._serves = False

    def __repr__(self) -> str:
        return f"<OwnWorld {self.name!r}, rank {self.rank} of {self.size}, epoch {self._epoch}>"

    def __getattr__(self, name: str) -> NoReturn:
        missing(self, "`context.world`", name, SYNONYMS)

    @property
    def epoch(self) -> int:
        """The number of the world's epoch, 0 before the first. State that calls build up belongs to one epoch."""
        return self._epoch

    def enter(self, meeting: EpochOf) -> None:
        """Take part in an epoch. The runtime calls it, before or after `serve`."""
        self._epoch, self._meeting = meeting.epoch, meeting
        if self._serves:
            self._made = None

    def leave(self) -> None:
        """Leave the epoch, and refer to its memory no more. The runtime calls it when no method runs."""
        self._meeting = None
        if self._serves:
            self._made = None

    def serve(self) -> None:
        """Rehearse no longer. The runtime calls it before it says that the process is ready."""
        self._serves, self._made = True, None
        if "numpy" in sys.modules:  # so that a standby's first collective imports nothing
            from atomr_mp_workers.worlds.exchange import collectives  # noqa: F401 - is imported for later

    @property
    def in_graphs(self) -> bool:
        """Whether CUDA graphs may hold collectives. The runtime's."""
        return self._graphs

    @property
    def steps(self) -> int:
        """How often this rank has met the others in this epoch. The runtime's."""
        return int(self._collectives().steps)

    def settle(self) -> None:
        """Wait for the collectives so far, and raise the error of one that has failed; the runtime's."""
        self._collectives().settle()

    def refuse(self) -> None:
        """Have the others raise `WorldMismatch`, since this rank has an error of its own. The runtime's."""
        self._collectives().refuse()

    def meet_for_program(self, name: int) -> None:
        """Wait until all ranks have come to the begin of a program, or to its end; the runtime's.

        Args:
            name: What names it, below 2^63.
        """
        self._collectives().meet_for_program(name)

    def all_reduce(self, x: Any, op: str = "sum", *, factor: Any = None, out: Any = None) -> Any:
        """Reduce the arrays of all ranks to one, element by element, and return it on all ranks.

        Args:
            x: This rank's array. All have as many elements, of the same type.
            op: The operator.
            factor: This rank's elements are multiplied by it first.
            out: Where the result goes; it may be `x` itself.

        Returns:
            An array of the shape and type of `x`.
        """
        return self._collectives().all_reduce(x, op, factor, out)

    def reduce(self, x: Any, root: int = 0, op: str = "sum", *, factor: Any = None, out: Any = None) -> Any:
        """Reduce the arrays of all ranks to one, and return it on one rank. The others wait as well, and get None.

        Args:
            x: This rank's array. All have as many elements, of the same type.
            root: The rank that gets the result.
            op: The operator.
            factor: This rank's elements are multiplied by it first.
            out: Where the result goes; used on the root only.
        """
        return self._collectives().reduce(x, root, op, factor, out)

    def reduce_scatter(self, x: Any, op: str = "sum", *, factor: Any = None, out: Any = None) -> Any:
        """Return this rank's part of what `all_reduce` would return: as many rows of the first axis as each rank gets.

        Args:
            x: This rank's array; the length of its first axis is divisible by the number of ranks.
            op: The operator.
            factor: This rank's elements are multiplied by it first.
            out: Where the result goes.

        Returns:
            An array of shape (x.shape[0] / size, ...), and of the type of `x`.
        """
        return self._collectives().reduce_scatter(x, op, factor, out)

    def all_gather(self, x: Any, *, out: Any = None) -> Any:
        """Return the arrays of all ranks, in the order of ranks, along a new first axis.

        Args:
            x: This rank's array. All have as many elements, of the same type.
            out: Where the result goes.

        Returns:
            An array of shape (size, ...), and of the type of `x`.
        """
        return self._collectives().all_gather(x, out)

    def broadcast(self, x: Any, root: int = 0, *, out: Any = None) -> Any:
        """Return the array of one rank, on all ranks.

        Args:
            x: The array; on ranks other than the root any array with as many elements, of the same type.
            root: The rank whose array it is.
            out: Where the result goes; it may be `x` itself.

        Returns:
            An array of the shape and type of `x`.
        """
        return self._collectives().broadcast(x, root, out)

    def all_to_all(self, x: Any, *, out: Any = None) -> Any:
        """Send a part of the first axis to each rank, and return those that the ranks send to this one, in their order.

        Args:
            x: This rank's array; the length of its first axis is divisible by the number of ranks.
            out: Where the result goes.

        Returns:
            An array of the shape and type of `x`: its first part is that from rank 0.
        """
        return self._collectives().all_to_all(x, out)

    def all_to_all_v(self, parts: Sequence[Any]) -> list[Any]:
        """Send an array to each rank, and return those that the ranks send to this one, in their order.

        Args:
            parts: An array for each rank, its own included, of one type. The lengths of their first axes may differ,
                the others not; on all ranks a row has as many elements.

        Returns:
            A new array from each rank, with as many rows as that has sent.
        """
        return list(self._collectives().all_to_all_v(parts))

    def sendrecv(self, x: Any, to: int | None, from_: int | None, *, out: Any = None) -> Any:
        """Send an array to one rank, and return the array that another rank sends to this one.

        All ranks call it, so all exchanges are made at once, as along a ring or between neighbours.

        Args:
            x: The array. All have as many elements, of the same type, where nothing is sent too.
            to: The rank that it is sent to; it has to name this one in its `from_`. None: it is sent to none.
            from_: The rank whose array is received; it has to name this one in its `to`. None: nothing is received.
            out: Where the result goes; it may be `x` itself.

        Returns:
            An array of the shape and type of `x`, None if nothing is received.

        Raises:
            WorldMismatch: What a rank sends is not received, or the other way around. All ranks raise it.
        """
        return self._collectives().sendrecv(x, to, from_, out)

    def barrier(self) -> None:
        """Wait until all ranks have called this."""
        self._collectives().barrier()

    def _collectives(self) -> Any:
        made = self._made
        if made is not None:
            return made
        meeting = self._meeting if self._serves else None
        if self._serves and meeting is None:
            raise outside(self.name)
        made = self._made = self._through(meeting or self._rehearse())
        return made
