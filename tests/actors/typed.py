"""An actor whose methods have annotations of every kind."""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
import enum
import os
import uuid
from typing import Annotated, Any, Final, Literal, NamedTuple, TypedDict

import msgspec
import numpy as np
from numpy.typing import NDArray

from atomr_mp_workers import Actor, Batch, DeviceArray, method


class Mode(enum.Enum):
    """Modes by text."""

    FAST = "fast"
    EXACT = "exact"


class Level(enum.IntEnum):
    """Levels by number."""

    LOW = 1
    HIGH = 2


class Checked(msgspec.Struct):
    """A struct whose own check repeats its text."""

    text: str
    number: Annotated[int, msgspec.Meta(ge=0, le=9)] = 0

    def __post_init__(self) -> None:
        if "`" in self.text:
            raise ValueError(f"bad text {self.text} - at `$[9]`")
        if self.text == "\U0001f600":
            raise SystemExit(self.text)


class Shape(NamedTuple):
    """A named tuple."""

    rows: int
    columns: int


SQUARE: Final = Shape(1, 1)


class Options(TypedDict, total=False):
    """A map with known names."""

    mode: Literal["a", "b"]
    deep: dict[str, list[Mode]]


@dataclasses.dataclass
class Point:
    """A dataclass."""

    x: float
    y: Literal[1, 2] = 1


class Typed(Actor):
    """Takes arguments of all kinds."""

    @method(idempotent=True)
    def pid(self) -> int:
        """Return the worker's pid."""
        return os.getpid()

    @method
    def choose(self, text: str, mode: Literal["fast", "exact"] = "fast", level: Level = Level.LOW) -> str:
        """Take one of a few texts, and one of a few numbers."""
        return text + mode + str(int(level))

    @method
    def plain(
        self,
        mode: Mode,
        number: Annotated[int, msgspec.Meta(ge=-(2**31), lt=2**31)] = 0,
        word: Annotated[str, msgspec.Meta(pattern="^[a-z]*$", max_length=9)] = "",
        ratio: float = 0.0,
        either: int | str | None = None,
    ) -> str:
        """Take bounded values."""
        return f"{mode}{number}{word}{ratio}{either}"

    @method
    def arrays(self, first: NDArray[np.float32], second: np.ndarray[Any, Any] | None = None) -> int:
        """Take arrays."""
        return first.size + (0 if second is None else second.size)

    @method
    def handle(self, array: DeviceArray, mode: Mode = Mode.FAST) -> int:
        """Take a handle."""
        return array.size + len(mode.value)

    @method
    def made(self, checked: Checked, point: Point | None = None, options: Options | None = None) -> str:
        """Take structs."""
        return f"{checked}{point}{options}"

    @method
    def known(self, when: dt.datetime, name: uuid.UUID, price: decimal.Decimal, shape: Shape = SQUARE) -> str:
        """Take types that msgspec makes of texts."""
        return f"{when}{name}{price}{shape}"

    @method
    def anything(self, value: Any, deep: dict[str, list[Level]] | None = None) -> bool:
        """Take anything."""
        return value is None and deep is None

    @method(batch=Batch(max_items=8, max_wait_s=0))
    def rows(self, modes: list[Literal["x", "y"]], numbers: list[int]) -> list[str]:
        """Take items."""
        return [f"{mode}{number}" for mode, number in zip(modes, numbers, strict=True)]
