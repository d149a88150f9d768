"""Loads actors by name: from "[directory/]package.module:Class" or "path/to/file.py:Class" to a `LoadedActor`.

Every failure is an `ActorLoadFailed` that says what to do: a restart would not help.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import inspect
import types
import typing
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec

from atomr_mp.errors import ActorLoadFailed
from atomr_mp.protocol.exceptions import describe, is_a, missing_module
from atomr_mp.protocol.extras import how_to_install
from atomr_mp.protocol.messages.control import ActorSpec
from atomr_mp.protocol.messages.devices import ActorInfo, MethodInfo, Resend, Resumes
from atomr_mp.protocol.world.page import MAX_STEPPED
from atomr_mp_workers import own_process
from atomr_mp_workers.actor import OPTIONS, Actor, Batch, Example, MethodOptions
from atomr_mp_workers.checked_options import checked
from atomr_mp_workers.code_digest import ActorCode, code_of
from atomr_mp_workers.device.streams import PRIORITIES
from atomr_mp_workers.fault_points import hooks
from atomr_mp_workers.import_path import add_actors_folder, add_current_folder
from atomr_mp_workers.live import Live
from atomr_mp_workers.loaded_method import LoadedMethod, Parameter, parameter_of
from atomr_mp_workers.schemas import OPENAI_FORMS, Described, item_of, part_of, schema_of

MAX_THREADS: Final = 64
"""Most threads of an actor; the board has room for 256."""

MAX_RUNNING: Final = 256
"""Most asynchronous requests of an actor that run at a time: each takes a place on the board, and others need some
too."""

MAX_SCHEMAS_CHARS: Final = 200_000
"""Most characters of the schemas of an actor's methods, which travel in one message of the session. Beyond that it has
none."""


@dataclass(frozen=True)
class LoadedActor:
    """An actor's instance and its requests."""

    name: str
    instance: Actor
    methods: list[LoadedMethod]
    code: ActorCode = field(default_factory=ActorCode)
    """Its code, if it belongs to a world."""

    @property
    def info(self) -> ActorInfo:
        """The actor's description for clients."""
        infos = [method.info for method in self.methods]
        if sum(len(info.schema) for info in infos) > MAX_SCHEMAS_CHARS:
            infos = [msgspec.structs.replace(info, schema="") for info in infos]
        return ActorInfo(self.name, infos)

    def is_async(self, name: str) -> bool:
        """Return whether one of the actor's methods is a coroutine function, or an asynchronous generator."""
        return _is_async(getattr(self.instance, name))

    @property
    def needs_loop(self) -> bool:
        """Whether the actor has asynchronous methods, which run on an event loop of its own."""
        return any(method.is_async for method in self.methods) or self.is_async("setup") or self.is_async("teardown")


class Loader:
    """Loads actors, and keeps prepared ones ready."""

    def __init__(self) -> None:
        self._ahead: dict[ActorSpec, LoadedActor] = {}

    def prepare(self, specs: Sequence[ActorSpec]) -> None:
        """Load actors that will be needed; `load` reports their errors."""
        for spec in specs:
            with contextlib.suppress(ActorLoadFailed):
                self._ahead[spec] = load(spec)
            own_process.check()

    def load(self, spec: ActorSpec) -> LoadedActor:
        """Return an actor, once; see `load`."""
        try:
            return self._ahead.pop(spec, None) or load(spec)
        finally:
            own_process.check()


def load(spec: ActorSpec) -> LoadedActor:
    """Import an actor's class, make its instance, and prepare its requests.

    Raises:
        ActorLoadFailed: The module, the class or a signature cannot be used; the message says what to change.
    """
    cls = _class(spec)
    code = code_of(cls) if spec.in_world else ActorCode()
    try:
        instance = cls()
    except BaseException as error:
        raise ActorLoadFailed(
            f"{spec.target}: making an instance failed with {describe(error)}; __init__ takes no "
            "arguments, and what may fail belongs in setup()"
        ) from error
    if instance.stream_priority not in PRIORITIES:
        raise ActorLoadFailed(
            f"{spec.target}: stream_priority is {instance.stream_priority!r}; it must be one of {', '.join(PRIORITIES)}"
        )
    for name in ("setup", "teardown"):
        if inspect.isasyncgenfunction(getattr(instance, name)):
            raise ActorLoadFailed(f"{spec.target}.{name} is a generator, which nobody would iterate over: it yields")
    methods = [_method(spec, instance, name, options) for name, options in _requests(cls)]
    if not methods:
        raise ActorLoadFailed(f"{spec.target} has no requests; decorate its methods with @method")
    return LoadedActor(spec.name, instance, methods, code)


