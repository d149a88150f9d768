"""Actors found by name: from "[directory/]package.module:Class" or "path/to/file.py:Class" to a `LoadedActor`.

Every way in which this can go wrong is `ActorLoadFailed`, with what to do: a restart would not help.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import inspect
import itertools
import re
import sys
import types
import typing
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple

import msgspec

from atomr_mp.errors import ActorLoadFailed, BorrowConflict, InvalidRequest, RequestError
from atomr_mp.protocol import values
from atomr_mp.protocol.extras import how_to_install
from atomr_mp.protocol.messages.control import ActorSpec
from atomr_mp.protocol.messages.data import MAX_ITEMS
from atomr_mp.protocol.messages.devices import ActorInfo, MethodInfo, Resend
from atomr_mp.protocol.refs import ClientArray, WireRef
from atomr_mp.protocol.signatures import wrong_count, wrong_names
from atomr_mp_workers.actor import OPTIONS, Actor, Batch, MethodOptions
from atomr_mp_workers.device.base import Event, Stream
from atomr_mp_workers.device.streams import PRIORITIES
from atomr_mp_workers.fault_points import hooks
from atomr_mp_workers.memory.arrays import DeviceArray
from atomr_mp_workers.memory.blocks import Holder

MAX_THREADS: Final = 64
"""Of an actor; the board has room for 256."""

UNKNOWN_NS: Final = 2**62
"""Stands for how long a method takes that has never run."""


Resolve = Callable[[WireRef | ClientArray], object]


class Method(ABC):
    """A request that can be run: how its arguments are decoded, and what to call with them.

    Args:
        name: "Actor.method", or "library.request".
        function: What does the work.
    """

    thread = False
    """It runs on its actor's thread."""
    reads = False
    """It writes none of its arguments."""
    takes_refs = False
    """Some of its arguments have to be refs, which `written` checks."""
    batch: Batch | None = None
    """Its requests are put together."""
    key: Callable[..., Hashable] | None = None
    """Which of them may be in one batch."""
    most_queued = sys.maxsize
    """How many of its requests may wait."""
    apart = False
    """Its requests wait for their turn apart from others: those of a thread, and those of batches."""
    stream: Stream | None = None
    """Where it runs, if it is a library's."""
    hang_timeout_s: float | None = None
    """How long it may run before it counts as hung; None if its actor does not say."""
    watched = 0
    """What the board says of its requests, see `watching`."""
    items: Callable[[bytes, Sequence[memoryview]], list[tuple[Any, ...]]] | None = None
    """Decodes the arguments of each item of a call with items; raises a `RequestError` if they do not fit. None if it
    takes no such calls."""
    admit: Callable[[Any, Holder], None] | None = None
    """What is to be done with its first argument when it arrives, before it waits for anything."""
    prepares = False
    """Its requests need a plan, see `prepared`."""

    def __init__(self, name: str, function: Callable[..., Any]) -> None:
        self.name: Final = name
        self.function: Final = function
        self.queued = 0
        """Requests that have been received and have not started."""
        self.typical_ns = UNKNOWN_NS
        """How long it takes, as far as is known."""

    def took(self, ns: int) -> None:
        """Learn from a run: at once if it was short, step by step if it was long, which may be the machine's doing."""
        self.typical_ns = ns if ns < self.typical_ns else self.typical_ns + (ns - self.typical_ns) // 4

    @property
    def queued_ns(self) -> int:
        """How long its waiting requests may take, as far as that is known."""
        runs = self.queued if self.batch is None else -(-self.queued // self.batch.max_items)
        return 0 if self.typical_ns == UNKNOWN_NS else runs * self.typical_ns

    @abstractmethod
    def arguments(self, body: bytes, frames: Sequence[memoryview], resolve: Resolve) -> tuple[Any, ...]:
        """Decode a call's arguments.

        Raises:
            RequestError: They do not fit, or a ref among them is refused.
        """

    @abstractmethod
    def written(self, arguments: tuple[Any, ...]) -> list[DeviceArray]:
        """Return the arrays among the arguments that the request writes.

        Raises:
            BorrowConflict: It would write what it also reads, or writes twice.
        """

    def read(self, _arguments: tuple[Any, ...], arrays: Sequence[DeviceArray]) -> list[DeviceArray]:
        """Return the arrays whose content matters: by default those that are not written."""
        return [array for array in arrays if not array.writable]

    def triangle_of(self, _arguments: tuple[Any, ...], _array: DeviceArray) -> str | None:
        """Return which triangle of an array alone is written, "" for all of it; None if anything may be left out."""
        return ""

    def converted(self, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the arguments as the function takes them, once the arrays are borrowed."""
        return arguments

    def prepared(self, arguments: tuple[Any, ...]) -> tuple[tuple[Any, ...], Event | None]:
        """Return the arguments with a plan, and the end of its making if that is to be waited for."""
        return arguments, None


class LoadedMethod(Method):
    """A request of a user's actor.

    Args:
        name: "Actor.method".
        function: The method.
        options: What its decorator was told.
        info: What clients are told of it.
        fields: Its parameters, as `msgspec.defstruct` takes them.
        arrays: Which parameters are arrays and nothing else, by position.
        handles: Which take a `DeviceArray`.
    """

    def __init__(
        self,
        name: str,
        function: Callable[..., Any],
        options: MethodOptions,
        info: MethodInfo,
        parameters: Sequence[Parameter],
    ) -> None:
        super().__init__(name, function)
        self.thread = options.thread
        self.reads = not options.writes
        self.takes_refs = bool(options.writes)
        self.batch = options.batch
        self.most_queued = options.queue or sys.maxsize
        self.apart = options.thread or options.batch is not None
        self.options: Final = options
        self.info: Final = info
        by_position = _struct(name, parameters, array_like=True)
        self._by_position: values.Decoder[Any] = values.Decoder(by_position)
        self._by_name: values.Decoder[Any] = values.Decoder(_struct(name, parameters, array_like=False))
        if options.batch is not None and options.batch.call_items:
            # A tuple: what a list has is looked at for its depth.
            rows: Any = Annotated[tuple[by_position, ...], msgspec.Meta(max_length=MAX_ITEMS)]  # type: ignore[valid-type]
            self._rows: values.Decoder[tuple[Any, ...]] = values.Decoder(rows)
            self.items = self._decode_items
        self._parameters: Final = parameters
        self._arrays_at: Final = [at for at, each in enumerate(parameters) if not each.takes_handle]
        self._writes: Final = [at for at, each in enumerate(parameters) if each.name in options.writes]

    def arguments(self, body: bytes, frames: Sequence[memoryview], resolve: Resolve) -> tuple[Any, ...]:
        """Decode a call's arguments; an array is by position, a map by name."""
        if body == _NO_ARGUMENTS and not self._parameters:
            return ()
        decoder = self._by_name if body[:1] in _MAP_HEADS else self._by_position
        try:
            arguments = _astuple(decoder.decode(body, frames, resolve))
            for argument in arguments:
                if type(argument) in values.CONTAINERS:
                    values.check_depth(argument)
            return arguments
        except InvalidRequest as error:
            raise self._explained(error, body) from error.__cause__
        except RequestError:
            raise
        except BaseException as error:  # an annotation may be a struct with code of its own
            raise InvalidRequest(f"decoding the arguments raised {type(error).__name__}: {error}") from error

    def _explained(self, error: InvalidRequest, body: bytes) -> InvalidRequest:
        """Return why arguments do not fit, in the caller's words."""
        names = [each.name for each in self._parameters]
        required = [each.name for each in self._parameters if each.required]
        wrong = ""
        with contextlib.suppress(msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            if body[:1] in _MAP_HEADS:
                wrong = wrong_names(
                    self.name, names, required, msgspec.msgpack.decode(body, type=dict[str, msgspec.Raw])
                )
            else:
                count = len(msgspec.msgpack.decode(body, type=list[msgspec.Raw]))
                wrong = wrong_count(self.name, names, len(required), count)
        error.message = wrong or _PLACE.sub(lambda found: f"`{found[2] or names[int(found[1])]}", error.message)
        return error

    def _decode_items(self, body: bytes, frames: Sequence[memoryview]) -> list[tuple[Any, ...]]:
        try:
            rows = list(map(_astuple, self._rows.decode(body, frames)))
            if not values.CONTAINERS.isdisjoint(map(type, itertools.chain.from_iterable(rows))):
                for argument in itertools.chain.from_iterable(rows):
                    if type(argument) in values.CONTAINERS:
                        values.check_depth(argument)
            return rows
        except RequestError:
            raise
        except BaseException as error:  # as above
            raise InvalidRequest(f"decoding the arguments raised {type(error).__name__}: {error}") from error

    def written(self, arguments: tuple[Any, ...]) -> list[DeviceArray]:
        """Return those that the decorator's `writes` names."""
        if not self._writes:
            return []
        written = []
        for at in self._writes:
            array = arguments[at]
            if not isinstance(array, DeviceArray):
                raise InvalidRequest(
                    f"{self._parameters[at].name} is written, so it must be a ref (Device.put makes one of an array): "
                    "of an array by value nobody would see what is written"
                )
            for other, argument in enumerate(arguments):
                if other != at and isinstance(argument, DeviceArray) and array.overlaps(argument):
                    raise BorrowConflict(
                        f"{self._parameters[at].name} is written and overlaps {self._parameters[other].name}"
                    )
            written.append(array)
        return written

    def converted(self, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return refs as arrays, but where the method asks for a `DeviceArray`."""
        converted = list(arguments)
        for at in self._arrays_at:
            argument = converted[at]
            if type(argument) is DeviceArray:
                converted[at] = argument.array
        return tuple(converted)


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


class Loader:
    """Loads actors, and has those ready that it was told of before."""

    def __init__(self) -> None:
        self._ahead: dict[ActorSpec, LoadedActor] = {}

    def prepare(self, specs: Sequence[ActorSpec]) -> None:
        """Load actors that will be needed; what goes wrong is for `load` to say."""
        for spec in specs:
            with contextlib.suppress(ActorLoadFailed):
                self._ahead[spec] = load(spec)

    def load(self, spec: ActorSpec) -> LoadedActor:
        """Return an actor, once; see `load`."""
        return self._ahead.pop(spec, None) or load(spec)


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
    if instance.stream_priority not in PRIORITIES:
        raise ActorLoadFailed(
            f"{spec.target}: stream_priority is {instance.stream_priority!r}; it must be one of {', '.join(PRIORITIES)}"
        )
    methods = [_method(spec, instance, name, options) for name, options in _requests(cls)]
    if not methods:
        raise ActorLoadFailed(f"{spec.target} has no requests; decorate its methods with @method")
    return LoadedActor(spec.name, instance, methods)


def threads_of(actor: LoadedActor) -> int:
    """Return how many threads an actor that has been set up has for its methods.

    Raises:
        ActorLoadFailed: It says something else than a number of threads.
    """
    count: Any = actor.instance.threads
    if type(count) is not int or not 1 <= count <= MAX_THREADS:
        raise ActorLoadFailed(f"{actor.name}: threads is {count!r}; it must be a number from 1 to {MAX_THREADS}")
    return count


_astuple: Final = msgspec.structs.astuple
_PLACE: Final = re.compile(r"`\$(?:\[(\d+)\]|\.(\w+))")
"""How msgspec begins the place of what does not fit: `$[0]` or `$.name`."""
_NO_ARGUMENTS: Final = b"\x90"
"""An empty array."""
_MAP_HEADS: Final = frozenset(bytes((head,)) for head in (*range(0x80, 0x90), 0xDE, 0xDF))


def _class(spec: ActorSpec) -> type[Actor]:
    location, _, name = spec.target.rpartition(":")
    module = _module(spec.target, location, spec.name)
    cls = getattr(module, name, None)
    if cls is None:
        actors = [n for n, c in vars(module).items() if isinstance(c, type) and issubclass(c, Actor) and c is not Actor]
        raise ActorLoadFailed(f"{location} has no {name!r}; its actors are: {', '.join(actors) or 'none'}")
    if not (isinstance(cls, type) and issubclass(cls, Actor)):
        raise ActorLoadFailed(f"{spec.target} is not a subclass of atomr_mp_workers.Actor")
    return cls


def _module(target: str, location: str, name: str) -> types.ModuleType:
    global importing  # noqa: PLW0603 - one import at a time, on the process's main thread
    try:
        hooks.point("import", name)
        importing = True
        directory, slash, module = location.rpartition("/")
        if location.endswith(".py"):
            if not Path(location).is_file():
                raise ActorLoadFailed(f"{target}: there is no file {location}")
            return _import_from(target, directory or ".", module.removesuffix(".py"), module)
        return _import_from(target, directory, module) if slash else importlib.import_module(location)
    except ActorLoadFailed:
        raise
    except BaseException as error:  # a module may raise anything, SystemExit too
        advice = f"; {how_to_install(error.name)}" if isinstance(error, ModuleNotFoundError) else ""
        raise ActorLoadFailed(f"{target}: importing failed with {type(error).__name__}: {error}{advice}") from error
    finally:
        importing = False


def _import_from(target: str, directory: str, name: str, file: str = "") -> types.ModuleType:
    """Import a module from a directory, as `python file.py` does: what lies beside it can be imported by it.

    Args:
        target: What is loaded, for the error.
        directory: Where the module's import begins.
        name: The module.
        file: Its file's name; empty if any will do.
    """
    if directory not in sys.path:
        sys.path.insert(0, directory)
    module = importlib.import_module(name)
    found = Path(module.__file__ or "")
    root = found.parents[name.count(".") + hasattr(module, "__path__")] if module.__file__ else found
    if root.resolve() != Path(directory).resolve() or file not in {"", found.name}:
        raise ActorLoadFailed(f"{target}: a module named {name!r} exists already ({module.__file__}); rename the file")
    return module


importing = False
"""This process imports an actor's module. `atomr_mp.start` looks here, and refuses to start a pool meanwhile."""


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
    parameters = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise ActorLoadFailed(
                f"{where}: parameter {parameter} is not supported; requests have named parameters without * or **"
            )
        hint = hints.get(parameter.name, Any)
        parameters.append(_parameter(parameter, hint if options.batch is None else _item_hint(where, parameter, hint)))
    unknown = set(options.writes) - {parameter.name for parameter in parameters}
    if unknown:
        raise ActorLoadFailed(f"{where}: writes names {', '.join(sorted(unknown))}, which it does not take")
    if options.batch is not None and not parameters:
        raise ActorLoadFailed(f"{where}: a batched method takes at least one parameter, a list")
    doc = inspect.getdoc(function) or ""
    info = MethodInfo(
        name,
        [parameter.name for parameter in parameters],
        options.idempotent,
        options.deadline_s,
        doc.partition("\n")[0][:1000],
        options.batch.max_items if options.batch is not None else 0,
        options.batch.call_items if options.batch is not None else 0,
        _resend(where, instance, options),
    )
    try:
        method = LoadedMethod(f"{spec.name}.{name}", function, options, info, parameters)
    except (TypeError, NameError) as error:
        raise ActorLoadFailed(f"{where}: an annotation is not a type that can be sent: {error}") from error
    method.key = _key(where, instance, options.batch)
    method.hang_timeout_s = _hang_timeout_s(where, instance, options)
    return method


def _hang_timeout_s(where: str, instance: Actor, options: MethodOptions) -> float | None:
    """Return a method's own limit, or its actor's."""
    limit_s: Any = instance.hang_timeout_s if options.hang_timeout_s is None else options.hang_timeout_s
    if limit_s is None:
        return None
    if not (isinstance(limit_s, int | float) and limit_s > 0):
        raise ActorLoadFailed(
            f"{where}: hang_timeout_s is {limit_s!r}; it is a positive number of seconds, or math.inf for no limit"
        )
    return float(limit_s)


def _resend(where: str, instance: Actor, options: MethodOptions) -> Resend:
    """Return what a method says of requests that a worker's end took along, or its actor."""
    given: Any = instance.resend if options.resend is None else options.resend
    try:
        return Resend(given)
    except ValueError:
        raise ActorLoadFailed(
            f"{where}: resend is {given!r}; it is {' or '.join(repr(each.value) for each in Resend)}"
        ) from None


def _key(where: str, instance: Actor, batch: Batch | None) -> Callable[..., Hashable] | None:
    """Return what groups a method's requests."""
    if batch is None or batch.key is None:
        return None
    key = getattr(instance, batch.key, None) if isinstance(batch.key, str) else batch.key
    if not callable(key):
        raise ActorLoadFailed(f"{where}: its batches' key {batch.key!r} is neither a function nor a method's name")
    return key


def _item_hint(where: str, parameter: inspect.Parameter, hint: Any) -> Any:
    """Return the type of what callers send for a parameter of a batched method, which is a list of them."""
    if parameter.default is not parameter.empty:
        raise ActorLoadFailed(f"{where}: parameter {parameter.name} of a batched method cannot have a default")
    if hint is Any or hint is list:
        return Any
    if typing.get_origin(hint) not in {list, Sequence}:
        raise ActorLoadFailed(
            f"{where}: parameter {parameter.name} of a batched method is a list with an entry for each request; "
            "annotate it as list[...]"
        )
    (item,) = typing.get_args(hint)
    return item


class Parameter(NamedTuple):
    """A parameter of a user's method."""

    name: str
    hint: Any
    field: Any
    """As `msgspec.defstruct` takes it."""
    takes_handle: bool
    """It wants the `DeviceArray`, not the array."""
    required: bool
    """It has no default."""


def _parameter(parameter: inspect.Parameter, hint: Any) -> Parameter:
    # NDArray[...] and other parametrised arrays are checked as arrays; msgspec does not know their parameters.
    # From Python 3.12 on they may be aliases that are to be looked behind.
    origin = typing.get_origin(hint)
    behind = getattr(origin, "__value__", None) or getattr(hint, "__value__", None)
    if behind is not None:
        origin = typing.get_origin(behind) or behind
    if isinstance(origin, type) and origin.__module__.partition(".")[0] == "numpy":
        hint = origin
    takes_handle = hint is DeviceArray
    if hint is _ndarray():
        hint = Array
    field = msgspec.field()
    if parameter.default is not parameter.empty:
        default = parameter.default
        field = msgspec.field(default_factory=lambda: default)
    return Parameter(parameter.name, hint, field, takes_handle, parameter.default is parameter.empty)


def _ndarray() -> Any:
    """Return the class of NumPy's arrays, which are named only where NumPy has been imported."""
    numpy = sys.modules.get("numpy")
    return None if numpy is None else numpy.ndarray


def _struct(name: str, parameters: Sequence[Parameter], *, array_like: bool) -> type[msgspec.Struct]:
    """Return what arguments are decoded to."""
    fields = [(parameter.name, parameter.hint, parameter.field) for parameter in parameters]
    return msgspec.defstruct(
        name.rpartition(".")[2], fields, array_like=array_like, forbid_unknown_fields=True, gc=False
    )


class _ArrayMeta(type):
    """Lets a parameter that is annotated as an array be given as a ref too."""

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, DeviceArray) or type(instance) is _ndarray()


class Array(metaclass=_ArrayMeta):
    """Stands for NumPy's array in annotations, when arguments are decoded: an array by value, or a ref."""
