"""What an annotation of a method's parameter admits, and how its argument is made.

msgspec decodes plain types, and leaves classes that it does not know to a hook, `convert`: pydantic's models and
annotations, torch's tensors, complex numbers. Any other class must have instances among the values that arrive; an
annotation by which no argument could be right is refused when the actor is loaded.

Neither pydantic nor torch is imported here: an annotation of theirs needs a module that has done so.
"""

from __future__ import annotations

import functools
import sys
import types
import typing
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, Final

from atomr_mp.protocol import foreign, values
from atomr_mp_workers.fitting import check, check_kind, ndarray
from atomr_mp_workers.memory.arrays import DeviceArray


class UnfitError(ValueError):
    """An argument that a library's own rules refuse.

    Args:
        parts: What is wrong, and where within the argument, as ".name[0]".
    """

    def __init__(self, parts: Sequence[tuple[str, str]]) -> None:
        super().__init__("; ".join(f"{what} - at `{place}`" if place else what for what, place in parts))
        self.parts: Final = parts


class _Admits(type):
    """Lets instances of other classes pass for instances of a stand-in."""

    admits: Callable[[object], bool]

    def __instancecheck__(cls, instance: object) -> bool:
        return cls.admits(instance)


class Array(metaclass=_Admits):
    """Stands for NumPy's array in annotations, when arguments are decoded: an array by value, or a ref."""

    @staticmethod
    def admits(instance: object) -> bool:
        """Return whether it is one."""
        return isinstance(instance, DeviceArray) or type(instance) is ndarray()


class TensorArgument(metaclass=_Admits):
    """Stands for torch's tensor: one made of an array by value, or a ref, which becomes one once it is borrowed."""

    @staticmethod
    def admits(instance: object) -> bool:
        """Return whether it is one."""
        return isinstance(instance, DeviceArray) or foreign.is_tensor(instance)


class Validated(metaclass=_Admits):
    """Stands for an annotation that pydantic checks as a whole; each has a subclass."""

    adapter: ClassVar[Any]
    """pydantic's `TypeAdapter` of the annotation."""

    @staticmethod
    def admits(_instance: object) -> bool:
        """Return True: pydantic has checked it."""
        return True


class Decoded(typing.NamedTuple):
    """The way to decode an argument."""

    hint: Any
    """The type for msgspec."""
    takes_handle: bool
    """Whether a ref arrives as the `DeviceArray`, not the array."""
    is_tensor: bool
    """Whether a ref arrives as a tensor."""
    converts: bool
    """Whether decoding it needs `convert`."""


def decoded(annotation: Any) -> Decoded:
    """Return how an argument with this annotation is decoded.

    Raises:
        TypeError: No argument could be right, or the annotation is no type; the message says why.
    """
    hint, takes_handle, is_tensor = annotation, False, False
    if _mentions_pydantic(annotation):
        hint = type("Validated", (Validated,), {"adapter": _adapter(annotation)})
    else:
        optional = _is_optional(_bare(annotation))
        options = typing.get_args(_bare(annotation)) if optional else (annotation,)
        options = tuple(map(_bare, options))
        for stand_in in filter(None, map(_stand_in, options)):
            hint = stand_in | None if optional else stand_in
            is_tensor = stand_in is TensorArgument
        takes_handle = DeviceArray in options
    converts = any(_converter(kind) is not None for kind in check(hint, _converter))
    return Decoded(hint, takes_handle, is_tensor, converts)


def convert(kind: type, value: Any) -> Any:
    """Return the argument for a value that has arrived: msgspec's hook for classes that it does not know.

    Raises:
        UnfitError: The value does not fit.
        RequestError: The value is nested too deeply, or torch has no such tensor.
    """
    converter = _converter(kind)
    return value if converter is None else converter(value)


def adapter_of(kind: Any) -> Any:
    """Return pydantic's `TypeAdapter` for a class that is decoded by pydantic, None for any other."""
    if type(kind) is _Admits and issubclass(kind, Validated):
        return kind.adapter
    return _adapter_of_class(kind) if "pydantic" in sys.modules and _is_of_pydantic(kind) else None


def result_adapter(annotation: Any) -> Any:
    """Return pydantic's `TypeAdapter` for a result's annotation, None if it has nothing of pydantic."""
    return _adapter(annotation) if _mentions_pydantic(annotation) else None


def _bare(annotation: Any) -> Any:
    """Return an annotation without what `Annotated` notes beside it."""
    return typing.get_args(annotation)[0] if hasattr(annotation, "__metadata__") else annotation


def _is_optional(annotation: Any) -> bool:
    """Return whether an annotation is one type or None."""
    options = typing.get_args(annotation)
    is_union = typing.get_origin(annotation) in {typing.Union, types.UnionType}
    return is_union and len(options) == 2 and type(None) in options


