"""`scripts/regexes` finds expressions that some text makes slow, and leaves the others alone."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from tests.pure.project.linting import findings_of

SCRIPT: Final = Path(__file__).parents[3] / "scripts" / "regexes"

EXPONENTIAL: Final = {
    "a header of an .npy file, which once held a server up": (
        r"""re.compile(r"'shape':\s*\(((?:\s*\d{1,18}L?\s*,?)*)\)")"""
    ),
    "a repeat in a repeat": "re.compile('(?:a+)+$')",
    "of bytes": "re.compile(rb'(?:[a-f0-9]+,?)*;')",
    "that may be empty": "re.compile('(?:a*)*$')",
    "that is bounded": "re.compile('(?:a{1,9})+$')",
    "that is hardly bounded": "re.compile('(?:a{1,2})+$')",
    "branches that begin alike": "re.compile('(?:aa|a)+$')",
    "branches that are sets": "re.compile(r'(?:\\w-|\\d-)+$')",
    "letters of any case": "re.compile('(?:ab|AB)+$', re.IGNORECASE)",
    "the same group again": "re.compile('(a+)(?:b|\\\\1)+$')",
    "in a look ahead": "re.compile('(?=(?:a+)+b)a')",
    "in an atomic group": "re.compile('(?>(?:a+)+b)')",
    "in what is possessive": "re.compile('(?:(?:a+)+b)*+')",
    "of constants": "re.compile(f'{WORD}+{END}' + END)",
}
QUADRATIC: Final = {
    "neighbours alike": "re.match(r'\\d+\\d*$', text)",
    "neighbours that overlap": "re.match(r'\\d+.*?x', text)",
    "with a text between them that both read": "re.match(r'.*, .*, x', text)",
    "what is searched for": "re.search(r'\\s+$', text)",
    "what is replaced": "re.sub(r'<.*?>', '', text)",
    "what is searched for by a name": "FOUND = re.compile('a+b')\nFOUND.search(text)",
}
GOOD: Final = {
    "possessive": "re.match(r'\\d++\\d*+x', text)",
    "atomic": "re.search(r'(?>\\d+)x', text)",
    "possessive in a repeat": "re.compile('(?:a++)+$')",
    "with a mark between repeats": "re.compile(r'(?:\\d+,)*\\d+$')",
    "with a mark at the end of each": "re.compile(r' +(?:\\| +)*x$')",
    "branches apart": "re.compile(r'(?:\\d+,|[a-z]+,)*$')",
    "of one length": "re.compile('(?:[0-9a-f]{16})+$')",
    "bounded": "re.match(r'\\d{1,18}\\d{0,18}x', text)",
    "that ends wherever it is": "re.findall(r'\\w+', text)",
    "a flag that makes letters differ": "re.compile('(?:ab|AB)+$')",
    "with a reason": "re.compile('(?:a+)+$')  # backtracks: our own text",
}


def findings(file: Path, expression: str) -> str:
    """Return what the script says of an expression."""
    file.write_text(f"import re\n\nWORD = '(?:a+)'\nEND = '$'\n\n{expression}\n", encoding="utf-8")
    return findings_of(SCRIPT, file)


@pytest.mark.parametrize("what", EXPONENTIAL)
def test_what_doubles_with_each_character_is_found(tmp_path: Path, what: str) -> None:
    """So forty bytes of a client hold no server up for a day."""
    found = findings(tmp_path / "a.py", EXPONENTIAL[what])
    assert found.startswith(f"{tmp_path / 'a.py'}:6: ")
    assert "exponential" in found


@pytest.mark.parametrize("what", QUADRATIC)
def test_what_grows_with_the_square_of_a_text_is_found(tmp_path: Path, what: str) -> None:
    """So a megabyte holds no server up for an hour."""
    assert "quadratic" in findings(tmp_path / "a.py", QUADRATIC[what])


@pytest.mark.parametrize("what", GOOD)
def test_what_grows_with_the_text_alone_is_left_alone(tmp_path: Path, what: str) -> None:
    """Possessive quantifiers, atomic groups, marks and bounds are the ways to mend an expression."""
    assert not findings(tmp_path / "a.py", GOOD[what])


def test_what_cannot_be_checked_is_found(tmp_path: Path) -> None:
    """An expression of a module is made of the constants there."""
    assert "cannot be checked" in findings(tmp_path / "a.py", "re.compile(text)")
