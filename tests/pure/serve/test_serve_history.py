from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from atomr_mp.process.gpus.nvml import GpuUsage
from atomr_mp.serve.method_figures import BUCKETS, CALL, DEVICE_CALL, MethodFigure
from atomr_mp.serve.values.results import encode_json
from atomr_mp.serve.watch.history import MOST_METHODS, STEP_S, STEPS, ChartHistory
from atomr_mp.serve.watch.shared_sample import SAMPLE_BYTES
from tests.pure.command.test_top import worker
from tests.pure.serve.test_serve_watch import IDLE

LONG = "M" * 200
"""About the longest name of a method."""


def figure(method: str, outcome: str, took_ns: list[int]) -> MethodFigure:
    """Return the figure of calls that took so long."""
    buckets = [0] * BUCKETS
    for each in took_ns:
        buckets[each.bit_length()] += 1
    return MethodFigure(CALL, method, outcome, buckets, sum(took_ns))


def test_a_point_has_what_came_since_the_last_one() -> None:
    """Rates a second, errors among them, and latencies of that time alone; a device's calls are not counted twice."""
    history = ChartHistory()
    before = [figure("A.m", "ok", [2**30] * 50)]
    history.record(1000.0, before, [], {})
    assert history.methods["A.m"].rate == []
    took = [figure("A.m", "ok", [2**30] * 50 + [2**20] * 99), figure("A.m", "actor_failed", [2**29])]
    history.record(1010.0, [*took, took[0]._replace(kind=DEVICE_CALL)], [], {})
    found = history.methods["A.m"]
    assert (found.rate, found.errors) == ([10.0], [0.1])
    assert 1.0 < (found.p50_ms[0] or 0) < 2.2
    history.record(1020.0, took, [], {})
    assert (found.rate[-1], found.p50_ms[-1], found.p99_ms[-1]) == (0.0, None, None)


def test_time_without_points_is_a_gap() -> None:
    """The rate after it is that of all the time since; a clock that is set back begins anew."""
    history = ChartHistory()
    history.record(1000.0, [], [], {})
    history.record(1010.0, [figure("A.m", "ok", [1] * 10)], [worker(0, IDLE)], {})
    history.record(1050.0, [figure("A.m", "ok", [1] * 50)], [], {})
    assert history.methods["A.m"].rate == [1.0, None, None, None, 1.0]
    assert history.devices["0"].memory_bytes[1:] == [None] * 4
    assert not history.is_due(1059.9)
    assert history.is_due(1060.0)
    assert history.is_due(500.0)
    history.record(500.0, [figure("A.m", "ok", [1] * 60)], [], {})
    assert history.methods["A.m"].rate[-1] == 1.0


def test_a_gpu_has_its_memory_and_how_busy_it_is() -> None:
    """A slice does not tell how busy it is."""
    history = ChartHistory()
    device = msgspec.structs.replace(worker(3, IDLE).device, uuid="GPU-1")
    history.record(10.0, [], [msgspec.structs.replace(worker(3, IDLE), device=device)], {"GPU-1": GpuUsage(0.5, 7, 9)})
    history.record(20.0, [], [msgspec.structs.replace(worker(3, IDLE), device=device)], {"GPU-1": GpuUsage(None, 8, 9)})
    found = history.devices["3"]
    assert (found.vram_bytes, found.vram_of_bytes, found.busy) == ([7.0, 8.0], 9, [0.5, None])


@given(
    st.lists(
        st.tuples(
            st.floats(-50, 3000),
            st.dictionaries(st.integers(0, 2 * MOST_METHODS), st.integers(1, 100), max_size=2 * MOST_METHODS),
            st.sets(st.integers(0, 5)),
        ),
        max_size=40,
    )
)
def test_whatever_is_recorded_the_history_is_bounded_and_true(
    steps: list[tuple[float, dict[int, int], set[int]]],
) -> None:
    """No series is longer than it may be, no rate is negative or higher than all calls, and it goes on elsewhere."""
    history, now_s, counts = ChartHistory(), 1000.0, dict[int, int]()
    for passed_s, more, devices in steps:
        history = msgspec.msgpack.decode(msgspec.msgpack.encode(history), type=ChartHistory)
        now_s = max(1.0, now_s + passed_s)
        for method, count in more.items():
            counts[method] = counts.get(method, 0) + count
        if not history.is_due(now_s):
            continue
        before_s = history.at_s
        figures = [figure(f"A.m{method}", "ok", [1] * count) for method, count in counts.items()]
        history.record(now_s, figures, [worker(index, IDLE) for index in devices], {})
        assert len(history.methods) <= MOST_METHODS
        for each in history.methods.values():
            assert {len(each.rate), len(each.errors), len(each.p50_ms), len(each.p99_ms)} == {len(each.rate)}
            assert len(each.rate) <= STEPS
            rate = each.rate[-1] if each.rate else None
            if rate is not None and before_s and now_s > before_s:
                assert 0 <= rate <= max(counts.values()) / (now_s - before_s) * 1.001
        assert all(len(each.memory_bytes) <= STEPS for each in history.devices.values())
    assert encode_json(history.shown())


def test_the_fullest_history_has_room_in_the_shared_memory() -> None:
    """With the longest names, the most methods and devices, and the most points."""
    history = ChartHistory()
    for step in range(STEPS + 2):
        counts = [step * 997] * BUCKETS
        figures = [MethodFigure(CALL, f"{LONG}{at}", "ok", counts, step) for at in range(2 * MOST_METHODS)]
        history.record(1000 + step * STEP_S, figures, [worker(at, IDLE) for at in range(64)], {})
    assert len(history.methods) == MOST_METHODS
    assert len(msgspec.msgpack.encode(history)) < SAMPLE_BYTES / 4
    assert {len(each.rate) for each in history.methods.values()} == {STEPS}
