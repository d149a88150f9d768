"""A lane without a pool: whatever becomes of the workers, each call has one outcome, of its current attempt."""

from __future__ import annotations

import contextlib
import errno
import itertools
import time
from collections import Counter
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from atomr_mp import errors
from atomr_mp.client.fingerprint import RUN, fingerprint
from atomr_mp.client.lanes.base import Lane
from atomr_mp.client.lanes.device_link import DeviceLink
from atomr_mp.client.lanes.homes import Home, Homes
from atomr_mp.client.lanes.link_life import MOST_FAILURES, REFUSING, LinkState
from atomr_mp.client.lanes.retry_policy import NEVER as NEVER_AGAIN
from atomr_mp.client.lanes.retry_policy import KnownSuspicions, may_write
from atomr_mp.client.lanes.services import LaneServices, LazyMemory
from atomr_mp.client.memory.leases import Releases
from atomr_mp.client.programs import KnownPrograms
from atomr_mp.client.reply import Reply
from atomr_mp.client.reply_life import ReplyState
from atomr_mp.client.sent_room import SentRoom
from atomr_mp.client.worlds.known_worlds import KnownWorlds
from atomr_mp.protocol import token
from atomr_mp.protocol.codec import ErrorInfo
from atomr_mp.protocol.flow import flight
from atomr_mp.protocol.libraries.program import RunProgram, digest
from atomr_mp.protocol.messages import data, devices, session, suspects
from atomr_mp.protocol.tunnel.clock import PoolClock
from atomr_mp.protocol.zmtp.framing import unpack
from atomr_mp.wire.ends import NEVER

EPOCH = bytes(16)
METHODS = {
    "A.again": devices.MethodInfo("again", ["n"], idempotent=True, deadline_s=None, doc=""),
    "A.once": devices.MethodInfo("once", ["n"], idempotent=False, deadline_s=None, doc=""),
    "A.unstarted": devices.MethodInfo(
        "unstarted", ["n"], idempotent=False, deadline_s=None, doc="", resend=devices.Resend.UNSTARTED
    ),
    "Placed.again": devices.MethodInfo("again", ["n"], idempotent=True, deadline_s=None, doc=""),
    "Placed.unstarted": devices.MethodInfo(
        "unstarted", ["n"], idempotent=False, deadline_s=None, doc="", resend=devices.Resend.UNSTARTED
    ),
}
HOMES: Homes = {"Placed": (1,)}
MAX_REPLAYS = 2
PROGRAMS = 3
PLACES = 2
ENDS = (errors.WorkerLost, errors.WorkerHung, errors.ContextPoisoned)


class FakeConnection:
    """A worker's end of a connection: what was sent to it, and what it has answered."""

    def __init__(self, generation: int, device: int = 0) -> None:
        self.generation = generation
        self.device = device
        self.calls: dict[int, tuple[Any, bool]] = {}
        """Requests received and not answered, and whether each runs alone."""
        self.cancelled: list[int] = []
        self.lost_parts: list[data.LostParts] = []
        """The parts that the client has lost with earlier connections."""
        self.answers: list[bytes] = []
        self.programs: dict[int, bytes] = {}
        """Digests of the programs that the worker knows, by place."""
        self.closed = self.ended = self.broken = self.late = False
        self.ready = True

    def send(self, header: bytes, _frames: list[Any]) -> None:
        """Take a message in."""
        assert not self.closed
        match data.FROM_CLIENT.decode(header):
            case data.Calls(_, calls) as message:
                for call in calls:
                    assert call.id not in self.calls, "sent twice to one worker"
                    home = HOMES.get(call.method.partition(".")[0])
                    assert home is None or self.device in home, "sent to a device without the actor"
                    self.calls[call.id] = (call, isinstance(message, data.Alone))
            case data.Streams(_, streams) as message:
                self.calls.update((stream.id, (stream, message.alone)) for stream in streams)
            case data.Cancel(_, ids):
                self.cancelled += ids
            case data.Unread() as message:
                self.lost_parts += message.parts

    def can_run(self, number: int) -> bool:
        """Return whether the worker knows a call's program, or the call needs none."""
        run = run_in(self.calls[number][0])
        return run is None or not run.digest or self.programs.get(run.place) == run.digest

    def answer(self, number: int, error: errors.AtomrError | None = None) -> bool:
        """Answer a call with the generation, or an error; return whether it was the generation."""
        if error is None and not self.can_run(number):
            error = errors.ProgramUnseen("say it", maybe_executed=False)
        call, _ = self.calls.pop(number)
        run = run_in(call)
        if error is None and run is not None and run.program and run.place >= 0:
            self.programs[run.place] = digest(run.program)
        body = b"" if error else msgspec.msgpack.encode(self.generation)
        reply = data.CallReply(number, 0, body, None if error is None else ErrorInfo.of(error))
        self.answers.append(data.FROM_WORKER.encode(data.Replies(b"", [reply])))
        return error is None

    @property
    def has_message(self) -> bool:
        """Return whether there is an answer."""
        return bool(self.answers)

    def receive(self) -> memoryview | None:
        """Return the next answer."""
        assert not self.closed
        return memoryview(self.answers.pop(0)) if self.answers else None

    def take_back(self) -> int:
        """Return that everything has left."""
        return NEVER

    def stop(self) -> None:
        """Take nothing more in: no answer is on its way."""

    def wait_disconnected(self, _timeout_ms: int) -> None:
        """All that was answered is there."""

    def fileno(self) -> int:
        """Without a poller."""
        return -1

    def close(self) -> None:
        """Nothing is left to read."""
        self.closed = True


class FakeClient:
    """The parts of a client that the tested code uses."""

    is_traced = False

    def __init__(self, window: int = 100) -> None:
        self.devices: list[devices.DeviceInfo] = []
        self.login = SimpleNamespace(window=flight.Window(window, 2**30))
        self.methods = METHODS
        self.max_replays = MAX_REPLAYS
        self.clock = PoolClock()
        self.homes = HOMES
        self.suspicions = KnownSuspicions([])
        self.worlds = KnownWorlds([])
        self.request_ids = itertools.count(10_000)
        self.workers_live = False
        self.carried = False
        self.reports: list[tuple[int, int, int, list[suspects.RequestKey]]] = []
        self.acquitted: list[suspects.RequestKey] = []
        self.numbers = 0
        self.failures: Counter[tuple[int, int]] = Counter()

    def releases(self, device: int, generation: int) -> Releases:
        """Return the due releases: none."""
        return Releases(token.pack(EPOCH, device, generation))

    def tell_reach(self, device: int, generation: int, failures: int) -> None:
        """Keep the last report."""
        self.failures[device, generation] = failures

    def new_lane_number(self) -> int:
        """Return another number each time."""
        self.numbers = self.numbers % 255 + 1
        return self.numbers

    def report(self, device: int, generation: int, suspects: list[suspects.RequestKey]) -> int:
        """Keep a report."""
        self.reports.append((len(self.reports) + 1, device, generation, suspects))
        return len(self.reports)

    def acquit(self, reply: Reply) -> None:
        """Keep an acquittal."""
        assert reply.alone is not None
        self.acquitted.append(reply.alone)


