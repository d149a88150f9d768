"""examples/tally.py: state of a world is right after each rank was killed, and in a new pool."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Final

from tests.worlds import on_host

EXAMPLE: Final = Path(__file__).parents[3] / "examples" / "tally.py"
PROGRAM_S: Final = 120.0
"""How long the program may take, on a busy machine."""

pytestmark = on_host


def test_no_change_is_lost_or_made_twice_though_ranks_are_killed() -> None:
    """Copies come from the other rank, parts from files; the program also sends each change again."""
    ran = subprocess.run([sys.executable, EXAMPLE], capture_output=True, text=True, timeout=PROGRAM_S, check=True)
    assert ran.stdout.splitlines() == [
        "copies, two ranks killed: [1.0, 2.0, 3.0, 4.0]",
        "parts, two ranks killed: [1.0, 2.0, 3.0, 4.0]",
        "parts, in a new pool: [5.0, 6.0, 7.0, 8.0]",
    ]
