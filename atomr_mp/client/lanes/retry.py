"""What becomes of a lane's requests that a worker's end took along: they are sent again, have to wait, or fail.

What may be sent again, and how, `replay` says.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from atomr_mp import errors
from atomr_mp.client.lanes.device_link import CLOSED, DeviceLink, unavailable
from atomr_mp.client.lanes.retry_policy import Lost, identify, identify_items, may_replay, poison
from atomr_mp.client.reply import ItemsReply
from atomr_mp.protocol.messages.session import IncarnationEnded
from atomr_mp.protocol.messages.suspects import RequestKey, Suspicion, Suspicions, Verdict

if TYPE_CHECKING:
    from atomr_mp.client.client import Client
    from atomr_mp.client.lanes.base import Lane
    from atomr_mp.client.reply import Reply


class Retry:
    """A part of a lane, to be called with its lock held.

    Args:
        lane: The lane.
        client: Whose lane it is.
    """

    def __init__(self, lane: Lane, client: Client) -> None:
        self._lane = lane
        self._client = client

    def isolate(self, reply: Reply, request: RequestKey) -> None:
        """Have a request run alone, and the supervisor told if its worker lives."""
        if reply._alone is None:
            reply._callbacks = [*(reply._callbacks or ()), self._client.acquit]
        reply._alone = request

    def settle(self, link: DeviceLink, ended: IncarnationEnded, lost: list[tuple[Reply, errors.RequestError]]) -> None:
        """Send again what was on an incarnation that has ended, if it may be, and fail the rest.

        If any of it may be what the incarnation died of, that is done when the supervisor has said what is held of it.
        """
        suspects: dict[Reply, RequestKey] = {}
        items: list[RequestKey] = []
        for reply, _ in lost:
            if reply.id in ended.suspects and reply.method in self._client.methods:
                request = identify(reply)
                if request is not None:
                    suspects[reply] = request
                elif isinstance(reply, ItemsReply):
                    items += identify_items(reply)
        told = [*suspects.values(), *items]
        report = self._client.report(ended.device, ended.generation, told) if told else 0
        for reply, error in reversed(lost):
            if error.maybe_executed:
                reply._may_have_run = True
                reply._replays += getattr(error, "was_running", True)
            again = may_replay(reply, self._client.methods.get(reply.method), self._client.max_replays)
            link.parked[reply] = Lost(report, error, suspects.get(reply), again)
            if not report:
                self._resume(link, reply)

    def judged(self, message: Suspicions) -> None:
        """Take note of what is held of requests; the client has done so already."""
        for link in self._lane._links:
            if message.changed:
                self._look_again(link)
            for reply in [reply for reply, lost in link.parked.items() if lost.report == message.id]:
                self._resume(link, reply)
        self._lane._flush_ready()

    def _resume(self, link: DeviceLink, reply: Reply) -> None:
        """Send a request again, or fail it, by what is held of it."""
        lost = link.parked.pop(reply)
        found = self._held_of(reply, lost.suspect)
        error: errors.AtomrError = lost.error
        if found is not None and found.verdict is Verdict.QUARANTINED:
            error = poison(found, maybe_executed=lost.error.maybe_executed)
        elif lost.again and not reply.done and not reply._cancelled:
            alone = lost.suspect if found is None else found.request
            if alone is not None:
                self.isolate(reply, alone)
            reply._sent_generation = 0
            to = self._another(link, reply)
            if to.sending or to.info.state not in CLOSED:
                self._lane._put(to, reply, first=True)
                return
            link, error = to, unavailable(to.info)
        elif reply._cancelled:
            error = errors.Cancelled("cancelled, and its worker has ended", maybe_executed=lost.error.maybe_executed)
        link.flight.take(reply.id)
        self._lane._end(reply, error)

    def _another(self, link: DeviceLink, reply: Reply) -> DeviceLink:
        """Go over to whichever device a request is to be sent to again; what may end workers stays where it was."""
        if reply._pinned or (reply._alone is not None and link.info.state not in CLOSED):
            return link
        try:
            to = self._lane._place()
            if to is not link:
                to.flight.add(reply.id, reply, len(reply._body) + sum(map(len, reply._payload)))
        except (errors.DeviceUnavailable, errors.Overloaded):
            return link
        if to is not link:
            link.flight.take(reply.id)
            reply._link = to
        return to

    def _look_again(self, link: DeviceLink) -> None:
        """Look again at what waits to be sent, as at the door."""
        for reply in [*link.held, *link.outbox]:
            if isinstance(reply, ItemsReply) and reply.method in self._client.suspicions.methods:
                (link.held if reply in link.held else link.outbox).remove(reply)
                link.flight.take(reply.id)
                self._lane._end(reply, errors.InvalidRequest(f"some request of {reply.method} has ended workers"))
                continue
            found = self._held_of(reply, None)
            if found is None or reply._alone is not None:
                continue
            (link.held if reply in link.held else link.outbox).remove(reply)
            if found.verdict is Verdict.QUARANTINED:
                link.flight.take(reply.id)
                self._lane._end(reply, poison(found, maybe_executed=False))
            else:
                self.isolate(reply, found.request)
                self._lane._put(link, reply)

    def _held_of(self, reply: Reply, request: RequestKey | None) -> Suspicion | None:
        """Return what is held of a request, of which it may be known already which it is."""
        if reply.method not in self._client.suspicions.methods:
            return None
        if request is None:
            request = identify(reply)
        return None if request is None else self._client.suspicions.of(request)
