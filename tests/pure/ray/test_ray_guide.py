from __future__ import annotations

import re
import textwrap
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_what_the_guide_shows_is_in_the_example() -> None:
    """The example is run by a test, so the guide's code works."""
    example = (ROOT / "examples" / "digits_ray.py").read_text(encoding="utf-8")
    lines = [line.strip() for line in example.splitlines()]
    guide = (ROOT / "docs" / "ray.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```py\n(.*?)^```$", guide, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 2
    for block in blocks:
        wanted = [line.strip() for line in textwrap.dedent(block).splitlines()]
        assert any(lines[at : at + len(wanted)] == wanted for at in range(len(lines))), block
