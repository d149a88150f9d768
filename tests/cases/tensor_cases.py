"""What every backend's tensor operations must give: NumPy's einsum and functions in double precision."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

from atomr_mp.protocol.declaration.arguments import declared as fields_of
from atomr_mp.protocol.declaration.subscripts import Expression
from atomr_mp.protocol.libraries import requests_of, tensor
from atomr_mp.protocol.libraries.base import COMPLEX, LibraryRequest, scalar
from tests import declared, layouts
from tests.declared import Expected

Array = npt.NDArray[Any]

REQUESTS: Final = requests_of("tensor")
FACTORS: Final = ("alpha", "beta", "gamma")
EXACT: Final = frozenset({"identity", "conj", "neg", "relu", "abs", "ceil", "floor"})
"""Operators whose result is a number of the type."""

LARGEST: Final = {dtype: np.finfo(np.float64 if dtype in {"float64", "complex128"} else np.float32).max / 1e3
                  for dtype in tensor.TYPES}  # fmt: skip
"""Far enough below the largest number of the type that products are computed in."""

UNARY: Final[dict[str, Callable[[Array], Any]]] = {
    "identity": lambda x: x, "sqrt": np.sqrt, "relu": lambda x: np.where(x > 0, x, 0), "conj": np.conj,
    "rcp": np.reciprocal, "sigmoid": lambda x: np.exp(x) / (1 + np.exp(x)), "tanh": np.tanh, "exp": np.exp,
    "log": np.log, "abs": np.abs, "neg": np.negative, "sin": np.sin, "cos": np.cos, "tan": np.tan, "sinh": np.sinh,
    "cosh": np.cosh, "asin": np.arcsin, "acos": np.arccos, "atan": np.arctan, "asinh": np.arcsinh,
    "acosh": np.arccosh, "atanh": np.arctanh, "ceil": np.ceil, "floor": np.floor,
    "mish": lambda x: x * np.tanh(np.log(1 + np.exp(x))), "swish": lambda x: x * np.exp(x) / (1 + np.exp(x)),
    "soft_plus": lambda x: np.log(1 + np.exp(x)), "soft_sign": lambda x: x / (1 + np.abs(x)),
}  # fmt: skip
BINARY: Final[dict[str, Any]] = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}

EXPRESSIONS: Final = (
    "ij,jk->ik", "bij,bjk->bik", "ij,jk,kl->il", "i,j->ij", "ij->", "ij->ji", "ii->i", "ii", "iij,j->i", "ijk,jk",
    "...ij,...jk->...ik", "...i->...", "ij,ij->", "ij,kj,k->i", "ab,bc,cd,de->ae", "ijj,k->ki", "i,i,i->i", "ji",
)  # fmt: skip


@st.composite
def requests(draw: st.DrawFn, cls: type[LibraryRequest], lengths: Sequence[int] = (1, 2, 3, 5)) -> Any:
    """Draw a request with any modes, strides, operators and factors."""
    dtype = draw(st.sampled_from(tensor.TYPES))
    if cls is tensor.EinsteinSum:
        return draw(einsums(dtype, lengths))
    of = {mode: draw(st.sampled_from(lengths)) for mode in draw(st.permutations("ijklm"))}
    if draw(st.integers(0, 15)) == 0:
        of["i"] = 0
    modes = {
        tensor.Contraction: _contraction, tensor.Reduction: _reduction, tensor.Permutation: _permutation,
        tensor.ElementwiseBinary: _elementwise, tensor.ElementwiseTrinary: _elementwise,
    }[cls](draw)  # fmt: skip
    fields = cls.__struct_fields__
    fixed: dict[str, Any] = {f"modes_{name}": found for name, found in modes.items() if f"modes_{name}" in fields}
    unary = [each for each in UNARY if dtype not in COMPLEX or each not in tensor.OF_REALS]
    linear = cls is tensor.Contraction
    for name in fields:
        if name in {"op_a", "op_b", "op_c"}:
            fixed[name] = draw(st.sampled_from(["identity", "conj"] if linear else unary))
        elif name.startswith("op_"):
            fixed[name] = draw(st.sampled_from(["add", "mul"] if dtype in COMPLEX else list(BINARY)))
    if fixed.get("op_reduce") in {"max", "min"}:
        of["i"] = of["i"] or 1
    if linear:
        fixed["compute"] = "default"
    shapes = {name: tuple(of[mode] for mode in found) for name, found in modes.items()}
    return draw(declared.requests(cls, fixed=fixed, letters={"T": dtype}, shapes=shapes | {"d": shapes.get("c", ())}))


def _some(draw: st.DrawFn, letters: str, most: int = 3) -> str:
    return "".join(draw(st.lists(st.sampled_from(letters), max_size=most, unique=True))) if letters else ""


def _contraction(draw: st.DrawFn) -> dict[str, str]:
    summed, batch = _some(draw, "ij", 2), _some(draw, "k", 1)
    parts = (summed + batch + _some(draw, "l", 1), summed + batch + _some(draw, "m", 1))
    a, b = ("".join(draw(st.permutations(part))) for part in parts)
    c = "".join(draw(st.permutations("".join(mode for mode in "klm" if mode in a + b))))
    return {"a": a, "b": b, "c": c}


def _reduction(draw: st.DrawFn) -> dict[str, str]:
    a = _some(draw, "ijkl", 4)
    return {"a": a, "c": _some(draw, a)}


def _permutation(draw: st.DrawFn) -> dict[str, str]:
    a = _some(draw, "ijkl", 4)
    return {"a": a, "b": "".join(draw(st.permutations(a)))}


def _elementwise(draw: st.DrawFn) -> dict[str, str]:
    c = _some(draw, "ijkl", 4)
    return {"a": _some(draw, c), "b": _some(draw, c), "c": c}


@st.composite
def einsums(draw: st.DrawFn, dtype: str, lengths: Sequence[int]) -> Any:
    """Draw a sum of products."""
    subscripts = draw(st.sampled_from(EXPRESSIONS))
    of = {letter: draw(st.sampled_from(lengths)) for letter in "abcdeijkl"}
    unnamed = draw(st.sampled_from([(), (2,), (3, 2)]))
    operands: list[Any] = []
    for term in subscripts.partition("->")[0].split(","):
        shape = [*(unnamed if "..." in term else ()), *(of[letter] for letter in term.removeprefix("..."))]
        argument = fields_of(tensor.EinsteinSum).lists["operands"]
        operands.append(draw(layouts.placed(tuple(shape), dtype, argument)))
    found = Expression(subscripts, [each.shape for each in operands])
    argument = fields_of(tensor.EinsteinSum).arrays["out"]
    out = draw(layouts.placed(tuple(found.lengths[label] for label in found.output), dtype, argument))
    return tensor.EinsteinSum(operands, subscripts, out)


def numbers(request: Any, name: str, drawn: Array) -> Any:
    """Return numbers for which an operator is defined, and far from where it is steep."""
    operator = getattr(request, f"op_{name}", "identity")
    magnitudes = np.abs(drawn.real) * 0.4
    if operator in {"asin", "acos", "atanh", "tan"}:
        return np.asarray(drawn * 0.3)
    if operator in {"sqrt", "rcp", "log"}:
        return magnitudes + 0.5
    if operator == "acosh":
        return magnitudes + 1.5
    return np.round(drawn * 4) / 4 + 0.125 if operator in {"ceil", "floor"} else drawn


def assert_agrees(
    request: Any, random: np.random.Generator, run: Callable[[LibraryRequest], Any], *, fast: bool = False
) -> None:
    """Give a request's arrays random numbers, have it done, and check all of their memory.

    Args:
        request: A request whose memory is poisoned.
        random: Where the numbers are from.
        run: Does a request.
        fast: Whether functions such as tanh are those of the hardware, which are right to 2⁻¹¹.
    """
    declared.assert_agrees(request, random, run, lambda request, dense: expected(request, dense, fast=fast), numbers)


def expected(request: Any, dense: dict[str, Array], *, fast: bool = False) -> Expected:
    """Compute by NumPy."""
    with np.errstate(all="ignore"):
        found = EXPECTED[request.name](request, dense)
    operators = {getattr(request, name, "identity") for name in ("op_a", "op_b", "op_c")}
    return found._replace(magnitude=found.magnitude * 2**8) if fast and operators - EXACT else found


def _term(request: Any, dense: dict[str, Array], name: str, factor: str) -> Any:
    """Return a factor times what the operator makes of an array; 0 is 0 whatever the array."""
    value = scalar(getattr(request, factor))
    return value * UNARY[getattr(request, f"op_{name}")](dense[name]) if value else np.zeros_like(dense[name])


def _closeness(*values: Any) -> tuple[int, float]:
    """Return terms and magnitude for a tolerance: an operator may be off by a few roundings of its result."""
    largest = max(
        (float(np.abs(each[np.isfinite(each)]).max(initial=0)) for each in map(np.asarray, values)), default=0
    )
    return 8, max(1.0, largest)


def _contracted(request: Any, dense: dict[str, Array]) -> Expected:
    a, b = _term(request, dense, "a", "alpha"), UNARY[request.op_b](dense["b"])
    order = {mode: number for number, mode in enumerate("ijklm")}
    modes = [[order[mode] for mode in each] for each in (request.modes_a, request.modes_b, request.modes_c)]
    total = np.einsum(a, modes[0], b if scalar(request.alpha) else np.zeros_like(b), modes[1], modes[2])
    terms = int(np.prod([n for mode, n in zip(request.modes_a, a.shape, strict=True) if mode not in request.modes_c]))
    return Expected({"c": total + _term(request, dense, "c", "beta")}, terms + 1, 24.0)


def _reduced(request: Any, dense: dict[str, Array]) -> Expected:
    values = UNARY[request.op_a](dense["a"])
    axes = tuple(at for at, mode in enumerate(request.modes_a) if mode not in request.modes_c)
    left = [mode for mode in request.modes_a if mode in request.modes_c]
    total = BINARY[request.op_reduce].reduce(values, axis=axes) if axes else values
    total = np.transpose(total, [left.index(mode) for mode in request.modes_c])
    value = scalar(request.alpha)
    total = (value * total if value else np.zeros_like(total)) + _term(request, dense, "c", "beta")
    count = max(1, values.size)
    length, magnitude = _closeness(values, total)
    defined: Any = True
    if request.op_reduce == "mul":  # in another order, products of less than all may be infinite
        largest = np.prod(np.maximum(np.sqrt(2) * np.abs(values), 1), axis=axes)
        defined = np.transpose(largest, [left.index(mode) for mode in request.modes_c]) < LARGEST[request.a.dtype]
    return Expected({"c": total}, length * count, magnitude, {"c": defined})


def _permuted(request: Any, dense: dict[str, Array]) -> Expected:
    values = _term(request, dense, "a", "alpha")
    total = np.transpose(values, [request.modes_a.index(mode) for mode in request.modes_b])
    return Expected({"b": total}, *_closeness(total))


def _spread(request: Any, values: Array, modes: str) -> Array:
    order = [mode for mode in request.modes_c if mode in modes]
    turned = np.transpose(values, [modes.index(mode) for mode in order])
    return turned[tuple(slice(None) if mode in modes else None for mode in request.modes_c)]


def _binary(request: Any, dense: dict[str, Array]) -> Expected:
    a = _spread(request, _term(request, dense, "a", "alpha"), request.modes_a)
    c = _term(request, dense, "c", "gamma")
    return Expected({"d": BINARY[request.op_ac](a, c)}, *_closeness(a, c, BINARY[request.op_ac](a, c)))


def _trinary(request: Any, dense: dict[str, Array]) -> Expected:
    a = _spread(request, _term(request, dense, "a", "alpha"), request.modes_a)
    b = _spread(request, _term(request, dense, "b", "beta"), request.modes_b)
    c = _term(request, dense, "c", "gamma")
    inner = BINARY[request.op_ab](a, b)
    total = BINARY[request.op_abc](inner, c)
    return Expected({"d": total}, *_closeness(a, b, c, inner, total))


def _einsum(request: tensor.EinsteinSum, dense: dict[str, Array]) -> Expected:
    operands = [dense[f"operands[{number}]"] for number in range(len(request.operands))]
    total = np.einsum(request.subscripts, *operands)
    terms = int(np.prod([max(1, each.size) for each in operands]))
    magnitude = 3.0 ** len(operands) * terms
    if len(operands) > 1 and request.operands[0].dtype in {"float16", "bfloat16"}:
        magnitude *= 2.0**16 / 2**2  # what is between the steps is rounded to the type
    return Expected({"out": total}, 4, magnitude)


EXPECTED: Final[dict[str, Callable[[Any, dict[str, Array]], Expected]]] = {
    "contraction": _contracted,
    "reduction": _reduced,
    "permutation": _permuted,
    "elementwise_binary": _binary,
    "elementwise_trinary": _trinary,
    "einstein_sum": _einsum,
}
