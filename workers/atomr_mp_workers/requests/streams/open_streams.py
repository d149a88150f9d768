"""The open streams of this worker: which may take a turn, which lack credit, which have to end. With the loop's turn.

Carries out the table of `stream_life`. Between its steps a stream occupies nothing but its place on the board and the
memory that its arguments borrow.

A reader's time is up by two looks: one before the end, and one at the end of a last step. Between them this process
takes in what the reader has sent while the process was paused. A look that comes late, after another pause, begins
another such step. The relay of a remote reader may have been paused, too, which nobody here sees: such a reader has as
much more time as its relay has before it is replaced.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final, Protocol

from atomr_mp import errors
from atomr_mp.protocol.board import OFF_BOARD, BoardWriter, Counter
from atomr_mp.protocol.messages import data
from atomr_mp.protocol.messages.devices import Resumes
from atomr_mp.protocol.own_time import LOOK_S, RELAY_QUIET_S
from atomr_mp_workers.requests.envelope import Envelope
from atomr_mp_workers.requests.kinds.stream import StreamRequest
from atomr_mp_workers.requests.kinds.stream_life import StreamEvent, StreamState
from atomr_mp_workers.requests.off_loop.runner import ActorRunner
from atomr_mp_workers.requests.peers import Peer

LOOK_NS: Final = 2_000_000
"""When to look at a turn that has not come back. Either a long step is under way, and earlier parts wait; or its thread
has not run, so it is looked at again, each time after twice as long."""

LONGEST_LOOK_NS: Final = 1_000_000_000
"""The longest time between two looks at a turn."""

READER_NS: Final = 2_000_000_000
"""How long a reader that takes nothing holds up a planned end."""

RELAYED_NS: Final = int((RELAY_QUIET_S + LOOK_S) * 1e9)
"""How much longer a remote reader may take nothing: until its relay would have been found hung."""

LAST_STEP_NS: Final = 1_000_000_000
"""The last step of a reader's time, or half of that time."""

LATE_LOOKS: Final = 3
"""How often a look may come late. Then a process that is as busy as that judges nevertheless."""

ENDED_PLACE: Final = -2
"""The place of a stream that has given its place on the board back."""

NEVER_NS: Final = 2**63 - 1


class Stepped(Protocol):
    """A method whose streams run together."""

    @property
    def complete(self) -> Callable[[StreamRequest], None]:
        """Answers a stream."""

    def deliver(self, stream: StreamRequest, /) -> bool:
        """Send the held parts of a stream; return whether that has ended the stream."""


