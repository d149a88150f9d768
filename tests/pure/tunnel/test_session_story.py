"""What a client hears and says again after the end of its relay, against a supervisor that knows how things stand."""

from __future__ import annotations

from typing import Any, Final

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from atomr_mp import errors
from atomr_mp.protocol.codec import MAX_U64, ErrorInfo
from atomr_mp.protocol.flow.flight import Window
from atomr_mp.protocol.messages import devices, operators, session, suspects
from atomr_mp.protocol.tunnel.session_story import SessionStory

ENDED: Final = ErrorInfo.of(errors.WorkerLost("it has ended"))
KEYS: Final = [suspects.RequestKey("Probe.echo", bytes([each]) * 16) for each in range(3)]


def device(index: int, generation: int) -> devices.DeviceInfo:
    """Describe a device."""
    return devices.DeviceInfo(index, "d", devices.DeviceState.READY, generation, "tunnel://", True, 1, 0, "")


def world(number: int, epoch: int) -> devices.WorldInfo:
    """Describe a world."""
    return devices.WorldInfo(number, f"w{number}", [0, 1], ["A"], devices.WorldState.READY, epoch, [1, 1])


def is_order(message: session.FromClient) -> bool:
    """Whether it must not be carried out twice."""
    return isinstance(message, operators.RestartRequest)


