"""Runs the project's own checks of source files."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def findings_of(script: Path, file: Path) -> str:
    """Return what a check says of a file; its exit status has to say whether that is anything."""
    result = subprocess.run(
        [sys.executable, str(script), str(file)], capture_output=True, text=True, check=False, timeout=60
    )
    assert not result.stderr
    assert result.returncode == bool(result.stdout)
    return result.stdout
