"""Requests drawn from their declarations, and ways to break them: all that tests of a library need, except numbers."""

from __future__ import annotations

import itertools
import os
import random
import types
import typing
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Annotated, Any, Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
from hypothesis import assume
from hypothesis import strategies as st

from atomr_mp.libraries.base import check_fields
from atomr_mp.protocol import dtypes, values
from atomr_mp.protocol.declaration import strides
from atomr_mp.protocol.declaration.arguments import Argument, arrays_of, declared
from atomr_mp.protocol.declaration.checks import is_zero
from atomr_mp.protocol.declaration.factors import FactorType, RealFactor
from atomr_mp.protocol.declaration.shapes import ANY, shape_of
from atomr_mp.protocol.layout import Layout
from atomr_mp.protocol.libraries.base import LibraryRequest, Shape, is_factor, scalar, to_scalar
from atomr_mp.protocol.libraries.rng import AboveZero, NotNegative
from tests.fakes.fake_arrays import GUARD_BYTES, FakeArray
from tests.layouts import placed, poisoned, shared
from tests.tolerances import assert_close

Array = npt.NDArray[Any]

EIGHT_BITS: Final = "of eight bits"
LENGTHS: Final = (0, 1, 2, 3, 5, 7)
EVERY_BREAKAGE: Final = os.environ.get("ATOMR_MP_TEST_BREAKAGES") == "all"
"""As with `scripts/test --all`."""


class Expected(NamedTuple):
    """The expected results of a request."""

    values: Any
    """Dense outputs by name; or the result, if nothing is written."""
    length: int = 1
    """Number of terms of an element."""
    magnitude: float = 1.0
    """Magnitude of the largest term."""
    defined: Mapping[str, Any] = types.MappingProxyType({})
    """Mask of the defined elements of an output; all by default."""
    rounded: Mapping[str, Any] = types.MappingProxyType({})
    """Of an output, what may be rounded to its element type before the last sum."""


Reference = Callable[[Any, dict[str, Array]], Expected]
"""Computes a request's expected results from its arrays as dense float64 or complex128."""


def factor(value: Any) -> complex:
    """Return the number that a factor is; a reference is given the numbers in place of arrays."""
    return scalar(value)


def check(request: LibraryRequest) -> None:
    """Check as a reference does before it sends."""
    check_fields(request)
    request.check()


# --- drawing ----------------------------------------------------------------------------------------------------------


