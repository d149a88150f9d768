"""Sends a remote client's calls: several in a message, with settled ids and released leases."""

from __future__ import annotations

import time
from collections import deque
from typing import Final, Protocol

from atomr_mp.client.reply import Reply
from atomr_mp.client.reply_life import ReplyState
from atomr_mp.protocol.messages import remote
from atomr_mp.protocol.values import Buffer
from atomr_mp.protocol.zmtp.framing import pack
from atomr_mp.remote.engine import Engine
from atomr_mp.remote.facts import Facts
from atomr_mp.remote.memory import RemoteMemory
from atomr_mp.remote.releases import SentReleases
from atomr_mp.remote.resumption import OpenCalls
from atomr_mp.remote.streams import RemoteStreamReply

MESSAGE_CALLS: Final = 32
"""Most calls put into one message; more would make the pool wait for the first."""

MESSAGE_BYTES: Final = remote.MAX_REMOTE_MESSAGE_BYTES - 64 * 1024
"""Most bytes of the calls in one message; the rest is room for their headers."""

MOST_REPLAYS: Final = 2**16 - 1
"""The number of replays that is given for a call that must not be sent again."""

TELL_SETTLED: Final = 64
"""Requests with an outcome that are told in messages of their own; fewer travel with the next call."""


class SendingSession(Protocol):
    """The session, as its sender sees it."""

    @property
    def epoch(self) -> bytes:
        """The gateway's epoch."""

    @property
    def engine(self) -> Engine:
        """The engine, which sends."""

    @property
    def memory(self) -> RemoteMemory | None:
        """The memory that refs share, None if no array has passed."""

    @property
    def is_open(self) -> bool:
        """Whether calls may be sent."""


class CallSender:
    """Sends calls, and keeps the unanswered ones. Hold the session's lock.

    Args:
        session: The session.
    """

    def __init__(self, session: SendingSession) -> None:
        self._session = session
        self.calls: Final[OpenCalls[Reply]] = OpenCalls()
        self.facts: Final[dict[int, Facts]] = {}
        """Facts of each unanswered call."""
        self.outbox: Final[deque[Reply]] = deque()
        """Calls that wait for others to travel with, or for a connection."""
        self.releases: Final = SentReleases()
        self.replayed: Final[set[int]] = set()
        """Calls that may have run under an earlier gateway and are sent again."""

    def add(self, reply: Reply, facts: Facts) -> None:
        """Give a request its id."""
        reply.id = self.calls.add(reply)
        self.facts[reply.id] = facts

    def settle(self, reply: Reply) -> Facts:
        """Take in that a request has its outcome; return its facts."""
        self.calls.settle(reply.id)
        self.replayed.discard(reply.id)
        return self.facts.pop(reply.id)

    def give_up(self, reply: Reply) -> Facts:
        """Take in that a request has its outcome without its answer; return its facts."""
        if not reply.sent_ns:
            return self.settle(reply)
        self.calls.give_up(reply.id)
        self.releases.give_up(reply.id, reply.credit.received if isinstance(reply, RemoteStreamReply) else 0)
        self.replayed.discard(reply.id)
        return self.facts.pop(reply.id)

    def flush(self) -> bool:
        """Send queued calls; return whether any were sent."""
        sent = False
        while self.outbox and self._session.is_open:
            self.send_releases()
            if not self._send_some():
                return sent
            sent = True
        if self.calls.untold + self.releases.untold >= TELL_SETTLED and self._session.is_open:
            self._tell_settled()
            sent = True
        return sent

    def tell_settled(self) -> None:
        """Tell the gateway at once which calls are settled or given up; it keeps their answers until then."""
        if self._session.is_open and (self.calls.untold or self.releases.untold):
            self._tell_settled()
            self._session.engine.look()

    def _tell_settled(self) -> None:
        self.send_releases()
        if self.calls.untold:
            self._say_calls([], [])

    def send_releases(self) -> None:
        """Give back what is due."""
        memory, releases = self._session.memory, self.releases
        while (release := releases.next([] if memory is None else memory.take_released())) is not None:
            self.send(remote.RemoteRelease(self._session.epoch, *release), [])

    def send(self, message: remote.FromRemote, frames: list[Buffer]) -> bool:
        """Send a message; False if there is no connection."""
        header = remote.FROM_REMOTE.encode(message)
        return self._session.engine.send(pack(header, frames) if frames else [header])

    def take_settled(self) -> list[int]:
        """Return the calls settled since the gateway was last told."""
        return self.calls.take_settled(remote.MAX_REMOTE_IDS)

    def unanswered(self) -> list[remote.Unanswered]:
        """Return the calls that were sent and are unanswered, for a new connection."""
        now_ns = time.monotonic_ns()
        return [
            remote.Unanswered(number, max(0, now_ns - reply.sent_ns) // 1000)
            for number in self.calls.resume()
            if (reply := self.calls.unanswered[number]).sent_ns
        ]

    def next_unsent(self) -> int:
        """Return the first id that was never sent; calls with lower ids are unanswered or settled."""
        unsent = [number for number, reply in self.calls.unanswered.items() if not reply.sent_ns]
        return min(unsent, default=self.calls.next_id)

    def call_of(self, reply: Reply, facts: Facts, now_ns: int) -> remote.RemoteCall:
        """Return a request's fields, as they travel."""
        payload, body, upload = reply.payload, reply.body, 0
        if facts.blob is not None:
            payload, body, upload = (), b"", facts.blob.nbytes
        elif isinstance(reply, RemoteStreamReply) and facts.encoded is not None:
            payload = facts.encoded.frames  # the last frame may have the parts that the client has
        left_ns = reply.deadline_ns - now_ns
        return remote.RemoteCall(
            reply.id,
            reply.method,
            left_ns // 1000 if left_ns > 0 else 0,
            len(payload),
            body,
            reply.device if reply.pinned else None,
            reply.priority,
            facts.refs,
            reply.id in self.replayed,
            upload,
            min(reply.replays, MOST_REPLAYS),
        )

    def _send_some(self) -> bool:
        """Send as many calls as a message takes, if any wait; False if there is no connection."""
        now_ns = time.monotonic_ns()
        outbox, all_facts = self.outbox, self.facts
        together: list[Reply] = []
        calls: list[remote.RemoteCall] = []
        frames: list[Buffer] = []
        nbytes = 0
        while outbox and len(together) < MESSAGE_CALLS:
            reply = outbox[0]
            if reply.is_over:  # it has expired, or was cancelled
                outbox.popleft()
                continue
            facts = all_facts[reply.id]
            if facts.blob is None:
                nbytes += facts.nbytes
                if together and nbytes > MESSAGE_BYTES:
                    break
                if reply.payload:
                    frames += reply.payload
            outbox.popleft()
            together.append(reply)
            calls.append(self.call_of(reply, facts, now_ns))
        if together and not self._say_calls(calls, frames):
            outbox.extendleft(reversed(together))
            return False
        for reply in together:
            reply.state = ReplyState.SENT
            if not reply.sent_ns:
                reply.sent_ns = now_ns
        return True

    def _say_calls(self, calls: list[remote.RemoteCall], frames: list[Buffer]) -> bool:
        """Send calls, and the settled ids; return False if there is no connection. The resumption tells them then."""
        return self.send(remote.RemoteCalls(self._session.epoch, self.take_settled(), calls), frames)
