"""Retry policy for requests that are lost with a worker: sent again, sent alone, or failed. Pure.

A request may be sent again if its method is idempotent, or if its method says so and the request certainly did not
start. Its arguments must still be there: values, and arrays in the client's own memory; a ref is gone with its worker.
A request that ran when the worker ended is a suspect: the supervisor gets its fingerprint, and gives the verdict.
A call of an actor's method with refs has no fingerprint, so it is never a suspect. Parts of a world's call have the
call's own.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

import msgspec

from atomr_mp import errors
from atomr_mp.client.fingerprint import fingerprint, is_of_library
from atomr_mp.client.reply import ItemsReply, Reply, StreamReply
from atomr_mp.protocol import values
from atomr_mp.protocol.declaration.arguments import declared
from atomr_mp.protocol.messages.devices import MethodInfo, Resend, Resumes
from atomr_mp.protocol.messages.session import IncarnationEnded
from atomr_mp.protocol.messages.suspects import RequestKey, Suspicion, Verdict
from atomr_mp.protocol.refs import ClientArray, PassedRef, WireRef

NEVER: Final = 2**31
"""`Reply.replays` of a request that is never sent again."""


class Lost(NamedTuple):
    """A request on an ended incarnation, without the supervisor's verdict so far."""

    report: int
    """Number of the report whose answer it waits for; 0 if it waits for none."""
    error: errors.RequestError
    """The error that it ends with if it is not sent again."""
    suspect: RequestKey | None
    """Its identity, if it is a suspect."""
    again: bool
    """Whether it may be sent again."""


class LossVerdict(NamedTuple):
    """The fate of an unanswered request at an incarnation's end."""

    maybe_executed: bool
    was_running: bool
    """It may have been running at the end."""
    moves_on: bool
    """It goes to the next incarnation: this one is leaving, and has not started it."""


class EndFacts:
    """The facts of an incarnation's end, looked up by request.

    Args:
        ended: The supervisor's message.
    """

    def __init__(self, ended: IncarnationEnded) -> None:
        self._started = frozenset(ended.started)
        self._running = frozenset(ended.running)
        self._known_since_ns = ended.known_since_ns
        self._planned = ended.planned

    def fate(self, request_id: int, sent_ns: int) -> LossVerdict:
        """Return the fate of a request; `sent_ns` is by CLOCK_MONOTONIC."""
        started = request_id in self._started
        forgotten = sent_ns <= self._known_since_ns
        maybe_executed = started or forgotten
        running = request_id in self._running or (forgotten and not started)
        return LossVerdict(maybe_executed, running, self._planned and not maybe_executed)

    def may_be_answered(self, request_id: int, sent_ns: int) -> bool:
        """Return whether the answer to a request may be on its way, though the worker has stopped."""
        ended = request_id in self._started and request_id not in self._running
        return ended or sent_ns <= self._known_since_ns


class KnownSuspicions:
    """The verdicts on requests that this client knows.

    Args:
        known: The verdicts when the client connected.
    """

    def __init__(self, known: Iterable[Suspicion]) -> None:
        self.methods: dict[str, dict[bytes, Suspicion]] = {}
        """Verdicts by method and fingerprint. Calls of other methods need not be looked up."""
        self.take(known)

    def take(self, changed: Iterable[Suspicion]) -> None:
        """Take in changed verdicts."""
        for each in changed:
            method, digest = each.request.method, each.request.fingerprint
            # The dicts are replaced, not changed, since other threads read them meanwhile.
            found = {**self.methods.get(method, {}), digest: each}
            if each.verdict is Verdict.CLEARED:
                del found[digest]
            methods = {**self.methods, method: found}
            if not found:
                del methods[method]
            self.methods = methods

    def admit(self, request: RequestKey | None) -> RequestKey | None:
        """Look up a call whose method has a verdict; return its key if it has to run alone.

        Raises:
            PoisonRequest: It is not admitted.
        """
        found = None if request is None else self.of(request)
        if found is not None and found.verdict is Verdict.QUARANTINED:
            raise poison(found, maybe_executed=False)
        return None if found is None else request

    def of(self, request: RequestKey) -> Suspicion | None:
        """Return the verdict on a request, None if there is none."""
        return self.methods.get(request.method, {}).get(request.fingerprint)

    def refuses(self, request: RequestKey) -> bool:
        """Whether a request is in quarantine."""
        found = self.of(request)
        return found is not None and found.verdict is Verdict.QUARANTINED


