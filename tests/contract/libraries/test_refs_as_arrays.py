"""Refs used as arrays: expressions over refs give what NumPy gives for copies, or a typed error; nothing in between."""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final, NamedTuple

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

import atomr_mp
from atomr_mp import errors
from atomr_mp.protocol import dtypes
from atomr_mp.protocol.libraries import requests_of
from tests.support import Ledger
from tests.tolerances import assert_close

EXAMPLES: Final = 60
STEPS: Final = 6

DTYPES: Final = (
    "bool", "int8", "int64", "uint8", "uint32", "float16", "bfloat16", "float32", "float64", "complex64", "complex128",
    "float8_e5m2",
)  # fmt: skip

BINARY: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "add": operator.add, "subtract": operator.sub, "multiply": operator.mul, "divide": operator.truediv,
    "equal": operator.eq, "not_equal": operator.ne, "less": operator.lt, "less_equal": operator.le,
    "greater": operator.gt, "greater_equal": operator.ge,
}  # fmt: skip
"""Operators on two operands, by the request that each is."""

IN_PLACE: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "add": operator.iadd, "subtract": operator.isub, "multiply": operator.imul, "divide": operator.itruediv,
}  # fmt: skip

UNARY: Final[dict[str, Callable[[Any], Any]]] = {
    "negative": operator.neg, "copy": lambda x: +x if x.dtype != "bool" else x.copy(), "absolute": abs,
}  # fmt: skip

REDUCTIONS: Final = ("sum", "prod", "mean", "max", "min")

NUMBERS: Final = (0, 1, 2, -1, 3, 300, True, 0.5, 2.0, -1.5, 1j, 2 - 1j, 2**64, -(10**30), 10**400)

MOST: Final = 64
"""Results with larger elements are compared, and not computed with: errors of rounding would grow."""

WHAT_IS_REFUSED: Final = (errors.InvalidRequest, errors.BorrowConflict)


class Pair(NamedTuple):
    """A ref, and its elements as NumPy has them."""

    ref: Any
    array: np.ndarray[Any, Any]

    @property
    def dtype(self) -> str:
        """Name of the element type."""
        return dtypes.name_of(self.array.dtype)


def defined(library: str, request: str, dtype: str) -> bool:
    """Return whether a request is declared for elements of a type."""
    return dtype in requests_of(library)[request].types["T"]


def wide(array: Any) -> Any:
    """Return elements in the type in which their exact results are computed."""
    array = np.asarray(array)
    if array.dtype.kind in "biu":
        return array
    return array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)


def fits(number: complex, dtype: str) -> bool:
    """Return whether a number of Python's takes part in arithmetic with a type, whose elements can hold it."""
    if number == 10**400:
        return False
    if dtype == "bool":
        return type(number) is not float and number in {0, 1}
    if type(number) is complex:
        return dtype.startswith("complex")
    if type(number) is float or "int" not in dtype:
        return "int" not in dtype
    limits = np.iinfo(dtype)
    return bool(limits.min <= number.real <= limits.max)


