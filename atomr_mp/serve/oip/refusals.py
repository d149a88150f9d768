"""Errors as Triton tells them: a status of few, and a body with a text alone. Pure.

503 is for what certainly did not run, as everywhere here, so that whoever repeats it does no harm.
"""

from __future__ import annotations

from typing import Final

import msgspec

from atomr_mp import errors
from atomr_mp.serve import problems
from atomr_mp.serve.problems import Problem

PATH: Final = "/v2"
"""Begins the paths whose errors are in this form."""

STATUSES: Final[dict[int, int]] = {422: 400, 429: 503}
"""Statuses of Triton's by ours, where they differ."""


def status_of(error: errors.AtomrError | Problem, *, sent: bool = False) -> int:
    """Return the status of the answer to a request that ended with an error."""
    status = problems.status_of(error, sent=sent)
    if status == 504 and not problems.may_have_run(error, sent=sent):
        return 503  # as Triton answers what has waited too long
    return STATUSES.get(status, status)


def text_of(error: errors.AtomrError | Problem, parts: int = 0) -> str:
    """Return the text of an error for its answer.

    Args:
        error: The error.
        parts: How many responses to the request came before it.
    """
    text = str(error)
    if isinstance(error, errors.PoisonRequest):
        text += f" (fingerprint {error.fingerprint})"
    if parts:
        text = f"after {parts} {'response' if parts == 1 else 'responses'}: {text}"
    return text or error.code


def body_of(error: errors.AtomrError | Problem, request_id: str, *, debug: bool, sent: bool = False) -> bytes:  # noqa: ARG001 - the form of all groups
    """Return the body of an answer for an error, JSON."""
    return end_of(error, 0)


def end_of(error: errors.AtomrError | Problem, parts: int) -> bytes:
    """Return the end of a stream of answers by an error, JSON; see `text_of`."""
    return msgspec.json.encode({"error": text_of(error, parts)})
