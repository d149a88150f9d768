"""Outcomes as values, to pass through Ray: an error that is raised through Ray loses its facts. Pure."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

from atomr_mp import errors
from atomr_mp.protocol.exceptions import describe

Outcome = dict[str, Any]
"""Either {"value": ...}, or {"error": (code, message, fields)}."""


async def outcome(awaitable: Awaitable[Any]) -> Outcome:
    """Return an awaitable's outcome as a value. A foreign error becomes a ConfigurationError.

    Raised through Ray, it would count as the end of Ray's actor, and be tried again and again.
    """
    try:
        return {"value": await awaitable}
    except errors.AtomrError as error:
        return {"error": errors.to_wire(error)}
    except Exception as error:  # noqa: BLE001 - whoever has asked is to hear it
        return {"error": errors.to_wire(errors.ConfigurationError(describe(error)))}


def value_of(found: Outcome) -> Any:
    """Return an outcome's value.

    Raises:
        AtomrError: The outcome is an error, with all of its facts.
    """
    if "error" in found:
        raise errors.from_wire(*found["error"])
    return found["value"]
