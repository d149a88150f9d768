"""A world as applications have it: what it takes, and what it refuses before anything is sent."""

from __future__ import annotations

import pickle
import re
from types import SimpleNamespace
from typing import Any, cast

import pytest

from atomr_mp import errors
from atomr_mp.client.worlds.known_worlds import KnownWorlds
from atomr_mp.device import DEFAULT_DEADLINE_S
from atomr_mp.libraries.world import WorldSteps
from atomr_mp.made_world import MadeWorld
from atomr_mp.mapping.item_target import ItemTarget
from atomr_mp.pool import Pool
from atomr_mp.protocol.messages.devices import MethodInfo, WorldInfo, WorldState
from atomr_mp.protocol.world_names import OF_MADE_WORLD, OF_STEPS, OF_WORLD, SYNONYMS
from atomr_mp.world import World
from atomr_mp_workers.worlds.exchange.world import OwnWorld

FORWARD = MethodInfo("forward", ["x", "y"], idempotent=True, deadline_s=None, doc="")
SLOW = MethodInfo("slow", [], idempotent=True, deadline_s=7.0, doc="")
STREAM = MethodInfo("parts", [], idempotent=True, deadline_s=None, doc="", streams=True)
METHODS = {"Mlp.forward": FORWARD, "Mlp.slow": SLOW, "Mlp.parts": STREAM, "Other.one": FORWARD}


class FakeClient:
    """The parts of a client that a world uses. It keeps the calls."""

    pool, epoch, supervisor_pid, lost, forked = "pool", bytes(16), 1, None, False

    def __init__(self) -> None:
        self.worlds = KnownWorlds([WorldInfo(2, "tp", [1, 0], ["Mlp"])])
        self.methods = METHODS
        self.devices = [SimpleNamespace(admitted=True)]
        self.homes: dict[str, Any] = {}
        self.sent: list[tuple[str, object, dict[str, Any]]] = []
        self.heard: list[WorldInfo] = []

    def submit_gang(self, world: WorldInfo, method: str, arguments: object, **options: Any) -> str:
        """Keep a call."""
        assert world.number == 2
        self.sent.append((method, arguments, options))
        return "reply"

    def check(self) -> None:
        """The pool can be asked."""

    def read_session(self) -> None:
        """Nothing is new."""

    def wait_until(self, condition: Any, _timeout_s: float) -> bool:
        """Hear all news, and return whether the condition holds."""
        for each in self.heard:
            self.worlds.take(each)
        return bool(condition())


@pytest.fixture
def client() -> FakeClient:
    """Give a client."""
    return FakeClient()


@pytest.fixture
def tp(client: FakeClient) -> World:
    """Give its world."""
    return Pool(cast("Any", client), cast("Any", "run-dir")).world("tp")


def test_a_call_has_the_defaults_of_the_pool_s(tp: World, client: FakeClient) -> None:
    """The author's deadline, or the one of all; arguments by position, or all by name."""
    tp.call("Mlp.forward", 1, 2)
    tp.call("Mlp.slow", each=True, wait=True)
    tp.actor("Mlp", each=True, deadline_s=2).forward(1, y=3)
    plain = {"each": False, "deadline_s": DEFAULT_DEADLINE_S, "wait": None, "undeclared": None}
    assert client.sent == [
        ("Mlp.forward", (1, 2), plain),
        ("Mlp.slow", (), {"each": True, "deadline_s": 7.0, "wait": True, "undeclared": None}),
        ("Mlp.forward", {"x": 1, "y": 3}, {**plain, "each": True, "deadline_s": 2.0}),
    ]


def test_what_cannot_be_sent_is_refused(tp: World, client: FakeClient) -> None:
    """With the reason, and the way out where there is one."""
    with pytest.raises(errors.InvalidRequest, match=r"'Other.one' is not of the world tp; its actors are: Mlp"):
        tp.call("Other.one")
    with pytest.raises(errors.InvalidRequest, match=r"there is no request 'Mlp.forwrd'; did you mean Mlp.forward"):
        tp.call("Mlp.forwrd")
    with pytest.raises(errors.InvalidRequest, match="named by a text"):
        tp.call(cast("Any", 3))
    with pytest.raises(errors.InvalidRequest, match=r"open it with World\.stream"):
        tp.call("Mlp.parts")
    with pytest.raises(errors.WrongArgument, match="no argument x, which is one of Mlp"):
        tp.call("Mlp.forward", **cast("Any", {"x": 1}))
    with pytest.raises(errors.InvalidRequest, match="deadline_s"):
        tp.call("Mlp.forward", deadline_s=-1)
    with pytest.raises(errors.InvalidRequest, match="not of the world tp"):
        tp.actor("Other")
    with pytest.raises(AttributeError, match="has no request 'backward'"):
        tp.actor("Mlp").backward  # noqa: B018 - asks for it
    with pytest.raises(errors.NotPicklable):
        pickle.dumps(tp)
    assert not client.sent


def test_it_shows_the_latest_news(tp: World, client: FakeClient) -> None:
    """Its name and devices never change; its state and epoch do."""
    assert (tp.name, tp.devices, tp.size, tp.actors) == ("tp", (1, 0), 2, ("Mlp",))
    client.worlds.take(WorldInfo(2, "tp", [1, 0], ["Mlp"], WorldState.READY, 5, [1, 1]))
    assert (tp.state, tp.epoch) == ("ready", 5)
    assert repr(tp) == "<World tp of pool pool: ready, epoch 5>"