def _stand_in(annotation: Any) -> Any:
    """Return the class that stands for an array or a tensor, None for any other annotation."""
    # From Python 3.12 on NDArray[...] may be an alias, whose value counts.
    origin = typing.get_origin(annotation)
    behind = getattr(origin, "__value__", None) or getattr(annotation, "__value__", None)
    if behind is not None:
        origin = typing.get_origin(behind) or behind
    kind = origin or annotation
    if kind is not None and kind is ndarray():
        return Array
    return TensorArgument if kind is not None and kind is foreign.tensor_class() else None


# --- pydantic ------------------------------------------------------------------------------------------------------


def _is_of_pydantic(part: Any) -> bool:
    """Return whether a class, or what is beside a type in `Annotated`, says by itself how pydantic validates it."""
    return hasattr(part, "__pydantic_validator__") or hasattr(part, "__get_pydantic_core_schema__")


def _mentions_pydantic(annotation: Any) -> bool:
    if "pydantic" not in sys.modules:
        return False
    if isinstance(annotation, type) and _is_of_pydantic(annotation):
        return True
    beside = getattr(annotation, "__metadata__", ())
    if any(type(each).__module__.partition(".")[0] in _METADATA or _is_of_pydantic(each) for each in beside):
        return True
    return any(map(_mentions_pydantic, typing.get_args(annotation)[: 1 if beside else None]))


_METADATA: Final = frozenset({"pydantic", "annotated_types"})
"""Packages of what pydantic reads beside a type."""


def _adapter(annotation: Any) -> Any:
    """Return pydantic's `TypeAdapter`.

    Raises:
        TypeError: pydantic cannot make one, or no argument could be right.
    """
    import pydantic

    try:
        try:
            adapter: Any = pydantic.TypeAdapter(annotation, config={"arbitrary_types_allowed": True})
        except pydantic.PydanticUserError as error:
            if error.code != "type-adapter-config-unused":
                raise
            adapter = pydantic.TypeAdapter(annotation)  # a class with a configuration of its own
    except (pydantic.PydanticUserError, pydantic.PydanticUndefinedAnnotation) as error:
        raise TypeError(f"pydantic cannot use it: {error.message}") from error
    for kind in _instances(adapter.core_schema):
        check_kind(kind)
    return adapter


_adapter_of_class: Final = functools.cache(_adapter)

_WALKED: Final = frozenset(
    {
        "dataclass",
        "dataclass-args",
        "dataclass-field",
        "default",
        "definitions",
        "dict",
        "list",
        "model",
        "model-field",
        "model-fields",
        "nullable",
        "set",
        "tuple",
        "typed-dict",
        "typed-dict-field",
    }
)
"""Kinds of pydantic's core schemas whose parts have to be right. Of others, a function may make what is needed."""

_PARTS: Final = ("schema", "fields", "items_schema", "keys_schema", "values_schema", "definitions")


def _instances(schema: Any) -> Iterator[Any]:
    """Yield the classes that values must be instances of as they arrive."""
    if isinstance(schema, list):
        for each in schema:
            yield from _instances(each)
    elif isinstance(schema, dict):
        kind = schema.get("type")
        if kind == "is-instance":
            yield schema["cls"]
        elif kind in _WALKED:
            for part in _PARTS:
                yield from _instances(schema.get(part))
        elif not isinstance(kind, str):  # fields by name
            yield from _instances(list(schema.values()))


def _validate(adapter: Any, value: Any) -> Any:
    import pydantic

    values.check_depth(value)
    try:
        return adapter.validate_python(value)
    except pydantic.ValidationError as error:
        found = error.errors(include_url=False, include_context=False, include_input=False)
        parts = [(each["msg"], "".join(map(_step, each["loc"]))) for each in found[:MAX_TOLD]]
        if len(found) > MAX_TOLD:
            parts.append((f"and {len(found) - MAX_TOLD} more", ""))
        raise UnfitError(parts) from None


MAX_TOLD: Final = 5
"""Most errors of an argument that its caller gets to see."""


def _step(part: int | str) -> str:
    return f"[{part}]" if isinstance(part, int) else f".{part}"


# --- what is made of values that arrive ------------------------------------------------------------------------------


def _to_tensor(value: Any) -> Any:
    """Return a tensor over an array by value; a ref is left as it is, for `LoadedMethod.converted`."""
    return foreign.to_tensor(value) if type(value) is ndarray() else value


def _to_nested_tensor(value: Any) -> Any:
    """Return a tensor over an array by value, or over the memory of a ref, which is only read."""
    return foreign.to_tensor(value.array) if isinstance(value, DeviceArray) else _to_tensor(value)


def _to_complex(value: Any) -> Any:
    """Return the number of an array without dimensions, which is how a complex number arrives."""
    if type(value) is ndarray() and not value.ndim and value.dtype.kind == "c":
        return complex(value)
    return complex(value) if type(value) in {int, float} else value


@functools.cache
def _converter(kind: type) -> Callable[[Any], Any] | None:
    """Return the function that makes an instance of a class, None if instances arrive as they are."""
    adapter = adapter_of(kind)
    if adapter is not None:
        return functools.partial(_validate, adapter)
    if kind is complex:
        return _to_complex
    if kind is TensorArgument:
        return _to_tensor
    return _to_nested_tensor if kind is foreign.tensor_class() else None
