"""A client's connections and the requests on them: what `blocking_lane` and `loop_lane` share.

To hand a call over to a thread of its own costs more than the call. So every asyncio loop has its own connections,
driven by the loop, and all other threads share one set, on which the first thread that waits receives for all.
"""

from __future__ import annotations

import logging
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from atomr_mp import errors, tracing
from atomr_mp.client import interrupts
from atomr_mp.client.lanes.device_link import CLOSED, DeviceLink, unavailable
from atomr_mp.client.lanes.failover import Failover
from atomr_mp.client.lanes.retry import Retry
from atomr_mp.client.lanes.retry_policy import NEVER
from atomr_mp.client.memory.leases import Lease, Releases
from atomr_mp.client.reply import ItemsPart, ItemsReply, Reply, set_done
from atomr_mp.protocol import limits, values
from atomr_mp.protocol.codec import ErrorInfo
from atomr_mp.protocol.flight import Flight
from atomr_mp.protocol.messages import data
from atomr_mp.protocol.messages.devices import DeviceInfo
from atomr_mp.protocol.messages.session import DeviceChanged, IncarnationEnded, IncarnationStopped
from atomr_mp.protocol.messages.suspects import Suspicions
from atomr_mp.protocol.zmtp.framing import unpack
from atomr_mp.transport.data import DataConnection

if TYPE_CHECKING:
    import asyncio

    from atomr_mp.client.client import Client

MESSAGE_CALLS: Final = 16
"""Most calls put into one message; more would make the worker wait for the first."""

FORKED: Final = "this process was forked from the client's; connect again in the child"

Callback = Callable[[Reply], object]

Told = DeviceChanged | IncarnationStopped | IncarnationEnded | Suspicions | errors.PoolLost
"""What the supervisor says, for lanes."""

_LOG: Final = logging.getLogger("atomr_mp.client")


