"""What `scripts/test-oip` makes of what it finds."""

from __future__ import annotations

import pytest

from oip_clients import perf, theirs

REPORT = """
  Client:
    Request count: 400
    Throughput: 199.793 infer/sec
    Avg latency: 1914 usec (standard deviation 6548 usec)
  Server:
    Inference count: 400
    Execution count: 400
    Successful request count: 400
    Avg request latency: 824 usec (overhead 0 usec + queue 1 usec + compute input 419 usec + compute infer 369 usec + \
compute output 35 usec)
"""


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("", "", ""),
        ("infer 369 usec", "infer 399 usec", "parts of"),
        ("latency: 824", "latency: 2824", "parts of"),
        ("Request count: 400", "Request count: 200", "the client counts 200"),
        ("Execution count: 400", "Execution count: 401", "401 executions"),
        ("Inference count: 400", "Inference count: 399", "399 inferences"),
        ("Server:", "", ""),
        ("queue 1 usec", "", "no figures"),
    ],
)
def test_a_report_is_good_if_its_parts_and_counts_fit(old: str, new: str, why: str) -> None:
    """Each mistake is named."""
    found = perf.judged(REPORT.replace(old, new) if old else REPORT)
    assert why in found
    assert bool(found) == bool(why)


def test_an_outcome_has_to_be_the_table_s() -> None:
    """Whether something is missing, new, fails, or passes that is expected to fail."""
    expected = {"good": "", "gone": "", "fails": "", "passes": "is not offered", "not offered": "is not offered"}
    found = {"good": "", "new": "", "fails": "on purpose", "passes": "", "not offered": "501"}
    assert theirs.compared("it", expected, found) == [
        "it: fails fails: on purpose",
        "it: gone is missing",
        "it: new is in no table",
        "it: passes passes, though it is not offered",
    ]
