"""The base of the requests of all libraries. Pure."""

from __future__ import annotations

import enum
import functools
import operator
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Final

import msgspec

from atomr_mp import errors
from atomr_mp.protocol.declaration import checks
from atomr_mp.protocol.declaration.arguments import (
    Argument,
    Sizes,
    arrays_of,
    declared,
    parameters_of,
    reads,
    writes,
)
from atomr_mp.protocol.declaration.factors import FactorType, Scalar, decoded
from atomr_mp.protocol.declaration.shapes import ByParameter, evaluated, names_in, sizes_of
from atomr_mp.protocol.layout import Layout
from atomr_mp.protocol.refs import Operand
from atomr_mp.protocol.words import shown

Read = Annotated[Operand, reads("*_")]
"""Type of a field whose array is read, whatever its shape."""

Write = Annotated[Operand, writes("*_")]
"""Type of a field whose array is written, whatever its shape; it may be read too."""

Moving = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1, extra={"moving": True})]
"""A parameter that changes from request to request, such as an offset; plans do not depend on it."""

Shape = tuple[Annotated[int, msgspec.Meta(ge=0)], ...]
"""The shape of an output, as a parameter."""

Rule = Callable[[Any, Sizes], bool]
"""Returns whether something holds of a request and its sizes; its docstring says what, for an error's message."""

KNOWN: Final = 1024
"""Number of requests that each side remembers as well-formed, since the same ones come again and again."""

ALIGNED_BYTES: Final = 256
"""Plans depend on the addresses of arrays modulo this: no library cares for more."""


class Rest(enum.Enum):
    """What is left to do of a request whose sizes and factors leave nothing to compute with."""

    UNCHANGED = enum.auto()
    """Nothing: the outputs stay as they are, or are empty too."""
    SCALED = enum.auto()
    """The output is multiplied by beta. It is 0 where beta is, whatever it held."""
    ZEROS = enum.auto()
    """The output is 0, and so is an answer, which has the type of x."""
    REAL_ZERO = enum.auto()
    """The answer is 0, a real number for complex arrays too."""
    ONES = enum.auto()
    """The output is 1."""
    UNIT = enum.auto()
    """Each matrix among the outputs has ones on its diagonal, and zeros elsewhere."""


