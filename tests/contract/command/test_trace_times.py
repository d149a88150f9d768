"""The times of a trace: when a request's own code has run, whatever it has waited for before and after."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest

import atomr_mp
from tests.actors.counting import Count
from tests.actors.kerneled import SOURCE
from tests.contract.command.test_trace import Events, named, read, traced
from tests.support import ACTORS, DEADLINE_S, Ledger, settled

SERVED: Final = tuple(
    f"{ACTORS}/{file}"
    for file in ("batched.py:Batched", "awaiting.py:Awaiter", "counting.py:Counting", "kerneled.py:Kerneled")
)
HELD_S: Final = 0.3
"""How long tests hold up what others wait for: hundreds of times as long as these take."""


@pytest.fixture(scope="module")
def shared() -> Iterator[tuple[Ledger, atomr_mp.Pool]]:
    """A pool that the tests share, and its ledger."""
    with Ledger() as ledger, ledger.start(*SERVED, backend="host") as started:
        yield ledger, started


def is_traced(pool: atomr_mp.Pool) -> bool:
    """Return whether the pool is traced by now, by a call that uses no thread."""
    reply = pool.call("Batched.hold_on_loop", "", 0)
    reply.result()
    return reply.gpu_s is not None


def running(pool: atomr_mp.Pool) -> int:
    """Return how many requests run."""
    return pool.status().devices[0].running


def rows(events: Events) -> dict[tuple[int, int], str]:
    """Return the names of thread rows."""
    return {(each["pid"], each["tid"]): each["args"]["name"] for each in events if each["name"] == "thread_name"}


def unfinished(events: Events) -> Events:
    """Return the spans that are said not to have ended."""
    return [each for each in events if "unfinished" in each.get("args", {})]


def test_a_batch_behind_a_running_one_takes_its_own_time(shared: tuple[Ledger, atomr_mp.Pool], tmp_path: Path) -> None:
    """In replies and in the trace; there it is on the thread's one row, with the number of its items."""
    ledger, pool = shared
    with traced(pool, tmp_path / "t.json"), ledger.gate("batch") as gate:
        assert settled(lambda: is_traced(pool))
        first = pool.call("Batched.hold", gate.path, 0)
        gate.wait()
        behind = [pool.call("Batched.hold", "", n) for n in range(1, 9)]
        assert settled(lambda: running(pool) == 9)
        time.sleep(HELD_S)  # the duration is what is tested
        gate.open()
        assert [reply.result() for reply in (first, *behind)] == [[0], *[list(range(1, 9))] * 8]
        assert (first.gpu_s or 0) >= HELD_S
        assert {0 < (reply.gpu_s or 0) < HELD_S / 2 for reply in behind} == {True}
    events, facts = read(tmp_path / "t.json")
    one, eight = named(events, "Batched.hold")
    assert one["ts"] + one["dur"] <= eight["ts"]
    assert eight["dur"] < HELD_S / 2 * 1e6
    assert (one["tid"], "items" in one["args"], eight["args"]["items"]) == (eight["tid"], False, 8)
    assert max(call["args"]["wait_us"] for call in named(events, "Batched.hold", client=True)) > HELD_S * 1e6
    assert not [name for (pid, _), name in rows(events).items() if pid == 1 and "·" in name]
    assert (facts["unmatched"], unfinished(events)) == (0, [])


