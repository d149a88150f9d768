"""Errors in OpenAI's form, which names the field that is wrong as `param`. Pure."""

from __future__ import annotations

from typing import Any, Final

from atomr_mp import errors
from atomr_mp.serve import problems
from atomr_mp.serve.problems import Problem

PATH: Final = "/v1/"
"""Begins the paths whose errors are in this form."""

MOST_SHOWN: Final = 100
"""Most characters of a client's own value that a message repeats."""


def refusal(param: str, code: str, message: str, *, ran: bool = False) -> Problem:
    """Return the refusal of a request for one of its fields.

    Args:
        param: The field, as "messages" or "input[0].content".
        code: The kind of the mistake, one of those that OpenAI has.
        message: The mistake and its remedy.
        ran: Whether it showed only when a method had run.
    """
    return Problem(400, code, message, facts={"param": param}, maybe_executed=ran)


def missing(param: str, message: str) -> Problem:
    """Return the refusal of a request that lacks a field."""
    return refusal(param, "missing_required_parameter", message)


def wrong_type(param: str, message: str) -> Problem:
    """Return the refusal of a value of a wrong kind."""
    return refusal(param, "invalid_type", message)


def shown(value: object) -> str:
    """Return a client's value for a message, cut if it is long."""
    text = repr(value)
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}…"


def status_of(error: errors.AtomrError | Problem, *, sent: bool = False) -> int:
    """Return OpenAI's status for an error: a request that is wrong in any way is 400 there."""
    status = problems.status_of(error, sent=sent)
    return 400 if status == 422 else status


def describe(error: errors.AtomrError | Problem, request_id: str, *, debug: bool, sent: bool = False) -> dict[str, Any]:
    """Return an error as the value of `error`: OpenAI's fields, and ours beside them; see `problems.describe`."""
    told = problems.describe(error, request_id, debug=debug, sent=sent)
    status = status_of(error, sent=sent)
    return told | {"type": _type(status), "param": told["facts"].get("param")}


def body_of(error: errors.AtomrError | Problem, request_id: str, *, debug: bool, sent: bool = False) -> bytes:
    """Return the body of an answer, JSON; see `describe`."""
    return problems.encode_error(describe(error, request_id, debug=debug, sent=sent))


def _type(status: int) -> str:
    if status == 429:
        return "rate_limit_error"
    return "invalid_request_error" if status < 500 else "server_error"