class FakeLane(Lane):
    """A lane whose connections are made here, and which sends at once."""

    def __init__(self, client: FakeClient, devices: list[devices.DeviceInfo]) -> None:
        self.made: dict[tuple[str, int], FakeConnection] = {}
        self.full = False
        """No descriptor is left for another connection."""
        self.refuses = False
        """Workers end new connections at once."""
        self.late = False
        """Connections bring the last answers of ended workers after the report of the end."""
        self.timers: dict[int, int] = {}
        """Number of the last timer, by device."""
        self.settles_late = 0
        """How often calls of worlds that are held were to be settled later."""
        self.client = client
        client.devices = devices
        memory: Any = SimpleNamespace(sent_again=lambda _: None)
        session, courier = cast("Any", client), cast("Any", SimpleNamespace(forget=lambda _: None))
        room, give_back = SentRoom(), lambda _: None
        super().__init__(
            LaneServices(session, LazyMemory(lambda: memory), courier, room, 1000, give_back, client.new_lane_number), 0
        )

    def connect(self, _link: DeviceLink, endpoint: str) -> Any:
        """Connect to an incarnation, or fail."""
        if self.full:
            raise OSError(errno.EMFILE, "none is left")
        device, generation = endpoint.split(":")
        made = self.made.get((device, int(generation)))
        if made is None or made.closed:
            made = self.made[device, int(generation)] = FakeConnection(int(generation), int(device))
            made.ended, made.ready, made.late = self.refuses, not self.refuses, self.late
        return made

    def connected(self, link: DeviceLink, connection: Any) -> None:
        """Without a poller."""

    def look(self, reply: Reply) -> None:
        """Nothing arrives by itself."""

    def retry_later(self, link: DeviceLink, number: int, _delay_s: float) -> None:
        """Keep the number."""
        self.timers[link.device] = number

    def settle_gangs_later(self, _delay_s: float) -> None:
        """Keep that it has to be done."""
        self.settles_late += 1

    def _disconnecting(self, _link: DeviceLink, connection: Any) -> None: ...

    def _finished(self, reply: Reply) -> None: ...

    def _lend(self, reply: Reply, foreign: object, device: int) -> None: ...

    def _give_back(self, link: DeviceLink) -> None: ...

    def watch(self, reply: Reply) -> None:
        """Without waiters."""

    def _queued(self, link: DeviceLink) -> None:
        self._sender.flush(link)

    def wait(self, reply: Reply, timeout_s: float | None) -> None:
        """Without waiters."""

    def take(self, message: Any) -> None:
        """Take an event in, at once."""
        self._apply(message)
        self.call_back()

    def retry(self, device: int) -> None:
        """Let the timer of the next attempt run out, and the courier look at the new connection."""
        self._retry_link(self._links[device], self.timers[device])
        connection = self._links[device].connection
        if connection is not None:
            self._flushed(self._links[device], connection)

    def listed(self) -> list[tuple[Reply, Home]]:
        """Return the calls that wait for room, each with the devices that may take it."""
        with self._lock:
            return [(reply, home) for home in self._backlog.homes() for reply in self._backlog.replies(home)]

    def receive(self, device: int) -> None:
        """Take in what a worker has answered."""
        with self._lock:
            self._receive(self._links[device])
        self.call_back()


def is_unreadable(message: bytes) -> bool:
    """Return whether a worker's message cannot be read."""
    try:
        data.FROM_WORKER.decode(unpack(memoryview(message))[0])
    except errors.ProtocolError:
        return True
    return False


sound = data.FROM_WORKER.encode(data.Replies(b"", [data.CallReply(1, 0, b"\x01")]))
unreadable_messages = st.one_of(
    st.binary(max_size=40),
    st.integers(0, len(sound) - 1).map(lambda length: sound[:length]),
    st.tuples(st.integers(0, len(sound) - 1), st.integers(0, 255)).map(
        lambda changed: sound[: changed[0]] + bytes(changed[1:]) + sound[changed[0] + 1 :]
    ),
).filter(is_unreadable)


def run_in(call: data.Call) -> RunProgram | None:
    """Return the run of a program that a call is, None if it is another's."""
    return msgspec.msgpack.decode(call.body, type=RunProgram) if call.method == RUN else None


def info(device: int, generation: int, state: devices.DeviceState = devices.DeviceState.READY) -> devices.DeviceInfo:
    """Return a device with a worker of this generation."""
    ready = state is devices.DeviceState.READY
    endpoint = f"{device}:{generation}" if ready else ""
    return devices.DeviceInfo(device, f"host:{device}", state, generation, endpoint, ready, 1, 0, "")


