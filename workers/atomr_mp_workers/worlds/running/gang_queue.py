"""The queue of a world's thread: parts of calls, and steps of streams, in the ring's order. With the loop's turn."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Final, Protocol

from atomr_mp import errors
from atomr_mp.protocol.world import EntryKind, NoteKind, RingEntry
from atomr_mp.protocol.world.page import MAX_RANKS
from atomr_mp_workers.requests import operands
from atomr_mp_workers.requests.kinds.stream import StreamRequest
from atomr_mp_workers.requests.kinds.stream_life import StreamState
from atomr_mp_workers.requests.method import Method
from atomr_mp_workers.requests.request import Request
from atomr_mp_workers.worlds.order.batches import BatchedPart
from atomr_mp_workers.worlds.order.joined_epoch import JoinedEpoch
from atomr_mp_workers.worlds.order.shared_steps import Role, SteppedPart, unpack_roles
from atomr_mp_workers.worlds.order.steps import MOVED, UNWANTED, PartKey, StreamEnd

NUMBER_BITS: Final = 32
"""The epoch stands above so many bits of a stream's number."""


class StreamsTogether(Protocol):
    """The streams of a method with steps; see `GangSteppedMethod`."""

    def __contains__(self, key: object, /) -> bool: ...

    @property
    def method(self) -> Method:
        """The method."""

    @property
    def has_streams(self) -> bool:
        """Whether streams have begun whose end the method does not know."""

    @property
    def open_streams(self) -> list[StreamRequest]:
        """Streams that have begun and not ended here."""

    def why_unfit(self, live: Sequence[PartKey], gone: Sequence[PartKey], new: dict[PartKey, StreamRequest], /) -> str:
        """Return why this process cannot take a step, "" if it can."""

    def stream_of(self, key: PartKey, /) -> StreamRequest:
        """Return a stream that has begun."""

    def prepare(
        self, ready: dict[PartKey, bool], new: dict[PartKey, StreamRequest], gone: dict[PartKey, errors.AtomrError], /
    ) -> StreamRequest:
        """Take in what the next step does; return a stream that stands for it."""

    def leave(self, error: errors.AtomrError, /) -> StreamRequest | None:
        """Have all streams end outside of their epoch; return one that stands for that step, None if there is none."""


