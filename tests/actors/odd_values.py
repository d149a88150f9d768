"""Actors that hand over odd values and exceptions, by every way that a method has."""

from __future__ import annotations

import enum
import os
from collections.abc import AsyncIterator, Callable, Generator
from typing import Any, Final, NamedTuple, NoReturn

import numpy as np

from atomr_mp import errors
from atomr_mp_workers import Actor, Batch, Context, Live, LiveStream, Steps, method


def _raise(*_: Any, **__: Any) -> NoReturn:
    raise SystemExit("of the value")


class Demanding(Exception):
    """An exception whose class cannot be called without arguments."""

    def __init__(self, first: int, second: int) -> None:
        super().__init__(first + second)


class OddMeta(type):
    """A class of exception classes that fail when they are looked at or called."""

    __name__ = property(_raise)
    __call__ = __instancecheck__ = __subclasscheck__ = _raise


class OddClass(Exception, metaclass=OddMeta):
    """An exception that fails to be made."""


class OddList(list):  # type: ignore[type-arg]
    """A list that fails when it is read."""

    __iter__ = __len__ = __getitem__ = _raise


class OddDict(dict):  # type: ignore[type-arg]
    """A dict that fails when it is read."""

    items = __iter__ = __getitem__ = keys = _raise


class OddArray(np.ndarray):
    """An array that fails when it is looked at."""

    __array_interface__ = property(_raise)


class Liar:
    """An object that lies about its class, and fails when it is asked."""

    __class__ = property(_raise)
    __dlpack__ = __array__ = __eq__ = __bool__ = __len__ = __repr__ = __getattr__ = _raise
    __hash__ = _raise
    __array_interface__ = __cuda_array_interface__ = property(_raise)


class Unequal:
    """A key that can be hashed, and fails when it is compared."""

    __eq__ = _raise

    def __hash__(self) -> int:
        """Return the same as the others."""
        return 1


class HashedOnce:
    """A key that can be hashed once."""

    seen = False

    def __hash__(self) -> int:
        """Return a hash, and fail the next time."""
        if self.seen:
            _raise()
        self.seen = True
        return 1


class Pair(NamedTuple):
    """Its second part does not cross."""

    first: int
    second: object


class Colour(enum.Enum):
    """Does not cross."""

    RED = 1


def _deep(depth: int) -> list[Any]:
    tree: list[Any] = []
    for _ in range(depth):
        tree = [tree]
    return tree


def _round(kind: str) -> Any:
    ring: Any = [] if kind == "list" else {}
    if kind == "list":
        ring.append(ring)
    else:
        ring["ring"] = ring
    return ring


def _caused() -> BaseException:
    error, other = ValueError("a"), KeyError("b")
    error.__cause__, other.__cause__ = other, error
    return error


def _odd_facts() -> BaseException:
    error = errors.InvalidRequest("odd")
    error.message = 5  # type: ignore[assignment]
    error.maybe_executed = "x"  # type: ignore[assignment]
    return error


def _released() -> memoryview:
    view = memoryview(b"abc")
    view.release()
    return view


