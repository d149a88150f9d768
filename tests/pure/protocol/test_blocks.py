"""Branches and loops of programs: what definitions may say, and what analyses of reads and writes make of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, Final

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atomr_mp import errors
from atomr_mp.protocol.layout import Layout
from atomr_mp.protocol.libraries import blocks
from atomr_mp.protocol.libraries.blocks import MAX_DEPTH, Enter, Leave, Otherwise, StepBlock
from atomr_mp.protocol.libraries.coverage import first_reads
from atomr_mp.protocol.libraries.program import DEFINITIONS, Definition, slot
from atomr_mp_workers.libraries.program.course import Walk, instructions

CONDITION: Final = slot(0, Layout.contiguous("bool", ()))
SHAPE: Final = (4, 6)
WHOLE: Final = Layout.contiguous("float32", SHAPE)


def block(kind: Any, begin: int, end: int, most: int = 1, *results: int) -> StepBlock:
    """Return a block."""
    return StepBlock(kind, CONDITION, begin, end, most, *results)


def branch(begin: int, otherwise: int, end: int) -> StepBlock:
    """Return a branch with two bodies."""
    return StepBlock("if", CONDITION, begin, end, otherwise=otherwise)


@pytest.mark.parametrize(
    ("told", "words"),
    [
        ([block("while", 1, 1)], r"block 0 \(while\) has no steps"),
        ([block("if", 2, 1)], "has no steps"),
        ([block("if", 0, 4)], "ends with step 3 of 3 steps"),
        ([block("if", 1, 2), block("if", 0, 1)], "begins before the block"),
        ([block("if", 0, 2), block("if", 1, 3)], r"block 1 \(if\) ends behind the block, or the body"),
        ([branch(0, 2, 3), block("if", 1, 3)], r"block 1 \(if\) ends behind the block, or the body of it"),
        ([branch(0, 1, 3), block("while", 0, 2)], r"block 1 \(while\) ends behind the block, or the body of it"),
        ([branch(1, 1, 3)], "has a second body from step 1 on: only a branch has one, and both have steps"),
        ([branch(1, 3, 3)], "has a second body from step 3 on"),
        ([branch(1, 0, 3)], "has a second body from step 0 on"),
        ([StepBlock("while", CONDITION, 0, 3, otherwise=1)], "only a branch has one"),
        ([block("if", 0, 1)] * (MAX_DEPTH + 1), f"at most {MAX_DEPTH} may lie in each other"),
        ([block("if", 0, 1, 2)], "is done once at most"),
        ([block("if", 0, 1, 1, 3)], "has no rounds to count"),
    ],
)
def test_blocks_that_make_no_course_are_refused_in_words(told: list[StepBlock], words: str) -> None:
    """By client and worker, with the block's number."""
    with pytest.raises(errors.InvalidRequest, match=words):
        blocks.check_nesting(told, 3)


@pytest.mark.parametrize(
    "change", [{"most": 0}, {"most": 2**63}, {"kind": "for"}, {"rounds": -2}, {"begin": -1}, {"otherwise": -2}]
)
def test_numbers_beyond_their_range_are_no_definition(change: dict[str, Any]) -> None:
    """They are found when it is decoded."""
    names = StepBlock.__struct_fields__
    fields = {**dict(zip(names, [getattr(block("while", 0, 1), name) for name in names], strict=True)), **change}
    sent = DEFINITIONS.encode(Definition([], [], [], [], [], [StepBlock(**fields)]))
    with pytest.raises(errors.ProtocolError):
        DEFINITIONS.decode(sent)


def place() -> st.SearchStrategy[int]:
    """Draw the number of a step."""
    return st.integers(0, 6)


@given(
    told=st.lists(
        st.builds(block, st.sampled_from(["if", "while"]), place(), place(), st.integers(1, 3))
        | st.builds(branch, place(), place(), place()),
        max_size=5,
    ),
    truths=st.lists(st.booleans(), max_size=40),
)
def test_any_blocks_are_refused_or_walked_to_the_end(told: list[StepBlock], truths: list[bool]) -> None:
    """A walk does each step's rounds in order, keeps every bound, and is over once no condition is true.

    Of the two bodies of a branch it does the one that the condition chooses.
    """
    try:
        blocks.check_nesting(told, 6)
    except errors.InvalidRequest:
        return
    assert [each for each in blocks.course(told, 6) if isinstance(each, int)] == [*range(6)]
    walk, answers, before = Walk(instructions(told, 6)), iter(truths), -1
    chosen: dict[int, bool] = {}
    while (found := walk.next()) is not None:
        if isinstance(found, int):
            assert (
                found == before + 1
                or any(each.begin <= found <= before < each.end for each in told)
                or all(any(each.begin <= skipped < each.end for each in told) for skipped in range(before + 1, found))
            )
            before = found
            for number, each in enumerate(told):
                if each.kind == "if" and each.begin <= found < each.end:
                    assert chosen[number] is not (0 <= each.otherwise <= found)
            continue
        chosen[found.block] = is_true = next(answers, False)
        end = walk.choose(found, is_true=is_true)
        if end is not None:
            assert end.rounds <= told[end.block].most
            assert not end.reached or end.rounds == told[end.block].most


def viewed(number: int, memory: int, index: Any) -> Any:
    """Return a view that is a slot, or lies in one."""
    return SimpleNamespace(memory=memory, layout=WHOLE.indexed(index), slot=number, index=index)


rows: Final = st.sampled_from([(slice(None),), (slice(2),), (slice(2, None),), (slice(1, 3),)])


