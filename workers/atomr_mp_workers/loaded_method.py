"""A method of a user's actor as a request: decodes its arguments by the method's annotations."""

from __future__ import annotations

import contextlib
import inspect
import itertools
import re
import sys
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Final, NamedTuple

import msgspec

from atomr_mp.errors import BorrowConflict, InvalidRequest, RequestError
from atomr_mp.protocol import values
from atomr_mp.protocol.declaration.checks import check_apart
from atomr_mp.protocol.exceptions import describe
from atomr_mp.protocol.foreign import to_tensor
from atomr_mp.protocol.messages.data import MAX_ITEMS
from atomr_mp.protocol.messages.devices import MethodInfo, Resumes
from atomr_mp.protocol.packing import PACKED_MARK
from atomr_mp.protocol.signatures import wrong_count, wrong_names
from atomr_mp_workers import own_process
from atomr_mp_workers.actor import Example, MethodOptions
from atomr_mp_workers.annotations import Decoded, UnfitError, convert, decoded
from atomr_mp_workers.memory.arrays import DeviceArray
from atomr_mp_workers.requests.batches.rows import RowRules
from atomr_mp_workers.requests.method import Method, Resolve

_astuple: Final = msgspec.structs.astuple
_PLACE: Final = re.compile(r" - at `\$(?:\[(\d+)\]|\.(\w++))([^`]*)`\Z")
"""How msgspec's messages end with the place of a misfit: `$[0]` or `$.name`. Before it they may repeat any text of the
caller's, which may look the same."""
_NO_ARGUMENTS: Final = b"\x90"
"""An empty array."""
_MAP_HEADS: Final = frozenset(bytes((head,)) for head in (*range(0x80, 0x90), 0xDE, 0xDF))
_PACKED_MAP_HEADS: Final = frozenset(PACKED_MARK + head for head in _MAP_HEADS)


class Parameter(NamedTuple):
    """A parameter of a user's method."""

    name: str
    decoded: Decoded
    """The way to decode it."""
    field: Any
    """The field for `msgspec.defstruct`."""
    required: bool
    """Whether it has no default."""


def parameter_of(parameter: inspect.Parameter, annotation: Any) -> Parameter:
    """Return the parameter with the way to decode it.

    Raises:
        TypeError: No argument could be right, or the annotation is no type.
    """
    field = msgspec.field()
    if parameter.default is not parameter.empty:
        default = parameter.default
        field = msgspec.field(default_factory=lambda: default)
    return Parameter(parameter.name, decoded(annotation), field, parameter.default is parameter.empty)


