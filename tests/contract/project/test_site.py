"""The documentation as a site."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.timeout(660)
def test_the_site_builds_without_a_warning_and_has_the_reference(tmp_path: Path) -> None:
    """All links lead somewhere, all docstrings of the reference are well-formed, and the search knows them."""
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-c", "docs/site", "docs", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr
    assert "GpuRefStale" in (tmp_path / "made/errors.html").read_text(encoding="utf-8")
    assert "searchindex.js" in {path.name for path in tmp_path.iterdir()}
