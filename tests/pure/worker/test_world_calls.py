"""Parts of gang calls go through envelope, dispatcher and the world's thread, of two members in one process."""

from __future__ import annotations

import gc
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from atomr_mp import errors
from atomr_mp.protocol import token, values
from atomr_mp.protocol.board import BOARD_BYTES, BoardReader, BoardWriter, PlaceKind, Watched
from atomr_mp.protocol.flow.flight import Window
from atomr_mp.protocol.messages import control, data
from atomr_mp.protocol.messages.control import ActorSpec
from atomr_mp.protocol.world.page import MAX_STEPPED
from atomr_mp_workers import Actor, Batch, Live, Steps, method
from atomr_mp_workers.device import open_device
from atomr_mp_workers.device.streams import StreamAllocator
from atomr_mp_workers.libraries import Libraries
from atomr_mp_workers.libraries.base import LibraryContext
from atomr_mp_workers.loading import load, take_into_world
from atomr_mp_workers.memory.store import Store
from atomr_mp_workers.requests.dispatch import Dispatcher
from atomr_mp_workers.requests.envelope import Envelope
from atomr_mp_workers.requests.method import Method
from atomr_mp_workers.requests.off_loop.completions import Completions
from atomr_mp_workers.requests.off_loop.in_progress import InProgress
from atomr_mp_workers.requests.peers import Peer, Peers
from atomr_mp_workers.requests.request import Request
from atomr_mp_workers.worlds import hosted
from atomr_mp_workers.worlds.hosted import HostedWorlds
from atomr_mp_workers.worlds.membership import Membership
from atomr_mp_workers.worlds.order.files import WorldFiles
from atomr_mp_workers.worlds.running.batched_method import GangBatchedMethod
from atomr_mp_workers.worlds.running.gang_queue import GangQueue
from atomr_mp_workers.worlds.running.world_thread import WorldThread, _patient
from tests.own_threads import OwnThreads
from tests.support import settled
from tests.world_files import WorldSupply

NEVER_NS = 2**62
DEADLINE_S = 30.0
TOKEN = token.pack(bytes(16), 0, 1)


class Ranked(Actor):
    """Belongs to a world."""

    log: list[Any]
    meet: threading.Barrier
    free: threading.Event

    @method
    def run(self, item: int) -> int:
        """Note an item."""
        self.log.append(item)
        return item

    @method
    def together(self, item: int) -> int:
        """Note an item, once the other member has come."""
        self.meet.wait(DEADLINE_S)
        self.log.append(item)
        return item

    @method
    def hold(self, item: int) -> int:
        """Note an item, once the test lets this member go on."""
        self.free.wait(DEADLINE_S)
        self.log.append(item)
        return item

    @method(batch=Batch(max_items=4, max_wait_s=0))
    def gather(self, items: list[int]) -> list[int]:
        """Note a batch, once the other member has come, unless it is the example."""
        if items != [0]:
            self.meet.wait(DEADLINE_S)
        self.log.append(items)
        return items


class Plain(Actor):
    """Belongs to no world."""

    log: list[Any]

    @method
    def run(self, item: int) -> int:
        """Note an item."""
        self.log.append(item)
        return item


