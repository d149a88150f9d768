"""A stream: a request whose method is a generator, which runs step by step."""

from __future__ import annotations

import contextvars
import time
from collections import deque
from collections.abc import Generator, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from atomr_mp import errors
from atomr_mp.protocol import values
from atomr_mp.protocol.crossing import SCALARS
from atomr_mp.protocol.flow.stream_credit import SenderCredit
from atomr_mp.protocol.messages import data
from atomr_mp.protocol.messages.devices import Resumes
from atomr_mp_workers import own_process
from atomr_mp_workers.memory.arrays import DeviceArray
from atomr_mp_workers.requests.kinds.stream_life import StreamEvent, StreamState, step
from atomr_mp_workers.requests.kinds.thread_state import ThreadState
from atomr_mp_workers.requests.method import Method
from atomr_mp_workers.requests.peers import AdmittedSession, Peer
from atomr_mp_workers.requests.raised import unsendable
from atomr_mp_workers.requests.request import Next, Request, encode

BEYOND_NS: Final = 200_000
"""How long a turn goes on after its first step, if the stream has credit; then others have their turn. A step that
takes longer ends the turn too."""


class MadePart(msgspec.Struct, eq=False, frozen=True):
    """A part that was yielded and has not been sent."""

    number: int
    encoded: values.Encoded
    nbytes: int
    """Bytes that it counts for in the stream's credit."""


class StepOwner(NamedTuple):
    """A session as the owner of steps that belong to one thread.

    It is apart from the session's other requests. So these do not wait behind a step whose thread is busy, and no step
    waits behind a request that waits for memory, perhaps for that of the stream.
    """

    account: AdmittedSession
    """The session, which has what its steps have had."""
    thread: int


