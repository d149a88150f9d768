"""An actor whose devices load at a gate, with a method of each kind whose declaration matters to its callers."""

from __future__ import annotations

import os
from collections.abc import Generator
from typing import Any

from atomr_mp_workers import Actor, Batch, Context, method
from tests.actors.probe import arrive

OWN_DEADLINE_S = 47.0
"""Unlike the one that callers have by default."""


class Loading(Actor):
    """Waits in `setup` at the gate "load" of its ledger."""

    def setup(self, _context: Context) -> None:
        """Wait."""
        arrive(f"{os.environ['ATOMR_MP_TEST']}/load")

    @method(idempotent=True, deadline_s=OWN_DEADLINE_S)
    def add(self, left: int, right: int = 0) -> int:
        """Return a sum."""
        return left + right

    @method(idempotent=True, batch=Batch(max_items=8))
    def square(self, n: list[int]) -> list[int]:
        """Return squares."""
        return [x * x for x in n]

    @method(thread=True, resumable=True, deadline_s=OWN_DEADLINE_S)
    def count(self, upto: int, first: int = 0, start: int = 0) -> Generator[int, None, int]:
        """Stream numbers, and return how many in all."""
        yield from range(first + start, upto)
        return upto

    @method(idempotent=True)
    def given(self, value: Any) -> str:
        """Return what was given, as text."""
        return text_of(value)

    @method(thread=True)
    def told(self, value: Any) -> Generator[str, None, str]:
        """Stream what was given, as text, and return it."""
        yield text_of(value)
        return text_of(value)


def text_of(value: Any) -> str:
    """Return numbers, lists and maps of them, and the sum of arrays, as text."""
    if isinstance(value, dict):
        return ", ".join(f"{name}: {text_of(each)}" for name, each in sorted(value.items()))
    if isinstance(value, list):
        return f"[{', '.join(map(text_of, value))}]"
    return f"{float(value.sum() if hasattr(value, 'sum') else value):g}"
