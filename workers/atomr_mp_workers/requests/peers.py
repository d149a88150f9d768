"""Admitted sessions, and their connections with unanswered requests.

Only bookkeeping; no socket. A session that has ended is forgotten, so its late messages come from an unknown peer and
are refused.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection
from functools import partial
from operator import attrgetter
from typing import Final, NamedTuple, Protocol

from atomr_mp import checks, errors
from atomr_mp.protocol.flow.flight import RETRY_AFTER_S, Window
from atomr_mp.protocol.flow.limits import MAX_AHEAD
from atomr_mp.protocol.messages import control, data
from atomr_mp.protocol.values import Buffer
from atomr_mp.protocol.words import counted
from atomr_mp_workers.memory.blocks import Holder
from atomr_mp_workers.memory.store import Store
from atomr_mp_workers.requests.raised import wire_form, wire_form_without_traceback

WEIGHT: Final[attrgetter[float]] = attrgetter("weight")
"""Returns the weight of a session, see `FairQueue`."""

MOST_FORMER: Final = 1024
"""Most ended sessions that are still known."""

MOST_EARLY: Final = 1024
"""Most releases that may come before one of an earlier number: connections can have as many in flight at a time."""


class AdmittedSession:
    """An admitted client."""

    __slots__ = (
        "carried",
        "ended",
        "error_form",
        "group",
        "holder",
        "is_away",
        "is_relayed",
        "number",
        "opening",
        "parts",
        "peers",
        "place",
        "releases",
        "resolve",
        "running",
        "secret",
        "sent",
        "session",
        "waiting_for_release",
        "weight",
    )

    def __init__(self, opened: control.SessionOpened, holder: Holder, store: Store) -> None:
        self.number: Final = opened.number
        self.session: Final = opened.session
        self.secret: Final = opened.secret
        self.weight: Final = opened.weight
        """Its share of resources, against other sessions with waiting requests."""
        self.group: Final = opened.group or None
        """Its group: sessions of one group share one weight."""
        self.peers: list[Peer] = []
        self.carried: Final[dict[bytes, deque[Carried]]] = {}
        """`Peer.carried` of connections that were forgotten, by routing id, the oldest first; together as much as of
        one."""
        self.running = 0
        """Requests that have started and not ended."""
        self.parts = 0
        """Parts of gang calls that have come and have not started. They go with the session only once all members of
        their world have agreed on that."""
        self.opening = 0
        """Slabs of other devices that are being opened for it elsewhere than on the loop; its calls wait for them."""
        self.ended = False
        self.is_away = False
        """Whether its client cannot be reached just now."""
        self.is_relayed: Final = opened.relayed
        """Whether its client is remote, so that its relay may stand still, too."""
        holder.pid, holder.group = opened.pid, opened.group
        holder.no_kernels, holder.is_relayed = opened.no_kernels, opened.relayed
        self.holder: Final = holder
        """The holder of its device memory."""
        self.resolve: Final = store.refs.resolver(holder)
        """Turns the refs in its requests into arrays."""
        self.place: Final = partial(store.buffers.place, holder) if opened.shared_memory else None
        """Puts large results into shared memory, if the client can open it."""
        self.error_form: Final = wire_form if opened.tracebacks else wire_form_without_traceback
        """Returns an error as it is sent to the client."""
        self.releases: Final = SequenceTracker()
        """Tracks which of its releases have been taken in."""
        self.waiting_for_release: list[tuple[Peer, int, int, memoryview]] = []
        """Calls that wait for a release on another connection."""
        self.sent = 0
        """Number of messages sent to it."""


MOST_PEERS: Final = 256
"""Most connections of a session that are known: as many as its lanes have numbers."""


class SequenceTracker:
    """Tracks which of the numbers 1, 2, 3, ... have come, in any order."""

    __slots__ = ("_early", "upto")

    def __init__(self) -> None:
        self.upto = 0
        """The number up to which all have come."""
        self._early: set[int] = set()

    def add(self, serial: int) -> bool:
        """Record that a number has come; return False if it has come before.

        Raises:
            ProtocolError: More have come ahead of a missing number than an honest client sends.
        """
        if serial <= self.upto or serial in self._early:
            return False
        self._early.add(serial)
        if len(self._early) > MOST_EARLY:
            raise errors.ProtocolError(f"{MOST_EARLY} releases have come without one that was before them")
        while self.upto + 1 in self._early:
            self.upto += 1
            self._early.remove(self.upto)
        return True


class Carried(NamedTuple):
    """The leases and credit in a message to a client, to take back if it never arrives."""

    number: int
    """`Replies.number`."""
    leases: list[int]
    returned: list[int]


class Queued(Protocol):
    """A request that has not started."""

    @property
    def id(self) -> int:
        """Its number on its connection."""


class Peer:
    """One connection of a session."""

    __slots__ = (
        "carried",
        "frames",
        "part_frames",
        "parts",
        "payload_bytes",
        "queued",
        "replies",
        "reply_bytes",
        "routing_id",
        "session",
        "streams",
        "unanswered",
    )

    def __init__(self, routing_id: bytes, session: AdmittedSession, window: Window) -> None:
        self.routing_id: Final = routing_id
        self.session: Final = session
        known = session.carried.pop(routing_id, ())
        self.carried: Final[deque[Carried]] = deque(known, maxlen=_most_carried(window))
        """Contents of the last messages."""
        self.unanswered = 0
        self.payload_bytes = 0
        """Payload bytes of the unanswered requests."""
        self.queued: dict[int, Queued] = {}
        """Requests that have not started, by id."""
        self.replies: list[data.CallReply] = []
        """Answers that wait to be sent together."""
        self.reply_bytes = 0
        self.frames: list[Buffer] = []
        self.parts: list[data.Part] = []
        """Parts of streams that wait to be sent together, before the answers."""
        self.part_frames: list[Buffer] = []
        self.streams: dict[int, Queued] = {}
        """Streams that have not been answered, by id."""


def _most_carried(window: Window) -> int:
    """Return how many messages may be in flight: a window's, and the credit of a stream."""
    return window.requests + MAX_AHEAD


