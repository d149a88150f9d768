"""A lane without a pool: whatever becomes of a world's members, each call of it has one outcome, and a true one."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from atomr_mp import errors
from atomr_mp.client.lanes.link_life import LinkState
from atomr_mp.client.lanes.retry_policy import key_of
from atomr_mp.client.worlds.gang_life import GangState
from atomr_mp.client.worlds.gang_reply import GangReply
from atomr_mp.client.worlds.known_worlds import KnownWorlds
from atomr_mp.client.worlds.left_epochs import LeftEpochs
from atomr_mp.protocol.codec import ErrorInfo
from atomr_mp.protocol.messages import data, devices, session
from atomr_mp.protocol.messages.suspects import RequestKey, Suspicion, Suspicions, Verdict
from tests.pure.client.test_replay import MAX_REPLAYS, FakeClient, FakeConnection, FakeLane, info

NUMBER = 3
DEVICES = [1, 2, 0]
"""By rank."""
SIZE = len(DEVICES)
FAR_NS = 10**12
HOW = ["result", "result", "raised", "aborted", "left", "unbegun", "moves", "refused"]
"""How a worker answers a part."""


def world(epoch: int, state: devices.WorldState, generations: list[int] | None = None) -> devices.WorldInfo:
    """Return the world as the supervisor reports it."""
    return devices.WorldInfo(NUMBER, "tp", DEVICES, ["A"], state, epoch, generations or [], "for a test", -1)


READY, ABORTING = devices.WorldState.READY, devices.WorldState.ABORTING


class Gang:
    """A lane with a world of three members, whose life a test makes up.

    Args:
        window: Most unanswered requests by device.
    """

    def __init__(self, window: int = 100) -> None:
        self.client = FakeClient(window)
        self.generations = [1] * SIZE
        """By device."""
        self.epoch = 1
        self.client.worlds = KnownWorlds([world(0, devices.WorldState.WAITING)])
        self.lane = FakeLane(self.client, [info(device, 1) for device in range(SIZE)])
        self.lane._gangs._left = LeftEpochs(FAR_NS)
        for device in range(SIZE):
            self.lane.take(session.DeviceChanged(info(device, 1)))
        self.members: dict[int, list[int]] = {}
        """By epoch: the incarnations by rank."""
        self.ids = 0

    def publish(self, epoch: int) -> None:
        """Report a ready epoch."""
        self.epoch = epoch
        self.members[epoch] = [self.generations[device] for device in DEVICES]
        self.tell(world(epoch, READY, self.members[epoch]))

    def tell(self, told: devices.WorldInfo) -> None:
        """Report the world."""
        self.client.worlds.take(told)
        self.lane.take(session.WorldChanged(told))

    def call(self, method: str = "A.again", *, waits: bool = True, **options: Any) -> GangReply:
        """Make a call."""
        self.ids += 1
        gang = GangReply(self.lane, self.ids, method, time.monotonic_ns() + FAR_NS, b"")
        gang.number, gang.world, gang.each = NUMBER, "tp", options.get("each", False)
        self.lane.submit_gang(gang, [1], waits=waits, blocks=False)
        return gang

    def worker(self, rank: int) -> FakeConnection:
        """Return the present connection to a rank."""
        device = DEVICES[rank]
        return self.lane.made[str(device), self.generations[device]]

    def answer(self, rank: int, number: int, error: errors.AtomrError | None = None) -> None:
        """Answer a part, with the rank and the generation unless there is an error."""
        worker = self.worker(rank)
        worker.calls.pop(number)
        body = b"" if error else msgspec.msgpack.encode([rank, worker.generation])
        reply = data.CallReply(number, 0, body, None if error is None else ErrorInfo.of(error))
        worker.answers.append(data.FROM_WORKER.encode(data.Replies(b"", [reply])))
        self.lane.receive(DEVICES[rank])

    def answer_all(self, *failures: errors.AtomrError | None) -> None:
        """Answer the first part of each rank, with these errors by rank."""
        for rank in range(SIZE):
            error = failures[rank] if rank < len(failures) else None
            self.answer(rank, min(self.worker(rank).calls), error)

    def kill(
        self,
        device: int,
        started: list[int],
        *,
        planned: bool = False,
        told: bool = True,
        suspects: Sequence[int] = (),
    ) -> None:
        """End a worker, after the world has left its epoch."""
        generation = self.generations[device]
        self.tell(world(self.epoch, ABORTING))
        if told:
            self.lane.take(session.DeviceChanged(info(device, generation, devices.DeviceState.LOST)))
        lost = ErrorInfo.of(errors.WorkerLost("killed", device=device, generation=generation))
        self.lane.take(
            session.IncarnationEnded(
                device, generation, planned, lost, started, 0, [] if planned else started, [*suspects]
            )
        )

    def back(self, device: int) -> None:
        """Start a device's next process."""
        self.generations[device] += 1
        self.lane.take(session.DeviceChanged(info(device, self.generations[device])))

    def parts(self, rank: int) -> dict[int, data.Call]:
        """Return what a rank's worker has, by id."""
        return {number: call for number, (call, _) in self.worker(rank).calls.items()}


