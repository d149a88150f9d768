"""Errors in a call's arguments, in the caller's words. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from atomr_mp import errors
from atomr_mp.protocol.words import counted, did_you_mean

OF_CALLS: Final = frozenset({"device", "deadline_s", "priority", "wait"})
"""Options that are given to `pool.call` or `pool.actor`, not to a method."""


def wrong_count(method: str, parameters: Sequence[str], required: int, count: int) -> str:
    """Return the error in the number of arguments by position; empty if nothing is."""
    most = len(parameters)
    if required <= count <= most:
        return ""
    if most == 0:
        takes = "no arguments"
    elif required == most:
        takes = counted(most, "argument")
    elif required == 0:
        takes = f"at most {counted(most, 'argument')}"
    else:
        takes = f"from {required} to {counted(most, 'argument')}"
    return f"{_shown(method, parameters)} takes {takes}, got {count}"


def wrong_names(method: str, parameters: Sequence[str], required: Collection[str], given: Mapping[str, Any]) -> str:
    """Return the error in the names of arguments; empty if nothing is."""
    for name in given:
        if name not in parameters:
            hint = did_you_mean(name, parameters)
            if name in OF_CALLS:
                hint = f"; use pool.actor(name, {name}=) or pool.call(method, {name}=)"
            elif name in {"timeout", "timeout_s"} and not hint:
                hint = "; use pool.actor(name, deadline_s=) for the request, reply.result(timeout_s=) for the waiting"
            return f"{_shown(method, parameters)} has no argument {name}{hint}"
    missing = [name for name in parameters if name in required and name not in given]
    return f"{_shown(method, parameters)} needs {' and '.join(missing)}" if missing else ""


def _shown(method: str, parameters: Sequence[str]) -> str:
    """Return a method as one reads it: "length(word)"."""
    return f"{method.rpartition('.')[2]}({', '.join(parameters)})"


def all_named(method: str, parameters: list[str], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return all arguments of a call by name; `kwargs` itself if these are all."""
    if not args and isinstance(kwargs, dict) and all(map(parameters.__contains__, kwargs)):
        return kwargs
    wrong = wrong_names(method, parameters, (), kwargs)
    if wrong or len(args) > len(parameters):
        raise errors.InvalidRequest(wrong or wrong_count(method, parameters, 0, len(args)))
    by_position = dict(zip(parameters, args, strict=False))
    twice = by_position.keys() & kwargs.keys()
    if twice:
        raise errors.InvalidRequest(f"{method} got {', '.join(sorted(twice))} twice")
    return {**by_position, **kwargs}
