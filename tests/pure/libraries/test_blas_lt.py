from __future__ import annotations

from typing import Any, Final

import msgspec
import numpy as np
import pytest

from atomr_mp import errors
from atomr_mp.libraries.blas_lt import Reference
from tests.cases.blas_lt_cases import EPILOGUES
from tests.direct import DirectDevice, host_actor, run_by
from tests.fakes.fake_arrays import FakeArray

run: Final = run_by(host_actor("blas_lt"))
LT: Final[Any] = Reference(DirectDevice(run))


def of(*shape: int, dtype: str = "float32", order: str = "C") -> FakeArray:
    """Return zeros."""
    return FakeArray.of(np.zeros(shape), dtype, order)


A, B, F8 = of(3, 4), of(4, 5), of(4, 4, dtype="float8_e4m3fn")
ONE, TWO = of(1), of(2)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: LT.matmul(A, B, epilogue="bias"), "bias must be given for the epilogues that end with bias"),
        (lambda: LT.matmul(A, B, bias=of(5)), "bias must be left out: it is given for the epilogues that end with"),
        (lambda: LT.matmul(A, B, bias=of(3), epilogue="bias"), "n must be the same .* 5 for b, 3 for bias"),
        (lambda: LT.matmul(A, B, bias=of(5, dtype="float16"), epilogue="bias"), "bias is float16; it must be float32"),
        (lambda: LT.matmul(A, B, epilogue="drelu"), "aux must be given for the epilogues drelu"),
        (lambda: LT.matmul(A, B, aux=of(3, 8), epilogue="gelu_aux"), "aux must be left out"),
        (lambda: LT.matmul(A, B, aux=of(3, 5), epilogue="dgelu"), r"aux has the shape \(3, 5\); it must have \(3, 8\)"),
        (lambda: LT.matmul(A, B, aux=of(3, 16), epilogue="drelu"), "aux is float32; it must be uint8"),
        (lambda: LT.matmul(A, B, aux_out=of(3, 8, dtype="uint8"), epilogue="relu_aux"), r"must have \(3, 16\)"),
        (lambda: LT.matmul(A, B, bias_grad=of(3), epilogue="bgradb"), r"bias_grad has the shape \(3,\)"),
        (lambda: LT.matmul(A, B, of(3, 5, order="F"), bias=of(5), epilogue="bias"), "Rows of out must be contiguous"),
        (lambda: LT.matmul(A, B, of(3, 5, order="F"), of(3, 5), beta=1), "c must lie in the order of out"),
        (lambda: LT.matmul(A, B, beta=1), "c must be given: beta multiplies its content and is not 0"),
        (lambda: LT.matmul(A, B, alpha=0), "alpha must not be 0"),
        (lambda: LT.matmul(A, B, alpha=2, epilogue="bgrada"), "of bgrada and bgradb it must be 1"),
        (lambda: LT.matmul(of(3, 0), of(0, 5)), "k must be at least 1"),
        (lambda: LT.matmul(A, of(4, 5, dtype="float16")), "a is float32 and b is float16; a product may be of float16"),
        (lambda: LT.matmul(A, B, dtype="float16"), "a product of float32 by float32 may be float32; not float16"),
        (lambda: LT.matmul(A, B, scale_a=ONE), "Scales are those of float8"),
        (lambda: LT.matmul(F8, F8, scale_out=ONE), "Scales are those of float8"),
        (lambda: LT.matmul(F8, F8, scale_a=TWO), "A scale has one element; or scale_a has m and scale_b n"),
        (lambda: LT.matmul(F8, F8, scale_a=of(4)), "scale_a has m and scale_b n, both"),
        (lambda: LT.matmul(F8, F8, scale_a=of(1, dtype="float64")), "not defined for float64"),
        (
            lambda: LT.matmul(F8, F8, scale_a=of(4), scale_b=of(4), dtype="float8_e4m3fn"),
            "where out is no float8",
        ),
        (lambda: LT.matmul(*[of(4, 4, dtype="float8_e5m2")] * 2), "a is float8_e5m2 and b is float8_e5m2"),
        (lambda: LT.matmul(F8, F8, dtype="float8_e4m3fn", epilogue="gelu_aux"), "Where out is a float8"),
        (lambda: LT.matmul(*[of(4, 4, dtype="int8")] * 2, alpha=0.5), "alpha and beta are whole"),
        (lambda: LT.matmul(*[of(4, 4, dtype="int8")] * 2, epilogue="relu"), "no epilogue but default"),
        (lambda: LT.matmul(F8, F8, compute="tf32"), "Only float32 can be computed as tf32"),
        (lambda: LT.matmul(A, B, epilogue="sigmoid"), "epilogue is 'sigmoid'"),
    ],
)
def test_what_cannot_be_multiplied_says_so(call: Any, message: str) -> None:
    """The error uses the caller's words, and nothing was sent."""
    with pytest.raises(errors.InvalidRequest, match=message):
        call()