class Member:
    """What is in a member's process but its loop."""

    def __init__(self, rank: int, supply: WorldSupply, meet: threading.Barrier, most_queued: int = 2**62) -> None:
        self.device = device = open_device("host", "adaptive")
        in_progress = InProgress()
        self.completions = Completions("adaptive", device, in_progress)
        store = Store(device, TOKEN, 2**28, in_progress)
        streams = StreamAllocator("per_actor", lambda name, _priority: device.make_stream(name, inline_bytes=0))
        libraries = Libraries(
            LibraryContext("host", device, store, streams, lambda: store.buffers.ours, self.completions.wake)
        )
        memory = memoryview(bytearray(BOARD_BYTES))
        board = BoardWriter(memory)
        self.board = BoardReader(memory)
        self.log: list[Any] = []
        ranked = load(ActorSpec("Ranked", f"{__name__}:Ranked"))
        plain = load(ActorSpec("Plain", f"{__name__}:Plain"))
        for each in (ranked, plain):
            each.instance.log = self.log  # type: ignore[attr-defined]
        ranked.instance.meet = meet  # type: ignore[attr-defined]
        self.free = ranked.instance.free = threading.Event()  # type: ignore[attr-defined]
        take_into_world(ranked, 1)
        self.files, self.queue = WorldFiles(), GangQueue()
        for file, descriptor in supply.own_files(rank, 1):
            self.files.add(file, descriptor)

        def watch(_slot: int, _watched: int) -> None:
            """Watch nothing."""

        bell = self.files.thread_bell(rank, 1)
        self._own_threads = OwnThreads()
        with self._own_threads.started():
            self.thread = WorldThread("tp", self.queue, device, watch, watch, bell, self.completions.look_here)
        self.sent: list[control.FromWorker] = []
        self.meetings: list[tuple[str, int]] = []
        meeting = SimpleNamespace(
            begin=lambda sequence, _waits, _limit_ns, _method: self.meetings.append(("begin", sequence)),
            end=lambda: self.meetings.append(("end", 0)),
            settled=lambda: None,
        )
        member = Membership(
            control.WorldOffered(1, "tp", rank, 2, 1, ["Ranked"], DEADLINE_S),
            self.files,
            SimpleNamespace(enter=lambda _meeting: None, leave=lambda: None, serve=lambda: None),
            self.thread,
            self.queue,
            lambda *_: meeting,
            self.sent.append,
            self.completions.wake,
        )
        bell = self.files.loop_bell(rank, 1)
        self.worlds = HostedWorlds([member], {1: self.files}, [bell])
        methods: dict[str, Method] = {each.name: each for each in (*ranked.methods, *plain.methods)}
        self.envelope = Envelope(methods, board, TOKEN, libraries, store, most_queued, gangs=self.worlds)
        self.worlds.use(self.envelope.abort, self.envelope.discard_part)
        runners = {each.name: self.thread for each in ranked.methods}
        batched = {
            each.name: GangBatchedMethod(each, number, self.envelope, store, board, self.queue)
            for number, each in enumerate(ranked.methods)
            if each.batch is not None
        }
        self.dispatcher = Dispatcher(self.envelope, self.completions, device, runners, batched, lambda: None, board)
        self.peers = Peers(Window(1000, 2**20), store)
        self._ids = 0

    def client(self, number: int) -> Peer:
        """Admit a client."""
        name = bytes([number]) * 16
        self.peers.admit(control.SessionOpened(number, name, bytes(16)))
        peer = self.peers.find(data.routing_id(name, 0))
        assert peer is not None
        return peer

    def call(
        self,
        peer: Peer,
        item: Any,
        gang: data.Gang | None,
        method: str = "Ranked.run",
        *,
        alone: bool = False,
        deadline_ns: int = NEVER_NS,
    ) -> int:
        """Have a call arrive; return its id."""
        self._ids += 1
        call = data.Call(self._ids, method, deadline_ns, 0, values.encode((item,))[0], gang=gang)
        kind = data.Alone if alone else data.Calls
        requests = self.envelope.open(peer, kind(TOKEN, [call]), [])
        (self.dispatcher.take_alone if alone else self.dispatcher.take)(requests)
        return self._ids

    def turn(self) -> None:
        """Take a turn of the loop."""
        self.dispatcher.take_back()
        self.worlds.look(time.monotonic_ns(), away=self.dispatcher.is_away)
        self.dispatcher.advance()
        self.dispatcher.work()
        self.dispatcher.start_batches()

    def close(self) -> None:
        """End the thread, and close what it has of descriptors."""
        self.thread.close()
        self._own_threads.join()
        self.files.close()
        os.close(self.completions.descriptor)


