"""Expected results of matmul on every backend, in double precision, by the definition of each epilogue."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

from atomr_mp.protocol.declaration.strides import Order
from atomr_mp.protocol.dtypes import FLOAT8
from atomr_mp.protocol.libraries import blas_lt
from atomr_mp.protocol.libraries.base import HALF, LibraryRequest
from tests import declared
from tests.declared import Expected, factor
from tests.tolerances import tolerance

Array = npt.NDArray[Any]

EPILOGUES: Final[tuple[str, ...]] = blas_lt.Epilogue.__args__  # type: ignore[attr-defined]
PAIRS: Final = tuple(blas_lt.RESULTS)
WIDE: Final = [pair for pair in PAIRS if pair[0] not in FLOAT8]
"""Requests that stay valid if a type changes."""
LARGEST: Final = {"float8_e4m3fn": 448.0, "float8_e5m2": 57344.0}


@st.composite
def requests(
    draw: st.DrawFn,
    cls: type[blas_lt.Matmul] = blas_lt.Matmul,
    lengths: Sequence[int] = (1, 2, 3, 5, 7),
    pairs: Sequence[tuple[str, str]] = PAIRS,
    orders: Mapping[str, Order] | None = None,
    lines: int = 1,
) -> Any:
    """Draw a product: any types, epilogue, scales, orders, batches, in place too; rows in lines of so many bytes."""
    pair = draw(st.sampled_from(pairs))
    dtype = draw(st.sampled_from([None, *blas_lt.RESULTS[pair]]))
    narrow = (dtype or "") in FLOAT8
    plain = [
        each for each in EPILOGUES if not narrow or each.removesuffix("_bias") in {"default", "relu", "gelu", "bias"}
    ]
    epilogue = "default" if pair[0] == "int8" else draw(st.sampled_from(plain))
    whole = pair[0] == "int8"
    fixed = {
        "epilogue": epilogue,
        "dtype": dtype,
        "autotune": False,
        "compute": draw(st.sampled_from(["default", "tf32"])) if pair[0] == "float32" else "default",
        "alpha": 1.0 if epilogue in {"bgrada", "bgradb"} else draw(st.sampled_from([1.0, 3.0 if whole else -0.75])),
        "beta": draw(st.sampled_from([0.0, 1.0, -2.0 if whole else 0.5])),
    }
    sizes: dict[str, Any] = {name: draw(st.sampled_from(lengths)) for name in "mnk"}
    by_row = not narrow and draw(st.booleans())
    sizes["batch"] = () if by_row else draw(st.sampled_from([(), (), (2,), (2, 3)]))
    shapes = {name: (sizes[size] if by_row else 1,) for name, size in (("scale_a", "m"), ("scale_b", "n"))}
    absent = {"c"} if not fixed["beta"] and draw(st.booleans()) else set[str]()
    order: Order = draw(st.sampled_from(["row", "column"])) if epilogue in {"default", "relu", "gelu"} else "row"
    if pair[0] not in FLOAT8 or draw(st.booleans()):
        absent |= {"scale_a", "scale_b"}
    if not narrow or draw(st.booleans()):
        absent |= {"scale_out"}
    return draw(
        declared.requests(
            cls,
            fixed=fixed,
            sizes=sizes,
            letters={"A": pair[0], "B": pair[1]},
            shapes=shapes | {"scale_out": (1,)},
            absent=absent,
            orders={"out": order, "c": order, **(orders or {})},
            factors={"alpha", "beta"},
            lines=lines,
        )
    )


def assert_agrees(
    request: Any, random: np.random.Generator, run: Callable[[LibraryRequest], Any], *, fast: bool = False
) -> None:
    """Give a request's arrays random numbers, have it done, and check all of their memory.

    Args:
        request: A request whose memory is poisoned.
        random: Where the numbers are from.
        run: Does a request.
        fast: Whether tanh, sums of float8 and tf32 are those of a GPU, which are right to 2⁻¹¹ or 2⁻¹³, and tanh of
            float64 to 2⁻²⁶; half-precision sums are rounded on the way to their result.
    """
    declared.assert_agrees(request, random, run, lambda request, dense: expected(request, dense, fast=fast), numbers)


def numbers(request: Any, name: str, drawn: Array) -> Array:
    """Return numbers of all magnitudes that an array's type has; scales are positive."""
    if name == "aux" and request.aux.dtype == "uint8":
        return np.asarray(np.floor(drawn * 64 + 128))
    if name.startswith("scale"):
        return np.asarray(np.abs(drawn) + 0.25)
    return np.asarray(np.floor(drawn * 63)) if request.a.dtype == "int8" else drawn


