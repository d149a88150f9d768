"""Carries out the life of a lane's gang calls: sends their parts, and gives their replies the outcome.

`client.worlds` has the theory.
"""

from __future__ import annotations

import bisect
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, cast

from atomr_mp import checks, errors, tracing
from atomr_mp.client.lanes.backlog import Backlog
from atomr_mp.client.lanes.device_link import DeviceLink, unavailable
from atomr_mp.client.lanes.gang_streams import GangStreams
from atomr_mp.client.lanes.link_life import REFUSING
from atomr_mp.client.lanes.outcomes import Outcomes, forget_forked
from atomr_mp.client.lanes.retry_policy import NEVER, key_of, was_answered
from atomr_mp.client.lanes.sending import Sender
from atomr_mp.client.lanes.services import LazyMemory
from atomr_mp.client.lanes.session import PoolSession
from atomr_mp.client.reply import Reply
from atomr_mp.client.reply_life import ReplyEvent, ReplyState
from atomr_mp.client.worlds.arguments import GangArguments
from atomr_mp.client.worlds.gang_life import GangAction, GangEvent, GangState, step
from atomr_mp.client.worlds.gang_outcome import GangEnd, PartEnd, elsewhere, goes_again, judge
from atomr_mp.client.worlds.gang_reply import NOTHING, PART_DEADLINE_NS, GangPart, GangReply
from atomr_mp.client.worlds.gang_stream import PARTS, AnyGang, AnyPart, GangStream, goes_on
from atomr_mp.client.worlds.left_epochs import LeftEpochs
from atomr_mp.protocol.flow.flight import RETRY_AFTER_S
from atomr_mp.protocol.messages import data
from atomr_mp.protocol.messages.devices import WorldInfo, WorldState
from atomr_mp.protocol.words import counted

if TYPE_CHECKING:
    from atomr_mp.client.memory.argument_slabs import Placement