class Model(RuleBasedStateMachine):
    """Two devices, calls of both kinds, answers, ends and verdicts, in any order."""

    @initialize(hot=st.booleans(), replaced=st.booleans(), window=st.sampled_from([2, 100]))
    def begin(self, *, hot: bool, replaced: bool, window: int) -> None:
        """Connect, and tell the workers some programs.

        With `hot` a device is there again before the end of its worker is told. With `replaced` the workers that were
        told the programs have been replaced since. With a small window calls wait for room.
        """
        self.hot = hot
        self.client = FakeClient(window)
        self.lane = FakeLane(self.client, [info(0, 1), info(1, 1)])
        self.generations = [1, 1]
        self.formers: list[int | None] = [None, None]
        """By device: the incarnation that finishes its requests beside the one that has taken over."""
        self.programs = [KnownPrograms(PLACES), KnownPrograms(PLACES)]
        self.heard = [1, 1]
        """By device: the incarnation that runs of programs are meant for."""
        for device in range(2):
            self.lane.take(session.DeviceChanged(info(device, 1)))
        self.replies: list[Reply] = []
        self.unnamed: set[int] = set()
        """Calls that name no device."""
        self.bound: dict[int, tuple[int, int]] = {}
        """Calls for one incarnation alone: its device and its generation."""
        self.outcomes: Counter[int] = Counter()
        self.answered: dict[int, int] = {}
        """By call: the generation that has answered it, and was read."""
        self.ran: Counter[int] = Counter()
        self.unheard: Counter[int] = Counter()
        """How often a call had ended, and its answer was lost with the worker: that does not count as a replay."""
        self.open_reports: list[tuple[int, int, int, list[suspects.RequestKey]]] = []
        for device in range(2):
            for n in range(PLACES):  # from now on they are named by their digests
                self.run(n, device, hears=True)
                self.answered_by(self.worker(device), len(self.replies))
                self.lane.receive(device)
            if replaced:
                self.hand_over(device)
                self.leave(device)

    def worker(self, device: int) -> FakeConnection:
        """Return a device's worker."""
        return self.lane.made[str(device), self.generations[device]]

    @rule(method=st.sampled_from(sorted(METHODS)), n=st.integers(0, 5), device=st.sampled_from([None, 0, 1]))
    def call(self, method: str, n: int, device: int | None) -> None:
        """Make a call; one that names a device without its actor is refused."""
        if method.startswith("Placed.") and device == 0:
            with pytest.raises((errors.InvalidRequest, errors.PoisonRequest)):
                self.lane.submit(len(self.replies) + 1, device, method, (n,), time.monotonic_ns() + 10**12)
            return
        try:
            deadline_ns = time.monotonic_ns() + 10**12
            reply = self.lane.submit(len(self.replies) + 1, device, method, (n,), deadline_ns, wait=True)
        except errors.PoisonRequest:
            assert self.verdict(method, n) is suspects.Verdict.QUARANTINED
            return
        assert self.verdict(method, n) is not suspects.Verdict.QUARANTINED
        self.lane.add_callback(reply, lambda reply: self.outcomes.update([reply.id]))
        self.replies.append(reply)
        if device is None:
            self.unnamed.add(reply.id)

    @rule(
        method=st.sampled_from(["A.again", "A.once"]),
        n=st.integers(0, 5),
        device=st.integers(0, 1),
        of=st.integers(-1, 1),
    )
    def call_one_worker(self, method: str, n: int, device: int, of: int) -> None:
        """Make a call for one incarnation alone: the present one, or the one before or after it."""
        link, wanted = self.lane._links[device], self.generations[device] + of
        if not wanted:
            return
        number, deadline_ns = len(self.replies) + 1, time.monotonic_ns() + 10**12
        try:
            reply = self.lane.submit(
                number, device, method, (n,), deadline_ns, replays=NEVER_AGAIN, wait=True, to_generation=wanted
            )
        except errors.PoisonRequest:
            return
        except errors.StaleGeneration:
            assert of or link.state in {LinkState.HOLDING, LinkState.CLOSED}, "the worker takes calls"
            return
        self.lane.add_callback(reply, lambda reply: self.outcomes.update([reply.id]))
        self.replies.append(reply)
        self.bound[reply.id] = device, wanted

    @invariant()
    def what_is_for_one_worker_goes_to_no_other(self) -> None:
        """Nor does it wait once that one has ended."""
        for (device, generation), worker in self.lane.made.items():
            assert all(self.bound.get(each) in (None, (int(device), generation)) for each in worker.calls)
        for number, (_, generation) in self.bound.items():
            assert self.replies[number - 1].generation in (0, generation)
        for link in self.lane._links:
            assert all(reply.to_generation == 0 or reply.to_generation >= link.generation for reply in link.held)

    @rule(n=st.integers(0, PROGRAMS - 1), device=st.integers(0, 1), hears=st.booleans())
    def run(self, n: int, device: int, *, hears: bool) -> None:
        """Run a program, which its worker may know; `hears` that there is another worker, or has not yet."""
        if hears:
            self.heard[device] = self.lane._links[device].info.generation
        definition = bytes([n]) * 9
        request = RunProgram(definition, [], [], [], digest(definition))
        request, program = self.programs[device].shortened(request, self.heard[device])
        deadline_ns = time.monotonic_ns() + 10**12
        with contextlib.suppress(errors.PoisonRequest):
            number = len(self.replies) + 1
            reply = self.lane.submit(number, device, RUN, request, deadline_ns, wait=True, program=program)
            self.lane.add_callback(reply, lambda reply: self.outcomes.update([reply.id]))
            self.replies.append(reply)

    def workers(self, device: int) -> list[FakeConnection]:
        """Return the workers of a device that have requests: the one that serves, and one that has left."""
        former = self.formers[device]
        return [self.worker(device), *([] if former is None else [self.lane.made[str(device), former]])]

    def answered_by(self, worker: FakeConnection, number: int) -> None:
        """Have a worker answer a call."""
        if worker.answer(number) and not self.replies[number - 1].done:
            self.answered[number] = worker.generation

    def verdict(self, method: str, n: int) -> suspects.Verdict | None:
        """Return what is held of a call."""
        digest = fingerprint(method, (n,))
        assert digest is not None
        found = self.client.suspicions.of(suspects.RequestKey(method, digest))
        return None if found is None else found.verdict

    @precondition(lambda self: any(worker.calls for device in range(2) for worker in self.workers(device)))
    @rule(data=st.data())
    def answer(self, data: st.DataObject) -> None:
        """A worker answers a call, and that is read."""
        all_workers = [(device, worker) for device in range(2) for worker in self.workers(device) if worker.calls]
        device, worker = data.draw(st.sampled_from(all_workers))
        self.answered_by(worker, data.draw(st.sampled_from(sorted(worker.calls))))
        self.lane.receive(device)

    @rule(device=st.integers(0, 1))
    def hand_over(self, device: int) -> None:
        """Another worker takes over; the one before finishes what it has."""
        if self.formers[device] is None:
            self.formers[device] = self.generations[device]
            self.generations[device] += 1
            self.lane.take(session.DeviceChanged(info(device, self.generations[device])))

    @rule(device=st.integers(0, 1))
    def leave(self, device: int) -> None:
        """A worker leaves that another has replaced, and has not started what it still has."""
        former, self.formers[device] = self.formers[device], None
        if former is not None:
            self.lane.take(_planned_end(device, former))

    @precondition(lambda self: any(self.formers))
    @rule(data=st.data())
    def lose_former(self, data: st.DataObject) -> None:
        """A worker that has left is killed: some answers have come unread, others were not sent."""
        device = data.draw(st.sampled_from([device for device in range(2) if self.formers[device]]))
        former, worker = self.formers[device], self.workers(device)[1]
        assert former is not None
        calls = sorted(worker.calls)
        started = data.draw(st.lists(st.sampled_from(calls), unique=True)) if calls else []
        ran = [number for number in started if worker.can_run(number)]
        self.ran.update(ran)
        self.unheard.update(ran)
        come = data.draw(st.lists(st.sampled_from(started), unique=True)) if started else []
        for number in come:
            self.answered_by(worker, number)
        lost = ErrorInfo.of(errors.WorkerLost("killed"))
        ended = session.IncarnationEnded(device, former, False, lost, started, 0, [], [])
        self.lane.take(session.IncarnationStopped(ended))
        assert worker.closed
        self.nothing_waits_that_can_be_sent()
        self.formers[device] = None
        self.lane.take(ended)

    @rule(data=st.data(), device=st.integers(0, 1))
    def stop(self, data: st.DataObject, device: int) -> None:
        """A device takes no more work; its worker finishes some of what it has, then leaves; another one comes."""
        self.leave(device)
        worker, link, generation = self.worker(device), self.lane._links[device], self.generations[device]
        self.lane.take(session.DeviceChanged(info(device, generation, devices.DeviceState.STOPPING)))
        calls = sorted(worker.calls)
        for number in data.draw(st.lists(st.sampled_from(calls), unique=True)) if calls else []:
            self.answered_by(worker, number)
            self.lane.receive(device)
            assert not link.held, "a call waits for a device that takes no work"
        self.lane.take(_planned_end(device, generation))
        assert not link.held, "a call waits for a device that takes no work"
        self.generations[device] += 1
        self.lane.take(session.DeviceChanged(info(device, generation + 1)))

    @rule(data=st.data(), device=st.integers(0, 1), how=st.sampled_from(["lost", "poisoned", "hung", "planned"]))
    def end(self, data: st.DataObject, device: int, how: str) -> None:
        """A worker ends: some of what it has runs, one may be answered with the end itself."""
        self.leave(device)
        worker, generation = self.worker(device), self.generations[device]
        calls = [number for number in sorted(worker.calls) if worker.can_run(number)]
        running = data.draw(st.lists(st.sampled_from(calls), unique=True)) if calls and how != "planned" else []
        self.ran.update(running)
        error: errors.RequestError = errors.WorkerLost("killed")
        if how == "poisoned":
            error = errors.ContextPoisoned("on purpose")
            for number in data.draw(st.lists(st.sampled_from(running), unique=True)) if running else []:
                worker.answer(number, error)
        if how == "hung":
            error = errors.WorkerHung("on purpose")
        self.maybe_cut(data, device, how)
        self.generations[device] += 1
        changed = info(device, generation + 1)
        if not self.hot:
            changed = info(device, generation, devices.DeviceState.LOST)
        self.lane.take(session.DeviceChanged(changed))
        if how == "hung" and running:
            for number in data.draw(st.lists(st.sampled_from(running), unique=True)):
                worker.answer(number)  # too late
        rest = sorted(worker.calls.keys() - set(running))
        late = (
            data.draw(st.lists(st.sampled_from(rest), unique=True))
            if rest and how == "lost" and not worker.ended
            else []
        )
        self.ran.update(number for number in late if worker.can_run(number))
        ended = session.IncarnationEnded(
            device, generation, how == "planned", ErrorInfo.of(error), running + late, 0, running, running
        )
        known = len(self.client.reports)
        for number in late:  # nobody has read it yet
            self.answered_by(worker, number)
        if how != "planned" and data.draw(st.booleans()):
            self.lane.take(session.IncarnationStopped(ended))
            assert worker.closed == (worker.ended or how != "hung")
            self.nothing_waits_that_can_be_sent()
        self.lane.take(ended)
        self.open_reports += self.client.reports[known:]
        assert worker.closed
        if not self.hot:
            self.lane.take(session.DeviceChanged(info(device, generation + 1)))

    def maybe_cut(self, data: st.DataObject, device: int, how: str) -> None:
        """Perhaps end a killed worker's connection before anybody has heard of its end."""
        if how == "lost" and data.draw(st.booleans()):
            self.worker(device).ended = True
            for _ in range(2):
                self.lane.receive(device)

    @precondition(lambda self: any(self.unnamed & self.worker(device).calls.keys() for device in range(2)))
    @rule(
        data=st.data(),
        told=st.sampled_from(["before", "after"]),
        state=st.sampled_from([devices.DeviceState.TRIPPED, devices.DeviceState.STOPPED]),
        other_leaves=st.booleans(),
    )
    def trip(self, data: st.DataObject, told: str, state: devices.DeviceState, *, other_leaves: bool) -> None:
        """A worker ends, and its device takes no work; some time later the device is back.

        The verdict on what ran comes `told` the device is closed. The other device takes calls meanwhile, or is about
        to.
        """
        busy = [each for each in range(2) if self.unnamed & self.worker(each).calls.keys()]
        device = data.draw(st.sampled_from(busy))
        self.leave(device)
        worker, generation, other = self.worker(device), self.generations[device], 1 - device
        running = [number for number in sorted(worker.calls) if worker.can_run(number)]
        self.ran.update(running)
        if other_leaves:
            self.leave(other)
            draining = info(other, self.generations[other], devices.DeviceState.DRAINING)
            self.lane.take(session.DeviceChanged(draining))
        open_ones = {reply.id for reply in self.replies if not reply.done}
        self.lane.take(session.DeviceChanged(info(device, generation, devices.DeviceState.LOST)))
        lost = ErrorInfo.of(errors.WorkerLost("killed"))
        known = len(self.client.reports)
        self.lane.take(session.IncarnationEnded(device, generation, False, lost, running, 0, running, running))
        self.open_reports += self.client.reports[known:]
        tripped = session.DeviceChanged(info(device, generation, state))
        if told == "after":
            self.lane.take(tripped)
        while self.open_reports:
            self.judge(data)
        if told == "before":
            self.lane.take(tripped)
        for reply in self.replies:
            home = HOMES.get(reply.method.partition(".")[0], (0, 1))
            if reply.id in open_ones & self.unnamed and other in home:
                assert not isinstance(reply.error, errors.DeviceUnavailable), "another device takes calls"
        self.nothing_waits_that_can_be_sent()
        if other_leaves:
            self.lane.take(_planned_end(other, self.generations[other]))
            self.generations[other] += 1
            self.lane.take(session.DeviceChanged(info(other, self.generations[other])))
        self.generations[device] += 1
        self.lane.take(session.DeviceChanged(info(device, generation + 1)))

    @rule(
        data=st.data(),
        device=st.integers(0, 1),
        refused=st.integers(0, MOST_FAILURES + 1),
        unreadable=st.none() | unreadable_messages,
    )
    def cut(self, data: st.DataObject, device: int, refused: int, unreadable: bytes | None) -> None:
        """A connection ends, or brings what is no message, and its worker lives; it lets the next one in, some time."""
        worker, link = self.worker(device), self.lane._links[device]
        calls = sorted(worker.calls)
        self.ran.update(number for number in calls if worker.can_run(number))
        if calls:
            self.answered_by(worker, data.draw(st.sampled_from(calls)))
        if unreadable is None:
            worker.ended = True
        else:
            worker.answers.append(unreadable)
        for _ in range(2):  # as its descriptor stays readable: once for the last answers, once for the end
            self.lane.receive(device)
        assert worker.closed
        self.lane.refuses = True
        for _ in range(refused):
            self.lane.retry(device)
        self.lane.refuses = False
        if link.state is LinkState.UNREACHABLE:
            former = self.formers[device]
            if former is not None:
                for number in sorted(self.lane.made[str(device), former].calls):
                    if data.draw(st.booleans()):
                        self.answered_by(self.lane.made[str(device), former], number)
                self.lane.receive(device)
                if data.draw(st.booleans()):
                    self.leave(device)
            waiting = [
                reply
                for reply in self.replies
                if reply.device == device and not reply.done and reply.state not in _NOT_ON_A_DEVICE
            ]
            assert all(reply.generation == self.formers[device] for reply in waiting), "a call waits in vain"
            with pytest.raises(errors.DeviceUnavailable, match="cannot be reached by this client"):
                self.lane.submit(10**6, device, "A.once", (-1,), time.monotonic_ns() + 10**12)
            assert self.client.failures[device, link.generation] == link.failures
        self.lane.retry(device)
        assert link.sending
        assert not self.client.failures[device, link.generation]

    @precondition(lambda self: self.open_reports)
    @rule(data=st.data())
    def judge(self, data: st.DataObject) -> None:
        """The supervisor answers a report."""
        number, _, _, requests = self.open_reports.pop(data.draw(st.integers(0, len(self.open_reports) - 1)))
        changed = [
            suspects.Suspicion(request, data.draw(st.sampled_from(list(suspects.Verdict))), 1) for request in requests
        ]
        for message in (suspects.Suspicions(changed), suspects.Suspicions([], number)):
            self.client.suspicions.take(message.changed)
            self.lane.take(message)

    @precondition(lambda self: self.replies)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        """A caller gives up."""
        data.draw(st.sampled_from(self.replies)).cancel()

    @precondition(lambda self: self.replies)
    @rule(data=st.data())
    def expire(self, data: st.DataObject) -> None:
        """A deadline passes."""
        reply = data.draw(st.sampled_from(self.replies))
        if not reply.done:
            self.lane._expire(reply)
            assert reply.done

    @invariant()
    def each_call_has_one_outcome_at_most(self) -> None:
        """Its callback is called once."""
        for reply in self.replies:
            assert self.outcomes[reply.id] == reply.done

    @invariant()
    def results_are_of_the_current_attempt(self) -> None:
        """A result is what the worker said to which the call was sent last."""
        for reply in self.replies:
            if reply.done and reply.error is None:
                assert reply.result() == self.answered[reply.id] == reply.generation

    @invariant()
    def nothing_is_lost_and_nothing_is_in_two_places(self) -> None:
        """A call without an outcome waits in one place: at a worker, here, or for the supervisor."""
        places: Counter[int] = Counter(reply.id for reply, _ in self.lane.listed())
        for device, link in enumerate(self.lane._links):
            places.update(reply.id for reply in [*link.held, *link.outbox, *link.parked])
            for worker in self.workers(device):
                places.update(list(worker.calls))
        for reply in self.replies:
            assert reply.done or places[reply.id] == 1
            assert places[reply.id] <= 1

    @invariant()
    def nothing_waits_that_can_be_sent(self) -> None:
        """No thread may come to send it; nor does anything wait for what takes no calls."""
        for link in self.lane._links:
            assert not (link.outbox or link.held) or not (link.sending or link.state in REFUSING)
        for _, home in self.lane.listed():
            links = [self.lane._links[device] for device in home]
            assert not all(link.state in REFUSING for link in links)
            assert all(len(link.flight.requests) >= self.client.login.window.requests for link in links if link.sending)

    @invariant()
    def what_may_run_once_runs_once(self) -> None:
        """A call that may run again runs no more often than it may be sent."""
        for reply in self.replies:
            may_again = reply.method.endswith(".again") and reply.id not in self.bound
            most = 1 + MAX_REPLAYS + self.unheard[reply.id] if may_again else 1
            assert self.ran[reply.id] <= most
            error = reply.error
            if isinstance(error, errors.RequestError) and self.ran[reply.id]:
                assert error.maybe_executed

    @invariant()
    def what_has_not_started_is_sent_again_if_its_method_says_so(self) -> None:
        """No worker's end is its outcome."""
        for reply in self.replies:
            if reply.method.endswith(".unstarted") and isinstance(reply.error, ENDS):
                assert self.ran[reply.id] == 1

    @invariant()
    def suspects_run_alone(self) -> None:
        """A worker that has a suspect was ordered to run it alone."""
        for reply in self.replies:
            if reply.alone is None or reply.done:
                continue
            for device in range(2):
                found = self.worker(device).calls.get(reply.id)
                assert found is None or found[1]

    def teardown(self) -> None:
        """At the end of the pool every call has its outcome."""
        if hasattr(self, "lane"):
            self.lane.take(errors.PoolLost("over"))
            assert all(self.outcomes[reply.id] == 1 for reply in self.replies)