@st.composite
def requests(
    draw: st.DrawFn,
    cls: type[LibraryRequest],
    lengths: Sequence[int] = LENGTHS,
    fixed: Mapping[str, Any] | None = None,
    sizes: Mapping[str, Any] | None = None,
    letters: Mapping[str, str] | None = None,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    absent: Collection[str] = (),
    orders: Mapping[str, strides.Order] | None = None,
    factors: Collection[str] | None = None,
    lines: int = 1,
    solid: int = 0,
) -> Any:
    """Draw a valid request whose memory is poisoned.

    Args:
        draw: Hypothesis'.
        cls: Its type.
        lengths: What lengths of dimensions are drawn from.
        fixed: Parameters that are not drawn.
        sizes: Lengths that are not drawn.
        letters: Element types that are not drawn.
        shapes: Shapes of arrays that are not drawn.
        absent: Arrays that are left out; those that the request does not have are too.
        orders: Orders of matrices that are not drawn.
        factors: Those that may be arrays; by default all that are not fixed.
        lines: Arrays begin at multiples of so many bytes, and the gaps between their rows are such.
        solid: How many of the last dimensions of arrays must not have a stride of 0.
    """
    fields = declared(cls)
    letters = {letter: draw(st.sampled_from(types)) for letter, types in cls.types.items()} | dict(letters or {})
    is_complex = any(dtype.startswith("complex") for dtype in letters.values())
    named = dict(fixed or {})
    for name, hint in fields.parameters.items():
        if name not in named:
            named[name] = draw(parameter(hint, is_complex=is_complex))
    found = dict(sizes or {})
    for word in itertools.chain.from_iterable(
        str(each.shape).split() for each in fields.arrays.values() if isinstance(each.shape, str)
    ):
        batch = st.sampled_from([(), (2,), (3,), (2, 3)])
        if word.removeprefix("*") not in found:
            found[word.removeprefix("*")] = draw(batch if word.startswith("*") else st.sampled_from(lengths))
    words = {name: value for name in dir(cls) if isinstance(value := getattr(cls, name), str)}
    drawn = types.SimpleNamespace(**words | named)  # as far as it is
    for name, argument in fields.arrays.items():
        if name in absent or not argument.is_there(drawn):
            named[name] = None
            setattr(drawn, name, None)
            continue
        dtype = letters[argument.dtype] if isinstance(argument.dtype, str) else argument.dtype(drawn)
        shape = (shapes or {}).get(name)
        shape = shape_of(drawn, argument, found) if shape is None else shape
        named[name] = draw(placed(shape, dtype, argument, (orders or {}).get(name), lines, solid))
        setattr(drawn, name, named[name])
    for name, argument in fields.arrays.items():
        if argument.writes and named[name] is not None and name not in (fixed or {}):
            named[name] = shared(draw, named, dict(fields.arrays), name)
    request = cls(**named)
    free = fields.factors.keys() - (fixed or {}).keys() if factors is None else factors
    request = draw(with_factor_arrays(request, free, found))
    assume(all(rule(request, found) for rule in cls.rules))
    check(request)
    return request


@st.composite
def with_factor_arrays(draw: st.DrawFn, request: Any, names: Collection[str], sizes: Mapping[str, Any]) -> Any:
    """Draw a request like this one, in which each of some factors may be an array, if that is valid."""
    for name in sorted(names):
        multiplied = [argument.reads == name and array is None for _, argument, array in arrays_of(request)]
        if draw(st.integers(0, 3)) == 0 and not any(multiplied):
            shape = draw(st.sampled_from([(), (1,), (1, 1)]))
            array = poisoned(Layout.contiguous(factor_dtype(request, name), shape, GUARD_BYTES))
            found = _with(request, name, array)
            request = found if all(rule(found, sizes) for rule in found.rules) else request
    return request


def factor_dtype(request: Any, name: str) -> str:
    """Return the element type that an array in place of a factor has."""
    kind: type[LibraryRequest] = type(request)
    dtype: Any = declared(kind).factors[name].dtype
    return str(dtype(request))


def parameter(hint: Any, *, is_complex: bool) -> st.SearchStrategy[Any]:
    """Return the strategy that draws a parameter, by its type."""
    if is_factor(hint):
        factors = [0.0, 1.0, -0.75, 2.5, *([(0.5, -1.0), (0.0, 2.0)] if is_complex and hint is not RealFactor else [])]
        return st.sampled_from(factors)
    if typing.get_origin(hint) is typing.Literal:
        return st.sampled_from(typing.get_args(hint))
    if hint is bool:
        return st.booleans()
    if hint in {AboveZero, NotNegative}:
        return st.sampled_from([0.6, 1.0, 2.5])
    if hint is float:
        return st.sampled_from([0.0, 0.6, -1.25])
    raise TypeError(f"nothing says what to draw a {hint} from: give it in `fixed`")


# --- numbers ----------------------------------------------------------------------------------------------------------


