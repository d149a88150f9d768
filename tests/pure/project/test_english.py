"""`scripts/english` finds phrases that have to be read twice, and leaves good sentences alone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

SCRIPT: Final = Path(__file__).parents[3] / "scripts" / "english"


def run(file: Path) -> subprocess.CompletedProcess[str]:
    """Return what the script says of a file."""
    return subprocess.run(
        [sys.executable, str(SCRIPT), str(file)], capture_output=True, text=True, check=False, timeout=30
    )


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.py", '"""A process of\nwhich nothing runs."""\n'),
        ("a.py", "X = 1  # Take note that it is one.\n# and more\n"),
        ("a.py", "def f() -> str:\n    return f'{1} says what is to be done'\n"),
        ("a.py", 'def f() -> int:\n    """Return what is left."""\n    return 1\n'),
        ("a.py", 'X = 1\n"""Of the file."""\n'),
        ("a.py", '"""Counts. Not to be called with\nthe lock held."""\n'),
        ("a.py", '"""Says what becomes of a call."""\n'),
        ("a.py", 'X = 1\n"""Called once nobody waits for it\nany more."""\n'),
        ("a.md", "# A page\n\n- one\n- Likewise.\n"),
        ("a.md", "| What | Where |\n|---|---|\n| Whose it is | here |\n"),
    ],
)
def test_a_bad_phrase_is_found_with_its_line(tmp_path: Path, name: str, text: str) -> None:
    """It may be in docstrings, comments, texts with values, pages and tables, and go across lines."""
    file = tmp_path / name
    file.write_text(text, encoding="utf-8")
    result = run(file)
    assert result.returncode == 1, result.stdout
    assert result.stdout.startswith(f"{file}:")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.py", '"""Return two workers, each of which runs; None if there is none."""\n'),
        ("a.py", '"""Return one. Of two with the same age, the first is taken."""\n'),
        ("a.py", '"""Return one.\n\nNobody waits for it any more.\n"""\n'),
        ("a.md", "# A page\n\n```python\n# of which nothing is looked at\n```\n\nWhose turn is it?\n"),
    ],
)
def test_good_sentences_and_code_on_pages_are_left_alone(tmp_path: Path, name: str, text: str) -> None:
    """A check that cries wolf is switched off."""
    file = tmp_path / name
    file.write_text(text, encoding="utf-8")
    result = run(file)
    assert result.returncode == 0, result.stdout
