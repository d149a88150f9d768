from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import numpy as np
import pytest

from atomr_mp.libraries.blas import Reference as Blas
from atomr_mp.libraries.tensor import Reference as Tensor
from atomr_mp.protocol.libraries import DECLARED, requests_of, sparse
from atomr_mp_workers.libraries.sparse.structures import CheckedStructure
from tests.cases.sparse_cases import matrix_of
from tests.direct import DirectDevice, host_actor, run_by
from tests.fakes.fake_arrays import FakeArray

BLAS: Final[Any] = Blas(DirectDevice(run_by(host_actor("blas"))))
TENSOR: Final[Any] = Tensor(DirectDevice(run_by(host_actor("tensor"))))
run_sparse: Final = run_by(host_actor("sparse"))

ODD: Final = complex(np.inf, 1)
"""Times 1 + 0j this is inf + NaN·j."""
LARGE: Final = 1e200 + 1e-200j
"""Times 1e200 this is `ODD`."""


def of(value: complex, *shape: int) -> FakeArray:
    """Return an array of equal complex numbers."""
    return FakeArray.of(np.full(shape, value), "complex128")


def matrix(value: complex) -> Any:
    """Return a sparse matrix of one element."""
    it = CheckedStructure("csr", (1, 1), (1, 1), np.array([0], np.int32), np.array([0, 1], np.int32))
    made: Any = matrix_of(it, "complex128")
    made.data.array[...] = value
    return made


class Given(NamedTuple):
    """Arrays that a request reads; what it writes has NaNs."""

    odd: FakeArray
    row: FakeArray
    large: FakeArray
    scale: FakeArray
    out: FakeArray
    flat: FakeArray
    zero: FakeArray


def _axpy(it: Given) -> FakeArray:
    y = of(0, 1)
    BLAS.axpy(it.row, y)
    return y


def _scal(it: Given) -> FakeArray:
    BLAS.scal(it.row, alpha=1)
    return it.row


def _sddmm(it: Given) -> FakeArray:
    run_sparse(sparse.Sddmm(it.large, it.scale, _pattern(), it.flat))
    return it.flat


def _pattern() -> Any:
    made = matrix(0)
    return sparse.Pattern(*(getattr(made, name) for name in sparse.Pattern.__struct_fields__))


def _spgemm(_it: Given) -> Any:
    _structure, values, _facts = run_sparse(sparse.Spgemm(matrix(LARGE), matrix(1e200)))
    return values


def into(name: str, call: Callable[[Given, FakeArray], object]) -> Callable[[Given], FakeArray]:
    """Return the use of a request that writes one of the arrays, and returns it."""

    def use(it: Given) -> FakeArray:
        out: FakeArray = getattr(it, name)
        call(it, out)
        return out

    return use


USES: Final[dict[str, Callable[[Given], Any]]] = {
    "blas.axpy": _axpy,
    "blas.scal": _scal,
    "blas.ger": into("zero", lambda _it, out: BLAS.ger(out, of(LARGE, 1), of(1e200, 1))),
    "blas.gemv": into("flat", lambda it, out: BLAS.gemv(it.large, of(1e200, 1), out)),
    "blas.geam": into("out", lambda it, out: BLAS.geam(it.odd, it.odd, out, alpha=1, beta=0)),
    "blas.syrk": into("out", lambda _it, out: BLAS.syrk(of(1e200 + 5e-201j, 1, 1), out, uplo="L")),
    "blas.gemm": into("out", lambda it, out: BLAS.gemm(it.large, it.scale, out)),
    "blas.gemm_strided_batched": lambda _it: _batched(),
    "tensor.contraction": into(
        "out", lambda it, out: TENSOR.contraction(it.large, it.scale, out, modes_a="ij", modes_b="jk", modes_c="ik")
    ),
    "tensor.reduction": into("flat", lambda it, out: TENSOR.reduction(it.odd, out, modes_a="ij", modes_c="i")),
    "tensor.permutation": into("out", lambda it, out: TENSOR.permutation(it.odd, out, modes_a="ij", modes_b="ji")),
    "tensor.elementwise_binary": into(
        "out", lambda it, out: TENSOR.elementwise_binary(it.odd, of(0, 1, 1), out, modes_a="ij", modes_c="ij")
    ),
    "tensor.elementwise_trinary": into(
        "out",
        lambda it, out: TENSOR.elementwise_trinary(
            it.odd, of(0, 1, 1), of(0, 1, 1), out, modes_a="ij", modes_b="ij", modes_c="ij"
        ),
    ),
    "sparse.spmv": into("flat", lambda _it, out: run_sparse(sparse.Spmv(matrix(LARGE), of(1e200, 1), out))),
    "sparse.spmm": into("out", lambda it, out: run_sparse(sparse.Spmm(matrix(LARGE), it.scale, out))),
    "sparse.spgemm": _spgemm,
    "sparse.sddmm": _sddmm,
}  # fmt: skip
"""Requests with factors, each with factors of 1 and 0, and with arrays that give `ODD`."""

NONE_TO_TELL: Final = {
    "blas.rot": "its factors are a rotation, which multiplies whatever they are",
    "blas.trsm": "SciPy multiplies",
    "blas_lt.matmul": "has no complex numbers",
    "sparse.spsv": "its solution is made of quotients of what alpha has multiplied",
    "sparse.spsm": "its solution is made of quotients of what alpha has multiplied",
    **{f"dnn.{name}": "has no complex numbers" for name, each in requests_of("dnn").items() if each.factors()},
}


def _batched() -> FakeArray:
    out = of(complex(np.nan, np.nan), 1, 1, 1)
    BLAS.gemm_strided_batched(of(LARGE, 1, 1, 1), of(1e200, 1, 1, 1), out)
    return out


@pytest.fixture
def given() -> Given:
    """The arrays."""
    nan = complex(np.nan, np.nan)
    return Given(of(ODD, 1, 1), of(ODD, 1), of(LARGE, 1, 1), of(1e200, 1, 1), of(nan, 1, 1), of(nan, 1), of(0, 1, 1))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("name", USES)
def test_a_factor_of_one_multiplies_nothing(name: str, given: Given) -> None:
    """The finite part of an infinite complex number stays, as in NumPy's sums and products."""
    found = USES[name](given)
    assert found.array.ravel().tolist() == [ODD]


def test_each_request_with_factors_is_tried() -> None:
    """A new one belongs into one of the tables."""
    with_factors = {
        f"{library}.{name}" for library in DECLARED for name, each in requests_of(library).items() if each.factors()
    }
    assert with_factors == {*USES, *NONE_TO_TELL}


def test_a_factor_of_zero_adds_nothing() -> None:
    """The sum of -0 stays -0."""
    a, out = FakeArray.of([[-0.0]], "float64"), FakeArray.of([1.0], "float64")
    TENSOR.permutation(
        a, FakeArray(out.layout._replace(shape=(1, 1), strides=(8, 8)), out.slab), modes_a="ij", modes_b="ji"
    )
    assert np.signbit(out.array).all()
    TENSOR.reduction(a, out, modes_a="ij", modes_c="i", op_reduce="max")
    assert np.signbit(out.array).all()
