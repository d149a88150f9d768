"""Base of the references of all libraries."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol, SupportsFloat, SupportsIndex, TypeVar

import msgspec

from atomr_mp import errors
from atomr_mp.protocol import dtypes
from atomr_mp.protocol.declaration.arguments import declared, with_arrays
from atomr_mp.protocol.declaration.factors import Factor, RealFactor, Scalar, decoded
from atomr_mp.protocol.decoders import known
from atomr_mp.protocol.keywords import checks_names
from atomr_mp.protocol.libraries.base import KNOWN, LibraryRequest, to_scalar
from atomr_mp.protocol.pickling import CONNECT, refusal
from atomr_mp.protocol.refs import Operand
from atomr_mp.protocol.words import choices, not_among, shown

if TYPE_CHECKING:
    from numpy.typing import DTypeLike

    from atomr_mp.client.reply import Reply


R = TypeVar("R", bound=LibraryRequest)

Number = complex | SupportsFloat
"""A factor: a number of Python's or NumPy's, or an array without dimensions."""


class LibraryDevice(Protocol):
    """The device that requests go to.

    A device that takes arrays for refs also has a method `operand`, which returns the operand of an array.
    """

    def request(self, library: str, request: LibraryRequest, deadline_s: float | None) -> Reply:
        """Send a request that has been checked; `deadline_s` None stands for the pool's default."""


class LibraryReference:
    """A library of a device: a method for each request infers missing arguments, checks, and sends.

    Methods return at once. The reply's result is None unless a method says otherwise: a result is written to the arrays
    that are named as written, and to no others. An output that was left out is allocated on the device, and the reply's
    result is a ref to it; a list of refs if there are several. `deadline_s` is the request's, in seconds, None for the
    pool's default.

    Every method raises `InvalidRequest` for element types, shapes, strides or parameters that do not fit, and
    `BorrowConflict` for an array that is written and overlaps another one; and what `Pool.call` raises, such as
    `PoisonRequest` for a request that has ended workers. Nothing has been sent then. Other errors are the reply's.

    In an actor, operands are arrays: before `_request` a method may use only their `shape` and `ndim`, which refs have
    too.

    Args:
        device: The device that requests go to.
    """

    library: ClassVar[str]

    __reduce__ = refusal(CONNECT)

    def __init_subclass__(cls) -> None:
        checks_names(cls)

    def __init__(self, device: LibraryDevice) -> None:
        self._device: Final = device
        self._operand: Final[Callable[[Any], Any] | None] = getattr(device, "operand", None)

    def _request(self, request: LibraryRequest, deadline_s: float | None) -> Reply:
        request = self._taken(request)
        check(request)
        return self._device.request(self.library, request, deadline_s)

    def _factor(self, name: str, value: Number | Operand) -> Factor:
        """Return a factor as messages hold it; an array, to be read when the request runs, as it is.

        Raises:
            InvalidRequest: It is neither.
        """
        return value if self._is_array(value) else factor(name, value)  # type: ignore[return-value, arg-type]

    def _real_factor(self, name: str, value: SupportsFloat | Operand) -> RealFactor:
        """Return a real factor, as `_factor` does."""
        return value if self._is_array(value) else real(name, value)  # type: ignore[return-value, arg-type]

    def _is_array(self, value: object) -> bool:
        """Return whether a factor is an array: an operand, or in an actor what stands for one."""
        return isinstance(value, Operand) or (self._operand is not None and hasattr(value, "__dlpack__"))

    def _taken(self, request: R) -> R:
        """Return a request with an operand for each of its arrays."""
        if self._operand is None:
            return request
        try:
            return with_arrays(request, self._operand)
        except (AttributeError, TypeError):  # not a list or a struct of arrays, as the check will report
            return request


def factor(name: str, value: Number) -> Scalar:
    """Return a factor in the form that messages hold.

    Raises:
        InvalidRequest: The value is not a number; a truth value is none.
    """
    _check_no_truth(name, value)
    return to_scalar(value, name)


def _check_no_truth(name: str, value: Any) -> None:
    """Refuse a truth value of Python's or NumPy's: it is a flag in the wrong place, not a number to compute with.

    Raises:
        InvalidRequest: It is one.
    """
    if isinstance(value, bool) or getattr(getattr(value, "dtype", None), "kind", "") == "b":
        raise errors.InvalidRequest(f"{name} is {shown(value)}; it must be a number, and a truth value is none")