class LibraryRequest(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Base of the requests of all libraries: an array on the wire; new fields come last, with a default.

    A request is declared by its fields, see `atomr_mp.protocol.declaration`, and by the class variables here.
    """

    name: ClassVar[str]
    """The request's name: "gemm" for `device.blas.gemm`."""
    types: ClassVar[Mapping[str, tuple[str, ...]]] = MappingProxyType({})
    """Element types by their letter; a letter that is missing admits all."""
    rules: ClassVar[tuple[Rule, ...]] = ()
    """Rules besides shapes and element types."""
    held: ClassVar[tuple[str, ...]] = ()
    """Fields that the library's reference fills in: its methods have no arguments for them."""
    moves: ClassVar[bool] = True
    """Whether it reads and writes its arrays itself."""
    captured: ClassVar[bool] = True
    """Whether CUDA can record it in a graph: it allocates nothing and does not depend on the host."""
    loops: ClassVar[bool] = False
    """Whether the host does it by a Python loop, so that small arrays may take long too."""
    answers: ClassVar[bool] = False
    """Whether it answers with a value that is computed on the device, so that it cannot be a step of a program."""
    rest: ClassVar[Rest | None] = None
    """What is left to do if it `is_idle`. None if it never is, and its actor copes with sizes and factors of 0."""
    work: ClassVar[str | ByParameter] = "0"
    """The number of arithmetic operations, as is usual to count them, in the form that `shapes.evaluated` takes."""
    counts: ClassVar[bool] = False
    """Whether its time counts among the work of libraries also where it declares none: it runs what users have made."""
    undefined: ClassVar[str] = ""
    """The data that make it fail with `NumericalError`, with undefined outputs. Empty if none do."""

    @property
    def made_bytes(self) -> int:
        """Size of the buffer that it makes, besides outputs that are left out; 0 for none."""
        return 0

    def is_captured(self) -> bool:
        """Return whether CUDA can record this one in a graph."""
        return type(self).captured

    def is_idle(self) -> bool:
        """Return whether only its `rest` is to do: alpha is 0, or an array that it reads has no elements."""
        if self.rest is None:
            return False
        if checks.is_zero(getattr(self, "alpha", 1)):
            return True
        for array in _arrays(type(self)).read:
            operand = array(self)
            if operand is not None and 0 in operand.layout.shape:
                return True
        return False

    def arrays(self) -> Iterator[tuple[str, Argument, Operand | None]]:
        """Return for each array its name in messages, its declaration, and the array, None if it was left out."""
        return arrays_of(self)

    def written(self) -> list[Any]:
        """Return the arrays that it writes."""
        return [operand for _, argument, operand in arrays_of(self) if argument.writes and operand is not None]

    def read(self) -> list[Any]:
        """Return the arrays whose content matters; not those with a factor that is 0."""
        return [operand for _, argument, operand in arrays_of(self) if operand is not None and self._reads(argument)]

    def _reads(self, argument: Argument) -> bool:
        """Return whether the content of an array matters."""
        factor = argument.reads
        # A struct's array may name a factor that the request does not have.
        return factor if isinstance(factor, bool) else not checks.is_zero(getattr(self, factor, 1))

    def written_before(self, _array: Operand) -> list[Any]:
        """Return the arrays that it writes before it reads an array, so that their content does not matter to that."""
        return []

    def triangle_of(self, array: Operand) -> str | None:
        """Return the triangle of an array that is written; "" if all of it is, None if any part may be left out."""
        for _, argument, operand in arrays_of(self):
            if operand is array:
                return str(getattr(self, argument.triangle)) if argument.triangle else ""
        return None

    def sizes(self) -> dict[str, Any]:
        """Return the length of each dimension that the declaration names."""
        return sizes_of(self)

    def check(self) -> None:
        """Check everything that can be checked without the data; both sides do, before any library sees it.

        Raises:
            InvalidRequest: A field does not fit; the message says which and why.
            BorrowConflict: A written array shares elements with another array.
        """
        checks.check(self)

    def results(self) -> dict[str, Layout]:
        """Return the layouts of left-out outputs; the worker allocates them and answers with refs to them."""
        given = all(array(self) is not None for array in _arrays(type(self)).written)
        return {} if given else checks.results(self)

    def identity(self) -> tuple[object, ...]:
        """Return a key that equal requests share: parameters, memory, layouts."""
        arrays = [None if each is None else (each.layout, each.memory) for _, _, each in arrays_of(self)]
        return (type(self), *arrays, *(value for _, value in parameters_of(self)))

    def recurring(self) -> tuple[object, ...]:
        """Return a key that requests share if they differ only in `Moving` parameters: the rest of `identity`."""
        arrays = [None if each is None else (each.layout, each.memory) for _, _, each in arrays_of(self)]
        moving = type(self).moving()
        return (type(self), *arrays, *(value for name, value in parameters_of(self) if name not in moving))

    def plan_key(self) -> tuple[object, ...]:
        """Return all facts that a plan may depend on.

        These are all layouts, alignments and parameters. Of a factor it counts only whether it is 0 or an array, and
        `Moving` parameters do not count: both are given anew when a plan is used.
        """
        arrays = [
            None if each is None else each.layout._replace(offset=each.layout.offset % ALIGNED_BYTES)
            for _, _, each in arrays_of(self)
        ]
        factors, moving = type(self).factors(), type(self).moving()
        parameters = [
            checks.is_zero(value) if name in factors and value is not Operand else value
            for name, value in parameters_of(self)
            if name not in moving
        ]
        return (type(self), *arrays, *parameters)

    def flops(self) -> int:
        """Return the number of arithmetic operations."""
        return evaluated(self.work, self, self.sizes())

    def moved_bytes(self) -> int:
        """Return how many bytes are read and written at least."""
        if not self.moves:
            return 0
        return sum(
            operand.nbytes * (self._reads(argument) + argument.writes)
            for _, argument, operand in arrays_of(self)
            if operand is not None
        )

    @property
    def launched(self) -> str:
        """The name of the kernel that it launches, empty for others."""
        return ""

    def work_key(self) -> Hashable | None:
        """Return a key that requests of a class share if they declare the same work; None if that is reckoned anew."""
        cls = type(self)
        if cls.flops is not LibraryRequest.flops or cls.moved_bytes is not LibraryRequest.moved_bytes:
            return None
        arrays = tuple(
            [
                None if each is None else (each.layout.shape, each.layout.item_bytes, self._reads(argument))
                for _, argument, each in arrays_of(self)
            ]
        )
        return arrays if _is_of_sizes(cls) else (arrays, tuple([value for _, value in parameters_of(self)]))

    @classmethod
    def factors(cls) -> frozenset[str]:
        """Return the parameters that multiply arrays."""
        return _parameters(cls).factors

    @classmethod
    def hook(cls) -> Callable[[type, Any], Any] | None:
        """Return the decoder hook for types that msgspec does not know, None if there are none."""
        return decoded if any(isinstance(hint, FactorType) for hint in declared(cls).parameters.values()) else None

    @classmethod
    def moving(cls) -> frozenset[str]:
        """Return the parameters on which no plan depends."""
        return _parameters(cls).moving


class _Parameters:
    def __init__(self, hints: Mapping[str, Any]) -> None:
        self.factors: Final = frozenset(name for name, hint in hints.items() if is_factor(hint))
        self.moving: Final = frozenset(name for name, hint in hints.items() if hint == Moving)


class _Arrays:
    """Functions that return the arrays of a request, those in structs too, but not those in lists."""

    def __init__(self, cls: type[LibraryRequest]) -> None:
        fields = declared(cls)
        found = dict(fields.arrays)
        for name, struct in fields.structs.items():
            found |= {f"{name}.{inner}": argument for inner, argument in declared(struct).arrays.items()}
        self.read: Final = [operator.attrgetter(name) for name, argument in found.items() if argument.reads]
        self.written: Final = [operator.attrgetter(name) for name, argument in found.items() if argument.writes]


_arrays: Final = functools.cache(_Arrays)


@functools.cache
def _parameters(cls: type[LibraryRequest]) -> _Parameters:
    return _Parameters(dict(_hints(cls)))


@functools.cache
def _is_of_sizes(cls: type[LibraryRequest]) -> bool:
    """Return whether nothing but the sizes of given arrays counts for the operations."""
    shapes = [argument.shape for argument in declared(cls).arrays.values()]
    sizes = {name for shape in shapes if isinstance(shape, str) for name in shape.replace("*", " ").split()}
    return not isinstance(cls.work, ByParameter) and names_in(cls.work) <= sizes | {"short", "long"}


def _hints(cls: type[msgspec.Struct], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Return the types of parameters, with those of the structs among them, by the names of `parameters_of`."""
    fields = declared(cls)
    for name, hint in fields.parameters.items():
        yield prefix + name, hint
    for name, struct in fields.structs.items():
        yield from _hints(struct, f"{prefix}{name}.")


def is_factor(hint: Any) -> bool:
    """Return whether a parameter's type is that of a factor."""
    return bool(hint == Scalar) or isinstance(hint, FactorType)


def element_types(request: type[LibraryRequest]) -> list[str]:
    """Return the element types that a request is defined for; empty if it does not depend on them."""
    return list(dict.fromkeys(dtype for types in request.types.values() for dtype in types))


def scalar(value: Scalar) -> complex:
    """Return the number that a scalar stands for."""
    return complex(*value) if isinstance(value, tuple) else value


def to_scalar(value: Any, name: str = "") -> Scalar:
    """Return a number as messages hold it; whole numbers stay exact.

    Args:
        value: A number of Python's or NumPy's, or an array without dimensions.
        name: The caller's name for it, for an error's message.

    Raises:
        InvalidRequest: It is not a number.
    """
    try:
        if isinstance(value, complex) or getattr(getattr(value, "dtype", None), "kind", "") == "c":
            number = complex(value)
            return number.real, number.imag
        if isinstance(value, str | bytes):
            raise TypeError("a text is no number")
        try:
            return operator.index(value)
        except TypeError:
            return float(value)
    except (TypeError, ValueError) as error:
        what = f"{name} is {shown(value)}; it must be a number" if name else f"{shown(value)} is no number"
        if isinstance(value, Operand):
            what += ": the library reads it on the host, before the request runs, and takes no array for it"
        raise errors.InvalidRequest(what) from error


REAL: Final = ("float32", "float64")
HALF: Final = ("float16", "bfloat16")
COMPLEX: Final = ("complex64", "complex128")
FULL: Final = (*REAL, *COMPLEX)
"""Element types of most requests of linear algebra."""


def requests_in(module: Any) -> Iterable[type[LibraryRequest]]:
    """Return the requests that a module declares, in their order; classes without a name are only bases."""
    for cls in vars(module).values():
        ours = isinstance(cls, type) and issubclass(cls, LibraryRequest) and cls.__module__ == module.__name__
        if ours and hasattr(cls, "name"):
            yield cls
