"""Kernels of the caller's own on a GPU: compiled for it, launched, captured, refused, and poisonous."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import pytest

import atomr_mp
from atomr_mp import errors
from tests.actors.globalled import NAMES as GLOBAL_NAMES
from tests.actors.globalled import SOURCE as GLOBALS
from tests.actors.kerneled import NAMES, SOURCE
from tests.cases.hostile_sources import SOURCES
from tests.gpu.on_device import NEEDS_CUPY
from tests.support import ACTORS, DEADLINE_S, Ledger, wait_generation

pytestmark = NEEDS_CUPY

KERNELED: Final = f"{ACTORS}/kerneled.py:Kerneled"

MORE: Final = """
#include <cooperative_groups.h>
extern "C" __global__ void summed(float* out, const float* x, int n) {
    extern __shared__ float part[];
    float sum = 0;
    for (int i = threadIdx.x; i < n; i += blockDim.x) sum += x[i];
    part[threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.x == 0) { sum = 0; for (int i = 0; i < blockDim.x; i++) sum += part[i]; out[blockIdx.x] = sum; }
}
extern "C" __global__ void together(int* out) {
    atomicAdd(out, 1);
    cooperative_groups::this_grid().sync();
    if (threadIdx.x == 0) out[1 + blockIdx.x] = *(volatile int*)out;
}
extern "C" __global__ void spin(float* x, long long cycles) {
    long long until = clock64() + cycles;
    while (clock64() < until) {}
    x[0] += 1;
}
"""


@pytest.fixture(scope="module")
def device() -> Iterator[atomr_mp.Device]:
    """A GPU."""
    with Ledger() as ledger, ledger.start(KERNELED, backend="cuda") as pool:
        yield pool.device(0)


def more(device: atomr_mp.Device) -> Any:
    """Return the kernels of this file."""
    return device.kernels.compile(MORE).result(DEADLINE_S)


def test_a_large_launch_computes_what_numpy_does(device: atomr_mp.Device) -> None:
    """Of both instances of a template."""
    module = device.kernels.compile(SOURCE, names=NAMES).result(DEADLINE_S)
    n = 10**6 + 3
    for name, dtype in zip(NAMES, ("float32", "float64"), strict=True):
        x = device.put(np.arange(n, dtype=dtype))
        module[name](x, 0.5, n - 1, grid=-(-n // 256), block=256, inout=x)
        expected = np.arange(n, dtype=dtype) * np.dtype(dtype).type(0.5)
        expected[-1] = n - 1
        np.testing.assert_array_equal(x.numpy(), expected)


def test_much_shared_memory_is_there(device: atomr_mp.Device) -> None:
    """Above 48 KiB; above the device's limit it is refused, and nothing is undefined."""
    x, out = device.put(np.ones(5000, np.float32)), device.zeros(2)
    module = more(device)
    module["summed"](out, x, 5000, grid=2, block=1024, shared=64 * 1024, out=out)
    assert out.numpy().tolist() == [5000.0] * 2
    with pytest.raises(errors.InvalidRequest, match="a block of this device has") as told:
        module["summed"](out, x, 5000, grid=2, block=32, shared=512 * 1024, out=out).result(DEADLINE_S)
    assert not told.value.maybe_executed
    assert out.numpy().tolist() == [5000.0] * 2


def test_blocks_meet_in_a_cooperative_launch(device: atomr_mp.Device) -> None:
    """As many as run at a time; more are refused before."""
    module, out = more(device), device.zeros(1 + 8, "int32")
    module["together"](out, grid=8, block=64, cooperative=True, inout=out)
    assert out.numpy().tolist() == [512] * 9
    with pytest.raises(errors.InvalidRequest, match="a cooperative launch runs all at a time"):
        module["together"](out, grid=10**6, block=64, cooperative=True, inout=out).result(DEADLINE_S)


def test_a_program_of_launches_is_captured(device: atomr_mp.Device) -> None:
    """And gives the same as step by step; a module that was dropped lives on in its graph."""
    module = device.kernels.compile(SOURCE, names=NAMES).result(DEADLINE_S)
    y = device.put(np.ones(1024, np.float32))
    with device.program() as p:
        x = p.input("x", (1024,), "float32")
        out = p.empty((1024,), "float32")
        p.kernels.launch(module["add"], x, y, out, 1024, grid=4, block=256, out=out)
        for _ in range(50):
            p.kernels.launch(module["scale<float>"], out, 2.0, 8, grid=4, block=256, inout=out)
        p.returns(out)
    del module
    found = [p.run(x=np.full(1024, n, np.float32)).result(DEADLINE_S).numpy() for n in range(6)]
    for n, each in enumerate(found):
        assert each[[0, 8]].tolist() == [(n + 1) * 2.0**50, n + 1.0]


def test_launches_in_branches_and_loops_see_what_the_device_has_computed(device: atomr_mp.Device) -> None:
    """Each condition is read when the launches before it have ended; a run gives what Python gives."""
    module = device.kernels.compile(SOURCE, names=NAMES).result(DEADLINE_S)
    one, limit = device.full((), 1, "int64"), device.full((1,), 1.0)
    x = device.put(np.full(1024, 5, np.float32))
    with device.program() as p:
        n = p.input("n", (), "int64")
        left, large = p.elementwise.maximum(n, n), p.empty((1,), "bool")
        with p.while_(left, most=100) as loop:
            p.elementwise.greater(x[:1], limit, large)
            with p.if_(large):
                p.kernels.launch(module["scale<float>"], x, 0.5, 1024, grid=4, block=256, inout=x)
            with p.else_():
                p.kernels.launch(module["scale<float>"], x, 3.0, 1024, grid=4, block=256, inout=x)
            p.elementwise.subtract(left, one, left)
        p.returns(loop.rounds)
    del module
    value = np.float32(5)
    for rounds in (0, 1, 20, 100):
        assert int(p.run(n=np.int64(rounds)).result(DEADLINE_S).numpy()) == rounds
        for _ in range(rounds):
            value *= np.float32(0.5 if value > 1 else 3.0)
        assert x.numpy().tolist() == [value] * 1024