@checks.owned()
class Gangs:
    """A part of a lane. Call it with the lane's lock held.

    Args:
        make: Makes a part of this lane, of its id, method, deadline and body.
        session: The session with the supervisor.
        memory: The client's shared memory.
        links: The lane's links, by device.
        outcomes: Ends replies.
        sender: Sends requests.
        backlog: Counts the calls that wait.
        go_on: Settles the waiting calls, without the lock; called once a call has come back to its queue.
        read_for_room: Takes in the answers of a device whose window is full; False if somebody else does that.
        settle_later: Settles the waiting calls after so many seconds.
    """

    def __init__(
        self,
        make: Callable[[int, str, int, bytes], GangPart],
        session: PoolSession,
        memory: LazyMemory,
        links: Sequence[DeviceLink],
        outcomes: Outcomes,
        sender: Sender,
        backlog: Backlog,
        go_on: Callable[[Reply], object],
        read_for_room: Callable[[DeviceLink], bool],
        settle_later: Callable[[float], object],
    ) -> None:
        self._make = make
        self._session = session
        self._memory = memory
        self._links = links
        self._outcomes = outcomes
        self._sender = sender
        self._backlog = backlog
        self._streams = GangStreams(links, outcomes)
        self._go_on = go_on
        self._read_for_room = read_for_room
        self._settle_later = settle_later
        self._left = LeftEpochs()
        self._looks_later = False
        """Whether `settle_later` was called and has not come back."""
        self._worlds = session.worlds.by_number.copy()
        """The worlds as this lane knows them: no news overtakes that of the devices."""
        self._queues: dict[int, list[AnyGang]] = {}
        """Calls that wait for a ready epoch, or for room, by world; the earliest first."""
        self._open: dict[int, AnyGang] = {}
        """All calls that are not over, by id."""
        self._settling = False
        outcomes.part_ended = self.part_ended

    # --- for the lane ----------------------------------------------------------------------------------------------

    def enter(self, gang: AnyGang, *, waits: bool, blocks: bool) -> None:
        """Send a new call, or let it wait.

        Args:
            gang: The call.
            waits: Whether it waits for room.
            blocks: Whether its caller waits for room, so that it may always wait.

        Raises:
            DeviceUnavailable: The world is closed, or a member takes no work.
            PoisonRequest: It has ended workers, and is not admitted.
            Overloaded: There is no room, on one member at least; or too many calls wait.
        """
        world = self._worlds[gang.number]
        error = self._refusal(world)
        if error is not None:
            raise errors.unraised(error)
        self._admit(gang)
        ready, queue = self._is_ready(world), self._queues.get(world.number, [])
        if gang.once:  # links that are not made yet hold it, in its place among other requests
            ready = world.state is WorldState.READY and len(world.generations) == len(world.devices)
        if gang.once and not ready:
            raise errors.DeviceUnavailable(
                f"the world {world.name} has no ready epoch{f': {world.reason}' if world.reason else ''}; wait for it "
                "(`wait_ready`), and call again"
            )
        parts = self._let_in(gang, world) if ready and not queue else None
        if parts is None and ready and not queue and self._has_read(world):
            ready = ready if gang.once else self._is_ready(world)
            parts = self._let_in(gang, world) if ready else None
        if parts is not None:
            self._begin(gang)
            self._feed(gang, GangEvent.SEND, parts=parts)
            return
        if not waits or (gang.once and not blocks):  # other requests on its refs would overtake it
            if ready:
                raise self._full(gang, world)
            most = self._session.login.window.requests
            if len(queue) >= most:
                raise errors.Overloaded(
                    f"{counted(len(queue), 'call waits', 'calls wait')} for the next epoch of the world {world.name}, "
                    f"as many as may (window: {counted(most, 'request')})",
                    window=most,
                    retry_after_s=RETRY_AFTER_S,
                )
        assert gang.arguments is not None
        self._backlog.add_gang(gang.arguments.nbytes, bounded=not blocks)
        self._begin(gang)
        self._feed(gang, GangEvent.WAIT)
        gang.state = ReplyState.BACKLOG if ready else ReplyState.WAITING
        self._look_later(world)

    def _begin(self, gang: AnyGang) -> None:
        """Record a call that is not refused."""
        self._open[gang.id] = gang
        if (tracer := tracing.tracer) is not None:
            gang.trace, gang.span = tracer.begin(gang.method)

    def settle(self) -> None:
        """Send the calls that wait and can be sent now; end those of a world that takes no work."""
        if self._settling or not self._queues:  # sending may show that a connection is lost
            return
        self._settling = True
        try:
            for number in list(self._queues):
                while queue := self._queues.get(number):
                    if not self._settle(queue[0], self._worlds[number]):
                        self._look_later(self._worlds[number])
                        break
        finally:
            self._settling = False

    def settle_late(self) -> None:
        """Do that again: calls have waited for news for as long as they may."""
        self._looks_later = False
        self.settle()

    def _look_later(self, world: WorldInfo) -> None:
        """Have calls looked at again that are held for news of a world, if no news comes."""
        now_ns = time.monotonic_ns()
        until_ns = self._left.held_until_ns(world, now_ns)
        if until_ns is not None and not self._looks_later:
            self._looks_later = True
            self._settle_later((until_ns - now_ns) / 1e9)

    def changed(self, world: WorldInfo) -> None:
        """React to news of a world: parts that were meant for an epoch that is over are not sent."""
        self._worlds[world.number] = world
        self.sweep()
        self._forget_made(world)
        if world.state is not WorldState.READY:
            for gang in self._queues.get(world.number, ()):
                if gang.state is ReplyState.BACKLOG:
                    gang.state = ReplyState.WAITING
                    self._outcomes.tell_news(gang)

    def learn(self, world: WorldInfo) -> None:
        """Take in a world that this lane has not heard of yet."""
        self._worlds.setdefault(world.number, world)

    def _forget_made(self, world: WorldInfo) -> None:
        """Forget a world that the session has made, once it has ended and no call of it is left."""
        is_over = world.made and world.state is WorldState.ENDED
        if is_over and not any(gang.number == world.number for gang in self._open.values()):
            self._worlds.pop(world.number, None)
            self._left.forget(world.number)

    def sweep(self) -> None:
        """End the parts that were not sent, or were put back, and whose epoch is over."""
        for gang in list(self._open.values()):
            world = self._worlds[gang.number]
            if world.state is not WorldState.READY or world.epoch != gang.epoch:
                for part in gang.parts:
                    if part.state is ReplyState.WAITING:
                        self.stray(part)

    def stray(self, part: AnyPart) -> None:
        """End a part that was not sent: the process that it was meant for is no longer the device's."""
        gang = part.gang
        assert gang is not None
        world = self._worlds[gang.world]
        error = errors.CollectiveAborted(
            f"{part.method} was not sent to rank {part.rank} of the world {world.name}, which has left epoch "
            f"{gang.epoch}{f': {world.reason}' if world.reason else ''}",
            maybe_executed=False,
            world=world.name,
            epoch=gang.epoch,
            rank=world.rank,
            cause=world.reason,
        )
        self._outcomes.feed(part, ReplyEvent.FAIL, error)

    def part_ended(self, part: Reply) -> bool:
        """Note the end of a part; return whether `go_on` has to be called, since the call is sent again."""
        assert isinstance(part, PARTS)
        gang: AnyGang | None
        gang, part.of = part.of, None
        assert gang is not None
        gang.outstanding -= 1
        if part.error is not None and part.error.left_epoch:
            self._left.note(gang.number, gang.epoch, time.monotonic_ns())
        if gang.life is GangState.LATE:
            part.leases, part.frames, part.body = None, (), b""  # what it holds is given back
        if gang.outstanding:
            return False
        if gang.life is GangState.LATE:
            self._feed(gang, GangEvent.SETTLED)
            return False
        self._judge(gang)
        return gang.life is GangState.LINED_UP

    def give_up(self, gang: AnyGang, error: errors.AtomrError) -> None:
        """End the reply with an error, unless it is over. Its parts go on; those of a stream end on all ranks."""
        parts = gang.parts
        self._feed(gang, GangEvent.GIVE_UP, error)
        if parts and (isinstance(gang, GangStream) or isinstance(error, errors.Cancelled)):
            self._tell_left(parts[0])

    def _tell_left(self, part: AnyPart) -> None:
        """Tell the worker of rank 0 that its call was left. If its part is unsent, that follows it (`sending`)."""
        if part.state in {ReplyState.SENT, ReplyState.STREAMING}:
            self._links[part.device].tell_cancelled(part)

    def cancel(self, gang: AnyGang) -> None:
        """End the reply with `Cancelled`, unless it is over. No rank runs it, if rank 0 has not published it yet."""
        if gang.life is GangState.LINED_UP:
            why = f"cancelled before it was sent{' again' if gang.may_have_run else ''}"
        else:
            why = "cancelled; what its ranks have begun goes on"
        self.give_up(gang, errors.Cancelled(why))

    def open(self) -> list[AnyGang]:
        """Return all calls that are not over, and whose callers have no outcome."""
        return [gang for gang in self._open.values() if not gang.is_over]

    def reason_of(self, gang: AnyGang) -> str:
        """Return why a call's world is not ready, "" if it is."""
        return self._worlds[gang.number].reason

    def links_of(self, gang: AnyGang) -> list[DeviceLink]:
        """Return the links to a call's members."""
        return [self._links[device] for device in self._worlds[gang.number].devices]

    def pool_lost(self, lost: errors.PoolLost) -> None:
        """End all calls that no part has ended."""
        for gang in self.open():
            self.give_up(gang, lost.again(maybe_executed=False))

    def forget_in_child(self, lost: str) -> None:
        """End all replies in a forked child."""
        for gang in self.open():
            forget_forked(gang, lost)

    # --- decisions -------------------------------------------------------------------------------------------------

    def _refusal(self, world: WorldInfo) -> errors.DeviceUnavailable | None:
        """Return the error of a call to a world that takes no work, None if it takes some."""
        if world.state in {WorldState.ENDING, WorldState.ENDED}:
            return errors.DeviceUnavailable(
                f"the world {world.name} is closed{f': {world.reason}' if world.reason else ''}"
            )
        for rank, device in enumerate(world.devices):
            link = self._links[device]
            if link.state in REFUSING:
                error = unavailable(link)
                error.message = f"rank {rank} of the world {world.name} takes no work: {error.message}"
                error.rank = rank
                return error
        return None

    def _is_ready(self, world: WorldInfo) -> bool:
        """Return whether the processes of a ready epoch are those to which this lane sends, and have not left it."""
        if world.state is not WorldState.READY or len(world.generations) != len(world.devices):
            return False
        if self._left.held_until_ns(world, time.monotonic_ns()) is not None:
            return False
        links = [self._links[device] for device in world.devices]
        return all(
            link.sending and link.generation == generation
            for link, generation in zip(links, world.generations, strict=True)
        )

    def _has_read(self, world: WorldInfo) -> bool:
        """Take in the answers of all members; return False if somebody else does that."""
        return all(self._read_for_room(self._links[device]) for device in world.devices)

    def _full(self, gang: AnyGang, world: WorldInfo) -> errors.Overloaded:
        if isinstance(gang, GangStream) and (error := self._streams.room(world)) is not None:
            return error
        fullest = max((self._links[device] for device in world.devices), key=lambda link: len(link.flight.requests))
        error = fullest.flight.full()
        error.message = f"the call was sent to no rank of the world {world.name}: {error.message}"
        return error

    def _settle(self, gang: AnyGang, world: WorldInfo) -> bool:
        """Send a call that waits, or end it; return False if it goes on waiting."""
        error: errors.AtomrError | None = self._refusal(world)
        if error is None and not self._is_ready(world):
            return False
        try:
            parts = None if error is not None else self._let_in(gang, world)
        except errors.AtomrError as fault:
            parts, error = None, fault
        if error is not None:
            self.give_up(gang, error)
            return True
        if parts is None:
            gang.state = ReplyState.BACKLOG
            return False
        self._feed(gang, GangEvent.SEND, parts=parts)
        self._outcomes.tell_news(gang)
        return True

    def _let_in(self, gang: AnyGang, world: WorldInfo) -> list[AnyPart] | None:
        """Make a call's parts, and take credit for all; None, and no credit, if one has no room.

        Raises:
            PoisonRequest: It has ended workers, and is not admitted.
        """
        arguments, ids = gang.arguments, self._session.request_ids
        assert arguments is not None
        self._admit(gang)
        name = data.Gang(world.number, world.epoch, next(ids))
        parts: list[AnyPart] = []
        if isinstance(gang, GangStream):
            if self._streams.room(world) is not None:
                return None
            made: Iterator[AnyPart | None] = self._streams.parts(gang, world, name, ids)
        else:
            made = self._parts(gang, world, name)
        try:
            for rank, part in enumerate(made):
                if part is None:
                    self._take_back(parts)
                    return None
                part.device, part.rank, part.to_generation = world.devices[rank], rank, world.generations[rank]
                part.callbacks = [self._go_on]
                part.pinned, part.replays = True, NEVER
                parts.append(part)
                part.body, part.payload, placed = arguments.for_part(self._memory.place_again, rank)
                if gang.once:
                    part.kept, part.copies, part.refs, _, _ = self._memory.get().attach(placed, part.device)
                else:
                    part.kept = part.copies = cast("Sequence[Placement]", placed)  # refs are refused before
        except BaseException:
            self._take_back(parts)
            raise
        return parts

    def _admit(self, gang: AnyGang) -> None:
        """Look up the verdict on a call: it may have to run alone.

        Raises:
            PoisonRequest: It has ended workers, and is not admitted.
        """
        suspicions, arguments = self._session.suspicions, gang.arguments
        if isinstance(gang, GangStream) or not isinstance(arguments, GangArguments):
            return
        known = gang.method in suspicions.methods
        gang.alone = suspicions.admit(key_of(gang.method, arguments.decoded())) if known else None

    def _parts(self, gang: GangReply, world: WorldInfo, name: data.Gang) -> Iterator[GangPart | None]:
        """Yield a call's parts by rank, each with its credit; None for one that has no room."""
        assert gang.arguments is not None
        for device in world.devices:
            part = self._make(next(self._session.request_ids), gang.method, PART_DEADLINE_NS, gang.arguments.body)
            if not self._links[device].flight.let_in(part.id, part, gang.arguments.window_bytes):
                yield None
                return
            part.limit_ns, part.gang, part.of, part.alone = gang.deadline_ns, name, gang, gang.alone
            yield part

    def _take_back(self, parts: Sequence[AnyPart]) -> None:
        for part in parts:
            self._links[part.device].free(part)
            part.of = None

    def _judge(self, gang: AnyGang) -> None:
        """Give a call its outcome, or send it again: all of its parts have ended."""
        parts = gang.parts
        ends = [PartEnd(part.error, _executed(part), part.generation != 0) for part in parts]
        end = judge(ends, refused_first=gang.once and not gang.is_program)
        if end.executed:
            gang.may_have_run = True
        gang.ran_at = (*gang.ran_at, *(place for part in parts for place in part.ran_at))
        if gang.alone is not None and all(map(was_answered, parts)):
            self._session.acquit(gang)
        if end.error is None:
            first = parts[0]
            gang.device, gang.generation = first.device, first.generation
            if gang.each:
                gang.body = NOTHING
            else:
                gang.body, gang.frames, gang.leases = first.body, first.frames, first.leases
                gang.parts = ()
            self._feed(gang, GangEvent.SETTLED)
            return
        gang.parts = ()
        if not gang.once and self._is_sent_again(gang, end):
            assert gang.arguments is not None
            gang.replays += end.executed and not end.planned
            self._backlog.add_gang(gang.arguments.nbytes, bounded=False)
            self._feed(gang, GangEvent.AGAIN)
            return
        gang.device, gang.generation = parts[end.rank].device, parts[end.rank].generation
        if end.error.rank < 0 and not isinstance(end.error, OF_NO_RANK):
            end.error.rank = end.rank
        if gang.once and isinstance(end.error, errors.RequestError):
            end.error.maybe_executed = end.executed
        elif isinstance(end.error, errors.CollectiveAborted) and not end.error.maybe_executed and gang.may_have_run:
            end.error.message += elsewhere(ends)
        self._feed(gang, GangEvent.SETTLED, end.error)

    def _is_sent_again(self, gang: AnyGang, end: GangEnd) -> bool:
        info, most = self._session.methods.get(gang.method), self._session.max_replays
        if isinstance(gang, GangStream):
            return goes_on(end, gang, info, most)
        return goes_again(end, info, gang.replays, most, may_have_run=gang.may_have_run)

    # --- actions ---------------------------------------------------------------------------------------------------

    def _feed(
        self,
        gang: AnyGang,
        event: GangEvent,
        error: errors.AtomrError | None = None,
        parts: Sequence[AnyPart] = (),
    ) -> None:
        """Carry out an event's actions for a call."""
        gang.life, actions = step(gang.life, event)
        for action in actions:
            self._act(gang, action, error, parts)

    def _act(
        self, gang: AnyGang, action: GangAction, error: errors.AtomrError | None, parts: Sequence[AnyPart]
    ) -> None:
        match action:
            case GangAction.LINE_UP:
                gang.state = ReplyState.WAITING
                bisect.insort(self._queues.setdefault(gang.number, []), gang, key=lambda each: each.id)
            case GangAction.UNLIST:
                assert gang.arguments is not None
                queue = self._queues[gang.number]
                queue.remove(gang)
                if not queue:
                    del self._queues[gang.number]
                self._backlog.remove_gang(gang.arguments.nbytes)
            case GangAction.PUT:
                self._put(gang, parts)
                if gang.span is not None:
                    gang.span.place(gang.world, gang.epoch)
            case GangAction.DOUBT:
                gang.may_have_run = True
            case GangAction.FORGET:
                self._open.pop(gang.id, None)
                self._forget_made(self._worlds[gang.number])
            case GangAction.END:
                self._end(gang, error)

    def _end(self, gang: AnyGang, error: errors.AtomrError | None) -> None:
        """Give a call its outcome."""
        gang.state, gang.arguments = ReplyState.OVER, None
        if isinstance(gang, GangStream):
            self._outcomes.forget_parts(gang)
        else:
            gang.keeps = None
        if error is not None:
            gang.parts = ()
        self._outcomes.end(gang, error)
        self._outcomes.tell_news(gang)

    def _put(self, gang: AnyGang, parts: Sequence[AnyPart]) -> None:
        """Send a call's parts, rank 0's last: it is the one that orders all calls of its world."""
        name = parts[0].gang
        assert name is not None
        gang.parts = cast("Any", parts)  # each kind of call has its kind of parts
        gang.outstanding, gang.epoch, gang.state = len(parts), name.epoch, ReplyState.SENT
        if isinstance(gang, GangStream):
            gang.device, gang.generation = parts[0].device, parts[0].to_generation
        for part in reversed(parts):
            part.trace = gang.trace
            link = self._links[part.device]
            if link.generation != part.to_generation and (link.sending or not gang.once):
                # Sending has just shown it.
                self.stray(part)
                continue
            self._sender.put(link, part)
            if link.sending:
                self._sender.flush(link)
        gang.sent_ns = parts[0].sent_ns  # who waits for it will have read the session since then


def _executed(part: AnyPart) -> bool:
    """Return whether an ended part may have run."""
    error = part.error
    return error is None or part.may_have_run or (isinstance(error, errors.RequestError) and error.maybe_executed)


OF_NO_RANK: Final = (errors.CollectiveAborted, errors.PoolLost)
"""Errors that are not of the rank whose part has ended so: the first says itself where it came from."""