@pytest.mark.parametrize("method", ["blas.gemm", "kernels.launch"])
def test_work_that_has_ended_before_the_loop_takes_it_back_has_ended_then(
    shared: tuple[Ledger, atomr_mp.Pool], tmp_path: Path, method: str
) -> None:
    """A method that holds up the loop is no part of what others take."""
    ledger, pool = shared
    device = pool.device(0)
    x, target = device.put(np.ones((300, 300))), device.put(np.ones(2**20, "float32"))  # too large for the loop itself
    module = device.kernels.compile(SOURCE).result(DEADLINE_S)
    with traced(pool, tmp_path / "t.json"), ledger.gate(f"loop-{method}") as gate:
        assert settled(lambda: is_traced(pool))
        reply: atomr_mp.Reply
        if method == "blas.gemm":
            reply = device.blas.gemm(x, x)
        else:
            reply = module["wait"](target, 20, grid=1, block=1, inout=target)
        held = pool.call("Batched.hold_on_loop", gate.path, 0)
        gate.wait()
        time.sleep(HELD_S)  # the duration is what is tested
        gate.open()
        held.result()
        reply.result()
        assert 0 < (reply.gpu_s or 0) < HELD_S / 2
    events, _ = read(tmp_path / "t.json")
    (run,) = named(events, method)
    assert run["dur"] < HELD_S / 2 * 1e6


def test_a_thread_s_method_that_has_ended_before_the_loop_takes_it_back_has_ended_then(
    shared: tuple[Ledger, atomr_mp.Pool], tmp_path: Path
) -> None:
    """The call has its answer later, and lasts so long in its client's row."""
    ledger, pool = shared
    with traced(pool, tmp_path / "t.json"), ledger.gate("on thread") as own, ledger.gate("on loop") as gate:
        assert settled(lambda: is_traced(pool))
        reply = pool.call("Batched.hold_alone", own.path)
        own.wait()
        held = pool.call("Batched.hold_on_loop", gate.path, 0)
        gate.wait()
        own.open()
        time.sleep(HELD_S)  # the duration is what is tested
        gate.open()
        held.result()
        reply.result()
        assert 0 < (reply.gpu_s or 0) < HELD_S / 2
    events, _ = read(tmp_path / "t.json")
    (run,), (call,) = named(events, "Batched.hold_alone"), named(events, "Batched.hold_alone", client=True)
    assert run["dur"] < HELD_S / 2 * 1e6 < HELD_S * 1e6 <= call["dur"]


def test_what_runs_when_the_trace_begins_is_in_it(shared: tuple[Ledger, atomr_mp.Pool], tmp_path: Path) -> None:
    """From its begin to its end, with its time in its reply; also open streams, tasks, and batches that wait behind."""
    ledger, pool = shared
    with ledger.gate("early") as gate, ledger.gate("early task") as task_gate:
        begun_s = time.monotonic()
        thread = pool.call("Batched.hold_alone", gate.path)
        gate.wait()
        batch = [pool.call("Batched.hold", "", n) for n in range(8)]
        task = pool.call("Awaiter.at_a_time", task_gate.path)
        task_gate.wait()
        stream = iter(pool.stream("Counting.plain", 200))
        steps = [iter(pool.stream("Counting.together", Count(200))) for _ in range(2)]
        for each in (stream, *steps):
            next(each)
        with traced(pool, tmp_path / "t.json"):
            assert settled(lambda: is_traced(pool))
            time.sleep(HELD_S)  # the duration is what is tested
            gate.open()
            task_gate.open()
            thread.result()
            task.result()
            assert {len(reply.result()) for reply in batch} == {8}
            assert [list(each)[-1] for each in (stream, *steps)] == [199] * 3
    assert HELD_S <= (thread.gpu_s or 0) <= time.monotonic() - begun_s
    assert 0 < (batch[0].gpu_s or 0) < HELD_S / 2
    events, facts = read(tmp_path / "t.json")
    assert (facts["unmatched"], unfinished(events)) == (0, [])
    (run,) = named(events, "Batched.hold_alone")
    assert begun_s * 1e6 <= run["ts"] < facts["began_ns"] / 1000 < run["ts"] + run["dur"]
    assert [len(named(events, f"Counting.{name}")) for name in ("plain", "together")] == [1, 2]
    (run,) = named(events, "Awaiter.at_a_time")
    assert run["dur"] > HELD_S * 1e6
    (shared_run,) = named(events, "Batched.hold")
    assert shared_run["args"]["items"] == 8


