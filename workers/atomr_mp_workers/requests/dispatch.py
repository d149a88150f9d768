"""Decides where and when requests run: on the loop, an actor's threads, or a stream. Only with the loop's turn.

The requests of a session are taken, and borrow memory, in the order of their arrival, except those of higher priority.
The sessions take turns, each getting time in proportion to its weight. A request whose memory is in use waits for it:
on a stream, in its thread's queue, or parked if it runs on the loop.
"""

from __future__ import annotations

import itertools
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

from atomr_mp import errors
from atomr_mp.protocol.board import BoardWriter
from atomr_mp_workers.device.base import Event, Stream, WorkerDevice
from atomr_mp_workers.fatal import FatalError, HalfDoneError
from atomr_mp_workers.requests import contents, operands
from atomr_mp_workers.requests.batches.batch_run import MOST_AHEAD, BatchedMethod, BatchRun
from atomr_mp_workers.requests.envelope import Envelope
from atomr_mp_workers.requests.fair_queue import FairQueue
from atomr_mp_workers.requests.gangs import SharedRuns
from atomr_mp_workers.requests.isolation import Isolation
from atomr_mp_workers.requests.kinds.items import ItemsSlice
from atomr_mp_workers.requests.kinds.stream import StreamRequest
from atomr_mp_workers.requests.kinds.stream_life import StreamEvent, StreamState
from atomr_mp_workers.requests.off_loop.completions import Completions
from atomr_mp_workers.requests.off_loop.runner import ActorRunner
from atomr_mp_workers.requests.peers import WEIGHT, Peer
from atomr_mp_workers.requests.request import Request, Run
from atomr_mp_workers.requests.streams.open_streams import NEVER_NS, OpenStreams
from atomr_mp_workers.requests.streams.steps import SteppedMethod, StepsRun

TURN_NS: Final = 500_000
"""How long a turn runs queued requests before the loop checks its channels again."""

QUICK_NS: Final = 50_000
"""Requests that take no longer are answered together with the next requests of the same turn."""

FLUSH_REPLIES: Final = 64
FLUSH_BYTES: Final = 2**20
"""Size at which an outbox is sent without waiting for the turn's end."""