def test_outputs_that_are_left_out_are_those_that_the_epilogue_has() -> None:
    """Each with its shape and type; none for an epilogue that has none."""
    shapes = {
        name: {
            key: (each.shape, each.dtype)
            for key, each in LT.matmul(
                A,
                B,
                epilogue=name,
                bias=of(5) if name.endswith("bias") else None,
                aux=None
                if not name.startswith("d") or name == "default"
                else of(3, 8)
                if "gelu" in name
                else of(3, 16, dtype="uint8"),
            )
            .results()
            .items()
        }
        for name in EPILOGUES
    }
    out = {"out": ((3, 5), "float32")}
    assert shapes["default"] == shapes["relu"] == shapes["gelu_bias"] == shapes["dgelu"] == out
    assert shapes["relu_aux"] == shapes["relu_aux_bias"] == out | {"aux_out": ((3, 16), "uint8")}
    assert shapes["gelu_aux"] == out | {"aux_out": ((3, 8), "float32")}
    assert shapes["bgrada"] == out | {"bias_grad": ((3,), "float32")}
    assert shapes["bgradb"] == shapes["drelu_bgrad"] == out | {"bias_grad": ((5,), "float32")}


def test_a_bias_goes_along_the_rows() -> None:
    """One number for each column, whatever the orders of a and b, also where a product is square."""
    for order in "CF":
        a, b = FakeArray.of(np.eye(3), "float32", order), FakeArray.of(np.zeros((3, 3)), "float32", order)
        out = of(3, 3)
        LT.matmul(a, b, out, bias=FakeArray.of([1, 2, 3], "float32"), epilogue="bias")
        np.testing.assert_array_equal(out.array, [[1, 2, 3]] * 3)


def test_gradients_go_along_the_axes_of_their_operand() -> None:
    """A sum over k for each row of a, and for each column of b; square, so that no shape tells them apart."""
    values = np.arange(9.0).reshape(3, 3)
    for name, axis in (("bgrada", 1), ("bgradb", 0)):
        gradient = of(3)
        LT.matmul(FakeArray.of(values, "float32"), FakeArray.of(values, "float32"), of(3, 3), bias_grad=gradient,
                  epilogue=name)  # fmt: skip
        np.testing.assert_array_equal(gradient.array, values.sum(axis))


def test_a_float8_is_scaled_before_it_is_rounded() -> None:
    """With the scale of the result, which few of the drawn requests have."""
    a, b = FakeArray.of([[1.0], [400.0]], "float8_e4m3fn"), FakeArray.of([[2.0]], "float8_e4m3fn")
    out = of(2, 1, dtype="float8_e4m3fn")
    LT.matmul(a, b, out, scale_out=FakeArray.of([0.5], "float32"))
    np.testing.assert_array_equal(out.array.astype(np.float32).ravel(), a.array.astype(np.float32).ravel())


def test_what_is_too_large_for_a_float8_becomes_the_largest() -> None:
    """Both signs, and exactly at the bound; what is between 256 and that is rounded, and a NaN stays one."""
    a = FakeArray.of([[448.0], [-448.0], [1.0], [0.625], [np.nan]], "float8_e4m3fn")
    out = of(5, 1, dtype="float8_e4m3fn")
    LT.matmul(a, FakeArray.of([[448.0]], "float8_e4m3fn"), out)
    np.testing.assert_array_equal(out.array.astype(np.float32).ravel(), [448, -448, 448, 288, np.nan])


def test_sums_of_integers_are_exact_and_go_round() -> None:
    """They wrap around at 32 bits."""
    a = FakeArray.of(np.full((1, 4), -128), "int8")
    out = of(1, 1, dtype="int32")
    LT.matmul(a, FakeArray.of(np.full((4, 1), -128), "int8"), out, alpha=2**16)
    assert out.array == np.int64(4 * 2**14 * 2**16).astype(np.int32)


def test_plans_are_told_apart_by_all_that_a_kernel_depends_on() -> None:
    """Orders, alignments, the epilogue, whether beta is 0; not by the factors."""
    base = LT.matmul(A, B)
    same = [LT.matmul(A, B, alpha=2), LT.matmul(of(3, 4), of(4, 5))]
    others = [
        LT.matmul(of(3, 4, order="F"), B),
        LT.matmul(A, B, epilogue="relu"),
        LT.matmul(A, B, autotune=True),
        LT.matmul(A, B, c=of(3, 5), beta=1),
        msgspec.structs.replace(base, a=FakeArray(A.layout._replace(offset=A.layout.offset + 4))),
    ]
    assert {each.plan_key() for each in same} == {base.plan_key()}
    assert len({each.plan_key() for each in (base, *others)}) == 1 + len(others)
