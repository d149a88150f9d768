"""The nodes of a cluster over stand-ins for Ray's actors, pools and sessions."""

from __future__ import annotations

import asyncio
import copy
import threading
import time
from types import SimpleNamespace
from typing import Any, Final, cast

import numpy as np
import pytest

from atomr_mp import errors
from atomr_mp.client.taken_arguments import kept
from atomr_mp.protocol.messages.devices import DeviceInfo, DeviceState, MethodInfo

pytest.importorskip("ray", reason="needs Ray: pip install 'atomr-mp[ray]'")
from atomr_mp.ray import member as member_module
from atomr_mp.ray import nodes as nodes_module
from atomr_mp.ray.cluster import Cluster
from atomr_mp.ray.cluster_reply import Attempt
from atomr_mp.ray.failover import ClusterCall
from atomr_mp.ray.member import Member, NodeInfo
from atomr_mp.ray.nodes import Nodes
from atomr_mp.ray.places import Places, wait_reserved
from tests.fakes.answered import Answered
from tests.support import DEADLINE_S


def device(index: int, *, admitted: bool) -> DeviceInfo:
    """Return a device that takes calls, or one that starts."""
    state = DeviceState.READY if admitted else DeviceState.STARTING
    return DeviceInfo(index, "host", state, 1, "", admitted, 1, 0, "")


class Session:
    """A session whose devices a test changes, and the pool over it."""

    def __init__(self, *admitted: bool, homes: dict[str, tuple[int, ...]] | None = None) -> None:
        self.devices = [device(index, admitted=each) for index, each in enumerate(admitted)]
        self.homes = homes or {}
        self.unanswered = 0
        self.memory = object()
        self.epoch = b"epoch"
        self.lost: errors.AtomrError | None = None
        self.called: list[tuple[Any, ...]] = []
        self.methods: dict[str, MethodInfo] = {"A.m": MethodInfo("A.m", [], idempotent=True, deadline_s=None, doc="")}
        self.ends: errors.AtomrError | None = None
        """How its next call ends, and it with it."""
        self._listeners: list[Any] = []

    def on_event(self, listener: Any) -> None:
        """Take a listener."""
        self._listeners.append(listener)

    def change(self, index: int, *, admitted: bool) -> None:
        """Change a device, and tell it."""
        self.devices[index] = device(index, admitted=admitted)
        for each in self._listeners:
            each(object())

    def method_info(self, method: str) -> MethodInfo:
        """Return what is known of a method."""
        return self.methods[method]

    def read_session(self) -> None:
        """Have nothing more to read."""

    def wait_until(self, condition: Any, _within_s: float) -> bool:
        """Say at once whether it came."""
        return bool(condition())

    def call(self, *args: Any, deadline_s: float = 0.0, **_options: Any) -> Any:
        """Take a call, as its arguments are now."""
        self.called.append(tuple(copy.copy(each) if isinstance(each, list | np.ndarray) else each for each in args))
        self.lost = self.ends
        return Answered(error=self.ends, value=deadline_s)

    stream = call


def nodes_of(*sessions: Session | None, local: int = 0) -> Nodes:
    """Return nodes whose pools have these sessions; None stands for a node that is not reached."""
    made = Nodes.__new__(Nodes)
    made._changed, made._closed = threading.Condition(), threading.Event()  # type: ignore[misc]
    made.members = [Member(index, None, "here", made._changed, made._closed) for index in range(len(sessions))]  # type: ignore[misc]
    for member, session in zip(made.members, sessions, strict=True):
        if session is not None:
            member._client = cast("Any", session)
            member.pool = member._heard(cast("Any", session))
            member.local = member.index == local
    return made


def cluster_of(nodes: Nodes) -> Cluster:
    """Return a cluster over nodes."""
    made = Cluster.__new__(Cluster)
    made._nodes = nodes
    return made


