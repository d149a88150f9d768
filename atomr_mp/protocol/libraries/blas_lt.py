"""Matrix products, with the operations that cuBLASLt has for the same kernel. Pure.

out ← scale_out·epilogue(alpha·scale_a·scale_b·(a·b) + beta·c + bias). Everything is computed in float32,
float64 arrays in float64 and int8 in int32, and rounded once. Numbers too large for a float8 become the largest one.

The epilogues have cuBLASLt's names: "relu" and "gelu" (by tanh) are applied to the sum; "bias" adds a vector to each
row first; "aux" stores what the gradient needs in `aux_out`. "drelu" and "dgelu" multiply the sum with the derivative
at what was stored, `aux`, and "bgrad" sums the result over its rows for the gradient of the bias. "bgrada" and
"bgradb" leave the product as it is, and sum a or b over k.

A row of `aux` is longer than one of out: cuBLASLt wants whole units. For ReLU it has a bit for each element, the lowest
first, 1 where the sum was positive; for GELU it has the sums. Its content beyond the row of out is undefined.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, ClassVar, Final, Literal

from atomr_mp import errors
from atomr_mp.protocol.declaration.arguments import Sizes, reads, writes
from atomr_mp.protocol.declaration.checks import is_zero
from atomr_mp.protocol.declaration.factors import Factor
from atomr_mp.protocol.declaration.strides import Order, leading, matrices, packed
from atomr_mp.protocol.dtypes import FLOAT8
from atomr_mp.protocol.libraries.base import LibraryRequest, Rest, scalar
from atomr_mp.protocol.refs import Operand

Epilogue = Literal[
    "default", "relu", "relu_aux", "bias", "relu_bias", "relu_aux_bias", "drelu", "drelu_bgrad", "gelu", "gelu_aux",
    "gelu_bias", "gelu_aux_bias", "dgelu", "dgelu_bgrad", "bgrada", "bgradb",
]  # fmt: skip

Result = Literal["float16", "bfloat16", "float32", "float64", "int32", "float8_e4m3fn", "float8_e5m2"]

Compute = Literal["default", "tf32"]

E4M3: Final = "float8_e4m3fn"
E5M2: Final = "float8_e5m2"
INPUTS: Final = ("float16", "bfloat16", "float32", "float64", "int8", E4M3, E5M2)

RESULTS: Final[dict[tuple[str, str], tuple[str, ...]]] = {
    ("float16", "float16"): ("float16", "float32"),
    ("bfloat16", "bfloat16"): ("bfloat16", "float32"),
    ("float32", "float32"): ("float32",),
    ("float64", "float64"): ("float64",),
    ("int8", "int8"): ("int32",),
    (E4M3, E4M3): ("bfloat16", "float16", "float32", E4M3),
    (E4M3, E5M2): ("bfloat16", "float16", "float32", E4M3, E5M2),
    (E5M2, E4M3): ("bfloat16", "float16", "float32", E4M3, E5M2),
}
"""Element types that a product may have, by those of a and b; the first is the default (cublasLtMatmul)."""

MASK_BYTES: Final = 16
"""A row of a ReLU's bits is a multiple of this."""
GELU_UNIT: Final = 8
"""Elements; a row of a GELU's sums is a multiple of this."""
ALIGNED_BYTES: Final = 16
"""Memory for an epilogue begins at a multiple of this."""
LONGEST: Final = 2**31 - 1
"""Largest length of a dimension, and of a batch (cublasLtMatrixLayoutAttribute_t)."""


def adds_bias(request: Any) -> bool:
    """For the epilogues that end with bias."""
    return bool(request.epilogue.endswith("bias"))


def stores_aux(request: Any) -> bool:
    """For the epilogues with aux."""
    return "_aux" in request.epilogue


def takes_aux(request: Any) -> bool:
    """For the epilogues drelu, drelu_bgrad, dgelu and dgelu_bgrad."""
    return bool(request.epilogue.startswith(("drelu", "dgelu")))


def sums_gradient(request: Any) -> bool:
    """For the epilogues with bgrad."""
    return "bgrad" in request.epilogue


def dtype_of_out(request: Any) -> str:
    """Return the element type of the result."""
    pair = request.a.dtype, request.b.dtype
    if pair not in RESULTS:
        pairs = ", ".join(f"{a} by {b}" for a, b in RESULTS)
        raise errors.InvalidRequest(f"a is {pair[0]} and b is {pair[1]}; a product may be of {pairs}")
    out = getattr(request, "out", None)
    wanted = request.dtype or (out.dtype if out is not None else RESULTS[pair][0])
    if wanted not in RESULTS[pair]:
        raise errors.InvalidRequest(
            f"a product of {pair[0]} by {pair[1]} may be {', '.join(RESULTS[pair])}; not {wanted}"
        )
    return str(wanted)