def expected(request: blas_lt.Matmul, dense: dict[str, Array], *, fast: bool = False) -> Expected:
    """Compute by the definition."""
    alpha, beta, name = factor(request.alpha).real, factor(request.beta).real, request.epilogue
    a, b = dense["a"], dense["b"]
    factors = dense.get("scale_a", np.ones(1))[:, None] * dense.get("scale_b", np.ones(1))
    product = alpha * factors * np.einsum("...ij,...jk->...ik", a, b)
    magnitude = 4.5 * abs(alpha) * float(factors.max()) + 4.5
    length = (a.shape[-1] + 2) * (a.shape[-2] if "bgrad" in name else 1)
    terms = [product, *([beta * dense["c"]] if beta else []), *([dense["bias"]] if request.bias is not None else [])]
    total = sum(terms[1:], start=product)
    if request.scale_out is not None:
        magnitude *= float(dense["scale_out"].max())
    if fast:
        gelu = ("gelu" in name) * (24 if request.a.dtype == "float64" else 9)
        magnitude *= 2.0 ** (12 * (request.compute == "tf32") + gelu + 9 * (request.a.dtype in FLOAT8))
    halved = fast and request.out is not None and request.out.dtype in HALF
    sums = sum(np.abs(each) for each in terms)
    if halved:  # parts of a product may be rounded before they are added up
        sums = sums + np.abs(alpha * factors) * np.einsum("...ij,...jk->...ik", np.abs(a), np.abs(b)) - np.abs(product)
    unsure = tolerance("float32", length, magnitude).atol + (2.0**-7 * sums if halved else 0)
    found, defined = _stored(request, total, unsure)
    total = _activated(name, total, dense.get("aux"))
    if request.bias_grad is not None:
        summed = {"bgrada": a.sum(-1), "bgradb": b.sum(-2)}
        found["bias_grad"] = summed.get(name, total.sum(-2))
    rounded: dict[str, Array] = {}
    if halved:
        rounded = {"out": sums}
        if name.startswith("gelu_aux"):
            rounded["aux_out"] = _padded(sums, found["aux_out"].shape)
        if name in {"drelu_bgrad", "dgelu_bgrad"}:
            rounded["bias_grad"] = (sums + np.abs(total)).sum(-2)
    if request.scale_out is not None:
        total = total * dense["scale_out"]
    largest = LARGEST.get(request.out.dtype if request.out else "", np.inf)
    found["out"] = np.clip(total, -largest, largest)
    return Expected(found, length, magnitude, defined, rounded)


def _padded(values: Array, shape: tuple[int, ...]) -> Array:
    """Return values with zeros behind each row."""
    made = np.zeros(shape)
    made[..., : values.shape[-1]] = values
    return made


def _stored(request: blas_lt.Matmul, total: Array, unsure: Any) -> tuple[dict[str, Array], dict[str, Array]]:
    """Return the array stored for the gradient, and where it is defined: a sum nearer to 0 may have either sign."""
    if request.aux_out is None:
        return {}, {}
    stored = total
    certain: Array = np.ones(total.shape, np.bool)
    if "relu" in request.epilogue:
        certain = np.packbits(np.abs(total) > unsure, axis=-1, bitorder="little")
        certain = certain == np.packbits(np.ones(total.shape, np.bool), axis=-1, bitorder="little")
        certain[..., -1] &= total.shape[-1] % 8 == 0
        stored = np.packbits(total > 0, axis=-1, bitorder="little")
    shape = request.aux_out.shape
    return {"aux_out": _padded(stored, shape)}, {"aux_out": _padded(certain, shape).astype(np.bool)}


def _activated(name: str, total: Array, aux: Array | None) -> Any:
    """Return a sum behind its activation, or multiplied with the derivative at what was stored."""
    if aux is not None and name.startswith("drelu"):
        return total * np.unpackbits(aux.astype(np.uint8), axis=-1, bitorder="little")[..., : total.shape[-1]]
    if aux is not None:
        step = 1e-100  # in the imaginary direction the derivative is exact
        return total * gelu(aux[..., : total.shape[-1]] + 1j * step).imag / step
    if name.startswith("relu"):
        return np.maximum(total, 0)
    return gelu(total) if name.startswith("gelu") else total


def gelu(x: Array) -> Array:
    """Return the GELU by tanh."""
    value: Array = 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
    return value