class Pair:
    """Two members of one world that have joined, with a client each of two sessions."""

    def __init__(self, most_queued: int = 2**62) -> None:
        self.supply, self.meet = WorldSupply(), threading.Barrier(2)
        self.members = [Member(0, self.supply, self.meet), Member(1, self.supply, self.meet, most_queued)]
        self.peers = [{number: each.client(number) for number in (1, 2)} for each in self.members]

    def join(self) -> None:
        """Have both join the first epoch."""
        for rank, each in enumerate(self.members):
            each.worlds.serve()
            for file, descriptor in self.supply.files(1 - rank, 1):
                assert each.worlds.obey(file, lambda descriptor=descriptor: descriptor)  # type: ignore[misc]
            assert each.worlds.obey(control.JoinEpoch(1, 1, [1, 1]), lambda: None)

    def rejoin(self) -> None:
        """Have both leave the epoch, and join it anew."""
        for each in self.members:
            assert each.worlds.obey(control.DepartEpoch(1, 1, -1, "broken"), lambda: None)
            each.worlds.look(0, away=False)
            assert each.worlds.obey(control.JoinEpoch(1, 1, [1, 1]), lambda: None)

    def turn_until(self, count: int) -> None:
        """Take turns until each rank has given so many answers."""

        def enough() -> bool:
            for each in self.members:
                each.turn()
            return all(sum(len(peer.replies) for peer in peers.values()) >= count for peers in self.peers)

        assert settled(enough)

    def turn_while(self, condition: Callable[[], bool]) -> None:
        """Take turns while something holds."""

        def over() -> bool:
            for each in self.members:
                each.turn()
            return not condition()

        assert settled(over)

    def outcomes(self, rank: int, session: int = 1) -> dict[int, errors.AtomrError | None]:
        """Return the errors of a client's answers by id, None for results."""
        replies = self.peers[rank][session].replies
        found = {reply.id: None if reply.error is None else reply.error.error() for reply in replies}
        assert len(found) == len(replies), "none is answered twice"
        return found

    def close(self) -> None:
        """End all."""
        for each in self.members:
            assert each.envelope._queued == 0
            assert each.board.queue_depth == 0
            each.close()
        self.supply.close()


@pytest.fixture
def pair() -> Iterator[Pair]:
    """Yield two members that have joined."""
    pair = Pair()
    pair.join()
    yield pair
    pair.close()


def gang(number: int, epoch: int = 1, world: int = 1) -> data.Gang:
    """Return a gang call's name."""
    return data.Gang(world, epoch, number)


def test_calls_that_come_in_opposite_orders_meet(pair: Pair) -> None:
    """Each waits for the other member, so another order would never end."""
    for number in range(1, 51):
        pair.members[0].call(pair.peers[0][1], number, gang(number), "Ranked.together")
        pair.members[0].call(pair.peers[0][2], -number, gang(number), "Ranked.together")
        pair.members[1].call(pair.peers[1][2], -number, gang(number), "Ranked.together")
        pair.members[1].call(pair.peers[1][1], number, gang(number), "Ranked.together")
    pair.turn_until(100)
    for rank, session in ((0, 1), (0, 2), (1, 1), (1, 2)):
        assert set(pair.outcomes(rank, session).values()) == {None}
    assert pair.members[0].log == pair.members[1].log
    assert pair.members[0].meetings == [each for at in range(1, 101) for each in (("begin", at), ("end", 0))]


def test_what_does_not_belong_to_the_world_is_refused(pair: Pair) -> None:
    """And what is not called through it; of another epoch it is aborted, and has not run."""
    first, peer = pair.members[0], pair.peers[0][1]
    refused = [
        first.call(peer, 1, None),
        first.call(peer, 1, gang(1), "Plain.run"),
        first.call(peer, 1, gang(2, world=2)),
    ]
    late = first.call(peer, 1, gang(4, epoch=2))
    first.turn()
    found = pair.outcomes(0)
    assert {each: type(found[each]) for each in refused} == dict.fromkeys(refused, errors.InvalidRequest)
    aborted = found[late]
    assert isinstance(aborted, errors.CollectiveAborted)
    assert (aborted.maybe_executed, aborted.world, aborted.epoch) == (False, "tp", 2)
    assert not first.log


