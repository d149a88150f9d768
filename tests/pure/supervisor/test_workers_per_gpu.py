"""Several devices of one GPU in a plan: their numbers, their shares, what is refused; and which actors they have."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atomr_mp import errors
from atomr_mp.process.gpus import hardware
from atomr_mp.protocol.codec import MAX_DEVICES
from atomr_mp.protocol.messages.devices import ActorInfo, DeviceInfo, DeviceState, MethodInfo
from atomr_mp.protocol.words import device_words
from atomr_mp.startup import planning
from atomr_mp.startup.config import actor_specs, gather
from atomr_mp.startup.device_lists import devices_in, text_of
from atomr_mp.startup.planning import make_plan
from atomr_mp.supervision.actor_homes import KnownActors, actors_of_pool
from atomr_mp.supervision.placement import ComputeMode, Gpu, check_workers, places
from atomr_mp.supervision.settings import PoolSettings
from atomr_mp.supervisor.plan import Plan, merged
from tests.fakes.fake_nvml import GIB, Card, FakeNvml

workers = st.integers(1, 8)

gpus = st.integers(1, 8)

some_devices = st.lists(st.integers(0, MAX_DEVICES - 1), min_size=1)


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeNvml:
    """A machine with two GPUs, one of them larger."""
    fake = FakeNvml(Card("GPU-aa11", memory_bytes=80 * GIB), Card("GPU-bb22", memory_bytes=40 * GIB))
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    monkeypatch.setattr(planning, "nvidia_hardware", lambda: "2 GPUs")
    monkeypatch.setattr(hardware, "nvidia_hardware", lambda: "2 GPUs")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    (tmp_path / "cupy.py").write_text("raise AssertionError('CuPy was imported')")
    monkeypatch.syspath_prepend(tmp_path)
    return fake


# --- numbers and shares ----------------------------------------------------------------------------------------------


@given(gpus, workers)
def test_a_device_is_its_gpu_times_the_workers_of_each_and_its_own_number(gpus: int, workers: int) -> None:
    """Each place once; the devices of a GPU are neighbours."""
    found = places(gpus, workers)
    assert [place.gpu * workers + place.worker for place in found] == list(range(gpus * workers))
    assert all(0 <= place.worker < workers for place in found)


@given(gpus, workers)
def test_the_host_s_devices_have_the_same_places_and_together_no_more_memory(gpus: int, workers: int) -> None:
    """As the same number of devices with one for each would have."""
    plan = make_plan(PoolSettings(backend="host", gpus=str(gpus), workers_per_gpu=workers))
    one_each = make_plan(PoolSettings(backend="host", gpus=str(gpus * workers)))
    assert [(each.index, each.gpu, each.worker) for each in plan.devices] == [
        (index, *place) for index, place in enumerate(places(gpus, workers))
    ]
    assert [each.name for each in plan.devices] == [f"host:{each.gpu}" for each in plan.devices]
    assert [each.execution for each in plan.devices] == [each.execution for each in one_each.devices]


@pytest.mark.usefixtures("driver")
@pytest.mark.parametrize("workers", [1, 2, 3, 7])
def test_the_devices_of_a_gpu_share_its_memory(workers: int) -> None:
    """Each GPU's own, to the byte; they see the GPU first, and each other GPU once. What is set is of each device."""
    plan = make_plan(PoolSettings(workers_per_gpu=workers))
    whole = {each.uuid: each.execution.memory_bytes for each in make_plan(PoolSettings()).devices}
    for uuid, nbytes in whole.items():
        own = [each for each in plan.devices if each.uuid == uuid]
        assert len(own) == workers
        assert nbytes - workers < sum(each.execution.memory_bytes for each in own) <= nbytes
        other = next(each for each in whole if each != uuid)
        assert {each.environment["CUDA_VISIBLE_DEVICES"] for each in own} == {f"{uuid},{other}"}
    given = make_plan(PoolSettings(workers_per_gpu=workers, memory_bytes=7)).devices
    assert {each.execution.memory_bytes for each in given} == {7}
    assert [each.uuid for each in plan.devices] == ["GPU-aa11"] * workers + ["GPU-bb22"] * workers