def test_a_module_may_go_amid_its_launches(device: atomr_mp.Device) -> None:
    """It is unloaded when they have ended."""
    x = device.zeros(1)
    for _ in range(20):
        more(device)["spin"](x, 10**7, grid=1, block=1, inout=x)
    assert x.numpy().tolist() == [20.0]


def test_the_driver_and_the_code_tell_the_same_parameters(device: atomr_mp.Device) -> None:
    """`load` compares them for each kernel: of PTX, and of machine code that was linked from it."""
    head = ".version 7.8\n.target sm_80\n.address_size 64\n"
    ptx = head + ".visible .entry k(.param .u64 a, .param .align 4 .b8 b[20]) { ret; }"
    module = device.kernels.load(ptx).result(DEADLINE_S)
    assert module["k"].parameters == ((0, 8), (8, 20))


def test_code_that_needs_more_memory_than_there_is_is_refused(device: atomr_mp.Device) -> None:
    """When it is loaded; and so is code that is cut off, or of another architecture."""
    with pytest.raises((errors.InvalidRequest, errors.OutOfMemory)):
        device.kernels.compile(SOURCES["huge_array"][1]).result(DEADLINE_S)
    with pytest.raises(errors.RequestError):
        device.kernels.compile(SOURCES["good"][1], arch="sm_75").result(DEADLINE_S)
    assert device.zeros(1).numpy().tolist() == [0.0]


def test_a_wild_pointer_ends_its_worker_alone(ledger: Ledger) -> None:
    """The launch becomes a suspect, and then poison; others of its kernel do not."""
    settings: dict[str, Any] = {"max_suspicions": 2, "max_restarts": 100, "backoff_initial_s": 0.01}
    with ledger.start(KERNELED, backend="cuda", **settings) as pool:
        device = pool.device(0)
        for generation in (1, 2):
            wait_generation(pool, generation)
            module = device.kernels.compile(SOURCE).result(DEADLINE_S)
            x = device.zeros(8)
            error = module["wild"](x, 2**40, grid=1, block=1, inout=x).exception(DEADLINE_S)
            assert isinstance(error, errors.ContextPoisoned | errors.WorkerLost | errors.PoisonRequest), error
            assert error.message.startswith("kernel wild: ")
        wait_generation(pool, 3)
        module = device.kernels.compile(SOURCE).result(DEADLINE_S)
        x = device.zeros(8)
        with pytest.raises(errors.PoisonRequest):
            module["wild"](x, 2**40, grid=1, block=1, inout=x).result(DEADLINE_S)
        module["wild"](x, 3, grid=1, block=1, inout=x)
        assert x.numpy()[3] == 1


def test_a_source_is_linked_with_assembly(device: atomr_mp.Device) -> None:
    """The source calls its function; for this GPU."""
    ptx = """.version 7.8
.target sm_80
.address_size 64
.visible .func (.param .f32 result) twice(.param .f32 x) {
    .reg .f32 %f<3>;
    ld.param.f32 %f1, [x];
    add.f32 %f2, %f1, %f1;
    st.param.f32 [result], %f2;
    ret;
}
"""
    source = """extern "C" __device__ float twice(float);
extern "C" __global__ void k(float* x) { x[threadIdx.x] = twice(x[threadIdx.x]); }"""
    module = device.kernels.compile(source, link={"twice.ptx": ptx}).result(DEADLINE_S)
    x = device.put(np.arange(8, dtype=np.float32))
    module["k"](x, grid=1, block=8, inout=x)
    np.testing.assert_array_equal(x.numpy(), 2 * np.arange(8))


def test_globals_are_read_and_written(ledger: Ledger) -> None:
    """As the driver has them, in order with launches, in one client and in an actor."""
    with ledger.start(f"{ACTORS}/globalled.py:Globalled", backend="cuda") as pool:
        device = pool.device(0)
        module = device.kernels.compile(GLOBALS, names=GLOBAL_NAMES).result(DEADLINE_S)
        assert module.globals == {"table": 24, "factor": 8, "n::unlike": 4, "nobody_s": 4}
        assert module.read("table", "float32", 6).result(DEADLINE_S).numpy().tolist() == [1, 2, 3, 4, 5, 6]
        module.write("factor", np.float64(2))
        module.write("n::unlike", np.int32(-1))
        x = device.zeros(6)
        module["add_table"](x, 0, grid=1, block=6, inout=x)
        assert x.numpy().tolist() == [1, 3, 5, 7, 9, 11]
        one = device.put(np.ones(1, np.float32))
        for number in range(2, 6):
            module["count"](one, 20, grid=1, block=32)
            assert module.read("table", "float32", 6).result(DEADLINE_S).numpy()[0] == number
        assert pool.call("Globalled.own", GLOBALS).result(DEADLINE_S) == [7.0] * 6
