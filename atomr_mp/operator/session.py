"""A session for questions and orders, as the command has them: no calls, and nothing that calls need."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Self, TypeVar

from atomr_mp import errors
from atomr_mp.client.handshake import HELLO_TIMEOUT_S, default_name, greet
from atomr_mp.process.identity import Identity, age_s
from atomr_mp.protocol.messages import operators, session, suspects
from atomr_mp.protocol.own_time import Patience
from atomr_mp.transport.session import SessionConnection, SessionEnd, receive_within

ANSWER_S: Final = 5.0
"""How long a supervisor may take to answer a command."""

Request = (
    operators.StatusRequest
    | operators.InventoryRequest
    | operators.RestartRequest
    | operators.ReloadRequest
    | operators.ListResidents
    | operators.FreeResident
    | operators.AdmitRequest
    | operators.ReadKeys
    | operators.StopRequest
    | operators.TraceRequest
)
Answers = (
    session.Answer
    | operators.Reloaded
    | operators.Residents
    | operators.Status
    | operators.Inventory
    | operators.TraceBegun
)

A = TypeVar("A", bound=Answers)


def patience_s(supervisor: Identity) -> float:
    """Return how long a supervisor may take to answer the hello: `ANSWER_S`, or what is left of its start."""
    return max(ANSWER_S, HELLO_TIMEOUT_S - age_s(supervisor))


class OperatorSession:
    """A session for questions and orders: status, restart, stop. Use it with `with`.

    Args:
        where: The supervisor's socket, or a connection to it, which is owned from here on.
        hello_s: How long it may take to answer the hello.
    """

    def __init__(self, where: Path | SessionEnd, hello_s: float = HELLO_TIMEOUT_S) -> None:
        self._connection = SessionConnection.connect(where, queue_s=hello_s) if isinstance(where, Path) else where
        self._ids = itertools.count(1)
        self._events: deque[session.FromSupervisor] = deque(maxlen=1000)
        """Messages that came before an answer: a restart with a standby is done when the order is answered."""
        try:
            self.welcome: Final = greet(self._connection, default_name(), observer=True, timeout_s=hello_s)
        except BaseException:
            self._connection.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def close(self) -> None:
        """End the session; may be called twice."""
        self._connection.close()

    def status(self, timeout_s: float = 10.0) -> operators.Status:
        """Return a snapshot of the pool."""
        return self._ask(operators.Status, operators.StatusRequest(next(self._ids)), timeout_s)

    def inventory(self, timeout_s: float = 10.0) -> operators.Inventory:
        """Return all that the supervisor knows to be there."""
        return self._ask(operators.Inventory, operators.InventoryRequest(next(self._ids)), timeout_s)

    def restart(self, device: int, timeout_s: float = 10.0) -> None:
        """Have a device's worker replaced; returns once the order is taken.

        Raises:
            InvalidRequest: There is no such device.
        """
        self._ask(session.Answer, operators.RestartRequest(next(self._ids), device), timeout_s)

    def reload(self, timeout_s: float) -> list[str]:
        """Have the workers replaced; see `Pool.reload` for what is returned and raised."""
        return self._ask(operators.Reloaded, operators.ReloadRequest(next(self._ids)), timeout_s).pending

    def residents(self, timeout_s: float = 10.0) -> operators.Residents:
        """Return all resident memory."""
        return self._ask(operators.Residents, operators.ListResidents(next(self._ids)), timeout_s)

    def free_resident(
        self,
        name: str,
        *,
        device: int | None = None,
        version: str | None = None,
        force: bool = False,
        timeout_s: float = 10.0,
    ) -> list[operators.ResidentInfo]:
        """Free resident memory; return what was freed.

        Raises:
            InvalidRequest: There is none of this name, it is being filled, or it is in use and this is not `force`.
        """
        return self._ask(
            operators.Residents, operators.FreeResident(next(self._ids), name, device, version, force), timeout_s
        ).residents

    def admit(self, request: suspects.RequestKey, timeout_s: float = 10.0) -> None:
        """Release a quarantined request: it is admitted again.

        Raises:
            InvalidRequest: It is not in quarantine.
        """
        self._ask(session.Answer, operators.AdmitRequest(next(self._ids), request), timeout_s)

    def read_keys(self, timeout_s: float = 10.0) -> None:
        """Have the relay read the admitted keys again; returns once it has, and has ended sessions by it.

        Raises:
            InvalidRequest: The pool has no relay.
            ConfigurationError: The keys cannot be read; those of before hold.
        """
        self._ask(session.Answer, operators.ReadKeys(next(self._ids)), timeout_s)

    def trace(self, seconds: float, timeout_s: float = 10.0) -> operators.TraceBegun:
        """Have the pool traced, until this session ends or the time is over; its rings come among the events.

        Raises:
            Overloaded: It is traced already.
        """
        return self._ask(operators.TraceBegun, operators.TraceRequest(next(self._ids), seconds), timeout_s)

    def take_ring(self, ring: operators.TraceRing) -> int | None:
        """Return the descriptor that came with a ring, once; the caller's from then on. None if none came."""
        connection = self._connection
        return connection.take_ring(ring) if isinstance(connection, SessionConnection) else None

    def heard(self) -> Iterator[session.FromSupervisor]:
        """Yield the lifecycle events that have come, without waiting for further ones."""
        while self._events:
            yield self._events.popleft()
        with contextlib.suppress(errors.AtomrError):
            yield from self._connection.receive_waiting()

    def ask(self, request: Request, timeout_s: float = 10.0) -> Answers:
        """Ask what somebody else wants to know, and return the answer, which may be a refusal."""
        self._connection.send(request)
        patience = Patience(timeout_s, time.monotonic)
        while True:
            message = receive_within(self._connection, patience)
            if isinstance(message, Answers) and message.id == request.id:
                return message
            if isinstance(message, session.Goodbye):
                raise message.error.error()
            self._events.append(message)

    def stop(self, timeout_s: float = 10.0) -> None:
        """Have the pool stopped; returns once the order is taken."""
        self._ask(session.Answer, operators.StopRequest(next(self._ids)), timeout_s)

    def next_event(self, timeout_s: float | None) -> session.FromSupervisor:
        """Return the next lifecycle event.

        Raises:
            PoolLost: The supervisor is gone.
            TimeoutError: There was none in time.
        """
        return self._events.popleft() if self._events else self._connection.receive(timeout_s)

    def _ask(self, kind: type[A], request: Request, timeout_s: float) -> A:
        """Ask something and return the answer, of this kind.

        Raises:
            AtomrError: It was refused.
            PoolLost: The supervisor is gone.
            TimeoutError: No answer came in time.
        """
        message = self.ask(request, timeout_s)
        if isinstance(message, session.Answer) and message.error is not None:
            raise message.error.error()
        assert isinstance(message, kind)
        return message
