"""Which of the waiting requests run, and in which order: envelope and dispatcher without a process or a socket."""

from __future__ import annotations

import gc
import itertools
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from atomr_mp import errors
from atomr_mp.protocol import token, values
from atomr_mp.protocol.board import BOARD_BYTES, BoardReader, BoardWriter
from atomr_mp.protocol.flow.flight import Window
from atomr_mp.protocol.messages import control, data
from atomr_mp.protocol.messages.control import ActorSpec
from atomr_mp_workers import Actor, Batch, method
from atomr_mp_workers.device import open_device
from atomr_mp_workers.device.base import Stream, WorkerDevice
from atomr_mp_workers.device.host import HostDevice
from atomr_mp_workers.device.streams import StreamAllocator
from atomr_mp_workers.fatal import FatalError
from atomr_mp_workers.libraries import Libraries
from atomr_mp_workers.libraries.base import LibraryContext
from atomr_mp_workers.loading import load
from atomr_mp_workers.memory import content
from atomr_mp_workers.memory.arrays import Block
from atomr_mp_workers.memory.store import Store
from atomr_mp_workers.requests import dispatch
from atomr_mp_workers.requests.batches import batch_run
from atomr_mp_workers.requests.batches.batch_run import BatchedMethod
from atomr_mp_workers.requests.dispatch import Dispatcher
from atomr_mp_workers.requests.envelope import Envelope
from atomr_mp_workers.requests.kinds import stream as stream_kind
from atomr_mp_workers.requests.method import Method
from atomr_mp_workers.requests.off_loop.completions import Completions
from atomr_mp_workers.requests.off_loop.in_progress import InProgress
from atomr_mp_workers.requests.off_loop.threads import ActorThreads
from atomr_mp_workers.requests.peers import Peer, Peers
from atomr_mp_workers.requests.request import Request
from tests.own_threads import OwnThreads
from tests.support import Edges, settled

NEVER_NS = 2**62
DEADLINE_S = 30.0
TOKEN = token.pack(bytes(16), 0, 1)


class Logged(Actor):
    """Notes what runs."""

    log: list[Any]

    @method
    def run(self, item: Any) -> Any:
        """Note an item."""
        self.log.append(item)
        return item

    @method(queue=3)
    def few(self, item: Any) -> Any:
        """Note an item; three may wait."""
        self.log.append(item)
        return item

    @method(batch=Batch(max_items=4, max_wait_s=0), queue=8)
    def together(self, items: list[Any]) -> list[Any]:
        """Note a batch."""
        self.log.append(items)
        return items

    @method(batch=Batch(max_items=4, max_wait_s=0), thread=True)
    def many(self, items: list[Any]) -> list[Any]:
        """Note a batch, on a thread."""
        self.log.append(items)
        return items

    @method(batch=Batch(max_items=4, max_wait_s=0), thread=True)
    def rare(self, items: list[Any]) -> list[Any]:
        """Note a batch, on the same thread."""
        self.log.append(items)
        return items


