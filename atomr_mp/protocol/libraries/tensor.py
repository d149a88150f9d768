"""Contractions, reductions, permutations and elementwise operations on tensors whose modes have names. Pure.

A mode is a dimension with a name: one character. `modes_a="ik"` names the two of a. Arrays that have a mode in common
have the same length in it; no array has one twice (`einsum` takes diagonals). Any strides fit.

Operators are applied to each element before it is multiplied by its factor. An array with a factor of 0 is not read,
and counts as 0. Half precision is computed in float32, and rounded once.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Annotated, Any, ClassVar, Final, Literal

from msgspec import Meta

from atomr_mp import errors
from atomr_mp.protocol.declaration.arguments import Sizes, reads, writes
from atomr_mp.protocol.declaration.factors import Scalar
from atomr_mp.protocol.declaration.subscripts import MOST_MODES, Expression
from atomr_mp.protocol.libraries.base import COMPLEX, FULL, HALF, LibraryRequest
from atomr_mp.protocol.refs import Operand
from atomr_mp.protocol.words import counted

Modes = Annotated[str, Meta(max_length=MOST_MODES)]
Subscripts = Annotated[str, Meta(max_length=1024)]

Linear = Literal["identity", "conj"]
Unary = Literal[
    "identity", "sqrt", "relu", "conj", "rcp", "sigmoid", "tanh", "exp", "log", "abs", "neg", "sin", "cos", "tan",
    "sinh", "cosh", "asin", "acos", "atan", "asinh", "acosh", "atanh", "ceil", "floor", "mish", "swish", "soft_plus",
    "soft_sign",
]  # fmt: skip
Binary = Literal["add", "mul", "max", "min"]
Compute = Literal["default", "tf32"]

OF_REALS: Final = frozenset({"relu", "sigmoid", "abs", "ceil", "floor", "mish", "swish", "soft_plus", "soft_sign"})
"""Operators that are not defined for complex numbers."""

TYPES: Final = (*HALF, *FULL)


def extents(request: Any, names: Iterable[str]) -> dict[str, int]:
    """Return the length of each mode of some arrays.

    Raises:
        InvalidRequest: An array has another number of modes than dimensions, or one twice, or two arrays differ.
    """
    found: dict[str, int] = {}
    first: dict[str, str] = {}
    for name in names:
        shape, modes = getattr(request, name).shape, checked(request, name)
        if len(modes) != len(shape):
            raise errors.InvalidRequest(
                f"{name} has {counted(len(shape), 'dimension')}; modes_{name} is {modes!r}, which names {len(modes)}"
            )
        for mode, length in zip(modes, shape, strict=True):
            if found.setdefault(mode, length) != length:
                raise errors.InvalidRequest(
                    f"mode {mode!r} must have one length; it is {found[mode]} in {first[mode]}, {length} in {name}"
                )
            first.setdefault(mode, name)
    if len(found) > MOST_MODES:
        raise errors.InvalidRequest(f"{request.name} takes up to {MOST_MODES} modes; there are {len(found)}")
    return found


def checked(request: Any, name: str) -> str:
    """Return the modes of an array, each of which it has once.

    Raises:
        InvalidRequest: It has one twice.
    """
    modes: str = getattr(request, f"modes_{name}")
    twice = next((mode for mode in modes if modes.count(mode) > 1), None)
    if twice is not None:
        raise errors.InvalidRequest(f"modes_{name} is {modes!r}: {twice!r} may be there once; einsum takes diagonals")
    return modes


def _known(request: Any, name: str, found: dict[str, int], of: str) -> tuple[int, ...]:
    """Return the shape that the modes of an output tell."""
    modes = checked(request, name)
    unknown = next((mode for mode in modes if mode not in found), None)
    if unknown is not None:
        raise errors.InvalidRequest(f"modes_{name} is {modes!r}: {of} no mode {unknown!r}")
    return tuple(found[mode] for mode in modes)


def _as_contracted(request: Any, _sizes: Sizes) -> tuple[int, ...]:
    """The lengths of modes_c; modes of a and b that c does not have are summed."""
    found = extents(request, ("a", "b"))
    shape = _known(request, "c", found, "a and b have")
    for name, other in (("a", "b"), ("b", "a")):
        alone = set(getattr(request, f"modes_{name}")) - set(getattr(request, f"modes_{other}")) - set(request.modes_c)
        if alone:
            raise errors.InvalidRequest(
                f"no other array has mode {min(alone)!r} of {name}: sum over it by a reduction first, or use einsum"
            )
    return shape


def _as_reduced(request: Any, _sizes: Sizes) -> tuple[int, ...]:
    """The lengths of modes_c, which a has; its others are reduced."""
    return _known(request, "c", extents(request, ("a",)), "a has")


def _as_permuted(request: Any, _sizes: Sizes) -> tuple[int, ...]:
    """The lengths of modes_b, which are those of a in another order."""
    shape = _known(request, "b", extents(request, ("a",)), "a has")
    if len(request.modes_b) != len(request.modes_a):
        raise errors.InvalidRequest(
            f"modes_b is {request.modes_b!r}; it must have all of modes_a, which is {request.modes_a!r}"
        )
    return shape


def _as_c(request: Any, _sizes: Sizes) -> tuple[int, ...]:
    """As c, which has all modes of the others."""
    names = ("a", "b") if hasattr(request, "modes_b") else ("a",)
    extents(request, ("c", *names))
    for name in names:
        _known_to_c = set(getattr(request, f"modes_{name}")) - set(request.modes_c)
        if _known_to_c:
            raise errors.InvalidRequest(f"c has no mode {min(_known_to_c)!r} of {name}; it must have all of them")
    return tuple(request.c.shape)


def _has_order(request: Any, _sizes: Sizes) -> bool:
    """Complex numbers have no max and min."""
    operators = (getattr(request, name, "") for name in ("op_reduce", "op_ac", "op_ab", "op_abc"))
    return request.a.dtype not in COMPLEX or not {"max", "min"} & set(operators)


def _has_complex_form(request: Any, _sizes: Sizes) -> bool:
    """Complex numbers have no relu, sigmoid, abs, ceil, floor, mish, swish, soft_plus and soft_sign."""
    operators = (getattr(request, name, "") for name in ("op_a", "op_b", "op_c"))
    return request.a.dtype not in COMPLEX or not OF_REALS & set(operators)


def _can_be_tf32(request: Any, _sizes: Sizes) -> bool:
    """Only float32 and complex64 can be computed as tf32."""
    first = request.operands[0] if hasattr(request, "operands") else request.a
    return request.compute == "default" or first.dtype in {"float32", "complex64"}


def _has_elements(request: Any, sizes: Sizes) -> bool:
    """The max and min of no elements are not defined."""
    return request.op_reduce in {"add", "mul"} or request.a.size > 0 or not math.prod(_as_reduced(request, sizes))


def _has_operands(request: Any, _sizes: Sizes) -> bool:
    """There must be 1 to 32 operands."""
    return 1 <= len(request.operands) <= 32


class Contraction(LibraryRequest, frozen=True):
    """Compute c ← alpha·Σ op_a(a)·op_b(b) + beta·op_c(c), the sum over the modes that c does not have."""

    name: ClassVar = "contraction"
    types: ClassVar = {"T": TYPES}
    rules: ClassVar = (_can_be_tf32,)
    a: Annotated[Operand, reads("*_", factor="alpha")]
    b: Annotated[Operand, reads("*_", factor="alpha")]
    modes_a: Modes
    """The name of each dimension of a, as "ik"."""
    modes_b: Modes
    """The name of each dimension of b, as "kj"."""
    modes_c: Modes
    """The name of each dimension of c, as "ij"."""
    c: Annotated[Operand | None, writes(_as_contracted, factor="beta")] = None
    alpha: Scalar = 1.0
    beta: Scalar = 0.0
    op_a: Linear = "identity"
    """The operator on a: "identity" or "conj"."""
    op_b: Linear = "identity"
    """The operator on b: "identity" or "conj"."""
    op_c: Linear = "identity"
    """The operator on the old content of c: "identity" or "conj"."""
    compute: Compute = "default"
    """"tf32" lets tensor cores round the factors of each product to 11 bits, where there are any; float32 and
    complex64 only."""

    def flops(self) -> int:
        """Return a product and a sum for each term."""
        return 2 * math.prod(extents(self, ("a", "b")).values())


class Reduction(LibraryRequest, frozen=True):
    """Compute c ← alpha·op_reduce(op_a(a)) + beta·op_c(c), reduced over the modes that c does not have."""

    name: ClassVar = "reduction"
    types: ClassVar = {"T": TYPES}
    rules: ClassVar = (_has_order, _has_complex_form, _has_elements)
    work: ClassVar = "a.size"
    a: Annotated[Operand, reads("*_", factor="alpha")]
    modes_a: Modes
    """The name of each dimension of a."""
    modes_c: Modes
    """The name of each dimension of c; "" for a single number."""
    c: Annotated[Operand | None, writes(_as_reduced, factor="beta")] = None
    alpha: Scalar = 1.0
    beta: Scalar = 0.0
    op_a: Unary = "identity"
    """The operator on each element of a."""
    op_c: Unary = "identity"
    """The operator on the old content of c."""
    op_reduce: Binary = "add"
    """The operator that combines elements: "add", "mul", "max" or "min"."""


class Permutation(LibraryRequest, frozen=True):
    """Compute b ← alpha·op_a(a), with the dimensions in another order."""

    name: ClassVar = "permutation"
    types: ClassVar = {"T": TYPES}
    rules: ClassVar = (_has_complex_form,)
    a: Annotated[Operand, reads("*_", factor="alpha")]
    modes_a: Modes
    """The name of each dimension of a."""
    modes_b: Modes
    """The same names, in the order of b."""
    b: Annotated[Operand | None, writes(_as_permuted)] = None
    alpha: Scalar = 1.0
    op_a: Unary = "identity"
    """The operator on each element of a."""


class ElementwiseBinary(LibraryRequest, frozen=True):
    """Compute d ← op_ac(alpha·op_a(a), gamma·op_c(c)); a goes to all of the modes that only c has."""

    name: ClassVar = "elementwise_binary"
    types: ClassVar = {"T": TYPES}
    rules: ClassVar = (_has_order, _has_complex_form)
    work: ClassVar = "c.size"
    a: Annotated[Operand, reads("*_", factor="alpha")]
    c: Annotated[Operand, reads("*_", factor="gamma")]
    modes_a: Modes
    """The name of each dimension of a."""
    modes_c: Modes
    """The name of each dimension of c and d."""
    d: Annotated[Operand | None, writes(_as_c, alias=("c",))] = None
    alpha: Scalar = 1.0
    gamma: Scalar = 1.0
    op_a: Unary = "identity"
    """The operator on each element of a."""
    op_c: Unary = "identity"
    """The operator on each element of c."""
    op_ac: Binary = "add"
    """The operator that combines the two: "add", "mul", "max" or "min"."""


class ElementwiseTrinary(LibraryRequest, frozen=True):
    """Compute d ← op_abc(op_ab(alpha·op_a(a), beta·op_b(b)), gamma·op_c(c)), a and b along the modes of c."""

    name: ClassVar = "elementwise_trinary"
    types: ClassVar = {"T": TYPES}
    rules: ClassVar = (_has_order, _has_complex_form)
    work: ClassVar = "2 c.size"
    a: Annotated[Operand, reads("*_", factor="alpha")]
    b: Annotated[Operand, reads("*_", factor="beta")]
    c: Annotated[Operand, reads("*_", factor="gamma")]
    modes_a: Modes
    """The name of each dimension of a."""
    modes_b: Modes
    """The name of each dimension of b."""
    modes_c: Modes
    """The name of each dimension of c and d."""
    d: Annotated[Operand | None, writes(_as_c, alias=("c",))] = None
    alpha: Scalar = 1.0
    beta: Scalar = 1.0
    gamma: Scalar = 1.0
    op_a: Unary = "identity"
    """The operator on each element of a."""
    op_b: Unary = "identity"
    """The operator on each element of b."""
    op_c: Unary = "identity"
    """The operator on each element of c."""
    op_ab: Binary = "add"
    """The operator that combines a and b: "add", "mul", "max" or "min"."""
    op_abc: Binary = "add"
    """The operator that combines that and c."""


def _as_subscripts_say(request: Any, _sizes: Sizes) -> tuple[int, ...]:
    """As the subscripts say."""
    found = Expression(request.subscripts, [operand.shape for operand in request.operands])
    return tuple(found.lengths[label] for label in found.output)


class EinsteinSum(LibraryRequest, frozen=True):
    """Compute a sum of products in NumPy's notation of einsum, pair by pair in the order that takes the least work."""

    name: ClassVar = "einstein_sum"
    types: ClassVar = {"T": TYPES}
    rules: ClassVar = (_has_operands, _can_be_tf32)
    operands: Annotated[list[Operand], reads("*_")]
    subscripts: Subscripts
    """As "ij,jk->ik"; "..." stands for the dimensions that have no name."""
    out: Annotated[Operand | None, writes(_as_subscripts_say)] = None
    compute: Compute = "default"
    """As that of a contraction."""

    def flops(self) -> int:
        """Return a product and a sum for each term, all at once."""
        found = Expression(self.subscripts, [operand.shape for operand in self.operands])
        return len(self.operands) * math.prod(found.lengths.values())
