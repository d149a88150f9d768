"""Words of messages for a person: numbers with their nouns, and what a misspelt name may mean. Pure."""

from __future__ import annotations

from collections.abc import Iterable


def counted(count: int, noun: str, several: str = "") -> str:
    """Return "1 device", "2 devices".

    Args:
        count: How many.
        noun: What, if it is one.
        several: What, if it is not one; by default the noun with an s.
    """
    return f"{count:,} {noun if count == 1 else several or noun + 's'}"


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return "; did you mean NAME?", or nothing if no known name is like this one."""
    import difflib  # late: only a mistake needs it

    by_lower = {each.lower(): each for each in known}
    begun = [each for each in by_lower if len(name) > 2 and each.startswith(name.lower())]
    found = begun or difflib.get_close_matches(name.lower(), by_lower, n=1)
    return f"; did you mean {by_lower[found[0]]}?" if found else ""