def poison(found: Suspicion, *, maybe_executed: bool) -> errors.PoisonRequest:
    """Return the error of a request in quarantine."""
    request = found.request
    return errors.PoisonRequest(
        f"{request.method} with these arguments has ended {found.ends} worker{'' if found.ends == 1 else 's'}, at last "
        "when nothing else ran there; it is refused until the actors are reloaded, or an operator lets it in "
        f"(`atomr-mp admit {request.fingerprint.hex()}`)",
        fingerprint=request.fingerprint.hex(),
        method=request.method,
        ends=found.ends,
        maybe_executed=maybe_executed,
    )


def may_replay(reply: Reply, info: MethodInfo | None, max_replays: int) -> bool:
    """Return whether a request that was lost with its worker may be sent again; its `replays` count that end."""
    if max_replays == 0 or info is None or reply.refs or reply.replays > max_replays:
        return False
    if isinstance(reply, StreamReply) and (reply.credit.received or reply.resumes is not Resumes.NEVER):
        return reply.resumes is not Resumes.NEVER  # else it would begin anew
    return info.idempotent or (info.resend is Resend.UNSTARTED and not reply.may_have_run)


def may_write(method: str, info: MethodInfo | None) -> bool:
    """Return whether a request may write memory of the refs among its arguments.

    Args:
        method: "Actor.method".
        info: The method, if it is an actor's; None for a library's.
    """
    if info is not None:
        return info.writes
    from atomr_mp.protocol.libraries import LIBRARIES, requests_of  # late: seldom needed

    library, _, name = method.partition(".")
    if library not in LIBRARIES or library == "program":  # its definition says what it writes
        return True
    request = requests_of(library).get(name)
    return request is None or _declares_writes(request)


def _declares_writes(struct: type[msgspec.Struct]) -> bool:
    fields = declared(struct)
    arrays = (*fields.arrays.values(), *fields.lists.values())
    return any(each.writes for each in arrays) or any(map(_declares_writes, fields.structs.values()))


def key_of(method: str, arguments: object) -> RequestKey | None:
    """Return the identity of a request, None if it has none.

    Raises:
        InvalidRequest: The arguments cannot be sent.
    """
    digest = fingerprint(method, arguments)
    return None if digest is None else RequestKey(method, digest)


def identify(reply: Reply) -> RequestKey | None:
    """Return the identity of an unanswered request, None if it has none."""
    if reply.items or (reply.refs and not is_of_library(reply.method)):
        return None
    placed = {each.id: each for each in reply.copies}

    def resolve(wire: WireRef | ClientArray) -> object:
        return PassedRef(wire) if isinstance(wire, WireRef) else placed[wire.id].array

    try:
        return key_of(reply.method, values.Decoder[Any](writable=False).decode(reply.body, reply.payload, resolve))
    except errors.InvalidRequest:  # its worker has answered so, or would have
        return None


def identify_items(reply: ItemsReply) -> list[RequestKey]:
    """Return the identity of each unanswered item of a call; items are sent again one by one."""
    try:
        items = values.Decoder[Any](writable=False).decode(reply.body, reply.payload)
        keys = [key_of(reply.method, items[place]) for place in sorted(reply.open)]
    except errors.InvalidRequest:  # the call has had its outcome, and has let go of its arrays
        return []
    return [key for key in keys if key is not None]


def was_answered(reply: Reply) -> bool:
    """Return whether a request's answer comes from its worker, which goes on.

    A refusal of a request with refs does not count: their memory may be stale or in use now, and not another time.
    """
    error = reply.error
    if reply.refs and isinstance(error, errors.RequestError) and not error.maybe_executed:
        return False
    return not isinstance(error, _NOT_THE_WORKER_S)


_NOT_THE_WORKER_S: Final = (
    errors.WorkerLost,
    errors.CollectiveAborted,
    errors.ConnectionLost,
    errors.ContextPoisoned,
    errors.PoisonRequest,
    errors.PoolLost,
    errors.DeviceUnavailable,
    errors.DeadlineExceeded,
    errors.Overloaded,
    errors.Cancelled,
    errors.StaleGeneration,
)