@pytest.fixture
def tp() -> Gang:
    """Give a world that is ready."""
    made = Gang()
    made.publish(1)
    return made


def test_the_result_is_rank_0_s_once_all_ranks_have_ended(tp: Gang) -> None:
    """Each part names the same call; for the watchdogs of the workers each has its deadline."""
    gang = tp.call()
    (name,) = {call.gang for rank in range(SIZE) for call in tp.parts(rank).values()}
    assert name is not None
    assert (name.world, name.epoch) == (NUMBER, 1)
    assert all(call.deadline_ns == gang.deadline_ns for rank in range(SIZE) for call in tp.parts(rank).values())
    ids = [min(tp.parts(rank)) for rank in range(SIZE)]
    tp.answer(0, ids[0])
    tp.answer(2, ids[2])
    assert not gang.done
    tp.answer(1, ids[1])
    assert gang.result() == [0, 1]
    assert "GangReply" in repr(gang)


def test_each_rank_s_result_is_in_its_place(tp: Gang) -> None:
    """By rank, in whatever order they come."""
    gang = tp.call(each=True)
    for rank in (1, 2, 0):
        tp.answer(rank, min(tp.parts(rank)))
    assert gang.result() == [[rank, 1] for rank in range(SIZE)]
    assert gang.result() == [[rank, 1] for rank in range(SIZE)]


def left(error: errors.AtomrError) -> errors.AtomrError:
    """Return an error by which a member says that it has left the epoch."""
    error.left_epoch = True
    return error


@pytest.mark.parametrize("kind", ["ActorFailed", "CollectiveAborted"])
def test_calls_are_held_from_a_member_s_word_to_the_supervisor_s(tp: Gang, kind: str) -> None:
    """One rank's is enough, whatever its error; nothing is sent into an epoch that is over."""
    gang = tp.call("A.once")
    error: errors.RequestError = getattr(errors, kind)("left the others waiting")
    tp.answer(1, min(tp.parts(1)), left(error))
    held = [tp.call("A.once"), tp.call()]
    assert [gang.life for gang in held] == [GangState.LINED_UP] * 2
    tp.answer(0, min(tp.parts(0)))
    tp.answer(2, min(tp.parts(2)))
    assert isinstance(gang.error, errors.AtomrError)
    assert [gang.life for gang in held] == [GangState.LINED_UP] * 2
    tp.tell(world(1, ABORTING))
    tp.publish(2)
    assert [gang.epoch for gang in held] == [2, 2]
    for _ in held:
        tp.answer_all()
    assert [gang.result() for gang in held] == [[0, 1]] * 2


def test_a_call_that_goes_again_is_held_too(tp: Gang) -> None:
    """It would be aborted in the same epoch again."""
    gang = tp.call()
    tp.answer_all(*[left(errors.CollectiveAborted("rank 2 was lost")) for _ in range(SIZE)])
    assert gang.life is GangState.LINED_UP
    tp.publish(2)
    tp.answer_all()
    assert gang.result() == [0, 1]
    assert gang.replays == 1


def test_without_news_calls_are_held_for_a_time_and_once(tp: Gang) -> None:
    """A member may stop before it tells the supervisor, and only a call that does not begin shows that."""
    gang = tp.call("A.once")
    tp.answer_all(*[left(errors.CollectiveAborted("aborted")) for _ in range(SIZE)])
    assert isinstance(gang.error, errors.CollectiveAborted)
    held = [tp.call("A.once") for _ in range(3)]
    assert tp.lane.settles_late == 1
    tp.lane._settle_held_gangs()
    assert {gang.life for gang in held} == {GangState.LINED_UP}
    assert tp.lane.settles_late == 2, "it was too early"
    tp.lane._gangs._left._left[NUMBER] = 1, 0
    tp.lane._settle_held_gangs()
    assert {gang.life for gang in held} == {GangState.OUT}
    for _ in held:
        tp.answer_all(*[left(errors.CollectiveAborted("aborted")) for _ in range(SIZE)])
    assert tp.call("A.once").life is GangState.OUT