class GangQueue:
    """Parts that have come and have not begun, and calls with examples, which need no order.

    It has the interface of `FairQueue`. A part is known from its arrival (`arrive`), and may begin once the dispatcher
    has put it here (`add`), since its memory has its place in the order of borrows then. A stream that has begun rests
    here between its steps. Outside of an epoch those that were left over are given out once more, to end.
    """

    levels: Final[Mapping[int, object]] = {}
    """None: the order of the ring is the only one."""

    def __init__(self) -> None:
        self.epoch: JoinedEpoch | None = None
        """The epoch whose ring gives the order; None outside of one."""
        self.sequence = 0
        """The number of the entry that was given out last; 0 for an example."""
        self.apart: Request | None = None
        """The part that was given out last, while it waits until it can run alone; nothing is given out meanwhile."""
        self.discard: Callable[[Request], object] = lambda _request: None
        """Drops a part whose session has ended, or whose caller has cancelled it; set by whoever makes the envelope."""
        self.expire: Callable[[Request], object] = lambda _request: None
        """Answers a part of a call that could not begin in time."""
        self.decline: Callable[[Request], object] = lambda _request: None
        """Answers a part of a call that no member runs."""
        self.give_up: Callable[[str], object] = lambda _reason: None
        """Has the epoch end, since this process cannot do what the ring says; takes why."""
        self.together: Sequence[Request] = ()
        """The requests of the entry that was given out last, in their order."""
        self.explain: Callable[[StreamEnd], errors.AtomrError] = lambda _end: errors.Cancelled("cancelled")
        """Returns the error of a stream that ends on all ranks; set by the membership."""
        self._streams: dict[PartKey, StreamRequest] = {}
        """Streams that have begun and not ended, but those that run together with others."""
        self.stepped: Final[dict[str, StreamsTogether]] = {}
        """Methods whose streams run together, by name; they put themselves here."""
        self.numbers = itertools.count(1)
        """Numbers for such streams. They begin by the ring, so each has the same number on all ranks."""
        self._left: Callable[[], errors.AtomrError] | None = None
        """Makes the error of streams whose epoch was left; None in an epoch."""
        self._leaving: deque[StreamRequest] = deque()
        """Streams that are to end outside of their epoch."""
        self._parts: dict[PartKey, Request] = {}
        self._added: set[PartKey] = set()
        self._examples: deque[Request] = deque()

    def __len__(self) -> int:
        return len(self._parts) + len(self._examples) + len(self._leaving)

    def __bool__(self) -> bool:
        # Also an entry without a part here has to be passed over.
        return bool(self._examples or self._leaving) or self.epoch is not None

    def __contains__(self, key: object) -> bool:
        return key in self._parts or key in self._streams or any(key in each for each in self.stepped.values())

    @property
    def has_streams(self) -> bool:
        """Whether streams have begun and not ended."""
        return bool(self._streams) or any(each.has_streams for each in self.stepped.values())

    @property
    def open_streams(self) -> list[StreamRequest]:
        """Streams that have begun and not ended here."""
        return [*self._streams.values(), *(stream for each in self.stepped.values() for stream in each.open_streams)]

    @property
    def has_parts(self) -> bool:
        """Whether something may still be published that begins here."""
        return bool(self._parts or self._streams)

    @property
    def is_settled(self) -> bool:
        """Whether nothing begins here while a suspect waits: others may wait for what is published, so it does begin.

        Behind a suspect of this world nothing begins on any member.
        """
        epoch = self.epoch
        if epoch is None:
            return not self._leaving
        return self.apart is not None or not self.has_parts or (epoch.is_held and epoch.next() is None)

    def enter(self, epoch: JoinedEpoch) -> None:
        """Give out what the ring of an epoch says."""
        self.epoch, self._left = epoch, None
        self.numbers = itertools.count((epoch.number << NUMBER_BITS) + 1)

    def leave(self, error: Callable[[], errors.AtomrError]) -> None:
        """Leave the epoch. Its open streams are given out once more, to end with this error."""
        self.epoch, self._left = None, error
        for stream in self._streams.values():
            if stream.state is StreamState.READY:
                self._let_end(stream)
        for each in self.stepped.values():
            self._let_end_together(each)

    def rest(self, stream: StreamRequest) -> None:
        """Take a stream back that has taken a step and goes on."""
        if self._left is not None:
            self._let_end(stream)
        else:
            self.tell_room(stream)

    def rest_together(self, stepped: StreamsTogether, going: Sequence[StreamRequest]) -> None:
        """Take back the streams of a method that have taken a step and go on."""
        if self._left is not None:
            self._let_end_together(stepped)
        elif self.epoch is not None and self.epoch.publisher is not None:
            for stream in going:
                self.tell_room(stream)
            self.epoch.publisher.shared.rested(stepped.method.name)

    def tell_room(self, stream: StreamRequest) -> None:
        """As rank 0, take in whether the reader of a resting stream has room."""
        key = key_of(stream)
        if key is not None and self.epoch is not None and self.epoch.publisher is not None:
            order = self.epoch.publisher.order_of(key)
            order.set_room(key, has_room=bool(stream.credit))

    def end(self, stream: StreamRequest, error: errors.AtomrError) -> None:
        """As rank 0, have a stream end on all ranks; its part here ends with this error if it has begun."""
        key = key_of(stream)
        if stream.closing is not None or self.withdraw(stream):
            return
        if key is not None and self.epoch is not None and self.epoch.publisher is not None:
            stream.unwanted = stream.unwanted or error
            self.epoch.publisher.end(key, MOVED if _is_planned(error) else UNWANTED)
            self.epoch.wake_loop()

    def left_behind(self, why: str) -> errors.AtomrError:
        """Return the error of a stream that is not read while its epoch ends as planned; takes why."""
        error = self.explain(MOVED)
        error.message += f", and was ended: {why}"
        return error

    def withdraw(self, request: Request) -> bool:
        """As rank 0, have no rank begin a cancelled call that was not published; return whether none does."""
        key = key_of(request)
        if key is None or self.epoch is None or self.epoch.publisher is None or not self.epoch.publisher.withdraw(key):
            return False
        request.closing = errors.Cancelled("cancelled before it began", maybe_executed=False)
        self.epoch.wake_loop()
        return True

    def forget(self, stream: StreamRequest) -> None:
        """Take in that a stream has ended here."""
        key = key_of(stream)
        if key is not None:
            self._streams.pop(key, None)

    def is_free(self, key: PartKey) -> bool:
        """Return whether a part has its place in the order of borrows, and nothing before it uses its memory."""
        return key in self._added and operands.is_free(self._parts[key])

    def arrive(self, key: PartKey, request: Request) -> None:
        """Take in a part of the epoch of now."""
        self._parts[key] = request

    def empty(self) -> list[Request]:
        """Return all parts that have not begun, and forget them."""
        parts, self._parts = list(self._parts.values()), {}
        if self.apart is not None:
            parts.append(self.apart)
            self.apart = None
        self._added.clear()
        return parts

    def add(self, item: Request, _owner: Hashable, _priority: int = 0) -> None:
        """Let a request wait. Its priority has no meaning in a world."""
        key = key_of(item)
        if key is None:
            self._examples.append(item)
        elif self._parts.get(key) is item:
            self._added.add(key)

    def add_to_batch(self, request: Request, part: BatchedPart, *, fits: bool) -> None:
        """Let a part wait for a batch, or have the other members pass the call over, since it was answered here."""
        key = key_of(request)
        if key is None or self.epoch is None or self._parts.get(key) is not request:
            return  # its epoch is over, and it was answered
        if fits:
            self._added.add(key)
            self.epoch.note_for_batch(key, part)
        else:
            self.epoch.note(key, NoteKind.REFUSED)

    def add_to_steps(self, stream: StreamRequest, part: SteppedPart, *, fits: bool) -> None:
        """Do the same with a part of a stream that runs together with others."""
        key = key_of(stream)
        if key is None or self.epoch is None or self._parts.get(key) is not stream:
            return
        if fits:
            self._added.add(key)
            self.epoch.note_for_steps(key, part, has_room=bool(stream.credit))
        else:
            self.epoch.note(key, NoteKind.REFUSED)

    def put_back(self, item: Request, _owner: Hashable, _priority: int = 0) -> None:
        """Let an example that was just taken wait again."""
        self._examples.appendleft(item)

    def take(self, is_ready: Callable[[Request], bool]) -> Request | None:
        """Return the request of the next entry, if it is ready; the entry has begun then."""
        if self._leaving or self._examples:
            return self._take_without_entry(is_ready)
        epoch = None if self.apart is not None else self.epoch
        while epoch is not None and (entry := epoch.next()) is not None:
            if entry.kind is EntryKind.BATCH or entry.kind is EntryKind.STEPS:
                return (self._take_batch if entry.kind is EntryKind.BATCH else self._take_steps)(epoch, entry)
            part = self._parts.get(entry.requests[0]) if entry.kind is EntryKind.BEGIN else None
            if part is not None and not part.dropped and not (entry.requests[0] in self._added and is_ready(part)):
                return None
            if not epoch.begin():
                return None
            found = self._begun(entry)
            if found is not None:
                self.sequence, self.together = entry.sequence, (found,)
                self.apart = found if found.alone else None
                return found
            epoch.pass_over(entry.sequence)
            if entry.kind is EntryKind.LAST:
                epoch.close()
        return None

    def _take_without_entry(self, is_ready: Callable[[Request], bool]) -> Request | None:
        """Return a stream that ends outside of its epoch, or an example."""
        self.sequence = 0
        if self._leaving:
            return self._leaving.popleft()
        return self._examples.popleft() if is_ready(self._examples[0]) else None

    def _take_batch(self, epoch: JoinedEpoch, entry: RingEntry) -> Request | None:
        """Return the first request of a batch. The others run it with all of its requests: so this process, or not."""
        found = [self._parts[key] for key in entry.requests if key in self._added]
        if len(set(found)) < len(entry.requests) or len({each.method for each in found}) > 1:
            self.give_up("has not all requests of a batch that was published")
            return None
        if any(each.dropped for each in found):
            self.give_up("has answered a request of a batch that was published")
            return None
        if not epoch.begin():
            return None
        self.sequence, self.together = entry.sequence, found
        for key in entry.requests:
            self._take_part(key)
        return found[0]

    def _take_steps(self, epoch: JoinedEpoch, entry: RingEntry) -> Request | None:
        """Return a stream that stands for a step of many. All ranks have the same ones in it, or the epoch ends."""
        roles = dict(zip(entry.requests, unpack_roles(entry.data, len(entry.requests), MAX_RANKS), strict=True))
        live = {key: role.role is Role.READY for key, role in roles.items() if role.end is None}
        gone = {key: role.end for key, role in roles.items() if role.end is not None}
        parts = {key: self._parts[key] for key in live if key in self._added}
        new = {key: part for key, part in parts.items() if isinstance(part, StreamRequest)}
        first = entry.requests[0]
        names = [new[first].method.name] if first in new else [n for n, each in self.stepped.items() if first in each]
        stepped = self.stepped.get(names[0]) if names else None
        why = "has no stream of a step that was published"
        if stepped is not None:
            why = stepped.why_unfit([*live], [*gone], new)
        if stepped is None or why:
            self.give_up(why)
            return None
        if not epoch.begin():
            return None
        errors_by = {key: self._error_of(stepped.stream_of(key), end) for key, end in gone.items()}
        found = stepped.prepare(live, new, errors_by)
        for key in new:
            self._take_part(key)
        self.sequence, self.together = entry.sequence, (found,)
        return found

    def items(self) -> Iterable[Request]:
        """Return the parts that have come."""
        return self._parts.values()

    def heads(self) -> Iterator[Request]:
        """Yield the request that is next."""
        if self._examples:
            yield self._examples[0]
        entry = None if self.epoch is None else self.epoch.next()
        if entry is not None and entry.kind is EntryKind.BEGIN and entry.requests[0] in self._added:
            yield self._parts[entry.requests[0]]

    def charge(self, _owner: Hashable, _cost: int) -> None:
        """Do nothing: sessions do not take turns here."""

    def _begun(self, entry: RingEntry) -> Request | None:
        """Return the request that an entry runs here, None for none; drop the parts that it cancels."""
        stream = self._stream_of(entry)
        if stream is not None:
            return stream
        parts = [found for key in entry.requests if (found := self._take_part(key)) is not None]
        if entry.kind is EntryKind.BEGIN and parts:
            part = parts[0]
            if isinstance(part, StreamRequest) and not part.dropped:
                self._streams[entry.requests[0]] = part
                part.may_step = bool(entry.argument)
            return part
        drop = {EntryKind.REFUSED: self.decline, EntryKind.LATE: self.expire}.get(entry.kind, self.discard)
        for each in parts:
            if not each.dropped:
                drop(each)
        return None

    def _stream_of(self, entry: RingEntry) -> StreamRequest | None:
        """Return the stream that has begun here and takes a step by an entry, or ends; it rests."""
        if entry.kind not in {EntryKind.STEP, EntryKind.CANCEL} or len(entry.requests) != 1:
            return None
        stream = self._streams.get(entry.requests[0])
        if stream is not None and entry.kind is EntryKind.STEP:
            stream.may_step = True
        elif stream is not None:
            end = StreamEnd.unpack(entry.argument, MAX_RANKS)  # it was checked when it was read
            stream.closing = self._error_of(stream, end)
        return stream

    def _let_end(self, stream: StreamRequest) -> None:
        assert self._left is not None
        stream.closing = self._left()
        self._leaving.append(stream)

    def _error_of(self, stream: StreamRequest, end: StreamEnd) -> errors.AtomrError:
        """Return the error of a stream that the ring ends."""
        unwanted = stream.unwanted
        if unwanted is not None and (end == UNWANTED or (end == MOVED and _is_planned(unwanted))):
            return unwanted
        return self.explain(end)

    def _let_end_together(self, stepped: StreamsTogether) -> None:
        assert self._left is not None
        found = stepped.leave(self._left())
        if found is not None:
            self._leaving.append(found)

    def _take_part(self, key: PartKey) -> Request | None:
        self._added.discard(key)
        return self._parts.pop(key, None)


def _is_planned(error: errors.AtomrError) -> bool:
    return isinstance(error, errors.CollectiveAborted) and error.planned


def came_as(request: Request) -> NoteKind:
    """Return how to note that a part has come. Streams that run together with others never run alone."""
    alone = request.alone and request.method.steps is None
    if isinstance(request, StreamRequest):
        return NoteKind.OPENED_ALONE if alone else NoteKind.OPENED
    return NoteKind.CAME_ALONE if alone else NoteKind.CAME


def key_of(request: Request) -> PartKey | None:
    """Return the name of the gang call that a request is a part of, None if it is none."""
    return None if request.gang is None else (request.peer.session.number, request.gang.id)
