"""Element types of arrays: their names on the wire, their sizes, and NumPy's types of the same names. Pure.

Names are NumPy's, and ml_dtypes' for what NumPy does not have. NumPy and ml_dtypes are imported when the first
array asks for them.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Final

from atomr_mp import errors
from atomr_mp.protocol.extras import how_to_install
from atomr_mp.protocol.words import did_you_mean, shown

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import DTypeLike

ITEM_BYTES: Final[dict[str, int]] = {
    "bool": 1,
    **{f"{sign}int{bits}": bits // 8 for sign in ("", "u") for bits in (8, 16, 32, 64)},
    "float16": 2,
    "float32": 4,
    "float64": 8,
    "complex64": 8,
    "complex128": 16,
    "bfloat16": 2,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
}
"""Bytes of an element, by the type's name."""

SHOWN_BITS: Final = 256
"""Larger whole numbers are not shown by their digits."""

Number = int | float | tuple[float, float]
"""A number as messages have it, see `declaration.factors.Scalar`."""

FLOAT8: Final = frozenset({"float8_e4m3fn", "float8_e5m2"})

_ML_DTYPES: Final = FLOAT8 | {"bfloat16"}


class ElementType(str):
    """The name of a ref's element type, a text, which is also equal to what NumPy calls the type.

    It is hashed as the text that it is, so dictionaries and sets of names find it. Those of NumPy's types find
    `ref.numpy_dtype`: nothing can have the hash of both, and NumPy's types, which are equal to their names, have not.
    It has the attributes of NumPy's type, such as `kind` and `itemsize`, and NumPy's functions take it for one. Names
    that NumPy does not have stay names where ml-dtypes is missing.
    """

    __slots__ = ()
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        if isinstance(other, str) and other in ITEM_BYTES:
            return str.__eq__(self, other)
        try:
            return other is not None and bool(to_numpy(str(self)) == other)  # NumPy takes None for float64
        except (errors.Unsupported, TypeError, ValueError):
            return False

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"an element type has no {name!r}")
        return getattr(to_numpy(str(self)), name)

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return ITEM_BYTES[str(self)]


element_type: Final = functools.cache(ElementType)
"""Returns the element type of a name."""


def item_bytes(name: str) -> int:
    """Return the size of an element.

    Raises:
        InvalidRequest: There is no such element type.
    """
    found = ITEM_BYTES.get(name)
    if found is None:
        raise errors.InvalidRequest(
            f"unknown element type {name!r}{did_you_mean(str(name), ITEM_BYTES)}; known are: "
            f"{', '.join(sorted(ITEM_BYTES))}"
        )
    return found


def sendable(name: str, number: Number) -> Number:
    """Return a number for elements of a type as messages can hold it, whose integers have 64 bits.

    Args:
        name: The element type. Larger numbers for types of whole numbers stay: none of them can hold one.
        number: The number; of a complex one the real and the imaginary part.

    Raises:
        InvalidRequest: It is larger than any number of floating point.
    """
    if not isinstance(number, int) or -(2**63) <= number < 2**64 or "int" in name:
        return number
    try:
        return float(number)
    except OverflowError as error:
        raise errors.InvalidRequest(f"an array of {name} cannot hold {_shown(number)}") from error


def check_holds(name: str, number: complex) -> None:
    """Check that elements of a type can hold a number: of whole numbers' types exactly, of others by rounding.

    Raises:
        InvalidRequest: They cannot.
    """
    fits = type(number) is not complex or name.startswith("complex")
    if fits and "int" in name:
        bits, real = 8 * item_bytes(name), number.real
        least, most = (0, 2**bits - 1) if name.startswith("u") else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
        fits = least <= real <= most and real == int(real)  # the first is false of NaN and infinities
    if not fits:
        raise errors.InvalidRequest(f"an array of {name} cannot hold {_shown(number)}")


def _shown(number: complex) -> str:
    """Return a number as messages show it; Python refuses to write out very large ones, which are unreadable."""
    bits = number.bit_length() if isinstance(number, int) else 0
    return f"a whole number of {bits} bits" if bits > SHOWN_BITS else f"{number}"


@functools.cache
def to_numpy(name: str) -> np.dtype[np.generic]:
    """Return NumPy's type of this name.

    Raises:
        InvalidRequest: There is no such element type.
        Unsupported: It needs ml_dtypes, which is not installed.
    """
    item_bytes(name)
    import numpy as np

    if name not in _ML_DTYPES:
        return np.dtype(name)
    try:
        import ml_dtypes
    except ImportError as error:
        raise errors.Unsupported(
            f"{name} needs ml-dtypes, which is not installed; {how_to_install('ml_dtypes')}"
        ) from error
    found: np.dtype[np.generic] = np.dtype(getattr(ml_dtypes, name))
    return found


def name_for(dtype: DTypeLike) -> str:
    """Return the name of an element type that a caller names: by this name, or in any way that NumPy understands.

    Raises:
        InvalidRequest: There is no such element type.
    """
    if isinstance(dtype, str) and dtype in ITEM_BYTES:
        return str(dtype)
    import numpy as np

    try:
        if dtype is None:
            raise TypeError("NumPy takes None for float64")
        found = name_of(np.dtype(dtype))
    except (TypeError, ValueError, SyntaxError) as error:
        hint = did_you_mean(dtype if isinstance(dtype, str) else shown(dtype), ITEM_BYTES)
        raise errors.InvalidRequest(
            f"{shown(dtype)} is no element type{hint}; there are: {', '.join(ITEM_BYTES)}"
        ) from error
    if found not in ITEM_BYTES:
        raise errors.InvalidRequest(
            f"arrays of {found} cannot be on a device; convert to one of {', '.join(sorted(ITEM_BYTES))}"
        )
    return found


_NAMES: Final[dict[int, str]] = {}
"""Names of types that each have a number of their own, by that; NumPy computes a name anew each time."""

_NUMBERED: Final = frozenset("biufc")
"""Kinds of such types. Those of libraries have a number above NumPy's, but for text, see below."""

_FIRST_USER: Final = 256
_TEXT_TYPE: Final = 2056
"""`NPY_USERDEF` and `NPY_VSTRING` of NumPy's ndarraytypes.h."""


def name_of(dtype: np.dtype[np.generic]) -> str:
    """Return the name of a NumPy type; that of one which does not cross the wire is in no table here.

    Types are not compared: NumPy ends the process when it compares some of dates.
    """
    number = dtype.num
    found = _NAMES.get(number)
    if found is None:
        found = dtype.name
        if dtype.kind in _NUMBERED or _FIRST_USER <= number < _TEXT_TYPE:
            _NAMES[number] = found
    return found
