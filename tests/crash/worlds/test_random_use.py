"""Random gang calls of overlapping worlds while members and clients are killed, stopped, poisoned and restarted."""

from __future__ import annotations

import pytest

from soaking.worlds import WorldWalk
from tests.worlds import on_host

pytestmark = on_host


@pytest.mark.timeout(240)
def test_each_call_has_one_outcome_and_all_ranks_one_order() -> None:
    """What each rank noted is compared with what callers got."""
    walk = WorldWalk(20.0, 41)
    walk.run()
    assert not walk.wrong, walk.wrong[:10]
    assert walk.counts["sums: answered"] > 100
    assert walk.counts["in batches"] > 100


@pytest.mark.timeout(240)
@pytest.mark.parametrize("standby", ["hot", "none"])
def test_members_that_are_replaced_as_planned_cost_no_call(standby: str) -> None:
    """Not even one that may not run twice, in overlapping worlds."""
    walk = WorldWalk(10.0, 42, standby=standby, planned=True)
    walk.run()
    assert not walk.wrong, walk.wrong[:10]
    assert walk.counts["sums: answered"] > 100
    assert walk.counts["in batches"] > 100
