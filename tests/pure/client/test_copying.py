"""Copies by several threads beside NumPy's own: whatever the layouts, types and sizes, and whatever interrupts them."""

from __future__ import annotations

import contextlib
import gc
import linecache
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
from atomr_mp.interop.copying import Copying, CopyThreads, parts_of
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


@pytest.fixture(scope="module")
def threads() -> Iterator[CopyThreads]:
    """Threads for copies."""
    made = CopyThreads()
    yield made
    made.close()


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
def test_it_copies_what_numpy_copies(
    threads: CopyThreads, data: st.DataObject, shape: tuple[int, ...], pair: tuple[str, str]
) -> None:
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
    if data.draw(st.booleans()):
        threads.copy(target, source)
    else:
        threads.begin(target, source).wait()
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
def test_what_overlaps_is_copied_as_if_it_did_not(threads: CopyThreads, shift: int) -> None:
    """By NumPy, which looks for that."""
    both = np.arange(2000)
    lower, upper = both[:-1], both[1:]
    threads.copy(*((upper, lower) if shift == 1 else (lower, upper)))
    assert both.tolist() == ([0, *range(1999)] if shift == 1 else [*range(1, 2000), 1999])


def test_a_copy_that_is_waited_for_is_whole(threads: CopyThreads, monkeypatch: pytest.MonkeyPatch) -> None:
    """Though the calling thread has nothing left to do before the others are done."""
    begun, left, whole = threading.Event(), threading.Event(), Copying._copy

    def late(copy: Copying, at: Any) -> None:
        if threading.current_thread() is threading.main_thread():
            assert begun.wait(DEADLINE_S)
            whole(copy, at)
            if not copy.parts:
                left.set()
        else:
            begun.set()
            assert left.wait(DEADLINE_S)
            whole(copy, at)

    monkeypatch.setattr(Copying, "_copy", late)
    target = np.zeros(5000)
    threads.copy(target, np.ones(5000))
    assert target.all()


def test_no_part_begins_after_an_interrupt(threads: CopyThreads, monkeypatch: pytest.MonkeyPatch) -> None:
    """The arrays may be large."""
    begun, found = threading.Event(), list[bool]()

    def interrupted(copy: Copying, _at: object) -> None:
        if threading.current_thread() is threading.main_thread():
            assert begun.wait(DEADLINE_S)
            raise KeyboardInterrupt
        begun.set()
        found.append(settled(lambda: not copy.parts))

    monkeypatch.setattr(Copying, "_copy", interrupted)
    with pytest.raises(KeyboardInterrupt):
        threads.copy(np.zeros(5000), np.ones(5000))
    assert found
    assert all(found)


def test_an_error_is_the_caller_s(threads: CopyThreads) -> None:
    """It is NumPy's; the next copy is none of its business."""
    target = np.zeros(2000)
    with pytest.raises(TypeError, match="Cannot cast"):
        threads.copy(np.zeros(2000, np.int8), np.ones(2000))
    begun = threads.begin(np.zeros(2000, np.int8), np.ones(2000)), threads.begin(target, np.ones(2000))
    begun[1].wait()
    assert target.all()
    with pytest.raises(TypeError, match="Cannot cast"):
        begun[0].wait()
    target.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        threads.copy(target, np.ones(2000))


def test_an_error_keeps_no_array(threads: CopyThreads) -> None:
    """Longer than its caller keeps the error: the memory may be somebody's who waits for it."""
    gc.collect()
    gc.disable()
    try:
        target = np.zeros(2000, np.int8)
        kept = weakref.ref(target)
        with contextlib.suppress(TypeError):
            threads.copy(target, np.ones(2000))
        del target
        assert settled(lambda: kept() is None)  # the threads let go of it just now
    finally:
        gc.enable()


def test_one_thread_is_enough_where_no_others_are_to_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    """A limit of processes is no reason to fail, nor is it that the owner has gone."""

    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    closed = CopyThreads()
    closed.close()
    monkeypatch.setattr(threading.Thread, "start", refuse)
    for threads in (CopyThreads(), closed):
        target, second = np.zeros(5000), np.zeros(5000)
        threads.copy(target, np.arange(5000.0))
        threads.begin(second, target).wait()
        assert (second == np.arange(5000)).all()
        threads.close()


@pytest.mark.parametrize(("cores", "expected"), [(1, 0), (2, 2), (3, 3), (4, 4), (64, 4)])
@pytest.mark.parametrize("end", ["closed", "dropped"])
def test_there_are_as_many_threads_as_cores_and_no_more_than_help(
    monkeypatch: pytest.MonkeyPatch, cores: int, expected: int, end: str
) -> None:
    """None before the first large copy; they end with their owner."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(cores)))
    before = threading.active_count()
    owner: CopyThreads | None = CopyThreads()
    assert owner is not None
    owner.copy(np.zeros(9), np.ones(9))
    assert threading.active_count() == before
    for n in (5000, 9, 7000):
        target = np.zeros(n)
        owner.begin(target, np.arange(float(n))).wait()
        assert (target == np.arange(n)).all()
    owner.copy(target, np.zeros(7000))
    assert not target.any()
    assert threading.active_count() == before + expected
    if end == "closed":
        owner.close()
        owner.close()
        assert threading.active_count() == before
    owner = None
    assert settled(lambda: threading.active_count() == before)


def test_several_callers_share_the_threads(threads: CopyThreads) -> None:
    """Each gets its own copy, whole."""

    def copy(number: int, wrong: list[int]) -> None:
        for n in (3000, 2000, 4000):
            target = np.zeros(n, np.int64)
            threads.copy(target, np.arange(n) + number)
            if (target != np.arange(n) + number).any():
                wrong.append(number)

    wrong = list[int]()
    callers = [threading.Thread(target=copy, args=(number, wrong)) for number in range(8)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert not wrong


@pytest.mark.usefixtures("interrupting")
def test_after_an_interrupt_nobody_writes_the_target(ledger: Ledger) -> None:
    """Wherever it strikes; and the threads serve on."""
    del ledger  # it only counts
    line = 1
    while _interrupted(line, lambda: _copied(5_000)):
        line += 1
    assert line > 50, "hardly anything was interrupted"


def _copied(n: int) -> None:
    target, threads = np.zeros(n), CopyThreads()
    try:
        threads.copy(target, np.ones(n))
        assert target.all()
    except KeyboardInterrupt:
        found = target.copy()
        second = np.zeros(n)
        threads.copy(second, np.ones(n))  # in which any part that was left would be copied before
        assert second.all()
        assert (target == found).all()
        raise
    finally:
        threads.close()


def _interrupted(at: int, function: Callable[[], object]) -> bool:
    """Return whether a function was interrupted before the n-th line of the module; False if there are not so many."""
    left = at

    def trace(frame: Any, event: str, _argument: object) -> Any:
        nonlocal left
        if frame.f_code.co_filename != copying.__file__ or frame.f_code.co_name in {"stop", "close", "__del__"}:
            return None
        # Python looks for no signal at a `try`, nor at the end of a `with`, to which the line comes again.
        if event == "line" and not linecache.getline(copying.__file__, frame.f_lineno).lstrip().startswith(
            ("with ", "try:")
        ):
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
