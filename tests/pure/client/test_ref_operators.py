"""Refs beside NumPy and in comparisons, without a pool: what would compute here is an error, and nothing is sent."""

from __future__ import annotations

import asyncio
import dataclasses
import operator
import re
import weakref
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import numpy as np
import pytest

import atomr_mp
from atomr_mp import errors
from atomr_mp.client.memory.missing_methods import INSTEAD
from atomr_mp.client.memory.refs import GpuRef
from atomr_mp.client.reply import Reply
from atomr_mp.protocol.layout import Layout
from atomr_mp.protocol.libraries import requests_of
from tests.in_turn import in_turn
from tests.pure.client.test_refs import FakeClient

INT32 = Layout.contiguous("int32", (3, 4), 512)


@dataclasses.dataclass
class Holder:
    """Somebody's object that has a ref."""

    ref: Any


@pytest.fixture
def ref() -> GpuRef:
    """A ref of a client that cannot send: whoever tries fails with an `AttributeError`."""
    return FakeClient().ref()


def functions() -> Iterator[tuple[str, Any]]:
    """Return NumPy's functions that ask their arguments whether they may compute with them."""
    for module in (np, np.linalg, np.fft):
        for name, function in sorted(vars(module).items()):
            if isinstance(function, np.ufunc) or hasattr(function, "_implementation"):
                yield f"{module.__name__}.{name}", function


def test_no_function_of_numpy_computes_with_a_ref_unasked(ref: GpuRef) -> None:
    """Each is refused with a typed error that names it, however many arguments it takes; nothing is read."""
    typed = 0
    for name, function in functions():
        for count in (function.nin,) if isinstance(function, np.ufunc) else (1, 2, 3):
            with pytest.raises(TypeError) as refused:  # of another number of arguments, NumPy's own
                function(*[ref] * count)
            if isinstance(refused.value, errors.GpuRefNoValue):
                assert name.rpartition(".")[2] in refused.value.message or "NumPy's " in refused.value.message
                typed += 1
    assert typed > 250, typed


@pytest.mark.parametrize(
    "array", [np.ones(4), np.ones((3, 4), np.float32), np.ones(0)], ids=lambda each: str(each.shape)
)
def test_an_array_on_the_left_of_an_operator_is_refused_in_words(ref: GpuRef, array: Any) -> None:
    """The error says how the array gets to the device; the array stays as it is."""
    uses: list[Callable[[], object]] = [
        lambda: array + ref, lambda: array - ref, lambda: array @ ref, lambda: array == ref, lambda: array < ref,
        lambda: ref * array, lambda: ref @ array, lambda: ref == array, lambda: array.__iadd__(ref),
    ]  # fmt: skip
    for use in uses:
        with pytest.raises(errors.GpuRefNoValue):
            use()


@pytest.mark.parametrize(
    "other",
    [None, "x", b"x", [1], (), {}, object(), Holder(1), range(3), NotImplemented, np.ones(2)],
    ids=lambda each: type(each).__name__,
)
def test_a_ref_is_equal_to_nothing_but_what_is_compared_on_the_device(ref: GpuRef, other: object) -> None:
    """Neither True nor False is returned where no element was compared."""
    compare: Callable[[], object]
    for compare in (lambda: ref == other, lambda: ref != other, lambda: ref < other, lambda: ref + other):
        with pytest.raises(errors.GpuRefNoValue):
            compare()
    if not isinstance(other, np.ndarray):
        with pytest.raises(errors.GpuRefNoValue):
            _ = other == ref


def test_a_ref_is_found_as_the_same_object(ref: GpuRef) -> None:
    """As a key, in lists, in objects that compare their fields, and by mocks; all that never compares elements."""
    view = ref[:]
    assert {ref: 1, view: 2}[ref] == 1
    assert len({ref, view, ref}) == 2
    assert ref in [view, ref][1:]
    assert [ref, view].index(ref) == 0
    assert Holder(ref) == Holder(ref)
    called = mock.Mock()
    called(ref, key=view)
    called.assert_called_once_with(ref, key=view)
    called.assert_called_once_with(mock.ANY, key=mock.ANY)
    assert {"a": ref} == {"a": mock.ANY}
    assert not ref != mock.ANY  # noqa: SIM202 - that operator
    assert mock.call(ref, 1) == mock.call(mock.ANY, 1)


def test_what_is_asked_of_elements_here_is_refused(ref: GpuRef) -> None:
    """Truth, numbers, and membership."""
    for use in (bool, float, int, complex, lambda it: 1 in it, lambda it: it[0] in it, lambda it: not it):
        with pytest.raises(errors.GpuRefNoValue):
            use(ref)