class Worker:
    """What is in a worker but its loop."""

    def __init__(
        self, most_queued: int = 2**62, threads: int = 1, target: str = f"{__name__}:Logged", own_token: bytes = TOKEN
    ) -> None:
        device = self.device = open_device("host", "adaptive")
        in_progress = InProgress()
        self.completions = Completions("adaptive", device, in_progress)
        self.woken = Edges(self.completions.descriptor)
        store = self.store = Store(device, own_token, 2**28, in_progress)
        self.streams: list[Stream] = []

        def make_stream(name: str, _priority: str) -> Stream:
            self.streams.append(device.make_stream(name, inline_bytes=0))
            return self.streams[-1]

        streams = StreamAllocator("per_actor", make_stream)
        libraries = self.libraries = Libraries(
            LibraryContext("host", device, store, streams, lambda: store.buffers.ours, self.completions.wake)
        )
        memory = memoryview(bytearray(BOARD_BYTES))
        board = BoardWriter(memory)
        self.board = BoardReader(memory)
        actor = load(ActorSpec("Logged", target))
        self.log: list[Any] = []
        actor.instance.log = self.log  # type: ignore[attr-defined]
        self.methods: dict[str, Method] = {each.name: each for each in actor.methods}
        self.envelope = Envelope(self.methods, board, own_token, libraries, store, most_queued)
        batched = {
            name: BatchedMethod(each, 0, self.envelope, store, board)
            for name, each in self.methods.items()
            if each.batch
        }
        self.own_threads = OwnThreads()
        with self.own_threads.started():
            on_threads = self._on_threads = ActorThreads("Logged", threads, device)
        by_method = {name: on_threads for name, each in self.methods.items() if each.thread}
        self.dispatcher = Dispatcher(self.envelope, self.completions, device, by_method, batched, lambda: None, board)
        self.peers = Peers(Window(100, 2**20), store)
        self._ids = 0

    def client(self, number: int, weight: float = 1.0) -> Peer:
        """Admit a client."""
        name = bytes([number]) * 16
        self.peers.admit(control.SessionOpened(number, name, bytes(16), weight=weight))
        peer = self.peers.find(data.routing_id(name, 0))
        assert peer is not None
        return peer

    def call(
        self, peer: Peer, items: Sequence[Any], method: str = "run", priority: int = 0, deadline_ns: int = NEVER_NS
    ) -> list[int]:
        """Have a message with calls arrive; return their ids."""
        calls = []
        for item in items:
            self._ids += 1
            body = values.encode((item,))[0]
            calls.append(data.Call(self._ids, f"Logged.{method}", deadline_ns, 0, body, priority=priority))
        self.dispatcher.take(self.envelope.open(peer, data.Calls(TOKEN, calls), []))
        return [call.id for call in calls]

    def alone(self, peer: Peer, item: Any, method: str = "run", deadline_ns: int = NEVER_NS) -> list[int]:
        """Have a call arrive that is to run alone; return its id."""
        self._ids += 1
        call = data.Call(self._ids, f"Logged.{method}", deadline_ns, 0, values.encode((item,))[0])
        self.dispatcher.take_alone(self.envelope.open(peer, data.Alone(TOKEN, [call]), []))
        return [call.id]

    def put_on_stream(self, name: str, go: threading.Event) -> Stream:
        """Have a method run on a stream, where it waits for the test."""
        stream = self.methods[name].stream = self.device.make_stream("stream", inline_bytes=-1)
        self.hold(name, lambda: go.wait(DEADLINE_S))
        return stream

    def hold(self, name: str, wait: Callable[[], bool]) -> None:
        """Have a method wait before it runs."""
        method = self.methods[name]
        function = method.function

        def wait_and_run(argument: Any) -> Any:
            assert wait(), "nobody has let it go"
            return function(argument)

        method.function = wait_and_run  # type: ignore[misc]

    def take_back(self) -> None:
        """Wait for something to end on a stream, and take it back."""
        assert self.woken.wait(DEADLINE_S), "nothing has ended"
        self.dispatcher.take_back()

    def go_on(self) -> None:
        """Wait for something to end on a stream, take it back, and start what has waited for its room."""
        self.take_back()
        while self.dispatcher.work():
            pass

    def close(self) -> None:
        """Close what it has of descriptors, and end its threads."""
        self._on_threads.close()
        self.own_threads.join()
        for stream in self.streams:
            stream.close()  # its thread writes the descriptor after each piece of work
        self.woken.close()
        os.close(self.completions.descriptor)

    def run(self) -> list[Any]:
        """Run everything; return what has run since the last time."""
        while self.dispatcher.work():
            pass
        while self.dispatcher.batching:
            self.dispatcher.start_batches()
            while self.dispatcher.work():
                pass
        ran, self.log[:] = list(self.log), []
        return ran


@pytest.fixture
def worker() -> Iterator[Worker]:
    """A worker."""
    worker = Worker()
    yield worker
    assert worker.board.queue_depth == 0
    assert not any(each.queued for each in worker.methods.values())
    assert worker.envelope._queued == 0
    worker.close()


def outcomes(peer: Peer) -> dict[int, errors.AtomrError | None]:
    """Return the errors of a client's answers by id, None for results."""
    found = {reply.id: None if reply.error is None else reply.error.error() for reply in peer.replies}
    assert len(found) == len(peer.replies), "none is answered twice"
    return found