class Resumptions(RuleBasedStateMachine):
    """A client and a supervisor, and relays between them that end with what they have."""

    def __init__(self) -> None:
        super().__init__()
        self.story = SessionStory()
        # What is so.
        self.generations = {0: 1, 1: 1}
        self.living = {(0, 1), (1, 1)}
        self.all_ends: list[session.IncarnationEnded] = []
        self.verdicts: dict[suspects.RequestKey, suspects.Suspicion] = {}
        self.worlds = {0: world(0, 1)}
        self.slabs: set[int] = set()
        self.traced = False
        self.carried_out: list[session.FromClient] = []
        self.attached = False
        # What is on its way, and how far it has come.
        self.up: list[tuple[session.FromClient, int]] = []
        self.down: list[session.FromSupervisor] = []
        self.said_bytes = self.passed_on = 0
        # What the client knows.
        self.numbers = 0
        self.last_slab = 0
        self.said: list[session.FromClient] = []
        self.answered: dict[int, session.FromSupervisor] = {}
        self.known: dict[int, devices.DeviceInfo] = {}
        self.heard_ends: list[tuple[int, int]] = []
        self.knows: dict[suspects.RequestKey, suspects.Suspicion] = {}
        self.known_worlds: dict[int, devices.WorldInfo] = {}
        self.knows_traced = False
        self.say(session.Hello(2, "client"))
        self.arrives()
        self.comes()

    # --- the ends --------------------------------------------------------------------------------------------------

    def say(self, message: session.FromClient) -> None:
        """Send a message, or let it wait."""
        if not isinstance(message, session.Hello):
            self.said.append(message)
        self.put(message)

    def put(self, message: session.FromClient) -> None:
        """Send a message, for the first time or again."""
        if self.story.away:
            self.story.say(message, None, 0)
            return
        self.said_bytes += 10
        self.up.append((message, self.said_bytes))
        self.story.say(message, self.said_bytes, self.passed_on)

    def welcome(self) -> session.Welcome:
        """Describe how things stand."""
        found = [device(*each) for each in self.generations.items()]
        window = Window(8, 2**20, 4)
        known = list(self.verdicts.values())
        worlds = list(self.worlds.values())
        return session.Welcome(
            2, "pool", bytes(16), 1, bytes(16), bytes(range(16)), window, found, [], known, worlds=worlds
        )

    def obey(self, message: session.FromClient) -> None:
        """Carry out what has arrived."""
        self.attached = True
        match message:
            case session.Hello(resume=None):
                self.down.append(self.welcome())
            case session.Hello():
                self.down.append(self.welcome())
                self.down += [session.SlabKept(slab, 1) for slab in sorted(self.slabs)]
                self.down += self.all_ends[-3:]
                living = [session.LivingIncarnation(*each) for each in sorted(self.living)]
                self.down.append(session.SessionResumed(living))
                self.down += [session.TraceChanged(on=True)] * self.traced
            case session.RegisterSlab(number, slab):
                assert slab not in self.slabs, "registered twice"
                self.slabs.add(slab)
                self.down.append(session.Answer(number))
            case session.ForgetSlab(slab):
                self.slabs.discard(slab)
            case session.OpenSlab(number):
                self.down.append(session.SlabOpened(number, 1))
            case operators.RestartRequest(number):
                self.down.append(session.Answer(number))
        self.carried_out.append(message)

    def hear(self, message: session.FromSupervisor) -> None:
        """Take in what the client hears."""
        match message:
            case session.Welcome():
                self.known = {each.index: each for each in message.devices}
                self.known_worlds = {each.number: each for each in message.worlds}
                self.knows = {each.request: each for each in message.suspicions}
            case session.DeviceChanged(info):
                assert info != self.known[info.index], "told for nothing"
                self.known[info.index] = info
            case session.WorldChanged(changed_world):
                assert changed_world != self.known_worlds.get(changed_world.number), "told for nothing"
                self.known_worlds[changed_world.number] = changed_world
            case session.TraceChanged(on):
                self.knows_traced = on
            case session.IncarnationEnded():
                self.heard_ends.append((message.device, message.generation))
            case suspects.Suspicions(changed):
                for each in changed:
                    self.knows.pop(each.request, None)
                    if each.verdict is not suspects.Verdict.CLEARED:
                        self.knows[each.request] = each
            case session.Answer(number) | session.SlabOpened(number):
                assert number not in self.answered, "answered twice"
                self.answered[number] = message

    # --- what happens ----------------------------------------------------------------------------------------------

    @rule(kind=st.sampled_from(["open", "register", "restart"]))
    def ask(self, kind: str) -> None:
        """The client asks something."""
        self.numbers += 1
        match kind:
            case "open":
                self.say(session.OpenSlab(self.numbers, 0, 1, 1))
            case "register":
                self.last_slab += 1
                self.say(session.RegisterSlab(self.numbers, self.last_slab, 1))
            case "restart":
                self.say(operators.RestartRequest(self.numbers, 0))

    @precondition(lambda self: self.last_slab)
    @rule(drawn=st.data())
    def forget(self, drawn: st.DataObject) -> None:
        """The client forgets a slab; no answer comes to that."""
        done = [each.slab for each in self.said if isinstance(each, session.RegisterSlab) and each.id in self.answered]
        forgotten = {each.slab for each in self.said if isinstance(each, session.ForgetSlab)}
        left = sorted(set(done) - forgotten)
        if left:
            self.say(session.ForgetSlab(drawn.draw(st.sampled_from(left))))

    @rule(index=st.integers(0, 1))
    def end(self, index: int) -> None:
        """A worker ends, and another comes."""
        generation = self.generations[index]
        self.living.discard((index, generation))
        ended = session.IncarnationEnded(index, generation, planned=False, error=ENDED, started=[], known_since_ns=5)
        self.all_ends.append(ended)
        self.generations[index] = generation + 1
        self.living.add((index, generation + 1))
        if self.attached:
            self.down += [ended, session.DeviceChanged(device(index, generation + 1))]

    @rule(key=st.sampled_from(KEYS), ends=st.integers(0, 2))
    def judge(self, key: suspects.RequestKey, ends: int) -> None:
        """The supervisor judges a request."""
        verdict = suspects.Verdict.SUSPECTED if ends else suspects.Verdict.CLEARED
        found = suspects.Suspicion(key, verdict, ends)
        self.verdicts.pop(key, None)
        if ends:
            self.verdicts[key] = found
        if self.attached:
            self.down.append(suspects.Suspicions([found]))

    @rule(number=st.integers(0, 1))
    def form(self, number: int) -> None:
        """A world forms an epoch, or comes into being."""
        before = self.worlds.get(number)
        changed = self.worlds[number] = world(number, 1 if before is None else before.epoch + 1)
        if self.attached:
            self.down.append(session.WorldChanged(changed))

    @rule()
    def trace(self) -> None:
        """A trace of the pool begins or ends."""
        self.traced = not self.traced
        if self.attached:
            self.down.append(session.TraceChanged(self.traced))

    @precondition(lambda self: self.up)
    @rule()
    def arrives(self) -> None:
        """Something reaches the supervisor; its acknowledgement may not come back."""
        message, _ = self.up.pop(0)
        self.obey(message)

    @rule(drawn=st.data())
    def acknowledged(self, drawn: st.DataObject) -> None:
        """The client learns how far it was heard."""
        unheard = self.up[0][1] - 10 if self.up else self.said_bytes
        self.passed_on = drawn.draw(st.integers(self.passed_on // 10, unheard // 10)) * 10

    @precondition(lambda self: self.down)
    @rule()
    def comes(self) -> None:
        """Something reaches the client."""
        away = self.story.away
        for heard in self.story.hear(self.down.pop(0)):
            self.hear(heard)
        if away and not self.story.away:
            for said in self.story.again():
                self.put(said)

    @rule()
    def cut(self) -> None:
        """The relay ends, with all that it has; what has reached the supervisor's socket is heard."""
        self.down.clear()
        self.attached = False
        hello = self.story.cut(self.passed_on)
        assert hello is not None
        self.up.clear()
        self.said_bytes, self.passed_on = 10, 0
        self.up.append((hello, 10))

    # --- what has to hold ------------------------------------------------------------------------------------------

    @invariant()
    def nothing_is_done_twice(self) -> None:
        """An order is carried out once at most, and no end is heard twice."""
        orders = [msgspec.msgpack.encode(each) for each in self.carried_out if is_order(each)]
        assert len(orders) == len(set(orders))
        assert len(self.heard_ends) == len(set(self.heard_ends))

    @invariant()
    def what_is_not_known_stays_known_as_it_was(self) -> None:
        """The client never hears of the end of what lives."""
        assert not set(self.heard_ends) & self.living

    def teardown(self) -> None:
        """Let everything arrive: the client knows how things stand, and each question is answered."""
        while self.up or self.down:
            if self.up:
                self.arrives()
            if self.down:
                self.comes()
        assert not self.story.away
        assert {index: each.generation for index, each in self.known.items()} == self.generations
        assert self.knows == self.verdicts
        assert self.knows_traced == self.traced
        assert self.known_worlds == self.worlds
        for number in range(1, self.numbers + 1):
            assert number in self.answered
        registered = {each.slab for each in self.said if isinstance(each, session.RegisterSlab)}
        forgotten = {each.slab for each in self.said if isinstance(each, session.ForgetSlab)}
        assert self.slabs == registered - forgotten
        for number, answer in self.answered.items():
            order = next(each for each in self.said if getattr(each, "id", None) == number)
            if isinstance(answer, session.Answer) and answer.error is not None:
                assert is_order(order)
                assert answer.error.fields["maybe_executed"]
            elif is_order(order):
                assert order in self.carried_out


TestResumptions = Resumptions.TestCase
TestResumptions.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)


def test_the_end_of_what_was_not_told_counts_as_having_run_all() -> None:
    """No message says what it had started, so no request to it counts as unstarted."""
    story = SessionStory()
    story.say(session.Hello(2, "client"), 10, 0)
    window = Window(8, 2**20, 4)
    welcome = session.Welcome(2, "pool", bytes(16), 1, bytes(16), bytes(16), window, [device(0, 1)], [])
    assert story.hear(welcome) == [welcome]
    assert story.cut(0) is not None
    assert story.hear(msgspec.structs.replace(welcome, devices=[device(0, 3)])) == []
    ended, changed = story.hear(session.SessionResumed([session.LivingIncarnation(0, 3)]))
    assert isinstance(ended, session.IncarnationEnded)
    assert (ended.device, ended.generation, ended.started, ended.known_since_ns) == (0, 1, [], MAX_U64)
    assert ended.error.error().maybe_executed  # type: ignore[attr-defined]
    assert changed == session.DeviceChanged(device(0, 3))


def test_worlds_are_told_of_behind_their_devices() -> None:
    """An epoch names processes that the client knows by then; a world that the supervisor does not name has ended."""
    story = SessionStory()
    story.say(session.Hello(2, "client"), 10, 0)
    window = Window(8, 2**20, 4)
    worlds = [world(0, 1), world(1, 1)]
    welcome = session.Welcome(2, "pool", bytes(16), 1, bytes(16), bytes(16), window, [device(0, 1)], [], worlds=worlds)
    assert story.hear(welcome) == [welcome]
    assert story.cut(0) is not None
    assert story.hear(msgspec.structs.replace(welcome, devices=[device(0, 2)], worlds=[world(0, 2)])) == []
    assert story.hear(session.WorldChanged(world(0, 3))) == []
    told = story.hear(session.SessionResumed([session.LivingIncarnation(0, 2)]))
    assert [type(each) for each in told] == [
        session.IncarnationEnded,
        session.DeviceChanged,
        session.WorldChanged,
        session.WorldChanged,
    ]
    found = {each.world.number: each.world for each in told if isinstance(each, session.WorldChanged)}
    assert found[0] == world(0, 3)
    assert (found[1].state, found[1].generations) == (devices.WorldState.ENDED, [])


@given(st.lists(st.sampled_from([session.SessionResumed([]), session.Answer(1), session.DeviceChanged(device(0, 1))])))
def test_a_supervisor_that_does_not_keep_to_the_order_is_refused(messages: list[Any]) -> None:
    """Before the welcome nothing goes on."""
    story = SessionStory()
    story.say(session.Hello(2, "client"), 10, 0)
    window = Window(8, 2**20, 4)
    story.hear(session.Welcome(2, "pool", bytes(16), 1, bytes(16), bytes(16), window, [device(0, 1)], []))
    story.cut(0)
    for message in messages:
        try:
            story.hear(message)
        except errors.ProtocolError:
            continue
        raise AssertionError(message)
