"""The pages of the documentation and their fenced blocks; tests that run the blocks read them here too."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parents[2]
LIBRARY_PAGES: Final = sorted((ROOT / "docs" / "libraries").glob("*.md"))
PAGES: Final = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md")), *LIBRARY_PAGES]

ACTOR_FILE: Final = re.compile(r"# file: (?P<name>\w+\.py)")
BESIDE: Final = re.compile(r"# runs beside: (?P<command>atomr-mp start .*)")
FENCE: Final = re.compile(r"^```(?P<language>\w*)\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    """A fenced block of a page."""

    language: str
    code: str
    line: int
    """Lines of the page before its first."""

    @property
    def file(self) -> str:
        """The file that the block is to be saved as, empty if none."""
        found = ACTOR_FILE.match(self.code)
        return found["name"] if found else ""

    @property
    def beside(self) -> str:
        """The command that has to run meanwhile, empty if none."""
        found = BESIDE.match(self.code)
        return found["command"] if found else ""


def blocks(path: Path) -> list[Block]:
    """Return a page's fenced blocks."""
    text = path.read_text(encoding="utf-8")
    return [
        Block(found["language"], found["code"], text.count("\n", 0, found.start("code")))
        for found in FENCE.finditer(text)
    ]