_NOT_ON_A_DEVICE = {ReplyState.PARKED, ReplyState.BACKLOG}


def _planned_end(device: int, generation: int) -> session.IncarnationEnded:
    """Return the report of a worker that has left on an order, and has finished all that it had started."""
    return session.IncarnationEnded(device, generation, True, ErrorInfo.of(errors.WorkerLost("left")), [], 0, [], [])


TestModel = Model.TestCase


@pytest.mark.parametrize("method", ["Placed.again", "Placed.unstarted"])
@pytest.mark.parametrize("how", ["lost", "waiting"])
def test_a_call_stays_on_the_devices_of_its_actor(method: str, how: str) -> None:
    """Whether it was lost with a worker or waits for the next one, while another device could be sent to."""
    lane = FakeLane(FakeClient(), [info(0, 1), info(1, 1)])
    for device in range(2):
        lane.take(session.DeviceChanged(info(device, 1)))
    lost = session.IncarnationEnded(1, 1, False, ErrorInfo.of(errors.WorkerLost("killed")), [], 0, [], [])
    deadline_ns = time.monotonic_ns() + 10**12
    if how == "waiting":
        lane.take(session.DeviceChanged(info(1, 1, devices.DeviceState.LOST)))
    reply = lane.submit(1, None, method, (1,), deadline_ns)
    lane.take(session.DeviceChanged(info(1, 1, devices.DeviceState.LOST)))
    lane.take(lost)
    assert (reply.state, reply.device) == (ReplyState.WAITING, 1)
    assert not lane.made["0", 1].calls
    lane.take(session.DeviceChanged(info(1, 2)))
    assert list(lane.made["1", 2].calls) == [1]


