"""Worlds in a pool's settings: what a plan makes of them, what is refused and in which words, what a reload keeps."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from atomr_mp import errors
from atomr_mp.process.gpus import hardware
from atomr_mp.protocol.messages.control import ActorSpec
from atomr_mp.startup import planning
from atomr_mp.startup.config import actor_specs, gather
from atomr_mp.startup.planning import check, make_plan
from atomr_mp.startup.world_settings import plain_worlds
from atomr_mp.supervision.settings import PoolSettings, WorldSettings
from atomr_mp.supervisor.plan import Plan, WorldPlan, merged, plan_worlds
from tests.fakes.fake_nvml import GIB, Card, FakeNvml

TP = {"devices": [0, 1], "actors": ["Mlp"]}

ACTORS = ["models:Mlp", "models:Other"]


def plan_of(worlds: Any, **settings: Any) -> Plan:
    """Return the plan of a pool of two devices with two actors."""
    given = {"backend": "host", "gpus": "2", "actors": ACTORS, "worlds": worlds, **settings}
    return make_plan(gather(None, given, {}).settings)


def refused(worlds: Any, **settings: Any) -> str:
    """Return why such worlds are refused."""
    with pytest.raises(errors.ConfigurationError) as raised:
        plan_of(worlds, **settings)
    return raised.value.message


def test_worlds_are_numbered_as_they_are_given_and_their_actors_run_there_alone() -> None:
    """Ranks are in the order of the devices; other actors keep theirs. The plan crosses to the supervisor."""
    plan = plan_of(
        {"tp": {**TP, "devices": [1, 0], "begin_timeout_s": 2}, "one.2": {"devices": [1], "actors": ["Other"]}}
    )
    assert plan.worlds == [WorldPlan(0, "tp", [1, 0], ["Mlp"], 2.0), WorldPlan(1, "one.2", [1], ["Other"], 10.0)]
    assert [actor.devices for actor in plan.actors] == [(0, 1), (1,)]
    assert msgspec.json.decode(plan.encoded(), type=Plan) == plan
    assert plan_of({"tp": TP}, actors=["models:Mlp@0-1", "models:Other"]).actors[0].devices == (0, 1)
    assert plan_of({"tp": TP}).actors[1].devices == ()
    assert plan_of({}).worlds == []


@pytest.mark.parametrize(
    ("worlds", "why"),
    [
        ([TP], "worlds is [{'devices': [0, 1], 'actors': ['Mlp']}]; give each world by its name"),
        ({3: TP}, "3 is no name for a world"),
        ({"tp": [0, 1]}, "world 'tp' is [0, 1]; it needs devices and actors"),
        ({"tp": {"actors": ["Mlp"]}}, "world 'tp' has no devices; give a list of indices of devices"),
        ({"tp": {"devices": [], "actors": ["Mlp"]}}, "world 'tp' has no devices"),
        ({"tp": {"devices": [0], "actors": []}}, "world 'tp' has no actors; give a list of names of actors"),
        ({"tp": {**TP, "gpus": 2}}, "world 'tp': there is no setting 'gpus'"),
        ({"tp": {**TP, "device": [0]}}, "world 'tp': there is no setting 'device'; did you mean devices?"),
        ({"tp": {**TP, "devices": ["0"]}}, "world 'tp': devices is ['0']: Expected `int`"),
        ({"tp": {**TP, "devices": [64]}}, "world 'tp': devices is [64]"),
        ({"tp": {**TP, "actors": "Mlp"}}, "world 'tp': actors is 'Mlp'"),
        ({"tp": {**TP, "begin_timeout_s": 0}}, "world 'tp': begin_timeout_s is 0"),
        ({"tp": {**TP, "begin_timeout_s": 1e300}}, "world 'tp': begin_timeout_s must be a positive number"),
        ({"made-1": TP}, "'made-1' is no name for a world"),
        ({"": TP}, "'' is no name for a world"),
        ({".tp": TP}, "'.tp' is no name for a world"),
        ({"t p": TP}, "'t p' is no name for a world"),
        ({"t" * 65: TP}, "is no name for a world"),
        ({"tp": {**TP, "devices": [0, 1, 0]}}, "world 'tp' names device 0 twice"),
        ({"tp": {**TP, "actors": ["Mlp", "Mlp"]}}, "world 'tp' names actor Mlp twice"),
        (
            {"tp": {**TP, "devices": [0, 2]}},
            "world 'tp' is over devices 0 and 2, and there is no device 2: this pool has 2 devices, from 0 to 1",
        ),
        (
            {"tp": {**TP, "actors": ["Mpl"]}},
            "actor 'Mpl', which this pool does not have; did you mean Mlp? (its actors are Mlp, Other)",
        ),
        (
            {"tp": TP, "pp": {"devices": [1], "actors": ["Other", "Mlp"]}},
            "actor Mlp is in the worlds 'tp' and 'pp'; an actor is in one world at most",
        ),
        ({str(number): TP for number in range(65)}, "65 worlds are given; a pool has at most 64"),
    ],
)
def test_what_cannot_be_a_world_is_refused_in_the_caller_s_words(worlds: Any, why: str) -> None:
    """Before anything starts."""
    assert why in refused(worlds)


def test_an_actor_for_other_devices_than_its_world_s_is_refused() -> None:
    """Calls go to all devices of the world, and to no others."""
    why = "actor Mlp is for device 0, and its world 'tp' is over devices 0 and 1; leave out the devices of the actor"
    assert refused({"tp": TP}, actors=["models:Mlp@0", "models:Other"]) == why
    assert "it has no actors" in refused({"tp": TP}, actors=[])


def test_a_gpu_is_in_few_worlds(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says which is too much; also without a look at the machine. Members there have mailboxes."""
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml(Card("GPU-aa11", memory_bytes=80 * GIB)))
    monkeypatch.setattr(planning, "nvidia_hardware", lambda: "1 GPU")
    monkeypatch.setattr(hardware, "nvidia_hardware", lambda: "1 GPU")
    monkeypatch.setattr(planning, "_cuda_devices", lambda settings, _: planning._host_devices(settings))
    actors = [f"models:A{number}" for number in range(5)]
    worlds = {f"w{number}": {"devices": [number % 2, 2], "actors": [f"A{number}"]} for number in range(5)}
    few = {name: worlds[name] for name in list(worlds)[:4]}
    why = "world 'w4' is over device 2, which is in 4 other worlds, as many as may be on the cuda backend"
    for backend in ("cuda", "auto"):
        assert refused(worlds, backend=backend, actors=actors, gpus="3") == why
        plan = plan_of(few, backend=backend, actors=actors, gpus="3")
        assert [each.mailboxes for each in plan.worlds] == [True] * 4
    with pytest.raises(errors.ConfigurationError, match=why):
        check(gather(None, {"actors": actors, "worlds": worlds, "backend": "cuda"}, {}).settings)
    check(gather(None, {"actors": actors, "worlds": worlds}, {}).settings)
    assert not any(each.mailboxes for each in plan_of(worlds, actors=actors, gpus="3").worlds)


