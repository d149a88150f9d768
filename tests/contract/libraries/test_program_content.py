"""Compares random programs, which may fail, with a model of their numbers and of the elements that are defined."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import atomr_mp
from atomr_mp import errors
from atomr_mp.client.memory.refs import GpuRef
from tests.support import BACKEND, Ledger

N: Final = 4
REFS: Final = 3
PARTS: Final = {
    "all": (slice(None), slice(None)),
    "top": (slice(0, 2), slice(None)),
    "bottom": (slice(2, 4), slice(None)),
    "left": (slice(None), slice(0, 2)),
    "odd": (slice(1, None, 2), slice(None)),
}
"""Views of an array."""
SOILED: Final = 99.0
"""Numbers in the memory that a program's temporaries get."""

Name = tuple[str, int]
Step = tuple[str, tuple[Name, str], tuple[Name, str]]
"""(kind, (array and part that is read), (array and part that is written))."""


@pytest.fixture(scope="module")
def device() -> Iterator[atomr_mp.Device]:
    """A device."""
    with Ledger() as ledger, ledger.start(backend=BACKEND) as pool:
        yield pool.device(0)


NAMES: Final = [("input", 0), *(("ref", number) for number in range(REFS)), ("temporary", 0), ("temporary", 1)]


@st.composite
def programs(draw: st.DrawFn) -> list[Step]:
    """Draw the steps of a program; a "check" fails if the input is negative.

    Some begin with writes of parts of a ref that they read then.
    """
    steps: list[Step] = []
    if draw(st.booleans()):
        ref = draw(st.sampled_from(NAMES[1:-2]))
        parts = draw(st.lists(st.sampled_from(sorted(PARTS)), min_size=1, max_size=2))
        steps += [("copy", (NAMES[0], part), (ref, part)) for part in parts]
        target = draw(st.sampled_from([name for name in NAMES[1:] if name != ref]))
        steps += [("copy", (ref, "all"), (target, "all")), ("check", (NAMES[0], "all"), (NAMES[1], "all"))]
    for _ in range(draw(st.integers(1, 5))):
        kind = draw(st.sampled_from(["copy", "copy", "copy", "add", "check"]))
        part = draw(st.sampled_from(sorted(PARTS)))
        like = [each for each in PARTS if np.zeros((N, N))[PARTS[each]].shape == np.zeros((N, N))[PARTS[part]].shape]
        held = [name for name in NAMES if name[0] != "temporary" or any(name == step[2][0] for step in steps)]
        names = NAMES if draw(st.integers(0, 9)) == 0 else held
        source, target = draw(st.sampled_from(names)), draw(st.sampled_from(NAMES[1:] if kind == "copy" else names[1:]))
        if source != target:
            steps.append((kind, (source, part), (target, draw(st.sampled_from(like)))))
    return steps


class Model:
    """The numbers of all refs, the elements without any, and what has to be readable again."""

    def __init__(self) -> None:
        self.refs = [np.full((N, N), float(number)) for number in range(REFS)]
        self.undefined = [np.zeros((N, N), bool) for _ in range(REFS)]
        self.spoiled: list[set[str]] = [set() for _ in range(REFS)]
        """By ref: parts that failed runs should have written, and that nothing has written as a whole since."""

    def refused(self, steps: list[Step]) -> bool:
        """Return whether a step reads a part of a temporary where nothing was written before."""
        written: dict[Name, set[int]] = {}
        for kind, (source, part), (target, to) in steps:
            if kind == "check":
                continue
            reads = [(source, part), *([(target, to)] if kind == "add" else [])]
            for name, each in reads:
                if name[0] == "temporary" and not (_span(each) & written.get(name, set())):
                    return True
            written.setdefault(target, set()).update(_span(to))
        return False

    def run(self, steps: list[Step], given: np.ndarray[Any, Any], *, refused: bool) -> str:
        """Run a program; return "refused", as it was, "failed" or "done"."""
        arrays: dict[Name, np.ndarray[Any, Any]] = {("input", 0): given}
        arrays |= {("ref", at): self.refs[at].copy() for at in range(REFS)}
        arrays |= {("temporary", at): np.zeros((N, N)) for at in range(2)}
        written: dict[Name, np.ndarray[Any, Any]] = {name: np.zeros((N, N), bool) for name in NAMES}
        parts: dict[Name, set[str]] = {name: set() for name in NAMES}
        needs_spoiled, fails = False, False
        for kind, (source, part), (target, to) in steps:
            if kind == "check":
                fails |= bool((given < 0).any())
                continue
            for name, each in [(source, part), *([(target, to)] if kind == "add" else [])]:
                if name[0] == "ref" and not written[name][PARTS[each]].all():
                    needs_spoiled |= bool(_left(self.spoiled[name[1]], parts[name]))
                    needed = self.undefined[name[1]] & ~written[name]
                    assert refused or not needed[PARTS[each]].any(), "a run has read what is undefined"
            value = arrays[source][PARTS[part]]
            place = arrays[target][PARTS[to]]
            place[...] = value if kind == "copy" else place + value
            written[target][PARTS[to]] = True
            parts[target].add(to)
        if refused:
            assert needs_spoiled, "a run is refused that reads nothing undefined"
            return "refused"
        for at in range(REFS):
            mask = written["ref", at]
            self.refs[at] = arrays["ref", at]
            self.undefined[at][mask] = fails
            if fails:
                self.spoiled[at] |= parts["ref", at]
            else:
                self.spoiled[at] = _left(self.spoiled[at], parts["ref", at])
        return "failed" if fails else "done"


