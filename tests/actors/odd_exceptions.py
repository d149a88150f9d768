"""An actor that raises exceptions whose classes define whatever may itself raise."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from typing import Any, Final

from atomr_mp import errors
from atomr_mp_workers import Actor, Batch, method

BASES: Final[dict[str, type[BaseException]]] = {
    each.__name__: each
    for each in (
        Exception,
        BaseException,
        SystemExit,
        KeyboardInterrupt,
        GeneratorExit,
        StopIteration,
        MemoryError,
        ModuleNotFoundError,
        ExceptionGroup,
        errors.ActorFailed,
        errors.InvalidRequest,
        errors.Cancelled,
    )
}
RAISED: Final[dict[str, type[BaseException]]] = {
    each.__name__: each for each in (RuntimeError, AttributeError, SystemExit, KeyboardInterrupt, RecursionError)
}
OF_THE_EXCEPTION: Final = (
    *("__class__", "__str__", "__repr__", "__cause__", "__context__", "__traceback__", "__notes__", "__dict__"),
    *(
        "__bool__",
        "__len__",
        "__eq__",
        "__setattr__",
        "__getattribute__",
        "__format__",
        "__reduce__",
        "__suppress_context__",
    ),
    *("args", "message", "code", "ends_worker", "maybe_executed", "parts", "name", "status", "exceptions", "__del__"),
)
OF_ITS_CLASS: Final = ("__name__", "__qualname__", "__module__", "__mro__", "__getattribute__", "__eq__", "__hash__")
PROPERTIES: Final = frozenset(OF_THE_EXCEPTION) - {
    *("__str__", "__repr__", "__bool__", "__len__", "__eq__", "__setattr__", "__getattribute__", "__format__"),
    *("__reduce__", "__del__"),
}


def odd(base: str, defines: list[str], of_class: list[str], raises: str, module: str) -> BaseException:
    """Return an exception whose class, and the class of that, define attributes that raise when they are used."""

    def fail(*_: Any, **__: Any) -> Any:
        raise RAISED[raises]("on the error's way")

    meta: Any = type
    if of_class:
        own = {
            name: fail if name in {"__getattribute__", "__eq__", "__hash__"} else property(fail) for name in of_class
        }
        meta = type("OddClass", (type,), {"__hash__": type.__hash__} | own)
    made = BASES[base]("odd", [ValueError("a part")]) if base == "ExceptionGroup" else BASES[base]("odd")
    body = {name: property(fail) if name in PROPERTIES else fail for name in defines}
    cls = meta("Odd", (BASES[base],), {"__module__": module, "__hash__": BaseException.__hash__} | body)
    raised: BaseException = BaseException.__new__(cls, *BaseException.__dict__["args"].__get__(made))
    for name, value in vars(made).items():
        if name not in defines:
            BaseException.__setattr__(raised, name, value)
    return raised


def _raise(spec: list[Any]) -> int:
    raise odd(*spec)


class Odd(Actor):
    """Raises in every place where a method may."""

    @method(idempotent=True)
    def pid(self) -> int:
        """Return the worker's pid."""
        return os.getpid()

    @method
    def loop(self, spec: list[Any]) -> int:
        """Raise on the worker's loop."""
        raise odd(*spec)

    @method(thread=True)
    def thread(self, spec: list[Any]) -> int:
        """Raise on a thread."""
        raise odd(*spec)

    @method
    def chained(self, spec: list[Any]) -> int:
        """Raise an ordinary exception from an odd one."""
        raise ValueError("ordinary") from odd(*spec)

    @method
    async def awaits(self, spec: list[Any]) -> int:
        """Raise in a coroutine."""
        raise odd(*spec)

    @method(batch=Batch(max_items=4, max_wait_s=0))
    def batch(self, specs: list[list[Any]]) -> list[Any]:
        """Return exceptions in the places of results."""
        return [odd(*spec) for spec in specs]

    @method(batch=Batch(max_items=4, max_wait_s=0, key=_raise))
    def keyed(self, specs: list[list[Any]]) -> list[Any]:
        """Never run: the key raises."""
        return specs

    @method(thread=True)
    def stream(self, spec: list[Any]) -> Iterator[int]:
        """Raise after a part."""
        yield 1
        raise odd(*spec)

    @method
    async def async_stream(self, spec: list[Any]) -> AsyncIterator[int]:
        """Raise after a part, in an asynchronous generator."""
        yield 1
        raise odd(*spec)
