"""The notation of einsum: which dimensions of operands are the same, and which of them are summed. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from atomr_mp import errors
from atomr_mp.protocol.words import counted

MOST_MODES: Final = 52
"""Names of dimensions: NumPy takes no more."""

ELLIPSIS: Final = "..."
_UNNAMED: Final = 0xE000
"""Labels from here on stand for dimensions without a name, counted from the right."""


class Expression:
    """Subscripts of einsum, read for operands of some shapes.

    Args:
        subscripts: In NumPy's notation.
        shapes: Of the operands.

    Raises:
        InvalidRequest: They cannot be read, or do not fit; the message says where.
    """

    def __init__(self, subscripts: str, shapes: Sequence[tuple[int, ...]]) -> None:
        self._subscripts: Final = subscripts
        inputs, arrow, output = subscripts.replace(" ", "").partition("->")
        terms = inputs.split(",")
        if len(terms) != len(shapes):
            raise self._refused(f"has {counted(len(terms), 'term')} for {counted(len(shapes), 'operand')}")
        self.operands: Final = [self._named(term, len(shape)) for term, shape in zip(terms, shapes, strict=True)]
        """The labels of each operand, one for each dimension."""
        self.lengths: Final = self._lengths(shapes)
        """Length of each label."""
        self.output: Final = self._named(output, None) if arrow else self._implicit()
        """The labels of the result."""

    def _named(self, term: str, dimensions: int | None) -> str:
        """Return a term with a label of its own for each dimension that "..." stands for."""
        letters = term.replace(ELLIPSIS, "", 1)
        if not all(letter.isascii() and letter.isalpha() for letter in letters):
            raise self._refused(f"has the term {term!r}; letters and one '...' may be there")
        unnamed = self._most_unnamed() if dimensions is None else dimensions - len(letters)
        if unnamed < 0 or (unnamed and ELLIPSIS not in term and dimensions is not None):
            raise self._refused(f"has the term {term!r} for an operand with {counted(dimensions or 0, 'dimension')}")
        named = term.replace(ELLIPSIS, "".join(chr(_UNNAMED + at) for at in reversed(range(unnamed))))
        if dimensions is None:
            if len(set(named)) < len(named) or not set(named) <= set(self.lengths):
                raise self._refused(f"has the output {term!r}; it may have each label of the operands once")
            if unnamed and ELLIPSIS not in term:
                raise self._refused(f"has the output {term!r} without '...', which the operands have")
        return named

    def _most_unnamed(self) -> int:
        return sum(ord(label) >= _UNNAMED for label in self.lengths)

    def _lengths(self, shapes: Sequence[tuple[int, ...]]) -> dict[str, int]:
        found: dict[str, int] = {}
        for number, (labels, shape) in enumerate(zip(self.operands, shapes, strict=True)):
            for label, length in zip(labels, shape, strict=True):
                if found.setdefault(label, length) != length:
                    what = f"a dimension of {ELLIPSIS!r}" if ord(label) >= _UNNAMED else f"label {label!r}"
                    raise self._refused(f"gives {what} the length {found[label]}, and {length} in operand {number}")
        if len(found) > MOST_MODES:
            raise self._refused(f"has {len(found)} labels; up to {MOST_MODES} may be there")
        return found

    def _implicit(self) -> str:
        """Return the output of a notation without one: what "..." stands for, then the labels that are there once."""
        everything = "".join(self.operands)
        unnamed = sorted((label for label in self.lengths if ord(label) >= _UNNAMED), reverse=True)
        named = sorted(each for each in self.lengths if ord(each) < _UNNAMED and everything.count(each) == 1)
        return "".join([*unnamed, *named])

    def _refused(self, why: str) -> errors.InvalidRequest:
        return errors.InvalidRequest(f"subscripts is {self._subscripts!r}: it {why}")
