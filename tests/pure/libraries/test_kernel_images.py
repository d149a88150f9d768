"""The kernels in machine code, as the compiler's own output has them, and code that is damaged in any way."""

from __future__ import annotations

import random
import struct
import time
from typing import Final

import pytest

from atomr_mp import errors
from atomr_mp_workers.compiling import toolkits
from atomr_mp_workers.compiling.compiler import Compiler
from atomr_mp_workers.compiling.jobs import CompileJob
from atomr_mp_workers.compiling.limits import CompileLimits
from atomr_mp_workers.libraries.kernels.images import globals_of, kernels_of
from tests.support import DEADLINE_S

SOURCE: Final = """
struct S { int a[5]; double d; };
template <class T> __global__ void scale(T* x, T factor, int n) { x[n] *= factor; }
extern "C" __global__ void plain(float* x, S s, char c) { x[0] = s.a[1] + c; }
struct alignas(64) Map { unsigned long long words[16]; };
extern "C" __global__ void mapped(const __grid_constant__ Map a, float* x, const __grid_constant__ Map b) {}
extern "C" __global__ void empty() {}
extern "C" __global__ void __launch_bounds__(128) bounded(const float* __restrict__ a, const int q) {}
__device__ __noinline__ float helper(float x) { return x * x; }
__device__ float table[5] = {1};
__constant__ double factor;
__device__ static char letters[3];
namespace n { __device__ volatile int unlike; }
__managed__ int shared_by_all = 1;
extern "C" __global__ void calls(float* x) {
    __shared__ float part[64];
    part[threadIdx.x] = table[threadIdx.x] * factor;
    letters[threadIdx.x] = n::unlike + shared_by_all;
    x[0] = helper(x[1]) + part[3];
}
"""

SCALE: Final = ((0, 8), (8, 4), (12, 4))


def compiled(architecture: str, *options: str) -> bytes:
    """Return the sources' machine code."""
    toolkit = toolkits.find()
    if toolkit is None:
        pytest.skip("NVRTC is not installed: the extra nvrtc13 brings it")
    compiler = Compiler(toolkit, None, CompileLimits(idle=False), confined=False)
    try:
        job = CompileJob(SOURCE, architecture, names=("scale<float>",), options=options)
        return compiler.submit(job, time.monotonic() + DEADLINE_S).result(DEADLINE_S).code.code
    finally:
        compiler.close()


@pytest.fixture(scope="module")
def code() -> bytes:
    """Machine code for one architecture."""
    return compiled("sm_90")


@pytest.mark.parametrize("options", [(), ("--device-debug",), ("--generate-line-info",)], ids=str)
@pytest.mark.parametrize("architecture", ["sm_75", "sm_80", "sm_90a", "sm_100", "sm_120"])
def test_kernels_and_their_parameters_are_found(architecture: str, options: tuple[str, ...]) -> None:
    """Of old and new architectures, with and without debugging; other functions are not among them, and globals are."""
    code = compiled(architecture, *options)
    found = kernels_of(code)
    assert {name: each.parameters for name, each in found.items()} == {
        "_Z5scaleIfEvPT_S0_i": SCALE,
        "plain": ((0, 8), (8, 32), (40, 1)),
        "empty": (),
        "bounded": ((0, 8), (8, 4)),
        "calls": ((0, 8),),
        "mapped": found["mapped"].parameters,
    }
    assert {name for name, each in found.items() if each.threads} == {"bounded"}
    assert found["bounded"].threads == 128
    sizes = {"table": 20, "factor": 8, "letters": 3, "_ZN1n6unlikeE": 4}
    assert {name.rpartition("$")[2]: nbytes for name, nbytes in globals_of(code).items()} == sizes


@pytest.mark.parametrize("architecture", ["sm_75", "sm_80", "sm_90", "sm_90a", "sm_100", "sm_120"])
def test_the_code_tells_where_its_parameters_begin(architecture: str) -> None:
    """So an aligned one is known: its offset alone says nothing."""
    kernels = kernels_of(compiled(architecture))
    first, pointer, second = kernels["mapped"].parameters
    assert [size for _, size in (first, pointer, second)] == [128, 8, 128]
    base = kernels["mapped"].base
    assert base > 0
    assert (base + first[0]) % 64 == (base + second[0]) % 64 == 0


def test_what_is_no_machine_code_is_refused(code: bytes) -> None:
    """By its first bytes, its machine, its length."""
    for wrong in (b"", b"\x7fELF", b"\x7fELF" + bytes(60), bytes(1000), b".version 7.0", code[:64]):
        with pytest.raises(errors.InvalidRequest, match="no CUBIN, or is damaged"):
            kernels_of(wrong)
    other = bytearray(code)
    struct.pack_into("<H", other, 18, 62)
    with pytest.raises(errors.InvalidRequest, match="for machine 62"):
        kernels_of(bytes(other))


def test_damaged_code_is_read_or_refused(code: bytes) -> None:
    """Cut off anywhere, with any bytes changed: a typed error or an answer, in bounded time, and nothing else."""
    random_ = random.Random(7)
    refused = 0
    for number in range(3000):
        damaged = bytearray(code)
        if number % 3 == 0:
            del damaged[random_.randrange(len(damaged)) :]
        for _ in range(random_.choice((1, 4, 64))):
            if damaged:
                head = random_.random() < 0.3
                at = random_.randrange(min(64, len(damaged)) if head else len(damaged))
                damaged[at] = random_.randrange(256)
        try:
            kernels_of(bytes(damaged))
            assert all(nbytes > 0 for nbytes in globals_of(bytes(damaged)).values())
        except errors.InvalidRequest:
            refused += 1
    assert 500 < refused < 3000
