"""examples/digits_triton.py: Triton's own clients get all digits, though workers are killed under them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

pytest.importorskip("tritonclient.http")

EXAMPLE: Final = Path(__file__).parents[3] / "examples" / "digits_triton.py"
PROGRAM_S: Final = 100.0
"""How long the program may take, on a busy machine."""


def test_no_request_fails_though_workers_are_killed() -> None:
    """The program compares each digit with its own network's."""
    command = [sys.executable, str(EXAMPLE), "--kills", "3"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=PROGRAM_S, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "3 workers killed under 4 clients" in ran.stdout
    assert "0 of them wrong, 0 failed" in ran.stdout
    assert ran.stderr.count("ended: killed by SIGKILL") == 3