def chosen(nodes: Nodes, method: str = "A.m", device: int | None = None) -> int:
    """Return the node that a call goes to."""
    found = nodes.least_loaded(method=method, device=device)
    assert found is not None
    return found.index


def test_a_call_goes_to_a_node_that_takes_it_now() -> None:
    """It does not wait for this process's own node whose worker starts, nor for one with fewer calls."""
    own, other = Session(True), Session(True)
    nodes = nodes_of(own, other)
    other.unanswered = 40
    assert chosen(nodes) == 0
    own.change(0, admitted=False)
    assert chosen(nodes) == 1
    other.change(0, admitted=False)
    assert chosen(nodes) == 0  # both have to be waited for
    own.change(0, admitted=True)
    other.unanswered = 0
    other.change(0, admitted=True)
    assert chosen(nodes) == 0


def test_a_node_is_ready_for_a_call_if_a_device_is_that_has_its_actor() -> None:
    """A device that is named counts alone; any other device does not help."""
    own = Session(True, False, homes={"B": (1,)})
    nodes = nodes_of(own, Session(True, True))
    assert (chosen(nodes, "A.m"), chosen(nodes, "B.m")) == (0, 1)
    assert (chosen(nodes, "A.m", 0), chosen(nodes, "A.m", 1)) == (0, 1)
    own.change(1, admitted=True)
    assert (chosen(nodes, "B.m"), chosen(nodes, "A.m", 1)) == (0, 0)


def test_a_node_whose_pool_is_new_is_looked_at_anew() -> None:
    """The readiness of its last pool's devices does not hold."""
    nodes = nodes_of(Session(False), Session(True))
    assert chosen(nodes) == 1
    member, again = nodes.members[0], Session(True)
    member._client = cast("Any", again)
    member.pool = member._heard(cast("Any", again))
    assert chosen(nodes) == 0


def test_a_node_is_named_by_its_index_or_by_what_nodes_returns() -> None:
    """Both reach the same pool, wherever a node can be named."""
    first, second = Session(True), Session(True)
    cluster = cluster_of(nodes_of(first, second))
    info = cluster.nodes[1]
    assert isinstance(info, NodeInfo)
    named: tuple[Any, ...] = (1, info, _Whole(1))
    for node in named:
        assert cluster.call("A.m", node=node).node == 1
        assert cast("Any", cluster.pool(node)) is second
        cluster.stream("A.m", node=node)
    assert (len(first.called), len(second.called)) == (0, 6)


class _Whole:
    """A whole number of another package, such as NumPy's."""

    def __init__(self, number: int) -> None:
        self._number = number

    def __index__(self) -> int:
        return self._number


@pytest.mark.parametrize("node", [2, -1, "0", "f00d", 1.0, True, [0], (0,), object()])
def test_what_names_no_node_is_refused_typed(node: Any) -> None:
    """The error says what does; nothing is sent anywhere."""
    session = Session(True)
    cluster = cluster_of(nodes_of(session, Session(True)))
    asks = (
        lambda: cluster.call("A.m", node=node),
        lambda: cluster.stream("A.m", node=node),
        lambda: cluster.pool(node),
        lambda: cluster.put([1.0], node=node),
        lambda: cluster.actor("A", node=node),
    )
    for ask in asks:
        with pytest.raises(errors.InvalidRequest, match=r"node must be one of `Cluster\.nodes`, or its index"):
            ask()
    assert not session.called


@pytest.mark.parametrize("value", ["x", -1.0, float("nan"), [1]])
def test_what_is_no_duration_is_refused_typed(value: Any) -> None:
    """No function of a cluster answers a wrong number with a raw TypeError."""
    cluster = cluster_of(nodes_of(Session(True)))
    asks = (
        lambda: cluster.call("A.m", deadline_s=value),
        lambda: cluster.pool(0, value),
        lambda: cluster.wait_nodes(value),
        lambda: cluster.status(value),
        lambda: cluster.map("A.m", [], in_flight=value),
        lambda: Cluster(actors="a:B", start_timeout_s=value),
    )
    for ask in asks:
        with pytest.raises(errors.InvalidRequest, match="must be"):
            ask()