@pytest.fixture
def lane() -> Iterator[FakeLane]:
    """Give a lane with one device that is ready."""
    made = FakeLane(FakeClient(), [info(0, 1)])
    made.take(session.DeviceChanged(info(0, 1)))
    yield made
    made.take(errors.PoolLost("over"))


def test_what_is_suspected_while_it_waits_goes_alone(lane: FakeLane) -> None:
    """Calls that were made before anything was held of them are looked at again before they are sent."""
    client = lane.client
    lane.take(session.DeviceChanged(info(0, 1, devices.DeviceState.LOST)))
    never = time.monotonic_ns() + 10**12
    replies = [lane.submit(n, None, "A.again", (n,), never) for n in range(1, 4)]
    changed = []
    for n, verdict in ((1, suspects.Verdict.SUSPECTED), (2, suspects.Verdict.QUARANTINED)):
        digest = fingerprint("A.again", [n])
        assert digest is not None
        changed.append(suspects.Suspicion(suspects.RequestKey("A.again", digest), verdict, n))
    client.suspicions.take(changed)
    lane.take(suspects.Suspicions(changed))
    assert isinstance(replies[1].error, errors.PoisonRequest)
    assert not replies[1].error.maybe_executed
    lane.take(session.DeviceChanged(info(0, 2)))
    worker = lane.made["0", 2]
    assert {number: alone for number, (_, alone) in worker.calls.items()} == {1: True, 3: False}
    worker.answer(1)
    lane.receive(0)
    assert client.acquitted == [changed[0].request]