def test_an_error_of_an_earlier_epoch_holds_nothing(tp: Gang) -> None:
    """Its news has come before; and neither do errors that say nothing of the epoch."""
    tp.call("A.once")
    tp.publish(2)
    tp.answer_all(left(errors.CollectiveAborted("aborted")))
    assert tp.call("A.once").life is GangState.OUT
    tp.answer_all(errors.CollectiveAborted("a rank has refused the call", maybe_executed=False))
    assert tp.call("A.once").life is GangState.OUT


def test_the_message_agrees_with_the_flag(tp: Gang) -> None:
    """One rank has not begun the call, and others have."""
    gang = tp.call("A.once")
    tp.answer_all(errors.CollectiveAborted("over; the call has not begun here", maybe_executed=False, rank=1))
    error = gang.exception()
    assert isinstance(error, errors.CollectiveAborted)
    assert error.maybe_executed
    assert str(error) == "over; the call has not begun here, and may have run on rank 1, 2"


def test_an_error_of_the_method_wins_over_a_mismatch(tp: Gang) -> None:
    """The ranks that differ from the one that has raised follow from it."""
    gang = tp.call("A.once")
    differs = errors.WorldMismatch("rank 0 calls a sum", rank=0, other=2)
    tp.answer_all(differs, differs, errors.ActorFailed("raised"))
    error = gang.exception()
    assert isinstance(error, errors.ActorFailed)
    assert error.rank == 2
    gang = tp.call("A.once")
    tp.answer_all(errors.CollectiveAborted("left", diverged=True), differs, differs)
    assert isinstance(gang.exception(), errors.WorldMismatch)


def test_the_error_of_the_rank_that_raised_wins(tp: Gang) -> None:
    """Its peers' aborts follow from it."""
    gang = tp.call("A.once")
    aborted = errors.CollectiveAborted("rank 2 left", rank=2)
    tp.answer_all(aborted, aborted, errors.ActorFailed("raised"))
    error = gang.exception()
    assert isinstance(error, errors.ActorFailed)
    assert (error.rank, error.maybe_executed) == (2, True)
    with pytest.raises(errors.ActorFailed) as raised:
        gang.result()
    assert raised.value.rank == 2


def test_what_ran_on_one_rank_may_have_been_executed(tp: Gang) -> None:
    """A rank with a result has executed it, whatever the others say."""
    gang = tp.call("A.once")
    tp.answer_all(errors.InvalidRequest("wrong"))
    error = gang.exception()
    assert isinstance(error, errors.InvalidRequest)
    assert (error.rank, error.maybe_executed) == (0, True)
    gang = tp.call("A.once")
    tp.answer_all(*[errors.InvalidRequest("wrong")] * SIZE)
    error = gang.exception()
    assert isinstance(error, errors.InvalidRequest)
    assert (error.rank, error.maybe_executed) == (0, False)


@pytest.mark.parametrize("method", ["A.again", "A.once"])
def test_an_idempotent_call_goes_again_on_the_next_epoch(tp: Gang, method: str) -> None:
    """As a whole, once the next epoch is ready; any other ends with the loss."""
    gang = tp.call(method)
    aborted = errors.CollectiveAborted("rank 1 was lost", rank=1, cause="killed by SIGKILL")
    tp.answer(0, min(tp.parts(0)), aborted)
    tp.kill(DEVICES[1], list(tp.parts(1)))
    tp.back(DEVICES[1])
    assert not gang.done, "rank 2 has not answered"
    tp.answer(2, min(tp.parts(2)), aborted)
    if method == "A.once":
        error = gang.exception()
        assert isinstance(error, errors.WorkerLost), "the loss says more than what has followed from it"
        assert (error.rank, error.maybe_executed) == (1, True)
        return
    assert not gang.done
    assert not any(tp.parts(rank) for rank in range(SIZE))
    tp.publish(2)
    assert {call.gang.epoch for rank in range(SIZE) for call in tp.parts(rank).values() if call.gang} == {2}
    tp.answer_all()
    assert gang.result() == [0, 1]
    assert not tp.client.reports


def lose_suspect(tp: Gang, gang: GangReply, verdict: Verdict) -> RequestKey:
    """Lose rank 1 with its part of a call, and have the verdict come; return the call's key."""
    aborted = errors.CollectiveAborted("rank 1 was lost", rank=1, maybe_executed=True)
    part = list(tp.parts(1))
    for rank in (0, 2):
        tp.answer(rank, min(tp.parts(rank)), aborted)
    tp.kill(DEVICES[1], part, suspects=part)
    tp.back(DEVICES[1])
    number, device, generation, (key,) = tp.client.reports[-1]
    assert (device, generation) == (DEVICES[1], tp.generations[DEVICES[1]] - 1)
    assert not gang.done
    told = Suspicions([Suspicion(key, verdict, number)], number)
    tp.client.suspicions.take(told.changed)
    tp.lane.take(told)
    return key


