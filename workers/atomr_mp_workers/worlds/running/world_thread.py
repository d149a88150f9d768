"""The one thread on which all calls of a world run, and its streams take their steps."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from atomr_mp import errors
from atomr_mp.protocol.board import Watched
from atomr_mp.protocol.world import Outcome
from atomr_mp_workers import tracing
from atomr_mp_workers.device.base import WorkerDevice
from atomr_mp_workers.requests.kinds.stream import StreamRequest
from atomr_mp_workers.requests.off_loop.threads import ActorThreads
from atomr_mp_workers.requests.request import Request, Run
from atomr_mp_workers.worlds.order.joined_epoch import JoinedEpoch
from atomr_mp_workers.worlds.running.bell_inbox import BellInbox
from atomr_mp_workers.worlds.running.gang_queue import GangQueue
from atomr_mp_workers.worlds.running.steps_run import GangStepsRun

PATIENCE: Final = 2
PATIENCE_NS: Final = 5_000_000_000
"""A call that waits for other members may run so many of its limits, and so much longer. Before that a member that
hangs is found. Later its members loop in waits, or one of them is stopped: the end of the epoch frees the others."""


class EpochMeeting(Protocol):
    """This process's side of the collectives of one epoch."""

    def begin(self, sequence: int, waits: Callable[[bool], object], limit_ns: int, method: str, /) -> None:
        """Begin a gang call on this thread, which may wait for others so long, 0 for any time.

        Its method is for errors; it is empty for none of an actor.
        """

    def settled(self) -> errors.RequestError | None:
        """Return the error of a collective that has failed on the device, None if there is none."""

    def end(self) -> None:
        """End it, and ring the peers that may wait."""