def test_a_call_is_sent_again_so_often_and_no_more(lane: FakeLane) -> None:
    """Ends while it ran count; an end before it had started does not."""
    client = lane.client
    reply = lane.submit(1, None, "A.again", (1,), time.monotonic_ns() + 10**12)
    for generation in range(1, 2 * MAX_REPLAYS + 2):
        assert not reply.done
        assert [*lane.made["0", generation].calls] == [1]
        started = [1] if generation % 2 else []
        lane.take(session.DeviceChanged(info(0, generation, devices.DeviceState.LOST)))
        ended = session.IncarnationEnded(
            0, generation, False, ErrorInfo.of(errors.WorkerLost("killed")), started, 0, started, started
        )
        lane.take(ended)
        if started:
            assert client.reports[-1][1:3] == (0, generation)
            lane.take(suspects.Suspicions([], len(client.reports)))
        lane.take(session.DeviceChanged(info(0, generation + 1)))
    assert isinstance(reply.error, errors.WorkerLost)
    assert reply.error.maybe_executed


@pytest.mark.parametrize("hot", [False, True])
@pytest.mark.parametrize("fate", ["runs", "ended", "answered", "carried"])
def test_nobody_waits_for_connections_by_which_nothing_comes(lane: FakeLane, fate: str, *, hot: bool) -> None:
    """When a worker has stopped, what it has not answered is sent again; unless the answer may be on its way here."""
    answered = fate in {"answered", "carried"}
    deadline_ns = time.monotonic_ns() + 10**12
    first, second = (lane.submit(n, None, "A.again", (n,), deadline_ns) for n in (1, 2))
    worker = lane.made["0", 1]
    worker.late = fate == "carried"
    lane.take(session.DeviceChanged(info(0, 2) if hot else info(0, 1, devices.DeviceState.LOST)))
    started, running = [1], [1] if fate == "runs" else []
    ended = session.IncarnationEnded(
        0, 1, False, ErrorInfo.of(errors.WorkerLost("killed")), started, 0, running, suspects=[]
    )
    lane.take(session.IncarnationStopped(ended, sends=fate == "answered"))
    assert worker.closed != answered
    if not hot:
        lane.take(session.DeviceChanged(info(0, 1, devices.DeviceState.STARTING)))
    if answered:
        worker.answer(1)
    lane.take(ended)
    assert worker.closed
    lane.take(session.DeviceChanged(info(0, 2)))
    assert first.done == answered
    assert set(lane.made["0", 2].calls) == ({2} if answered else {1, 2})
    assert not second.done


@pytest.mark.parametrize("hot", [False, True])
def test_nobody_waits_for_a_worker_that_has_stopped_without_a_connection(lane: FakeLane, *, hot: bool) -> None:
    """The system may close its connections before anybody hears of its end, and its other descriptors long after."""
    deadline_ns = time.monotonic_ns() + 10**12
    for number in (1, 2):
        lane.submit(number, None, "A.again", (number,), deadline_ns)
    lane.made["0", 1].ended = True
    for _ in range(2):
        lane.receive(0)
    lane.take(session.DeviceChanged(info(0, 2) if hot else info(0, 1, devices.DeviceState.LOST)))
    error = ErrorInfo.of(errors.WorkerLost("killed"))
    ended = session.IncarnationEnded(0, 1, False, error, [1], 0, [1], suspects=[])
    lane.take(session.IncarnationStopped(ended))
    if not hot:
        lane.take(session.DeviceChanged(info(0, 2)))
    assert set(lane.made["0", 2].calls) == {1, 2}
    lane.take(ended)
    assert set(lane.made["0", 2].calls) == {1, 2}