def test_a_call_that_runs_when_a_member_ends_is_a_suspect(tp: Gang) -> None:
    """It goes again by itself on all ranks, and is acquitted if they live."""
    gang = tp.call()
    key = lose_suspect(tp, gang, Verdict.SUSPECTED)
    assert key == key_of("A.again", [1])
    tp.publish(2)
    other = tp.call("A.once")
    for rank in range(SIZE):
        assert [alone for _, alone in tp.worker(rank).calls.values()] == [True, False]
    tp.answer_all()
    assert gang.result() == [0, 1]
    assert tp.client.acquitted == [key]
    tp.answer_all()
    assert other.result() == [0, 1]
    assert tp.client.acquitted == [key]


@pytest.mark.parametrize("method", ["A.again", "A.once"])
def test_a_call_that_is_refused_names_the_rank_and_is_not_sent(tp: Gang, method: str) -> None:
    """Neither again nor anew, and neither while the world is ready nor while it is not."""
    gang = tp.call(method)
    lose_suspect(tp, gang, Verdict.QUARANTINED)
    error = gang.exception()
    assert isinstance(error, errors.PoisonRequest)
    assert (error.rank, error.maybe_executed) == (1, True)
    for epoch in (1, 2):
        if epoch == 2:
            tp.publish(epoch)
        with pytest.raises(errors.PoisonRequest) as raised:
            tp.call(method)
        assert (raised.value.rank, raised.value.maybe_executed) == (-1, False)
    assert not any(tp.parts(rank) for rank in range(SIZE))


def test_a_call_that_waits_hears_of_the_verdict_of_another(tp: Gang) -> None:
    """It has begun nowhere, and ends so."""
    gang = tp.call()
    tp.tell(world(1, ABORTING))
    waiting = tp.call()
    lose_suspect(tp, gang, Verdict.QUARANTINED)
    tp.publish(2)
    error = waiting.exception()
    assert isinstance(error, errors.PoisonRequest)
    assert not error.maybe_executed


def test_a_suspect_whose_member_dies_while_another_raises_is_not_acquitted(tp: Gang) -> None:
    """The error that is raised is the outcome; the loss speaks against the call."""
    gang = tp.call()
    lose_suspect(tp, gang, Verdict.SUSPECTED)
    tp.publish(2)
    tp.answer(0, min(tp.parts(0)), errors.ActorFailed("raised"))
    tp.answer(2, min(tp.parts(2)), errors.CollectiveAborted("rank 1 was lost", rank=1))
    tp.kill(DEVICES[1], list(tp.parts(1)))
    assert isinstance(gang.exception(), errors.ActorFailed)
    assert not tp.client.acquitted


def test_it_goes_again_so_often_and_no_more(tp: Gang) -> None:
    """As often as a single call does."""
    gang = tp.call()
    for epoch in range(1, MAX_REPLAYS + 2):
        assert not gang.done
        tp.tell(world(epoch, ABORTING))
        tp.answer_all(*[errors.CollectiveAborted("broken")] * SIZE)
        tp.publish(epoch + 1)
    assert isinstance(gang.exception(), errors.CollectiveAborted)


def test_a_part_goes_to_no_other_process(tp: Gang) -> None:
    """A process that has replaced a member is no member before the next epoch."""
    tp.lane.take(session.DeviceChanged(info(DEVICES[2], 1, devices.DeviceState.DRAINING)))
    gang = tp.call("A.once")
    assert not any(tp.parts(rank) for rank in range(SIZE)), "half of it was sent"
    tp.back(DEVICES[2])
    assert not any(tp.parts(rank) for rank in range(SIZE))
    tp.publish(2)
    tp.answer_all()
    assert gang.result() == [0, 1]


def test_a_part_that_was_put_back_goes_to_no_other_process(tp: Gang) -> None:
    """A worker that leaves in good order has not started it; its next process is no member."""
    gang = tp.call("A.once")
    tp.kill(DEVICES[1], [], planned=True)
    for rank in (0, 2):
        tp.answer(rank, min(tp.parts(rank)), errors.CollectiveAborted("over", maybe_executed=False))
    tp.back(DEVICES[1])
    assert not tp.parts(1), "its process is no member yet"
    assert not gang.done, "nothing of it has run, so it waits for the next epoch"
    tp.publish(2)
    tp.answer_all()
    assert gang.result() == [0, 1]