class Calculation:
    """Steps with refs, and with NumPy's arrays beside them.

    Args:
        device: Where the refs are.
        data: Draws the steps.
    """

    def __init__(self, device: atomr_mp.Device, data: st.DataObject) -> None:
        self._device: Final = device
        self._data: Final = data
        self._odd: Final = data.draw(st.booleans())
        """Whether elements may be infinite, not a number, or -0."""
        dtype = data.draw(st.sampled_from((*DTYPES, "float16", "float32", "float64")))
        shapes = data.draw(
            npst.mutually_broadcastable_shapes(num_shapes=3, min_dims=0, max_dims=3, min_side=0, max_side=3)
        ).input_shapes
        self.pairs: Final = [self.made(shape, dtype) for shape in shapes]
        self.pairs.append(self.made(shapes[0], data.draw(st.sampled_from(DTYPES))))

    def made(self, shape: tuple[int, ...], dtype: str) -> Pair:
        """Return a ref to a view of some memory, and what is in it."""
        steps = [self._data.draw(st.sampled_from([1, 2, -1, -2])) for _ in shape]
        whole = tuple(n * abs(step) for n, step in zip(shape, steps, strict=True))
        least = 0 if dtype in {"bool", "uint8", "uint32"} else -3
        element: st.SearchStrategy[float] = st.integers(least, 3)
        if self._odd and dtype in {"float16", "bfloat16", "float32", "float64"}:
            element |= st.sampled_from([np.nan, np.inf, -np.inf, -0.0])
        elements = self._data.draw(st.lists(element, min_size=4, max_size=4))
        array = np.resize(np.array(elements), whole).astype(dtypes.to_numpy(dtype))
        index = tuple(slice(None, None, step) for step in steps)
        if self._data.draw(st.booleans()):
            return Pair(self._device.put(array.T).T[index], np.asarray(array[index]))
        return Pair(self._device.put(array)[index], np.asarray(array[index]))

    def check(
        self,
        of_ref: Callable[[], Any],
        of_array: Callable[[], Any],
        *,
        is_defined: bool,
        terms: int = 1,
        most: float = 1,
    ) -> None:
        """Compare what refs and arrays give: both a result, or both an error."""
        try:
            with np.errstate(all="ignore"):
                expected = np.asarray(of_array()) if is_defined else None
        except ValueError:  # shapes that do not fit, to NumPy
            expected = None
        if expected is None:
            with pytest.raises(WHAT_IS_REFUSED):
                of_ref()
            return
        made = of_ref()
        found = made.numpy()
        assert (made.shape, found.dtype) == (expected.shape, expected.dtype)
        if found.dtype.kind in "biu":
            np.testing.assert_array_equal(found, expected)
        else:
            if found.dtype.kind == "c":  # which part of a complex number is lost beside the other, is the library's
                lost = ~np.isfinite(expected)
                np.testing.assert_array_equal(~np.isfinite(found), lost)
                found, expected = np.where(lost, 0, found).astype(found.dtype), np.where(lost, 0, expected)
            assert_close(found, wide(expected), dtypes.name_of(found.dtype), terms, max(most, 1))
        found = made.numpy()
        if not found.size or (np.isfinite(wide(found)).all() and np.abs(wide(found)).max() <= MOST):
            self.pairs.append(Pair(made, found))

    # --- the steps -----------------------------------------------------------------------------------------------

    def binary(self) -> None:
        """Two refs, of the same type or not."""
        name = self._draw(BINARY)
        a, b = self._pair(), self._pair()
        self.check(
            lambda: BINARY[name](a.ref, b.ref),
            lambda: BINARY[name](a.array, b.array),
            is_defined=a.dtype == b.dtype and defined("elementwise", name, a.dtype),
        )

    def number(self) -> None:
        """A ref and a number of Python's, on either side of each operator."""
        number, a = self._draw(NUMBERS), self._pair()
        for name, use in BINARY.items():
            is_defined = defined("elementwise", name, a.dtype) and fits(number, a.dtype)
            known = float(number) if number in {2**64, -(10**30)} else number  # no integers of NumPy's
            with np.errstate(over="ignore"):
                beside = np.asarray(known).astype(a.array.dtype) if is_defined else a.array
            self.check(partial(use, a.ref, number), partial(use, a.array, beside), is_defined=is_defined)
            self.check(partial(use, number, a.ref), partial(use, beside, a.array), is_defined=is_defined)

    def number_of_numpy(self) -> None:
        """A number of NumPy's has a type, and is not promoted."""
        name = self._draw(BINARY)
        a, b = self._pair(), self._pair()
        if not b.array.size:
            return
        number = b.array.reshape(-1)[0]
        use, is_defined = BINARY[name], a.dtype == b.dtype and defined("elementwise", name, a.dtype)
        self.check(partial(use, a.ref, number), partial(use, a.array, number), is_defined=is_defined)
        self.check(partial(use, number, a.ref), partial(use, number, a.array), is_defined=is_defined)

    def in_place(self) -> None:
        """The result is where the first operand was, and in no other place."""
        name = self._draw(IN_PLACE)
        a, b = self._pair(), self._pair()
        index = self._index(a)
        if not isinstance(a.array[index], np.ndarray):
            return  # a number of NumPy's, which cannot change

        def use(memory: Any, other: Any) -> Any:
            part = memory[index]
            part = IN_PLACE[name](part, other)
            return memory

        self.check(
            lambda: use(a.ref.copy(), b.ref),
            lambda: use(np.array(a.array), b.array),
            is_defined=a.dtype == b.dtype and defined("elementwise", name, a.dtype),
        )

    def assigned(self) -> None:
        """A part of an array gets a number, a ref or an array, broadcast."""
        a, b = self._pair(), self._pair()
        index, kind = self._index(a), self._draw(("number", "ref", "array"))
        number = self._draw((0, 1, 2))
        if kind == "array" and not b.array.ndim:
            kind, number = "number", 1

        def use(memory: Any, value: Any) -> Any:
            memory[index] = value
            return memory

        given = {"number": number, "ref": b.ref, "array": b.array}[kind]
        beside = number if kind == "number" else b.array
        fitting = fits(number, a.dtype) if kind == "number" else a.dtype == b.dtype
        self.check(
            lambda: use(a.ref.copy(), given),
            lambda: use(np.array(a.array), beside),
            # NumPy before 2.4 took an array of one element for it.
            is_defined=fitting and not (np.ndim(beside) and not np.ndim(a.array[index])),
        )

    def unary(self) -> None:
        """One ref."""
        name, a = self._draw(UNARY), self._pair()
        self.check(
            lambda: UNARY[name](a.ref),
            lambda: UNARY[name](a.array),
            is_defined=defined("elementwise", name, a.dtype),
        )

    def reduction(self) -> None:
        """Over any dimensions, also those of no elements."""
        a = self._pair()
        n = a.array.ndim
        one = st.integers(-n, n) if n else st.just(0)  # the last one does not exist
        axis = self._data.draw(st.none() | one | st.lists(one, max_size=n, unique=True).map(tuple))
        keepdims = self._data.draw(st.booleans())
        there = a.array.ndim or axis in {None, ()}  # NumPy takes 0 and -1 for dimensions of an array that has none
        for name in REDUCTIONS:
            if name not in {"sum", "max", "min"} and not _is_finite(a):
                continue
            if name == "prod" and (a.array.size > 6 or _most(a) > 3):
                continue
            ordered = name not in {"max", "min"} or not a.dtype.startswith("complex")
            self.check(
                partial(getattr(a.ref, name), axis, keepdims=keepdims),
                partial(_reduced, a.array, name, axis, keepdims=keepdims),
                is_defined=defined("tensor", "reduction", a.dtype) and ordered and bool(there),
                terms=a.array.size,
                most=_most(a),
            )

    def product(self) -> None:
        """Vectors, matrices, and batches that are broadcast."""
        a = self._pair()
        b = self._pair()
        if self._data.draw(st.booleans()) and a.array.ndim:
            inner = a.array.shape[-1]
            shape = self._data.draw(st.sampled_from([(inner,), (inner, 2), (1, inner, 3), (2, 1, inner, 1)]))
            b = self.made(shape, a.dtype)
        if not _is_finite(a) or not _is_finite(b):
            return
        terms = b.array.size * a.array.size
        most = _most(a) * _most(b)
        self.check(
            lambda: a.ref @ b.ref,
            lambda: np.asarray(wide(a.array) @ wide(b.array)).astype(a.array.dtype),
            is_defined=a.dtype == b.dtype and defined("tensor", "einstein_sum", a.dtype),
            terms=terms,
            most=most,
        )

    def converted(self) -> None:
        """To any type that numbers can be cast to."""
        a, to = self._pair(), self._draw(DTYPES)
        if not _is_finite(a):
            return
        if a.array.dtype.kind not in "biu" and "uint" in to and a.array.size and wide(a.array).real.min() < 0:
            return  # negative: what an unsigned type makes of it depends on the processor
        loses = a.dtype.startswith("complex") and not to.startswith(("complex", "bool", "float8"))

        def astype() -> Any:
            with pytest.warns(np.exceptions.ComplexWarning) if loses else contextlib.nullcontext():
                return a.ref.astype(to)

        self.check(
            astype,
            lambda: (wide(a.array).real if not to.startswith("complex") else a.array).astype(dtypes.to_numpy(to)),
            is_defined=a.dtype == to or (defined("elementwise", "cast", a.dtype) and not to.startswith("float8")),
        )

    def moved(self) -> None:
        """Views and copies."""
        a, index = self._pair(), None
        what = self._draw(("index", "ravel", "squeeze", "copy", "T"))
        if what == "index":
            index = self._index(a)
        self.check(
            lambda: _moved(a.ref, what, index),
            lambda: _moved(a.array, what, index),
            is_defined=True,
        )

    # --- inside --------------------------------------------------------------------------------------------------

    def _pair(self) -> Pair:
        drawn: Pair = self._draw(self.pairs)
        return drawn

    def _draw(self, among: Any) -> Any:
        return self._data.draw(st.sampled_from(list(among)))

    def _index(self, of: Pair) -> Any:
        return self._data.draw(npst.basic_indices(of.array.shape, allow_newaxis=True, max_dims=4))