class WorldThread(ActorThreads):
    """Runs all calls of a world, one after the other.

    Args:
        name: The world's name.
        queue: Gives out what is next.
        device: The device.
        watch: Sets how the board shows that a request in a slot is watched.
        watch_step: The same for the step of a stream, by its place.
        bell: The descriptor by which other members wake the thread.
        look: Has the thread itself look what the ring says, or the loop if that is awake.
    """

    in_step = True

    def __init__(
        self,
        name: str,
        queue: GangQueue,
        device: WorkerDevice,
        watch: Callable[[int, int], object],
        watch_step: Callable[[int, int], object],
        bell: int,
        look: Callable[[], object],
    ) -> None:
        self._name = name
        self._watch = watch
        self._watch_step = watch_step
        self.queue: Final = queue
        self._meeting: EpochMeeting | None = None
        self._entry: tuple[JoinedEpoch | None, EpochMeeting, int] | None = None
        """The entry that runs; None for an example. Set before its request is handed to the thread. Without an epoch it
        is a stream that ends behind its epoch's end: its collectives are aborted."""
        super().__init__(name, 1, device, queue, lambda: BellInbox(bell, look))

    @property
    def is_settled(self) -> bool:
        """Whether nothing that the ring says is left to begin while a suspect waits."""
        return self.queue.is_settled

    @property
    def in_hand(self) -> list[Request]:
        """The requests that it was given and has not given back."""
        return [each for run in self._on for each in run.requests]

    def meet(self, meeting: EpochMeeting | None) -> None:
        """Have the calls of an epoch use its meeting; None behind its end."""
        self._meeting = meeting

    def run(self, request: Run) -> None:
        """Run a request that has begun."""
        sequence, epoch, meeting = self.queue.sequence, self.queue.epoch, self._meeting
        self.queue.apart, self.queue.together = None, ()
        if isinstance(request, GangStepsRun) or any(each.gang is not None for each in request.requests):
            assert meeting is not None
            assert epoch is not None or not sequence
            self._entry = epoch, meeting, sequence
            if epoch is not None and request.span is not None and tracing.tracer is not None:
                tracing.tracer.place(request.span, self._name, epoch.number, epoch.rank, sequence)
        else:
            self._entry = None
        super().run(request)

    def came_back(self, request: Run) -> None:
        """Take a call back; nothing of its epoch is kept."""
        self._entry = None
        if isinstance(request, StreamRequest) and not request.goes_on:
            self.queue.forget(request)
        super().came_back(request)

    def put(self, stream: StreamRequest) -> None:
        """Take in that a stream has taken a step; the ring says when it takes the next one."""
        if stream.gang is None:
            super().put(stream)
        else:
            self.queue.rest(stream)

    def granted(self, stream: StreamRequest) -> None:
        """Take in that the reader of a resting stream has room."""
        self.queue.tell_room(stream)

    def end_stream(self, stream: StreamRequest, error: errors.AtomrError) -> None:
        """Have a stream end on all ranks."""
        self.queue.end(stream, error)

    def left_behind(self, why: str) -> errors.AtomrError:
        """Return the error of a stream that is not read while its epoch ends as planned; takes why."""
        return self.queue.left_behind(why)

    def passed_over(self, request: Request) -> None:
        """Count the entry of a request as ended that was given out and is not run.

        The other members run a batch even so. Its requests were fit to run when they came, so the epoch ends.
        """
        self.queue.apart, self.queue.together = None, ()
        if isinstance(request, StreamRequest):
            self.queue.forget(request)
        if request.gang is not None and self.queue.epoch is not None:
            if request.method.batch is not None or request.method.steps is not None:
                self.queue.give_up("could not begin a batch, or a step of several streams")
            self.queue.epoch.pass_over(self.queue.sequence)

    def together(self, request: Request) -> Sequence[Request]:
        """Return the requests that run as one with a request that was given out just now."""
        return self.queue.together if request.gang is not None else (request,)

    def work(self, request: Run) -> None:
        """Run a request, within the meeting of its entry. The world's thread."""
        entry = self._entry
        if entry is None:
            super().work(request)
            return
        epoch, meeting, sequence = entry
        try:
            method = request.method
            named = method.name if method.refused is None else ""
            meeting.begin(sequence, functools.partial(self._waits, request), _limit_ns(method.watched), named)
            super().work(request)
            found = meeting.settled()
            if found is not None and not (request.error is not None and request.error.ends_worker):
                _replace_outcome(request, found)
            for each in (request, *request.requests):
                if each.error is not None:  # a method may have raised one that came from elsewhere
                    each.error.left_epoch = epoch is None or epoch.is_left
            if isinstance(request, GangStepsRun):
                outcomes = request.come_to()
                if epoch is not None:
                    epoch.end_steps(sequence, outcomes)
            elif epoch is not None:
                epoch.end(sequence, _outcome(request))
            meeting.end()
        except BaseException as raised:  # noqa: BLE001 - ours; the thread has to go on
            request.fail(raised)

    def _waits(self, request: Run, waits: bool) -> None:  # noqa: FBT001 - a value to be shown
        """Show on the board whether a call waits for other members: the one that they wait for is judged before."""
        watched = _patient(request.method.watched) if waits else request.method.watched
        for each in request.requests:
            if isinstance(each, StreamRequest) and each.place >= 0:
                self._watch_step(each.place, watched)
            else:
                self._watch(each.slot, watched)


def _replace_outcome(request: Run, found: errors.RequestError) -> None:
    """Have a request fail with the error of its collectives, whatever its method has made of what they left."""
    for each in {request, *request.requests}:
        if isinstance(each, StreamRequest):
            each.drop_parts()
        each.error = None
        each.fail(found)


def _outcome(request: Run) -> Outcome:
    """Return the outcome of a request, or of a stream's step."""
    if request.goes_on:
        return Outcome.GOES_ON
    return Outcome.ENDED if request.error is None and request.raised is None else Outcome.FAILED


@functools.cache
def _limit_ns(watched: int) -> int:
    """Return how long a call may wait for other members, from the board's word for it; 0 for any time."""
    return Watched.unpack(_patient(watched)).limit_ns


@functools.cache
def _patient(watched: int) -> int:
    """Return the board's word for a call that waits for other members, from the one for the same call at work."""
    how = Watched.unpack(watched)
    limit_ns = how.limit_ns and PATIENCE * how.limit_ns + PATIENCE_NS
    return how._replace(limit_ns=limit_ns).pack()