def take_into_world(actor: LoadedActor, world: int) -> None:
    """Have an actor's methods run on the thread of a world.

    Args:
        actor: The actor.
        world: The world's number.

    Raises:
        ActorLoadFailed: It has a method that cannot be called on all members as one.
    """
    for method in actor.methods:
        wrong = _unfit_for_world(method)
        if wrong:
            raise ActorLoadFailed(f"{method.name}: the actor belongs to a world, {wrong}")
        method.world, method.thread, method.apart = world, True, True
        method.items = None  # the members of a world agree on each call by itself
    if actor.instance.threads != 1:
        raise ActorLoadFailed(
            f"{actor.name}: the actor belongs to a world, which has one thread for its calls; leave out threads="
        )


def _unfit_for_world(method: LoadedMethod) -> str:
    """Return why a method cannot be called on all members of a world as one, "" if it can."""
    options = method.options
    refused = (
        (method.is_async, "where asynchronous methods are not supported: write it as a method (def)"),
        (
            options.steps is not None and options.steps.max_items > MAX_STEPPED,
            f"where at most {MAX_STEPPED} streams run together: lower max_items of its Steps(...)",
        ),
        (options.exclusive, "whose thread is for all of its calls: leave out exclusive="),
        (bool(options.writes), "where refs among the arguments are only read: leave out writes="),
        (options.joins_rows, "whose batches are of calls: leave out rows=, and write the method for lists"),
    )
    return next((why for holds, why in refused if holds), "")


def threads_of(actor: LoadedActor) -> int:
    """Return how many threads an actor has for its methods, once it has been set up.

    Raises:
        ActorLoadFailed: `threads` is not a number of threads.
    """
    return _count(actor, "threads", MAX_THREADS)


def max_running_of(actor: LoadedActor) -> int:
    """Return how many asynchronous requests an actor runs at a time, once it has been set up.

    Raises:
        ActorLoadFailed: `max_running` is not a number of requests.
    """
    return _count(actor, "max_running", MAX_RUNNING)


def _count(actor: LoadedActor, name: str, most: int) -> int:
    count: Any = getattr(actor.instance, name)
    if type(count) is not int or not 1 <= count <= most:
        raise ActorLoadFailed(f"{actor.name}: {name} is {count!r}; it must be a number from 1 to {most}")
    return count


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
        add_current_folder()
        directory, slash, module = location.rpartition("/")
        if location.endswith(".py"):
            if not Path(location).is_file():
                raise ActorLoadFailed(f"{target}: there is no file {location}")
            return _import_from(target, directory or ".", module.removesuffix(".py"), module)
        return _import_from(target, directory, module) if slash else importlib.import_module(location)
    except ActorLoadFailed:
        raise
    except BaseException as error:  # a module may raise anything, even SystemExit
        advice = f"; {how_to_install(missing_module(error))}" if is_a(error, ModuleNotFoundError) else ""
        if type(error) is ImportError and "relative import" in str(error.msg) and location.endswith(".py"):
            advice = f"; a file named by itself is in no package: name it as {_in_package(Path(location))}:CLASS"
        raise ActorLoadFailed(f"{target}: importing failed with {describe(error)}{advice}") from error
    finally:
        importing = False


def _in_package(file: Path) -> str:
    """Return how a file is named as a module of its package: the outermost folder with an `__init__.py`, or its own."""
    root = file.parent
    while (root.parent / "__init__.py").is_file():
        root = root.parent
    return f"{root.parent}/{'.'.join(file.relative_to(root.parent).with_suffix('').parts)}"