def test_two_refs_in_one_event_loop_are_compared_by_an_awaited_request(ref: GpuRef) -> None:
    """Whatever would wait says which request is awaited instead; all that are named exist."""
    one = ref[0, 0]
    waiting: list[Callable[[], object]] = [
        lambda: ref + 1, lambda: 1 - ref, lambda: ref * ref, lambda: ref / ref, lambda: -ref, lambda: +ref,
        lambda: abs(ref), lambda: ref @ ref.T, lambda: ref == ref[:], lambda: ref != 0, lambda: ref < 1,
        lambda: ref >= 1,
        lambda: ref in (ref[:], ref), lambda: bool(one), ref.sum, ref.mean, ref.max, ref.min, ref.prod, ref.copy,
        lambda: ref.astype("float64"), ref.T.ravel, lambda: ref.__setitem__(0, 1), lambda: ref.__iadd__(1),
    ]  # fmt: skip

    async def use_all() -> set[str]:
        named: set[str] = set()
        for use in waiting:
            with pytest.raises(errors.GpuRefInEventLoop) as refused:
                use()
            found = re.findall(r"`await device\.(\w+\.\w+)\(…\)`", refused.value.message)
            assert found or "asyncio.to_thread" in refused.value.message
            named.update(found)
        return named

    for each in asyncio.run(use_all()):
        library, name = each.split(".")
        assert name in requests_of(library) or name == "einsum"


def test_in_an_event_loop_a_mistake_is_told_as_elsewhere() -> None:
    """An error of the loop comes last: what it says to await would otherwise fail with the mistake."""
    client = FakeClient()
    ref, there, freed, whole = client.ref(), client.ref(device=1), client.ref(), client.ref().of_layout(INT32)
    freed.free()
    small, odd = ref[:2, :2], np.ma.array([1])
    wrong: list[Callable[[], object]] = [
        lambda: ref + "a", lambda: ref == None, lambda: "a" in [ref, None], lambda: ref > [], lambda: ref @ 2,  # noqa: E711
        lambda: ref @ [1], lambda: ref + np.int64(1), lambda: ref * 1j, lambda: ref + 10**400, lambda: whole == 2.5,
        lambda: ref + there, lambda: ref @ there, lambda: ref + whole, lambda: whole / whole,
        lambda: ref + small, lambda: ref.__iadd__(ref[:, ::-1]), lambda: ref @ ref, whole.sum, whole.max,
        lambda: ref.sum(5), lambda: ref.mean((0, 0)), ref[:0].max, lambda: ref.astype("float8_e5m2"),
        lambda: ref.__setitem__(9, 1), lambda: ref.__setitem__(0, "a"), lambda: ref.__setitem__(0, 1j),
        lambda: ref.__setitem__(0, small), lambda: ref.__setitem__(0, whole), lambda: ref.__setitem__(0, odd),
        lambda: ref.__setitem__(0, np.ones(4)), lambda: ref.__setitem__(0, np.ones(3, np.float32)),
        lambda: ref.__setitem__(0, np.float64(0.1)), lambda: ref.__delitem__(0), lambda: ref[ref], lambda: ref.get,
        lambda: ref**2, lambda: bool(ref),
    ]  # fmt: skip

    def told(use: Callable[[], object]) -> tuple[type[BaseException], str]:
        with pytest.raises(Exception) as refused:  # noqa: PT011 - compared with itself
            use()
        return refused.type, str(refused.value)

    async def told_here(use: Callable[[], object]) -> tuple[type[BaseException], str]:
        return told(use)

    for use in wrong:
        kind, _ = expected = told(use)
        assert issubclass(kind, errors.RequestError | IndexError)
        assert asyncio.run(told_here(use)) == expected
    unusable: list[Callable[[], object]] = [
        lambda: freed + 1, lambda: ref + freed, lambda: freed == ref, lambda: -freed, lambda: freed @ ref.T,
        lambda: bool(freed[0, 0]), freed.sum, freed.copy, lambda: freed.astype("int8"), freed.T.ravel,
        lambda: freed.__setitem__(0, 1), lambda: ref.__setitem__(0, freed[0]), lambda: freed.__iadd__(1),
    ]  # fmt: skip
    for use in unusable:
        assert asyncio.run(told_here(use))[0] is errors.GpuRefReleased


CUPYS = (
    "get", "set", "cstruct", "toDlpack", "reduced_view", "scatter_add", "scatter_max", "scatter_min",
)  # fmt: skip
"""What CuPy's arrays have besides."""


@in_turn("name", sorted({*(each for each in dir(np.ndarray) if not each.startswith("_")), *CUPYS}))
def test_an_attribute_of_arrays_is_there_or_refused_in_words(ref: GpuRef, name: str) -> None:
    """`hasattr` is False where it is missing, and the error says what to do."""
    if name in dir(ref):
        assert name not in INSTEAD
        return
    assert not hasattr(ref, name)
    with pytest.raises(errors.GpuRefNoMethod, match=f"a ref has no `{name}`: .*(`|write|written)"):
        getattr(ref, name)


def test_an_unknown_attribute_is_pythons_own_error(ref: GpuRef) -> None:
    """And what refusals of other names advise exists: methods of a ref, and requests of libraries."""
    with pytest.raises(AttributeError, match="'GpuRef' object has no attribute 'foo'") as refused:
        _ = ref.foo
    assert not isinstance(refused.value, errors.RequestError)
    for words in INSTEAD.values():
        for called in re.findall(r"`ref\.(\w+)", words):
            assert called in dir(ref)
        for library, request in re.findall(r"device\.(\w+)\.(\w+)", words):
            assert request in requests_of(library) or request == "einsum"