@pytest.mark.parametrize(("gpus", "workers"), [("1", 65), ("2", 33), ("64", 2), ("33", 2)])
def test_more_devices_than_a_pool_can_have_are_refused(gpus: str, workers: int) -> None:
    """With the number that it would be."""
    with pytest.raises(errors.ConfigurationError, match="64"):
        make_plan(gather(None, {"backend": "host", "gpus": gpus, "workers_per_gpu": workers}).settings)


@given(workers, st.sampled_from(ComputeMode))
def test_a_gpu_that_admits_one_process_has_one_worker(workers: int, mode: ComputeMode) -> None:
    """The refusal says which mode it is, and how to change it."""
    gpu = Gpu(uuid="GPU-aa11", name="H100", compute_mode=mode)
    exclusive = mode in {ComputeMode.EXCLUSIVE_PROCESS, ComputeMode.EXCLUSIVE_THREAD}
    if workers == 1 or not exclusive:
        check_workers(gpu, workers)
        return
    with pytest.raises(errors.ConfigurationError, match=rf"workers_per_gpu = {workers}: .* one process only .* -c DEF"):
        check_workers(gpu, workers)


def test_a_plan_for_a_gpu_in_exclusive_mode_is_refused(driver: FakeNvml) -> None:
    """As the driver tells it; with one worker it is none the worse."""
    driver.cards[1].mode = ComputeMode.EXCLUSIVE_PROCESS
    with pytest.raises(errors.ConfigurationError, match=r"workers_per_gpu = 2: .* GPU-bb22 admits one process only"):
        make_plan(PoolSettings(workers_per_gpu=2))
    assert len(make_plan(PoolSettings(workers_per_gpu=2, gpus="0,")).devices) == 2
    assert len(make_plan(PoolSettings()).devices) == 2


# --- words -----------------------------------------------------------------------------------------------------------


@given(gpus, workers)
def test_a_device_is_named_with_its_gpu_where_that_has_another_number(gpus: int, workers: int) -> None:
    """In plans, to clients and in events alike; with one worker for each GPU the index says all."""
    for plan in make_plan(PoolSettings(backend="host", gpus=str(gpus), workers_per_gpu=workers)).devices:
        info = DeviceInfo(plan.index, plan.name, DeviceState.READY, 1, "", True, 1, 0, "")
        info = msgspec.structs.replace(info, gpu=plan.gpu, worker=plan.worker, workers_per_gpu=workers)
        place = f" (GPU {plan.gpu}, worker {plan.worker})" if workers > 1 else ""
        assert info.title == plan.title == f"device {plan.index}{place}"
        assert device_words({**plan.facts, "generation": 3}) == f"device {plan.index}{place} generation 3"


# --- reload ----------------------------------------------------------------------------------------------------------


def plan_of(**settings: Any) -> Plan:
    """Return the plan of settings on the host."""
    return make_plan(PoolSettings(backend="host", run_dir="/tmp/none", **settings))


def test_a_reload_names_the_setting_that_needs_a_restart() -> None:
    """And adopts the rest."""
    old = plan_of(gpus="2", workers_per_gpu=2, memory_bytes=7)
    assert merged(old, plan_of(gpus="2", workers_per_gpu=2, memory_bytes=8))[1] == []
    for settings, pending in (
        ({"gpus": "2", "workers_per_gpu": 3}, ["workers_per_gpu"]),
        ({"gpus": "3", "workers_per_gpu": 2}, ["gpus"]),
        ({"gpus": "4"}, ["gpus", "workers_per_gpu"]),
        ({"gpus": "2", "workers_per_gpu": 2, "window_requests": 9}, ["window_requests"]),
    ):
        plan, names = merged(old, plan_of(**settings, memory_bytes=7, max_restarts=9))
        assert names == pending
        assert (plan.devices, plan.settings.max_restarts) == (old.devices, 9)


# --- actors' devices -------------------------------------------------------------------------------------------------


@given(some_devices)
def test_devices_are_read_as_they_are_written(devices: list[int]) -> None:
    """Each once, in order."""
    assert devices_in("A", text_of(devices)) == tuple(sorted(set(devices)))


