"""Stands for as much of CuPy as collectives by NCCL need, over NumPy: streams are threads, addresses are the host's.

Work that `FakeNccl` puts on a stream is done by the stream's thread, in order. What is computed with arrays is done at
once, so entering a stream waits for what was put there.
"""

from __future__ import annotations

import collections
import itertools
import queue
import sys
import threading
import weakref
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any, Final, Self

import numpy as np

streams: Final[weakref.WeakValueDictionary[int, Stream]] = weakref.WeakValueDictionary()
"""All streams by number."""

_numbers: Final = itertools.count(1)
_current: Final = threading.local()
_kept: Final[collections.deque[Any]] = collections.deque(maxlen=64)


class ndarray(np.ndarray[Any, Any]):  # noqa: N801 - CuPy's name
    """An array on the device."""

    @property
    def data(self) -> Any:
        """Where it is. Its memory stays for a while, as a stream's does until the stream has come that far."""
        _kept.append(self)
        return SimpleNamespace(ptr=self.ctypes.data)

    def get(self, stream: Any = None) -> Any:
        """Return a copy in the host's memory."""
        (stream or get_current_stream()).synchronize()
        return np.array(self, copy=True, subok=False)

    def set(self, given: Any, stream: Any = None) -> None:
        """Take a copy from the host's memory."""
        (stream or get_current_stream()).synchronize()
        self[...] = given


class Event:
    """A place on a stream."""

    def __init__(self) -> None:
        self._reached: Final = threading.Event()
        self.set: Final = self._reached.set

    @property
    def done(self) -> bool:
        """Whether the stream has come there."""
        return self._reached.is_set()

    def synchronize(self) -> None:
        """Wait until it has."""
        self._reached.wait()


class Stream:
    """A stream, and the thread that does its work."""

    def __init__(self, non_blocking: bool = False) -> None:  # noqa: FBT001, FBT002 - as CuPy's
        self.ptr: Final = next(_numbers)
        self.non_blocking: Final = non_blocking
        self.captures = False
        self._work: Final[queue.SimpleQueue[Callable[[], object] | None]] = queue.SimpleQueue()
        streams[self.ptr] = self
        threading.Thread(target=_do, args=(self._work,), name=f"stream-{self.ptr}", daemon=True).start()

    def submit(self, work: Callable[[], object]) -> None:
        """Have work done behind all that is there."""
        self._work.put(work)

    def record(self) -> Event:
        """Return an event behind all that is there."""
        event = Event()
        self.submit(event.set)
        return event

    def wait_event(self, event: Event) -> None:
        """Have what comes wait for an event."""
        self.submit(event.synchronize)

    def synchronize(self) -> None:
        """Wait for all that is there."""
        self.record().synchronize()

    def is_capturing(self) -> bool:
        """Return whether a graph is captured."""
        return self.captures

    def __enter__(self) -> Self:
        self.synchronize()
        get_current_stream()
        _current.stack.append(self)
        return self

    def __exit__(self, *_raised: object) -> None:
        _current.stack.pop()

    def close(self) -> None:
        """End the thread, behind what is there."""
        self._work.put(None)

    __del__ = close


def _do(work: queue.SimpleQueue[Callable[[], object] | None]) -> None:
    while (each := work.get()) is not None:
        each()


def get_current_stream() -> Stream:
    """Return the thread's current stream; without one, a stream of the thread's own, as worlds have."""
    stack: list[Stream] | None = getattr(_current, "stack", None)
    if not stack:
        stack = _current.stack = [Stream()]
    return stack[-1]


def asarray(given: Any) -> ndarray:
    """Return an array on the device."""
    return np.array(given, copy=True).view(ndarray)


def empty(shape: Any, dtype: Any = np.float64) -> ndarray:
    """Return a new array, full of a pattern."""
    made = np.empty(shape, dtype).view(ndarray)
    made.reshape(-1).view(np.uint8)[...] = 0xA5
    return made


def install() -> Any:
    """Have `import cupy` find this, in this process."""
    module: Any = ModuleType("cupy")
    module.ndarray, module.asarray, module.empty = ndarray, asarray, empty
    for name in ("add", "multiply", "minimum", "maximum", "isnan", "where", "ascontiguousarray"):
        setattr(module, name, _of_arrays(getattr(np, name)))
    module.zeros = lambda shape, dtype=np.float64: np.zeros(shape, dtype).view(ndarray)
    module.ones = lambda shape, dtype=np.float64: np.ones(shape, dtype).view(ndarray)
    module.full = lambda shape, value, dtype=None: np.full(shape, value, dtype).view(ndarray)
    module.arange = lambda *given, **more: np.arange(*given, **more).view(ndarray)
    module.cuda = SimpleNamespace(
        Stream=Stream,
        Event=Event,
        get_current_stream=get_current_stream,
        Device=lambda _number: SimpleNamespace(use=bool),
        runtime=SimpleNamespace(),
    )
    sys.modules["cupy"] = module
    return module


def _of_arrays(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *given, **more: np.asarray(function(*given, **more)).view(ndarray)