def assert_agrees(
    request: Any,
    random: np.random.Generator,
    run: Callable[[Any], Any],
    reference: Reference,
    numbers: Callable[[Any, str, Array], Array] = lambda _request, _name, values: values,
) -> None:
    """Give a request's arrays random numbers, have it done, and check all of their memory.

    Args:
        request: A request whose memory is poisoned.
        random: Where the numbers are from.
        run: Does a request on `FakeArray`s, and returns its result.
        reference: Computes what it must give.
        numbers: Makes the random numbers of an array such that the request has an answer.
    """
    check(request)
    arrays = {
        name: (argument, typing.cast("FakeArray", operand))
        for name, argument, operand in arrays_of(request)
        if operand is not None
    }
    dense: dict[str, Array] = {}
    for name, (argument, array) in arrays.items():
        drawn = random.uniform(-2, 2, array.shape)
        if array.dtype.startswith("complex"):
            drawn = drawn + 1j * random.uniform(-2, 2, array.shape)
        exact = numbers(request, name, drawn).astype(dtypes.to_numpy(array.dtype))
        if _is_read(request, argument):
            here = touched(request, argument, array.shape)
            array.array[here] = exact[here]
            exact = np.where(here, array.array, exact)  # where elements share memory, the last one counts
        dense[name] = exact.astype(drawn.dtype)
    before = {name: array.slab.copy() for name, (_, array) in arrays.items()}
    result = run(request)
    kind: type[LibraryRequest] = type(request)
    factors = {name: to_scalar(dense[name].item()) for name in declared(kind).factors if name in dense}
    expected = reference(msgspec.structs.replace(request, **factors), dense)
    written = {name for name, (argument, _) in arrays.items() if argument.writes}
    first = next(iter(arrays.values()))[1]
    if not written:
        assert type(result) is type(expected.values), result
        assert_close(result, expected.values, first.dtype, expected.length, expected.magnitude)
    for name in written:
        argument, array = arrays[name]
        here = touched(request, argument, array.shape) & expected.defined.get(name, True)
        rounded = expected.rounded[name][here] if name in expected.rounded else 0.0
        bounds = expected.length, expected.magnitude, rounded
        assert_close(array.array[here], expected.values[name][here], array.dtype, *bounds)
    for name, (_, array) in arrays.items():
        for other in written:
            argument, target = arrays[other]
            if target.number == array.number:
                where = positions(target)[touched(request, argument, target.shape)].reshape(-1)
                before[name][where] = array.slab[where]
        np.testing.assert_array_equal(array.slab, before[name], f"around {name}")


def _is_read(request: Any, argument: Argument) -> bool:
    if isinstance(argument.reads, str):
        return not is_zero(getattr(request, argument.reads, 1))
    return argument.reads


def touched(request: Any, argument: Argument, shape: tuple[int, ...]) -> Array:
    """Return which elements of an array a request may touch."""
    mask = np.ones(shape, np.bool)
    if argument.triangle:
        lower = np.tri(*shape[-2:], dtype=np.bool)
        mask = mask & (lower if getattr(request, argument.triangle) == "L" else lower.T)
        if getattr(request, "diag", "N") == "U":
            mask = mask & ~np.eye(*shape[-2:], dtype=np.bool)
    return mask


def positions(array: FakeArray) -> Array:
    """Return the bytes of each element in the slab; one more dimension than the array."""
    layout = array.layout
    at = np.full(layout.shape, layout.offset)
    for axis, (n, stride) in enumerate(zip(layout.shape, layout.strides, strict=True)):
        at = at + (np.arange(n) * stride).reshape([-1 if each == axis else 1 for each in range(len(layout.shape))])
    return at[..., None] + np.arange(layout.item_bytes)


# --- breaking ---------------------------------------------------------------------------------------------------------


def breakages(request: Any, *, every: bool = EVERY_BREAKAGE) -> Iterator[tuple[str, Any]]:
    """Return requests that each break one rule of the declaration, and what is broken.

    Args:
        request: A valid one.
        every: Break each rule on each of the arrays and parameters that it is about, not on one that is drawn.
    """
    if every:
        yield from _breakages(request)
        return
    kinds: dict[str, list[tuple[str, Any]]] = {}
    for what, broken in _breakages(request):
        kinds.setdefault(_kind(what), []).append((what, broken))
    yield from map(random.choice, kinds.values())  # hypothesis seeds it


