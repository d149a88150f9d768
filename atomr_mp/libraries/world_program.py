"""Programs that all ranks of a world run together, made by `MadeWorld.program`.

    with world.program() as p:
        x = p.input("x", (4, 8), "float32")
        p.returns(p.world.all_reduce(p.blas.gemm(x, p.refs(weights))))

    first, second = p.run(x=array).result()

Steps are recorded once, and every rank runs all of them, each with its own refs and temporaries.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

from atomr_mp import errors
from atomr_mp.client.worlds import ref_checks
from atomr_mp.libraries.program import Program
from atomr_mp.libraries.recording import ProgramArray
from atomr_mp.protocol.keywords import checks_names
from atomr_mp.protocol.layout import Layout
from atomr_mp.protocol.libraries.base import LibraryRequest
from atomr_mp.protocol.libraries.program import RunProgram, anywhere
from atomr_mp.protocol.refs import Operand, WireRef
from atomr_mp.protocol.views import ArrayViews

if TYPE_CHECKING:
    from atomr_mp.client.worlds.gang_reply import GangReply

Submit = Callable[[Sequence[RunProgram], float | None], "GangReply"]
"""Sends the runs of all ranks, with a deadline."""


class RankRefs(ArrayViews):
    """One ref for each rank, as a program of a world uses them.

    Args:
        refs: The refs, by rank; all lie in the same way.
    """

    def __init__(self, refs: Sequence[Any]) -> None:
        self.refs: Final = tuple(refs)
        self.layout = refs[0].layout

    def __repr__(self) -> str:
        return f"<RankRefs {self.dtype}{list(self.shape)} on {len(self.refs)} ranks>"

    @property
    def memory(self) -> object:
        """The names of their memory."""
        return tuple(ref.memory for ref in self.refs)

    def to_wire(self) -> WireRef:
        """Raise.

        Raises:
            InvalidRequest: No message has it; a run has the ref of its rank.
        """
        raise errors.InvalidRequest(
            f"{self!r} is given where one ref belongs: it is for steps and inputs of programs of its world; give a ref"
        )

    def of_layout(self, layout: Layout) -> RankRefs:
        """Return views that lie to each ref as a layout does to that of rank 0."""
        beyond = layout.offset - self.layout.offset
        return RankRefs([ref.of_layout(layout.at(ref.layout.offset + beyond)) for ref in self.refs])


class Ranks:
    """All devices of a world, as one for a program.

    Args:
        devices: The devices, by rank.
        submit: Sends a run.
    """

    def __init__(self, devices: Sequence[int], submit: Submit) -> None:
        self._devices: Final = devices
        self._submit: Final = submit
        self.ranks: Final = len(devices)
        """How many ranks there are."""

    def operand(self, value: Any) -> Any:
        """Return refs by rank as one operand; what is no ref as it is.

        Raises:
            InvalidRequest: It is the ref of one rank; or there are too many or too few, or they lie differently.
            GpuRefWrongDevice: One is on another device.
        """
        if isinstance(value, ProgramArray):
            return value
        if isinstance(value, RankRefs):
            return self.by_rank(value.refs)  # they may be of another world
        if isinstance(value, Operand):
            raise errors.InvalidRequest("a ref is memory of one rank; give one for each rank: `p.refs([…])`")
        if isinstance(value, list | tuple) and value and all(isinstance(each, Operand) for each in value):
            return self.by_rank(value)
        return value

    def by_rank(self, refs: Any) -> RankRefs:
        """Return refs by rank as one operand.

        Raises:
            InvalidRequest: As `operand`.
            GpuRefWrongDevice: As `operand`.
        """
        found = ref_checks.refs_of(refs, self._devices)
        for rank, ref in enumerate(found):
            if anywhere(ref.layout) != anywhere(found[0].layout):
                raise errors.InvalidRequest(
                    f"the ref of rank 0 is {_told(found[0])}, that of rank {rank} {_told(ref)}; all ranks run the same "
                    "steps, so they must lie in the same way"
                )
        return RankRefs(found)

    def request(self, _library: str, request: LibraryRequest, deadline_s: float | None) -> Any:
        """Send a run of a program."""
        assert isinstance(request, RunProgram)
        rows = [
            msgspec.structs.replace(request, inputs=_of_rank(request.inputs, rank), refs=_of_rank(request.refs, rank))
            for rank in range(self.ranks)
        ]
        return self._submit(rows, deadline_s)


@checks_names
class WorldProgram(Program):
    """A program of a world: all ranks run the same steps, each on memory of its own.

    It is recorded as a program of a device is, with collectives among the steps (`p.world`). Where a step uses a ref,
    each rank has its own: `p.refs`. In `run`, an input is an array that all ranks get, or a list of a ref for each.

    **A run** returns a `GangReply`. Its result is a list by rank of what a run on a device returns. It is ordered with
    all requests on its refs, sent once, and begins on all ranks or on none: what one rank refuses, such as a stale ref,
    no rank begins, and the others' part is `WorldMismatch`. If a step fails on one rank, the run fails on all,
    and what it was to write is undefined on all ranks. If a rank is lost, that is undefined on the
    others, or written as a whole where the rank had done its part.

    Args:
        ranks: The world's devices as one.
    """

    def __init__(self, ranks: Ranks) -> None:
        super().__init__(ranks)
        self._ranks: Final = ranks

    def refs(self, refs: Sequence[Any]) -> RankRefs:
        """Return an operand that is another ref on each rank, for steps of programs of this world.

        Args:
            refs: The refs by rank, with the same shape, element type and strides.

        Raises:
            InvalidRequest: There are too many or too few, or they lie differently.
            GpuRefWrongDevice: One is on another device.
        """
        return self._ranks.by_rank(refs)


def _of_rank(given: Sequence[Any], rank: int) -> list[Any]:
    return [each.refs[rank] if isinstance(each, RankRefs) else each for each in given]


def _told(ref: Any) -> str:
    return f"{ref.dtype} of shape {ref.shape} with strides {ref.strides} at byte {ref.layout.offset}"
