"""Worlds by NCCL on two GPUs: values, differing ranks, deaths with and without spares, a lost context, what is left."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest

from atomr_mp_workers.worlds.nccl.leftovers import sweep
from atomr_mp_workers.worlds.nccl.page import READY_AT, name_of
from tests.nccl_ranks import NcclWorld
from tests.pure.worker.test_nccl_collectives import DIFFERS, HELPERS, OPERATORS, TYPES, parts, reduced, same
from tests.support import ACTORS, DEADLINE_S, Ledger, gpu_count, settled, standby_of

pytestmark = pytest.mark.gpu

SUM: Final = "world.all_reduce(cp.arange(4096.0) + rank)"
DEATHS: Final = 20
SHM: Final = Path("/dev/shm")

WATCHED: Final = """
from atomr_mp_workers.worlds.nccl import communicator as _c
put, _call = [], _c.Communicator.call
def _noted(self, function, *arguments):
    put.append(function)
    return _call(self, function, *arguments)
_c.Communicator.call = _noted

def timed(nbytes, rounds):
    import time
    x = cp.zeros(nbytes // 4, "float32")
    stream = cp.cuda.get_current_stream()
    for at in range(rounds + 5):
        if at == 5:
            stream.synchronize()
            began = time.perf_counter()
        world.all_reduce(x, out=x)
    stream.synchronize()
    return (time.perf_counter() - began) / rounds * 1e6

def free():
    return cp.cuda.runtime.memGetInfo()[0]
"""


def two_gpus() -> int:
    """Return how many GPUs there are; skip where there is one."""
    if gpu_count() < 2:
        pytest.skip("needs 2 GPUs")
    return gpu_count()


def made(*, spares: bool = False) -> NcclWorld:
    """Return a world of two ranks, with helpers."""
    world = NcclWorld(2, two_gpus(), spares=spares)
    world.each(HELPERS)
    world.each(WATCHED)
    return world


@pytest.fixture(scope="module")
def ranks() -> Iterator[NcclWorld]:
    """Yield two ranks that have joined."""
    with made() as world:
        world.join()
        yield world


def right(world: NcclWorld) -> None:
    """Assert that all ranks have the right sum."""
    for each in world.call(SUM):
        assert not isinstance(each, str), each
        np.testing.assert_array_equal(each, 2 * np.arange(4096.0) + 1)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("count", [1, 7, 4097, 1_000_003])
def test_reductions(ranks: NcclWorld, dtype: str, count: int) -> None:
    """Of all types and operators, new and in place."""
    how = "host" if dtype == "bfloat16" else "device"
    for operator in OPERATORS:
        if (operator == "avg" and "int" in dtype) or (operator in {"min", "max"} and "complex" in dtype):
            continue
        expected = reduced(parts(dtype, (count,), 2), operator)
        for in_place in (False, True):
            code = f"run('all_reduce', {dtype!r}, ({count},), {operator!r}, how={how!r}, in_place={in_place})"
            same(ranks.call(code), [expected] * 2)


@pytest.mark.parametrize("dtype", ["int8", "float16", "float64", "complex128", "bool"])
@pytest.mark.parametrize("rows", [2, 200_002])
def test_moves(ranks: NcclWorld, dtype: str, rows: int) -> None:
    """Each collective that moves rows."""
    shape = (rows, 3)
    arrays, given = parts(dtype, shape, 2), f"{dtype!r}, {shape}"
    halves = [[each.reshape(2, rows // 2, 3)[rank] for each in arrays] for rank in range(2)]
    same(ranks.call(f"run('all_gather', {given})"), [np.stack(arrays)] * 2)
    same(ranks.call(f"run('broadcast', {given}, 1, in_place=True)"), [arrays[1]] * 2)
    same(ranks.call(f"run('all_to_all', {given}, in_place=True)"), [np.concatenate(each) for each in halves])
    same(ranks.call(f"run('sendrecv', {given}, 1 - rank, 1 - rank, in_place=True)"), arrays[::-1])
    same(ranks.call(f"run('sendrecv', {given}, rank, rank)"), arrays)
    if dtype != "bool":
        same(ranks.call(f"run('reduce_scatter', {given}, 'sum')"), [reduced(each) for each in halves])
        same(ranks.call(f"run('reduce', {given}, 1, 'sum')"), [None, reduced(arrays)])
    code = "world.all_to_all_v([cp.full((rank + 2 * each, 5), 10.0 * rank + each) for each in range(size)])"
    for rank, found in enumerate(ranks.call(code)):
        for sender, got in enumerate(found):
            np.testing.assert_array_equal(got, np.full((sender + 2 * rank, 5), 10.0 * sender + rank))
    assert ranks.call("world.barrier()") == [None] * 2


@pytest.mark.parametrize(("one", "other", "text"), DIFFERS)
def test_where_ranks_differ_nothing_is_put(ranks: NcclWorld, one: str, other: str, text: str) -> None:
    """Both raise it, and the next collective is right."""
    before = ranks.each("len(put)")
    for each, code in zip(ranks.all, (one, other), strict=True):
        each.call(code)
    for each in ranks.all:
        found = each.get()
        assert found.startswith("WorldMismatch"), found
        assert text in found
    assert ranks.each("len(put)") == before
    right(ranks)


def test_a_capture_is_refused(ranks: NcclWorld) -> None:
    """Before anything meets; the capture goes on."""
    ranks.each(
        "def captured():\n"
        "    stream = cp.cuda.Stream(non_blocking=True)\n"
        "    x = cp.zeros(4)\n"
        "    with stream:\n"
        "        stream.begin_capture(cp.cuda.runtime.streamCaptureModeThreadLocal)\n"
        "        try:\n"
        "            return world.all_reduce(x, out=x)\n"
        "        finally:\n"
        "            stream.end_capture()\n"
    )
    assert all(each.startswith("Unsupported") for each in ranks.call("captured()"))
    right(ranks)


def test_times(ranks: NcclWorld, capsys: pytest.CaptureFixture[str]) -> None:
    """It prints them."""
    found = {}
    for nbytes in (1024, 16 * 2**10, 2**20, 256 * 2**20):
        times = ranks.call(f"timed({nbytes}, {200 if nbytes < 2**22 else 20})")
        found[f"all_reduce of {nbytes} bytes, us"] = [round(each, 1) for each in times]
    with capsys.disabled():
        print(json.dumps(found))


def lose(world: NcclWorld, how: str) -> float:
    """Lose rank 1 while rank 0 waits for it; return the time of the stop word."""
    first, dead = world.all
    first.call(SUM)
    if how == "poisoned":
        dead.send("bad((1,), (1,), (cp.uint64(16),))\ncp.cuda.runtime.deviceSynchronize()")
        with pytest.raises(AssertionError, match="CUDARuntimeError"):
            dead.get()
    dead.kill()
    told = world.stop()
    assert first.get(DEADLINE_S).startswith("CollectiveAborted")
    return told


BAD: Final = (
    'bad = cp.RawKernel(\'extern "C" __global__ void bad(int* p) { *(volatile int*)p = 1; }\', "bad")\nbad.compile()'
)


@pytest.mark.parametrize("how", ["killed", "poisoned"])
@pytest.mark.parametrize("spares", [False, True])
def test_a_lost_rank(capsys: pytest.CaptureFixture[str], how: str, *, spares: bool) -> None:
    """The others go on with another process: by what was formed ahead, or by a new communicator."""
    with made(spares=spares) as world:
        world.each(BAD)
        world.join()
        right(world)
        first, dead = world.all
        other = world.start(1, 2)
        other.do(HELPERS)
        other.do("member.mailbox_came()")
        if spares:
            name = name_of([1, 2])
            assert settled(lambda: all(each.do(f"engine._words[{READY_AT + 1}]") == name for each in (first, other))), (
                "the spare is ready"
            )
        told = lose(world, how)
        assert world.leave(first) == ["left: "]
        left = time.monotonic()
        world.replace(dead, other)
        world.join()
        joined = time.monotonic()
        right(world)
        facts = {
            "how": how,
            "spares": spares,
            "told to left, ms": round((left - told) * 1e3, 2),
            "left to joined, ms": round((joined - left) * 1e3, 2),
            "joined to first right sum, ms": round((time.monotonic() - joined) * 1e3, 2),
        }
        assert world.each("engine._forming.uses_spare") == [spares] * 2
        with capsys.disabled():
            print(json.dumps(facts))


def test_a_death_behind_the_meeting(capsys: pytest.CaptureFixture[str]) -> None:
    """A kernel spins on the survivor, and the abort that follows the stop word ends it."""
    with made() as world:
        world.join()
        right(world)
        first, dead = world.all
        dead.do("def stop(*_):\n    import os\n    os.kill(os.getpid(), 9)\n_c.Communicator.call = stop")
        for each in world.all:
            each.call(SUM)
        dead.process.wait()
        with pytest.raises(TimeoutError):
            first.get(1.0)
        told = world.stop()
        assert first.get(DEADLINE_S).startswith("CollectiveAborted")
        free_ms = round((time.monotonic() - told) * 1e3, 2)
        assert world.leave(first) == ["left: "]
        world.replace(dead, world.start(1, 2))
        world.join()
        right(world)
        with capsys.disabled():
            print(json.dumps({"told to the stream's end, ms": free_ms}))


def test_deaths_leave_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    """The survivor has its memory back. What is in /dev/shm behind the last one's end goes with a later sweep."""
    before = {each.name for each in SHM.iterdir()}
    with made() as world:
        free: list[int] = []
        for turn in range(DEATHS):
            world.join()
            right(world)
            dead = world.all[1]
            dead.process.send_signal((signal.SIGKILL, signal.SIGSEGV)[turn % 2])
            dead.process.wait()
            world.stop()
            assert world.leave(world.all[0]) == ["left: "]
            world.replace(dead, world.start(1, dead.generation + 1))
            assert settled(lambda: world.all[0].do("[each.state.name for each in engine._former]") in (["GONE"], []))
            free.append(world.all[0].do("free()"))
        descriptors = len([*Path(f"/proc/{world.all[0].process.pid}/fd").iterdir()])
        with capsys.disabled():
            print(
                json.dumps({"free behind each death, MiB": [each >> 20 for each in free], "descriptors": descriptors})
            )
        assert free[-1] >= free[2] - (64 << 20)
        left = {each.name for each in SHM.iterdir()} - before

    def is_swept() -> bool:
        sweep()
        return not {each.name for each in SHM.iterdir() if "nccl" in each.name} - before

    assert settled(is_swept), left


@pytest.mark.parametrize("spares", [False, True])
def test_a_pool(capsys: pytest.CaptureFixture[str], *, spares: bool) -> None:
    """Its standby takes the place of a killed member, and callers notice a delay."""
    two_gpus()
    plan = {"devices": [0, 1], "actors": ["Worldly"], "engine": "nccl", "spares": spares}
    settings: dict[str, Any] = {"worlds": {"tp": plan}, "standby": "hot", "max_restarts": 100}
    with Ledger() as ledger, ledger.start(f"{ACTORS}/worldly.py:Worldly", gpus=2, **settings) as pool:
        world = pool.world("tp")
        world.wait_ready(DEADLINE_S)
        took: list[float] = []
        for turn in range(4):
            assert settled(lambda: all(standby_of(pool, each).state == "ready" for each in range(2)))
            assert world.call("Worldly.add", 1.0, deadline_s=DEADLINE_S).result(DEADLINE_S) == 3.0
            time.sleep(4.0 if spares else 0.0)  # the communicators that are formed ahead are shown nowhere
            os.kill(pool.devices[turn % 2].pid or 0, signal.SIGKILL)
            began = time.monotonic()
            assert world.call("Worldly.add", 1.0, deadline_s=DEADLINE_S).result(DEADLINE_S) == 3.0
            took.append(round((time.monotonic() - began) * 1e3, 1))
        with capsys.disabled():
            print(json.dumps({"a pool": "killed to the next result, ms", "spares": spares, "ms": took}))
