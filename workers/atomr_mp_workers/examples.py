"""Calls methods with their examples before a process is ready, so that no client's call meets what a first one costs.

The calls go the way of all requests, from a client within the process: decoded by the annotations, on the method's own
thread, stream or event loop, in batches and streams.
"""

from __future__ import annotations

import os
from typing import Final

from atomr_mp import errors
from atomr_mp.protocol import values
from atomr_mp.protocol.codec import ErrorInfo
from atomr_mp.protocol.exceptions import full_name_of
from atomr_mp.protocol.flow.limits import MAX_AHEAD
from atomr_mp.protocol.messages import control, data
from atomr_mp_workers.example_arguments import ExampleArguments
from atomr_mp_workers.loaded_method import LoadedMethod
from atomr_mp_workers.memory.store import Store
from atomr_mp_workers.requests.dispatch import Dispatcher
from atomr_mp_workers.requests.envelope import Envelope
from atomr_mp_workers.requests.peers import Peers

SESSION: Final = 2**32 - 1
"""Number of this client's session: no client's, since the supervisor counts from 1."""

NEVER_NS: Final = 2**62
ALL_BYTES: Final = 2**62
_MISSING: Final = full_name_of(ModuleNotFoundError())


class ExampleCalls:
    """A client without a connection, which makes one call after the other. Only with the loop's turn.

    Args:
        current: This incarnation's token.
        peers: The sessions.
        store: The device's memory.
        envelope: Takes the calls in.
        dispatcher: Runs them.
    """

    def __init__(self, current: bytes, peers: Peers, store: Store, envelope: Envelope, dispatcher: Dispatcher) -> None:
        self._answered = True
        self._token = current
        self._peers = peers
        self._store = store
        self._envelope = envelope
        self._dispatcher = dispatcher
        session = os.urandom(16)
        peers.admit(control.SessionOpened(SESSION, session, os.urandom(16), shared_memory=True))
        peer = peers.find(data.routing_id(session, 0))
        assert peer is not None
        self._peer: Final = peer
        self._arguments: Final = ExampleArguments(peer.session.holder, store)
        self._id = 0
        self._parts = 0
        """Parts of the last call's stream that have come."""
        self._error: ErrorInfo | None = None

    def call(self, method: LoadedMethod) -> None:
        """Call a method; `deliver` takes the answer.

        Raises:
            AtomrError: Its example makes no arguments that can be sent.
        """
        self._id += 1
        self._parts, self._error, self._answered = 0, None, False
        try:
            body, frames, refs = self._arguments.make(method)
        except (errors.SetupFailed, errors.ActorLoadFailed):
            raise
        except errors.AtomrError as error:
            raise _as_of_setup(method.name, error) from error.__cause__
        views, count = [memoryview(frame) for frame in frames], len(frames)
        if method.streams:
            credit = MAX_AHEAD, ALL_BYTES
            stream = data.StreamCall(
                self._id, method.name, NEVER_NS, count, body, *credit, NEVER_NS, NEVER_NS, refs=refs
            )
            opened = self._envelope.open_streams(self._peer, data.Streams(self._token, [stream]), views)
        else:
            call = data.Call(self._id, method.name, NEVER_NS, count, body, refs)
            opened = self._envelope.open(self._peer, data.Calls(self._token, [call]), views)
        self._dispatcher.take(opened)

    def answered(self) -> bool:
        """Return whether the last call is answered."""
        return self._answered

    def deliver(self, _routing_id: bytes, header: bytes, _frames: list[values.Buffer], _number: int) -> bool:
        """Take a message in the place of a connection."""
        message = data.FROM_WORKER.decode(header)
        for each in message.parts if isinstance(message, data.Parts) else message.replies:
            self._store.release(self._peer.session.holder, each.leases, (), ())
        if isinstance(message, data.Replies):
            self._answered, self._error = True, message.replies[-1].error
        else:
            self._parts += len(message.parts)
        return True

    def read_on(self) -> None:
        """Give a stream credit for further parts."""
        if self._parts:
            self._dispatcher.streams.grant(self._peer, [data.Grant(self._id, self._parts + MAX_AHEAD, ALL_BYTES)])

    def check(self, method: LoadedMethod) -> None:
        """Raise the error of the last call, as one of `setup`.

        Raises:
            AtomrError: There is one.
        """
        if self._error is not None:
            raise _as_of_setup(method.name, self._error.error())

    def close(self) -> None:
        """Leave, once the last call is answered, and wait until all memory is given back."""
        self._peers.end(SESSION, expelled=True)
        self._store.close_mappings(SESSION)
        self._store.reclaim(SESSION)
        self._store.tidy()
        if self._store.device.background is not None:
            self._store.device.background.finish()


def _as_of_setup(method: str, error: errors.AtomrError) -> errors.AtomrError:
    """Return the error with which a start fails, since the call of a method has."""
    text = f"warming up {method} with its example failed: {error.message}"
    if isinstance(error, errors.InvalidRequest | errors.Unsupported):  # the next process would meet it too
        return errors.ActorLoadFailed(text)
    if not isinstance(error, errors.ActorFailed):
        error.message = text
        return error
    if error.exception == _MISSING:
        return errors.ActorLoadFailed(text)
    return errors.SetupFailed(text, traceback_text=error.traceback_text)
