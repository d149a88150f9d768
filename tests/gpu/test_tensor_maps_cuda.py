"""Tensor maps on a GPU: a kernel has tiles copied by `cp.async.bulk.tensor`, and they are NumPy's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import pytest

import atomr_mp
from atomr_mp import errors
from tests.gpu.on_device import NEEDS_CUPY
from tests.support import DEADLINE_S, Ledger

pytestmark = NEEDS_CUPY

ROWS: Final = 8
COLUMNS: Final = 32
PADDED: Final = 256
SOURCE: Final = """
struct alignas(64) CUtensorMap { unsigned long long opaque[16]; };  // NVRTC cannot include cuda.h

constexpr int ROWS = 8, COLUMNS = 32, BYTES = ROWS * COLUMNS * 4;

__device__ unsigned shared_address(const void* pointer) { return (unsigned)__cvta_generic_to_shared(pointer); }

__device__ void load(float* tile, const CUtensorMap* map, int x, int y) {
    __shared__ alignas(8) unsigned long long barrier;
    unsigned at = shared_address(&barrier);
    if (threadIdx.x == 0) {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" :: "r"(at) : "memory");
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(at), "r"(BYTES) : "memory");
        asm volatile(
            "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];"
            :: "r"(shared_address(tile)), "l"(map), "r"(x), "r"(y), "r"(at) : "memory");
    }
    __syncthreads();
    unsigned done = 0;
    while (!done)
        asm volatile(
            "{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], 0; selp.u32 %0, 1, 0, p; }"
            : "=r"(done) : "r"(at) : "memory");
}

extern "C" __global__ void load_tile(const __grid_constant__ CUtensorMap map, float* out, int x, int y) {
    __shared__ alignas(1024) float tile[ROWS * COLUMNS];
    load(tile, &map, x, y);
    for (int i = threadIdx.x; i < ROWS * COLUMNS; i += blockDim.x) out[i] = tile[i];
}

extern "C" __global__ void copy_tiles(
    int shift, const __grid_constant__ CUtensorMap from, float factor, const __grid_constant__ CUtensorMap to) {
    __shared__ alignas(1024) float tile[ROWS * COLUMNS];
    int x = blockIdx.x * COLUMNS, y = blockIdx.y * ROWS;
    load(tile, &from, x, y + shift);
    for (int i = threadIdx.x; i < ROWS * COLUMNS; i += blockDim.x) tile[i] *= factor;
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    if (threadIdx.x == 0) {
        asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];"
            :: "l"(&to), "r"(x), "r"(y), "r"(shared_address(tile)) : "memory");
        asm volatile("cp.async.bulk.commit_group;" ::: "memory");
        asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
    }
}
"""

NOTHING: Final = """
struct alignas(64) CUtensorMap { unsigned long long opaque[16]; };
extern "C" __global__ void nothing(const __grid_constant__ CUtensorMap map) {}
"""


@pytest.fixture(scope="module")
def device() -> Iterator[atomr_mp.Device]:
    """A GPU."""
    with Ledger() as ledger, ledger.start(backend="cuda") as pool:
        yield pool.device(0)


@pytest.fixture(scope="module")
def module(device: atomr_mp.Device) -> Any:
    """The kernels, on a GPU that has tensor maps."""
    found = device.kernels.compile(SOURCE, arch="sm_90").result(DEADLINE_S) if has_maps(device) else None
    return found or pytest.skip("this GPU has no tensor maps")


def has_maps(device: atomr_mp.Device) -> bool:
    """Return whether the GPU has tensor maps."""
    kernel = device.kernels.compile(NOTHING).result(DEADLINE_S)["nothing"]
    map_ = device.kernels.tensor_map(device.zeros((8, 32)), box=(8, 32))
    return not isinstance(kernel(map_, grid=1, block=1).exception(DEADLINE_S), errors.Unsupported)


def numbers(*shape: int) -> Any:
    """Return an array of distinct numbers."""
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape) + 1


def tile_of(value: Any, x: int, y: int, outside: float = 0) -> Any:
    """Return a tile, with what lies outside of the array."""
    room = np.pad(value, PADDED, constant_values=outside)
    return room[PADDED + y : PADDED + y + ROWS, PADDED + x : PADDED + x + COLUMNS]


@pytest.mark.parametrize(("x", "y"), [(0, 0), (32, 16), (4, 3), (88, 36), (-8, -3), (200, 0)])
def test_a_tile_is_the_arrays(device: atomr_mp.Device, module: Any, x: int, y: int) -> None:
    """Anywhere; outside of the array it is zero. Of a whole array, and of a view with longer rows."""
    value = numbers(40, 96)
    whole = device.put(value)
    for ref, content in ((whole, value), (whole[3:, 8:72], value[3:, 8:72])):
        out = device.zeros((ROWS, COLUMNS))
        tiles = device.kernels.tensor_map(ref, box=(ROWS, COLUMNS), l2_promotion="128B")
        module["load_tile"](tiles, out, x, y, grid=1, block=64, out=out)
        np.testing.assert_array_equal(out.numpy(), tile_of(content, x, y))


def test_options_of_a_map_are_cudas(device: atomr_mp.Device, module: Any) -> None:
    """NaN outside; swizzled tiles, whose 16 bytes lie elsewhere in each row by the row's number; every other row."""
    value = numbers(40, 96)
    ref, out = device.put(value), device.zeros((ROWS, COLUMNS))

    def loaded(x: int, y: int, **given: Any) -> Any:
        tiles = device.kernels.tensor_map(ref, **({"box": (ROWS, COLUMNS)} | given))
        module["load_tile"](tiles, out, x, y, grid=1, block=64, out=out)
        return out.numpy()

    found = loaded(80, 36, oob_fill="nan_request_zero_fma")
    np.testing.assert_array_equal(found, tile_of(value, 80, 36, np.nan))
    pieces = tile_of(value, 32, 8).reshape(ROWS, 8, 4)
    swizzled = np.stack([row[np.arange(8) ^ (number % 8)] for number, row in enumerate(pieces)]).reshape(ROWS, COLUMNS)
    np.testing.assert_array_equal(loaded(32, 8, swizzle="128B"), swizzled)
    found = loaded(0, 4, box=(2 * ROWS, COLUMNS), element_strides=(2, 1))
    np.testing.assert_array_equal(found, value[4 : 4 + 2 * ROWS : 2, :COLUMNS])