def test_nothing_is_sent_to_a_worker_that_was_let_go(lane: FakeLane) -> None:
    """Though the supervisor, which knows by its threads that it has stopped, says once more that it is ready."""
    deadline_ns = time.monotonic_ns() + 10**12
    lane.submit(1, None, "A.again", (1,), deadline_ns)
    error = ErrorInfo.of(errors.WorkerLost("killed"))
    ended = session.IncarnationEnded(0, 1, False, error, [1], 0, [1], suspects=[])
    lane.take(session.IncarnationStopped(ended))
    lane.submit(2, 0, "A.again", (2,), deadline_ns)
    lane.take(session.DeviceChanged(info(0, 1)))
    lane.submit(3, 0, "A.again", (3,), deadline_ns)
    assert set(lane.made["0", 1].calls) == {1}
    lane.take(ended)
    lane.take(session.DeviceChanged(info(0, 2)))
    assert set(lane.made["0", 2].calls) == {1, 2, 3}


def test_what_was_on_a_lost_connection_is_sent_again_or_ends(lane: FakeLane) -> None:
    """Once its worker is known to live, and not before: else its end tells more of it."""
    deadline_ns = time.monotonic_ns() + 10**12
    again, once, unwanted = (
        lane.submit(n, None, method, (n,), deadline_ns) for n, method in ((1, "A.again"), (2, "A.once"), (3, "A.once"))
    )
    unwanted.cancel()
    lane.made["0", 1].ended = True
    lane.receive(0)
    later = lane.submit(4, None, "A.once", (4,), deadline_ns)
    assert not any(reply.done for reply in (again, once, unwanted, later))
    lane.retry(0)
    assert isinstance(once.error, errors.ConnectionLost)
    assert once.error.maybe_executed
    assert (once.error.device, once.error.generation) == (0, 1)
    assert isinstance(unwanted.error, errors.Cancelled)
    assert list(lane.made["0", 1].calls) == [again.id, later.id]
    assert again.replays == 1
    assert len(lane._links[0].flight.requests) == 2


@settings(max_examples=100, deadline=None)
@given(unreadable_messages, st.integers(0, 3))
def test_an_answer_that_cannot_be_read_leaves_nobody_waiting(unreadable: bytes, before: int) -> None:
    """Its connection is lost: what was answered before stands, and the other calls end at once, or are sent again."""
    lane = FakeLane(FakeClient(), [info(0, 1)])
    lane.take(session.DeviceChanged(info(0, 1)))
    deadline_ns = time.monotonic_ns() + 10**12
    replies = [lane.submit(n, None, "A.once", (n,), deadline_ns) for n in range(1, 5)]
    again = lane.submit(5, None, "A.again", (5,), deadline_ns)
    worker = lane.made["0", 1]
    for reply in replies[:before]:
        worker.answer(reply.id)
    worker.answers.append(unreadable)
    worker.answer(again.id)
    lane.receive(0)
    lane.retry(0)
    assert [reply.error for reply in replies[:before]] == [None] * before
    for reply in replies[before:]:
        assert isinstance(reply.error, errors.ConnectionLost)
        assert reply.error.maybe_executed
    assert worker.closed
    assert list(lane.made["0", 1].calls) == [again.id]
    lane.take(errors.PoolLost("over"))


def test_a_lost_connection_of_a_worker_that_has_ended_tells_nothing(lane: FakeLane) -> None:
    """Its requests have the fate that the supervisor tells, though the connection was lost before."""
    deadline_ns = time.monotonic_ns() + 10**12
    ran, waited = (lane.submit(n, None, "A.once", (n,), deadline_ns) for n in (1, 2))
    lane.made["0", 1].ended = True
    lane.receive(0)
    error = ErrorInfo.of(errors.WorkerLost("killed"))
    lane.take(session.IncarnationStopped(session.IncarnationEnded(0, 1, False, error, [1], 0, [1], [])))
    assert isinstance(ran.error, errors.WorkerLost)
    assert ran.error.maybe_executed
    assert isinstance(waited.error, errors.WorkerLost)
    assert not waited.error.maybe_executed
    lane.retry(0)
    assert lane._links[0].connection is None


def test_what_could_not_be_sent_was_not_executed(lane: FakeLane) -> None:
    """It waits for the next connection, idempotent or not."""
    worker = lane.made["0", 1]
    worker.broken = True
    reply = lane.submit(1, None, "A.once", (1,), time.monotonic_ns() + 10**12)
    assert worker.closed
    lane.retry(0)
    assert list(lane.made["0", 1].calls) == [reply.id]
    assert not reply.done


@pytest.mark.parametrize("device", [None, 0])
def test_a_worker_for_which_no_descriptor_was_left_is_tried_again(device: int | None) -> None:
    """The next call tries it; waiting requests go first. A thread that reads just then is not woken."""
    lane = FakeLane(FakeClient(), [info(0, 1), info(1, 1)])
    for each in range(2):
        lane.take(session.DeviceChanged(info(each, 1)))
    lost = session.IncarnationEnded(0, 1, False, ErrorInfo.of(errors.WorkerLost("killed")), [], 0, [], [])
    deadline_ns = time.monotonic_ns() + 10**12
    lane.take(session.DeviceChanged(info(0, 1, devices.DeviceState.LOST)))
    lane.take(lost)
    lane.full = True
    standby = devices.StandbyInfo(3, "0:3")
    lane.take(session.DeviceChanged(msgspec.structs.replace(info(0, 2), standby=standby)))
    waiting = lane.submit(1, 0, "A.once", (1,), deadline_ns)
    lane.full = False
    lane.submit(2, device, "A.once", (2,), deadline_ns)
    assert next(iter(lane.made["0", 2].calls)) == waiting.id
    assert len(lane.made["0", 2].calls) + len(lane.made["1", 1].calls) == 2
    lane.take(session.DeviceChanged(info(0, 3)))
    lane.take(errors.PoolLost("over"))
    assert all(made.closed for made in lane.made.values())