class Ref:
    """A ref of a session."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def is_of(self, memory: object) -> bool:
        """Whether it belongs to a session's memory."""
        return memory is self._session.memory


def test_a_ref_and_a_node_that_disagree_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither goes before the other unheard; a node that the ref is on may be named."""
    monkeypatch.setattr("atomr_mp.ray.failover.GpuRef", Ref)
    first, second = Session(True), Session(True)
    cluster = cluster_of(nodes_of(first, second))
    ref = Ref(second)
    for ask in (cluster.call, cluster.stream):
        for arguments in ({"node": 0}, {"node": cluster.nodes[0]}):
            with pytest.raises(errors.InvalidRequest, match=r"a ref among the arguments is on node 1.*names node 0"):
                ask("A.m", ref, **arguments)
        ask("A.m", ref)
        ask("A.m", ref, node=1)
    with pytest.raises(errors.InvalidRequest, match="is on node 1"):
        cluster.call("A.m", node=0, kwargs={"x": ref})
    assert (len(first.called), len(second.called)) == (0, 4)


class Group:
    """A placement group that is reserved once it was waited for so often."""

    def __init__(self, waits: int) -> None:
        self._waits = waits
        self.waited: list[float] = []

    def wait(self, timeout_s: float) -> bool:
        """Return whether it is reserved."""
        self.waited.append(timeout_s)
        return len(self.waited) > self._waits


def ray_node(cpus: float, *, alive: bool = True) -> dict[str, Any]:
    """Return a node as Ray describes it."""
    return {"Alive": alive, "Resources": {"CPU": cpus, "memory": 1.0}}


@pytest.mark.parametrize(
    ("known", "says"),
    [
        ([ray_node(4), ray_node(0.5), ray_node(4, alive=False)], "of 3 nodes with 1 CPUs and 0 GPUs each, Ray has 1"),
        ([], "Ray has 0"),
        ([ray_node(1)] * 3, "Ray has 3, and others use what they have"),
    ],
)
def test_too_few_nodes_are_said_at_once_and_counted_at_the_end(
    known: list[dict[str, Any]], says: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A start that waits for a node which was never started says so long before it gives up."""
    monkeypatch.setattr("atomr_mp.ray.places.ray", SimpleNamespace(nodes=lambda: known))
    group = Group(9)
    with pytest.raises(errors.PoolUnreachable) as raised:
        wait_reserved(group, Places(3, 1, 0), 300.0)
    assert says in raised.value.message
    assert "after 300 s" in raised.value.message
    assert sum(group.waited) == 300.0
    (said,) = caplog.messages
    assert says in said
    assert group.waited[0] <= 5.0


def test_what_is_there_in_time_is_waited_for_without_a_word(caplog: pytest.LogCaptureFixture) -> None:
    """A start as usual says nothing."""
    wait_reserved(Group(0), Places(3, 1, 0), 300.0)
    assert not caplog.messages


