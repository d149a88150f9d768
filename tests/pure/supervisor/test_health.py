"""What is done about what the driver reports of a GPU, and how it is asked."""

from __future__ import annotations

import inspect
import sys
from typing import Final

import pynvml
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atomr_mp.process.gpus.health import LINK_KINDS, Monitor
from atomr_mp.protocol.messages.health import (
    FROM_HEALTH,
    MAX_PROCESSES,
    FromHealth,
    GpuLink,
    GpuMemory,
    GpuProcess,
    GpuState,
    XidSeen,
)
from atomr_mp.supervision.health import RECOVERY, WELL_LOOKS, XIDS, GpuHealth, Measure
from atomr_mp.supervisor.care.health import PACKET_BYTES
from tests.fakes import fake_nvml
from tests.fakes.fake_nvml import Card, FakeNvml

COUNTS: Final = st.integers(0, 2**32 - 1)

OUT: Final = {Measure.QUARANTINE, Measure.RETIRE}

reports = st.builds(XidSeen, st.just(0), st.sampled_from([*XIDS, 7, 999])) | st.builds(
    GpuState, st.just(0), st.booleans(), st.none() | st.integers(0, 9), st.none() | st.integers(0, 3)
)


def measures(*told: XidSeen | GpuState) -> list[Measure | None]:
    """Return what is done about each report of a GPU."""
    health = GpuHealth()
    return [judgement and judgement.measure for judgement in map(health.take, told)]


@given(st.lists(reports, max_size=40))
def test_a_gpu_comes_back_once_after_it_went_out_and_only_when_it_is_well(told: list[XidSeen | GpuState]) -> None:
    """Found so several times in a row; and whatever is reported has an answer."""
    out = False
    well = 0
    for report, measure in zip(told, measures(*told), strict=True):
        if isinstance(report, GpuState):
            well = well + 1 if not report.lost and not report.recovery else 0
        if measure is Measure.RECOVER:
            assert out
            assert well >= WELL_LOOKS
            out = False
        elif measure in OUT:
            out, well = True, 0


def test_errors_of_a_process_are_noted_and_no_more() -> None:
    """It finds out by itself, and is replaced for that: nothing is done twice."""
    assert measures(*(XidSeen(0, xid) for xid in (13, 31, 43, 45, 94))) == [
        *(Measure.RESTART, Measure.RESTART, Measure.NOTE, Measure.NOTE, Measure.RESTART)
    ]
    assert measures(XidSeen(0, 12345)) == [Measure.NOTE]


def test_where_the_driver_says_what_to_do_that_decides() -> None:
    """For the errors for which it does; the others, and older drivers, have their row."""
    fell_off, system_processor = XidSeen(0, 79), XidSeen(0, 119)
    assert measures(fell_off, system_processor) == [Measure.QUARANTINE] * 2
    told = measures(GpuState(0, recovery=0), fell_off, system_processor, GpuState(0, recovery=2))
    assert told == [None, Measure.NOTE, Measure.QUARANTINE, Measure.QUARANTINE]


@pytest.mark.parametrize("action", RECOVERY)
def test_each_recovery_action_is_answered_once(action: int) -> None:
    """As long as it does not change."""
    state = GpuState(0, recovery=action)
    assert measures(state, state, state) == [RECOVERY[action].measure, None, None]
    assert measures(GpuState(0, recovery=200)) == [Measure.NOTE]


def test_a_lost_gpu_is_out_until_it_is_found_well() -> None:
    """Several times in a row, for a reset takes its time."""
    lost, well = GpuState(0, lost=True), GpuState(0, recovery=0)
    told = measures(well, lost, lost, well, lost, well, *[well] * WELL_LOOKS)
    assert told == [None, Measure.QUARANTINE, None, None, Measure.QUARANTINE, None, None, Measure.RECOVER, None]


def test_memory_errors_are_noted_as_they_come() -> None:
    """What they mean, an Xid or the recovery action says."""
    assert measures(*(GpuState(0, uncorrected=count) for count in (3, 3, 4))) == [None, None, Measure.NOTE]


@given(reports | st.builds(GpuMemory, st.just(0), st.lists(st.builds(GpuProcess, COUNTS, COUNTS), max_size=9)))
def test_reports_survive_the_channel(report: FromHealth) -> None:
    """Between the process that asks and the supervisor."""
    assert FROM_HEALTH.decode(FROM_HEALTH.encode(report)) == report


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    """Stand in for NVML."""
    made = FakeNvml(Card("GPU-aa"), Card("GPU-bb", recovery=None, uncorrected=None))
    monkeypatch.setitem(sys.modules, "pynvml", made)
    return made


def test_the_monitor_tells_whom_an_error_concerns(driver: FakeNvml) -> None:
    """By the GPU's UUID; what is no error with a number only has the states looked at."""
    first, second = driver.cards
    with Monitor({4: "GPU-bb", 5: "GPU-aa"}) as monitor:
        assert monitor.wait(1.0) == []
        driver.events.append((second, driver.nvmlEventTypeXidCriticalError, 31, 0xFFFFFFFF))
        driver.events.append((first, driver.nvmlEventTypeGpuRecoveryAction, 1, 0xFFFFFFFF))
        assert monitor.wait(1.0) == [XidSeen(4, 31)]
        assert monitor.wait(1.0) == []
        first.recovery, first.uncorrected = 4, 2
        assert list(monitor.states()) == [GpuState(4), GpuState(5, recovery=4, uncorrected=2)]
        first.lost = True
        assert list(monitor.states()) == [GpuState(4), GpuState(5, lost=True)]
    assert driver.registered == dict.fromkeys(("GPU-aa", "GPU-bb"), 0x8008), "no more than the GPU can tell"
    assert driver.inits == 0, "it holds the GPUs"


