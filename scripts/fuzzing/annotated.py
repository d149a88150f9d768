"""An actor with a parameter of each annotation that is supported, which the fuzzer calls."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import decimal
import enum
import os
import socket
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TypedDict

import msgspec
import numpy as np
from numpy.typing import NDArray

from atomr_mp_workers import Actor, Batch, DeviceArray, method


class Options(msgspec.Struct):
    """Limits hold in a struct's fields."""

    factor: Annotated[float, msgspec.Meta(ge=0, lt=2)] = 1.0
    names: Annotated[list[str], msgspec.Meta(max_length=3)] = []


class Closed(msgspec.Struct, forbid_unknown_fields=True, tag="closed"):
    """Has a tag."""

    inner: Options | None = None


class Other(msgspec.Struct, tag="other"):
    """Has another tag."""

    text: str


@dataclasses.dataclass
class Point:
    """A dataclass with code of its own."""

    x: float
    y: float = 0.0

    def __post_init__(self) -> None:
        if self.x > 1e6:
            raise ArithmeticError("`$[9]", self)


class Typed(TypedDict, total=False):
    """A map."""

    a: int
    b: list[int]


class Pair(NamedTuple):
    """A named tuple."""

    left: int
    right: str


class Colour(enum.Enum):
    """An enumeration by text."""

    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    """One by numbers."""

    LOW = 1
    HIGH = 2


class Annotated_(Actor):  # noqa: N801 - `Annotated` is what it is about
    """Gives back nothing but how much it was given."""

    @method
    def plain(self, a: int, b: float, c: str, d: bytes, e: bool, f: None) -> None:  # noqa: FBT001
        """Take plain values."""

    @method
    def literals(self, a: Literal["one", "two"], b: Literal[1, 2] = 1, c: Literal["x", 3] | None = None) -> None:
        """Take literals."""

    @method
    def nested(self, a: list[int], b: dict[str, float], c: list[list[str | None]], d: dict[int, list[bytes]]) -> None:
        """Take lists and maps."""

    @method
    def unions(self, a: int | str | None, b: list[int] | dict[str, int], c: float | bool = 1.0) -> None:  # noqa: FBT001
        """Take one of several."""

    @method
    def shaped(self, a: tuple[int, str], b: tuple[float, ...], c: set[int], d: frozenset[str]) -> None:
        """Take tuples and sets."""

    @method
    def records(self, a: Options, b: Point, c: Typed, d: Pair, e: Closed | Other) -> None:
        """Take records."""

    @method
    def times(self, a: dt.datetime, b: dt.date, c: dt.time, d: dt.timedelta) -> None:
        """Take times, as texts."""

    @method
    def names(self, a: uuid.UUID, b: decimal.Decimal, c: Colour, d: Level) -> None:
        """Take values that are made of a text or a number."""

    @method
    def arrays(self, a: NDArray[np.float32], b: np.ndarray[Any, Any] | None = None, c: Any = None) -> None:
        """Take arrays."""

    @method(writes=("a",))
    def written(self, a: DeviceArray, b: list[NDArray[np.float32]] | None = None) -> None:
        """Take refs."""

    @method
    def abstract(self, a: Sequence[int], b: Mapping[str, int]) -> None:
        """Take abstract collections."""

    @method
    def bare(self, a, b=1):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201
        """Take anything."""

    @method(batch=Batch(max_items=4))
    def batched(self, a: list[Literal["one", "two"]], b: list[int]) -> list[int]:
        """Take many at a time."""
        return [len(each) for each in a] or b

    @method(thread=True)
    def streamed(self, a: int, b: Literal["x", "y"] = "x") -> Iterator[int]:
        """Yield numbers."""
        yield from range(min(max(a, 0), 3))
        yield len(b)

    @method
    def echo(self, a: Any) -> Any:
        """Give it back."""
        return a

    @method
    def tell_supervisor(self, packet: bytes) -> None:
        """Say something on the worker's control channel, as a library gone wild might."""
        for path in Path("/proc/self/fd").iterdir():
            with contextlib.suppress(OSError), socket.fromfd(int(path.name), socket.AF_UNIX, 0) as found:
                if found.getsockopt(socket.SOL_SOCKET, socket.SO_TYPE) == socket.SOCK_SEQPACKET:
                    found.send(packet)

    @method
    def pid(self) -> int:
        """Return the process's id."""
        return os.getpid()
