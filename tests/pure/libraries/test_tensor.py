from __future__ import annotations

from typing import Any, Final

import numpy as np
import pytest

from atomr_mp import errors
from atomr_mp.libraries.tensor import Reference
from tests.direct import DirectDevice, host_actor, run_by
from tests.fakes.fake_arrays import FakeArray

ACTOR: Final = host_actor("tensor")
run: Final = run_by(ACTOR)
TENSOR: Final[Any] = Reference(DirectDevice(run))


def of(*shape: int, dtype: str = "float32") -> FakeArray:
    """Return zeros."""
    return FakeArray.of(np.zeros(shape), dtype)


A, B = of(2, 3), of(3, 4)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: TENSOR.contraction(A, B, modes_a="ii", modes_b="ij", modes_c="j"), "'i' may be there once"),
        (lambda: TENSOR.contraction(A, B, modes_a="ij", modes_b="jk", modes_c="ii"), "modes_c is 'ii': 'i' may be"),
        (lambda: TENSOR.contraction(A, B, modes_a="ij", modes_b="ik", modes_c="jk"), "it is 2 in a, 3 in b"),
        (lambda: TENSOR.contraction(A, B, modes_a="ijk", modes_b="jk", modes_c="ik"), "a has 2 dimensions; modes_a is"),
        (lambda: TENSOR.contraction(A, B, modes_a="ij", modes_b="jk", modes_c="ix"), "a and b have no mode 'x'"),
        (lambda: TENSOR.contraction(A, B, modes_a="ij", modes_b="jk", modes_c="i"), "no other array has mode 'k' of b"),
        (
            lambda: TENSOR.contraction(A, B, of(4, 2), modes_a="ij", modes_b="jk", modes_c="ik"),
            r"c has the shape \(4, 2\); it must have \(2, 4\): the lengths of modes_c",
        ),
        (
            lambda: TENSOR.contraction(A, B, modes_a="ij", modes_b="jk", modes_c="ik", beta=1),
            "c must be given: beta multiplies",
        ),
        (
            lambda: TENSOR.contraction(of(2, 3, dtype="float64"), of(3, 4, dtype="float64"), modes_a="ij", modes_b="jk",
                                       modes_c="ik", compute="tf32"),
            "Only float32 and complex64",
        ),
        (lambda: TENSOR.contraction(A, B, modes_a="ij", modes_b="jk", modes_c="ik", op_a="exp"), "op_a is 'exp'"),
        (lambda: TENSOR.reduction(A, modes_a="ij", modes_c="k"), "a has no mode 'k'"),
        (lambda: TENSOR.reduction(of(0, 3), modes_a="ij", modes_c="j", op_reduce="max"), "no elements are not defined"),
        (
            lambda: TENSOR.reduction(of(2, dtype="complex64"), modes_a="i", modes_c="", op_reduce="max"),
            "Complex numbers have no max and min",
        ),
        (
            lambda: TENSOR.permutation(of(2, dtype="complex64"), modes_a="i", modes_b="i", op_a="relu"),
            "Complex numbers have no relu",
        ),
        (lambda: TENSOR.permutation(A, modes_a="ij", modes_b="j"), "it must have all of modes_a"),
        (lambda: TENSOR.elementwise_binary(A, B, modes_a="ij", modes_c="jk"), "c has no mode 'i' of a"),
        (lambda: TENSOR.elementwise_binary(A, of(3), modes_a="ij", modes_c="i"), "it is 3 in c, 2 in a"),
        (lambda: TENSOR.elementwise_trinary(of(3), of(9), B, modes_a="i", modes_b="x", modes_c="ij"), "no mode 'x'"),
        (lambda: TENSOR.einsum("ij,jk->ix", A, B), "has the output 'ix'; it may have each label of the operands once"),
        (lambda: TENSOR.einsum("ij,jk->ik", A), "has 2 terms for 1 operand"),
        (lambda: TENSOR.einsum("ij,jk->ik", A, A), "gives label 'j' the length 3, and 2 in operand 1"),
        (lambda: TENSOR.einsum("ijk,k->i", A, of(3)), "has the term 'ijk' for an operand with 2 dimensions"),
        (lambda: TENSOR.einsum("i*->i", A), "letters and one '...' may be there"),
        (lambda: TENSOR.einsum("...j->j", A), "without '...', which the operands have"),
        (lambda: TENSOR.einsum("->"), "has 1 term for 0 operands|nothing that was given tells"),
        (lambda: TENSOR.einsum("ij,jk->ik", A, np.zeros((3, 4))), r"operands\[1\] is of type ndarray"),
    ],
)  # fmt: skip
def test_what_cannot_be_done_says_so(call: Any, message: str) -> None:
    """The error uses the caller's words, and nothing was sent."""
    with pytest.raises(errors.InvalidRequest, match=message):
        call()


def test_plans_know_the_strides() -> None:
    """Arrays of equal shape and another layout get a plan of their own."""
    keys = {
        TENSOR.permutation(each, modes_a="ij", modes_b="ji").plan_key()
        for each in (of(3, 3), FakeArray.of(np.zeros((3, 3)), "float32", "F"), of(3, 6)[:, ::2])
    }
    assert len(keys) == 3


def test_einsum_takes_the_order_with_the_least_work() -> None:
    """A chain of a vector at its end is done from there: no matrix of matrices is made."""
    operands = [of(40, 40), of(40, 40), of(40, 40), of(40)]
    plan = ACTOR.prepare_einstein_sum(TENSOR.einsum("ij,jk,kl,l->i", *operands, out=None).__class__(
        operands, "ij,jk,kl,l->i", of(40)))  # fmt: skip
    assert [step.target.shape for step, _ in plan.steps] == [(40,)] * 3