STEP: Final = [
    value for name, value in vars(Calculation).items() if not name.startswith("_") and name not in {"made", "check"}
]


def _reduced(array: np.ndarray[Any, Any], name: str, axis: Any, *, keepdims: bool) -> np.ndarray[Any, Any]:
    exact = wide(array)
    if name == "mean" and not array.size:  # NumPy warns, and returns NaN
        found = exact.sum(axis, keepdims=keepdims) * np.nan
    else:
        found = getattr(exact, name)(axis, keepdims=keepdims)
    return np.asarray(found).astype(array.dtype)


def _most(pair: Pair) -> float:
    """Return the largest magnitude of its numbers, infinite ones left out."""
    magnitudes = np.abs(wide(pair.array))
    return float(magnitudes[np.isfinite(magnitudes)].max(initial=0))


def _is_finite(pair: Pair) -> bool:
    """Return whether all elements are numbers; the result of a long sum of others depends on their order."""
    return bool(np.isfinite(wide(pair.array)).all())


def _moved(array: Any, what: str, index: Any) -> Any:
    return array[index] if what == "index" else array.T if what == "T" else getattr(array, what)()


@pytest.fixture
def two(backend: str) -> Iterator[atomr_mp.Pool]:
    """A pool of two devices."""
    with Ledger() as ledger, ledger.start(backend=backend, gpus=2) as pool:
        yield pool


