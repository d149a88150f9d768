"""`scripts/docstrings` finds layout that Sphinx reads as something else, and leaves good docstrings alone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Final

SCRIPT: Final = Path(__file__).parents[3] / "scripts" / "docstrings"

DAMAGED: Final = '''
"""Lists what it has.

- One that goes on
in the next line.
- Another.

1. First, and then
   more.
2. Second, and then
more.
"""


class Table:
    """Entries.

    Args:
        size: Most entries that it
        may have.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        """Of this attribute."""
        """Of another."""

    def add(self, entry: int, *others: int) -> None:
        """Add entries.

        Args:
            entry: The first, which is
            entries: one more.
            *others: More.

        Raises:
            ValueError: There is no
            room.
        """
'''


def findings(file: Path, source: str) -> list[str]:
    """Return what the script says of a file."""
    file.write_text(source, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(file)], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == bool(done.stdout), done.stderr
    return [line.removeprefix(f"{file}:").partition(":")[0] for line in done.stdout.splitlines()]


def test_each_kind_of_damage_is_found_where_it_is(tmp_path: Path) -> None:
    """Lists, entries of classes and functions, and a second docstring of one thing."""
    assert set(findings(tmp_path / "a.py", DAMAGED)) == {"2", "16", "26", "29"}


def test_good_docstrings_are_left_alone(tmp_path: Path) -> None:
    """The same without the damage."""
    mended = DAMAGED.replace("\nin the", "\n  in the").replace("\nmore", "\n   more").replace(' """Of another."""', "")
    for lost in ("may have.", "entries: one", "room."):
        mended = mended.replace(f"    {lost}", f"        {lost}")
    assert findings(tmp_path / "a.py", mended) == []
