"""Uses of a buffer take their turns wherever they run: on the loop, on threads, on event loops, by calls and streams.

The model takes the uses one after the other; the pool gets them without a wait in between.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import atomr_mp
from tests.support import ACTORS, DEADLINE_S, Ledger

ORDERED: Final = [f"{ACTORS}/ordered.py:{name}" for name in ("OneThread", "TwoThreads", "Tasks")]

EXAMPLES: Final = int(os.environ.get("ATOMR_MP_TEST_EXAMPLES", "25"))

NO_SHRINK: Final = (Phase.explicit, Phase.reuse, Phase.generate)
"""Each step of a shrink would wait for a deadline."""

USES: Final = [
    *(
        f"{actor}.{method}"
        for actor in ("OneThread", "TwoThreads")
        for method in (
            *("read", "write", "read_on_thread", "write_on_thread", "read_together", "write_together"),
            *("read_parts", "read_parts_alone", "write_parts", "read_steps"),
        )
    ),
    *(f"Tasks.{method}" for method in ("read_on_thread", "write_on_thread", "read_parts", "write_parts")),
    *("library", "program"),
]

STREAMS: Final = {"read_parts", "read_parts_alone", "write_parts", "read_steps"}

PARTS: Final = 3


@pytest.fixture(scope="module")
def pool() -> Iterator[atomr_mp.Pool]:
    """A pool of one device."""
    with Ledger() as ledger, ledger.start(*ORDERED) as started:
        yield started


def outcomes(pool: atomr_mp.Pool, uses: list[tuple[str, int]], ahead: int) -> tuple[list[Any], list[Any]]:
    """Make all uses of two buffers, and read all streams; return what they tell, and what they should."""
    device = pool.device()
    buffers = [device.zeros(4, "float64") for _ in range(2)]
    one = device.full(4, 1, "float64")
    with device.program() as program:
        source = program.input("source", (4,), "float64")
        program.returns(program.elementwise.copy(source))
    values = [0.0, 0.0]
    expected: list[Any] = []
    asked: list[Any] = []
    for use, at in uses:
        buffer, method = buffers[at], use.rpartition(".")[2]
        if method == "library":
            asked.append(device.elementwise.add(buffer, one, buffer, deadline_s=DEADLINE_S))
        elif method == "program":
            asked.append(program.run(source=buffer, deadline_s=DEADLINE_S))
        elif method in STREAMS:
            more = () if method == "read_steps" else (PARTS,)
            asked.append(pool.stream(use, buffer, *more, first_s=DEADLINE_S, deadline_s=DEADLINE_S, ahead=ahead))
        else:
            asked.append(pool.call(use, buffer, deadline_s=DEADLINE_S))
        if method == "write_parts":
            expected.append([values[at] + 1 + n for n in range(PARTS)])
            values[at] += PARTS
        elif method.startswith("write") or method == "library":
            values[at] += 1
            expected.append(None)
        else:
            expected.append([values[at]] * PARTS if method in STREAMS else values[at])
    with ThreadPoolExecutor(len(asked)) as readers:
        told = list(readers.map(outcome, asked))
    return [*told, *(float(each.numpy()[0]) for each in buffers)], [*expected, *values]


def outcome(asked: Any) -> Any:
    """Return the parts or the result of a use."""
    if isinstance(asked, atomr_mp.ReplyStream):
        return list(asked)
    result = asked.result()
    if isinstance(result, atomr_mp.GpuRef):
        return float(result.numpy()[0])
    return result


@settings(max_examples=EXAMPLES, deadline=None, phases=NO_SHRINK)
@given(
    uses=st.lists(st.tuples(st.sampled_from(USES), st.integers(0, 1)), min_size=2, max_size=12), ahead=st.integers(1, 4)
)
def test_each_use_has_its_turn_wherever_it_runs(pool: atomr_mp.Pool, uses: list[tuple[str, int]], ahead: int) -> None:
    """No use waits for one that waits for it, every read is whole, and every write counts."""
    told, expected = outcomes(pool, uses, ahead)
    assert told == expected