def test_expressions_over_refs_are_those_of_numpy(device: atomr_mp.Device) -> None:
    """Any operands, views, and shapes give NumPy's shape, type and elements; or both refuse them."""

    @given(st.data())
    @settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
    def agrees(data: st.DataObject) -> None:
        calculation = Calculation(device, data)
        for _ in range(STEPS):
            data.draw(st.sampled_from(STEP), label="step")(calculation)

    agrees()


def test_each_operator_is_numpys(device: atomr_mp.Device) -> None:
    """One use of each, with operands for which no two operators agree."""
    a, b = np.array([[1.0, -2.0, 4.0], [3.0, 5.0, -7.0]]), np.array([4.0, -2.0, 3.0])
    x, y = device.put(a), device.put(b)
    for use in BINARY.values():
        for left, right in ((x, y), (y, x), (x, 3.0), (3.0, x), (x, np.float64(-2)), (np.float64(-2), x)):
            arrays = [np.asarray(each) for each in (left, right)]
            np.testing.assert_array_equal(use(left, right).numpy(), use(*arrays))
    for in_place in IN_PLACE.values():
        whole, beside = x.copy(), a.copy()
        part, part_beside = whole[:, ::2], beside[:, ::2]
        assert in_place(part, y[::2]) is part
        in_place(part_beside, b[::2])
        np.testing.assert_array_equal(whole.numpy(), beside)
    for alone in UNARY.values():
        np.testing.assert_array_equal(alone(x).numpy(), alone(a))
    for name in REDUCTIONS:
        for axis in (None, 0, -1, (1, 0)):
            found = getattr(x, name)(axis, keepdims=True).numpy()
            np.testing.assert_allclose(found, getattr(a, name)(axis, keepdims=True), rtol=1e-15)
    np.testing.assert_array_equal((x @ y).numpy(), a @ b)
    np.testing.assert_array_equal((y @ x.T).numpy(), b @ a.T)
    np.testing.assert_array_equal((y @ y).numpy(), b @ b)
    np.testing.assert_array_equal((x.T @ x[None, None]).numpy(), a.T @ a[None, None])