def test_without_room_on_one_rank_nothing_is_sent() -> None:
    """The caller hears `Overloaded`, or waits in order."""
    tp = Gang(window=2)
    tp.publish(1)
    single = tp.lane.submit(900, DEVICES[1], "B.single", (1,), time.monotonic_ns() + FAR_NS)
    first = tp.call()
    with pytest.raises(errors.Overloaded, match="sent to no rank"):
        tp.call(waits=False)
    waiting = [tp.call(), tp.call()]
    assert [len(tp.parts(rank)) for rank in range(SIZE)] == [1, 2, 1]
    tp.answer(1, single.id)
    assert [len(tp.parts(rank)) for rank in range(SIZE)] == [2, 2, 2]
    for _ in range(3):
        tp.answer_all()
    assert all(gang.done for gang in (first, *waiting))
    assert not tp.lane._backlog.count


def test_only_so_many_wait_for_an_epoch() -> None:
    """As many as may be unanswered, where the caller does not wait."""
    tp = Gang(window=2)
    waiting = [tp.call(waits=False) for _ in range(2)]
    with pytest.raises(errors.Overloaded, match="next epoch of the world tp"):
        tp.call(waits=False)
    tp.publish(1)
    for _ in waiting:
        tp.answer_all()
    assert all(gang.done for gang in waiting)


def test_what_no_worker_has_started_moves_on(tp: Gang) -> None:
    """When all members leave in good order, as at a planned restart, whatever the method is."""
    gang = tp.call("A.once")
    for device in DEVICES:
        tp.kill(device, [], planned=True)
        tp.back(device)
    assert not gang.done
    tp.publish(2)
    tp.answer_all()
    assert gang.result() == [0, 1 + 1]


@pytest.mark.parametrize("drained", [None, 0, 1])
def test_what_was_not_published_moves_on_as_often_as_it_takes(tp: Gang, drained: int | None) -> None:
    """Whatever the method is; a worker may leave with a part that it has not read."""
    gang = tp.call("A.once")
    moves = errors.CollectiveAborted("closed", maybe_executed=False, planned=True)
    for epoch in range(1, 5):
        tp.tell(world(epoch, devices.WorldState.CLOSING))
        for rank in range(SIZE):
            if rank != drained:
                tp.answer(rank, min(tp.parts(rank)), moves)
        if drained is not None:
            tp.kill(DEVICES[drained], [], planned=True)
            tp.back(DEVICES[drained])
        assert not gang.done
        tp.publish(epoch + 1)
    assert gang.replays == 0
    tp.answer_all()
    assert gang.result()[0] == 0


def test_what_was_published_before_a_planned_end_is_no_other_s_business(tp: Gang) -> None:
    """Its error is its own, and it is not sent again."""
    gang = tp.call("A.once")
    tp.tell(world(1, devices.WorldState.CLOSING))
    tp.answer_all(None, errors.CollectiveAborted("died", rank=2), errors.CollectiveAborted("died", rank=2))
    assert isinstance(gang.error, errors.CollectiveAborted)
    assert gang.error.maybe_executed


@pytest.mark.parametrize("how", ["cancel", "deadline"])
@pytest.mark.parametrize("sent", [True, False])
def test_a_deadline_or_a_cancel_ends_the_reply_alone(tp: Gang, how: str, *, sent: bool) -> None:
    """Rank 0 alone hears of the latter; late answers change nothing."""
    if not sent:
        tp.tell(world(1, ABORTING))
    gang = tp.call()
    own = list(tp.parts(0))
    if how == "cancel":
        gang.cancel()
    else:
        tp.lane._expire(gang)
    error = gang.error
    assert isinstance(error, errors.Cancelled if how == "cancel" else errors.DeadlineExceeded)
    assert error.maybe_executed is sent
    assert tp.worker(0).cancelled == (own if how == "cancel" else [])
    assert not any(tp.worker(rank).cancelled for rank in range(1, SIZE))
    if sent:
        tp.answer_all()
    assert gang.error is error
    assert gang.life is GangState.OVER
    assert not any(link.flight.requests for link in tp.lane._links)
    gang.cancel()
    assert gang.error is error


def test_a_world_that_takes_no_work_refuses(tp: Gang) -> None:
    """It is closed, or a member is out of use; what waits is refused too."""
    tp.tell(world(1, ABORTING))
    waiting = tp.call()
    tripped = devices.DeviceState.TRIPPED
    tp.lane.take(session.DeviceChanged(info(DEVICES[1], 1, tripped)))
    assert isinstance(waiting.error, errors.DeviceUnavailable)
    assert waiting.error.rank == 1
    with pytest.raises(errors.DeviceUnavailable, match="rank 1 of the world tp"):
        tp.call()
    tp.back(DEVICES[1])
    waiting = tp.call()
    tp.tell(world(1, devices.WorldState.ENDING))
    assert isinstance(waiting.error, errors.DeviceUnavailable)
    for state in (devices.WorldState.ENDING, devices.WorldState.ENDED):
        tp.tell(world(1, state))
        with pytest.raises(errors.DeviceUnavailable, match="world tp is closed"):
            tp.call()