def test_a_part_that_cannot_be_decoded_is_answered_and_the_others_run(pair: Pair) -> None:
    """It does so in its turn, and counts as ended for them."""
    wrong = pair.members[1].call(pair.peers[1][1], "no number", gang(1))
    pair.members[0].call(pair.peers[0][1], 1, gang(1))
    pair.turn_until(1)
    assert isinstance(pair.outcomes(1)[wrong], errors.InvalidRequest)
    assert pair.outcomes(0) == {1: None}
    epoch = pair.members[0].queue.epoch
    assert epoch is not None
    assert [reader.ended() for reader in epoch.readers] == [1, 1]
    assert not pair.members[1].meetings


def test_a_part_without_room_keeps_nobody_waiting() -> None:
    """No member runs the call, and the other one answers it too."""
    pair = Pair(most_queued=1)
    pair.join()
    pair.members[1].call(pair.peers[1][1], 1, gang(1))
    full = pair.members[1].call(pair.peers[1][1], 2, gang(2))
    for number in (1, 2):
        pair.members[0].call(pair.peers[0][1], number, gang(number))
    pair.turn_until(2)
    assert isinstance(pair.outcomes(1)[full], errors.Overloaded)
    declined = pair.outcomes(0)[2]
    assert isinstance(declined, errors.CollectiveAborted)
    assert not declined.maybe_executed
    assert pair.members[0].log == pair.members[1].log == [1]
    pair.close()


@pytest.mark.parametrize(("late", "expected"), [(False, errors.Cancelled), (True, errors.DeadlineExceeded)])
def test_all_ranks_drop_a_call_on_refs_for_what_rank_0_has_found(
    pair: Pair, *, late: bool, expected: type[errors.RequestError]
) -> None:
    """Another rank's clock says nothing of it: its part may have been sent with some other deadline."""
    for each in pair.members:
        each.envelope._methods["Ranked.run"].refused = lambda _error: 0
    soon_ns, later_ns = time.monotonic_ns() + 10_000_000, time.monotonic_ns() + 100_000_000_000
    first = pair.members[0].call(pair.peers[0][1], 1, gang(1), deadline_ns=soon_ns if late else later_ns)
    second = pair.members[1].call(pair.peers[1][1], 1, gang(1), deadline_ns=later_ns if late else soon_ns)
    assert settled(lambda: time.monotonic_ns() > soon_ns)
    if not late:
        pair.members[0].dispatcher.cancel(pair.peers[0][1], [first])
    pair.turn_until(1)
    found = [pair.outcomes(0)[first], pair.outcomes(1)[second]]
    assert [type(each) for each in found] == [expected] * 2
    assert not any(each.maybe_executed for each in found if isinstance(each, errors.RequestError))
    assert not pair.members[0].log + pair.members[1].log


def test_batches_that_come_in_opposite_orders_are_the_same(pair: Pair) -> None:
    """And calls between them have one place in the order."""
    for number in range(1, 31):
        method = "Ranked.together" if number % 5 == 0 else "Ranked.gather"
        for rank, sessions in ((0, (1, 2)), (1, (2, 1))):
            for session in sessions:
                pair.members[rank].call(pair.peers[rank][session], number + 100 * session, gang(number), method)
    pair.turn_until(60)
    for rank, session in ((0, 1), (0, 2), (1, 1), (1, 2)):
        assert set(pair.outcomes(rank, session).values()) == {None}
    log = pair.members[0].log
    assert log == pair.members[1].log
    batches = [each for each in log if isinstance(each, list)]
    assert sorted(number for batch in batches for number in batch) == [
        n + base for base in (100, 200) for n in range(1, 31) if n % 5
    ]
    assert max(map(len, batches)) == 4