def test_a_number_that_a_ref_is_compared_with_decides_a_loop(device: atomr_mp.Device) -> None:
    """The truth of one element is read; that of more or none is refused."""
    left, steps = device.put(np.float64(8)), 0
    while left > 0.5:
        left /= 2
        steps += 1
    assert steps == 4
    assert left.item() == 0.5
    for ref in (device.ones(2), device.ones(0)):
        with pytest.raises(errors.GpuRefNoValue):
            bool(ref)


def test_lists_find_a_ref_by_its_elements_only_if_they_are_one(device: atomr_mp.Device) -> None:
    """As with NumPy's arrays: `in` asks for the truth of a comparison."""
    one, two = device.ones(1), device.put(np.full(1, 2, np.float32))
    assert one in [two, device.ones(1)]
    assert one not in [two, two]
    vector = device.ones(3)
    assert vector in [vector, one]
    with pytest.raises(errors.GpuRefNoValue):
        _ = vector in [device.ones(3), one]


def test_operands_on_another_device_are_refused_in_words(two: atomr_mp.Pool) -> None:
    """Nothing is copied between devices unasked; the error says how to copy."""
    here, there = two.device(0).ones(3), two.device(1).ones(3)
    uses: list[Callable[[], object]] = [
        lambda: here + there, lambda: here @ there, lambda: there == here, lambda: here.__imul__(there),
    ]  # fmt: skip
    for use in uses:
        with pytest.raises(errors.GpuRefWrongDevice, match="copy_to"):
            use()
    here[1:] = there[1:]  # an assignment is a copy
    copied = two.device(0).empty(there.shape, there.dtype)
    there.copy_to(copied)
    assert (here + copied).numpy().tolist() == [2, 2, 2]


def test_what_is_made_on_a_device_has_numpys_content(device: atomr_mp.Device) -> None:
    """`ones` and `arange`; what is no sequence is refused."""
    assert device.ones((2, 3), "int8").numpy().tolist() == np.ones((2, 3)).tolist()
    for numbers in ((5,), (2, 7), (1, 2, 0.25), (5, 0, -2), (3, 3), (0, 4, 1, "float16")):
        made, expected = device.arange(*numbers), np.arange(*numbers)
        assert made.numpy_dtype == expected.dtype
        assert made.numpy().tolist() == expected.tolist()
    for wrong in ((1, 2, 0), ("a",), (0, float("nan")), (1e30,), (None,), (device.ones(1),), (True,), (0, np.True_)):
        with pytest.raises(errors.InvalidRequest):
            device.arange(*wrong)


def test_an_element_is_read_by_its_place(device: atomr_mp.Device) -> None:
    """As a number of Python's, whatever the type."""
    for dtype in DTYPES:
        ref = device.put(np.arange(2).reshape(1, 2).astype(dtypes.to_numpy(dtype)))
        assert ref.item(0, 1) == ref[0, 1].item() == 1
        assert type(ref.item(0, 1)) in {bool, int, float, complex}
        for index in ((), (0,)):
            with pytest.raises(errors.InvalidRequest):
                ref.item(*index)
    shown = device.arange(3).show()
    assert "int64[3]" in shown
    assert "[0 1 2]" in shown


