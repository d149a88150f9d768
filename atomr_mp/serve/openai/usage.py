"""Usage: the tokens that a method has counted, in the words of each form. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from atomr_mp import errors

COUNTS: Final = ("prompt_tokens", "completion_tokens", "total_tokens")

DETAILS: Final = ("prompt_tokens_details", "completion_tokens_details")

UNKNOWN: Final[dict[str, Any]] = dict.fromkeys(COUNTS, 0)
"""Usage of a method that counts no tokens: clients insist on the field."""


def checked(given: object) -> dict[str, Any]:
    """Return the usage that a method tells, complete.

    Raises:
        Unsupported: It has another form.
    """
    if not isinstance(given, dict):
        raise _wrong(f"it is a {type(given).__name__}")
    for name, value in given.items():
        if name in DETAILS:
            if not isinstance(value, dict) or not all(map(_is_count, value.values())):
                raise _wrong(f"{name} is no map of numbers")
        elif name not in COUNTS:
            raise _wrong(f"it has {name!r}")
        elif not _is_count(value):
            raise _wrong(f"{name} is {value!r}")
    prompt, completion = given.get("prompt_tokens", 0), given.get("completion_tokens", 0)
    return {**UNKNOWN, "total_tokens": prompt + completion, **given}


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _wrong(why: str) -> errors.Unsupported:
    names = ", ".join((*COUNTS, *DETAILS))
    return errors.Unsupported(
        f"the method's usage is not a map of numbers of tokens: {why}; it may have {names}", maybe_executed=True
    )


def total(several: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Return the usage of several calls together, without details unless there is one call."""
    all_of_them = list(several)
    if len(all_of_them) == 1:
        return all_of_them[0]
    return {name: sum(each[name] for each in all_of_them) for name in COUNTS}


def as_response(usage: dict[str, Any]) -> dict[str, Any]:
    """Return usage in the words of responses."""
    prompt, completion = (usage.get(name, {}) for name in DETAILS)
    return {
        "input_tokens": usage["prompt_tokens"],
        "input_tokens_details": {
            "cached_tokens": prompt.get("cached_tokens", 0),
            "cache_write_tokens": prompt.get("cache_write_tokens", 0),
        },
        "output_tokens": usage["completion_tokens"],
        "output_tokens_details": {"reasoning_tokens": completion.get("reasoning_tokens", 0)},
        "total_tokens": usage["total_tokens"],
    }