def test_pools_that_do_not_start_are_said_and_counted(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The log names them while they are waited for, the error at the end too."""
    monkeypatch.setattr(nodes_module, "SAY_S", 0.01)
    nodes = nodes_of(Session(True), None, None)
    nodes.members[2].error = errors.PoolUnreachable("stands still")
    with pytest.raises(errors.PoolUnreachable, match=r"1 of 3 are ready; missing are node 1 .*, node 2 .stands"):
        nodes.wait_all(time.monotonic() + 0.05)
    (said,) = caplog.messages
    assert "1 of 3 are ready" in said


class Actor:
    """Ray's handle of a node's actor, which answers what its pool had started."""

    def __init__(self, answer: Any) -> None:
        self._answer = answer
        self.asked: list[str] = []
        self.started = self

    def remote(self, epoch: str) -> Any:
        """Take the question, and return the answer in its place."""
        self.asked.append(epoch)
        return self._answer


CALL: Final = ClusterCall("A.m", kept((), {}), None, None, 0)


def lost_call(number: int, epoch: bytes = b"\x01") -> Attempt:
    """Return a call that was lost with its pool."""
    return Attempt(0, cast("Any", SimpleNamespace(id=number, sent_ns=time.monotonic_ns())), CALL, epoch=epoch)


@pytest.mark.parametrize(
    ("answer", "may"),
    [
        ({"value": ((7,), None)}, [True, False]),
        ({"value": ([7], 10**15)}, [True, False]),
        ({"value": ([7], 0)}, [True, True]),
        ({"value": None}, [True, True]),
        ({"error": ("pool_unreachable", "no answer", {})}, [True, True]),
    ],
)
def test_a_node_is_asked_once_for_each_lost_pool(
    answer: dict[str, Any], may: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it does not know, and no answer, count as started."""
    monkeypatch.setattr("ray.is_initialized", lambda: True)
    nodes, actor = nodes_of(Session(True)), Actor(answer)
    nodes.members[0]._actor = actor  # type: ignore[misc]
    monkeypatch.setattr(nodes.members[0], "_answer", lambda question, _within_s: question)
    calls = [lost_call(7), lost_call(8)]
    for _ in range(3):
        assert [nodes.may_have_started(each) for each in calls] == may
    assert actor.asked == ["01"]
    for epoch in range(2, 9):
        nodes.may_have_started(lost_call(7, bytes([epoch])))
    assert len(nodes.members[0]._started) == member_module.KNOWN_POOLS


@pytest.mark.parametrize("over", ["cluster", "ray"])
def test_after_the_end_no_question_starts_ray_again(over: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray begins by itself in a process that asks it for anything."""
    monkeypatch.setattr("ray.is_initialized", lambda: over != "ray")
    nodes, actor = nodes_of(Session(True)), Actor({"value": ([], None)})
    nodes.members[0]._actor = actor  # type: ignore[misc]
    if over == "cluster":
        nodes._closed.set()
    assert nodes.may_have_started(lost_call(7))
    assert not actor.asked


def test_a_call_that_is_sent_again_has_the_arguments_of_the_call() -> None:
    """Its caller may write to them at once."""
    first, second = Session(True), Session(True)
    first.ends = errors.PoolLost("gone")
    array, items = np.arange(3.0), [1, "item"]
    reply = cluster_of(nodes_of(first, second)).call("A.m", array, items, "text")
    array[:], items[1] = 7, "changed"
    reply.result()
    ((_, sent, *others),) = second.called
    assert (sent.tolist(), others) == ([0, 1, 2], [[1, "item"], "text"])


def test_a_coroutine_s_call_waits_for_a_node_that_does_not_know_its_methods_yet() -> None:
    """Its method's own deadline holds from the call on, and its arguments are those of the call."""
    known, session = MethodInfo("A.m", [], idempotent=True, deadline_s=60.0, doc=""), Session(False)
    session.methods = {}

    async def use() -> float:
        items = [1]
        reply = cluster_of(nodes_of(session)).call("A.m", items)
        items.append(2)
        assert not session.called
        session.methods = {"A.m": known}
        return cast("float", await reply)

    assert 50 < asyncio.run(use()) <= 60
    assert [each[1:] for each in session.called] == [([1],)]


def test_a_call_is_sent_to_the_next_node_when_the_first_is_lost() -> None:
    """A node whose session has just ended is no reason to fail."""
    nodes = nodes_of(gone := Session(True), Session(True))
    gone.call = _lost  # type: ignore[method-assign]
    call = ClusterCall("A.m", kept((), {}), None, None, time.monotonic_ns() + int(DEADLINE_S * 1e9))
    assert nodes.send(call).node == 1


def _lost(*_args: Any, **_options: Any) -> SimpleNamespace:
    raise errors.PoolLost("gone")
