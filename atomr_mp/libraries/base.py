"""Base of the references of all libraries."""

from __future__ import annotations

import operator
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol, SupportsFloat, SupportsIndex, TypeVar

import msgspec

from atomr_mp import errors
from atomr_mp.protocol.declaration.arguments import declared, with_arrays
from atomr_mp.protocol.libraries.base import KNOWN, LibraryRequest, Scalar, to_scalar
from atomr_mp.protocol.refs import Operand

if TYPE_CHECKING:
    from atomr_mp.client.reply import Reply


R = TypeVar("R", bound=LibraryRequest)

Number = complex | SupportsFloat
"""A factor: Python's or NumPy's, or an array without dimensions."""


class LibraryDevice(Protocol):
    """Where requests go.

    One that takes arrays for refs has a method `operand` too, which returns the operand that stands for one.
    """

    def request(self, library: str, request: LibraryRequest, deadline_s: float | None) -> Reply:
        """Send a request that has been checked; `deadline_s` None stands for the pool's default."""


class LibraryReference:
    """Base of the references: a method for each request infers what is not given, checks, and sends.

    In an actor, operands are arrays: before `_request` a method may ask them only for `shape` and `ndim`, as refs have.

    Args:
        device: Where requests go.
    """

    library: ClassVar[str]

    def __init__(self, device: LibraryDevice) -> None:
        self._device: Final = device
        self._operand: Final[Callable[[Any], Any] | None] = getattr(device, "operand", None)

    def _request(self, request: LibraryRequest, deadline_s: float | None) -> Reply:
        request = self._taken(request)
        check(request)
        return self._device.request(self.library, request, deadline_s)

    def _taken(self, request: R) -> R:
        """Return a request with an operand for each array that stands for one."""
        if self._operand is None:
            return request
        try:
            return with_arrays(request, self._operand)
        except (AttributeError, TypeError):  # something else than a list or a struct of arrays, as the check will say
            return request


def factor(name: str, value: Number) -> Scalar:
    """Return a factor as messages hold it.

    Raises:
        InvalidRequest: It is no number.
    """
    return to_scalar(value, name)


def real(name: str, value: SupportsFloat) -> float:
    """Return a real number.

    Raises:
        InvalidRequest: The value is not one.
    """
    try:
        return float(value)
    except (TypeError, ValueError) as error:
        raise errors.InvalidRequest(f"{name} is {value!r}; it must be a real number") from error


def whole(name: str, value: SupportsIndex) -> int:
    """Return a whole number.

    Raises:
        InvalidRequest: The value is not one.
    """
    try:
        return operator.index(value)
    except TypeError as error:
        raise errors.InvalidRequest(f"{name} is {value!r}; it must be a whole number") from error


def wholes(name: str, values: Sequence[SupportsIndex]) -> tuple[int, ...]:
    """Return whole numbers.

    Raises:
        InvalidRequest: It is no sequence of whole numbers.
    """
    try:
        return tuple(whole(name, value) for value in values)
    except TypeError as error:
        raise errors.InvalidRequest(f"{name} is {values!r}; it must be a sequence of whole numbers") from error


def lengths(name: str, values: SupportsIndex | Sequence[SupportsIndex]) -> tuple[int, ...]:
    """Return a shape; a whole number is that of a vector.

    Raises:
        InvalidRequest: It is neither that nor a sequence of whole numbers.
    """
    return (operator.index(values),) if isinstance(values, SupportsIndex) else wholes(name, values)


def check(request: LibraryRequest) -> None:
    """Check a request, unless one like it was checked before: with the same numbers, on the same memory.

    Raises:
        InvalidRequest: Something does not fit; the message says what and how.
    """
    try:
        key = request.identity()  # no operand itself: it would keep the memory
    except AttributeError:  # something is given for a ref that is none
        check_fields(request)
        raise
    try:
        known = key in _checked
    except TypeError:  # unhashable: of no type that any field has
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
        InvalidRequest: One does not fit; the message names it.
    """
    kind = type(request)
    try:
        if kind in _known:
            msgspec.convert(_values(request), kind)
        else:
            _check_first(request)
    except msgspec.ValidationError as error:
        raise errors.InvalidRequest(f"{request.name}: {_first_misfit(request) or error}") from error


def _check_first(request: LibraryRequest) -> None:
    """Do so with the first request of its type.

    At a type's first use msgspec (0.22) finds out what its fields are. Another thread that used the type meanwhile
    would find them missing, and crash the process.
    """
    with _learning:
        try:
            msgspec.convert(_values(request), type(request))
        finally:
            _known.add(type(request))


_learning: Final = threading.Lock()
_known: Final[set[type[LibraryRequest]]] = set()
"""Types that msgspec knows."""


def _values(struct: msgspec.Struct) -> tuple[Any, ...]:
    """Return the fields as messages have them; msgspec would not look into a struct that it is given as such."""
    values: tuple[Any, ...] = msgspec.structs.astuple(struct)
    if not declared(type(struct)).structs:
        return values
    return tuple(_values(value) if isinstance(value, msgspec.Struct) else value for value in values)


def _first_misfit(struct: msgspec.Struct) -> str | None:
    """Return the error in words, with its field; msgspec names fields of arrays by their number only."""
    fields = declared(type(struct))
    arrays = {name: getattr(struct, name) for name in fields.arrays}
    arrays |= {f"{name}[{at}]": each for name in fields.lists for at, each in _enumerated(getattr(struct, name))}
    for name, value in arrays.items():
        if value is not None and not isinstance(value, Operand):
            return f"{name} is of type {type(value).__name__}; it must be a ref: `Device.put` makes one of an array"
    for field in msgspec.structs.fields(struct):
        value = getattr(struct, field.name)
        if isinstance(value, msgspec.Struct) and (misfit := _first_misfit(value)):
            return misfit
        try:
            msgspec.convert(value, field.type)
        except msgspec.ValidationError as error:
            return f"{field.name} is {value!r}: {error}"
    return None


def _enumerated(values: Any) -> Iterator[tuple[int, Any]]:
    return enumerate(values if isinstance(values, list) else ())
