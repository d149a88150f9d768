from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from soaking.disturbances import schedule


@given(st.text(max_size=5), st.dictionaries(st.sampled_from("abc"), st.floats(0.5, 5.0)), st.floats(0.1, 30.0))
def test_a_seed_decides_all(seed: str, every_s: dict[str, float], duration_s: float) -> None:
    """The same seed gives the same schedule, whatever else there is in it; in order, and within the round."""
    made = schedule(seed, every_s, duration_s)
    assert made == schedule(seed, every_s, duration_s)
    assert made == sorted(made)
    assert all(0 <= each.at_s < duration_s and each.choose(range(3)) in range(3) for each in made)
    for kind, mean_s in every_s.items():
        assert [each for each in made if each.kind == kind] == schedule(seed, {kind: mean_s}, duration_s)
