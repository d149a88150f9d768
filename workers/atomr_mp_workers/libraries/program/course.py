"""The way of a run through the steps of its program: which step comes next, given what conditions say. Pure.

A program is compiled to instructions, once. A run keeps its place among them, and how many rounds each loop has done.
Nothing here knows of arrays: whoever does the steps reads the conditions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from atomr_mp.protocol.libraries.blocks import Enter, Otherwise, StepBlock, course


class Decision(NamedTuple):
    """An instruction: go into the body of a block, or elsewhere."""

    block: int
    """The block's number."""
    is_loop: bool
    most: int
    """How many rounds it does at most."""
    elsewhere: int
    """The place of the next instruction if its condition is false: behind the block, or in a branch's second body."""


class GoOn(NamedTuple):
    """An instruction: go on elsewhere, behind a round of a loop or the first body of a branch."""

    place: int
    """The place of the next instruction: a loop's choice, or behind the branch."""


Instruction = int | Decision | GoOn
"""What a run does next; an integer is the number of a step to do."""


class LoopEnd(NamedTuple):
    """The end of a loop."""

    block: int
    """The block's number."""
    rounds: int
    """How many rounds it has done."""
    reached: bool
    """Whether its condition is still true, so that the bound has ended it."""


def instructions(blocks: Sequence[StepBlock], steps: int) -> list[Instruction]:
    """Return the instructions of a program.

    Args:
        blocks: Its blocks, which `check_nesting` has accepted.
        steps: How many steps it has.
    """
    found: list[Instruction] = []
    begun: dict[int, int] = {}
    second: dict[int, int] = {}
    for each in course(blocks, steps):
        if isinstance(each, int):
            found.append(each)
            continue
        number, block = each.number, blocks[each.number]
        if isinstance(each, Enter):
            begun[number] = len(found)
            found.append(GoOn(len(found)))  # a choice, once it is known where the body ends
        elif isinstance(each, Otherwise):
            found.append(GoOn(len(found)))  # behind the block, once it is known where it ends
            second[number] = len(found)
        else:
            if block.kind == "while":
                found.append(GoOn(begun[number]))
            if number in second:
                found[second[number] - 1] = GoOn(len(found))
            elsewhere = second.get(number, len(found))
            found[begun[number]] = Decision(number, block.kind == "while", block.most, elsewhere)
    return found


class Walk:
    """The place of a run.

    Args:
        instructions: Those of its program.
    """

    def __init__(self, instructions: Sequence[Instruction]) -> None:
        self._instructions: Final = instructions
        self._rounds: Final[dict[int, int]] = {}
        """How many rounds each loop that has begun has done."""
        self._place = 0

    def next(self) -> int | Decision | None:
        """Return the number of the next step, which counts as done; or a choice to `choose` in; None at the end."""
        while self._place < len(self._instructions):
            found = self._instructions[self._place]
            if isinstance(found, GoOn):
                self._place = found.place
                continue
            if not isinstance(found, Decision):
                self._place += 1
            return found
        return None

    def choose(self, choice: Decision, *, is_true: bool) -> LoopEnd | None:
        """Go on from a choice, by its condition; return the end of a loop that ends so."""
        done = self._rounds.get(choice.block, 0)
        if is_true and done < choice.most:
            if choice.is_loop:
                self._rounds[choice.block] = done + 1
            self._place += 1
            return None
        self._rounds.pop(choice.block, None)
        self._place = choice.elsewhere
        return LoopEnd(choice.block, done, is_true) if choice.is_loop else None