def test_nccl_is_for_gpus_alone() -> None:
    """Whoever leaves the choice open has it made by how the GPUs reach each other; spares go with NCCL."""
    actors = actor_specs(ACTORS)

    def engine_of(engine: Any, backend: str, *, reaches: bool = True) -> tuple[str, bool]:
        world = WorldSettings(devices=[0, 1], actors=["Mlp"], engine=engine, spares=True)
        (plan,), _ = plan_worlds({"tp": world}, actors, 2, backend, lambda _devices: reaches)
        return plan.engine, plan.spares

    assert engine_of("nccl", "cuda") == engine_of("auto", "cuda", reaches=False) == ("nccl", True)
    others = (("mailboxes", "cuda"), ("auto", "cuda"), ("auto", "host"))
    assert {engine_of(*each) for each in others} == {("mailboxes", False)}
    why = "world 'tp' has engine = \"nccl\", which is for GPUs, and the backend is host"
    assert why in refused({"tp": {**TP, "engine": "nccl"}})
    wrong = refused({"tp": {**TP, "engine": "ncl"}})
    assert "engine is 'ncl'; it must be one of mailboxes, nccl, auto" in wrong


@pytest.mark.parametrize(
    ("engine", "standby", "why"),
    [
        ("mailboxes", "hot", 'spares = true, which is for engine = "nccl" or "auto"'),
        ("nccl", "warm", 'spares = true, which is for standby = "hot", and the pool has standby = "warm"'),
        ("auto", "none", 'spares = true, which is for standby = "hot", and the pool has standby = "none"'),
        ("auto", "hot", ""),
    ],
)
def test_spares_without_what_they_are_for_are_refused(engine: Any, standby: Any, why: str) -> None:
    """They would be taken in silence, and no death be any cheaper."""
    world = WorldSettings(devices=[0, 1], actors=["Mlp"], engine=engine, spares=True)
    settings = PoolSettings(actors=ACTORS, worlds={"tp": world}, standby=standby)
    if not why:
        check(settings)
        return
    with pytest.raises(errors.ConfigurationError, match=re.escape(why)):
        check(settings)