def _kind(what: str) -> str:
    """Return the rule that is broken, without the names of what breaks it: "x one longer in 1" is "one longer in"."""
    _name, _, rule = what.partition(" ")
    return "over" if rule.startswith("over ") else rule.rstrip("0123456789")


def _breakages(request: Any) -> Iterator[tuple[str, Any]]:
    """Return every request that breaks one rule, and what is broken."""
    cls: type[LibraryRequest] = type(request)
    fields = declared(cls)
    words = [str(each.shape).split() for each in fields.arrays.values() if isinstance(each.shape, str)]
    names = list(itertools.chain.from_iterable(words))
    for name, argument in fields.arrays.items():
        if getattr(request, name) is not None:
            yield from _broken_array(request, name, argument, names)
        elif not argument.is_there(request):
            yield f"{name} not left out", _with(request, name, FakeArray(Layout.contiguous("float32", (2, 2))))
    yield from _broken_others(request)


def _broken_array(request: Any, name: str, argument: Argument, names: Sequence[str]) -> Iterator[tuple[str, Any]]:
    """Return requests with an array that does not fit, or is missing."""
    cls: type[LibraryRequest] = type(request)
    arrays, array = declared(cls).arrays, getattr(request, name)
    yield f"{name} an array, no ref", _with(request, name, np.zeros(2))
    has_float8 = any(each is not None and each.dtype in dtypes.FLOAT8 for _, _, each in request.arrays())
    others = {each: other for each, other in arrays.items() if getattr(request, each) is not None}
    for what, layout in _broken_layouts(argument, array.layout, names, others):
        if what == EIGHT_BITS and has_float8:
            continue  # it may be another product of float8
        yield f"{name} {what}", _with(request, name, FakeArray(layout, np.zeros(max(2**12, layout.span[1]), np.uint8)))
    if argument.writes:
        for other, theirs in arrays.items():
            if (
                other not in {name, *argument.alias}
                and name not in theirs.alias
                and getattr(request, other) is not None
            ):
                yield from _overlapping(request, name, other)
        if isinstance(argument.reads, str):
            yield f"{name} left out", msgspec.structs.replace(request, **{name: None, argument.reads: 2.0})
    elif argument.where is not None or _is_needed(request, name, argument):
        yield f"{name} missing", _with(request, name, None)


def _is_needed(request: Any, name: str, argument: Argument) -> bool:
    """Return whether an array that is read cannot be left out."""
    optional = {each.name for each in msgspec.structs.fields(type(request)) if each.default is None}
    return name not in optional or (isinstance(argument.reads, str) and _is_read(request, argument))


def refused_in_the_worker(request: Any) -> bool:
    """Return whether a request that is sent as it is does not get past decoding and checking."""
    from atomr_mp import errors

    arrays = {array.number: array for _, _, array in arrays_of(request) if isinstance(array, FakeArray)}
    try:
        body, frames, _ = values.encode(request)
        kind: type[LibraryRequest] = type(request)
        decoder: values.Decoder[Any] = values.Decoder(kind, kind.hook())
        decoder.decode(body, frames, lambda wire: arrays[wire.buffer].from_wire(wire)).check()  # type: ignore[union-attr]
    except (errors.InvalidRequest, errors.BorrowConflict, errors.Unsupported):
        return True
    return False


def _with(request: Any, name: str, value: Any) -> Any:
    return msgspec.structs.replace(request, **{name: value})