class Lane(ABC):
    """What both kinds share: where requests go, and how they end.

    Args:
        client: Whose lane this is.
        number: Distinguishes the lane's connections from those of the session's other lanes.
        devices: The devices as they are now.
    """

    def __init__(self, client: Client, number: int, devices: Iterable[DeviceInfo]) -> None:
        self._client = client
        self.number: Final = number
        self._lock = threading.Lock()
        self._place_array: Final = client.place
        self._suspicions: Final = client.suspicions
        self._links = [DeviceLink(info, Flight(client.login.window, info.index)) for info in devices]
        self._retry: Final = Retry(self, client)
        self._failover: Final = Failover(self, client, self._retry)
        self._called_back: deque[Reply] = deque()
        """Finished replies whose callbacks are to be run once the lock is free."""
        self._lost: errors.PoolLost | None = None
        self._leading: Reply | None = None
        """What the thread waits for that receives for all, while it polls."""

    # --- what replies and the client call --------------------------------------------------------------------------

    def submit(  # noqa: C901, PLR0912 - a further call would cost more
        self,
        request_id: int,
        device: int | None,
        method: str,
        arguments: object,
        deadline_ns: int,
        priority: int = 0,
        replays: int = 0,
    ) -> Reply:
        """Send a request, or hold it while its device comes back.

        Args:
            request_id: Unique in the session.
            device: Where to; None for the one with the fewest unanswered requests of this lane.
            method: "Actor.method".
            arguments: A sequence by position, or a mapping by name.
            deadline_ns: CLOCK_MONOTONIC.
            priority: Its priority in the worker.
            replays: How many ends of workers it counts as having been part of already.

        Raises:
            InvalidRequest: The arguments cannot be sent.
            PoisonRequest: It has ended workers, and is not admitted.
            Overloaded: The window is full.
            DeviceUnavailable: The device takes no work.
            PoolLost: There is no pool any more.
        """
        alone = self._suspicions.admit(method, arguments) if method in self._suspicions.methods else None
        body, payload, placed = values.encode(arguments, self._place_array)
        reply = Reply(self, request_id, method, deadline_ns, body)
        if priority:
            reply._priority = priority
        if replays:
            reply._replays = replays
        if placed:
            reply._kept, reply._copies, reply._refs, device = self._client.memory.attach(placed, device)
        payload_bytes = len(body)
        if payload:
            reply._payload = payload
            payload_bytes += sum(map(len, payload))
        with self._lock:
            if self._lost is not None:
                raise _copy(self._lost)
            link = self._place() if device is None else self._links[device]
            if not link.sending:
                if link.info.state in CLOSED:
                    raise unavailable(link.info)
                self._failover.reach(link)
            in_flight = link.flight.add(request_id, reply, payload_bytes)
            reply._link = link
            if device is not None:
                reply._pinned = True
            if (tracer := tracing.tracer) is not None:
                tracer.begin(reply)
            if alone is not None:
                self._retry.isolate(reply, alone)
                self._put(link, reply)
            elif not link.sending:
                link.held.append(reply)
            elif in_flight == 1:
                self._send(link, [reply])  # the worker has nothing of ours
            else:
                link.outbox.append(reply)
                self._queued(link)
        return reply

    def submit_items(
        self, request_id: int, method: str, items: Sequence[Sequence[Any]], deadline_ns: int, priority: int
    ) -> ItemsReply:
        """Send many requests as one; see `submit`, and `Client.submit_items`."""
        if method in self._suspicions.methods:
            raise errors.InvalidRequest(f"some request of {method} has ended workers")
        body, payload, placed = values.encode(items, _refuse)
        if placed:
            raise errors.InvalidRequest("a ref among the items of a call")
        reply = ItemsReply(self, request_id, method, deadline_ns, body)
        reply._items, reply._replays, reply._priority, reply._payload = len(items), NEVER, priority, payload
        reply.open.update(range(len(items)))
        with self._lock:
            if self._lost is not None:
                raise _copy(self._lost)
            link = self._place()
            link.flight.add(request_id, reply, len(body) + sum(map(len, payload)))
            reply._link = link
            if (tracer := tracing.tracer) is not None:
                tracer.begin(reply)
            self._put(link, reply)
            if link.sending:
                self._queued(link)
        return reply

    @interrupts.defer_interrupts
    def cancel(self, reply: Reply) -> None:
        """Ask that a request does not start."""
        with self._lock:
            again, reply._cancelled = reply._cancelled, True
            if not (reply.done or again) and self._withdraw(reply):
                self._end(reply, errors.Cancelled("cancelled before it was sent"))
        self.call_back()

    @interrupts.defer_interrupts
    def add_callback(self, reply: Reply, callback: Callback) -> bool:
        """Have `callback` run once the reply is there; False if it is there already."""
        with self._lock:
            if reply.done:
                return False
            if reply._callbacks is None:
                reply._callbacks = []
            reply._callbacks.append(callback)
        self.watch(reply)
        return True

    @abstractmethod
    def wait(self, reply: Reply, timeout_s: float | None) -> None:
        """Return when the reply is there.

        Raises:
            TimeoutError: It was not, in time.
        """

    def belongs_to(self, _loop: asyncio.AbstractEventLoop) -> bool:
        """Whether the lane is driven by this event loop."""
        return False

    def forget_in_child(self) -> None:
        """End all replies, in a forked child: no socket is touched, and no lock that the parent's threads may hold."""
        self._lock = threading.Lock()
        self._lost = errors.PoolLost(FORKED)
        for link in self._links:
            link.sending = False
            for _, reply in link.flight.items():  # noqa: PERF102 - no dict
                reply._error = errors.PoolLost(FORKED, maybe_executed=reply._sent_generation != 0)
                reply.done = True

    # --- what the supervisor says ----------------------------------------------------------------------------------

    @abstractmethod
    def take(self, message: Told) -> None:
        """Take a lifecycle event, from whichever thread has received it; it then lets `call_back` run."""

    def _apply(self, message: Told) -> None:
        with self._lock:
            match message:
                case DeviceChanged(info):
                    self._failover.changed(self._links[info.index], info)
                case IncarnationStopped(ended):
                    self._failover.stopped(self._links[ended.device], ended)
                case IncarnationEnded():
                    self._failover.ended(self._links[message.device], message)
                case Suspicions():
                    self._retry.judged(message)
                case errors.PoolLost():
                    self._pool_lost(message)

    def _connect(self, endpoint: str) -> DataConnection:
        courier, lock = self._client.courier, self._lock
        return DataConnection(endpoint, self._client.login, self.number, lambda debtor: courier.owes(debtor, lock))

    def disconnect(self, link: DeviceLink, connection: DataConnection) -> None:
        """Close a connection. With the lock held."""
        self._disconnecting(link, connection)
        self._client.courier.forget(connection)
        connection.close()

    def _flush_ready(self) -> None:
        """Send what is sent again, to whichever device."""
        for link in self._links:
            if link.sending and link.outbox:
                self._flush(link)

    def _put(self, link: DeviceLink, reply: Reply, *, first: bool = False) -> None:
        """Send a request, or have it wait: with others to be sent together, or for the device."""
        if not link.sending:
            if first:
                link.held.appendleft(reply)
            else:
                link.held.append(reply)
        elif reply._alone is not None:
            self._send(link, [reply], data.Alone)
        elif first:
            link.outbox.insert(0, reply)
        else:
            link.outbox.append(reply)

    def _pool_lost(self, lost: errors.PoolLost) -> None:
        self._lost = lost
        for link in self._links:
            self._hold(link)
            self._failover.pool_lost(link)
            link.held.clear()
            link.parked.clear()
            for request_id, reply in link.flight.items():
                link.flight.take(request_id)
                error = _copy(lost)
                error.maybe_executed = reply._sent_generation != 0
                self._end(reply, error)

    # --- for the kinds, with the lock held -------------------------------------------------------------------------

    @abstractmethod
    def _connected(self, link: DeviceLink, connection: DataConnection) -> None:
        """Watch a new connection's descriptor."""

    @abstractmethod
    def _disconnecting(self, _link: DeviceLink, connection: DataConnection) -> None:
        """Stop watching a connection's descriptor, if it is watched."""

    @abstractmethod
    def _finished(self, reply: Reply) -> None:
        """Wake whoever waits for a reply."""

    @abstractmethod
    def _give_back(self, link: DeviceLink) -> None:
        """Send what is to be given back to a link's incarnation; what is called from now on comes after it."""

    @abstractmethod
    def watch(self, reply: Reply) -> None:
        """See that a reply with a callback is received though nobody waits for it. Without the lock."""

    @abstractmethod
    def _queued(self, link: DeviceLink) -> None:
        """Send a link's outbox, now or soon: what is called meanwhile travels together."""

    def _place(self) -> DeviceLink:
        links = self._links
        best = links[0]
        if len(links) > 1:
            for link in links:
                if not link.sending:
                    self._failover.reach(link)
                if link.sending and (not best.sending or len(link.flight.requests) < len(best.flight.requests)):
                    best = link
        if best.sending:
            return best
        waiting = [link for link in self._links if link.info.state not in CLOSED]
        if not waiting:
            raise unavailable(self._links[0].info)
        return min(waiting, key=lambda link: len(link.flight.requests))

    def _hold(self, link: DeviceLink) -> None:
        """Send nothing more on a link for now; what waits to be sent is held."""
        link.sending = False
        link.held.extend(link.outbox)
        link.outbox.clear()

    def _flush(self, link: DeviceLink) -> None:
        """Send a link's outbox."""
        replies, link.outbox = link.outbox, []
        for at in range(0, len(replies), MESSAGE_CALLS):
            together = replies[at : at + MESSAGE_CALLS]
            nbytes = sum([len(reply._body) for reply in together])
            nbytes += sum([sum(map(len, reply._payload)) for reply in together if reply._payload])
            if nbytes <= limits.MAX_BODY_BYTES:
                self._send(link, together)
                continue
            for reply in together:  # their message could be too long, which ends the connection
                self._send(link, [reply])

    def _send(self, link: DeviceLink, replies: list[Reply], kind: type[data.Calls] = data.Calls) -> None:
        connection = link.connection
        assert connection is not None
        calls: list[data.Call] = []
        frames: list[values.Buffer] = []
        now_ns = time.monotonic_ns()
        generation, releases = link.generation, link.releases
        if releases.pending or releases.ending:
            self._give_back(link)
        for reply in replies:
            reply._sent_ns = now_ns
            reply._sent_generation = generation
            payload = reply._payload
            if payload:
                frames += payload
            calls.append(
                data.Call(
                    reply.id,
                    reply.method,
                    reply.deadline_ns,
                    len(payload),
                    reply._body,
                    reply._refs,
                    reply._priority,
                    reply._trace,
                    reply._items,
                )
            )
        connection.send(_encode_calls(kind(link.token, calls, releases.serial)), frames)

    def _receive(self, link: DeviceLink, until: Reply | None = None, *, former: bool = False) -> None:  # noqa: C901, PLR0912, PLR0915 - a further call would cost more
        """Take in what has arrived on a link; stop early once the reply `until` is there, or nothing is to come.

        Args:
            link: The link.
            until: What is waited for.
            former: Look only at what the former incarnation has sent, and take in all of it.
        """
        connection, releases = link.connection, link.releases
        if link.former is not None:
            if former:
                connection, _, releases = link.former
            else:
                self._receive(link, former=True)
        if connection is None:
            return
        take, in_flight = link.flight.take, link.flight.requests
        while until is None or not until.done:
            message = connection.receive()
            if message is None:
                if connection.ended:
                    self._disconnecting(link, connection)
                break
            try:
                header, frames = unpack(message)
                decoded = _decode_replies(header)
            except errors.ProtocolError:  # a worker gone wild; whoever receives just now is not to blame
                _LOG.exception("device %d sent a message that is dropped", link.device)
                continue
            if decoded.returned:
                self._client.memory.returned(decoded.returned)
            releases.unheard = 0
            at = 0
            for answer in decoded.replies:
                first, at = at, at + answer.frames
                if answer.items:
                    self._take_items(link, releases, answer, frames[first:at], former=former)
                    continue
                reply = take(answer.id)
                if answer.error is not None and reply is not None and self._strikes(reply, answer.error):
                    self._struck(link, reply, former=former)
                    continue
                if answer.leases or (reply is not None and reply._copies):
                    self._settle(releases, reply, answer)
                if reply is None:
                    continue
                if reply._kept:
                    reply._kept = ()
                if not reply.done:
                    reply._body = answer.body
                    if at != first:
                        reply._frames = frames[first:at]
                    error = None
                    if answer.error is not None:
                        error = answer.error.error()
                        self._heed(link, releases, error, former=former)
                    elif reply._items:
                        error = errors.ProtocolError(f"device {link.device} answered a call without its items")
                    self._end(reply, error)
            if not in_flight and not former:
                break  # an attempt to receive that fails costs as much as a message
        if not former:
            link.unread = connection.has_message

    def _heed(self, link: DeviceLink, releases: Releases, error: errors.AtomrError, *, former: bool) -> None:
        """Do what an error means for others, of the incarnation to which these releases belong."""
        if error.ends_worker and not former:
            self._hold(link)  # the supervisor will say so too, but later
        elif isinstance(error, errors.OutOfMemory):
            self._client.out_of_memory(releases)

    def _take_items(
        self, link: DeviceLink, releases: Releases, answer: data.CallReply, frames: list[memoryview], *, former: bool
    ) -> None:
        """Take in what some items of a call have come to."""
        reply = link.flight.find(answer.id)
        places: list[int] = answer.items or []
        items, told = set(places), answer.failed or {}
        sound = len(items) == len(places) and items.issuperset(told)
        if not isinstance(reply, ItemsReply) or not sound or not reply.open.issuperset(items):
            _LOG.error("device %d answered items that it was not asked for", link.device)
            releases.give_back(answer.leases)
            return
        if answer.error is not None and self._strikes(reply, answer.error):
            link.flight.take(reply.id)
            self._struck(link, reply, former=former)
            return
        reply.open -= items
        if reply.done:
            releases.give_back(answer.leases)
        else:
            failed = {place: info.error() for place, info in told.items()}
            if answer.error is not None:
                failed = {place: answer.error.error() for place in places}
            for error in failed.values():
                self._heed(link, releases, error, former=former)
            leases = releases.leases(answer.leases) if answer.leases else None
            reply.parts.append(ItemsPart(places, answer.body, frames, leases, failed))
        if reply.open:
            self._called_back.append(reply)
        else:
            link.flight.take(reply.id)
            self._end(reply, None)

    def _strikes(self, reply: Reply, info: ErrorInfo) -> bool:
        """Return whether an answer's error ends its worker: then the request's outcome comes with that end."""
        if info.code != errors.ContextPoisoned.code or reply.done:
            return False
        error = info.error()
        assert isinstance(error, errors.RequestError)
        reply._struck = error
        return True

    def _struck(self, link: DeviceLink, reply: Reply, *, former: bool) -> None:
        """Let a request wait for its worker's end."""
        link.flight.add(reply.id, reply, len(reply._body) + sum(map(len, reply._payload)))
        if not former:
            self._hold(link)  # the supervisor will say so too, but later

    def _end(self, reply: Reply, error: errors.AtomrError | None) -> None:
        """Give a reply its outcome, unless it has one: its deadline may have passed before."""
        if reply._kept and reply._link is not None and reply.id not in reply._link.flight.requests:
            reply._kept = reply._copies = ()
        if reply.done:
            return
        if error is not None:
            if reply._may_have_run and isinstance(error, errors.RequestError):
                error.maybe_executed = True
            reply._error = error
        if reply._payload:
            reply._payload = ()
        reply.done = True
        if reply._span is not None:
            reply._span.end(reply)
        if reply._waiters or self._leading is reply:
            self._finished(reply)
        if reply._future is not None:
            set_done(reply._future)
        if reply._callbacks is not None:
            self._called_back.append(reply)

    def _expire(self, reply: Reply) -> None:
        """End a reply whose deadline has passed; its credit comes back with its late answer."""
        with self._lock:
            if reply._link is not None:
                self._receive(reply._link)  # its answer may have come in time, and nobody has looked
            if not reply.done:
                sent = not self._withdraw(reply)
                self._end(
                    reply,
                    errors.DeadlineExceeded(
                        f"no answer to {reply.method} within its deadline; "
                        + ("it may be running still" if sent else f"it was {_NOT_SENT[reply._may_have_run]}"),
                        maybe_executed=sent,
                    ),
                )
        self.call_back()

    def _withdraw(self, reply: Reply) -> bool:
        """See that a request does not start; return True if it was not even sent, else the worker is asked."""
        link = reply._link
        assert link is not None
        unsent = link.held if reply in link.held else link.outbox if reply in link.outbox else None
        if unsent is not None or link.parked.pop(reply, None) is not None:
            if unsent is not None:
                unsent.remove(reply)
            link.flight.take(reply.id)
            return True
        former = link.former
        if former is not None and former.generation == reply._sent_generation:
            former.connection.send(data.FROM_CLIENT.encode(data.Cancel(former.releases.token, [reply.id])), [])
        elif link.connection is not None:
            link.connection.send(data.FROM_CLIENT.encode(data.Cancel(link.token, [reply.id])), [])
        return False

    def call_back(self) -> None:
        """Run the callbacks of finished replies. With no lock held: they may call, wait, and close the client."""
        while self._called_back:
            try:
                reply = self._called_back.popleft()
            except IndexError:  # another thread has taken it
                return
            callbacks = reply._callbacks or ()
            if reply.done:
                reply._callbacks = None
            for callback in callbacks:
                try:
                    callback(reply)
                except Exception:  # noqa: BLE001 - whoever receives just now is not to blame, nor other callbacks
                    _LOG.exception("a callback of %r failed", reply)

    def _settle(self, releases: Releases, reply: Reply | None, answer: data.CallReply) -> None:
        """Take an answer's leases, or give them back if nobody wants it; settle what its call has copied."""
        if reply is not None and reply._copies:
            executed = answer.error is None or bool(answer.error.fields.get("maybe_executed", True))
            copies, reply._copies = reply._copies, ()
            self._client.memory.answered(copies, releases, executed=executed)
        if reply is None or reply.done:
            releases.give_back(answer.leases)
        elif answer.leases:
            reply._leases = releases.leases(answer.leases)

    @interrupts.defer_interrupts
    def decode(self, body: bytes, frames: Sequence[memoryview], leases: Mapping[int, Lease]) -> Any:
        """Return the results in an answer that came with leases. Blocks, if their memory has to be asked for."""
        # With a decoder of its own: meanwhile others' callbacks may run.
        return values.Decoder[Any]().decode(body, frames, self._client.memory.resolver(leases))


_NOT_SENT: Final = {False: "never sent", True: "not sent again after its worker had ended"}

_encode_calls: Final = data.FROM_CLIENT.encode
_decode_replies: Final = data.FROM_WORKER.decode


def _refuse(_array: object) -> None:
    raise errors.InvalidRequest("a large array among the items of a call")


def _copy(lost: errors.PoolLost) -> errors.PoolLost:
    return errors.PoolLost(lost.message, maybe_executed=False)
