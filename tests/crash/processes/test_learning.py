"""msgspec's types are learned by one thread at a time: two at once end a process by SIGSEGV."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Final

PROGRAM: Final = Path(__file__).parents[2] / "programs" / "learning.py"


def test_threads_may_have_their_first_messages_at_the_same_moment() -> None:
    """Of several channels, beside the first check of a request; without the lock one child in twenty dies."""
    result = subprocess.run(
        [sys.executable, str(PROGRAM), "150"], capture_output=True, text=True, check=True, timeout=100
    )
    assert result.stdout == ""