@checks.owned()
class Peers:
    """All sessions and connections.

    Args:
        window: The window of unanswered requests of one connection.
        store: The device's memory.
    """

    def __init__(self, window: Window, store: Store) -> None:
        self._window = window
        self._store = store
        self._by_number: dict[int, AdmittedSession] = {}
        self._by_name: dict[bytes, AdmittedSession] = {}
        self._by_routing_id: dict[bytes, Peer] = {}
        self._former: dict[bytes, bytes] = {}
        """Secrets of the sessions that ended last, by public name; the oldest first."""

    def admit(self, opened: control.SessionOpened) -> None:
        """Admit a session's connections."""
        admitted = AdmittedSession(opened, self._store.admit(opened.number), self._store)
        self._by_number[opened.number] = self._by_name[opened.session] = admitted

    def end(self, number: int, *, expelled: bool = False) -> AdmittedSession | None:
        """Forget a session; its requests that have not started must not start from now on.

        Args:
            number: The session's number.
            expelled: Whether it broke the rules, so that its late logins count as refused.
        """
        session = self._by_number.pop(number, None)
        if session is None:
            return None
        session.ended = True
        session.waiting_for_release.clear()
        del self._by_name[session.session]
        if not expelled:
            self._former[session.session] = session.secret
            if len(self._former) > MOST_FORMER:
                del self._former[next(iter(self._former))]
        for peer in session.peers:
            del self._by_routing_id[peer.routing_id]
        return session

    @property
    def sessions(self) -> Collection[AdmittedSession]:
        """The admitted sessions that have not ended."""
        return self._by_number.values()

    def of(self, number: int) -> AdmittedSession | None:
        """Return a session, None if it is not admitted or has ended."""
        return self._by_number.get(number)

    def session_of(self, routing_id: bytes) -> AdmittedSession | None:
        """Return the session of a connection, None if it is not admitted or has ended."""
        return self._by_name.get(data.session_of(routing_id))

    def take_carried(self, routing_id: bytes, is_lost: Callable[[int], bool]) -> list[Carried]:
        """Return the contents of a connection's lost messages, by their numbers, and forget these."""
        peer, session = self.known(routing_id), self.session_of(routing_id)
        forgotten = None if session is None else session.carried.get(routing_id)
        carried = peer.carried if peer is not None else forgotten
        if not carried:
            return []
        lost = [each for each in carried if is_lost(each.number)]
        kept = [each for each in carried if not is_lost(each.number)]
        carried.clear()
        carried.extend(kept)
        return lost

    def secret(self, session: bytes) -> bytes | None:
        """Return a session's secret, None if it is unknown."""
        found = self._by_name.get(session)
        return None if found is None else found.secret

    def former_secret(self, session: bytes) -> bytes | None:
        """Return the secret of an ended session, None if it is unknown or ended long ago."""
        return self._former.get(session)

    def find(self, routing_id: bytes) -> Peer | None:
        """Return the connection with this routing id, None if it belongs to no admitted session."""
        peer = self._by_routing_id.get(routing_id)
        if peer is None:
            session = self._by_name.get(data.session_of(routing_id))
            if session is None:
                return None
            if len(session.peers) >= MOST_PEERS and not self._forget_idle(session):
                return None
            peer = self._by_routing_id[routing_id] = Peer(routing_id, session, self._window)
            session.peers.append(peer)
        return peer

    def known(self, routing_id: bytes) -> Peer | None:
        """Return a connection that has sent something, None if it is not known, or was forgotten."""
        return self._by_routing_id.get(routing_id)

    def _forget_idle(self, session: AdmittedSession, keep: Peer | None = None) -> bool:
        """Forget the session's oldest idle connection, which may have ended."""
        early = {sender.routing_id for sender, *_ in session.waiting_for_release}
        for peer in session.peers:
            busy = peer.unanswered or peer.replies or peer.parts or peer.streams or peer.routing_id in early
            if peer is not keep and not busy:
                session.peers.remove(peer)
                del self._by_routing_id[peer.routing_id]
                session.carried[peer.routing_id] = peer.carried
                while sum(map(len, session.carried.values())) > _most_carried(self._window):
                    del session.carried[next(iter(session.carried))]
                return True
        return False

    def refusal(self, peer: Peer) -> errors.Overloaded | None:
        """Return the error of a connection's calls if its session has too many bytes unanswered, as no honest one has.

        Each connection has a window; together they have `MAX_LANES` windows in bytes. Their requests wait in the queues
        like all others, which `max_queue` limits.
        """
        session = peer.session
        if len(session.peers) <= data.MAX_LANES:
            return None
        while len(session.peers) > data.MAX_LANES and self._forget_idle(session, keep=peer):
            pass
        nbytes = sum([each.payload_bytes for each in session.peers])
        most = data.MAX_LANES * self._window.payload_bytes
        if nbytes < most:
            return None
        return errors.Overloaded(
            f"the unanswered calls of this client on this device have {nbytes} bytes of arguments, in "
            f"{counted(len(session.peers), 'event loop')} and threads; it may have {most}: await some first",
            window=data.MAX_LANES,
            retry_after_s=RETRY_AFTER_S,
        )

    def exceeds_window(self, peer: Peer) -> bool:
        """Return whether the connection has more unanswered requests than it was granted.

        A single request may be larger than the window in bytes, see `flight.Flight`.
        """
        window = self._window
        return peer.unanswered > window.requests or (peer.payload_bytes > window.payload_bytes and peer.unanswered > 1)