def test_a_part_that_cannot_be_decoded_leaves_the_batch_as_it_is_elsewhere(pair: Pair) -> None:
    """Only one member has a wrong one, which no member runs."""
    for number in (1, 2, 3):
        pair.members[0].call(pair.peers[0][1], number, gang(number), "Ranked.gather")
        item = "no number" if number == 2 else number
        pair.members[1].call(pair.peers[1][1], item, gang(number), "Ranked.gather")
    pair.turn_until(3)
    assert [type(each) for each in pair.outcomes(0).values()].count(errors.CollectiveAborted) == 1
    assert [type(each) for each in pair.outcomes(1).values()].count(errors.InvalidRequest) == 1
    assert sorted(number for batch in pair.members[0].log for number in batch) == [1, 3]
    assert pair.members[0].log == pair.members[1].log


@pytest.mark.parametrize("way", ["begins not", "is gone"])
def test_a_member_that_has_not_all_requests_of_a_batch_runs_none(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """Each of them has an answer that says so, and the epoch ends."""
    second = pair.members[1]
    pair.meet.abort()  # the other member comes alone
    ids = [second.call(pair.peers[1][1], number, gang(number), "Ranked.gather") for number in (1, 2, 3)]
    for number in (1, 2, 3):
        pair.members[0].call(pair.peers[0][1], number, gang(number), "Ranked.gather")
    if way == "is gone":
        part = second.queue._take_part((1, 2))
        assert part is not None
        second.envelope.abort(part, errors.CollectiveAborted("lost", maybe_executed=False))
    else:
        begin = second.envelope.begin

        def begin_some(request: Request, now_ns: int) -> bool:
            if request.id == ids[1]:
                second.envelope.undo(request, RuntimeError("ours"))
                return False
            return begin(request, now_ns)

        monkeypatch.setattr(second.envelope, "begin", begin_some)

    def reported() -> bool:
        for each in reversed(pair.members):
            each.turn()
        return any(isinstance(each, control.EpochBroken) for each in second.sent)

    assert settled(reported)
    [broken] = [each for each in second.sent if isinstance(each, control.EpochBroken)]
    assert (broken.rank, broken.late) == (1, False)
    assert "batch" in broken.reason
    assert not second.log
    pair.supply.end(1, [1, 1])
    for each in pair.members:
        assert each.worlds.obey(control.DepartEpoch(1, 1, 1, "cannot"), lambda: None)
    pair.turn_until(3)
    found = pair.outcomes(1)
    assert all(isinstance(found[each], errors.CollectiveAborted) for each in (ids[0], ids[2]))
    assert not any(error.maybe_executed for error in found.values() if isinstance(error, errors.RequestError))


def test_a_suspect_does_not_wait_for_other_members(pair: Pair) -> None:
    """Parts that have come wait for it instead; both members may have one."""
    pair.members[0].call(pair.peers[0][1], 1, gang(1), "Ranked.together")
    pair.members[1].call(pair.peers[1][1], 2, gang(2), "Ranked.together")
    for rank in (0, 1):
        pair.members[rank].call(pair.peers[rank][2], -1, None, "Plain.run", alone=True)
    pair.members[0].call(pair.peers[0][1], 2, gang(2), "Ranked.together")
    pair.members[1].call(pair.peers[1][1], 1, gang(1), "Ranked.together")
    pair.turn_until(3)
    for rank in (0, 1):
        assert set(pair.outcomes(rank).values()) == {None}
        assert pair.members[rank].log[0] == -1
    assert pair.members[0].log == pair.members[1].log


def test_a_suspect_comes_before_parts_that_came_before_it(pair: Pair) -> None:
    """As soon as the calls that are published have ended, for which others may wait."""
    for rank, number in ((0, 1), (0, 2), (0, 3), (0, 4), (1, 4), (1, 3), (1, 2), (1, 1)):
        pair.members[rank].call(pair.peers[rank][1], number, gang(number), "Ranked.together")
    pair.members[1].worlds.look(0, away=False)
    pair.members[0].turn()
    assert pair.members[0].thread.ahead
    first = pair.members[0].dispatcher.running
    pair.members[0].call(pair.peers[0][2], -1, None, "Plain.run", alone=True)
    pair.turn_until(4)
    assert first == ["Ranked.together"]
    assert pair.members[0].log[2] == -1
    assert [each for each in pair.members[0].log if each > 0] == pair.members[1].log


def test_a_suspected_call_of_the_world_runs_alone_on_all_members(pair: Pair) -> None:
    """It begins on none of them while anything runs on one; what comes meanwhile runs behind it."""
    pair.members[0].free.set()
    for rank in (0, 1):
        pair.members[rank].call(pair.peers[rank][1], 0, gang(1), "Ranked.hold")
        pair.members[rank].call(pair.peers[rank][1], 1, gang(2), "Ranked.together", alone=True)
        pair.members[rank].call(pair.peers[rank][1], 2, gang(3))
    isolation = pair.members[0].dispatcher.isolation
    pair.turn_while(lambda: not isolation.active)
    for rank in (0, 1):
        pair.members[rank].call(pair.peers[rank][2], 3, None, "Plain.run")
    epochs = [epoch for each in pair.members if (epoch := each.queue.epoch) is not None]
    pair.turn_while(lambda: not epochs[1].readers[0].quiet())
    assert epochs[1].readers[0].is_away
    assert (pair.members[0].log, pair.members[1].log) == ([0], [3]), "one waits for the other, which is at work"
    pair.members[1].free.set()
    pair.turn_until(4)
    for each in pair.members:
        assert each.board.alone() is None
        assert sorted(each.log) == [0, 1, 2, 3]
        assert each.log.index(1) < each.log.index(2)
    assert {type(error) for rank in (0, 1) for error in pair.outcomes(rank).values()} == {type(None)}


@pytest.mark.parametrize("why", ["no number", "no room"])
def test_a_suspected_call_that_one_member_does_not_run_keeps_nobody_waiting(why: str) -> None:
    """The others run it unless it was refused on arrival, and what comes after it runs everywhere."""
    pair = Pair(most_queued=1 if why == "no room" else 100)
    pair.join()
    if why == "no room":
        pair.members[1].call(pair.peers[1][2], 0, gang(1))
        pair.members[0].call(pair.peers[0][2], 0, gang(1))
    pair.members[1].call(pair.peers[1][1], 1 if why == "no room" else why, gang(2), alone=True)
    pair.members[0].call(pair.peers[0][1], 1, gang(2), alone=True)
    pair.turn_until(1 + (why == "no room"))
    assert (1 in pair.members[0].log) == (why == "no number")
    assert 1 not in pair.members[1].log
    for rank in (0, 1):
        pair.members[rank].call(pair.peers[rank][1], 2, gang(3))
    pair.turn_until(2 + (why == "no room"))
    assert pair.members[0].log[-1] == pair.members[1].log[-1] == 2
    pair.close()


@pytest.mark.parametrize("way", ["ends", "lasts"])
def test_a_suspected_call_that_waits_begins_nowhere(pair: Pair, way: str) -> None:
    """It is answered so when the epoch ends; that is asked for if the others do not stop their work in time."""
    first, second = pair.members
    second.call(pair.peers[1][2], -1, None, "Plain.run")
    for rank in (0, 1):
        pair.members[rank].call(pair.peers[rank][1], 1, gang(1), alone=True)
    second.worlds.look(0, away=False)
    first.turn()
    first.turn()
    assert first.dispatcher.isolation.active
    now_ns = time.monotonic_ns()
    if way == "lasts":
        epoch = second.queue.epoch
        assert epoch is not None
        assert epoch.next() is not None
        assert epoch.begin(), "its turn has come, but it is at work"
        for _ in range(3):
            now_ns += int(DEADLINE_S * 1e9)
            first.worlds.look(now_ns, away=True)
        broken = control.EpochBroken(
            1, 1, "has not stopped other work in time for a suspected call, which runs alone", 1, late=False
        )
        assert first.sent.count(broken) == 1
    pair.supply.end(1, [1, 1])
    for each in pair.members:
        assert each.worlds.obey(control.DepartEpoch(1, 1, 1, "ended"), lambda: None)
        each.turn()
    for rank, each in enumerate(pair.members):
        (aborted,) = pair.outcomes(rank).values()
        assert isinstance(aborted, errors.CollectiveAborted)
        assert not aborted.maybe_executed
        each.call(pair.peers[rank][2], 5, None, "Plain.run")
        each.turn()
        assert each.log[-1] == 5
        assert not each.dispatcher.isolation.active


@pytest.mark.parametrize("method", ["Ranked.run", "Ranked.gather"])
@pytest.mark.parametrize("by", [0, 1])
def test_no_part_is_cancelled_singly(pair: Pair, method: str, by: int) -> None:
    """Its caller cancels all parts at rank 0, and none elsewhere; the loss of a connection drops none."""
    for rank in (0, 1):
        number = pair.members[rank].call(pair.peers[rank][1], 1, gang(1), method)
        pair.members[rank].call(pair.peers[rank][2], 2, gang(1), method)
        if rank == by:
            for session in (1, 2):
                pair.members[rank].dispatcher.cancel(pair.peers[rank][session], [number])
                pair.members[rank].envelope.lose(pair.peers[rank][session])
    pair.turn_until(2)
    if by == 1:
        assert pair.outcomes(0) == pair.outcomes(1) == {1: None}
    else:
        own, other = pair.outcomes(0)[1], pair.outcomes(1)[1]
        assert isinstance(own, errors.Cancelled)
        assert isinstance(other, errors.CollectiveAborted)
        assert not any(error.maybe_executed for error in (own, other))
    assert pair.outcomes(0, 2) == pair.outcomes(1, 2) == {2: None}
    assert pair.members[0].log == pair.members[1].log
    assert len(pair.members[0].log) == 1 + by or method == "Ranked.gather"


def test_an_ended_session_leaves_nothing(pair: Pair) -> None:
    """Its calls that have come to all run everywhere, others nowhere; the other session's calls go on."""
    pair.members[0].call(pair.peers[0][1], 1, gang(1), "Ranked.together")
    pair.members[1].call(pair.peers[1][1], 1, gang(1), "Ranked.together")
    pair.members[0].call(pair.peers[0][1], 3, gang(3), "Ranked.together")
    pair.members[1].call(pair.peers[1][1], 4, gang(4), "Ranked.together")
    pair.members[1].turn()
    pair.members[0].worlds.look(0, away=False)
    sessions = []
    for each in reversed(pair.members):
        session = each.peers.end(1)
        assert session is not None
        sessions.append(session)
        each.worlds.session_ended(1)
        assert not each.envelope.discard(session)
        each.turn()
    for rank in (0, 1):
        pair.members[rank].call(pair.peers[rank][2], 2, gang(1))
    pair.turn_until(1)
    assert pair.members[0].log == pair.members[1].log == [1, 2]
    assert not any(len(each.queue) for each in pair.members)
    assert [(session.running, session.parts) for session in sessions] == [(0, 0)] * 2


def test_what_waits_is_answered_when_the_epoch_ends(pair: Pair) -> None:
    """Once, and then the process has left."""
    first, peer = pair.members[0], pair.peers[0][1]
    waits = first.call(peer, 1, gang(1))
    pair.supply.end(1, [1, 1])
    assert first.worlds.obey(control.DepartEpoch(1, 1, 1, "poisoned"), lambda: None)
    first.turn()
    aborted = pair.outcomes(0)[waits]
    assert isinstance(aborted, errors.CollectiveAborted)
    assert (aborted.rank, aborted.cause, aborted.maybe_executed) == (1, "poisoned", False)
    assert first.sent == [control.EpochJoined(1, 1), control.EpochLeft(1, 1)]
    assert not first.worlds.is_inside
    assert not first.worlds.owes


def mapped() -> int:
    """Return how many memories of worlds are mapped in this process."""
    return Path("/proc/self/maps").read_text().count("/memfd:world ")


def test_the_memory_of_a_former_process_is_given_back(pair: Pair) -> None:
    """With the next epoch: nothing of the one before keeps it."""
    gc.collect()
    before = mapped()
    for rank in (0, 1):
        pair.members[rank].call(pair.peers[rank][1], 1, gang(1))
    pair.turn_until(1)
    first = pair.members[0]
    pair.supply.end(1, [1, 1])
    assert first.worlds.obey(control.DepartEpoch(1, 1), lambda: None)
    first.turn()
    for file, descriptor in pair.supply.files(1, 2):
        assert first.worlds.obey(file, lambda descriptor=descriptor: descriptor)  # type: ignore[misc]
    assert first.worlds.obey(control.JoinEpoch(1, 2, [1, 2]), lambda: None)
    assert first.sent[-1] == control.EpochJoined(1, 2)
    assert mapped() == before


def test_a_client_that_loses_connections_again_and_again_has_to_go(pair: Pair) -> None:
    """Each time all clients of the world wait for the next epoch; over a long time it may."""
    for step_ns, goes in ((hosted.CUTS_NS, False), (hosted.CUTS_NS // 100, True)):
        told = []
        for number in range(hosted.MOST_CUTS + 1):
            pair.members[0].call(pair.peers[0][1], 1, gang(1))
            others = [data.LostParts(1, 0), data.LostParts(9, 1)]
            assert not pair.members[0].worlds.cut_off(1, others, number)
            told.append(pair.members[0].worlds.cut_off(1, [data.LostParts(1, 1)], number * step_ns))
            pair.rejoin()
        assert any(told) == goes
        pair.members[0].worlds.session_ended(1)


@pytest.mark.parametrize(("method", "logged"), [("Ranked.run", 0), ("Ranked.gather", [0])])
def test_examples_need_no_other_member(method: str, logged: Any) -> None:
    """They run before the process takes parts; one of a batched method alone."""
    pair = Pair()
    pair.members[0].call(pair.peers[0][1], 0, None, method)
    member = pair.members[0]

    def answered() -> bool:
        member.turn()
        return bool(pair.peers[0][1].replies)

    assert settled(answered)
    assert pair.outcomes(0) == {1: None}
    assert member.log == [logged]
    assert not member.meetings
    pair.close()


class Awkward(Actor):
    """Has a method of each kind; the test takes one."""

    @method(thread=True, batch=Steps(max_items=MAX_STEPPED + 1))
    def stepped(self, live: Live[int, int]) -> None:
        """Step, with more streams than have room in a world."""

    @method(thread=True, batch=Steps())
    def stepping(self, live: Live[int, int]) -> None:
        """Step, which may be."""

    @method
    async def asynchronous(self) -> None:
        """Wait."""

    @method(writes=["x"])
    def writing(self, x: Any) -> None:
        """Write."""

    @method(batch=Batch(rows=True))
    def rows(self, x: Any) -> Any:
        """Return rows."""


@pytest.mark.parametrize("name", ["stepped", "asynchronous", "writing", "rows"])
def test_a_world_s_actor_has_plain_methods(name: str) -> None:
    """Others are refused when it is loaded, with what to change."""
    actor = load(ActorSpec("Awkward", f"{__name__}:Awkward"))
    actor.methods[:] = [each for each in actor.methods if each.name == f"Awkward.{name}"]
    with pytest.raises(errors.ActorLoadFailed, match=name):
        take_into_world(actor, 1)


def test_a_world_s_actor_may_have_steps() -> None:
    """As many streams run together as by default."""
    actor = load(ActorSpec("Awkward", f"{__name__}:Awkward"))
    actor.methods[:] = [each for each in actor.methods if each.name == "Awkward.stepping"]
    take_into_world(actor, 1)


def test_a_call_that_waits_for_others_has_more_patience_and_one_without_a_limit_none() -> None:
    """It stays at its place on the board."""
    how = Watched(1_000_000_000, from_deadline=True, kind=PlaceKind.THREAD, number=3)
    assert Watched.unpack(_patient(how.pack())) == how._replace(limit_ns=7_000_000_000)
    assert _patient(how._replace(limit_ns=0).pack()) == how._replace(limit_ns=0).pack()