def test_the_pool_s_end_ends_all(tp: Gang) -> None:
    """A call that was sent may have run. One that waited has not. It is the error of no rank."""
    sent = tp.call()
    tp.tell(world(1, ABORTING))
    waiting = tp.call()
    tp.lane.take(errors.PoolLost("over"))
    for gang in (sent, waiting):
        assert isinstance(gang.error, errors.PoolLost)
        assert gang.error.maybe_executed is (gang is sent)
        assert gang.error.rank == -1


class Model(RuleBasedStateMachine):
    """Calls of all kinds, answers, failures, ends of workers and epochs, lost connections, in any order."""

    @initialize(window=st.sampled_from([2, 100]))
    def begin(self, window: int) -> None:
        """Connect."""
        self.tp = Gang(window)
        self.lane = self.tp.lane
        self.calls: list[GangReply] = []
        self.outcomes: Counter[int] = Counter()
        self.begun: dict[tuple[int, int], int] = {}
        """By call's number in the session and rank: how often it has begun there."""
        self.attempts_begun: set[int] = set()
        """Names of the attempts that have begun on some rank."""
        self.unpublished: set[int] = set()
        """Those that will begin on no rank, since their epoch has ended as planned."""
        self.seen: dict[int, data.Call] = {}
        """All parts that any worker has got, by id."""
        self.of: dict[int, GangReply] = {}
        """The calls, by the names of their attempts."""
        self.down: set[int] = set()
        self.cut_off: set[int] = set()
        self.lost_parts: dict[int, tuple[int, int]] = {}
        """By device: its generation, and the latest epoch with parts that were lost with a connection to it."""
        self.closed: set[int] = set()
        self.is_ready = False
        self.is_left = False
        """Whether a member has said that it has left the present epoch."""
        self.sent_before: set[int] = set()
        """The parts that were sent before that."""

    # --- what happens ----------------------------------------------------------------------------------------------

    @rule(method=st.sampled_from(["A.again", "A.once", "A.unstarted"]), each=st.booleans(), waits=st.booleans())
    def call(self, method: str, *, each: bool, waits: bool) -> None:
        """Make a call."""
        try:
            gang = self.tp.call(method, waits=waits, each=each)
        except errors.Overloaded:
            assert not waits
            return
        except errors.DeviceUnavailable:
            assert any(link.state in {LinkState.CLOSED, LinkState.UNREACHABLE} for link in self.lane._links)
            return
        self.calls.append(gang)
        if not self.lane.add_callback(gang, lambda gang: self.outcomes.update([gang.id])):
            self.outcomes[gang.id] += 1
        self.look()

    def look(self) -> None:
        """Note what has come to the workers."""
        for (device, generation), worker in self.lane.made.items():
            for number, (call, alone) in worker.calls.items():
                gang = call.gang
                assert gang is not None
                assert not alone
                members = dict(zip(DEVICES, self.tp.members[gang.epoch], strict=True))
                assert members[int(device)] == generation, "a part has come to a process of another epoch"
                assert gang.epoch == self.tp.epoch or number in self.seen, "sent to an epoch that is over"
                if self.is_left and gang.epoch == self.tp.epoch:
                    assert number in self.sent_before, "sent to an epoch that a member has left"
                self.seen[number] = call
        for gang in self.calls:
            for part in gang.parts:
                if part.gang is not None:
                    self.of[part.gang.id] = gang

    @invariant()
    def nothing_is_sent_wrongly(self) -> None:
        """Each part goes to the process of its epoch; no attempt has two parts for one rank."""
        if not hasattr(self, "tp"):
            return
        self.look()
        for worker in self.lane.made.values():
            assert len(set(worker.cancelled)) == len(worker.cancelled)
            for number in worker.cancelled:
                assert worker.device == DEVICES[0], "rank 0 tells the others"
                assert self.of[self.attempt(number)].is_over
        attempts = Counter(call.gang.id for call in self.seen.values() if call.gang)
        assert all(count <= SIZE for count in attempts.values())
        waiting = sum(gang.life is GangState.LINED_UP for gang in self.calls)
        assert self.lane._backlog.count == waiting
        assert all(self.outcomes[gang.id] == gang.is_over for gang in self.calls)

    def has_parts(self) -> bool:
        """Whether some living worker has a part."""
        return any(worker.calls for worker in self.living())

    def living(self) -> list[FakeConnection]:
        """Return the present connections to living workers."""
        return [
            worker
            for rank in range(SIZE)
            if DEVICES[rank] not in self.down | self.cut_off and not (worker := self.tp.worker(rank)).closed
        ]

    @precondition(has_parts)
    @rule(data=st.data(), how=st.sampled_from(HOW))
    def answer(self, data: st.DataObject, how: str) -> None:
        """A worker answers a part, which may have begun."""
        worker = data.draw(st.sampled_from([each for each in self.living() if each.calls]))
        rank = DEVICES.index(worker.device)
        number = data.draw(st.sampled_from(sorted(worker.calls)))
        attempt = self.attempt(number)
        if how == "moves" and attempt not in self.attempts_begun:
            self.unpublished.add(attempt)
        if (how == "moves") != (attempt in self.unpublished) and how != "refused":
            how = "moves" if attempt in self.unpublished else "unbegun"
        error = {
            "result": None,
            "raised": errors.ActorFailed("raised"),
            "aborted": errors.CollectiveAborted("aborted", rank=1),
            "left": left(errors.CollectiveAborted("aborted", rank=1)),
            "unbegun": errors.CollectiveAborted("aborted", maybe_executed=False),
            "moves": errors.CollectiveAborted("aborted", maybe_executed=False, planned=True),
            "refused": errors.InvalidRequest("wrong"),
        }[how]
        if how in {"result", "raised", "aborted", "left"}:
            self.begins(number, rank)
        told = self.seen[number].gang
        if how == "left" and told is not None and told.epoch == self.tp.epoch:
            self.is_left = True
            self.sent_before = set(self.seen)
        self.tp.answer(rank, number, error)

    def attempt(self, number: int) -> int:
        """Return the name of the attempt that a part belongs to."""
        gang = self.seen[number].gang
        assert gang is not None
        return gang.id

    def may_begin(self, worker: FakeConnection) -> list[int]:
        """Return the parts on a worker that may have begun there."""
        return [number for number in sorted(worker.calls) if self.attempt(number) not in self.unpublished]

    def begins(self, number: int, rank: int) -> None:
        """Record that a part has begun."""
        gang = self.seen[number].gang
        assert gang is not None
        assert gang.id not in self.unpublished
        self.attempts_begun.add(gang.id)
        key = self.of[gang.id].id, rank
        self.begun[key] = self.begun.get(key, 0) + 1

    @precondition(lambda self: len(self.down | self.cut_off) < SIZE)
    @rule(data=st.data(), planned=st.booleans(), told=st.booleans())
    def end(self, data: st.DataObject, *, planned: bool, told: bool) -> None:
        """A worker ends; some of its parts had begun."""
        device = data.draw(st.sampled_from([each for each in range(SIZE) if each not in self.down | self.cut_off]))
        worker = self.tp.worker(DEVICES.index(device))
        if worker.closed:
            return
        calls = self.may_begin(worker)
        started = data.draw(st.lists(st.sampled_from(calls), unique=True)) if calls and not planned else []
        for number in started:
            self.begins(number, DEVICES.index(device))
        worker.calls.clear()
        self.down.add(device)
        self.is_ready = False
        self.tp.kill(device, started, planned=planned, told=told)

    @precondition(lambda self: self.down)
    @rule(data=st.data())
    def back(self, data: st.DataObject) -> None:
        """A device has its next process."""
        device = data.draw(st.sampled_from(sorted(self.down)))
        self.down.discard(device)
        self.closed.discard(device)
        self.tp.back(device)

    @precondition(lambda self: self.down)
    @rule(data=st.data())
    def close(self, data: st.DataObject) -> None:
        """A device takes no work for now."""
        device = data.draw(st.sampled_from(sorted(self.down)))
        self.closed.add(device)
        tripped = info(device, self.tp.generations[device], devices.DeviceState.TRIPPED)
        self.lane.take(session.DeviceChanged(tripped))

    @precondition(lambda self: not self.is_ready and not self.down)
    @rule()
    def form(self) -> None:
        """The next epoch is ready."""
        self.is_ready, self.is_left = True, False
        self.tp.publish(self.tp.epoch + 1)

    @precondition(lambda self: not self.is_ready and len(self.down) == 1 and not self.closed)
    @rule()
    def form_early(self) -> None:
        """The next epoch is ready before this client hears of a member's next process."""
        (device,) = self.down
        self.tp.generations[device] += 1
        self.is_ready, self.is_left = True, False
        self.tp.publish(self.tp.epoch + 1)
        self.look_at_links()
        self.down.clear()
        self.lane.take(session.DeviceChanged(info(device, self.tp.generations[device])))

    def look_at_links(self) -> None:
        """Check that nothing of the new epoch has been sent yet."""
        for worker in self.lane.made.values():
            for call, _ in worker.calls.values():
                assert call.gang is not None
                assert call.gang.epoch < self.tp.epoch

    @precondition(lambda self: self.is_ready)
    @rule()
    def break_up(self) -> None:
        """The epoch is over, and no process has ended."""
        self.is_ready = False
        self.tp.tell(world(self.tp.epoch, ABORTING))

    @precondition(lambda self: len(self.down | self.cut_off) < SIZE)
    @rule(data=st.data())
    def cut(self, data: st.DataObject) -> None:
        """A connection ends, and its worker lives: what was there may have begun."""
        device = data.draw(st.sampled_from([each for each in range(SIZE) if each not in self.down | self.cut_off]))
        worker = self.tp.worker(DEVICES.index(device))
        if worker.closed or self.lane._links[device].state is not LinkState.SERVING:
            return
        for number in self.may_begin(worker):
            if data.draw(st.booleans()):
                self.begins(number, DEVICES.index(device))
        for call, _ in worker.calls.values():
            assert call.gang is not None
            _, epoch = self.lost_parts.get(device, (0, 0))
            self.lost_parts[device] = worker.generation, max(epoch, call.gang.epoch)
        worker.calls.clear()
        worker.ended = True
        for _ in range(2):
            self.lane.receive(device)
        self.cut_off.add(device)

    @precondition(lambda self: self.cut_off)
    @rule(data=st.data())
    def mend(self, data: st.DataObject) -> None:
        """The next connection is made."""
        device = data.draw(st.sampled_from(sorted(self.cut_off)))
        self.mend_one(device)

    def mend_one(self, device: int) -> None:
        """Connect again: the worker hears which epochs had parts that it may never have read."""
        self.cut_off.discard(device)
        self.lane.retry(device)
        generation, epoch = self.lost_parts.pop(device, (0, 0))
        worker = self.tp.worker(DEVICES.index(device))
        if worker.generation == generation:
            assert epoch in [each.epoch for each in worker.lost_parts]

    @precondition(lambda self: self.calls)
    @rule(data=st.data(), how=st.sampled_from(["cancel", "expire"]))
    def give_up(self, data: st.DataObject, how: str) -> None:
        """A caller has waited enough."""
        gang = data.draw(st.sampled_from(self.calls))
        if how == "cancel":
            gang.cancel()
        else:
            self.lane._expire(gang)

    # --- what holds at the end -------------------------------------------------------------------------------------

    def teardown(self) -> None:
        """Once all is well again every call ends; what was said of it is true."""
        if not hasattr(self, "tp"):
            return
        for device in sorted(self.cut_off):
            self.mend_one(device)
        for device in sorted(self.down):
            self.tp.back(device)
        self.down.clear()
        if not self.is_ready or self.is_left:
            self.is_left = False
            self.tp.publish(self.tp.epoch + 1)
        for _ in range(1000):
            self.look()
            found = [(rank, number) for rank in range(SIZE) for number in sorted(self.tp.parts(rank))]
            if not found:
                break
            rank, number = found[0]
            if self.attempt(number) in self.unpublished:
                error = errors.CollectiveAborted("aborted", maybe_executed=False, planned=True)
                self.tp.answer(rank, number, error)
            else:
                self.begins(number, rank)
                self.tp.answer(rank, number)
        for gang in self.calls:
            self.check(gang)
        assert not self.lane._gangs._open
        assert not self.lane._gangs._queues
        assert not self.lane._backlog.count
        assert not any(link.flight.requests or link.held or link.outbox for link in self.lane._links)
        self.lane.take(errors.PoolLost("over"))

    def check(self, gang: GangReply) -> None:
        """Check one call's outcome against what has happened."""
        assert self.outcomes[gang.id] == 1, "each caller is answered once"
        begun = [self.begun.get((gang.id, rank), 0) for rank in range(SIZE)]
        assert gang.replays <= (0 if gang.method == "A.once" else MAX_REPLAYS)
        if gang.method != "A.again":
            assert max(begun) <= 1
        if gang.error is not None:
            assert isinstance(gang.error, errors.RequestError)
            assert gang.error.maybe_executed or not any(begun), "said not to have run, and did"
            return
        members = self.tp.members[gang.epoch]
        expected = [[rank, members[rank]] for rank in range(SIZE)]
        assert gang.result() == (expected if gang.each else expected[0])
        assert all(begun)


Model.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestModel = Model.TestCase