def test_a_wait_ends_with_the_world_s_state(tp: World, client: FakeClient) -> None:
    """Ready, closed, or too late, with the supervisor's reason."""
    client.heard = [WorldInfo(2, "tp", [1, 0], ["Mlp"], WorldState.WAITING, 1, reason="rank 1 starts")]
    with pytest.raises(TimeoutError, match="it is waiting: rank 1 starts"):
        tp.wait_ready(0.1)
    client.heard = [WorldInfo(2, "tp", [1, 0], ["Mlp"], WorldState.READY, 1, [1, 1])]
    tp.wait_ready(0.1)
    client.heard = [WorldInfo(2, "tp", [1, 0], ["Mlp"], WorldState.ENDED, 1, reason="the pool stops")]
    with pytest.raises(errors.DeviceUnavailable, match="the world tp is closed: the pool stops"):
        tp.wait_ready(0.1)


def test_a_world_is_found_by_its_name(client: FakeClient) -> None:
    """Also by a remote client; there is no world of another name."""
    assert Pool(cast("Any", client)).world("tp").size == 2
    with pytest.raises(errors.InvalidRequest, match="this pool's worlds are: tp"):
        Pool(cast("Any", client), cast("Any", "run-dir")).world("pt")


def test_an_ordinary_reference_to_a_world_s_actor_is_refused(client: FakeClient) -> None:
    """Before anything is read or sent; `Client.submit` refuses calls."""
    pool = Pool(cast("Any", client), cast("Any", "run-dir"))
    with pytest.raises(errors.InvalidRequest, match=r"Mlp belongs to the world tp: call pool.world\('tp'\)"):
        pool.actor("Mlp")


def test_each_way_to_call_a_world_s_method_names_the_right_one(client: FakeClient) -> None:
    """In one step, whichever was tried: none leads to another that refuses it too."""
    pool = Pool(cast("Any", client), cast("Any", "run-dir"))
    with pytest.raises(errors.InvalidRequest, match=r"returns one result: use pool.world\('tp'\).call"):
        pool.stream("Mlp.forward")
    with pytest.raises(errors.InvalidRequest, match=r"returns one result: use Pool.call"):
        pool.stream("Other.one")
    worlds = client.worlds
    for asked, how in (("Mlp.forward", "call("), ("Mlp.parts", "stream("), ("Mlp", "actor('Mlp')")):
        with pytest.raises(errors.InvalidRequest, match=re.escape(f"call pool.world('tp').{how}")):
            worlds.refuse(asked, METHODS)


def test_what_a_world_lacks_is_told_with_what_does_the_same(tp: World) -> None:
    """Of all kinds of worlds; any other name is Python's own error, and `hasattr` works."""
    made, steps, own = MadeWorld.__new__(MadeWorld), WorldSteps.__new__(WorldSteps), OwnWorld("tp", 0, 2)
    for world, name, instead in (
        (tp, "all_reduce", r"context\.world\.all_reduce\(…\)`"),
        (tp, "barrier", r"pool\.world\(\[0, 1\]\)"),
        (tp, "map", r"`pool\.map\(\"Actor\.method\", items\)`"),
        (made, "call", r"no actors.* `pool\.world\(\"NAME\"\)\.call\(…\)`"),
        (made, "rank", r"world\.devices"),
        (steps, "barrier", "needs none: each collective"),
        (steps, "all_to_all_v", "fixed shapes: use `all_to_all`"),
        (own, "send", "`sendrecv`"),
    ):
        with pytest.raises(AttributeError, match=f"has no `{name}`: .*{instead}"):
            getattr(world, name)
    for world in (tp, made, steps, own):
        assert not hasattr(world, "nothing_like_it")
        assert not hasattr(world, "__nothing__")
    for names, owner in ((OF_WORLD, World), (OF_MADE_WORLD, MadeWorld), (OF_STEPS, WorldSteps), (SYNONYMS, OwnWorld)):
        assert not [name for name in names if hasattr(owner, name)], "they are there"
    with pytest.raises(AttributeError, match="'World' object has no attribute 'nothing'"):
        getattr(tp, "nothing")  # noqa: B009 - as the type checker sees no such name


def test_a_map_s_items_go_to_the_world(client: FakeClient) -> None:
    """As its calls, with the map's own count of attempts; only those of its actors."""
    target = ItemTarget(cast("Any", client), "Mlp.forward", 5.0, 0)
    assert target.takers == 1
    target.send(7, replays=3, wait=False)
    assert client.sent == [
        ("Mlp.forward", (7,), {"each": False, "deadline_s": 5.0, "wait": False, "replays": 3}),
    ]
    worlds = client.worlds
    worlds.check_priority("Mlp.forward", 0)
    worlds.check_priority("Other.one", 3)
    with pytest.raises(errors.InvalidRequest, match=r"Mlp\.forward belongs to the world tp, whose calls"):
        worlds.check_priority("Mlp.forward", 3)


def test_a_pool_knows_the_world_of_a_method(client: FakeClient) -> None:
    """By its actor; a world refuses priorities for HTTP, too."""
    pool = Pool(cast("Any", client), cast("Any", "run-dir"))
    found = pool.world_of("Mlp.forward")
    assert found is not None
    assert found.name == "tp"
    assert pool.world_of("Other.one") is None
    assert [world.name for world in pool.worlds] == ["tp"]
    found.check_priority("Mlp.forward", 0)
    with pytest.raises(errors.InvalidRequest, match="in the order in which they come"):
        found.check_priority("Mlp.forward", 1)
