from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import Ledger

SCRIPTS = Path(__file__).parents[3] / "scripts"

pytestmark = pytest.mark.at_random


@pytest.fixture(autouse=True)
def as_released(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the programs without checks of our own rules, as users have them: those would move what happens when."""
    monkeypatch.setenv("ATOMR_MP_CHECKS", "0")


@pytest.mark.timeout(240)
def test_random_use_under_kills_loses_nothing(ledger: Ledger) -> None:  # noqa: ARG001 - counts what is left
    """A few seconds of what `scripts/soak` does for hours."""
    command = [sys.executable, str(SCRIPTS / "soak.py"), "--minutes", "0.1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "all is well" in done.stdout


@pytest.mark.timeout(400)
def test_random_use_does_not_notice_that_workers_are_recycled(ledger: Ledger, tmp_path: Path) -> None:  # noqa: ARG001 - as above
    """Seconds of what `scripts/soak --recycle` does for an hour: each worker is replaced in both rounds."""
    figures = tmp_path / "figures.json"
    command = [sys.executable, str(SCRIPTS / "soak.py"), "--minutes", "0.25", "--recycle", "6", "--json", str(figures)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=350, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(figures.read_text(encoding="utf-8"))
    assert found["wrong"] == []
    assert all(count for each in found["recycles_by_round_and_device"] for count in each)


@pytest.mark.timeout(240)
@pytest.mark.parametrize("standby", ["none", "hot"])
def test_kills_from_outside_condemn_no_innocent_request(ledger: Ledger, standby: str, tmp_path: Path) -> None:  # noqa: ARG001 - as above
    """Some seconds of `scripts/chaos --outside`: nothing that a request does ends its worker."""
    figures = tmp_path / "figures.json"
    done = subprocess.run(
        [
            *(sys.executable, str(SCRIPTS / "chaos.py"), "--outside", "--minutes", "0.12", "--seed", "5"),
            *("--standby", standby, "--output", str(figures)),
        ],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(figures.read_text(encoding="utf-8"))["kills_by_kind"]["kill from outside"] >= 5


@pytest.mark.timeout(400)
@pytest.mark.parametrize(("standby", "minutes"), [("none", "0.2"), ("hot", "0.3")])
def test_in_chaos_every_law_holds_and_nothing_leaks(
    ledger: Ledger,  # noqa: ARG001 - as above
    standby: str,
    minutes: str,
    tmp_path: Path,
) -> None:
    """Some of what `scripts/chaos` does: faults at every point, kills, cuts, restarts, reloads, stray writes."""
    figures = tmp_path / "figures.json"
    done = subprocess.run(
        [
            *(sys.executable, str(SCRIPTS / "chaos.py"), "--minutes", minutes, "--seed", "11"),
            *("--standby", standby, "--output", str(figures)),
        ],
        capture_output=True,
        text=True,
        timeout=350,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "all is well" in done.stdout
    counts = json.loads(figures.read_text(encoding="utf-8"))["counts"]
    assert counts["stray write"] + counts["kill after a stray write"] > 0
    assert counts["boards not believed"] > 0
    done_to_it = ("answer under load", "cut of a data connection", "result read late", "writer that failed")
    assert all(counts[what] > 0 for what in done_to_it)