class Dispatcher:
    """Runs requests.

    Args:
        envelope: The envelope, for the steps before and after a request's own work.
        completions: The queue of requests that other threads have run.
        device: Makes events.
        threads: Actors' threads and event loops, by method.
        batched: Batched methods with their waiting requests, by name.
        flush: Sends the answers that wait to be sent.
        board: The board, which shows the steps of streams.
        stall_ns: How long a stream may lack credit before it is ended.
    """

    def __init__(
        self,
        envelope: Envelope,
        completions: Completions,
        device: WorkerDevice,
        threads: Mapping[str, ActorRunner],
        batched: Mapping[str, BatchedMethod | SteppedMethod],
        flush: Callable[[], None],
        board: BoardWriter,
        stall_ns: int = NEVER_NS,
    ) -> None:
        self.queue: Final[FairQueue[Request]] = FairQueue(WEIGHT)
        """Requests that have not been looked at."""
        self._envelope = envelope
        self._completions = completions
        self._device = device
        self._most_ahead: Final = device.ahead
        self._threads = dict(threads)
        self._runners: Final = list(dict.fromkeys(threads.values()))
        self._flush = flush
        self._parked: list[Request] = []
        """Requests that have begun, and wait for memory in use, for their library's import, or for their plan."""
        self._held: set[Event] = set()
        """Ends of requests that wait for a plan or for a client's read, or for such a request, wherever they wait: a
        stream that waited for one of these could hold up the request itself."""
        self._waited: Final = envelope.passing_reads.waited
        """Ends of clients' reads. They are not work of the device either, so requests that wait for them are parked."""
        self._suspect: Request | None = None
        """A suspect that has begun, and waits for memory that a stream uses."""
        self._early: list[Run] = []
        """Runs that have ended before the answer of a writer whose memory they have read."""
        self._ahead: Counter[Stream] = Counter()
        """Requests on each stream, without batches."""
        self._full = 0
        """Number of streams with as many requests as may be there."""
        self._batched = batched
        self.has_begun_step = False
        """Whether a step over many streams was begun since runs were last taken back."""
        self.turns: Final[deque[BatchedMethod | SteppedMethod]] = deque(batched.values())
        """Methods with batches or steps; the method that has run last is last."""
        for name, each in batched.items():
            if name in threads:
                threads[name].batched.append(each)
        self.streams: Final[OpenStreams] = OpenStreams(
            envelope,
            board,
            threads,
            self._streams_pause,
            stall_ns,
            is_asynchronous=device.asynchronous,
        )
        self._suspects = 0
        """Number of suspects in the queue: what comes meanwhile enters behind them."""
        self.isolation: Final[Isolation] = Isolation(
            envelope,
            self._is_at_work,
            lambda: all(threads.is_settled for threads in self._runners),
            flush,
            completions.wake,
            self._run_alone,
            lambda part: threads[part.method.name].passed_over(part),
        )
        for name, each in batched.items():
            if isinstance(each, SteppedMethod):
                each.streams, each.complete = self.streams, self._complete_stream
                self.streams.stepped[name] = each

    @property
    def busy(self) -> bool:
        """Whether requests run elsewhere, wait for such requests, for a batch or to run alone, or streams are open."""
        return bool(self._suspects or self.streams.open) or self.isolation.active or self._is_at_work()

    @property
    def is_away(self) -> bool:
        """Whether a suspect waits or runs, and nothing waits for memory that a call of a world may hold."""
        return self._streams_pause()

    @property
    def running(self) -> list[str]:
        """Methods of the requests that run elsewhere or wait for such ones, and of open streams; each once."""
        runs = (*self._completions.in_progress.requests.values(), *self._parked)
        return list(dict.fromkeys([run.method.name for run in (*runs, *self.streams.open)]))

    @property
    def begun(self) -> Iterator[Run]:
        """The runs that have begun and not been answered; open streams are such runs, and each step of several."""
        suspect = () if self._suspect is None else (self._suspect,)
        runs = (*self._completions.in_progress.requests.values(), *self._parked, *self._early, *suspect)
        streams = (each for each in self.streams.open if each.state not in (StreamState.WAITING, StreamState.OVER))
        return iter(dict.fromkeys([*streams, *runs]))

    @property
    def only_threads(self) -> bool:
        """Whether all requests that run, or are waited for, are on actors' threads."""
        return not (self.queue or self._parked or self.isolation.active or self._completions.in_progress.on_streams)

    @property
    def batching(self) -> bool:
        """Whether requests wait for a batch."""
        return any(self.turns)

    @property
    def due_ns(self) -> int | None:
        """When a batch may have to begin, if nothing else happens; None if another event has to come first."""
        dues = [each.due_ns(full=self._is_behind(each)) for each in self.turns if self._has_room(each)]
        return min([due for due in dues if due is not None], default=None)

    def take(self, requests: Iterable[Request]) -> None:
        """Take requests in."""
        enters, add = not (self.isolation.active or self._suspects), self.queue.add
        for request in requests:
            # A part of a call of a world enters even so: other processes may wait for it.
            if request.method.apart and not request.refs and (enters or request.gang is not None):
                self._set_apart(request)
                continue
            try:
                add(request, request.peer.session, request.priority)
            except Exception as fault:  # noqa: BLE001 - ours; it costs this request
                self._envelope.undo(request, fault)

    def take_alone(self, requests: Sequence[Request]) -> None:
        """Take suspects in.

        They wait for their turn as the others do, before they run alone: they may use memory that requests before them
        use, and that is given in the order of arrival.
        """
        for request in requests:
            request.alone = True
            if request.gang is not None:
                self.take([request])
                continue
            self._suspects += 1
            self.queue.add(request, request.peer.session, request.priority)

    def work(self) -> bool:  # noqa: C901, PLR0912 - a further call would cost more
        """Run queued requests for a bounded time; return whether that time is over.

        If it is not, the requests left wait for work on streams to end.
        """
        if self.isolation.active:
            return False
        queue, plain, levels, envelope = self.queue, self.queue.plain, self.queue.levels, self._envelope
        now_ns = time.monotonic_ns()
        until_ns = now_ns + TURN_NS
        while plain or levels:
            begun_ns = now_ns
            if not self._full:
                request = queue.pop() if levels else plain.popleft()
            elif (found := queue.take(self._has_stream)) is not None:
                request = found
            else:
                return False
            if self._suspects and request.alone and request.gang is None:
                if not self._run_suspect(request):
                    return False
                now_ns = time.monotonic_ns()
                continue
            method, peer = request.method, request.peer
            if method.typical_ns > QUICK_NS:
                self._flush()  # no answer waits for, or is lost with, a request that may take long
            try:
                if method.apart:
                    self._set_apart(request)
                elif envelope.begin(request, now_ns) and not self._start(request):
                    self._park(request)
            except FatalError:
                raise
            except Exception as fault:  # noqa: BLE001 - ours; it costs this request
                self._undo(request, fault)
            if len(peer.replies) >= FLUSH_REPLIES or peer.reply_bytes > FLUSH_BYTES:
                self._flush()
            now_ns = time.monotonic_ns()
            if levels:
                queue.charge(peer.session, now_ns - begun_ns)
            if now_ns >= until_ns:
                return True
        return False

    def _run_suspect(self, request: Request) -> bool:
        """Have a suspect run whose turn it is; return whether it has ended."""
        self._suspects -= 1
        self.isolation.take([request])
        return not self.isolation.active

    def take_back(self) -> None:
        """Complete the runs of other threads and streams, and start requests that waited for them."""
        self.has_begun_step = False
        for run in self._completions.take():
            name = run.method.name
            if name in self._threads:
                if self._came_back(run, self._threads[name]):
                    continue
            elif name in self._batched:
                self._batched[name].running -= 1
            elif (stream := run.method.stream) is not None:
                self._full -= self._ahead[stream] == self._most_ahead
                self._ahead[stream] -= 1
                if run.goes_on:
                    assert isinstance(run, Request)
                    if not self._parked_again(run):
                        self._submit(run, stream, ())
                    continue
            self._complete_in_order(run)
        self.advance()

    def advance(self) -> None:
        """Start requests that waited for a thread or memory that is free now, and those that waited for them.

        Raises:
            HalfDoneError: A fault of ours; it may have left any of them in limbo.
        """
        try:
            self._advance()
        except FatalError:
            raise
        except Exception as fault:
            raise HalfDoneError from fault

    def _advance(self) -> None:
        if self.streams.paused and not self._streams_pause():
            self.streams.resume()
        if self._held:
            self._held = {event for event in self._held if not event.done}
        freed = True
        while freed:
            freed = bool(self._early) and self._answer_early()
            for threads in self._runners:
                freed |= self._feed(threads)
            if self._parked:
                freed |= self._unpark()
        if self.isolation.active:
            if self._suspect is not None and operands.is_free(self._suspect):
                self._run_freed_suspect(self._suspect)
            self.isolation.advance()

    def start_batches(self, *, on_threads: bool = False) -> None:
        """Start the batches that are due, on the loop at most one of each method, once all arrived messages were read.

        Args:
            on_threads: Whether to start only batches that run on threads.
        """
        for each in list(self.turns):
            if on_threads and not each.method.thread:
                continue
            elsewhere = each.method.thread or each.method.stream is not None
            while each and self._has_room(each) and self._start_batch(each) and elsewhere:
                pass
        # Requests that have ended with a batch, or were cancelled while they waited for one, may have held up others.
        self.advance()

    def cancel(self, peer: Peer, ids: Sequence[int]) -> None:
        """End unwanted requests of a client that have not started, are streams, or can be interrupted."""
        self._envelope.cancel(peer, ids)
        self.streams.cancel(peer, ids)
        self._interrupt(peer, ids, "cancelled")
        self.advance()

    def leave(self, peers: Iterable[Peer]) -> None:
        """End the running requests of connections without a reader, as far as they can be interrupted."""
        self.streams.leave(peers)
        for peer in peers:
            self._interrupt(peer, None, "its client has gone")

    def give_up(self, peers: Iterable[Peer], ids: Sequence[int] | None = None) -> None:
        """Give up the work that was begun elsewhere for requests of connections, which wait for it and end by that."""
        for request in self._parked:
            if request.making is not None and request.peer in peers and (ids is None or request.id in ids):
                request.method.give_up(request.arguments)

    def _interrupt(self, peer: Peer, ids: Sequence[int] | None, reason: str) -> None:
        """Interrupt running calls; streams know already."""
        for runner in self._runners:
            for request in runner.running_of(peer, ids):
                if request.closing is None:
                    request.closing = errors.Cancelled(reason, maybe_executed=True)
                    runner.interrupt(request)
                    self._envelope.show_interrupted(request)
        for run in (*self._completions.in_progress.requests.values(), *self._parked):
            for request in run.requests:
                is_meant = request.peer is peer and (ids is None or request.id in ids)
                if is_meant and request.closing is None and _may_end_early(request):
                    request.closing = errors.Cancelled(reason, maybe_executed=True)

    def hurry(self) -> None:
        """Let no request wait for others to share a batch: the worker has to leave, and few more will come."""
        for each in self.turns:
            each.hurry()

    def add_runner(self, method: str, runner: ActorRunner) -> None:
        """Have the requests of one more method run by a runner."""
        self._threads[method] = runner
        self._runners.append(runner)

    def remove_runner(self, method: str) -> None:
        """Forget the runner of a method that was added, which runs nothing."""
        self._runners.remove(self._threads.pop(method))

    def fail_all(self, error: errors.ContextPoisoned) -> None:
        """Answer all requests here with an error: their results cannot be trusted, or will never come."""
        suspects = [] if self._suspect is None else [self._suspect]
        for run in (*self._completions.in_progress.take_all(), *self._parked, *suspects):
            for request in run.requests:
                self._envelope.fail(request, error)
        self._parked.clear()
        self._suspect = None
        for stream in list(self.streams.open):
            if stream.place >= 0:
                stream.items, stream.received_ns = 0, 0  # it was counted with its first step
                self._envelope.fail(stream, error)

    def end_late_streams(self) -> None:
        """End streams that are late or have lost their reader; send the parts of streams in a long step."""
        now_ns = time.monotonic_ns()
        self.streams.look_at_turns(now_ns)
        if self.streams.end_late(now_ns):
            self.advance()

    def parts_before(self, parts: Sequence[Request]) -> list[tuple[Request, Request]]:
        """Return which of these parts of worlds' calls wait here for which, that wait for no memory and have not begun.

        What a part waits for in this process, directly or behind others, comes down to parts that wait for other
        processes.
        """
        waiting = {request.event: request for request in self._waiting_requests() if request.event is not None}
        found: dict[Request, dict[Request, None]] = {}
        """The parts for which a request waits, once those are known for all before it."""
        for part in parts:
            ahead = [part]
            while ahead:
                request = ahead[-1]
                before = [waiting[event] for event in request.after if event in waiting and not event.done]
                unknown = [] if request in found else [each for each in before if each not in found]
                if unknown:
                    found[request] = {}
                    ahead += unknown
                    continue
                ahead.pop()
                if request.gang is not None and operands.is_free(request):
                    found[request] = {request: None}
                else:
                    found[request] = {last: None for each in before for last in found[each]}
        return [(part, last) for part in parts for last in found[part] if last is not part]

    def _waiting_requests(self) -> Iterator[Request]:
        """Yield the requests that have taken their places in the order of borrows, and have not begun."""
        yield from self._parked
        for runner in self._runners:
            yield from runner.waiting.items()

    def _start(self, request: Request) -> bool:
        """Run a request that has begun, or put it on its stream; False if it has to wait first."""
        if request.making is not None or self._held or self._waited:
            started = self._go_on(request)
            if started is not None:
                return started
        stream = request.method.stream
        if request.after or request.reads:
            answered = self._look_ahead(request, stream)
            if answered is not None:
                return answered
        if stream is None:
            request.call()
            self._envelope.complete(request)
            return True
        operands.lend(request, self._device)
        if request.event is None:
            request.event = self._device.make_event()
        if not stream.defers and _is_in_parts(request):  # others would wait there before its next part
            self._held.add(request.event)
        self._submit(request, stream, request.after)
        return True

    def _submit(self, request: Request, stream: Stream, after: Sequence[Event]) -> None:
        """Put a request, or its next part, on its stream; answer it if it has been done already."""
        completions, nbytes = self._completions, sum([block.nbytes for block, _ in request.borrows])
        if request.method.weigh is not None:
            nbytes += request.method.weigh(request.arguments)
        completions.begin(request)
        while stream.submit(request, after, nbytes):
            if not request.goes_on:
                completions.in_progress.end(request)
                self._complete_in_order(request)
                return
            if self._parked_again(request):
                completions.in_progress.end(request)
                return
        self._ahead[stream] += 1
        self._full += self._ahead[stream] == self._most_ahead

    def _parked_again(self, request: Request) -> bool:
        """Park a request whose next part waits for work done elsewhere; return whether it does."""
        after = request.next.after if request.next is not None else None
        if after is None or after.done:
            return False
        request.making, request.after, request.reads = after, (), ()
        self._park(request)
        return True

    def _waits_for_plan(self, request: Request) -> bool:
        """Return whether a request, or one that it has to wait for, waits for its plan or for a client's read."""
        making = request.making is not None and not request.making.done
        return making or any(
            (event in self._held and not event.done) or event in self._waited for event in request.after
        )

    def _go_on(self, request: Request) -> bool | None:
        """Return None if the request waits for no plan, False if it does, True if it is late and answered."""
        if self._waits_for_plan(request):
            return False
        waited = request.making is not None and request.next is None
        in_time = not waited or time.monotonic_ns() <= request.deadline_ns
        if waited and in_time:
            request.arguments, following = request.method.resumed(request.arguments)
            if following is not None:
                request.making = following
                return False
        if request.event is not None:
            self._held.discard(request.event)
        if not in_time:
            self._keep_out(
                request,
                errors.DeadlineExceeded(
                    "the deadline passed while the request's library was imported, or its plan made"
                ),
            )
            return True
        if waited:
            self._envelope.show_waiting(request, waits=False)
        return None

    def _look_ahead(self, request: Request, stream: Stream | None) -> bool | None:
        """Return None if the request may run, False if it has to wait, True if it is refused and answered."""
        free = operands.is_free(request)
        if not free and (stream is None or not stream.takes(request.after)):
            return False
        self._envelope.show_waiting(request, waits=not free)
        refusal = self._envelope.refusal(request)
        if refusal is not None:
            self._keep_out(request, refusal)
        return None if refusal is None else True

    def _keep_out(self, request: Request, error: errors.RequestError) -> None:
        """Answer a request that has begun and will not be run."""
        request.error, request.kept_out = error, True
        self._envelope.complete(request)

    def _park(self, request: Request) -> None:
        """Let a request that has begun wait until it can start."""
        operands.lend(request, self._device)
        self._envelope.show_waiting(request, waits=True)
        if request.event is not None and self._waits_for_plan(request):
            self._held.add(request.event)
        self._parked.append(request)

    def _note_apart(self, request: Request) -> None:
        """Let no stream wait for a part of a world's call, or for what may wait for a held request in another queue.

        A part waits for other processes, and these perhaps for what the stream would do later.
        """
        if request.event is not None and (request.gang is not None or self._held or self._waited):
            self._held.add(request.event)

    def _set_apart(self, request: Request) -> None:
        """Let a request wait for a batch, or for its actor's thread."""
        name = request.method.name
        try:
            if name in self._batched:
                self._batched[name].add(request)
                self._note_apart(request)
                return
            if request.refs and not self._envelope.admit(request):
                return
            self._note_apart(request)
            threads = self._threads[name]
            threads.waiting.add(request, request.peer.session, request.priority)
        except FatalError:
            raise
        except Exception as fault:  # noqa: BLE001 - ours; it costs this request
            self._envelope.undo(request, fault)
            return
        try:
            freed = self._feed(threads)
        except FatalError:
            raise
        except Exception as fault:
            raise HalfDoneError from fault
        if freed:
            self.advance()

    def _undo(self, request: Request, fault: Exception) -> None:
        """Take a request out that could not be started.

        Raises:
            HalfDoneError: It has been handed on already.
        """
        if request.completions is not None or request in self._parked:
            raise HalfDoneError from fault
        if request.event is not None:
            self._held.discard(request.event)
        self._envelope.undo(request, fault)

    def _has_room(self, batched: BatchedMethod | SteppedMethod) -> bool:
        """Return whether a batch of this method could start now if it is full or has nothing ahead of it."""
        threads = self._threads.get(batched.method.name)
        if threads is None:
            return batched.running < MOST_AHEAD
        if threads.ahead >= threads.count and (threads.waiting or self._is_anothers_turn(batched, threads)):
            return False
        return threads.ahead < threads.count - 1 + MOST_AHEAD

    def _is_anothers_turn(self, batched: BatchedMethod | SteppedMethod, threads: ActorRunner) -> bool:
        """Return whether another method on the same threads, which has run longer ago, has a batch due."""
        if len(threads.batched) == 1:
            return False
        before = itertools.takewhile(lambda each: each is not batched, self.turns)
        return any(each in threads.batched and each.is_due() for each in before)

    def _is_behind(self, batched: BatchedMethod | SteppedMethod) -> bool:
        """Return whether a batch of this method would have to wait for others."""
        threads = self._threads.get(batched.method.name)
        return batched.running > 0 if threads is None else threads.ahead >= threads.count

    def _start_batch(self, batched: BatchedMethod | SteppedMethod) -> bool:
        """Start the next batch of a method, if there is one; return whether there was."""
        taken, run = batched.next(full=self._is_behind(batched))
        for request in taken:
            if len(request.peer.replies) >= FLUSH_REPLIES:  # answers of late requests
                self._flush()
        if not taken and run is None:
            return False
        self.turns.remove(batched)
        self.turns.append(batched)
        if run is not None:
            self._start_run(batched, run)
        return True

    def _start_run(self, batched: BatchedMethod | SteppedMethod, run: BatchRun | StepsRun) -> None:
        """Run a batch that has begun, or a step."""
        threads, stream = self._threads.get(batched.method.name), batched.method.stream
        if threads is not None:
            self.has_begun_step = type(run) is StepsRun
            self._completions.begin(run)
            threads.run(run)
        elif stream is not None:
            assert isinstance(batched, BatchedMethod)
            assert isinstance(run, BatchRun)
            self._submit_batch(batched, run, stream)
        else:
            self._flush()  # no answer waits for, or is lost with, a run that may take long
            run.call()
            self._complete(run)

    def _submit_batch(self, batched: BatchedMethod, run: BatchRun, stream: Stream) -> None:
        run.event = self._device.make_event()
        for request in run.requests:
            if request.after:
                self._envelope.show_waiting(request, waits=not operands.is_free(request))
        self._completions.begin(run)
        if stream.submit(run, run.after, run.nbytes):
            self._completions.in_progress.end(run)
            self._complete(run)
        else:
            batched.running += 1

    def _is_at_work(self) -> bool:
        """Return whether requests run elsewhere, wait for such requests, or wait for a batch."""
        if self._completions.in_progress.requests or self._parked or self._early or self.batching:
            return True
        if self._suspect is not None:
            return True
        return any(threads.waiting for threads in self._threads.values() if not threads.in_step)

    def _streams_pause(self) -> bool:
        """Return whether streams that have begun pause: a suspect waits or runs, and nothing waits for their memory."""
        return self.isolation.active and not self._waits_for_memory()

    def _waits_for_memory(self) -> bool:
        """Return whether requests wait for memory in use, perhaps by a stream."""
        if self._suspect is not None or self._parked or self._early:
            return True
        if any(not operands.is_free(head) for threads in self._runners for head in threads.waiting.heads()):
            return True
        return any(each.waits_for_memory() for each in self.turns)

    def _run_freed_suspect(self, request: Request) -> None:
        """Run a suspect that has begun, now that its memory is free."""
        self._suspect = None
        self._envelope.show_waiting(request, waits=False)
        refusal = self._envelope.refusal(request)
        if refusal is None:
            self._run_alone(request)
        else:
            self._keep_out(request, refusal)

    def _run_alone(self, request: Request) -> None:
        """Run a request that has begun, while nothing else runs; later, if a stream or a world's call uses its memory.

        Such a call may wait for other members, who begin nothing while a suspect waits: it goes on meanwhile.
        """
        name = request.method.name
        threads = self._threads.get(name)
        if request.after or request.reads or name in self._batched or threads is not None:
            operands.lend(request, self._device)
            if not operands.is_free(request):
                self._suspect = request
                self._envelope.show_waiting(request, waits=True)
                self.streams.resume()
                for each in self._runners:
                    self._feed(each)
                return
        if name in self._batched:
            self._start_run(self._batched[name], self._batched[name].single(request))
        elif threads is not None:
            self._completions.begin(request)
            if type(request) is StreamRequest:
                request.feed(StreamEvent.TURN)
            threads.run(request)
        elif not self._start(request):  # its plan is being made
            self._park(request)

    def _feed(self, threads: ActorRunner) -> bool:
        """Start the next requests that wait for an actor's threads, as far as threads and memory are free.

        Returns:
            Whether memory may be free now, since a dropped request was passed over.
        """
        freed = False
        if threads.in_step and self.isolation.running and self.is_away:  # it does not wait for other processes
            return False
        while threads.ahead < threads.count and threads.waiting:
            if threads.owes_batch and any(batched.is_due() for batched in threads.batched):
                break  # it starts once all messages were read that may be part of it
            request = threads.waiting.take(
                operands.is_free if threads.is_plain else lambda each: operands.is_free(each) and threads.has_room(each)
            )
            if request is None:
                break
            if request.alone and request.gang is not None:  # others have had their turn in the queue
                self.isolation.take([request])
                break
            if request.gang is not None and request.method.name in self._batched:
                freed |= not self._run_together(request, threads)
            elif (
                self._begin(request)
                if type(request) is StreamRequest
                else self._envelope.begin(request, time.monotonic_ns())
            ):
                self._completions.begin(request)
                threads.run(request)
            else:
                threads.passed_over(request)
                freed = True
        return freed

    def _run_together(self, request: Request, threads: ActorRunner) -> bool:
        """Run a batch, or a step, whose requests the members of a world have agreed on; return whether it has begun."""
        shared = self._batched[request.method.name]
        assert isinstance(shared, SharedRuns)
        run = shared.together(threads.together(request))
        if run is None:
            threads.passed_over(request)
            return False
        self._completions.begin(run)
        threads.run(run)
        return True

    def _begin(self, stream: StreamRequest) -> bool:
        """Begin a stream, or resume it; False if it has been answered."""
        now_ns = time.monotonic_ns()
        if stream.place >= 0:
            self.streams.begin_turn(stream, now_ns)
            return True
        begun = self._envelope.begin(stream, now_ns)
        if begun:
            stream.feed(StreamEvent.TURN)
        return begun

    def _came_back(self, run: Run, threads: ActorRunner) -> bool:
        """Take a run back from its thread; return whether no answer is left to give."""
        threads.came_back(run)
        if isinstance(run, Request) and threads.waiting.levels:
            threads.waiting.charge(run.peer.session, time.monotonic_ns() - run.started_ns)
        if isinstance(run, StepsRun):
            self._finish_step(run)
            return True
        return type(run) is StreamRequest and self.streams.rest(run)

    def _finish_step(self, run: StepsRun) -> None:
        """Take back a step of streams that run together, and answer the streams that have ended."""
        stepped, fatal = self._batched[run.method.name], None
        assert isinstance(stepped, SteppedMethod)
        for stream in stepped.finish(run):
            try:
                self._complete_stream(stream)
            except FatalError as ends:  # raised after the other answers
                fatal = ends
        run.arguments = ()
        run.error = None
        if fatal is not None:
            raise fatal

    def _complete_stream(self, stream: StreamRequest) -> None:
        """Answer one of several streams that run together."""
        self.streams.close_place(stream)
        self._envelope.complete(stream)

    def _unpark(self) -> bool:
        """Start requests whose memory has become free; return whether there were any."""
        waiting, self._parked = self._parked, []
        for request in waiting:
            try:
                if not self._start(request):
                    self._parked.append(request)
            except FatalError:
                raise
            except Exception as fault:  # noqa: BLE001 - of a library that goes on from its plan; it costs this request
                self._undo(request, fault)
        return len(self._parked) < len(waiting)

    def _has_stream(self, request: Request) -> bool:
        """Return whether there is room on the request's stream, if it needs one."""
        stream = request.method.stream
        return stream is None or self._ahead[stream] < self._most_ahead

    def _complete_in_order(self, run: Run) -> None:
        """Answer a run; later, if the writer of memory that it read has not been answered yet."""
        try:
            if run.reads and any(contents.are_open(request) for request in run.requests):
                self._early.append(run)
            else:
                self._complete(run)
        except FatalError:
            raise
        except Exception as fault:  # noqa: BLE001 - ours; it costs this run
            self._envelope.undo_all(run, fault)

    def _answer_early(self) -> bool:
        """Answer the runs whose writers have been answered meanwhile; return whether there were any.

        They stand in the order of their ends, and one may wait for the answer of another that stands behind it.
        """
        early, self._early = self._early, []
        for run in early:
            self._complete_in_order(run)
        return len(self._early) < len(early)

    def _complete(self, run: Run) -> None:
        """Answer a run."""
        if isinstance(run, Request):
            self._envelope.complete(run)
            return
        fatal: FatalError | None = None
        if run.raised is not None:
            run.fail(run.raised)
        error = run.error
        for request in run.requests:
            if error is not None:
                request.error, request.encoded = error, None
            elif isinstance(request, ItemsSlice):
                self._envelope.explain_items(request)
            peer, request.called_ns = request.peer, run.called_ns
            try:
                self._envelope.complete(request)
            except FatalError as ends:  # raised after the others, which have been done
                fatal = ends
            if len(peer.replies) >= FLUSH_REPLIES or peer.reply_bytes > FLUSH_BYTES:
                self._flush()
        run.arguments = ()
        run.error = run.raised = None
        if fatal is not None:
            raise fatal


def _may_end_early(request: Request) -> bool:
    """Return whether a running call looks at its `closing`: a program does, also one that an actor's method runs."""
    if request.method.is_ours or request.gang is not None:
        return _is_in_parts(request)
    return not isinstance(request, StreamRequest)


def _is_in_parts(request: Request) -> bool:
    """Return whether a request that was not answered may let others have their turn amid it."""
    in_parts = request.method.in_parts
    return in_parts is not None and bool(request.arguments) and in_parts(request.arguments[0])