def _import_from(target: str, directory: str, name: str, file: str = "") -> types.ModuleType:
    """Import a module from a directory: it can import modules beside it, but for names of the standard library.

    Args:
        target: The actor's target, for the error.
        directory: The directory that imports begin in.
        name: The module.
        file: Its file's name; empty if any will do.
    """
    add_actors_folder(directory)
    module = importlib.import_module(name)
    found = Path(module.__file__ or "")
    root = found.parents[name.count(".") + hasattr(module, "__path__")] if module.__file__ else found
    if root.resolve() != Path(directory).resolve() or file not in {"", found.name}:
        raise ActorLoadFailed(f"{target}: a module named {name!r} exists already ({module.__file__}); rename the file")
    return module


importing = False
"""Whether this process is importing an actor's module. `atomr_mp.start` checks it, and refuses to start a pool
meanwhile."""


def _requests(cls: type[Actor]) -> Iterator[tuple[str, MethodOptions]]:
    for name, function in inspect.getmembers(cls, inspect.isroutine):
        options = getattr(function, OPTIONS, None)
        if options is not None:
            yield name, options


def _method(spec: ActorSpec, instance: Actor, name: str, options: MethodOptions) -> LoadedMethod:
    function = getattr(instance, name)
    where = f"{spec.target}.{name}"
    options = checked(where, options)
    _check_kind(where, function, options, in_world=spec.in_world)
    try:
        hints = typing.get_type_hints(function, include_extras=True)
    except BaseException as error:  # an annotation may be any expression
        raise ActorLoadFailed(
            f"{where}: its annotations cannot be resolved ({describe(error)}); import what they name "
            "outside TYPE_CHECKING"
        ) from error
    parameters, described = [], []
    try:
        signature = inspect.signature(function)
    except ValueError:
        raise ActorLoadFailed(
            f"{where}: its first parameter is the actor itself; write it as `def {name}(self, ...)`"
        ) from None
    if options.steps is not None:
        signature, hints = _of_steps(where, signature, hints)
    resumes = _resumes(where, signature, options)
    for parameter in _callers(signature, resumes):
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise ActorLoadFailed(
                f"{where}: parameter {parameter} is not supported; requests have named parameters without * or **"
            )
        hint = hints.get(parameter.name, Any)
        if options.batch is not None and not options.joins_rows:
            hint = _item_hint(where, parameter, hint)
        parameters.append(_parameter(where, parameter, hint))
        described.append(Described(parameter.name, hint, parameters[-1].decoded.hint, parameters[-1].required))
    unknown = set(options.writes) - {parameter.name for parameter in parameters}
    if unknown:
        raise ActorLoadFailed(f"{where}: writes names {', '.join(sorted(unknown))}, which it does not take")
    _check_batched(where, options, parameters)
    doc = inspect.getdoc(function) or ""
    streams = options.steps is not None or _yields(function)
    returned = _returned(function, options, hints.get("return", Any))
    info = MethodInfo(
        name,
        [parameter.name for parameter in parameters],
        options.idempotent,
        options.deadline_s,
        doc.partition("\n")[0][:1000],
        most.max_items if (most := options.batch or options.steps) is not None else 0,
        options.batch.call_items if options.batch is not None else 0,
        _resend(where, instance, options),
        schema_of(described, returned, _openai(where, described, options)),
        streams,
        resumes,
        bool(options.writes),
        options.joins_rows,
        0.0 if options.batch is None else options.batch.max_wait_s,
    )
    is_async, function = _is_async(function), _with_resumption(function, info, options)
    method = LoadedMethod(f"{spec.name}.{name}", function, options, info, parameters)
    if is_async:
        method.is_async = method.thread = method.apart = True
    method.key = _key(where, instance, options.batch)
    method.example = _example(where, instance, options)
    method.hang_timeout_s = _hang_timeout_s(where, instance, options)
    return method