def test_the_monitor_tells_how_gpus_reach_each_other(driver: FakeNvml) -> None:
    """By pair, the lower position first; not of a lost GPU, a slice, or where the driver does not tell."""
    first, second = driver.cards
    with Monitor({4: "GPU-bb", 5: "GPU-aa"}) as monitor:
        assert list(monitor.links()) == [GpuLink(4, 5, access=True, nvlink=True)]
        second.reaches = frozenset({0, 1})
        assert list(monitor.links()) == [GpuLink(4, 5, access=True, nvlink=False)]
        second.reaches = frozenset({0})
        assert list(monitor.links()) == [GpuLink(4, 5, access=False, nvlink=False)]
        second.reaches = None
        assert list(monitor.links()) == []
        second.reaches, first.lost = frozenset(), True
        assert list(monitor.links()) == []


def test_a_gpu_that_is_lost_from_the_start_is_told(driver: FakeNvml) -> None:
    """The others are watched."""
    driver.cards[0].lost = True
    with Monitor({0: "GPU-aa", 1: "GPU-bb"}) as monitor:
        assert list(monitor.states()) == [GpuState(0, lost=True), GpuState(1)]


def test_a_gpu_that_is_lost_while_they_are_looked_up_is_told(driver: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    """As one that is lost earlier or later."""

    def supported(card: Card) -> int:
        card.lost = card is driver.cards[0]
        return 0x8008

    monkeypatch.setattr(driver, "nvmlDeviceGetSupportedEventTypes", supported)
    with Monitor({0: "GPU-aa", 1: "GPU-bb"}) as monitor:
        assert list(monitor.states()) == [GpuState(0, lost=True), GpuState(1)]


def test_a_slice_is_told_of_its_own_errors_and_those_of_the_whole_gpu(driver: FakeNvml) -> None:
    """The events are the GPU's."""
    gpu = Card("GPU-cc")
    slices = tuple(Card(f"MIG-{n}", gpu=gpu, instance=n) for n in (1, 2))
    gpu.slices = slices
    driver.cards = (gpu,)
    with Monitor({0: "MIG-1", 1: "MIG-2"}) as monitor:
        for instance in (2, 0xFFFFFFFF):
            driver.events.append((gpu, driver.nvmlEventTypeXidCriticalError, 13, instance))
        assert monitor.wait(1.0) == [XidSeen(1, 13)]
        assert monitor.wait(1.0) == [XidSeen(0, 13), XidSeen(1, 13)]


def test_what_processes_take_is_told_as_far_as_the_driver_does(driver: FakeNvml) -> None:
    """Of the slice, where that is the device; the largest first, and no more than a packet holds."""
    first, second = driver.cards
    first.pids, first.taken = (10, 11, 12), {10: 5, 12: 7}
    second.pids = None
    small = Card("MIG-1", pids=(13,), taken={13: 9}, gpu=first)
    first.slices = (small,)
    with Monitor({0: "GPU-aa", 1: "GPU-bb", 2: "MIG-1"}) as monitor:
        assert list(monitor.memory()) == [
            GpuMemory(0, [GpuProcess(12, 7), GpuProcess(10, 5)]),
            GpuMemory(1, []),
            GpuMemory(2, [GpuProcess(13, 9)]),
        ]
        first.pids = tuple(range(1, 1000))
        first.taken = {pid: 2**62 + pid for pid in first.pids}
        told = next(monitor.memory())
        assert [each.pid for each in told.processes] == list(range(999, 999 - MAX_PROCESSES, -1))
        assert len(FROM_HEALTH.encode(told)) < PACKET_BYTES


def test_an_error_of_the_driver_is_raised(driver: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process ends, and the next one begins anew."""

    def fail(*_: object) -> None:
        raise fake_nvml.NVMLError(fake_nvml.UNKNOWN)

    with Monitor({0: "GPU-aa"}) as monitor:
        monkeypatch.setattr(driver, "nvmlEventSetWait_v2", fail)
        with pytest.raises(fake_nvml.NVMLError):
            monitor.wait(1.0)


def test_the_stand_in_is_as_nvidia_s_own_module() -> None:
    """Its names are there, its numbers are the same, and its functions take what those do."""
    for name, value in vars(FakeNvml).items():
        if not name.lower().startswith("nvml"):
            continue
        real = getattr(pynvml, name)
        if isinstance(value, int):
            assert real == value, name
        elif callable(value) and not isinstance(value, type):
            inspect.signature(real).bind(*[None] * (len(inspect.signature(value).parameters) - 1))
    assert pynvml.NVML_P2P_STATUS_OK == 0
    assert LINK_KINDS[1] == pynvml.NVML_P2P_CAPS_INDEX_WRITE
    assert LINK_KINDS[2] == pynvml.NVML_P2P_CAPS_INDEX_NVLINK
