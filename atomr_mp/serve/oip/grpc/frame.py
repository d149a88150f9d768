"""The frame of every call: what the faces of a front end share, the client's token, the counters, and the errors."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

import grpc

from atomr_mp import errors
from atomr_mp.serve.accounts import Accounts
from atomr_mp.serve.http.access import Access
from atomr_mp.serve.http.events import OpenHttpStreams
from atomr_mp.serve.http.exchange import Budget
from atomr_mp.serve.http.limits import Limits
from atomr_mp.serve.http.unread_answers import UnreadAnswers
from atomr_mp.serve.metrics import IN_FLIGHT, Counters
from atomr_mp.serve.oip.grpc.call import GrpcCall, metadata_of, refuse
from atomr_mp.serve.oip.inference import Inference
from atomr_mp.serve.problems import ClientLeft, Problem
from atomr_mp.tracing.forwarding import forwarding

_LOG: Final = logging.getLogger("atomr_mp.serve")

LEFT: Final = 499
"""Status, in the log and the metrics, of an answer to a client that has left."""

ROUTE: Final = "oip"
"""The kind of all calls, in the metrics."""


class Grounds(NamedTuple):
    """What a front end's faces share."""

    inference: Inference
    access: Access
    accounts: Accounts
    counters: Counters
    streams: OpenHttpStreams
    budget: Budget
    limits: Limits
    unread: UnreadAnswers

    def check_room(self) -> None:
        """Refuse a request while clients leave too much of their answers unread.

        Raises:
            Problem: 429.
        """
        if (problem := self.unread.crowd()) is not None:
            raise errors.unraised(problem)


class CallFrame:
    """Admits calls, counts them, and tells their errors.

    Args:
        grounds: What it shares with other faces.
    """

    def __init__(self, grounds: Grounds) -> None:
        self._grounds: Final = grounds
        self._tasks: Final[set[asyncio.Task[Any]]] = set()
        """Those that answer calls."""
        self._is_cut = False

    def cut(self) -> None:
        """End the calls that run: the server has waited long enough."""
        self._is_cut = True
        for task in self._tasks:
            task.cancel()

    def token(self, metadata: Mapping[str, str]) -> bytes:
        """Return the digest of a client's token; empty if none is needed.

        Raises:
            Problem: 401.
        """
        shown = metadata.get("authorization", "")
        return self._grounds.access.check_token({b"authorization": shown.encode("latin-1", "replace")})

    @contextlib.contextmanager
    def serving(self, path: str, context: Any, *, needs_token: bool = True) -> Iterator[GrpcCall]:
        """Count a call, and make the error that ends the `with` block its status."""
        served = GrpcCall(path, metadata_of(context.invocation_metadata()))
        with contextlib.suppress(ClientLeft), self.counting(served):
            task = asyncio.current_task()
            assert task is not None
            self._tasks.add(task)
            try:
                if needs_token:
                    served.token = self.token(served.metadata)
                yield served
            except asyncio.CancelledError:
                if not self._is_cut:
                    raise  # gRPC has cancelled it, as the client has left
                self._grounds.accounts.gave_up(served)
                why = "the server ends, and the answer was not there"
                refuse(context, errors.Cancelled(why, maybe_executed=True), served)
            except (Problem, errors.AtomrError) as error:
                refuse(context, error, served)
            except ClientLeft:
                raise
            except grpc.aio.BaseError as error:  # of reading or writing
                raise ClientLeft from error
            except Exception as error:  # noqa: BLE001 - the top of a call: it is answered, and the server goes on
                refuse(context, internal(error, served), served)
            finally:
                self._tasks.discard(task)

    @contextlib.contextmanager
    def counting(self, served: GrpcCall) -> Iterator[None]:
        """Count a request in the `with` block, which handles its errors, but for those of clients that have left."""
        counters = self._grounds.counters
        counters.own[IN_FLIGHT] += 1
        parent = served.metadata.get("traceparent")
        try:
            with contextlib.nullcontext() if parent is None else forwarding(parent.encode()):
                yield
            if not served.status:
                served.status = 200
        except (asyncio.CancelledError, ClientLeft):
            served.status, served.code = LEFT, "client_left"
            if self._is_cut:
                self._grounds.accounts.gave_up(served)
            raise
        finally:
            self._grounds.accounts.ended(served, ROUTE)
            counters.own[IN_FLIGHT] -= 1

    def refused(self, path: str, context: Any, problem: Problem) -> None:
        """Refuse a call, and count it."""
        served = GrpcCall(path, metadata_of(context.invocation_metadata()))
        refuse(context, problem, served)
        self._grounds.accounts.ended(served, ROUTE)


def internal(error: Exception, served: GrpcCall) -> Problem:
    """Log an error that is not ours, and return its form for clients."""
    _LOG.error("request %s (%s) met an internal error", served.id, served.path, exc_info=error)
    why = "internal error of the server; its log has this request's id"
    return Problem(500, "internal_error", why, maybe_executed=served.sent)


def left_s(context: Any) -> float | None:
    """Return the seconds until a call's deadline; None if it has none."""
    found: float | None = context.time_remaining()
    return None if found is None else max(found, 0.001)
