"""The branches and loops of a program: checked once, when it is prepared."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from atomr_mp import errors
from atomr_mp.protocol.libraries import blocks, program
from atomr_mp.protocol.libraries.base import LibraryRequest
from atomr_mp.protocol.libraries.blocks import ConditionRead
from atomr_mp.protocol.libraries.coverage import Coverage, walked
from atomr_mp.protocol.libraries.world import WORLD
from atomr_mp.protocol.refs import WireRef
from atomr_mp_workers.libraries.program.views import SlotView
from atomr_mp_workers.memory.arrays import DeviceArray

View = Callable[[WireRef], SlotView]
"""Returns the array of a slot that a definition names; raises `InvalidRequest` if there is none."""


class PreparedBlock(NamedTuple):
    """A branch or a loop that has been checked."""

    condition: SlotView
    results: list[SlotView]
    """The arrays that a loop writes at its end: its rounds, and whether it has reached its bound; or none."""

    def is_true(self, slots: list[DeviceArray]) -> bool:
        """Return whether the condition is true, once the work before it has ended."""
        return bool(self.condition.of(slots).array.item())


def prepared_blocks(
    definition: program.Definition, requests: Sequence[LibraryRequest], view: View
) -> list[PreparedBlock]:
    """Return a program's blocks.

    Args:
        definition: The program; `check_nesting` has accepted its blocks.
        requests: The requests of its steps.
        view: Returns the array that it names.

    Raises:
        InvalidRequest: A condition cannot be one, a loop does not write its own, its rounds have no place, or a
            collective is in a body.
    """
    found = [_prepared(definition, number, view) for number in range(len(definition.blocks))]
    for number, block in enumerate(definition.blocks):
        body = range(block.begin, block.end)
        if any(definition.steps[step].library == WORLD for step in body):
            raise errors.InvalidRequest(
                f"block {number} ({block.kind}) has a collective in its body: ranks whose conditions differ would wait "
                "for each other for ever"
            )
        written = [each for step in body for each in requests[step].written()]
        for inner in range(number + 1, len(found)):
            if definition.blocks[inner].begin in body:
                written += found[inner].results
        if block.kind == "while" and not blocks.writes_to(written, found[number].condition):
            raise errors.InvalidRequest(f"block {number} (while): no step in its body writes its condition")
    return found


def _prepared(definition: program.Definition, number: int, view: View) -> PreparedBlock:
    block, results = definition.blocks[number], list[SlotView]()
    condition = view(block.condition)
    blocks.check_condition(condition, f"block {number} ({block.kind})")
    if (block.rounds < 0) != (block.reached < 0):
        raise errors.InvalidRequest(f"block {number} tells only one of its rounds and whether they were the most")
    for slot, layout in ((block.rounds, blocks.ROUNDS), (block.reached, blocks.REACHED)):
        if slot < 0:
            continue
        within = slot - definition.first_temporary
        if not 0 <= within < len(definition.temporaries) or definition.temporaries[within].layout != layout:
            raise errors.InvalidRequest(
                f"slot {slot}, in which block {number} tells of its rounds, is no temporary of type {layout.dtype} "
                "without dimensions"
            )
        results.append(view(program.slot(slot, layout)))
    return PreparedBlock(condition, results)


def passages(
    definition: program.Definition, requests: Sequence[LibraryRequest], prepared: Sequence[PreparedBlock]
) -> list[Any]:
    """Return a program's steps and blocks as `coverage` takes them.

    Raises:
        InvalidRequest: A condition is a temporary that no earlier step can have written.
    """
    passed = [
        *blocks.passages(
            requests,
            definition.blocks,
            lambda number: prepared[number].condition,
            lambda number: prepared[number].results,
        )
    ]
    written, conditions = Coverage(), iter(prepared)
    for each, _ in walked(passed, written):
        if isinstance(each, ConditionRead):
            condition = next(conditions).condition
            if condition.slot >= definition.first_temporary and not written.has_some(condition):
                number = next(at for at, block in enumerate(prepared) if block.condition is condition)
                raise errors.InvalidRequest(
                    f"the condition of block {number} is a temporary that no earlier step has written"
                )
    return passed