@st.composite
def recorded(draw: st.DrawFn) -> tuple[list[Any], list[StepBlock], list[Any]]:
    """Draw steps on four slots, two of them views of one memory and one a temporary, and blocks with conditions."""
    views = [viewed(number, memory, draw(rows)) for number, memory in enumerate([0, 0, 1, 2])]
    view = st.sampled_from(views)
    step = st.builds(
        lambda read, written: SimpleNamespace(
            read=lambda: read, written=lambda: [written], triangle_of=lambda _: "", arrays=[*read, written]
        ),
        st.lists(view, max_size=2),
        view,
    )
    steps = draw(st.lists(step, min_size=3, max_size=6))
    told: list[StepBlock] = []
    for _ in range(draw(st.integers(1, 3))):
        begin = draw(st.integers(0, len(steps) - 1))
        end = draw(st.integers(begin + 1, len(steps)))
        if end > begin + 1 and draw(st.booleans()):
            each = branch(begin, draw(st.integers(begin + 1, end - 1)), end)
        else:
            each = block(draw(st.sampled_from(["if", "while"])), begin, end)
        try:
            found = sorted([*told, each], key=lambda each: (each.begin, -each.end))
            blocks.check_nesting(found, len(steps))
            told = found
        except errors.InvalidRequest:
            pass
    return steps, told, [draw(view) for _ in told]


@given(case=recorded(), truths=st.lists(st.booleans(), max_size=12))
def test_what_is_sure_is_so_on_every_way(
    case: tuple[list[Any], list[StepBlock], list[Any]], truths: list[bool]
) -> None:
    """No slot that is not named is read unwritten; what is settled for one was written whenever it is read."""
    steps, told, conditions = case
    told = [msgspec.structs.replace(each, most=3 if each.kind == "while" else 1) for each in told]
    passed = [*blocks.passages(steps, told, conditions.__getitem__, lambda _: ())]
    found = first_reads(passed, lambda view: view.slot if view.slot < 3 else None)
    elements = np.arange(WHOLE.size).reshape(SHAPE)
    written: dict[int, set[int]] = {memory: set() for memory in range(3)}
    ever: dict[int, set[int]] = {}
    for step in steps:
        for view in step.written():
            ever.setdefault(view.slot, set()).update(elements[view.index].flat)

    def check(view: Any) -> None:
        if view.slot == 3:
            return
        unwritten = set(elements[view.index].flat) - written[view.memory]
        if unwritten:
            assert view.slot in found
        for other in found.get(view.slot, ()) if unwritten else ():
            memory = next(each.memory for step in steps for each in step.written() if each.slot == other)
            assert ever[other] <= written[memory]

    for number in taken(told, len(steps), conditions, truths, check):
        for view in steps[number].read():
            check(view)
        for view in steps[number].written():
            written[view.memory].update(elements[view.index].flat)


def taken(
    told: list[StepBlock], steps: int, conditions: list[Any], truths: list[bool], check: Callable[[Any], None]
) -> Iterator[int]:
    """Yield the steps of a run whose conditions are these, and check each condition before it is read."""
    walk, answers = Walk(instructions(told, steps)), iter(truths)
    while (following := walk.next()) is not None:
        if isinstance(following, int):
            yield following
        else:
            check(conditions[following.block])
            walk.choose(following, is_true=next(answers, False))


def test_the_body_of_a_block_is_not_sure_behind_it() -> None:
    """What is settled by a first read in a body is no more so for a later read behind it."""
    a, b = viewed(0, 0, (slice(0, 2),)), viewed(1, 0, (slice(None),))
    writes = SimpleNamespace(read=list, written=lambda: [a], triangle_of=lambda _: "")
    reads = SimpleNamespace(read=lambda: [b], written=list, triangle_of=lambda _: "")
    assert first_reads([writes, reads], lambda view: view.slot) == {1: [0]}
    assert first_reads([Enter(0), writes, reads, Leave(0)], lambda view: view.slot) == {1: [0]}
    assert first_reads([Enter(0), writes, reads, Leave(0), reads], lambda view: view.slot) == {1: []}


def test_what_both_bodies_of_a_branch_write_is_sure_behind_it() -> None:
    """As spans, also where they are cut differently, and as views with gaps; what one alone writes is not."""

    def writing(*written: Any) -> Any:
        return SimpleNamespace(read=list, written=lambda: [*written], triangle_of=lambda _: "")

    whole, upper, lower = (viewed(at, 0, (each,)) for at, each in enumerate((slice(None), slice(0, 2), slice(2, 4))))
    middle, columns = viewed(3, 0, (slice(1, 3),)), viewed(4, 0, (slice(None), slice(0, 2)))

    def sure(first: list[Any], second: list[Any], read: Any) -> bool:
        reads = SimpleNamespace(read=lambda: [read], written=list, triangle_of=lambda _: "")
        marked = [Enter(0), writing(*first), Otherwise(0), writing(*second), Leave(0), reads]
        return first_reads(marked, lambda view: view.slot) == {}

    assert sure([whole], [upper, lower], whole)
    assert sure([upper, middle], [whole], middle)
    assert sure([columns], [columns], columns)
    assert not sure([whole], [upper], whole)
    assert sure([whole], [upper], upper)
    assert not sure([upper], [lower], middle)
    assert not sure([columns], [upper], columns)
    inner = [Enter(1), writing(upper), Otherwise(1), writing(whole), Leave(1), writing(lower)]
    reads = SimpleNamespace(read=lambda: [whole], written=list, triangle_of=lambda _: "")
    nested = [Enter(0), *inner, Otherwise(0), writing(whole), Leave(0), reads]
    assert first_reads(nested, lambda view: view.slot) == {}
