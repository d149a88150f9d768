from __future__ import annotations

import contextlib
import functools
from typing import Any, Final

import numpy as np
import pytest
from hypothesis import reject

from atomr_mp import errors
from atomr_mp.protocol.libraries.base import LibraryRequest
from atomr_mp.protocol.libraries.blas_lt import RESULTS, Matmul
from tests.cases.blas_lt_cases import EPILOGUES, PAIRS, WIDE, assert_agrees, requests
from tests.direct import assert_all_agree, refused
from tests.fakes.fake_arrays import FakeArray
from tests.gpu import on_device
from tests.tolerances import assert_close

pytestmark = on_device.NEEDS_CUPY

agrees_fast: Final = functools.partial(assert_agrees, fast=True)
run: Final = functools.partial(on_device.run, "blas_lt")
NARROW: Final = [pair for pair in PAIRS if pair not in WIDE or pair[0] == "int8"]
LINE_BYTES: Final = 16
"""Kernels for eight bits want rows of whole lines."""

FLOATS: Final = ("float16", "bfloat16", "float32")


def run_if_offered(request: LibraryRequest) -> None:
    """Do a request; ignore one for which cuBLASLt has no kernel."""
    try:
        run(request)
    except errors.Unsupported:
        reject()


def test_larger_sizes_take_other_kernels_and_give_the_same() -> None:
    """Tiles that are full, and those at the edges that are not."""
    assert_all_agree(requests(lengths=(16, 33, 64, 129, 200), pairs=WIDE), 100, agrees_fast, run_if_offered)


def test_eight_bits_are_multiplied_as_the_tensor_cores_want_them() -> None:
    """Scales of each kind, every type of the result."""
    drawn = requests(lengths=(16, 32, 48, 128), pairs=NARROW, orders={"a": "row", "b": "column"}, lines=LINE_BYTES)
    assert_all_agree(drawn, 200, agrees_fast, run_if_offered)


def has_float8() -> bool:
    """Return whether the GPU has tensor cores for float8."""
    import cupy

    return int(cupy.cuda.Device().compute_capability) >= 89


def operands(pair: tuple[str, str], dtype: str, size: int = 64) -> dict[str, Any]:
    """Return operands of a square product, columns of b contiguous."""
    random = np.random.default_rng(3)
    a, b = (FakeArray.of(np.round(random.uniform(-4, 4, (size, size))), name) for name in pair)
    return {"a": a, "b": b.transpose(), "out": FakeArray.of(np.zeros((size, size)), dtype), "dtype": dtype}


@pytest.mark.parametrize(("pair", "dtype"), [(pair, dtype) for pair, types in RESULTS.items() for dtype in types])
def test_every_type_has_a_kernel(pair: tuple[str, str], dtype: str) -> None:
    """At a size that suits the hardware; the numbers are whole, so that the result is exact, except for a float8."""
    given = operands(pair, dtype)
    if pair[0].startswith("float8") and not has_float8():
        pytest.skip("needs tensor cores for float8")
    run(Matmul(**given))
    expected = given["a"].array.astype(np.float64) @ given["b"].array.astype(np.float64)
    largest = {"float8_e4m3fn": 448, "float8_e5m2": 57344}.get(dtype, np.inf)
    assert_close(given["out"].array, np.clip(expected, -largest, largest), dtype, 64, 16.0)


@pytest.mark.parametrize("dtype", FLOATS)
def test_what_follows_a_product_forward_has_a_kernel(dtype: str) -> None:
    """The epilogues of inference, and those that store what training needs."""
    for epilogue in [each for each in EPILOGUES if not each.startswith(("d", "bgrad")) or each == "default"]:
        given = operands((dtype, dtype), dtype)
        if epilogue.endswith("bias"):
            given["bias"] = FakeArray.of(np.arange(64) / 16, dtype)
        if "_aux" in epilogue:
            given["aux_out"] = FakeArray.of(np.zeros((64, 16 if "relu" in epilogue else 64)), "uint8" if "relu" in
                                            epilogue else dtype)  # fmt: skip
        run(Matmul(**given, epilogue=epilogue))  # type: ignore[arg-type]


def test_what_autotuning_chooses_gives_the_same() -> None:
    """It may be another kernel."""
    given = operands(("float16", "float16"), "float32", 256)
    run(Matmul(**given, autotune=True))
    expected = given["a"].array.astype(np.float64) @ given["b"].array.astype(np.float64)
    assert_close(given["out"].array, expected, "float32", 256, 16.0)


def test_a_plan_is_used_again_with_other_memory_and_factors() -> None:
    """It depends on layouts, not on addresses; another request's bias is used with that request."""
    library = on_device.library("blas_lt")
    made: list[Any] = []
    prepare, library.prepare_matmul = library.prepare_matmul, lambda _request: made[0]
    made.append(prepare(Matmul(**operands(("float32",) * 2, "float32"), bias=FakeArray.of(np.zeros(64), "float32"),
                               epilogue="bias")))  # fmt: skip
    try:
        for alpha in (1.0, 2.0, -0.5):
            given, bias = operands(("float32", "float32"), "float32"), np.arange(64) * alpha
            run(Matmul(**given, bias=FakeArray.of(bias, "float32"), alpha=alpha, epilogue="bias"))
            product = given["a"].array.astype(np.float64) @ given["b"].array.astype(np.float64)
            assert_close(given["out"].array, alpha * product + bias, "float32", 64, 32.0)
    finally:
        del library.prepare_matmul


def test_bad_requests_leave_the_context_well() -> None:
    """A few hundred are refused by the check, others by cuBLASLt's heuristic; then a product is right."""
    assert refused(requests(pairs=WIDE), 30) > 300
    for dtype, of in (("float8_e4m3fn", "bfloat16"), ("int8", "int32")):  # contiguous rows of b, odd lengths
        a, b = (FakeArray.of(np.ones((7, 7)), dtype) for _ in "ab")
        out = FakeArray.of(np.zeros((7, 7)), of)
        with contextlib.suppress(errors.Unsupported):
            run(Matmul(a, b, out))
            assert (out.array == 7).all()
    test_every_type_has_a_kernel(("float32", "float32"), "float32")
    on_device.synchronize()