def test_tiles_are_written_in_order_with_all_else(device: atomr_mp.Device, module: Any) -> None:
    """Alone, in programs that are captured, and in branches, at whichever address an input lies."""
    value = numbers(64, 128)

    def copied(kernels: Any, x: Any, out: Any) -> Any:
        maps = [kernels.tensor_map(each, box=(ROWS, COLUMNS)) for each in (x, out)]
        return kernels.launch(module["copy_tiles"], 8, maps[0], 0.5, maps[1], grid=(4, 8), block=64, out=maps[1])

    expected = np.vstack([value[8:], np.zeros((8, 128), np.float32)]) / 2
    x, out = device.put(value), device.empty((64, 128))
    copied(device.kernels, x, out)
    device.memory.fill(x, 0)
    np.testing.assert_array_equal(out.numpy(), expected)
    with device.program() as p:
        given = p.input("x", (64, 128), "float32")
        made = p.empty((64, 128), "float32")
        copied(p.kernels, given, made)
        p.returns(p.elementwise.add(made, made))
    places = [device.put(value * number) for number in range(1, 4)]
    for turn in range(5):
        for number, place in enumerate([*places, value * 4], 1):
            found = p.run(x=place).result(DEADLINE_S).numpy()
            np.testing.assert_array_equal(found, expected * 2 * number, err_msg=f"turn {turn}")
    with device.program() as q:
        flag, given = q.input("flag", (), "bool"), q.input("x", (64, 128), "float32")
        with q.if_(flag):
            copied(q.kernels, given, out)
        with q.else_():
            copied(q.kernels, places[1], out)
    for taken, factor in ((np.True_, 3), (np.False_, 2)):
        q.run(flag=taken, x=places[2]).result(DEADLINE_S)
        np.testing.assert_array_equal(out.numpy(), expected * factor)


@pytest.mark.usefixtures("module")
def test_the_driver_takes_what_passes(device: atomr_mp.Device) -> None:
    """Each element type with its data types, each rank, rows of length 1, and channels that are interleaved."""
    kernel = device.kernels.compile(NOTHING).result(DEADLINE_S)["nothing"]

    def taken(ref: Any, **given: Any) -> None:
        assert kernel(device.kernels.tensor_map(ref, **given), grid=1, block=1).result(DEADLINE_S) is None

    for dtype in ("bool", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64", "float16", "float64"):
        taken(device.zeros((8, 64), dtype), box=(4, 16))
    for data_type in ("float32", "float32_ftz", "tfloat32", "tfloat32_ftz"):
        taken(device.zeros((8, 64)), box=(4, 16), data_type=data_type, oob_fill="nan_request_zero_fma")
    for rank in range(1, 6):
        taken(device.zeros((4,) * rank), box=(2,) * (rank - 1) + (4,), element_strides=(3,) * (rank - 1) + (1,))
    taken(device.zeros((1, 1, 3)), box=(1, 1, 4))
    taken(device.zeros((4, 8, 16), "float16"), box=(2, 2, 16), interleave="16B")
    taken(device.zeros((4, 8, 16), "float16"), box=(2, 2, 16), interleave="32B", swizzle="32B")