def _parameter(where: str, parameter: inspect.Parameter, annotation: Any) -> Parameter:
    """Return a parameter with the way to decode it; whatever its annotation's classes raise, it is not one to use."""
    try:
        return parameter_of(parameter, annotation)
    except BaseException as error:
        why = str(error) if type(error) is TypeError else describe(error)
        raise ActorLoadFailed(f"{where}: the annotation of parameter {parameter.name} cannot be used: {why}") from error


def _check_kind(where: str, function: Callable[..., Any], options: MethodOptions, *, in_world: bool) -> None:
    """Check that a method fits its decorator's arguments."""
    streams = _yields(function)
    if _is_async(function):
        if options.thread:
            raise ActorLoadFailed(f"{where} is asynchronous, so it runs on its actor's event loop: leave out thread=")
        if options.batch is not None or options.steps is not None:
            raise ActorLoadFailed(
                f"{where} is asynchronous, so its requests run side by side, one by one: leave out batch=, or write it "
                "as a method (def) of lists, or of a step"
            )
        if options.exclusive:
            raise ActorLoadFailed(
                f"{where} is asynchronous, and shares its thread with the actor's other tasks: leave out exclusive="
            )
    elif streams and not options.thread and not in_world:
        raise ActorLoadFailed(f"{where} is a generator, which runs on the actor's thread: mark it @method(thread=True)")
    if streams and (options.batch is not None or options.steps is not None):
        raise ActorLoadFailed(f"{where} is a generator, so it takes its requests one by one; leave out batch=")
    if options.steps is not None and not options.thread:
        raise ActorLoadFailed(f"{where} is a step over streams, which runs on the actor's thread: add thread=True")
    if options.resumable and not streams and options.steps is None:
        raise ActorLoadFailed(f"{where} does not stream; leave out resumable=")
    if options.exclusive and not streams:
        raise ActorLoadFailed(f"{where} is not a generator, so it keeps its thread anyway; leave out exclusive=")


def _check_batched(where: str, options: MethodOptions, parameters: Sequence[Parameter]) -> None:
    """Check that a method's requests can be put together, if they are to be."""
    if options.batch is not None and not parameters:
        kind = "an array or a list of rows" if options.joins_rows else "a list"
        raise ActorLoadFailed(f"{where}: a batched method takes at least one parameter, {kind}")
    if not options.joins_rows:
        return
    refs = [each.name for each in parameters if each.decoded.takes_handle or each.name in options.writes]
    if refs:
        raise ActorLoadFailed(
            f"{where}: parameter {refs[0]} takes refs, whose memory is not joined: annotate it as an array and leave "
            "out writes=, or leave out rows= of its Batch(...) and write the method for lists"
        )
    if options.openai is not None:
        raise ActorLoadFailed(
            f"{where}: a request in OpenAI's form has no rows: leave out rows= of its Batch(...), and write the method "
            "for lists; or leave out openai="
        )


def _is_async(function: Callable[..., Any]) -> bool:
    """Return whether a function is a coroutine function, or an asynchronous generator."""
    return inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)


def _yields(function: Callable[..., Any]) -> bool:
    """Return whether a function is a generator, asynchronous or not."""
    return inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)


def _resumes(where: str, signature: inspect.Signature, options: MethodOptions) -> Resumes:
    """Return how a method's streams go on in another worker."""
    if not options.resumable:
        return Resumes.NEVER
    if options.steps is not None:
        return Resumes.SENT
    found = [each for each in (Resumes.START, Resumes.SENT) if each.value in signature.parameters]
    if len(found) != 1:
        raise ActorLoadFailed(
            f"{where} is resumable, so it takes a parameter `start: int`, how many parts were sent, or "
            "`sent: list[...]`, which they are; and not both"
        )
    return found[0]


def _callers(signature: inspect.Signature, resumes: Resumes) -> list[inspect.Parameter]:
    """Return the parameters that callers give, without that of a resumption."""
    return [each for each in signature.parameters.values() if each.name != resumes.value]