def real(name: str, value: SupportsFloat) -> float:
    """Return a real number.

    Raises:
        InvalidRequest: The value is not one; a truth value is none.
    """
    _check_no_truth(name, value)
    try:
        if isinstance(value, str | bytes):
            raise TypeError("a text is no number")
        return float(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise errors.InvalidRequest(f"{name} is {shown(value)}; it must be a real number") from error


def whole(name: str, value: SupportsIndex) -> int:
    """Return a whole number.

    Raises:
        InvalidRequest: The value is not one; a truth value is none.
    """
    try:
        if isinstance(value, bool):
            raise TypeError("a truth value is no number")
        return operator.index(value)
    except TypeError as error:
        raise errors.InvalidRequest(f"{name} is {shown(value)}; it must be a whole number") from error


def wholes(name: str, values: Sequence[SupportsIndex]) -> tuple[int, ...]:
    """Return whole numbers.

    Raises:
        InvalidRequest: The value is not a sequence of whole numbers.
    """
    try:
        if isinstance(values, str | bytes):
            raise TypeError("a text is no sequence of numbers")
        return tuple(whole(name, value) for value in values)
    except TypeError as error:
        raise errors.InvalidRequest(f"{name} is {shown(values)}; it must be a sequence of whole numbers") from error


def lengths(name: str, values: SupportsIndex | Sequence[SupportsIndex]) -> tuple[int, ...]:
    """Return a shape; a whole number gives the shape of a vector.

    Raises:
        InvalidRequest: The value is neither a whole number nor a sequence of them.
    """
    try:
        operator.index(values)  # type: ignore[arg-type]  # of a class too, an isinstance check says nothing
    except TypeError:
        return wholes(name, values)  # type: ignore[arg-type]  # likewise
    return (whole(name, values),)  # type: ignore[arg-type]  # likewise


def several(name: str, values: Sequence[Operand]) -> list[Operand]:
    """Return arrays as a list.

    Raises:
        InvalidRequest: The value is not a sequence.
    """
    try:
        return list(values)
    except TypeError as error:
        raise errors.InvalidRequest(f"{name} is of type {type(values).__name__}; it must be a list of refs") from error


def element_type(value: DTypeLike) -> Any:
    """Return the name of an element type; what is none as it is, for the check of the request's fields to tell."""
    try:
        return dtypes.name_for(value)
    except errors.InvalidRequest:
        return value


def check(request: LibraryRequest) -> None:
    """Check a request, unless an equal one was checked before: with the same numbers, on the same memory.

    Raises:
        InvalidRequest: A field does not fit; the message says which and why.
    """
    try:
        key = request.identity()  # without operands, since they would keep their memory
    except AttributeError:  # a ref's field holds another object
        check_fields(request)
        raise
    try:
        known = key in _checked
    except TypeError:  # unhashable, so not of any field's type
        known = False
    if not known:
        check_fields(request)
        request.check()
        if len(_checked) >= KNOWN:
            _checked.clear()
        _checked.add(key)


_checked: Final[set[tuple[object, ...]]] = set()


def check_fields(request: LibraryRequest) -> None:
    """Check the fields against their types, bounds included, as the worker does when it decodes them.

    Raises:
        InvalidRequest: A field does not fit; the message names it.
    """
    kind = type(request)
    try:
        msgspec.convert(_values(request), known(kind), dec_hook=decoded)
    except (msgspec.ValidationError, ValueError) as error:  # the latter for a whole number of too many digits
        raise errors.InvalidRequest(f"{request.name}: {_first_misfit(request) or error}") from error


def _values(value: Any) -> Any:
    """Return structs in the form of messages; msgspec does not check the fields of a struct that is already made."""
    if isinstance(value, msgspec.Struct):
        return tuple(map(_values, msgspec.structs.astuple(value)))
    return tuple(map(_values, value)) if _has_structs(value) else value


def _has_structs(value: Any) -> bool:
    return isinstance(value, tuple) and bool(value) and isinstance(value[0], msgspec.Struct)


def _first_misfit(struct: msgspec.Struct) -> str | None:
    """Return the first error in words, with its field; msgspec names a field by its number only."""
    fields = declared(type(struct))
    arrays = {name: getattr(struct, name) for name in fields.arrays}
    arrays |= {f"{name}[{at}]": each for name in fields.lists for at, each in _enumerated(getattr(struct, name))}
    for name, value in arrays.items():
        if value is not None and not isinstance(value, Operand):
            return f"{name} is of type {type(value).__name__}; it must be a ref: `Device.put` makes one from an array"
    for field in msgspec.structs.fields(struct):
        value = getattr(struct, field.name)
        for each in value if _has_structs(value) else (value,):
            if isinstance(each, msgspec.Struct) and (misfit := _first_misfit(each)):
                return misfit
        try:
            msgspec.convert(value, known(field.type), dec_hook=decoded)
        except (msgspec.ValidationError, ValueError) as error:
            words = choices(field.type)
            return not_among(field.name, value, words) if words else f"{field.name} is {shown(value)}: {error}"
    return None


def _enumerated(values: Any) -> Iterator[tuple[int, Any]]:
    return enumerate(values if isinstance(values, list) else ())
