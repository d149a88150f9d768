"""How long a run of `scripts/chaos` is."""

from __future__ import annotations

import pytest
from rich.console import Console

from soaking.chaos import MORE_ROUNDS, OUTSIDE, WANTED, WANTED_OF_REFS, Chaos
from soaking.soak import Shape


def made(*, outside: bool = False, backend: str = "host", kills: int = 0) -> Chaos:
    """Return a run of two rounds of six seconds that has not begun."""
    return Chaos(Console(quiet=True), 12.0, None, 1, Shape(backend=backend), outside=outside, kills=kills)


@pytest.mark.parametrize(
    ("backend", "wanted"), [("host", {**WANTED, **WANTED_OF_REFS}), ("cuda", WANTED)], ids=["refs", "values"]
)
def test_a_run_goes_on_until_it_has_met_what_is_wanted(backend: str, wanted: dict[str, int]) -> None:
    """On a busy machine its clients may do nothing in the first rounds; but it ends, whatever is missing."""
    chaos = made(backend=backend)
    *first, last = wanted
    chaos.counts.update(first)
    assert [chaos.goes_on(number) for number in (0, 1, 2, 1 + MORE_ROUNDS, 2 + MORE_ROUNDS)] == [True] * 4 + [False]
    chaos.counts[last] += 1
    assert [chaos.goes_on(number) for number in (0, 1, 2)] == [True, True, False]


def test_a_run_with_kills_from_outside_has_some() -> None:
    """Five of them, if there are rounds enough."""
    chaos = made(outside=True)
    chaos.counts[OUTSIDE] = 4
    assert chaos.goes_on(2)
    chaos.counts[OUTSIDE] = 5
    assert not chaos.goes_on(2)


def test_a_run_that_counts_kills_ends_with_the_last() -> None:
    """Then nothing else is wanted."""
    chaos = made(kills=3)
    chaos.counts[OUTSIDE] = 2
    assert chaos.goes_on(5)
    chaos.counts[OUTSIDE] = 3
    assert chaos.goes_on(1)
    assert not chaos.goes_on(2)