def test_streams_end_and_leave_their_row_to_what_comes_then(
    shared: tuple[Ledger, atomr_mp.Pool], tmp_path: Path
) -> None:
    """Those of threads, of steps and of event loops."""
    _, pool = shared
    with traced(pool, tmp_path / "t.json"):
        assert settled(lambda: is_traced(pool))
        for _ in range(3):
            assert list(pool.stream("Counting.plain", 30))[-1] == 29
            assert list(pool.stream("Counting.together", Count(30)))[-1] == 29
            assert list(pool.stream("Awaiter.count", 30, 0.001))[-1] == 29
    events, facts = read(tmp_path / "t.json")
    assert (facts["unmatched"], unfinished(events)) == (0, [])
    for name in ("Counting.plain", "Counting.together", "Awaiter.count"):
        runs = named(events, name)
        assert (len(runs), len({run["tid"] for run in runs})) == (3, 1)
        assert max(run["ts"] for run in runs) > min(run["ts"] + run["dur"] for run in runs)


def test_tasks_have_no_time_and_a_copy_that_was_none_no_rate(
    shared: tuple[Ledger, atomr_mp.Pool], tmp_path: Path
) -> None:
    """A task works and waits by turns; `numpy` reads the worker's memory itself."""
    _, pool = shared
    x = pool.device(0).put(np.ones((300, 300)))
    with traced(pool, tmp_path / "t.json"):
        assert settled(lambda: is_traced(pool))
        reply = pool.call("Awaiter.add", 1, 2)
        assert reply.result() == 3
        assert reply.gpu_s is None
        assert x.numpy().sum() == 90_000
    events, _ = read(tmp_path / "t.json")
    assert len(named(events, "Awaiter.add")) == 1
    borrows = named(events, "memory.borrow")
    assert borrows
    assert not [each for each in borrows if "gbytes_per_s" in each["args"]]


def test_launches_and_steps_name_their_kernels_and_programs_tell_what_their_steps_do(
    shared: tuple[Ledger, atomr_mp.Pool], tmp_path: Path
) -> None:
    """A program of two products and a loop has done the steps of all rounds."""
    _, pool = shared
    device, x = pool.device(0), np.ones((64, 64))
    module = device.kernels.compile(SOURCE).result(DEADLINE_S)
    y, one = device.put(np.ones(2**18, "float32")), device.full((), 1, "int64")
    with device.program() as products:
        factor = products.input("factor", x.shape, "float64")
        products.returns(products.blas.gemm(factor, products.blas.gemm(factor, factor)))
    with device.program() as launches:
        n = launches.input("n", (), "int64")
        left = launches.elementwise.copy(n)
        with launches.while_(left, most=10):
            launches.elementwise.subtract(left, one, left)
            launches.kernels.launch(module["bounded"], y, grid=3, block=4, inout=y)
        launches.returns(left)
    with traced(pool, tmp_path / "t.json"):
        assert settled(lambda: is_traced(pool))
        module["bounded"](y, grid=1, block=4, inout=y).result()
        products.run(factor=x).result()
        launches.run(n=np.int64(3)).result()
    events, _ = read(tmp_path / "t.json")
    found = named(events, "kernels.launch")
    assert [each["args"]["kernel"] for each in found] == ["bounded"] * 4
    assert [each["args"].get("kind") for each in found].count("step") == 3
    with_products, with_loop = sorted(named(events, "program.run"), key=lambda each: float(each["ts"]))
    flops = 2 * 2 * 64**3
    assert _per_ns(with_products, "gflops") == pytest.approx(flops, rel=0.01)
    assert "gbytes_per_s" not in with_loop["args"], "how much its launches move is not known"


def _per_ns(event: dict[str, Any], name: str) -> float:
    """Return how much a span has done in all, by a rate."""
    return float(event["args"][name]) * float(event["dur"]) * 1000
