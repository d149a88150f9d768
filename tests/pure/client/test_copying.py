"""Copies by several threads beside NumPy's own: whatever the layouts, types and sizes, and whatever interrupts them."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atomr_mp.interop import copying
from atomr_mp.interop.copying import CopyThreads, parts_of
from atomr_mp.protocol import dtypes
from tests.support import DEADLINE_S, Ledger, settled

Array = np.ndarray[Any, Any]

PART_BYTES: Final = 64
LARGE_BYTES: Final = 256

DTYPES: Final = ["uint8", "bool", "float64", ">i4", "complex64", "bfloat16", "float8_e4m3fn"]
PAIRS: Final = [(each, each) for each in DTYPES] + [("float32", ">f4"), ("float64", "float32"), ("complex128", ">i2")]
"""Element types of targets and sources; NumPy converts some."""


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Copy in small parts, on any machine by as many threads as may be."""
    monkeypatch.setattr(copying, "PART_BYTES", PART_BYTES)
    monkeypatch.setattr(copying, "LARGE_BYTES", LARGE_BYTES)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(64)))


def dtype_of(name: str) -> np.dtype[Any]:
    """Return an element type by its name."""
    return dtypes.to_numpy(name) if name in dtypes.ITEM_BYTES else np.dtype(name)


@st.composite
def shapes(draw: st.DrawFn) -> tuple[int, ...]:
    """Return shapes of any number of dimensions, among them those of just as many bytes as a part has."""
    border = st.builds(
        lambda bytes_, item, more: (max(0, bytes_ // item + more),),
        st.sampled_from([PART_BYTES, LARGE_BYTES, 4 * LARGE_BYTES]),
        st.sampled_from([1, 2, 4, 8, 16]),
        st.integers(-1, 1),
    )
    return draw(st.one_of(border, st.lists(st.integers(0, 12), max_size=4).map(tuple), st.just((3, 1, 700))))


@st.composite
def views(draw: st.DrawFn, shape: tuple[int, ...], dtype: np.dtype[Any]) -> tuple[Array, Array]:
    """Return a view of a shape that lies in any way in a piece of memory, and the bytes of that."""
    axes = draw(st.permutations(range(len(shape))))
    steps = [draw(st.sampled_from([1, 1, 1, 2, -1, -3])) for _ in shape]
    lengths = [shape[axis] * abs(steps[axis]) + draw(st.integers(0, 2)) for axis in axes]
    content: Any = np.ones(int(np.prod(lengths)) * dtype.itemsize, np.uint8)
    order = [axes.index(axis) for axis in range(len(shape))]
    view: Any = np.ndarray(lengths, dtype, content).transpose(order)
    view = view[(*[slice(None, None, step) for step in steps], ...)]
    return view[(*map(slice, shape), ...)], content


@given(data=st.data(), shape=shapes(), pair=st.sampled_from(PAIRS))
def test_it_copies_what_numpy_copies(data: st.DataObject, shape: tuple[int, ...], pair: tuple[str, str]) -> None:
    """Every element of the target, and nothing around it."""
    to, of = (dtype_of(name) for name in pair)
    target, around = data.draw(views(shape, to))
    source, _ = data.draw(views(shape, of))
    source[...] = (np.arange(source.size) % (2 if of.kind == "b" else 100)).reshape(shape).astype(of)
    if data.draw(st.booleans()) and shape:
        source = np.broadcast_to(source[:1], shape) if shape[0] else source
    expected: Any = around.copy()
    offset = target.__array_interface__["data"][0] - around.__array_interface__["data"][0] if target.size else 0
    np.copyto(np.ndarray(shape, to, expected, offset, target.strides), source)
    copying.copy(target, source)
    np.testing.assert_array_equal(around, expected)


@given(shape=st.lists(st.integers(0, 9), min_size=1, max_size=4), most=st.integers(1, 40), item=st.sampled_from([1, 4]))
def test_parts_have_each_element_once_in_order(shape: list[int], most: int, item: int) -> None:
    """None is larger than it may be, and none is much smaller without need."""
    elements = np.arange(np.prod(shape)).reshape(shape)
    parts = [elements[index] for index in parts_of(shape, item, most)]
    assert [n for part in parts for n in part.ravel().tolist()] == elements.ravel().tolist()
    assert all(part.size * item <= max(item, most) for part in parts)
    if len(shape) == 1:
        assert len(parts) == -(-shape[0] // max(1, most // item))


@pytest.mark.parametrize("shift", [1, -1])
def test_what_overlaps_is_copied_as_if_it_did_not(shift: int) -> None:
    """By NumPy, which looks for that."""
    both = np.arange(2000)
    lower, upper = both[:-1], both[1:]
    copying.copy(*((upper, lower) if shift == 1 else (lower, upper)))
    assert both.tolist() == ([0, *range(1999)] if shift == 1 else [*range(1, 2000), 1999])


def test_a_copy_that_has_returned_is_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Though the calling thread has nothing left to do before the others are done."""
    work, caller = copying._Copy.work, threading.current_thread()
    begun, left = threading.Event(), threading.Event()

    def late(copy: Any) -> None:
        if threading.current_thread() is caller:
            assert begun.wait(DEADLINE_S)
            work(copy)
            left.set()
        elif not begun.is_set():
            at = copy.parts.pop()
            begun.set()
            assert left.wait(DEADLINE_S)
            copy._target[at] = copy._source[at]

    monkeypatch.setattr(copying._Copy, "work", late)
    target = np.zeros(5000)
    with CopyThreads() as threads:
        threads.copy(target, np.ones(5000))
        assert target.all()


def test_no_part_begins_after_an_interrupt(monkeypatch: pytest.MonkeyPatch) -> None:
    """The arrays may be large."""
    caller, begun, found = threading.current_thread(), threading.Event(), list[bool]()

    def interrupted(copy: Any) -> None:
        if threading.current_thread() is caller:
            assert begun.wait(DEADLINE_S)
            raise KeyboardInterrupt
        begun.set()
        found.append(settled(lambda: not copy.parts))

    monkeypatch.setattr(copying._Copy, "work", interrupted)
    with pytest.raises(KeyboardInterrupt):
        copying.copy(np.zeros(5000), np.ones(5000))
    assert found
    assert all(found)


def test_an_error_is_the_caller_s() -> None:
    """It is NumPy's, and no thread is left; the next copy is none of its business."""
    target, before = np.zeros(2000), threading.active_count()
    with pytest.raises(TypeError, match="Cannot cast"):
        copying.copy(np.zeros(2000, np.int8), np.ones(2000))
    target.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"), CopyThreads() as threads:
        threads.copy(target, np.ones(2000))
    assert threading.active_count() == before


def test_an_error_keeps_no_array() -> None:
    """Longer than its caller keeps the error: the memory may be somebody's who waits for it."""
    gc.collect()
    gc.disable()
    try:
        target = np.zeros(2000, np.int8)
        kept = weakref.ref(target)
        with contextlib.suppress(TypeError):
            copying.copy(target, np.ones(2000))
        del target
        assert kept() is None
    finally:
        gc.enable()


def test_one_thread_is_enough_where_no_others_are_to_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    """A limit of processes is no reason to fail."""

    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    target = np.zeros(5000)
    copying.copy(target, np.arange(5000.0))
    assert (target == np.arange(5000)).all()


@pytest.mark.parametrize(("cores", "expected"), [(1, 0), (2, 1), (3, 2), (4, 3), (64, 3)])
def test_there_are_as_many_threads_as_cores_and_no_more_than_help(
    monkeypatch: pytest.MonkeyPatch, cores: int, expected: int
) -> None:
    """They serve all copies of a transfer, and end with it."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(cores)))
    before = threading.active_count()
    with CopyThreads() as threads:
        for n in (5000, 9, 7000):
            target = np.zeros(n)
            threads.copy(target, np.arange(float(n)))
            assert (target == np.arange(n)).all()
            assert threading.active_count() == before + expected
    assert threading.active_count() == before


@pytest.fixture
def interrupting() -> Iterator[None]:
    """Have Ctrl-C raise as an application's handler may: anywhere."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interrupting")
def test_after_an_interrupt_nobody_writes_the_target(ledger: Ledger) -> None:
    """Wherever it strikes: no thread is left then."""
    del ledger  # it only counts
    line = 1
    while _interrupted(line, lambda: _copied(20_000)):
        line += 1
    assert line > 50, "hardly anything was interrupted"


def _copied(n: int) -> None:
    target = np.zeros(n)
    try:
        with CopyThreads() as threads:
            threads.copy(target, np.ones(n))
    except KeyboardInterrupt:
        assert not [each for each in threading.enumerate() if each.name == "atomr-mp copy"]
        raise
    assert target.all()


def _interrupted(at: int, function: Callable[[], object]) -> bool:
    """Return whether a function was interrupted before the n-th line of the module; False if there are not so many."""
    left = at

    def trace(frame: Any, event: str, _argument: object) -> Any:
        nonlocal left
        if frame.f_code.co_filename != copying.__file__ or frame.f_code.co_name == "__exit__":
            return None
        if event == "line":
            left -= 1
            if not left:
                sys.settrace(None)
                signal.raise_signal(signal.SIGINT)
        return trace

    sys.settrace(trace)
    try:
        function()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(None)
    return False