def _left(spoiled: set[str], written: set[str]) -> set[str]:
    """Return the parts that are spoiled after some were written."""
    return set() if "all" in written else spoiled - written


def _span(part: str) -> set[int]:
    numbers = np.arange(N * N).reshape(N, N)[PARTS[part]]
    return set(range(numbers.min(), numbers.max() + 1))


def recorded(device: atomr_mp.Device, refs: list[GpuRef], steps: list[Step]) -> Any:
    """Record a program."""
    with device.program() as p:
        arrays: dict[Name, Any] = {("input", 0): p.input("x", (N, N), "float64")}
        arrays |= {("ref", number): ref for number, ref in enumerate(refs)}
        arrays |= {("temporary", number): p.empty((N, N), "float64") for number in range(2)}
        for kind, (source, part), (target, to) in steps:
            if kind == "check":
                p.solver.potrf(p.elementwise.copy(arrays["input", 0]))
                continue
            a, b = arrays[source][PARTS[part]], arrays[target][PARTS[to]]
            if kind == "copy":
                p.elementwise.copy(a, b)
            else:
                p.elementwise.add(a, b, b)
    return p


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    made=st.lists(programs(), min_size=1, max_size=3),
    runs=st.lists(st.tuples(st.integers(0, 2), st.booleans()), min_size=2, max_size=10),
)
def test_a_ref_is_read_if_it_is_defined_and_has_the_right_numbers(
    device: atomr_mp.Device, made: list[list[Step]], runs: list[tuple[int, bool]]
) -> None:
    """After any mix of runs that succeed, fail and are refused; and no temporary shows what was in its memory."""
    model = Model()
    refs = [device.put(array) for array in model.refs]
    soiled = [device.full((N, N), SOILED, "float64") for _ in range(4)]
    del soiled
    kept: list[tuple[list[Step], Any]] = []
    for steps in made:
        refused = model.refused(steps)
        with pytest.raises(errors.InvalidRequest, match="temporary") if refused else contextlib.nullcontext():
            kept.append((steps, recorded(device, refs, steps)))
    for at, fails in runs if kept else ():
        steps, p = kept[at % len(kept)]
        given_array = -np.eye(N) if fails else np.eye(N)
        error = p.run(x=given_array).exception()
        became = model.run(steps, given_array, refused=isinstance(error, errors.GpuRefUndefined))
        expected = {"refused": errors.GpuRefUndefined, "failed": errors.NumericalError, "done": type(None)}
        assert type(error) is expected[became]
        for number, ref in enumerate(refs):
            try:
                found = ref.numpy()
            except errors.GpuRefUndefined:
                assert model.spoiled[number], "a ref is undefined that has been written since"
            else:
                assert not model.undefined[number].any(), "a ref is read that is undefined"
                np.testing.assert_array_equal(found, model.refs[number])
