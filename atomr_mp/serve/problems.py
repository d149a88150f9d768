"""Errors as answers: one table from error to status, and one form of the body. Pure.

429 and 503 are only for requests that certainly did not run: proxies and clients send a request again after them.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from atomr_mp import checks, errors
from atomr_mp.protocol.codec import TRACEBACKS

Header = tuple[bytes, bytes]

RETRY_AFTER: Final = b"retry-after"

PRIVATE_FACTS: Final = TRACEBACKS | {"message", "maybe_executed"}
"""Fields of errors that are not facts, or that only `debug` shows."""

STATUSES: Final[dict[str, int]] = {
    errors.InvalidRequest.code: 422,
    errors.PoisonRequest.code: 422,
    errors.Unsupported.code: 422,
    errors.NumericalError.code: 422,
    errors.CompilationFailed.code: 422,
    errors.KernelsForbidden.code: 422,
    errors.Overloaded.code: 429,
    errors.DeviceUnavailable.code: 503,
    errors.PoolUnreachable.code: 503,
    errors.PoolLost.code: 503,
    errors.WorkerLost.code: 503,
    errors.WorkerHung.code: 503,
    errors.ConnectionLost.code: 503,
    errors.CollectiveAborted.code: 503,
    errors.ContextPoisoned.code: 503,
    errors.StaleGeneration.code: 503,
    errors.Cancelled.code: 503,
    errors.DeadlineExceeded.code: 504,
}
"""Status by an error's code; 500 for any other. See `ONLY_BEFORE`."""

REPEATED: Final = frozenset({429, 503})
"""Statuses after which whoever gets them sends the request again, so that they promise that nothing ran."""

ONLY_BEFORE: Final = frozenset(
    {code for code, status in STATUSES.items() if status in REPEATED} | {errors.Unsupported.code}
)
"""Errors whose status says that nothing ran; where something may have, the status is 500."""

CLOSE: Final[Header] = (b"connection", b"close")


def lines_of(headers: Iterable[Header]) -> bytes:
    """Return headers as lines of an answer's head."""
    return b"".join([b"%b: %b\r\n" % header for header in headers])


NO_RETRY: Final[Header] = (b"x-should-retry", b"false")

RETRY_AFTER_S: Final = 1
"""The value of `Retry-After` if the error has no better one."""


@dataclass(eq=False)
class Problem(Exception):
    """A refusal by the front end itself, or the end that it puts to a stream.

    Args:
        status: The answer's status.
        code: The kind of the problem, for programs.
        message: The problem and its remedy, for a person.
        headers: Headers to add to the answer's own.
        facts: Facts for programs.
        close: Whether to close the connection after the answer, since the rest of the request is not read.
        maybe_executed: Whether a call was made, as of a stream that the front end ends; never with a status in
            `REPEATED`.
    """

    status: int
    code: str
    message: str
    headers: Sequence[Header] = ()
    facts: dict[str, Any] = field(default_factory=dict)
    close: bool = False
    maybe_executed: bool = False

    def __post_init__(self) -> None:
        super().__init__(self.message)
        if checks.ON and self.maybe_executed and self.status in REPEATED:
            raise checks.BrokenRuleError(f"status {self.status} ({self.code}) is not for what may have run")


class ClientLeft(Exception):
    """The client has closed its connection, and takes no answer.

    Args:
        answer: What the connection has answered already, to a body that it refused.
    """

    def __init__(self, answer: Problem | None = None) -> None:
        super().__init__()
        self.answer: Final = answer


def may_have_run(error: errors.AtomrError | Problem, *, sent: bool) -> bool:
    """Return whether the request that ended with an error may have run.

    Args:
        error: The error.
        sent: Whether the pool had the request. Errors that are not of requests do not say whether it ran, and a method
            may raise them, too.
    """
    told: bool | None = getattr(error, "maybe_executed", None)
    return sent if told is None else told


def status_of(error: errors.AtomrError | Problem, *, sent: bool = False) -> int:
    """Return the status of the answer to a request that ended with an error; see `may_have_run`."""
    if isinstance(error, Problem):
        return error.status
    status = STATUSES.get(error.code, 500)
    return 500 if error.code in ONLY_BEFORE and may_have_run(error, sent=sent) else status


def headers_of(error: errors.AtomrError | Problem, status: int, *, sent: bool = False) -> list[Header]:
    """Return the headers that go with an error and the status of its answer: when to try again, or not to."""
    if isinstance(error, Problem):
        headers = [*error.headers, CLOSE] if error.close else list(error.headers)
    elif status in REPEATED:
        headers = [retry_after(getattr(error, "retry_after_s", 0.0))]
    else:
        headers = []
    # OpenAI's clients repeat a request after a 500 unless they are told not to.
    return [*headers, NO_RETRY] if may_have_run(error, sent=sent) else headers


def retry_after(seconds: float) -> Header:
    """Return the header that says when to try again; HTTP has whole seconds only."""
    whole = math.ceil(seconds) if 0 < seconds < 1e6 else RETRY_AFTER_S
    return RETRY_AFTER, str(max(whole, RETRY_AFTER_S)).encode()


def describe(error: errors.AtomrError | Problem, request_id: str, *, debug: bool, sent: bool = False) -> dict[str, Any]:
    """Return an error as the value of `error` in an answer's body, or in a stream's last event.

    Args:
        error: The error.
        request_id: The request's id.
        debug: Whether to show the traceback.
        sent: Whether the pool had the request.
    """
    if isinstance(error, Problem):
        facts: dict[str, Any] = dict(error.facts)
        waits = [float(value) for name, value in error.headers if name == RETRY_AFTER]
        if waits:
            facts["retry_after_s"] = waits[0]
    else:
        names = [each.name for each in dataclasses.fields(error)]
        facts = {name: getattr(error, name) for name in names if name not in PRIVATE_FACTS}
        facts.pop("rank", None)
        if error.rank >= 0:  # else it is of no rank
            facts["rank"] = error.rank
        if debug:
            facts |= {name: getattr(error, name) for name in names if name in TRACEBACKS}
    return {
        "code": error.code,
        "message": str(error),
        "type": error.code,  # where OpenAI's clients look
        "facts": facts,
        "maybe_executed": may_have_run(error, sent=sent),
        "request_id": request_id,
    }


def body_of(error: errors.AtomrError | Problem, request_id: str, *, debug: bool, sent: bool = False) -> bytes:
    """Return the body of an answer, JSON; see `describe`."""
    return encode_error(describe(error, request_id, debug=debug, sent=sent))


def encode_error(told: dict[str, Any]) -> bytes:
    """Return the body of an answer for an error that is described, JSON."""
    return _encode({"error": told})


def _plain(value: object) -> object:
    """Return a fact in a form that JSON has, even if it breaks its annotation."""
    return repr(value)


_encode: Final = msgspec.json.Encoder(enc_hook=_plain).encode