class StreamRequest(Request):
    """A request that is answered by parts. Its steps are taken by `call`, on one thread."""

    def __init__(self, peer: Peer, call: data.StreamCall, method: Method, received_ns: int = 0) -> None:
        super().__init__(peer, call, method, received_ns)
        self.payload_bytes = 0  # it uses no window
        self.credit: Final = SenderCredit(call.parts, call.nbytes, call.start, call.start_bytes)
        self._start: Final = call.start
        self._sent: Sequence[bytes] = call.sent
        self._was_sent: list[Any] = []
        """Those of them that were decoded."""
        self.between_ns: Final = call.between_ns
        self.until_ns: Final = call.until_ns
        self.state = StreamState.WAITING
        self.thread = -1
        """Number of its thread among its actor's threads, from the first step on."""
        self.made: deque[MadePart] = deque()
        """Parts that it has yielded and that were not sent; its thread appends, and the loop takes."""
        self.place = -1
        """Its place on the board among the streams, once it has taken a step."""
        self.fresh: list[tuple[values.Encoded, int]] = []
        """Parts of the step that runs, and their bytes; for a stream that runs together with others. Its thread's."""
        self.fresh_bytes = 0
        self.held: deque[tuple[values.Encoded, int]] = deque()
        """Parts for which its reader has no room, and their bytes; for a stream that runs together with others."""
        self.held_bytes = 0
        self.draining = False
        """Whether its method has ended it, so that held parts leave before the end."""
        self.parked_ns = 0
        """When it ran out of credit."""
        self.looked_ns = 0
        """When a look has found, after that, that its reader has not much time left; see `OpenStreams`."""
        self.late_looks = 0
        """How many looks came late after that."""
        self.sends = True
        """Whether its parts and its result go to the client; of a stream of a world only rank 0's do."""
        self.may_step = False
        """Whether a stream of a world takes a step in its turn: rank 0 says so, for all ranks."""
        self.unwanted: errors.AtomrError | None = None
        """The error of a stream of a world that is to end on all ranks."""
        self.moves = False
        """Whether it ends here unanswered: its client goes on with it elsewhere, behind this worker's end."""
        self._generator: Generator[Any, None, Any] | None = None
        self._context: Final = contextvars.copy_context()
        self._thread_state: Final = ThreadState()

    @property
    def has_stepped(self) -> bool:
        """Whether its first step has ended."""
        return self.place != -1

    @property
    def owner(self) -> AdmittedSession | StepOwner:
        """The owner of its next turn."""
        return self.peer.session if self.place == -1 else StepOwner(self.peer.session, max(self.thread, 0))

    def feed(self, event: StreamEvent) -> bool:
        """Take in an event; return whether to put the stream into its thread's queue."""
        self.state, queue = step(self.state, event)
        return queue

    def call(self) -> None:
        """Take a turn of steps, with the thread state that the stream has set; never raises."""
        self._thread_state.enter()
        if self._generator is None:
            self.arguments = self.all_arguments()
        try:
            super().call()
        finally:
            self._thread_state.leave()

    def take(self, result: Any) -> None:
        """Take steps of the generator that the method has returned, or, after the first turn, further steps."""
        if self._generator is None:
            self._generator = result
        begun_ns, until_ns = time.monotonic_ns(), 0
        has_room = self.credit if self.gang is None else self.may_step
        if not has_room and self.closing is None:  # it goes on, but its reader has no room just now
            self.next = GO_ON
            return
        while self.closing is None:
            try:
                part = self._context.run(next, self._generator)
            except StopIteration as stop:
                own_process.check()
                super().take(stop.value if self.sends else None)
                return
            own_process.check()
            self.keep(part)
            if self.error is not None:
                break
            now_ns = time.monotonic_ns()
            until_ns = until_ns or now_ns + BEYOND_NS
            took_ns, begun_ns = now_ns - begun_ns, now_ns
            if self.is_turn_over(took_ns, now_ns, until_ns):
                self.next = GO_ON
                return
        self._context.run(self._generator.close)
        self.error = self.closing

    def all_arguments(self) -> tuple[Any, ...]:
        """Return the arguments of its method: the caller's, then the resumption's; once."""
        match self.method.resumes:
            case Resumes.START:
                return (*self.arguments, self._start)
            case Resumes.SENT:
                return (*self.arguments, self.sent())
            case _:
                return self.arguments

    def is_turn_over(self, took_ns: int, now_ns: int, until_ns: int) -> bool:
        """Return whether its turn ends with a step that took `took_ns`.

        The first part leaves at once, and so does a part that took long, since the next one may too. In a world each
        step has its place in the order.
        """
        if self.gang is not None:
            return True
        return self.place < 0 or now_ns >= until_ns or took_ns >= BEYOND_NS or not self.credit

    def turn_deadline_ns(self, begun_ns: int) -> int:
        """Return the time by which a turn that begins then should have yielded a part.

        A step over several streams may begin without room for a part of this one.
        """
        if self.place < 0:
            return self.deadline_ns
        return self.until_ns if self.method.steps is not None else min(begun_ns + self.between_ns, self.until_ns)

    def sent(self) -> list[Any]:
        """Return the parts that another incarnation has sent, once."""
        self.read_sent()
        found, self._was_sent = self._was_sent, []
        return found

    def read_sent(self) -> None:
        """Decode these parts, which its client says.

        Raises:
            InvalidRequest: They cannot be decoded.
        """
        sent, self._sent = self._sent, ()
        decoder = values.Decoder[Any]()
        self._was_sent += [decoder.decode(body, ()) for body in sent]

    def hold_fresh(self) -> None:
        """Hold the parts of a step that has ended. With the loop's turn."""
        self.held += self.fresh
        self.held_bytes += self.fresh_bytes
        self.fresh.clear()
        self.fresh_bytes = 0

    def drop_parts(self) -> None:
        """Drop the parts of a step that has failed on the device: nothing says what they hold. Its thread."""
        self.made.clear()
        self.fresh.clear()
        self.fresh_bytes = 0

    def conclude(self, result: Any) -> None:
        """Take the result of a stream whose method is not a generator that could return it."""
        try:
            super().take(result)
        except BaseException as raised:  # noqa: BLE001 - a result may have code of its own
            self.fail(raised)

    def keep(self, part: Any) -> None:
        """Take a yielded part; a part that cannot be sent ends the stream."""
        if not self.sends:
            return
        try:
            if type(part) in SCALARS:
                encoded = values.encode_scalar(part, self.peer.session.place)
            else:
                encoded = encode(part, self.peer)
            nbytes = size_of(encoded)
        except errors.InvalidRequest as refused:
            self.error = self.closing = unsendable(self, part, refused)
            return
        self.made.append(MadePart(self.credit.send(nbytes), encoded, nbytes))


def size_of(encoded: values.Encoded) -> int:
    """Return the bytes that a part counts for in a stream's credit."""
    body, frames, placed = encoded
    nbytes = len(body)
    if frames:
        nbytes += sum(map(len, frames))
    if placed:
        nbytes += sum([array.nbytes for array in placed if isinstance(array, DeviceArray)])
    return nbytes


GO_ON: Final = Next(lambda: None)
"""The next work of a stream: its following steps."""