def test_a_client_with_much_waiting_does_not_keep_out_another(worker: Worker) -> None:
    """The other's single call is run after one of its requests, however many there are."""
    greedy, other = worker.client(1), worker.client(2)
    worker.call(greedy, [("greedy", number) for number in range(1000)])
    worker.call(other, ["single"])
    ran = worker.run()
    assert ran.index("single") <= 1
    assert [each for each in ran if each != "single"] == [["greedy", number] for number in range(1000)]
    assert all(error is None for peer in (greedy, other) for error in outcomes(peer).values())


def test_clients_that_have_much_waiting_take_turns(worker: Worker) -> None:
    """All of them go on, each in its own order."""
    clients = [worker.client(number) for number in range(1, 4)]
    for number, client in enumerate(clients):
        worker.call(client, [[number, at] for at in range(300)])
    ran = worker.run()
    for number in range(3):
        assert [at for owner, at in ran if owner == number] == list(range(300))
    assert {owner for owner, _ in ran[:30]} == {0, 1, 2}


def test_clients_get_time_by_their_weights(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where each request takes as long as any other, by their number; higher priorities come first all the same."""
    now_ns = itertools.count(time.monotonic_ns(), 1000)
    monkeypatch.setattr(dispatch, "time", SimpleNamespace(monotonic_ns=lambda: next(now_ns)))
    light, heavy = worker.client(1), worker.client(2, weight=3.0)
    worker.call(light, ["light"] * 200)
    worker.call(heavy, ["heavy"] * 200)
    worker.call(worker.client(3), ["high"] * 5, priority=1)
    ran = worker.run()
    assert ran[:5] == ["high"] * 5
    for end in range(6, 200):
        counted = Counter(ran[5:end])
        assert abs(counted["light"] - counted["heavy"] / 3) <= 1
    assert Counter(ran) == {"light": 200, "heavy": 200, "high": 5}


def test_higher_priorities_come_first_whoever_has_sent_them(worker: Worker) -> None:
    """Also before earlier requests of the same client; among equals in the order in which they came."""
    one, two = worker.client(1), worker.client(2)
    worker.call(one, ["low 1", "low 2"], priority=-8)
    worker.call(one, ["plain 1", "plain 2"])
    worker.call(two, ["high 1", "high 2"], priority=7)
    assert worker.run() == ["high 1", "high 2", "plain 1", "plain 2", "low 1", "low 2"]
    worker.call(one, ["a", "b", "c", "d"], "together")
    worker.call(two, ["e"], "together", priority=1)
    assert worker.run() == [["e", "a", "b", "c"], ["d"]]


def test_a_stream_is_not_given_all_that_is_queued(worker: Worker) -> None:
    """What is on it has its order. So the rest stays where others may come in between, on another place at once."""
    one, two, three = [worker.client(number) for number in (1, 2, 3)]
    go = threading.Event()
    stream = worker.put_on_stream("Logged.run", go)
    worker.call(one, range(100))
    while worker.dispatcher.work():
        pass
    ahead = HostDevice.ahead
    assert len(worker.completions.in_progress.requests) == ahead < WorkerDevice.ahead
    worker.call(three, ["elsewhere"], "few")
    worker.call(two, ["single"])
    while worker.dispatcher.work():
        pass
    assert worker.log == ["elsewhere"]
    go.set()
    while worker.completions.in_progress.requests:
        worker.take_back()
        worker.dispatcher.work()
    stream.close()
    assert worker.log.index("single") <= ahead + 2
    assert [item for item in worker.log if isinstance(item, int)] == list(range(100))


def test_a_second_batch_is_on_a_stream_only_if_it_is_full(worker: Worker) -> None:
    """So the device has the next one in time, and what comes meanwhile is put together all the same."""
    client = worker.client(1)
    go = threading.Event()
    stream = worker.put_on_stream("Logged.together", go)
    for count, running in ((1, 1), (3, 1), (2, 2), (2, 2)):
        worker.call(client, [0] * count, "together")
        worker.dispatcher.start_batches()
        assert len(worker.completions.in_progress.requests) == running
    go.set()
    while worker.completions.in_progress.requests:
        worker.take_back()
        worker.dispatcher.start_batches()
    stream.close()
    assert worker.log == [[0], [0] * 4, [0] * 3]
    assert len(outcomes(client)) == 8


def test_full_batches_on_a_thread_leave_no_other_method_behind(worker: Worker) -> None:
    """However many there are: the second of them is not handed to it ahead while another method's batch is due."""
    client = worker.client(1)
    go = threading.Semaphore(0)
    for name in ("Logged.many", "Logged.rare"):
        worker.hold(name, lambda: go.acquire(timeout=DEADLINE_S))
    worker.call(client, [0] * 4, "many")
    worker.dispatcher.start_batches()
    worker.call(client, ["rare"], "rare")
    for number in range(1, 8):
        worker.call(client, [number] * 4, "many")
        worker.dispatcher.start_batches()
        go.release()
        worker.take_back()
    while worker.dispatcher.busy:
        worker.dispatcher.start_batches()
        go.release()
        worker.take_back()
    assert worker.log.index(["rare"]) <= 2
    assert len(worker.log) == 9


def test_there_is_a_batch_for_each_thread_and_a_full_one_ahead() -> None:
    """What is not full waits for others as long as all threads have something to do."""
    worker = Worker(threads=3)
    client = worker.client(1)
    go, begun = threading.Semaphore(0), threading.Semaphore(0)

    def wait() -> bool:
        begun.release()
        return go.acquire(timeout=DEADLINE_S)

    worker.hold("Logged.many", wait)
    for number, items in enumerate([1, 1, 1, 1, 4, 4]):
        worker.call(client, [number] * items, "many")
        worker.dispatcher.start_batches()
    assert len(worker.board.running()) == 3 + 4
    assert all(begun.acquire(timeout=DEADLINE_S) for _ in range(3))
    for _ in range(6):
        go.release()
        worker.take_back()
        worker.dispatcher.start_batches()
    assert not worker.dispatcher.busy
    # Not in the order in which they began: any thread that waits may be let go first.
    assert sorted(worker.log) == [[0], [1], [2], [3, 4, 4, 4], [4, 5, 5, 5], [5]]
    worker.close()


def test_a_full_queue_refuses_what_comes_next(worker: Worker) -> None:
    """By method; what has been let in runs, and then there is room again."""
    one, two = worker.client(1), worker.client(2)
    first = worker.call(one, [0, 1], "few")
    second = worker.call(two, [2, 3, 4], "few")
    refused = outcomes(two)
    assert list(refused) == second[1:]
    for error in refused.values():
        assert isinstance(error, errors.Overloaded)
        assert not error.maybe_executed
        assert error.retry_after_s == 0, "it has never run"
    worker.call(one, ["not concerned"])
    assert sorted(map(str, worker.run())) == ["0", "1", "2", "not concerned"]
    assert list(outcomes(one))[: len(first)] == first
    worker.methods["Logged.few"].typical_ns = 2_000_000_000
    (refused_id,) = worker.call(one, range(4), "few")[3:]
    error = outcomes(one)[refused_id]
    assert isinstance(error, errors.Overloaded)
    assert error.retry_after_s == 6.0
    assert worker.run() == [0, 1, 2]


def test_what_runs_side_by_side_counts_when_it_is_told_when_to_come_again(worker: Worker) -> None:
    """On two threads, or on an event loop, three that wait take half of their time."""
    client = worker.client(1)
    few = worker.methods["Logged.few"]
    few.typical_ns, few.side_by_side = 2_000_000_000, 2
    (refused_id,) = worker.call(client, range(4), "few")[3:]
    error = outcomes(client)[refused_id]
    assert isinstance(error, errors.Overloaded)
    assert error.retry_after_s == 3.0
    assert worker.run() == [0, 1, 2]


def test_batches_count_when_it_is_told_when_to_come_again(worker: Worker) -> None:
    """Eight that wait for batches of four take as long as two runs."""
    client = worker.client(1)
    worker.methods["Logged.together"].typical_ns = 1_000_000_000
    *_, refused_id = worker.call(client, range(9), "together")
    error = outcomes(client)[refused_id]
    assert isinstance(error, errors.Overloaded)
    assert error.retry_after_s == 2.0
    assert worker.run() == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_a_worker_has_a_bound_for_all_methods_together() -> None:
    """Whatever they are, and whoever has sent them."""
    worker = Worker(most_queued=5)
    one, two = worker.client(1), worker.client(2)
    worker.call(one, [0, 1, 2])
    worker.call(one, [3, 4], "together")
    (refused_id,) = worker.call(two, [5], "few")
    assert isinstance(outcomes(two)[refused_id], errors.Overloaded)
    assert worker.run() == [0, 1, 2, [3, 4]]
    worker.call(two, [6], "few")
    assert worker.run() == [6]
    worker.close()


def test_whatever_ends_a_request_that_waits_makes_room(worker: Worker) -> None:
    """Cancelled, late, undecodable, of a session that has ended: none of them counts now."""
    client, ending = worker.client(1), worker.client(2)
    cancelled, _ = worker.call(client, ["cancelled", "runs"], "few")
    worker.call(client, ["late"], "few", deadline_ns=1)
    worker.envelope.cancel(client, [cancelled])
    (ended,) = worker.call(ending, ["of an ended session"], "few")
    worker.call(client, ["batched"], "together")
    worker.call(ending, ["also ended"], "together")
    worker.peers.end(2)
    assert worker.run() == ["runs", ["batched"]]
    assert ended not in outcomes(ending)
    found = outcomes(client)
    assert isinstance(found[cancelled], errors.Cancelled)
    assert sum(isinstance(error, errors.DeadlineExceeded) for error in found.values()) == 1


def test_what_becomes_late_while_a_batch_is_put_together_is_not_in_it(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is counted as late there, so with it the batch would have more than it may."""
    client = worker.client(1)
    start_ns = time.monotonic_ns()
    late = worker.call(client, ["late", "late"], "together", deadline_ns=start_ns + 10**12 + 500)
    worker.call(client, range(4), "together")
    now_ns = itertools.count(start_ns + 10**12, 1000)
    monkeypatch.setattr(batch_run, "time", SimpleNamespace(monotonic_ns=lambda: next(now_ns)))
    taken, run = next(each for each in worker.dispatcher.turns if each).next(full=False)
    assert run is not None
    assert [request.id for request in taken[:2]] == late
    assert list(run.arguments) == [[0, 1, 2, 3]]
    assert [type(error) for error in outcomes(client).values()] == [errors.DeadlineExceeded] * 2
    run.call()
    for request in run.requests:
        worker.envelope.complete(request)


class TestAlone:
    """What may be what ends workers runs while nothing else does."""

    def test_it_runs_at_once_where_nothing_runs(self, worker: Worker) -> None:
        """And what comes after it goes on."""
        client = worker.client(1)
        (number,) = worker.alone(client, "alone")
        worker.call(client, ["next"])
        assert worker.run() == ["alone", "next"]
        assert outcomes(client)[number] is None
        assert worker.board.alone() is None

    def test_it_waits_for_what_runs_and_lets_nothing_else_in(self, worker: Worker) -> None:
        """What runs on a stream ends first; what comes meanwhile comes after it; and the board says so."""
        go = threading.Event()
        stream = worker.put_on_stream("Logged.few", go)
        client, other = worker.client(1), worker.client(2)
        worker.call(client, ["runs"], "few")
        assert worker.run() == []
        worker.alone(client, "alone")
        worker.call(other, ["other"])
        worker.call(other, ["together"], "together")
        assert worker.run() == []
        assert worker.dispatcher.busy
        go.set()
        worker.take_back()
        assert worker.run() == ["runs", "alone", "other", ["together"]]
        assert worker.board.running() == []
        stream.close()

    def test_on_a_stream_it_keeps_others_out_until_it_has_ended(self, worker: Worker) -> None:
        """One after the other, if there are several."""
        go = threading.Event()
        stream = worker.put_on_stream("Logged.few", go)
        client = worker.client(1)
        first, second = (worker.alone(client, item, "few")[0] for item in ("first", "second"))
        worker.call(client, ["other"])
        assert worker.run() == []
        assert worker.board.alone() == (1, first)
        assert [entry.request_id for entry in worker.board.running()] == [first]
        go.set()
        ran: list[Any] = []
        alone: list[Any] = []

        def all_ran() -> bool:
            worker.dispatcher.take_back()
            ran.extend(worker.run())
            alone.append(worker.board.alone())
            return len(ran) == 3

        assert settled(all_ran)
        assert ran == ["first", "second", "other"]
        assert set(alone) <= {(1, first), (1, second), None}
        assert worker.board.alone() is None
        stream.close()

    def test_it_overtakes_nothing_of_its_session(self, worker: Worker) -> None:
        """Nor does anything overtake it, though both may come while another one waits."""
        client = worker.client(1)
        for item in range(6):
            if item % 2:
                worker.call(client, [item])
            else:
                worker.alone(client, item)
        ran: list[Any] = []
        while len(ran) < 6:
            ran += worker.run()
        assert ran == [0, 1, 2, 3, 4, 5]

    def test_of_a_batched_method_it_is_a_batch_of_its_own(self, worker: Worker) -> None:
        """Those that wait for a batch have theirs before it."""
        client = worker.client(1)
        worker.call(client, [1, 2], "together")
        worker.alone(client, 3, "together")
        worker.call(client, [4], "together")
        assert worker.run() == [[1, 2], [3], [4]]
        worker.take_back()  # it has woken the loop

    def test_what_is_dropped_while_it_waits_keeps_nobody_out(self, worker: Worker) -> None:
        """By a cancel, by its deadline, or by the end of its session."""
        go = threading.Event()
        stream = worker.put_on_stream("Logged.few", go)
        client, gone = worker.client(1), worker.client(2)
        worker.call(client, ["runs"], "few")
        worker.run()
        cancelled = worker.alone(client, "cancelled")
        (late,) = worker.alone(client, "late", deadline_ns=1)
        worker.alone(gone, "gone")
        worker.envelope.cancel(client, cancelled)
        worker.peers.end(2)
        worker.call(client, ["next"])
        go.set()
        worker.take_back()
        assert worker.run() == ["runs", "next"]
        assert isinstance(outcomes(client)[cancelled[0]], errors.Cancelled)
        assert isinstance(outcomes(client)[late], errors.DeadlineExceeded)
        stream.close()


def test_what_ends_its_worker_stays_on_the_board_as_running(worker: Worker) -> None:
    """So the supervisor finds it among what the worker may have died of; it is counted as answered all the same."""

    def poison(_item: Any) -> Any:
        raise errors.ContextPoisoned("on purpose")

    worker.methods["Logged.run"].function = poison  # type: ignore[misc]
    client = worker.client(1)
    (number,) = worker.call(client, ["poison"])
    with pytest.raises(FatalError):
        worker.run()
    assert [entry.request_id for entry in worker.board.running()] == [number]
    assert worker.board.queue_depth == 0


@pytest.mark.parametrize("ahead", [False, True])
def test_a_reader_that_is_refused_leaves_no_memory_to_the_collector(worker: Worker, *, ahead: bool) -> None:
    """A worker that is idle collects nothing: what the error's traceback kept would be held for ever.

    Refused when it begins, or when it is decoded because it has to wait for its turn.
    """
    peer = worker.client(1)
    store, holder = worker.store, peer.session.holder
    array = store.buffers.allocate(holder, "float64", (1000,))
    lease = store.lease(holder, array)
    culprit = content.Culprit("Logged.run", 1, "actor_failed", "half done", 0)
    array.block.borrows.content = content.after_failure(None, content.WrittenPart(array.layout), culprit)
    name = "Logged.many" if ahead else "Logged.run"
    call = data.Call(1, name, NEVER_NS, 0, values.encode((array,))[0], refs=1)
    del array
    gc.disable()
    try:
        worker.dispatcher.take(worker.envelope.open(peer, data.Calls(TOKEN, [call]), []))
        worker.run()
        assert isinstance(outcomes(peer)[1], errors.GpuRefUndefined)
        assert store.statistics()["used_bytes"] > 0
        store.release(holder, [lease], [], [])
        assert store.statistics()["used_bytes"] == 0
    finally:
        gc.enable()


def test_readers_refused_for_a_writer_that_never_started_are_told_when_its_client_is(worker: Worker) -> None:
    """A client that knew earlier could send a reader that would count as one behind the writer."""
    client, other = worker.client(1), worker.client(2)
    answers = worker.envelope.answers

    def give(peer: Peer, error: errors.AtomrError, missed: Sequence[Block] = ()) -> int:
        worker._ids += 1
        peer.unanswered += 1
        call = data.Call(worker._ids, "Logged.run", NEVER_NS, 0, b"")
        request = Request(peer, call, worker.methods["Logged.run"])
        request.missed = missed
        answers.give(request, error)
        return call.id

    block = worker.store.buffers.allocate(worker.store.buffers.ours, "float64", (8,)).block
    at_once = give(client, errors.GpuRefUndefined("of a writer that has failed"))
    assert list(outcomes(client)) == [at_once]
    given = [
        give(client, errors.DeadlineExceeded("too late"), [block]),
        give(client, errors.GpuRefUndefined("not written")),
    ]
    prompt = give(other, errors.ActorFailed("of its own"))
    answers.end_turn()
    assert (len(client.replies), list(outcomes(other))) == (1, [prompt])
    answers.end_turn()
    assert list(outcomes(client))[1:] == given
    assert not answers.withheld


class Telling(Actor):
    """Streams what is in a buffer, and writes it."""

    log: list[Any]
    told: threading.Semaphore
    go: threading.Semaphore

    @method(thread=True)
    def tell(self, buffer: np.ndarray[Any, Any]) -> Iterator[float]:
        """Yield the first element twice; the test lets the second one go."""
        yield float(buffer[0])
        self.told.release()
        assert self.go.acquire(timeout=DEADLINE_S)
        yield float(buffer[0])
        self.log.append("told")

    @method(thread=True, writes=["buffer"])
    def write(self, buffer: np.ndarray[Any, Any]) -> None:
        """Add one."""
        buffer += 1
        self.log.append("written")

    @method
    def run(self, item: Any) -> Any:
        """Note an item."""
        self.log.append(item)
        return item


@pytest.mark.parametrize("suspect", ["of others", "of the same memory"])
def test_a_suspect_leaves_streams_that_others_wait_for_their_time(
    suspect: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits for all requests that came before, and these for the stream: so the stream goes on, and ends first."""
    monkeypatch.setattr(stream_kind, "BEYOND_NS", 0)  # each step is a turn
    worker = Worker(target=f"{__name__}:Telling")
    actor = worker.methods["Logged.tell"].function.__self__  # type: ignore[attr-defined]
    actor.told, actor.go = threading.Semaphore(0), threading.Semaphore(0)
    client = worker.client(1)
    holder = client.session.holder
    buffer = worker.store.buffers.allocate(holder, "float64", (4,))
    worker.store.lease(holder, buffer)
    body = values.encode((buffer,))[0]

    def call(name: str) -> list[data.Call]:
        worker._ids += 1
        return [data.Call(worker._ids, f"Logged.{name}", NEVER_NS, 0, body, refs=1)]

    stream = data.StreamCall(10**6, "Logged.tell", NEVER_NS, 0, body, 8, 2**20, NEVER_NS, NEVER_NS, refs=1)
    worker.dispatcher.take(worker.envelope.open_streams(client, data.Streams(TOKEN, [stream]), []))
    worker.dispatcher.work()
    worker.take_back()
    assert actor.told.acquire(timeout=DEADLINE_S), "it has not gone on"
    expected = ["told", "written", "alone"]
    if suspect == "of others":
        worker.dispatcher.take(worker.envelope.open(client, data.Calls(TOKEN, call("write")), []))
        worker.dispatcher.work()
        worker.alone(client, "alone")
    else:
        worker.dispatcher.take_alone(worker.envelope.open(client, data.Alone(TOKEN, call("write")), []))
        expected.remove("alone")
    worker.dispatcher.work()
    actor.go.release()
    while worker.dispatcher.busy:
        worker.take_back()
        worker.dispatcher.work()
    assert worker.log == expected
    assert all(error is None for error in outcomes(client).values())
    worker.close()
