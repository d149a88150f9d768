"""Branches and loops of a program: runs of its steps that a number on the device has done, or not. Pure.

A *block* is a run of steps, its *body*, with a condition: an array of one element, true if that is not 0. A branch does
its body once if the condition is true. A loop does it as long as the condition is true when a round begins, and at most
so often as it says. A branch may have a second body, behind the first, which is done if the condition is false.

Blocks may lie in each other. Their steps stay in the one list of a program's steps, so whoever looks at all steps need
not know of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Annotated, Any, Final, Literal, NamedTuple

from msgspec import Meta

from atomr_mp import errors
from atomr_mp.protocol.codec import MAX_U64, Message
from atomr_mp.protocol.layout import Layout
from atomr_mp.protocol.refs import Operand, WireRef
from atomr_mp.protocol.words import counted

MAX_BLOCKS: Final = 256
MAX_DEPTH: Final = 8
"""Most blocks that lie in each other."""

MAX_ROUNDS: Final = MAX_U64

CONDITIONS: Final = ("bool", *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)))
"""Element types of conditions."""

ROUNDS: Final = Layout.contiguous("int64", ())
"""Layout of the array for how many rounds a loop has done."""

REACHED: Final = Layout.contiguous("bool", ())
"""Layout of the array for whether a loop has ended because of its bound."""

Kind = Literal["if", "while"]

_Place = Annotated[int, Meta(ge=0, le=2**16)]


class StepBlock(Message, frozen=True, gc=True):
    """A branch or a loop."""

    kind: Kind
    condition: WireRef
    """A slot, or a view of one."""
    begin: _Place
    """Number of its first step."""
    end: _Place
    """Number of the step behind its last one."""
    most: Annotated[int, Meta(ge=1, le=MAX_ROUNDS)] = 1
    """How many rounds a loop does at most."""
    rounds: Annotated[int, Meta(ge=-1, le=2**16)] = -1
    """Slot that gets the number of rounds of a loop when it ends; -1 for none."""
    reached: Annotated[int, Meta(ge=-1, le=2**16)] = -1
    """Slot that gets, when a loop ends, whether its condition is still true; -1 for none."""
    otherwise: Annotated[int, Meta(ge=-1, le=2**16)] = -1
    """Number of the first step of a branch's second body, which is done if the condition is false; -1 for none."""


class Enter(NamedTuple):
    """The place in a program where a block begins."""

    number: int


class Otherwise(NamedTuple):
    """The place in a program where the first body of a branch ends, and its second one begins."""

    number: int


class Leave(NamedTuple):
    """The place in a program where a block ends."""

    number: int


def check_nesting(blocks: Sequence[StepBlock], steps: int) -> None:
    """Check that the blocks lie in each other's bodies, or apart, in the order of their begin.

    Args:
        blocks: The blocks.
        steps: Number of the program's steps.

    Raises:
        InvalidRequest: They do not.
    """
    around: list[StepBlock] = []
    last = 0
    for number, block in enumerate(blocks):
        what = f"block {number} ({block.kind})"
        if block.begin >= block.end:
            raise errors.InvalidRequest(f"{what} has no steps")
        if block.end > steps:
            raise errors.InvalidRequest(f"{what} ends with step {block.end - 1} of {counted(steps, 'step')}")
        if block.begin < last:
            raise errors.InvalidRequest(f"{what} begins before the block that is listed before it")
        last = block.begin
        while around and around[-1].end <= block.begin:
            around.pop()
        if around and block.end > _end_of_body(around[-1], block.begin):
            raise errors.InvalidRequest(f"{what} ends behind the block, or the body of it, that it begins in")
        around.append(block)
        if len(around) > MAX_DEPTH:
            raise errors.InvalidRequest(f"{what} lies in {MAX_DEPTH} others; at most {MAX_DEPTH} may lie in each other")
        if block.kind == "if" and (block.most != 1 or block.rounds >= 0 or block.reached >= 0):
            raise errors.InvalidRequest(f"{what} is done once at most, and has no rounds to count")
        if block.otherwise >= 0 and not (block.kind == "if" and block.begin < block.otherwise < block.end):
            raise errors.InvalidRequest(
                f"{what} has a second body from step {block.otherwise} on: only a branch has one, and both have steps"
            )