def test_what_was_cancelled_does_not_move_on(lane: FakeLane) -> None:
    """The next worker has never heard of that, and would run it; nor does what has expired."""
    deadline_ns = time.monotonic_ns() + 10**12
    cancelled, expired, other = (lane.submit(n, None, "A.once", (n,), deadline_ns) for n in (1, 2, 3))
    cancelled.cancel()
    lane._expire(expired)
    lane.take(session.DeviceChanged(info(0, 1, devices.DeviceState.DRAINING)))
    lane.take(session.IncarnationEnded(0, 1, True, ErrorInfo.of(errors.WorkerLost("restarted")), [], 0, [], []))
    assert isinstance(cancelled.error, errors.Cancelled)
    assert not cancelled.error.maybe_executed
    lane.take(session.DeviceChanged(info(0, 2)))
    assert list(lane.made["0", 2].calls) == [other.id]
    assert not other.done


def test_a_call_is_cancelled_once(lane: FakeLane) -> None:
    """A caller that waits with a time limit again and again does not fill the connection with cancels."""
    reply = lane.submit(1, None, "A.once", (1,), time.monotonic_ns() + 10**12)
    for _ in range(3):
        reply.cancel()
    assert lane.made["0", 1].cancelled == [1]


@pytest.mark.parametrize(
    ("method", "writes"),
    [
        ("A.writes", True),
        ("A.again", False),
        ("memory.fill", True),
        ("memory.get", False),
        ("blas.gemm", True),
        ("program.run", True),
        ("Gone.method", True),
    ],
)
def test_which_requests_may_have_written_what_they_refer_to(method: str, *, writes: bool) -> None:
    """An actor's method says so, a library's request declares it; what is unknown may have."""
    known = METHODS | {
        "A.writes": devices.MethodInfo("writes", ["c"], idempotent=False, deadline_s=None, doc="", writes=True)
    }
    assert may_write(method, known.get(method)) is writes


def test_what_a_former_worker_does_not_know_goes_to_the_present_one_at_once(lane: FakeLane) -> None:
    """Its word may be the last news for long: an answer of it may still be on its way, and nothing else runs."""
    definition, never = b"definition", time.monotonic_ns() + 10**12
    request = RunProgram(definition, [], [], [], digest(definition))
    programs = KnownPrograms()
    told, program = programs.shortened(request, 1)
    lane.submit(1, 0, RUN, told, never, program=program)
    lane.made["0", 1].answer(1)
    lane.receive(0)
    former = lane.made["0", 1]
    former.programs.clear()  # as one that is another than the client knows
    known, program = programs.shortened(request, 1)
    run = lane.submit(2, 0, RUN, known, never, program=program)
    lane.submit(3, 0, "A.once", (1,), never)
    lane.take(session.DeviceChanged(info(0, 2)))
    former.answer(2)
    lost = ErrorInfo.of(errors.WorkerLost("killed"))
    lane.take(session.IncarnationStopped(session.IncarnationEnded(0, 1, False, lost, [2, 3], 0, [], [])))
    assert list(lane.made["0", 2].calls) == [2]
    lane.made["0", 2].answer(2)
    lane.receive(0)
    assert run.result() == 2


def once(lane: FakeLane, number: int, generation: int, n: int = 1) -> Reply:
    """Make a call for one incarnation of the device alone."""
    never = time.monotonic_ns() + 10**12
    return lane.submit(number, 0, "A.again", (n,), never, replays=NEVER_AGAIN, wait=True, to_generation=generation)


def assert_stale(reply: Reply) -> None:
    """Check that a call has ended since its incarnation has, and certainly has not run."""
    assert isinstance(reply.error, errors.StaleGeneration)
    assert not reply.error.maybe_executed


@pytest.mark.parametrize("hot", [False, True])
@pytest.mark.parametrize("how", ["unsent", "unstarted"])
def test_a_call_for_one_worker_ends_with_it(lane: FakeLane, how: str, *, hot: bool) -> None:
    """Where it was not sent, and where a worker leaves that has not started it; the next worker gets nothing."""
    lane.made["0", 1].broken = how == "unsent"
    reply = once(lane, 1, 1)
    lane.take(session.DeviceChanged(info(0, 2) if hot else info(0, 1, devices.DeviceState.LOST)))
    if not (hot and how == "unsent"):
        assert not reply.done
        lane.take(_planned_end(0, 1))
    assert_stale(reply)
    lane.take(session.DeviceChanged(info(0, 2)))
    assert not lane.made["0", 2].calls


def test_a_call_for_one_worker_that_has_waited_for_room_ends() -> None:
    """Another worker is there when there is room."""
    crowded = FakeLane(FakeClient(window=1), [info(0, 1)])
    crowded.take(session.DeviceChanged(info(0, 1)))
    first = crowded.submit(1, 0, "A.once", (1,), time.monotonic_ns() + 10**12)
    reply = once(crowded, 2, 1)
    assert reply.state is ReplyState.BACKLOG
    crowded.take(session.DeviceChanged(info(0, 2)))
    crowded.made["0", 1].answer(1)
    with crowded._lock:
        crowded._receive(crowded._links[0], former=True)
    crowded.take(_planned_end(0, 1))
    assert first.result() == 1
    assert_stale(reply)
    assert not crowded.made["0", 2].calls
    crowded.take(errors.PoolLost("over"))


def test_a_call_for_one_worker_is_not_sent_again(lane: FakeLane) -> None:
    """Whatever its method says; one that ran has ended in doubt."""
    reply = once(lane, 1, 1)
    lost = ErrorInfo.of(errors.WorkerLost("killed"))
    lane.take(session.DeviceChanged(info(0, 2)))
    lane.take(session.IncarnationEnded(0, 1, False, lost, [1], 0, [1], []))
    assert isinstance(reply.error, errors.WorkerLost)
    assert reply.error.maybe_executed
    assert not lane.made["0", 2].calls


def test_a_call_waits_for_a_worker_that_is_not_heard_of_yet(lane: FakeLane) -> None:
    """Another client has called it. While the one before still takes calls here, the call is refused."""
    with pytest.raises(errors.StaleGeneration) as refused:
        once(lane, 1, 2)
    assert (refused.value.generation, refused.value.current) == (2, 1)
    lane.take(session.DeviceChanged(info(0, 1, devices.DeviceState.LOST)))
    reply = once(lane, 2, 2)
    with pytest.raises(errors.StaleGeneration):
        once(lane, 3, 1)
    lane.take(session.DeviceChanged(info(0, 2)))
    assert list(lane.made["0", 2].calls) == [reply.id]