def _dtype_of_c(request: Any) -> str:
    """Return the type of the addend."""
    out = dtype_of_out(request)
    return "bfloat16" if out in FLOAT8 else out


def _dtype_of_bias(request: Any) -> str:
    """Return the type of a bias and its gradient."""
    return "bfloat16" if request.a.dtype in FLOAT8 and dtype_of_out(request) != "float16" else dtype_of_out(request)


def _dtype_of_aux(request: Any) -> str:
    """Return the type of the values stored for the gradient."""
    return "uint8" if "relu" in request.epilogue else dtype_of_out(request)


def _as_stored(request: Any, sizes: Sizes) -> tuple[int, ...]:
    """(*batch, m, 16·⌈n / 128⌉) of a ReLU, (*batch, m, 8·⌈n / 8⌉) of a GELU."""
    n = sizes["n"]
    row = MASK_BYTES * -(-n // (8 * MASK_BYTES)) if "relu" in request.epilogue else GELU_UNIT * -(-n // GELU_UNIT)
    return *sizes["batch"], sizes["m"], row


def _as_summed(request: Any, sizes: Sizes) -> tuple[int, ...]:
    """(*batch, m) for bgrada, else (*batch, n)."""
    return *sizes["batch"], sizes["m"] if request.epilogue == "bgrada" else sizes["n"]


def _has_terms(request: Any, sizes: Sizes) -> bool:
    """The length k must be at least 1; with a bias gradient all lengths must be."""
    lengths = (sizes["m"], sizes["n"], *sizes["batch"]) if sums_gradient(request) else ()
    return all((sizes["k"], *lengths))


def _is_not_too_long(_request: Any, sizes: Sizes) -> bool:
    """The lengths m, n and k, and the number of matrices, must be below 2^31."""
    return bool(max(sizes["m"], sizes["n"], sizes["k"], math.prod(sizes["batch"])) <= LONGEST)


def _multiplies(request: Any, _sizes: Sizes) -> bool:
    """The factor alpha must not be 0, since a and b are read in any case; of bgrada and bgradb it must be 1."""
    alpha = request.alpha
    return alpha in {1, (1.0, 0.0)} if request.epilogue in {"bgrada", "bgradb"} else not is_zero(alpha)


def _lies_in_one_order(request: Any, _sizes: Sizes) -> bool:
    """Rows of out must be contiguous with any epilogue but default, relu and gelu; c must lie in the order of out."""
    return order_of(request) is not None


def _has_whole_factors(request: Any, _sizes: Sizes) -> bool:
    """Products of int8 have no epilogue but default, and alpha and beta are whole and below 2^31."""
    factors = [scalar(each) for each in (request.alpha, request.beta) if not isinstance(each, Operand)]
    return request.a.dtype != "int8" or (
        request.epilogue == "default" and all(abs(each) <= LONGEST and each == int(each.real) for each in factors)
    )


def _scales_float8(request: Any, _sizes: Sizes) -> bool:
    """Scales are those of float8: scale_a and scale_b where a and b are, scale_out where out is."""
    scaled = request.scale_a is not None or request.scale_b is not None
    return (request.a.dtype in FLOAT8 or not scaled) and (request.scale_out is None or dtype_of_out(request) in FLOAT8)


def _has_numbers_for_float8(request: Any, _sizes: Sizes) -> bool:
    """Where out is a float8, alpha and beta must be numbers; scale_a, scale_b and scale_out are on the device."""
    arrays = isinstance(request.alpha, Operand) or isinstance(request.beta, Operand)
    return not arrays or dtype_of_out(request) not in FLOAT8


def _has_scales_that_fit(request: Any, sizes: Sizes) -> bool:
    """A scale has one element; or scale_a has m and scale_b n, both, without a batch, where out is no float8."""
    if request.scale_out is not None and request.scale_out.shape != (1,):
        return False
    shapes = [None if each is None else each.shape for each in (request.scale_a, request.scale_b)]
    if all(shape in {None, (1,)} for shape in shapes):
        return True
    by_row = shapes == [(sizes["m"],), (sizes["n"],)]
    return bool(by_row and not sizes["batch"] and dtype_of_out(request) not in FLOAT8)


def _stores_no_float8(request: Any, _sizes: Sizes) -> bool:
    """Where out is a float8, the epilogue must be default, relu or gelu, with bias or without."""
    plain = not (stores_aux(request) or takes_aux(request) or sums_gradient(request))
    return plain or dtype_of_out(request) not in FLOAT8


def _can_be_tf32(request: Any, _sizes: Sizes) -> bool:
    """Only float32 can be computed as tf32."""
    return bool(request.compute == "default" or request.a.dtype == "float32")


def _is_aligned(request: Any, _sizes: Sizes) -> bool:
    """Memory of bias, aux, bias_grad, aux_out and longer scales must begin at a multiple of 16 bytes."""
    scales = [each for each in (request.scale_a, request.scale_b) if each is not None and each.shape != (1,)]
    arrays = request.bias, request.aux, request.bias_grad, request.aux_out, *scales
    return all(each is None or each.layout.offset % ALIGNED_BYTES == 0 for each in arrays)


def order_of(request: Any) -> Order | None:
    """Return the order in which the result is computed; None if out and c do not lie as the epilogue wants it.

    Vectors of an epilogue go along rows of a matrix in column order, as cuBLASLt has it: along columns of one in row
    order.
    """
    orders: tuple[Order, ...] = ("row", "column") if request.epilogue in {"default", "relu", "gelu"} else ("row",)
    given = [each.layout for each in (request.out, request.c) if each is not None]
    return next((order for order in orders if all(leading(each, order) for each in given)), None)


class Matmul(LibraryRequest, frozen=True):
    """Compute out ← scale_out·epilogue(alpha·scale_a·scale_b·(a·b) + beta·c + bias).

    The result is a ref to out, or a list of refs to those of out, bias_grad and aux_out, in this order, that the
    epilogue has and that were left out. Matrices that are read may be the same for all of a batch: a stride of 0.

    On CUDA cuBLASLt decides whether it has a kernel; if not, the reply is `Unsupported`, and nothing has run. For
    float8 and int8 it wants rows of a, columns of b and lengths that are multiples of 16 bytes.
    """

    name: ClassVar = "matmul"
    types: ClassVar = {"A": INPUTS, "B": INPUTS, "S": ("float32",)}
    rules: ClassVar = (
        _has_terms,
        _is_not_too_long,
        _multiplies,
        _lies_in_one_order,
        _has_whole_factors,
        _scales_float8,
        _has_numbers_for_float8,
        _has_scales_that_fit,
        _stores_no_float8,
        _can_be_tf32,
        _is_aligned,
    )
    rest: ClassVar = Rest.UNCHANGED
    work: ClassVar = "2 batch m n k"
    a: Annotated[Operand, reads("*batch m k", dtype="A", lies=matrices)]
    b: Annotated[Operand, reads("*batch k n", dtype="B", lies=matrices)]
    out: Annotated[Operand | None, writes("*batch m n", dtype=dtype_of_out, lies=matrices, alias=("c",))] = None
    c: Annotated[Operand | None, reads("*batch m n", dtype=_dtype_of_c, lies=matrices, factor="beta")] = None
    """Has the type of out; bfloat16 if that is a float8."""
    bias: Annotated[Operand | None, reads("n", dtype=_dtype_of_bias, lies=packed, where=adds_bias)] = None
    """Has the type of out; bfloat16 where a is a float8 and out no float16. The same for all of a batch."""
    aux: Annotated[Operand | None, reads(_as_stored, dtype=_dtype_of_aux, lies=packed, where=takes_aux)] = None
    """The values that the forward pass has stored: uint8 for a ReLU, the type of out for a GELU."""
    bias_grad: Annotated[Operand | None, writes(_as_summed, dtype=_dtype_of_bias, lies=packed, where=sums_gradient)] = (
        None
    )
    """Has the type of bias."""
    aux_out: Annotated[Operand | None, writes(_as_stored, dtype=_dtype_of_aux, lies=packed, where=stores_aux)] = None
    """The values that the gradient will need, in the form that aux takes."""
    scale_a: Annotated[Operand | None, reads("_", dtype="S", lies=packed)] = None
    """For float8: float32, one for all of a, or m, one for each row; 1 if left out."""
    scale_b: Annotated[Operand | None, reads("_", dtype="S", lies=packed)] = None
    """For float8: float32, one for all of b, or n, one for each column; 1 if left out."""
    scale_out: Annotated[Operand | None, reads("_", dtype="S", lies=packed)] = None
    """For a float8 result: one float32 by which it is multiplied before it is rounded; 1 if left out."""
    alpha: Factor = 1.0
    beta: Factor = 0.0
    epilogue: Epilogue = "default"
    """The operations that follow the product."""
    dtype: Result | None = None
    """The element type of out if out is left out; by default that of a, bfloat16 for float8, int32 for int8."""
    autotune: bool = False
    """Time the algorithms that cuBLASLt proposes when the plan is made, and take the fastest; otherwise its first."""
    compute: Compute = "default"
    """"tf32" lets tensor cores round the factors of each product to 11 bits, where there are any; float32 only."""