def _broken_layouts(
    argument: Argument, layout: Layout, names: Sequence[str], arguments: Mapping[str, Argument]
) -> Iterator[tuple[str, Layout]]:
    dtype, shape, item = layout.dtype, layout.shape, layout.item_bytes
    yield EIGHT_BITS, Layout.contiguous("float8_e5m2", shape)
    if isinstance(argument.dtype, str) and sum(each.dtype == argument.dtype for each in arguments.values()) > 1:
        yield "of another type", Layout.contiguous("float64" if dtype != "float64" else "float32", shape)
    if not isinstance(argument.shape, str) or "*" not in argument.shape:
        yield "with a dimension more", Layout.contiguous(dtype, (1, *shape))
        if shape:
            yield "with a dimension less", Layout.contiguous(dtype, shape[1:])
        for at in _tied(argument, names, len(shape)):
            yield f"one longer in {at}", Layout.contiguous(dtype, [n + (axis == at) for axis, n in enumerate(shape)])
    if item > 1 and layout.size > 1:
        yield "between elements", layout._replace(offset=layout.offset + 1)
        yield (
            "with strides between",
            _far_in(layout._replace(strides=(layout.strides[0] + 1, *layout.strides[1:]))),
        )
    if layout.size:
        yield from _broken_strides(argument, layout)