@given(st.text("0123456789+-, x", max_size=6))
def test_a_text_names_devices_or_is_refused(text: str) -> None:
    """What is not refused is a list of devices, in order; written again, it names the same."""
    with contextlib.suppress(errors.ConfigurationError):
        found = devices_in("a.py:A", text)
        assert found == tuple(sorted(set(found) & set(range(MAX_DEVICES))))
        assert devices_in("a.py:A", text_of(found)) == found


@pytest.mark.parametrize(
    ("text", "devices"), [("0", (0,)), ("0+1", (0, 1)), ("2-4", (2, 3, 4)), ("5+0-1", (0, 1, 5)), ("3+3", (3,))]
)
def test_an_actor_s_devices_are_behind_its_class(text: str, devices: tuple[int, ...]) -> None:
    """Whatever is in front: a name, or a path that has the sign too."""
    (spec,) = actor_specs([f"Other=package.module:Class@{text}"])
    assert (spec.name, spec.target, spec.devices) == ("Other", "package.module:Class", devices)


@pytest.mark.parametrize("text", ["", "+", "1-0", "64", "0-64", "-1", "0,1", "a", "0+", "1-", "٣"])
def test_impossible_devices_are_refused(text: str) -> None:
    """The error names the actor."""
    with pytest.raises(errors.ConfigurationError, match=r"package\.module:Class@"):
        actor_specs([f"package.module:Class@{text}"])


@pytest.mark.parametrize("devices", [[], [-1], [64], [True], ["0"], [0.5]])
def test_a_program_s_devices_are_checked_as_well(devices: list[Any]) -> None:
    """Before anything is started."""
    with pytest.raises(errors.InvalidRequest, match="devices"):
        text_of(devices)


def test_a_plan_refuses_actors_for_devices_that_it_does_not_have() -> None:
    """And a reload those that the running pool does not have, whatever the new settings would start."""
    with pytest.raises(
        errors.ConfigurationError, match=r"actor C is for devices 1 and 2, and there is no device 2: .* 2 "
    ):
        plan_of(actors=["a.b:C@1+2"], gpus="2")
    new = plan_of(actors=["a.b:C@1+2"], gpus="1", workers_per_gpu=3)
    assert [actor.name for device in range(3) for actor in new.actors_on(device)] == ["C", "C"]
    with pytest.raises(errors.ConfigurationError, match="there is no device 2"):
        merged(plan_of(gpus="2"), new)


NAMES: Final = ("A", "B", "C")


def told(name: str, version: int = 0) -> ActorInfo:
    """Return what a worker tells of an actor."""
    return ActorInfo(name, [MethodInfo("run", [], idempotent=bool(version), deadline_s=None, doc="")])


known = st.builds(
    lambda names, ready: KnownActors(names, [told(name) for name in names] if ready else []),
    st.lists(st.sampled_from(NAMES), unique=True).map(sorted),
    st.booleans(),
)


@given(st.lists(known, min_size=1, max_size=4), st.data())
def test_a_client_is_told_each_actor_once_with_exactly_the_devices_that_have_it(
    devices: list[KnownActors], data: st.DataObject
) -> None:
    """None stands for all; the methods are known as soon as any of its devices has been ready."""
    latest = data.draw(st.integers(0, len(devices) - 1))
    found = actors_of_pool(devices, latest)
    assert [actor.name for actor in found] == list(dict.fromkeys(name for each in devices for name in each.names))
    everywhere = list(range(len(devices)))
    for actor in found:
        where = [index for index in everywhere if actor.name in devices[index].names]
        assert (actor.devices or everywhere) == where
        assert bool(actor.methods) == any(devices[index].infos for index in where)


def test_the_latest_worker_describes_an_actor() -> None:
    """While a reload replaces one after the other."""
    devices = [KnownActors(["A"], [told("A", version)]) for version in (0, 1)]
    assert actors_of_pool(devices, 1) == [told("A", 1)]
    assert actors_of_pool(devices, 0) == [told("A", 0)]
