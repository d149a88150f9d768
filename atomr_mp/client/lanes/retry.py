"""Sends again, parks or fails the requests that a lane has lost with a worker.

`retry_policy` decides which may be sent again, and how.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from atomr_mp import checks, errors
from atomr_mp.client.fingerprint import is_of_library
from atomr_mp.client.lanes.admission import BacklogAdmission
from atomr_mp.client.lanes.backlog import Backlog
from atomr_mp.client.lanes.device_link import DeviceLink, unavailable
from atomr_mp.client.lanes.homes import Home, home_for
from atomr_mp.client.lanes.link_life import REFUSING
from atomr_mp.client.lanes.outcomes import Outcomes
from atomr_mp.client.lanes.retry_policy import Lost, identify, identify_items, may_replay, may_write, poison
from atomr_mp.client.lanes.sending import Sender
from atomr_mp.client.lanes.services import LazyMemory
from atomr_mp.client.lanes.session import PoolSession
from atomr_mp.client.memory.leases import Hold, Releases
from atomr_mp.client.reply import ItemsReply, Reply, StreamReply
from atomr_mp.client.reply_life import ReplyEvent, ReplyState
from atomr_mp.protocol.messages.devices import Resumes
from atomr_mp.protocol.messages.session import IncarnationEnded
from atomr_mp.protocol.messages.suspects import RequestKey, Suspicion, Suspicions, Verdict

RELAYED: Final = "; the pool's relay, which carried the connection, has lost it"
"""Ends the text of a lost connection of a remote client."""


@checks.owned()
class Retry:
    """A part of a lane. Call it with the lane's lock held.

    Args:
        session: The session with the supervisor.
        memory: The client's shared memory.
        links: The lane's links, by device.
        outcomes: Ends replies.
        sender: Sends requests.
        backlog: Calls that wait for room.
        admission: Sends waiting calls.
    """

    def __init__(
        self,
        session: PoolSession,
        memory: LazyMemory,
        links: Sequence[DeviceLink],
        outcomes: Outcomes,
        sender: Sender,
        backlog: Backlog,
        admission: BacklogAdmission,
    ) -> None:
        self._session = session
        self._memory = memory
        self._links = links
        self._outcomes = outcomes
        self._sender = sender
        self._backlog = backlog
        self._admission = admission

    def isolate(self, reply: Reply, request: RequestKey) -> None:
        """Mark a request to run alone; if its worker survives that, report it to the supervisor."""
        if reply.alone is None:
            reply.callbacks = [*(reply.callbacks or ()), self._session.acquit]
        reply.alone = request

    def resolve(self, link: DeviceLink, ended: IncarnationEnded, lost: list[tuple[Reply, errors.RequestError]]) -> None:
        """Send the requests of an ended incarnation again where allowed, and fail the rest.

        Suspects wait for the supervisor's verdict.
        """
        suspects: dict[Reply, RequestKey] = {}
        items: list[RequestKey] = []
        suspected = [reply for reply, _ in lost if reply.id in ended.suspects]
        for reply in suspected:
            if reply.method in self._session.methods or is_of_library(reply.method):
                request = identify(reply)
                if request is not None:
                    suspects[reply] = request
                elif isinstance(reply, ItemsReply):
                    items += identify_items(reply)
        told = [*suspects.values(), *items]
        # The supervisor waits for the report, even an empty one, before it stops the device.
        report = self._session.report(ended.device, ended.generation, told) if suspected else 0
        if not told:
            report = 0
        for reply, error in reversed(lost):
            if error.maybe_executed:
                reply.may_have_run = True
                if getattr(error, "was_running", True):
                    reply.replays += 1
                    reply.ran_at = (*reply.ran_at, (ended.device, ended.generation))
            self._park(link, reply, Lost(report, error, suspects.get(reply), self._may_replay(reply)))

    def lose(self, link: DeviceLink, replies: Sequence[Reply]) -> None:
        """Send the requests of a lost connection again where allowed, and fail the rest.

        Nobody knows whether the failed requests have run. So waiting requests fail too if they use memory that a failed
        one may have written: their callers relied on its having run before them.
        """
        unwritten: dict[tuple[Releases, int], Reply] = {}
        for reply in reversed(replies):
            held = _buffers(reply) if reply.refs and self._may_write(reply) else ()
            unwritten.update(dict.fromkeys(held, reply))
            error = reply.poison_error or errors.ConnectionLost(
                f"the connection to device {link.device} ended before the answer to {reply.method} came; its worker "
                f"lives{RELAYED if self._session.carried else ''}",
                device=link.device,
                generation=link.generation,
            )
            reply.may_have_run = True
            reply.replays += 1
            copies = reply.copies
            self._park(link, reply, Lost(0, error, None, self._may_replay(reply)))
            if copies and reply.state is ReplyState.OVER:
                self._memory.get().abandoned(copies, link.releases, reply.deadline_ns)
            elif copies:
                self._memory.get().sent_again(copies, reply.deadline_ns)
        if unwritten:
            self._refuse_behind(link, unwritten)

    def _refuse_behind(self, link: DeviceLink, unwritten: Mapping[tuple[Releases, int], Reply]) -> None:
        """Fail waiting requests that were called after a lost one that may have written the same memory."""
        for reply in [*link.held, *link.outbox, *self._backlog.all()]:
            writer = next((unwritten[each] for each in _buffers(reply) if each in unwritten), None)
            if writer is not None:
                error = errors.GpuRefUndefined(
                    f"{reply.method} was to run after request {writer.id} ({writer.method}), which may write the same "
                    "memory and was lost with its connection; not sent: call it again to use its present content",
                    maybe_executed=False,
                    device=link.device,
                    failed_method=writer.method,
                    failed_request=writer.id,
                    failed_with=errors.ConnectionLost.code,
                )
                self._outcomes.feed(reply, ReplyEvent.FAIL, error)

    def _may_write(self, reply: Reply) -> bool:
        return may_write(reply.method, self._session.methods.get(reply.method))

    def move(self, link: DeviceLink) -> None:
        """Move resumable streams elsewhere at once, since their worker is finishing."""
        for _, stream in reversed(link.flight.items()):
            if (
                isinstance(stream, StreamReply)
                and stream.state is ReplyState.STREAMING
                and stream.generation == link.generation
                and stream.resumes is not Resumes.NEVER
            ):
                link.tell_cancelled(stream)
                self._another(link, stream)
                self._outcomes.feed(stream, ReplyEvent.MOVE)

    def spread(self) -> None:
        """Move waiting requests that name no device to devices that take calls, as far as these have room.

        Suspects stay until their device takes no work: no worker but that device's next one is put at risk before. What
        waits for a device that takes no work also goes to one that does not take calls yet, or waits for room.
        """
        for link in self._links:
            if link.held and not link.sending:
                for reply in [*link.held]:
                    self._spread(link, reply)

    def _spread(self, link: DeviceLink, reply: Reply) -> None:
        leaves = link.state in REFUSING
        if reply.pinned or (reply.alone is not None and not leaves):
            return
        if not (leaves or any(each.sending for each in self._links_of(reply))):
            return
        if reply not in link.held:  # sending an earlier one showed that a connection is lost
            return
        to = self._another(link, reply)
        if to is not link:
            link.held.remove(reply)
            self._sender.put(to, reply)
        elif leaves and self._may_wait(reply):
            self._line_up(reply)

    def judged(self, message: Suspicions) -> None:
        """Apply new quarantine verdicts to the requests that wait for one."""
        for link in self._links:
            if message.changed:
                self._look_again(link)
        if message.changed:
            self._look_at_backlog()
        for link in self._links:
            for reply in [reply for reply, lost in link.parked.items() if lost.report == message.id]:
                self._resume(link, reply)
        self.spread()
        self._admission.settle()

    def _may_replay(self, reply: Reply) -> bool:
        return may_replay(reply, self._session.methods.get(reply.method), self._session.max_replays)

    def _park(self, link: DeviceLink, reply: Reply, lost: Lost) -> None:
        """Take a request back from its worker; resume it at once if no verdict is awaited."""
        error: errors.AtomrError = lost.error
        if reply.state is ReplyState.CANCELLING:
            error = errors.Cancelled("cancelled, and its worker has ended", maybe_executed=lost.error.maybe_executed)
        self._outcomes.feed(reply, ReplyEvent.LOST, error)
        if reply.state is ReplyState.PARKED:
            link.parked[reply] = lost
            if not lost.report:
                self._resume(link, reply)

    def _resume(self, link: DeviceLink, reply: Reply) -> None:
        """Send a request again, or fail it, by the verdict on it."""
        lost = link.parked.pop(reply)
        found = self._held_of(reply, lost.suspect)
        if found is not None and found.verdict is Verdict.QUARANTINED:
            error: errors.AtomrError = poison(found, maybe_executed=lost.error.maybe_executed)
        elif lost.again:
            alone = lost.suspect if found is None else found.request
            if alone is not None:
                self.isolate(reply, alone)
            to = self._another(link, reply)
            if to.state not in REFUSING or self._may_wait(reply):
                self._outcomes.feed(reply, ReplyEvent.RESUME)  # from a device that takes no work `spread` moves it on
                return
            error = unavailable(to)
        else:
            error = lost.error
        self._outcomes.feed(reply, ReplyEvent.FAIL, error)

    def _another(self, link: DeviceLink, reply: Reply) -> DeviceLink:
        """Choose the device that a request is sent to instead, and move its credit there; a suspect stays if it can."""
        if reply.pinned or (reply.alone is not None and link.state not in REFUSING):
            return link
        try:
            to = self._sender.choose(self._home(reply))
            if to is not link and isinstance(reply, StreamReply):
                to.flight.add_stream(reply.id, reply)
            elif to is not link:
                to.flight.add(reply.id, reply, _nbytes(reply))
        except (errors.DeviceUnavailable, errors.Overloaded):
            return link
        if to is not link:
            link.free(reply)
            reply.device = to.device
        return to

    def _may_wait(self, reply: Reply) -> bool:
        """Return whether a request whose device takes no work can wait for room on another device."""
        return not reply.pinned and any(each.state not in REFUSING for each in self._links_of(reply))

    def _line_up(self, reply: Reply) -> None:
        """Let a request of a device that takes no work wait for room on the others, which have none now.

        It has been let in once, so it is not refused if many wait.
        """
        nbytes = 0 if isinstance(reply, StreamReply) else _nbytes(reply)
        self._outcomes.feed(reply, ReplyEvent.CROWDED)
        copied = sum([each.nbytes for each in reply.copies])
        self._backlog.add(reply, self._home(reply), nbytes, _nbytes(reply) + copied, bounded=False)

    def _links_of(self, reply: Reply) -> Sequence[DeviceLink]:
        """Return the links by which a request without a device may go."""
        home = self._home(reply)
        return self._links if home is None else [self._links[device] for device in home]

    def _home(self, reply: Reply) -> Home | None:
        """Return the devices that a request may go to; None for any."""
        homes = self._session.homes
        return home_for(homes, reply.method, None) if homes else None

    def _look_again(self, link: DeviceLink) -> None:
        """Apply new verdicts to requests that wait to be sent, as if they were called now."""
        for reply in [*link.held, *link.outbox]:
            alone = self._looked_at(reply)
            if alone is not None:
                link.dequeue(reply)
                self.isolate(reply, alone)
                self._sender.put(link, reply)

    def _look_at_backlog(self) -> None:
        """Apply new verdicts to calls that wait for room."""
        for reply in self._backlog.all():
            alone = self._looked_at(reply)
            if alone is not None:
                self.isolate(reply, alone)

    def _looked_at(self, reply: Reply) -> RequestKey | None:
        """Refuse a request that must not be sent, by what is known now; return its key if it has to run alone now.

        Of a world's call all parts are sent in one way, so news reach it when it is sent again.
        """
        if reply.gang is not None:
            return None
        if isinstance(reply, ItemsReply) and reply.method in self._session.suspicions.methods:
            error = errors.InvalidRequest(f"some request of {reply.method} has ended workers")
            self._outcomes.feed(reply, ReplyEvent.FAIL, error)
            return None
        found = self._held_of(reply, reply.alone)
        if found is not None and found.verdict is Verdict.QUARANTINED:
            self._outcomes.feed(reply, ReplyEvent.FAIL, poison(found, maybe_executed=False))
            return None
        return None if found is None or reply.alone is not None else found.request

    def _held_of(self, reply: Reply, request: RequestKey | None) -> Suspicion | None:
        """Return the verdict on a request, if one is known already."""
        if reply.method not in self._session.suspicions.methods:
            return None
        if request is None:
            request = identify(reply)
        return None if request is None else self._session.suspicions.of(request)


def _nbytes(reply: Reply) -> int:
    """Return the bytes that a request takes in a window."""
    return len(reply.body) + sum(map(len, reply.payload))


def _buffers(reply: Reply) -> list[tuple[Releases, int]]:
    """Return the buffers of the refs among a request's arguments."""
    return [(each.releases, each.buffer) for each in reply.kept if isinstance(each, Hold)]