def _end_of_body(block: StepBlock, step: int) -> int:
    """Return the number of the step behind the body of a block in which a step lies."""
    return block.otherwise if step < block.otherwise else block.end


def course(blocks: Sequence[StepBlock], steps: int) -> Iterator[int | Enter | Otherwise | Leave]:
    """Yield the numbers of a program's steps, in order, and where the bodies of its blocks begin and end.

    Args:
        blocks: Its blocks, which `check_nesting` has accepted.
        steps: How many steps it has.
    """
    open_blocks: list[int] = []
    following = 0
    for step in range(steps + 1):
        while open_blocks and blocks[open_blocks[-1]].end == step:
            yield Leave(open_blocks.pop())
        if open_blocks and blocks[open_blocks[-1]].otherwise == step:
            yield Otherwise(open_blocks[-1])
        while following < len(blocks) and blocks[following].begin == step:
            open_blocks.append(following)
            yield Enter(following)
            following += 1
        if step < steps:
            yield step


def check_condition(condition: Any, where: str) -> None:
    """Check that an array can be a condition.

    Raises:
        InvalidRequest: It is no array, its elements are of another type, or it has not one element.
    """
    if not isinstance(condition, Operand):
        raise errors.InvalidRequest(
            f"the condition of {where} is {condition!r:.100}; it must be a ref or an array of the program, which steps "
            "can change"
        )
    layout = condition.layout
    if layout.size != 1:
        raise errors.InvalidRequest(
            f"the condition of {where} has the shape {layout.shape}; it must have one element: a reduction gives one"
        )
    if layout.dtype not in CONDITIONS:
        raise errors.InvalidRequest(
            f"the condition of {where} is {layout.dtype}; it must be bool or an integer: a comparison gives bool"
        )


def writes_to(written: Iterable[Operand], condition: Operand) -> bool:
    """Return whether one of these arrays may have the element of a condition."""
    low, high = condition.layout.span
    return any(
        each.memory == condition.memory and each.layout.span[0] < high and low < each.layout.span[1] for each in written
    )


class ConditionRead:
    """The read of a condition, as analyses see it: like a step."""

    def __init__(self, condition: Operand) -> None:
        self._condition: Final = condition

    def read(self) -> list[Any]:
        """Return the condition."""
        return [self._condition]

    def written(self) -> list[Any]:
        """Return nothing."""
        return []

    def triangle_of(self, _array: Operand) -> str:
        """Return "": there is no triangle."""
        return ""


class LoopResult:
    """The end of a loop, as analyses see it: like a step that writes what the loop tells.

    Args:
        arrays: The arrays that it writes.
    """

    def __init__(self, arrays: Sequence[Operand]) -> None:
        self._arrays: Final = arrays

    def read(self) -> list[Any]:
        """Return nothing."""
        return []

    def written(self) -> list[Any]:
        """Return the arrays."""
        return [*self._arrays]

    def triangle_of(self, _array: Operand) -> str:
        """Return "": each is written as a whole."""
        return ""


def passages(
    steps: Sequence[Any],
    blocks: Sequence[StepBlock],
    condition: Callable[[int], Operand],
    results: Callable[[int], Sequence[Operand]],
) -> Iterator[Any]:
    """Yield a program's steps for `coverage`: with the reads and writes of its blocks, and the marks of their bodies.

    Args:
        steps: The steps.
        blocks: The blocks, which `check_nesting` has accepted.
        condition: Returns the condition of a block.
        results: Returns the arrays that a loop writes at its end.
    """
    for each in course(blocks, len(steps)):
        if isinstance(each, Enter):
            yield ConditionRead(condition(each.number))
            yield each
        elif isinstance(each, Otherwise):
            yield each
        elif isinstance(each, Leave):
            yield each
            if arrays := results(each.number):
                yield LoopResult(arrays)
        else:
            yield steps[each]