class OpenStreams:
    """The streams of all peers.

    Args:
        envelope: The envelope; its answers list the open streams, and take their parts.
        board: The board, which shows their steps.
        threads: Actors' threads and event loops, by method.
        pauses: Returns whether streams have to pause, since a suspect waits to run alone, or runs.
        stall_ns: How long a stream may lack credit before it is ended.
        is_asynchronous: Whether the device works asynchronously, and has done a turn's work only at the turn's end.
    """

    def __init__(
        self,
        envelope: Envelope,
        board: BoardWriter,
        threads: Mapping[str, ActorRunner],
        pauses: Callable[[], bool],
        stall_ns: int,
        *,
        is_asynchronous: bool,
    ) -> None:
        self.open: Final = envelope.answers.streams
        self.paused: Final[list[StreamRequest]] = []
        """Streams that could go on, but a suspect runs alone."""
        self._envelope = envelope
        self._answers = envelope.answers
        self._board = board
        self._threads = threads
        self._pauses = pauses
        self._stall_ns = stall_ns
        self._is_asynchronous = is_asynchronous
        self._ending: Final[dict[int | None, int]] = {}
        """The epoch of each world that ends as planned, and under None whether this process does, with 0."""
        self._due_ns = NEVER_NS
        """When a stream that is aside may have to be ended, if nothing else happens."""
        self.stepped: Final[dict[str, Stepped]] = {}
        """Methods whose streams run together, by name."""
        self._turns: Final[dict[StreamRequest, int]] = {}
        """Turns that have not been looked at, and when they will be."""
        self._again: Final[list[tuple[int, int, int, int, StreamRequest]]] = []
        """Heap of turns to look at again: time of the next look, a number, when the turn began, its delay, and the
        stream."""

    @property
    def due_ns(self) -> int | None:
        """When to look at streams again, if nothing else happens; None if there is no need."""
        if not self.open:
            return None
        due_ns = min(self._due_ns, next(iter(self._turns.values()), NEVER_NS))
        if self._again:
            due_ns = min(due_ns, self._again[0][0])
        return due_ns if due_ns < NEVER_NS else None

    @property
    def is_paused(self) -> bool:
        """Whether streams that have begun have to pause."""
        return self._pauses()

    def end_unread(self, world: int | None = None, epoch: int = 0) -> None:
        """Let no reader hold up the planned end of a world's epoch, or of this process, for long.

        Args:
            world: The world's number; None for this process.
            epoch: The epoch.
        """
        self._ending[world] = epoch
        self._due_ns = 0

    def readers_changed(self) -> None:
        """Take in that a client cannot be reached, or is back."""
        if self._ending:
            self._due_ns = 0

    def begin_turn(self, stream: StreamRequest, now_ns: int) -> None:
        """Record that a stream which has begun takes a turn."""
        if stream.closing is None and now_ns > stream.until_ns:
            stream.closing = _late(stream)
        stream.feed(StreamEvent.TURN)
        self._turns[stream] = now_ns + LOOK_NS
        self.begin_steps((stream,), now_ns)

    def begin_steps(self, streams: Iterable[StreamRequest], now_ns: int) -> None:
        """Show on the board that streams take one or several steps."""
        steps = []
        for stream in streams:
            stream.started_ns = now_ns
            late_ns = now_ns + stream.between_ns
            if late_ns > stream.until_ns:  # noqa: PLR1730 - a call would cost more
                late_ns = stream.until_ns
            steps.append((stream.place, stream.peer.session.number, stream.id, late_ns, stream.method.watched))
        self._board.start_steps(steps, now_ns)

    def rest(self, stream: StreamRequest) -> bool:
        """Take a stream back from its thread, and send its parts; return whether it goes on."""
        self._turns.pop(stream, None)
        if stream.made:
            self._give_parts(stream, len(stream.made))
        now_ns = time.monotonic_ns()
        self.end_step(stream, now_ns, goes_on=stream.goes_on)
        if not stream.goes_on:
            stream.feed(StreamEvent.END)
            if self._again:  # what has ended is not kept
                self._again[:] = [each for each in self._again if each[-1] is not stream]
                heapq.heapify(self._again)
            return False
        if stream.peer.session.is_away and self._is_waited_for(stream):
            self._due_ns = 0
        if stream.gang is not None:
            stream.parked_ns = now_ns
            self._queue(stream, StreamEvent.REST)  # its world says when it goes on
            if stream.sends and not stream.credit:
                self._due_ns = min(self._due_ns, self._due_of(stream))
            return True
        if stream.peer.session.ended and stream.closing is None:
            stream.closing = errors.Cancelled("its client has gone")
        if self._pauses():
            stream.feed(StreamEvent.REST_PAUSED)
            self.paused.append(stream)
        elif stream.credit or stream.closing is not None:
            self._queue(stream, StreamEvent.REST)
        else:
            stream.feed(StreamEvent.REST_DRY)
            stream.parked_ns = now_ns
            self._due_ns = min(self._due_ns, self._due_of(stream))
        return True

    def _give_parts(self, stream: StreamRequest, count: int) -> None:
        made = [stream.made.popleft() for _ in range(count)]
        if stream.closing is None or stream.closing is stream.error:  # else nobody wants them
            give = self._answers.give_part
            for part in made:
                give(stream, part.number, part.encoded, part.nbytes)

    def give_held(self, stream: StreamRequest) -> None:
        """Send held parts of a stream, as far as its reader has room."""
        held, credit = stream.held, stream.credit
        had_room = bool(credit)
        while held and credit:
            encoded, nbytes = held.popleft()
            stream.held_bytes -= nbytes
            self._answers.give_part(stream, credit.send(nbytes), encoded, nbytes)
        if had_room and not credit:
            stream.parked_ns = time.monotonic_ns()
            self._due_ns = min(self._due_ns, self._due_of(stream))

    def watch(self, stream: StreamRequest) -> None:
        """Have a stream that runs together with others end in time."""
        stream.parked_ns = time.monotonic_ns()
        self._due_ns = min(self._due_ns, self._due_of(stream))

    def end_steps(self, streams: Collection[StreamRequest], now_ns: int) -> None:
        """Show on the board that steps have ended of streams that go on, and not with their first one."""
        self._board.end_steps([stream.place for stream in streams], now_ns)

    def end_step(self, stream: StreamRequest, now_ns: int, *, goes_on: bool) -> None:
        """Show on the board that a step has ended; the first one counts among the starts of all requests."""
        board = self._board
        if stream.place >= 0:
            board.end_step(stream.place, now_ns)
            if not goes_on:
                self.close_place(stream)
        elif goes_on:
            stream.place = board.open_stream(stream.peer.session.number, stream.id, stream.started_ns, now_ns)
            board.end(stream.slot, now_ns, stream.received_ns)
            stream.slot = OFF_BOARD
            stream.method.took(now_ns - stream.started_ns)

    def close_place(self, stream: StreamRequest) -> None:
        """Give back the board's place of a stream that has ended, if it has taken its first step."""
        if stream.place >= 0:
            self._board.close_stream(stream.place)
            stream.place = ENDED_PLACE
            stream.items, stream.received_ns = 0, 0  # it was counted with its first step
            left = isinstance(stream.error, errors.Cancelled)  # a cancellation by its reader is not a failure
            if stream.error is not None and not left:
                self._board.count(Counter.FAILED)

    def grant(self, peer: Peer, grants: Iterable[data.Grant]) -> None:
        """Let streams go on.

        Raises:
            ProtocolError: The credit is too large.
        """
        for grant in grants:
            stream = peer.streams.get(grant.id)
            if isinstance(stream, StreamRequest):
                stream.credit.grant(grant.parts, grant.nbytes)
                stepped = self.stepped.get(stream.method.name)
                if stepped is not None:
                    if stepped.deliver(stream):
                        stepped.complete(stream)
                    elif stream.gang is not None and not stream.draining:
                        self._threads[stream.method.name].granted(stream)
                elif stream.gang is not None:
                    if stream.state is StreamState.READY:  # else its step may take the room
                        self._threads[stream.method.name].granted(stream)
                elif stream.credit:
                    self._queue(stream, StreamEvent.GRANT)

    def cancel(self, peer: Peer, ids: Iterable[int]) -> None:
        """End streams at their next step that their client has given up."""
        for request_id in ids:
            stream = peer.streams.get(request_id)
            if isinstance(stream, StreamRequest):
                self._close(stream, errors.Cancelled("cancelled", maybe_executed=True))

    def leave(self, peers: Iterable[Peer]) -> None:
        """End all streams of connections without a reader."""
        for peer in peers:
            for stream in list(peer.streams.values()):
                if isinstance(stream, StreamRequest) and stream.closing is None and stream.unwanted is None:
                    self._close(stream, errors.Cancelled("its client has gone", maybe_executed=True))

    def look_at_turns(self, now_ns: int) -> None:
        """Send the parts of streams whose turn takes long, because of a long step."""
        while self._turns:
            stream, look_ns = next(iter(self._turns.items()))
            if look_ns > now_ns:
                break
            del self._turns[stream]
            self._look(stream, now_ns, 2 * LOOK_NS)
        while self._again and self._again[0][0] <= now_ns:
            _, _, started_ns, wait_ns, stream = heapq.heappop(self._again)
            if stream.state is StreamState.RUNNING and stream.started_ns == started_ns:
                self._look(stream, now_ns, 2 * wait_ns)

    def _look(self, stream: StreamRequest, now_ns: int, wait_ns: int) -> None:
        made = list(stream.made)
        # Parts on an asynchronous device may not be complete before the turn is over, nor collectives have been right.
        if made and stream.gang is None and not (self._is_asynchronous and any(part.encoded[2] for part in made)):
            self._give_parts(stream, len(made))
        wait_ns = min(wait_ns, LONGEST_LOOK_NS)
        heapq.heappush(self._again, (now_ns + wait_ns, id(stream), stream.started_ns, wait_ns, stream))

    def end_late(self, now_ns: int) -> bool:
        """End streams that are late, or have lost their reader; return whether there were any."""
        if now_ns < self._due_ns:
            return False
        found = False
        self._due_ns = NEVER_NS
        for stream in list(self.open):
            runs_with_others = stream.state is StreamState.RUNNING and stream.method.name in self.stepped
            is_dry = stream.state is StreamState.READY and stream.gang is not None and self._is_dry(stream)
            is_aside = stream.state is StreamState.PARKED or runs_with_others or is_dry
            if stream.closing is not None or stream.unwanted is not None:
                continue
            if stream.peer.session.is_away and self._is_waited_for(stream):
                found = True
                self._leave_behind(stream, "its client is away")
                continue
            if not is_aside:
                continue
            if (due_ns := self._due_of(stream)) > now_ns:
                self._due_ns = min(self._due_ns, due_ns)
                continue
            if stream.until_ns > now_ns and not self._has_had_time(stream, now_ns):
                self._due_ns = min(self._due_ns, self._due_of(stream))
                continue
            found = True
            if stream.until_ns <= now_ns:
                self._close(stream, _late(stream))
            elif self._is_waited_for(stream):
                self._leave_behind(stream, f"its reader has taken nothing for {self._patience_of(stream) / 1e9:g} s")
            else:
                self._close(stream, self._stalled(stream))
        return found

    def _is_waited_for(self, stream: StreamRequest) -> bool:
        """Return whether a planned end, behind which others can go on, waits for a stream that has begun."""
        if not self._ending or stream.state is StreamState.WAITING or stream.state is StreamState.OVER:
            return False
        gang = stream.gang
        if gang is not None and self._ending.get(gang.world) == gang.epoch:
            return stream.sends
        return None in self._ending and (gang is None or stream.draining)

    def _leave_behind(self, stream: StreamRequest, why: str) -> None:
        """End a stream that holds up a planned end."""
        if stream.gang is not None:
            self._close(stream, self._threads[stream.method.name].left_behind(why))
            return
        stream.moves = stream.method.resumes is not Resumes.NEVER
        text = f"the worker was to be replaced or stopped while this stream of {stream.method.name} was open: {why}"
        self._close(stream, errors.DeadlineExceeded(text, maybe_executed=True))

    def resume(self) -> None:
        """Let paused streams go on."""
        paused = list(self.paused)
        self.paused.clear()
        for stream in paused:
            if stream.state is not StreamState.PAUSED:
                continue
            if stream.credit or stream.closing is not None:
                self._queue(stream, StreamEvent.RESUME)
            else:  # as if it had just rested
                stream.state = StreamState.RUNNING
                stream.feed(StreamEvent.REST_DRY)
                stream.parked_ns = time.monotonic_ns()
                self._due_ns = min(self._due_ns, self._due_of(stream))

    def _is_dry(self, stream: StreamRequest) -> bool:
        """Return whether a stream of a world waits for its reader, and nothing else."""
        return stream.sends and not stream.credit and stream.unwanted is None

    def _close(self, stream: StreamRequest, error: errors.AtomrError) -> None:
        if stream.gang is not None and not stream.draining:
            self._threads[stream.method.name].end_stream(stream, error)
            return
        if stream.state is StreamState.WAITING or stream.state is StreamState.OVER:
            return  # it has not begun, and is dropped with the waiting requests
        if stream.closing is None:
            stream.closing = error
        runner = self._threads[stream.method.name]
        if stream.state is StreamState.RUNNING and runner.interrupt(stream):
            self._envelope.show_interrupted(stream)
        if stream.draining:  # its method has ended it
            stream.held.clear()
            stream.error = stream.error or error
            self.stepped[stream.method.name].complete(stream)
        else:
            self._queue(stream, StreamEvent.CLOSE)

    def _queue(self, stream: StreamRequest, event: StreamEvent) -> None:
        """Carry out an event, and put the stream into its thread's queue if the table says so."""
        if stream.feed(event):
            self._threads[stream.method.name].put(stream)

    def _due_of(self, stream: StreamRequest) -> int:
        if stream.credit:
            return stream.until_ns
        step_ns = self._last_step_of(stream)
        if stream.looked_ns > stream.parked_ns:
            return min(stream.until_ns, stream.looked_ns + step_ns)
        return min(stream.until_ns, stream.parked_ns + self._patience_of(stream) - step_ns)

    def _patience_of(self, stream: StreamRequest) -> int:
        """Return how long its reader may take nothing."""
        patience_ns = min(self._stall_ns, READER_NS) if self._is_waited_for(stream) else self._stall_ns
        return patience_ns + RELAYED_NS if stream.peer.session.is_relayed else patience_ns

    def _last_step_of(self, stream: StreamRequest) -> int:
        return min(LAST_STEP_NS, self._patience_of(stream) // 2)

    def _has_had_time(self, stream: StreamRequest, now_ns: int) -> bool:
        """Return whether its reader has had its time, now that a look was due; else begin the last step of that."""
        if stream.looked_ns <= stream.parked_ns:
            stream.late_looks = 0
        else:
            late_ns = now_ns - self._due_of(stream)
            if late_ns <= self._last_step_of(stream) // 2 or stream.late_looks >= LATE_LOOKS:
                return True
            stream.late_looks += 1
        stream.looked_ns = now_ns
        return False

    def _stalled(self, stream: StreamRequest) -> errors.DeadlineExceeded:
        return errors.DeadlineExceeded(
            f"nobody has read this stream of {stream.method.name} for {self._stall_ns / 1e9:g} s (stall_s)",
            maybe_executed=True,
        )


def _late(stream: StreamRequest) -> errors.DeadlineExceeded:
    return errors.DeadlineExceeded(
        f"the stream of {stream.method.name} had not ended by its deadline", maybe_executed=True
    )