def test_worlds_come_from_a_file_or_the_environment(tmp_path: Path) -> None:
    """As tables in the one, as JSON in the other; what comes first holds whole."""
    file = tmp_path / "pool.toml"
    file.write_text('actors = ["models:Mlp"]\n[worlds.tp]\ndevices = [0, 1]\nactors = ["Mlp"]\n', encoding="utf-8")
    tp = WorldSettings(devices=[0, 1], actors=["Mlp"])
    assert gather(file, {}, {}).settings.worlds == {"tp": tp}
    variable = {"ATOMR_MP_WORLDS": json.dumps({"pp": TP})}
    assert gather(file, {}, variable).settings.worlds == {"pp": tp}
    for text, why in (("tp", "is no JSON"), ('{"tp": 1}', "world 'tp' is 1")):
        with pytest.raises(errors.ConfigurationError, match=why):
            gather(None, {}, {"ATOMR_MP_WORLDS": text})
    file.write_text("[worlds.tp]\ndevices = [0, 1]\n", encoding="utf-8")
    with pytest.raises(errors.ConfigurationError, match=r"pool.toml: world 'tp' has no actors"):
        gather(file, {}, {})


def test_a_program_may_name_classes_and_ranges() -> None:
    """They become the names and lists of settings; what is none of these is left for the error."""

    class Mlp:
        """Stands for an actor."""

    given = {"tp": {"devices": range(2), "actors": (Mlp,)}}
    assert plain_worlds(given) == {"tp": TP}
    for other in ("tp", {"tp": 3}, {"tp": {"devices": 2, "actors": "Mlp"}}, {"tp": WorldSettings(**TP)}):  # type: ignore[arg-type]
        assert plain_worlds(other) == other


def test_a_running_pool_keeps_its_worlds() -> None:
    """A reload that changes them says that a restart is needed; other settings change."""
    old, new = plan_of({"tp": TP}), plan_of({"tp": {**TP, "devices": [0]}}, memory_bytes=9)
    plan, pending = merged(old, new)
    assert pending == ["worlds"]
    assert (plan.worlds, plan.settings.worlds) == (old.worlds, old.settings.worlds)
    assert plan.actors == [ActorSpec("Mlp", "models:Mlp", (0, 1), in_world=True), ActorSpec("Other", "models:Other")]
    assert plan.settings.memory_bytes == 9
    assert merged(old, plan_of({"tp": TP}, memory_bytes=9))[1] == []
    with pytest.raises(errors.ConfigurationError, match=r"actor Mlp is missing.* it is of world 'tp'"):
        merged(old, plan_of({}, actors=["models:Other"]))
