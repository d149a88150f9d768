"""Actors found by name: from "package.module:Class" or "path/to/file.py:Class" to a `LoadedActor`.

Every way in which this can go wrong is `ActorLoadFailed`, with what to do: a restart would not help.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
import types
import typing
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from atomr_mp.errors import ActorLoadFailed, InvalidRequest
from atomr_mp.protocol import values
from atomr_mp.protocol.control import ActorSpec
from atomr_mp.protocol.session import ActorInfo, MethodInfo
from atomr_mp_workers.actor import OPTIONS, Actor, MethodOptions

UNKNOWN_NS: Final = 2**62
"""Stands for how long a method takes that has never run."""


@dataclass(eq=False)
class LoadedMethod:
    """A request that can be run: how its arguments are decoded, and what to call with them."""

    name: str
    """"Actor.method"."""
    function: Callable[..., Any]
    options: MethodOptions
    info: MethodInfo
    by_position: values.Decoder[Any]
    by_name: values.Decoder[Any]
    typical_ns: int = UNKNOWN_NS
    """How long it takes, as far as is known."""

    def took(self, ns: int) -> None:
        """Learn from a run: at once if it was short, step by step if it was long, which may be the machine's doing."""
        self.typical_ns = ns if ns < self.typical_ns else self.typical_ns + (ns - self.typical_ns) // 4

    def arguments(self, body: bytes, frames: Sequence[memoryview]) -> tuple[Any, ...]:
        """Decode a call's arguments; an array is by position, a map by name.

        Raises:
            InvalidRequest: They do not fit the method's signature.
        """
        is_map = bool(body) and (body[0] & 0xF0 == _FIXMAP or body[0] in _MAPS)
        decoder = self.by_name if is_map else self.by_position
        try:
            arguments = msgspec.structs.astuple(decoder.decode(body, frames))
            for argument in arguments:
                values.check_depth(argument)
            return arguments
        except InvalidRequest:
            raise
        except BaseException as error:  # an annotation may be a struct with code of its own
            raise InvalidRequest(f"decoding the arguments raised {type(error).__name__}: {error}") from error


@dataclass(frozen=True)
class LoadedActor:
    """An actor's instance and its requests."""

    name: str
    instance: Actor
    methods: list[LoadedMethod]

    @property
    def info(self) -> ActorInfo:
        """The actor as clients are told of it."""
        return ActorInfo(self.name, [method.info for method in self.methods])


def load(spec: ActorSpec) -> LoadedActor:
    """Import an actor's class, make its instance, and prepare its requests.

    Raises:
        ActorLoadFailed: The module, the class or a signature is not usable; the message says what to change.
    """
    cls = _class(spec)
    try:
        instance = cls()
    except Exception as error:
        raise ActorLoadFailed(
            f"{spec.target}: making an instance failed with {type(error).__name__}: {error}; __init__ takes no "
            "arguments, and what may fail belongs in setup()"
        ) from error
    methods = [_method(spec, instance, name, options) for name, options in _requests(cls)]
    if not methods:
        raise ActorLoadFailed(f"{spec.target} has no requests; decorate its methods with @method")
    return LoadedActor(spec.name, instance, methods)


_FIXMAP: Final = 0x80
_MAPS: Final = frozenset({0xDE, 0xDF})


def _class(spec: ActorSpec) -> type[Actor]:
    location, _, name = spec.target.rpartition(":")
    module = _module(spec.target, location)
    cls = getattr(module, name, None)
    if cls is None:
        actors = [n for n, c in vars(module).items() if isinstance(c, type) and issubclass(c, Actor) and c is not Actor]
        raise ActorLoadFailed(f"{location} has no {name!r}; its actors are: {', '.join(actors) or 'none'}")
    if not (isinstance(cls, type) and issubclass(cls, Actor)):
        raise ActorLoadFailed(f"{spec.target} is not a subclass of atomr_mp_workers.Actor")
    return cls


def _module(target: str, location: str) -> types.ModuleType:
    try:
        if not location.endswith(".py"):
            return importlib.import_module(location)
        path = Path(location)
        if not path.is_file():
            raise ActorLoadFailed(f"{target}: there is no file {location}")
        # As `python file.py` does: what lies beside an actor's file can be imported by it.
        if str(path.parent) not in sys.path:
            sys.path.insert(0, str(path.parent))
        module = importlib.import_module(path.stem)
        if Path(module.__file__ or "").resolve() != path.resolve():
            raise ActorLoadFailed(
                f"{target}: a module named {path.stem!r} exists already ({module.__file__}); rename the file"
            )
        return module
    except ActorLoadFailed:
        raise
    except BaseException as error:  # a module may raise anything, SystemExit too
        raise ActorLoadFailed(f"{target}: importing failed with {type(error).__name__}: {error}") from error


def _requests(cls: type[Actor]) -> Iterator[tuple[str, MethodOptions]]:
    for name, function in inspect.getmembers(cls, inspect.isroutine):
        options = getattr(function, OPTIONS, None)
        if options is not None:
            yield name, options


def _method(spec: ActorSpec, instance: Actor, name: str, options: MethodOptions) -> LoadedMethod:
    function = getattr(instance, name)
    where = f"{spec.target}.{name}"
    if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
        raise ActorLoadFailed(f"{where} is a coroutine or generator; requests are plain methods")
    try:
        hints = typing.get_type_hints(function, include_extras=True)
    except Exception as error:
        raise ActorLoadFailed(
            f"{where}: its annotations cannot be resolved ({error}); import what they name outside TYPE_CHECKING"
        ) from error
    fields = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise ActorLoadFailed(
                f"{where}: parameter {parameter} is not supported; requests have named parameters without * or **"
            )
        fields.append(_field(parameter, hints.get(parameter.name, Any)))
    doc = inspect.getdoc(function) or ""
    info = MethodInfo(
        name,
        [field[0] for field in fields],
        options.idempotent,
        options.deadline_s,
        doc.partition("\n")[0][:1000],
    )
    try:
        by_position, by_name = _decoder(name, fields, array_like=True), _decoder(name, fields, array_like=False)
    except (TypeError, NameError) as error:
        raise ActorLoadFailed(f"{where}: an annotation is not a type that can be sent: {error}") from error
    return LoadedMethod(f"{spec.name}.{name}", function, options, info, by_position, by_name)


def _decoder(name: str, fields: list[tuple[str, Any, Any]], *, array_like: bool) -> values.Decoder[Any]:
    return values.Decoder(msgspec.defstruct(name, fields, array_like=array_like, forbid_unknown_fields=True, gc=False))


def _field(parameter: inspect.Parameter, hint: Any) -> tuple[str, Any, Any]:
    # NDArray[...] and other parametrised arrays are checked as arrays; msgspec does not know their parameters.
    origin = typing.get_origin(hint)
    if isinstance(origin, type) and origin.__module__.partition(".")[0] == "numpy":
        hint = origin
    if parameter.default is parameter.empty:
        return (parameter.name, hint, msgspec.field())
    default = parameter.default
    return (parameter.name, hint, msgspec.field(default_factory=lambda: default))