def _far_in(layout: Layout) -> Layout:
    """Return a layout that begins far enough from its memory's first byte for its negative strides."""
    low, _ = layout._replace(offset=0).span
    return layout._replace(offset=max(2**11, -(low // 2**8) * 2**8))


def _tied(argument: Argument, names: Sequence[str], dimensions: int) -> list[int]:
    """Return the dimensions whose lengths something else tells too."""
    if not isinstance(argument.shape, str):
        return list(range(dimensions))
    return [at for at, name in enumerate(argument.shape.split()) if names.count(name) > 1]


def _broken_strides(argument: Argument, layout: Layout) -> Iterator[tuple[str, Layout]]:
    dtype, shape, item = layout.dtype, layout.shape, layout.item_bytes
    if argument.lies in {strides.vector, strides.forward} and layout.size > 1:
        yield "of stride 0", layout._replace(strides=(0,))
    if argument.lies is strides.forward and layout.size > 1:
        yield "backwards", layout._replace(strides=(-item,), offset=item * layout.size)
    if argument.lies in {strides.matrix, strides.matrices} and min(shape[-2:]) > 1:
        rows, columns = shape[-2:]
        lead = shape[:-2]
        outer = tuple(0 for _ in lead) if not argument.writes else _steps(lead, 4 * rows * columns * item)
        yield "with gaps both ways", Layout(dtype, shape, (*outer, 2 * columns * item, 2 * item), 0)
        yield "with rows that overlap", Layout(dtype, shape, (*outer, (columns - 1) * item, item), 0)
        yield "turned round", Layout(dtype, shape, (*outer, -columns * item, item), 2**11)
    if argument.lies is strides.matrices and len(shape) > 3 and min(shape[:2]) > 1:
        one = shape[-1] * shape[-2] * item
        inner = (shape[-1] * item, item)
        yield "with a batch that does not collapse", Layout(dtype, shape, (one * (shape[1] + 1), one, *inner), 0)
    if argument.writes and len(shape) > 2 and shape[0] > 1:
        yield "with a batch of stride 0", layout._replace(strides=(0, *layout.strides[1:]))


def _steps(shape: Sequence[int], step: int) -> tuple[int, ...]:
    found: list[int] = []
    for n in reversed(shape):
        found.append(step)
        step *= n
    return tuple(reversed(found))


def _overlapping(request: Any, name: str, other: str) -> Iterator[tuple[str, Any]]:
    """Return a request two of whose arrays share elements: both begin at the same one."""
    array, theirs = getattr(request, name), getattr(request, other)
    if array.size and theirs.size and array.dtype == theirs.dtype:
        begin = max(_far_in(each.layout).offset for each in (array, theirs))
        layouts = [each.layout._replace(offset=begin) for each in (array, theirs)]
        slab = np.zeros(max(layout.span[1] for layout in layouts), np.uint8)
        if min(layout.span[0] for layout in layouts) >= 0:
            target, moved = (FakeArray(layout, slab) for layout in layouts)
            target.number = moved.number = array.number
            yield f"{name} over {other}", msgspec.structs.replace(request, **{name: target, other: moved})


def _broken_others(request: Any) -> Iterator[tuple[str, Any]]:
    """Return requests with a parameter or a struct that is broken."""
    cls: type[LibraryRequest] = type(request)
    fields = declared(cls)
    for name, hint in fields.parameters.items():
        broken = _broken_factor(hint, name, request) if is_factor(hint) else _broken_values(hint)
        for what, value in broken:
            yield f"{name} {what}", _with(request, name, value)
    for name, struct in fields.structs.items():
        yield from _broken_struct(request, name, struct)


def _broken_factor(hint: Any, name: str, request: Any) -> Iterator[tuple[str, Any]]:
    """Return values that a factor cannot have."""
    yield "a text", "1"
    arrays = [(argument, array) for _, argument, array in arrays_of(request) if array is not None]
    if hint is RealFactor or not any(array.dtype.startswith("complex") for _, array in arrays):
        yield "complex", (1.0, 0.0)
    if not isinstance(hint, FactorType):
        yield "an array, for a library that reads it on the host", FakeArray.of(1, "float32")
        return
    dtype = factor_dtype(request, name)
    yield "of two elements", FakeArray.of([1, 1], dtype)
    yield "without an element", FakeArray.of([], dtype)
    yield "of another type", FakeArray.of(1, "float64" if dtype != "float64" else "float32")
    for argument, array in arrays:
        if argument.writes and array.size and array.dtype == dtype:
            shared = FakeArray(Layout(dtype, (), (), array.layout.offset), typing.cast("FakeArray", array).slab)
            shared.number = typing.cast("FakeArray", array).number
            yield "within an output", shared


def _broken_struct(request: Any, name: str, struct: type[msgspec.Struct]) -> Iterator[tuple[str, Any]]:
    """Return requests with a struct one of whose arrays or parameters is broken."""
    for inner, argument in declared(struct).arrays.items():
        within = getattr(request, name)
        yield f"{name}.{inner} an array, no ref", _with(request, name, _with(within, inner, np.zeros(2)))
        yield f"{name}.{inner} missing", _with(request, name, _with(within, inner, None))
        if argument.dtype != ANY:
            for what, layout in _broken_layouts(argument, getattr(within, inner).layout, [], {}):
                broken = FakeArray(layout, np.zeros(max(2**12, layout.span[1]), np.uint8))
                yield f"{name}.{inner} {what}", _with(request, name, _with(within, inner, broken))
    for inner, hint in declared(struct).parameters.items():
        for what, value in _broken_values(hint):
            yield f"{name}.{inner} {what}", _with(request, name, _with(getattr(request, name), inner, value))


def _broken_values(hint: Any) -> Iterator[tuple[str, Any]]:
    """Return values that a type does not admit."""
    if typing.get_origin(hint) is Annotated:
        hint, *metas = typing.get_args(hint)
        yield from _out_of_bounds(hint, metas)
    elif typing.get_origin(hint) in {typing.Union, types.UnionType}:
        hint = typing.get_args(hint)[0]
    yield from _broken_plain(hint)


def _out_of_bounds(plain: Any, metas: Sequence[Any]) -> Iterator[tuple[str, Any]]:
    for meta in metas:
        for what, bound, step in (("below", meta.ge, -1), ("at the bound", meta.gt, 0), ("above", meta.le, 1)):
            if bound is not None:
                yield what, plain(bound + step)


def _broken_plain(hint: Any) -> Iterator[tuple[str, Any]]:
    if typing.get_origin(hint) is typing.Literal:
        yield "another word", "no such word"
    elif hint is bool:
        yield "a number", 2
    elif hint is float:
        yield "a pair", (1.0, 0.0)
    elif hint is int:
        yield "a fraction", 0.5
    elif hint == Shape:
        yield "with a negative length", (-1,)
        yield "with a text", ("3",)