@pytest.mark.parametrize(
    "index", [[1, 2], np.array([True, False, True]), np.array([0, 1]), "a", 1.0, True, (0, [1]), (slice(None), "x")],
    ids=repr,
)  # fmt: skip
def test_an_index_that_no_request_does_is_refused_in_words(ref: GpuRef, index: Any) -> None:
    """Where it is read and where it is written; also a mask that is a ref."""
    uses: list[Callable[[], object]] = [lambda: ref[index], lambda: ref.__setitem__(index, 0), lambda: ref[ref]]
    for use in uses:
        with pytest.raises(errors.GpuRefNoIndex, match=r"elementwise\.where"):
            use()
    with pytest.raises(IndexError):
        _ = ref[index]


def test_views_need_no_pool(ref: GpuRef) -> None:
    """They are other layouts of the same memory."""
    assert ref[:1].squeeze().shape == (4,)
    assert ref[None, :, :1].squeeze((0, -1)).shape == (3,)
    assert ref.ravel().shape == (12,)
    for wrong in (lambda: ref.squeeze(0), lambda: ref.squeeze(2), lambda: ref[:1].squeeze((0, 0)), ref.item):
        with pytest.raises(errors.InvalidRequest):
            wrong()


def test_a_ref_is_described_without_being_read(ref: GpuRef) -> None:
    """`repr`, `str` and formats send nothing; `show` reads what it shows, and describes what is too large."""
    assert f"{ref}" == str(ref) == repr(ref)
    assert ref.show(most=11) == f"{ref!r}: 12 elements, which are more than 11"
    with pytest.raises(AssertionError, match="nothing may be sent"):
        ref.show()


def test_no_operator_of_python_is_missing(ref: GpuRef) -> None:
    """Each is a request or a typed error: where one is missing, Python's own error does not say what to do."""
    of_numbers = {name for kind in (int, float, set) for name in vars(kind) if hasattr(operator, _plain(name))}
    not_operators = {"__index__", "__getitem__"}
    assert {"__add__", "__rsub__", "__ixor__", "__invert__", "__ge__"} < of_numbers
    assert not {name for name in of_numbers - not_operators if not hasattr(ref, name)}


def _plain(name: str) -> str:
    """Return an operator's name for operands in their order; "" for what is no special method."""
    return (
        re.sub(r"^__r(?=(add|and|div|floor|lsh|mat|mod|mul|or|pow|rsh|sub|true|xor))", "__", name)
        if "__" in name
        else ""
    )


@pytest.mark.parametrize(
    ("dtype", "number"),
    [
        ("int32", 2.0), ("int32", 2.5), ("uint8", 300), ("uint8", -1), ("int64", 2**63), ("float32", 1j),
        ("int8", np.int16(1)), ("float32", np.float64(1)), ("float64", np.array(1)), ("float32", np.True_),
        ("complex64", np.complex128(1)), ("int64", 2**70), ("float32", 10**400), ("complex128", -(10**5000)),
        ("uint8", 10**5000), ("bool", 0.5), ("bool", 2),
    ],
    ids=lambda each: each if isinstance(each, str) else type(each).__name__,
)  # fmt: skip
def test_nothing_is_promoted(ref: GpuRef, dtype: str, number: Any) -> None:
    """A number that a ref's type does not hold, or that has a type of its own, is refused before anything is sent."""
    typed = ref.of_layout(Layout.contiguous(dtype, (3,)))
    uses: list[Callable[[], object]] = [
        lambda: typed + number, lambda: number - typed, lambda: typed == number, lambda: number < typed,
        lambda: typed.__imul__(number),
    ]  # fmt: skip
    for use in uses:
        with pytest.raises(errors.InvalidRequest, match=r"nothing is promoted|cannot hold"):
            use()


def test_a_reply_that_was_not_waited_for_is_told_apart(ref: GpuRef) -> None:
    """The error says that its result is meant."""
    reply = Reply(mock.Mock(), 1, "blas.gemm", 0, b"")
    with pytest.raises(errors.GpuRefNoValue, match=r"reply\.result\(\)"):
        _ = ref + reply


def test_weak_keys_are_refused_in_words(ref: GpuRef) -> None:
    """Python compares them by `==` even with the same object; never is a wrong one found."""
    weak = weakref.WeakKeyDictionary({ref: 1})
    with pytest.raises(errors.GpuRefInEventLoop):
        asyncio.run(_found(weak, ref))


async def _found(weak: weakref.WeakKeyDictionary[GpuRef, int], ref: GpuRef) -> int:
    return weak[ref]


def test_programs_and_refs_do_not_mix_in_an_operator(ref: GpuRef) -> None:
    """An array of a program has no content before a run."""
    program = atomr_mp.Device(mock.Mock(), 0).program()
    with pytest.raises(errors.GpuRefNoValue):
        _ = ref + program.input("x", (3, 4), "float32")