def _with_resumption(function: Callable[..., Any], info: MethodInfo, options: MethodOptions) -> Callable[..., Any]:
    """Return a function that takes the arguments by position, followed by the resumption's if it has one."""
    if info.resumes is Resumes.NEVER or options.steps is not None:
        return function
    names = [*info.parameters, info.resumes.value]

    @functools.wraps(function)
    def resumed(*arguments: Any) -> Any:
        return function(**dict(zip(names, arguments, strict=True)))

    return resumed


def _returned(function: Callable[..., Any], options: MethodOptions, hint: Any) -> Any:
    """Return the annotation of a caller's result, or of a part."""
    if _yields(function):
        return part_of(hint)
    return hint if options.batch is None or options.joins_rows else item_of(hint)


def _of_steps(
    where: str, signature: inspect.Signature, hints: dict[str, Any]
) -> tuple[inspect.Signature, dict[str, Any]]:
    """Return a method with steps as callers see it: its one argument, and a part."""
    names = list(signature.parameters)
    live = hints.get(names[0]) if len(names) == 1 else None
    if typing.get_origin(live) is not Live:
        raise ActorLoadFailed(
            f"{where} is a step over streams: it takes one parameter, annotated as Live[Arguments, Part], by the types "
            "of what a caller sends and of a part"
        )
    argument, part = typing.get_args(live)
    parameter = inspect.Parameter("arguments", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return inspect.Signature([parameter]), {"arguments": argument, "return": part}


def _hang_timeout_s(where: str, instance: Actor, options: MethodOptions) -> float | None:
    """Return a method's hang limit, or its actor's."""
    limit_s: Any = instance.hang_timeout_s if options.hang_timeout_s is None else options.hang_timeout_s
    if limit_s is None:
        return None
    if isinstance(limit_s, bool) or not (isinstance(limit_s, int | float) and limit_s > 0):
        raise ActorLoadFailed(
            f"{where}: hang_timeout_s is {limit_s!r}; it is a positive number of seconds, or math.inf for no limit"
        )
    return float(limit_s)


def _resend(where: str, instance: Actor, options: MethodOptions) -> Resend:
    """Return which requests of a method are sent again after a worker's end, or its actor's choice."""
    given: Any = instance.resend if options.resend is None else options.resend
    try:
        return Resend(given)
    except ValueError:
        raise ActorLoadFailed(
            f"{where}: resend is {given!r}; it is {' or '.join(repr(each.value) for each in Resend)}"
        ) from None


def _openai(where: str, parameters: Sequence[Described], options: MethodOptions) -> str:
    """Return the OpenAI form in which a method answers; empty for none."""
    form = options.openai
    if form is None:
        return ""
    if form not in OPENAI_FORMS:
        raise ActorLoadFailed(f"{where}: openai is {form!r}; it is {' or '.join(map(repr, OPENAI_FORMS))}")
    others = [each.name for each in parameters[1:] if each.required]
    if not parameters or others:
        wants = "a parameter for what it answers" if not parameters else f"defaults for {', '.join(others)}"
        raise ActorLoadFailed(f"{where}: a method with openai={form!r} needs {wants}")
    return form


def _key(where: str, instance: Actor, batch: Batch | None) -> Callable[..., Hashable] | None:
    """Return the function that groups a method's requests."""
    if batch is None or batch.key is None:
        return None
    key = getattr(instance, batch.key, None) if isinstance(batch.key, str) else batch.key
    if not callable(key):
        raise ActorLoadFailed(f"{where}: its batches' key {batch.key!r} is neither a function nor a method's name")
    return key


def _example(where: str, instance: Actor, options: MethodOptions) -> Example | None:
    """Return the function that makes the arguments of a method's first call, None if there is none."""
    if not isinstance(options.example, str):
        return options.example
    example: Example | None = getattr(instance, options.example, None)
    if not callable(example):
        raise ActorLoadFailed(f"{where}: its example {options.example!r} is not the name of a method")
    return example


def _item_hint(where: str, parameter: inspect.Parameter, hint: Any) -> Any:
    """Return the type that callers send for a parameter of a batched method, which takes a list of them."""
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