VALUES: Final[dict[str, Callable[[], Any]]] = {
    "None": lambda: None,
    "a class": lambda: ValueError,
    "a demanding class": lambda: Demanding,
    "an odd class": lambda: OddClass,
    "a class of ours": lambda: errors.InvalidRequest,
    "an error of ours with odd facts": _odd_facts,
    "text": lambda: "no such token",
    "an exception": lambda: ValueError("x"),
    "a group": lambda: BaseExceptionGroup("g", [ValueError(), KeyboardInterrupt()]),
    "a ring of causes": _caused,
    "an exit": lambda: SystemExit(3),
    "an interrupt": KeyboardInterrupt,
    "the end of a generator": GeneratorExit,
    "a stop": lambda: StopIteration(5),
    "an asynchronous stop": StopAsyncIteration,
    "an object": object,
    "a liar": Liar,
    "an unequal": Unequal,
    "hashed once": HashedOnce,
    "an enum": lambda: Colour.RED,
    "a deep list": lambda: _deep(5000),
    "a list of some depth": lambda: _deep(300),
    "a deep dict": lambda: {"deep": _deep(100_000)},
    "a list in itself": lambda: _round("list"),
    "a dict in itself": lambda: _round("dict"),
    "an odd list": lambda: OddList([1]),
    "an odd dict": lambda: OddDict(a=1),
    "a list with an odd one": lambda: [1, OddList([1]), OddDict(a=1), Liar()],
    "an odd array": lambda: np.zeros(3).view(OddArray),
    "a large int": lambda: 10**400,
    "surrogates": lambda: "\ud800",
    "odd keys": lambda: {None: 1, (1, 2): 2, 1.5: 3, "\ud800": 4},
    "a set": lambda: {1, "a"},
    "a generator": lambda: (each for each in range(3)),
    "a coroutine function": lambda: _raise,
    "an array of objects": lambda: np.array([object(), None], dtype=object),
    "an array of fields": lambda: np.zeros(2, dtype=[("a", "i4"), ("b", "f8")]),
    "an array of text": lambda: np.array(["a", "bc"]),
    "an empty array": lambda: np.zeros((0, 3)),
    "an array without axes": lambda: np.array(1.0),
    "a masked array": lambda: np.ma.masked_array([1, 2], mask=[False, True]),
    "a named tuple": lambda: Pair(1, object()),
    "a released view": _released,
    "many": lambda: list(range(200_000)),
    "not a number": lambda: float("nan"),
}


def _key(name: str, way: str) -> Any:
    return _hand_over(name, way) if way in {"raise", "key"} else 0


class _Base(Actor):
    def setup(self, context: Context) -> None:
        self.world = context.world

    @method(idempotent=True)
    def pid(self) -> int:
        """Return the worker's pid."""
        return os.getpid()

    @method
    def give(self, name: str, way: str) -> Any:
        """Return a value, or raise it."""
        return _hand_over(name, way)

    @method(thread=True)
    def give_on_thread(self, name: str, way: str) -> Any:
        """Do the same on a thread."""
        return _hand_over(name, way)

    @method(thread=True)
    def stream(self, name: str, way: str) -> Generator[Any, None, Any]:
        """Yield a value between two others, or raise or return it after one."""
        yield 1
        if way == "yield":
            yield VALUES[name]()
            yield 2
            return None
        return _hand_over(name, way)

    @method(thread=True, batch=Batch(max_items=4, max_wait_s=0, key=_key))
    def batch(self, names: list[str], ways: list[str]) -> Any:
        """Return values in the places of results, or in place of all."""
        if ways[0] == "all":
            return VALUES[names[0]]()
        return [_hand_over(name, "raise" if way == "raise all" else "") for name, way in zip(names, ways, strict=True)]

    @method(thread=True, batch=Steps(max_items=8))
    def steps(self, live: Live[list[str], Any]) -> Any:
        """Send, end or fail with a value; the stream `other` sends as long as it is read."""
        found = None
        for each in live.ready:
            name, way = each.arguments
            if way == "other":
                each.send(1)
            elif way == "return":
                found = VALUES[name]()
                each.end(1)
            else:
                _take_step(each, name, way)
        return found


class Plain(_Base):
    """The ways of a pool's actor."""

    @method(batch=Batch(max_items=4, max_wait_s=0))
    def batch_on_loop(self, names: list[str], ways: list[str]) -> Any:
        """Return values in the places of results, on the worker's loop."""
        return [_hand_over(name, way) for name, way in zip(names, ways, strict=True)]

    @method
    async def awaits(self, name: str, way: str) -> Any:
        """Return or raise a value in a coroutine."""
        return _hand_over(name, way)

    @method
    async def async_stream(self, name: str, way: str) -> AsyncIterator[Any]:
        """Yield or raise a value in an asynchronous generator."""
        yield 1
        yield _hand_over(name, way)
        yield 2


class Worldly(_Base):
    """The ways of a world's actor."""


def _hand_over(name: str, way: str) -> Any:
    value = VALUES[name]()
    if way == "raise":
        raise value
    return value


def _take_step(each: LiveStream[Any, Any], name: str, way: str) -> None:
    match way:
        case "send":
            each.send(VALUES[name]())
            each.end(2)
        case "end":
            each.end(VALUES[name]())
        case "fail":
            each.fail(VALUES[name]())
        case "raise":
            each.end(1)
            _hand_over(name, way)
