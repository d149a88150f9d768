"""Sends a lane's requests: chooses the device and the time, and puts requests together."""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, cast

from atomr_mp import checks
from atomr_mp.client.lanes.device_link import DeviceLink, unavailable
from atomr_mp.client.lanes.homes import Home
from atomr_mp.client.lanes.link_life import REFUSING
from atomr_mp.client.reply import Reply, StreamReply
from atomr_mp.client.reply_life import ReplyEvent, ReplyState, step
from atomr_mp.client.worlds.gang_reply import GangPart
from atomr_mp.client.worlds.gang_stream import GangStreamPart
from atomr_mp.protocol import values
from atomr_mp.protocol.flow import limits
from atomr_mp.protocol.messages import data
from atomr_mp.protocol.tunnel.clock import PoolClock

MESSAGE_CALLS: Final = 16
"""Most calls put into one message; more would make the worker wait for the first."""


@checks.owned()
class Sender:
    """A part of a lane. Call it with the lane's lock held.

    Args:
        links: The lane's links, by device.
        give_back: Sends due releases to a link's incarnation; later calls come after them.
        reach: Tries again to reach an incarnation that could not be connected to.
        broken: Called when a message with these requests could not be sent.
        stray: Called with a request that is for another incarnation than a link's; ends it.
        clock: The workers' clock, by which they keep deadlines.
    """

    def __init__(
        self,
        links: Sequence[DeviceLink],
        give_back: Callable[[DeviceLink], None],
        reach: Callable[[DeviceLink], None],
        broken: Callable[[DeviceLink, list[Reply]], None],
        clock: PoolClock,
        stray: Callable[[Reply], None] = lambda _reply: None,
    ) -> None:
        self._links = links
        self._give_back = give_back
        self._reach = reach
        self._broken = broken
        self._clock = clock
        self._stray = stray

    def choose(self, home: Home | None = None) -> DeviceLink:
        """Return the link of the device with the fewest unanswered requests of this lane.

        Args:
            home: The devices among which to choose; None for all.

        Raises:
            DeviceUnavailable: None of them takes work.
        """
        links = self._links if home is None else [self._links[device] for device in home]
        best = links[0]
        if len(links) > 1:
            for link in links:
                if not link.sending:
                    self._reach(link)
                if link.sending and (not best.sending or len(link.flight.requests) < len(best.flight.requests)):
                    best = link
        if best.sending:
            return best
        waiting = [link for link in links if link.state not in REFUSING]
        if not waiting:
            raise unavailable(links[0])
        return min(waiting, key=lambda link: len(link.flight.requests))

    def put(self, link: DeviceLink, reply: Reply) -> None:
        """Send a stream, or a request that has to run alone; queue any other. Hold all if the device takes none now.

        None overtakes a gated one. One that is for another incarnation ends.
        """
        if link.sending and reply.to_generation not in (0, link.generation):
            self._stray(reply)
            return
        if link.in_order:
            if not link.sending:
                link.held.append(reply)
                return
            link.outbox.append(reply)
            link.in_order = True
            if _goes_by_itself(reply):
                self.flush(link)
            return
        if link.outbox and _goes_by_itself(reply):
            self.flush(link)  # it must not overtake requests whose outputs it may read
        if not link.sending:
            link.held.append(reply)
        elif _goes_by_itself(reply):
            self._send_by_itself(link, reply)
        else:
            link.outbox.append(reply)

    def send_held(self, link: DeviceLink) -> None:
        """Send all waiting requests, held ones first."""
        for reply in [*link.held]:
            if reply.to_generation not in (0, link.generation):
                self._stray(reply)
        held, link.held = link.held, deque()
        link.outbox[:0] = held
        link.in_order = link.in_order or any(map(_goes_by_itself, held))
        self.flush(link)

    def end_stale(self, link: DeviceLink, ended: int) -> None:
        """End the requests that wait for an incarnation that has ended; worlds see to the parts of their calls."""
        for reply in [*link.held]:
            if reply.to_generation == ended and reply.gang is None:
                self._stray(reply)

    def flush_ready(self) -> None:
        """Send the queued requests of all devices that take calls."""
        for link in self._links:
            if link.sending and (link.held or link.outbox):
                self.send_held(link)

    def flush(self, link: DeviceLink) -> None:
        """Send a link's outbox."""
        if link.in_order:
            self._flush_in_order(link)
            return
        while link.outbox and link.sending:
            self._send_first(link, MESSAGE_CALLS)

    def _flush_in_order(self, link: DeviceLink) -> None:
        """Send an outbox up to the first gated request."""
        outbox, gated = link.outbox, link.gated
        while outbox and link.sending and outbox[0] not in gated:
            if _goes_by_itself(outbox[0]):
                self._send_by_itself(link, outbox.pop(0))
                continue
            together = itertools.takewhile(
                lambda reply: reply not in gated and not _goes_by_itself(reply), outbox[:MESSAGE_CALLS]
            )
            self._send_first(link, len(list(together)))
        link.in_order = bool(outbox or gated)

    def _send_first(self, link: DeviceLink, count: int) -> None:
        """Send the first requests of an outbox in one message, if that is not too long."""
        together = link.outbox[:count]
        del link.outbox[:count]
        nbytes = sum([len(reply.body) for reply in together])
        nbytes += sum([sum(map(len, reply.payload)) for reply in together if reply.payload])
        if nbytes <= limits.MAX_BODY_BYTES:
            self.send(link, together)
            return
        for reply in together:  # one message for all could be too long, which would end the connection
            self._send_or_hold(link, reply)

    def _send_by_itself(self, link: DeviceLink, reply: Reply) -> None:
        if isinstance(reply, StreamReply):
            self.open_stream(link, reply)
        else:
            self.send(link, [reply], data.Alone)

    def _send_or_hold(self, link: DeviceLink, reply: Reply) -> None:
        if link.sending:
            self.send(link, [reply])
        else:  # the connection has just turned out to be lost
            link.held.append(reply)

    def send(self, link: DeviceLink, replies: list[Reply], kind: type[data.Calls] = data.Calls) -> None:
        """Send requests in one message.

        The table's step (`WAITING`, `SEND`) is written out here, since each call takes this way.
        """
        connection = link.connection
        assert connection is not None
        calls: list[data.Call] = []
        frames: list[values.Buffer] = []
        now_ns = time.monotonic_ns()
        generation, releases, sent, ahead_ns = link.generation, link.releases, ReplyState.SENT, self._clock.ahead_ns
        if releases.pending or releases.ending:
            self._give_back(link)
        left: list[GangPart] = []
        for reply in replies:
            part = None if reply.gang is None else cast("GangPart", reply)
            reply.sent_ns = now_ns
            reply.generation = generation
            reply.state = sent
            payload = reply.payload
            if payload:
                frames += payload
            calls.append(
                data.Call(
                    reply.id,
                    reply.method,
                    (reply.deadline_ns if part is None else part.limit_ns) + ahead_ns,
                    len(payload),
                    reply.body,
                    reply.refs,
                    reply.priority,
                    reply.trace,
                    reply.items,
                    reply.gang,
                    reply.submitted_ns and max(reply.submitted_ns + ahead_ns, 0),
                )
            )
            if part is not None and not part.rank and part.of is not None and part.of.is_over:
                left.append(part)
        connection.send(_encode_calls(kind(link.token, calls, releases.serial)), frames)
        if connection.broken:
            self._broken(link, replies)
            return
        for part in left:  # nobody has wanted it since before it was sent
            link.tell_cancelled(part)

    def open_stream(self, link: DeviceLink, stream: StreamReply) -> None:
        """Send a stream's request, with the credit that its reader has given so far."""
        connection, releases = link.connection, link.releases
        assert connection is not None
        if releases.pending or releases.ending:
            self._give_back(link)
        stream.sent_ns = time.monotonic_ns()
        stream.generation = link.generation
        stream.state = step(stream.state, ReplyEvent.OPEN).state
        part = stream if isinstance(stream, GangStreamPart) else None
        call = data.StreamCall(
            stream.id,
            stream.method,
            (stream.deadline_ns if part is None else part.limit_ns) + self._clock.ahead_ns,
            len(stream.payload),
            stream.body,
            stream.credit.parts,
            stream.credit.nbytes,
            stream.between_ns,
            stream.until_ns + self._clock.ahead_ns,
            stream.refs,
            stream.priority,
            stream.trace,
            stream.credit.received,
            stream.credit.received_bytes,
            stream.sent,
            stream.gang,
            stream.submitted_ns and max(stream.submitted_ns + self._clock.ahead_ns, 0),
        )
        message = data.Streams(link.token, [call], releases.serial, stream.alone is not None)
        connection.send(_encode_calls(message), list(stream.payload))
        if connection.broken:
            self._broken(link, [stream])
        elif part is not None and part.of is not None and part.of.is_over and not part.rank:
            link.tell_cancelled(part)  # its reader has left it before it was sent


def _goes_by_itself(reply: Reply) -> bool:
    return reply.alone is not None or isinstance(reply, StreamReply)


_encode_calls: Final = data.FROM_CLIENT.encode
