"""The progress of a map where no terminal is."""

from __future__ import annotations

import pytest

from atomr_mp import errors
from atomr_mp.cli.common import Parser
from atomr_mp.cli.map import _drop_advice, _Report
from atomr_mp.cli.map_progress import line, lines
from atomr_mp.mapping.run import Progress
from tests.support import settled


def test_a_line_comes_now_and_then_even_if_nothing_is_done(capsys: pytest.CaptureFixture[str]) -> None:
    """The same progress is printed again: whoever reads the log sees that the command lives."""
    told: list[str] = []

    def twice() -> bool:
        told.extend(capsys.readouterr().err.splitlines())
        return len(told) >= 2

    with lines(1000, every_s=0.01) as show:
        show(Progress(250, 2, 64, 0, 1))
        assert settled(twice)
    assert all(each.startswith("atomr-mp: 250 of 1,000 items (25%), ") for each in told)
    assert "2 failed, 1 restart, about" in told[0]
    assert not [each for each in told if "sent again" in each]


@pytest.mark.parametrize(
    ("progress", "total", "said"),
    [
        (Progress(30, 0, 5, 0, 0), 100, "30 of 100 items (30%), 3.0/s, about 23.3 s left"),
        (Progress(30, 0, 5, 4, 0, recorded=10), None, "30 items, 2.0/s, 4 sent again"),
        (Progress(0, 0, 5, 0, 0), 100, "0 of 100 items (0%), 0.0/s"),
        (Progress(0, 0, 0, 0, 0), 0, "0 of 0 items, 0.0/s"),
    ],
)
def test_a_line_has_what_is_known(progress: Progress, total: int | None, said: str) -> None:
    """The rate is that of this run, without what a journal had."""
    assert line(progress, total, 10.0) == said


def test_places_are_counted_as_editors_and_numpy_do() -> None:
    """Lines from 1, rows from 0."""
    for place, said in (("line", "line 4"), ("row", "row 3")):
        report = _Report(place)  # type: ignore[arg-type]
        report.failed(3, "actor_failed", "no")
        assert report._shown == [f"atomr-mp: {said} failed: actor_failed: no"]


def test_a_pool_that_has_ended_is_not_advised_about() -> None:
    """No operator can admit a request there; with a journal, the next run can."""
    for journal, said in ((None, ""), ("j", "; --retry-failed tries it again")):
        error = errors.PoisonRequest("until (`atomr-mp admit ab`)", method="A.b", ends=2, fingerprint="ab")
        options = Parser().parse_args([])
        options.journal = journal
        _drop_advice(error, options)
        assert error.message.endswith(f"has ended 2 workers, at last when nothing else ran there{said}")
