from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.support import Ledger

SOAK = Path(__file__).parents[2] / "scripts" / "soak.py"


def test_random_use_under_kills_loses_nothing(ledger: Ledger) -> None:  # noqa: ARG001 - counts what is left
    """A few seconds of what `scripts/soak` does for hours."""
    done = subprocess.run(
        [sys.executable, str(SOAK), "--minutes", "0.1"], capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "all is well" in done.stdout