def test_the_same_elements_are_no_conflict(device: atomr_mp.Device) -> None:
    """Whatever the strides of dimensions of length 1; one element is its own operand also without dimensions."""
    column, one = device.arange(5, dtype="float32")[:, None], device.full((1,), 3)
    column *= column[:, 0][:, None]
    one *= one[0]
    column[...] = column[:, 0][:, None]
    assert column.numpy().ravel().tolist() == [0, 1, 4, 9, 16]
    assert one.numpy().tolist() == [9]


@pytest.mark.parametrize("value", [2**31, -(2**31) - 1, 1.5, float("inf"), float("nan")])
def test_what_an_array_cannot_hold_leaves_it_as_it_was(device: atomr_mp.Device, value: float) -> None:
    """By either way of filling: nothing has run, and the content is still defined."""
    x = device.full((3,), 7, "int32")
    for fill in (lambda: device.memory.fill(x, value).result(), lambda: x.fill(value)):
        with pytest.raises(errors.InvalidRequest, match="cannot hold") as refused:
            fill()
        assert not refused.value.maybe_executed
        assert x.numpy().tolist() == [7, 7, 7]


def test_whole_numbers_of_any_size_become_numbers_of_floating_point(device: atomr_mp.Device) -> None:
    """Where the type has such; a type of whole numbers refuses what it cannot hold."""
    x = device.ones(2, "float64")
    assert (x + 2**64).numpy().tolist() == [1 + 2.0**64] * 2
    assert (x < 10**30).numpy().all()
    x[0] = 2**70
    assert x.item(0) == 2.0**70
    x.fill(-(2**80))
    assert x.item(1) == -(2.0**80)
    device.memory.fill(x, 2**90).result()
    assert x.item(1) == 2.0**90
    assert device.full((1,), 2**70, "complex64").item() == 2.0**70
    for use in (lambda: x + 10**400, lambda: x.fill(10**400), lambda: device.full(1, 10**5000), lambda: x < 10**400):
        with pytest.raises(errors.InvalidRequest, match=r"cannot hold a whole number of \d+ bits"):
            use()
    with pytest.raises(errors.InvalidRequest):
        device.full(1, 2**64, "int64")


def test_a_mistake_is_told_in_the_words_of_what_was_called(device: atomr_mp.Device) -> None:
    """Not in those of the request behind it."""
    x: Any = device.ones(2, "float64")
    c = device.ones(2, "complex64")
    wrong: list[tuple[Callable[[], object], str]] = [
        (c.max, r"^max\(\) of complex64"), (c.min, r"^min\(\) of complex64"),
        (lambda: x.fill(x), r"`ref\[\.\.\.\] = other`"), (lambda: x.__setitem__(0, np.float32(0.1)), "NumPy's float32"),
        (lambda: device.zeros(1, "bool").__setitem__(0, 0.5), "True and False"),
        (lambda: x.astype("float8_e5m2"), "no request converts float8"),
    ]  # fmt: skip
    for use, words in wrong:
        with pytest.raises(errors.InvalidRequest, match=words):
            use()


def test_a_failed_operator_leaves_its_operands(device: atomr_mp.Device) -> None:
    """What is refused has written nothing."""
    ref, small = device.arange(6), device.arange(3)
    wrong: list[Callable[[], object]] = [
        lambda: ref.__iadd__(small), lambda: small.__iadd__(ref), lambda: ref.__iadd__(ref[::-1]),
        lambda: ref.__setitem__(slice(0, 2), small), lambda: ref.__setitem__(slice(1, 4), ref[:3]),
        lambda: ref.__setitem__(0, 2.5), lambda: ref.__setitem__(0, [1]), lambda: ref.__setitem__(6, 1),
        lambda: ref.__setitem__(0, np.ones(1)), lambda: ref.__setitem__(0, np.ma.array([1])), lambda: ref.__pow__(2),
    ]  # fmt: skip
    for use in wrong:
        with pytest.raises((errors.InvalidRequest, errors.BorrowConflict, errors.Unsupported, IndexError)):
            use()
    assert ref.numpy().tolist() == [0, 1, 2, 3, 4, 5]
    ref[1:] += ref[0]
    assert ref.numpy().tolist() == [0, 1, 2, 3, 4, 5]