class LoadedMethod(Method):
    """A request of a user's actor.

    Args:
        name: "Actor.method".
        function: The method.
        options: Its decorator's arguments.
        info: Its description for clients.
        fields: Its parameters as fields for `msgspec.defstruct`.
        arrays: Positions of the parameters that are arrays and nothing else.
        handles: Positions of the parameters that take a `DeviceArray`.
    """

    example: Example | None = None
    """Makes the arguments of a call before the process is ready; None for no such call."""

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
        self.streams = info.streams
        self.exclusive = options.exclusive
        self.resumes = info.resumes if options.steps is None else Resumes.NEVER
        self.resumable = info.resumes is not Resumes.NEVER
        self.steps = options.steps
        self.options: Final = options
        self.info: Final = info
        if options.batch is not None and options.batch.rows:
            self.rows_of = RowRules(name, info.parameters, options.batch.max_items).rows_of
        by_position = _struct(name, parameters, array_like=True)
        by_name = _struct(name, parameters, array_like=False)
        hook = convert if any(each.decoded.converts for each in parameters) else None
        self._by_position: values.Decoder[Any] = values.Decoder(by_position, hook, writable=False)
        self._by_name: values.Decoder[Any] = values.Decoder(by_name, hook, writable=False)
        if options.batch is not None and options.batch.call_items:
            # A tuple, since msgspec checks the depth of lists.
            rows: Any = Annotated[tuple[by_position, ...], msgspec.Meta(max_length=MAX_ITEMS)]  # type: ignore[valid-type]
            self._rows: values.Decoder[tuple[Any, ...]] = values.Decoder(rows, hook, writable=False)
            self.items = self._decode_items
        self._parameters: Final = parameters
        self._arrays_at: Final = [at for at, each in enumerate(parameters) if not each.decoded.takes_handle]
        self._tensors_at: Final = {at for at, each in enumerate(parameters) if each.decoded.is_tensor}
        handles = {each.name for each in parameters if each.decoded.takes_handle}
        self.by_ref: Final = handles.union(options.writes)
        """Names of the parameters that take no array but as a ref."""
        self._writes: Final = [at for at, each in enumerate(parameters) if each.name in options.writes]

    def arguments(self, body: bytes, frames: Sequence[memoryview], resolve: Resolve) -> tuple[Any, ...]:
        """Decode a call's arguments; a msgpack array has them by position, a map by name."""
        if body == _NO_ARGUMENTS and not self._parameters:
            return ()
        is_map = body[:1] in _MAP_HEADS or body[:2] in _PACKED_MAP_HEADS
        decoder = self._by_name if is_map else self._by_position
        try:
            arguments = _astuple(decoder.decode(body, frames, resolve))
            own_process.check()  # a default, or an annotation's class, may have code of its own
            for argument in arguments:
                if type(argument) in values.CONTAINERS:
                    values.check_depth(argument)
            return arguments
        except InvalidRequest as error:
            own_process.check()
            raise self._explained(error, body) from error.__cause__
        except RequestError:
            raise
        except BaseException as error:  # an annotation may be a struct with code of its own
            own_process.check()
            raise InvalidRequest(f"decoding the arguments raised {describe(error)}") from error

    def _explained(self, error: InvalidRequest, body: bytes) -> InvalidRequest:
        """Return why arguments do not fit, in the caller's words."""
        names = [each.name for each in self._parameters]
        required = [each.name for each in self._parameters if each.required]
        wrong = ""
        with contextlib.suppress(msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            body = body.removeprefix(PACKED_MARK)
            if body[:1] in _MAP_HEADS:
                wrong = wrong_names(
                    self.name, names, required, msgspec.msgpack.decode(body, type=dict[str, msgspec.Raw])
                )
            else:
                count = len(msgspec.msgpack.decode(body, type=list[msgspec.Raw]))
                wrong = wrong_count(self.name, names, len(required), count)
        unfit = error.__cause__ and error.__cause__.__cause__  # of msgspec's error, which adds the place
        parts = unfit.parts if isinstance(unfit, UnfitError) else ()
        return InvalidRequest(wrong or _placed(error.message, names, parts))  # user code may keep its own

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
            own_process.check()
            raise InvalidRequest(f"decoding the arguments raised {describe(error)}") from error

    def written(self, arguments: tuple[Any, ...]) -> list[DeviceArray]:
        """Return the arguments that the decorator's `writes` names."""
        if not self._writes:
            return []
        written = []
        for at in self._writes:
            array = arguments[at]
            if not isinstance(array, DeviceArray):
                raise InvalidRequest(
                    f"{self._parameters[at].name} is written, so it must be a ref (Device.put makes one of an array): "
                    "nobody would see the writes to an array by value"
                )
            check_apart(self._parameters[at].name, array.layout)
            for other, argument in enumerate(arguments):
                if other != at and isinstance(argument, DeviceArray) and array.overlaps(argument):
                    raise BorrowConflict(
                        f"{self._parameters[at].name} is written and overlaps {self._parameters[other].name}"
                    )
            written.append(array)
        return written

    def converted(self, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the arguments with refs as arrays, unless the method asks for a `DeviceArray`."""
        converted = list(arguments)
        for at in self._arrays_at:
            argument = converted[at]
            if type(argument) is DeviceArray:
                array = argument.array
                converted[at] = to_tensor(array, writable=argument.writable) if at in self._tensors_at else array
        return tuple(converted)


def _placed(message: str, names: Sequence[str], parts: Sequence[tuple[str, str]]) -> str:
    """Return a message of msgspec with the parameter's name for its number.

    Args:
        message: The message.
        names: The parameters' names.
        parts: What another library says instead, and where within the place that the message names.
    """
    found = _PLACE.search(message)
    if found is None:
        return message
    name = found[2] or next(iter(names[int(found[1]) : int(found[1]) + 1]), None)
    if name is None:
        return message
    if parts:
        return "; ".join(f"{what} - at `{name}{found[3]}{place}`" for what, place in parts)
    return f"{message[: found.start()]} - at `{name}{found[3]}`"


def _struct(name: str, parameters: Sequence[Parameter], *, array_like: bool) -> type[msgspec.Struct]:
    """Return the struct that arguments are decoded to."""
    fields = [(parameter.name, parameter.decoded.hint, parameter.field) for parameter in parameters]
    return msgspec.defstruct(
        name.rpartition(".")[2], fields, array_like=array_like, forbid_unknown_fields=True, gc=False
    )
