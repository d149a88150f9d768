"""An actor that reports its arguments' types, and returns values that cannot be sent."""

from __future__ import annotations

import datetime as dt
import decimal
import enum
import uuid
from collections.abc import Generator, Iterator
from typing import Any, Final

from atomr_mp_workers import Actor, Batch, method


class Colour(enum.Enum):
    """A plain enum: its members are no text."""

    RED = "red"


class Level(enum.IntEnum):
    """An enum whose members are numbers."""

    HIGH = 3


VALUES: Final[dict[str, Any]] = {
    "datetime": dt.datetime(2026, 11, 23, 12, 30, tzinfo=dt.UTC),
    "naive": dt.datetime(2026, 11, 23, 12, 30),  # noqa: DTZ001 - as many are
    "date": dt.date(2026, 11, 23),
    "time": dt.time(12, 30),
    "timedelta": dt.timedelta(days=1, seconds=1.5),
    "uuid": uuid.UUID(int=1),
    "decimal": decimal.Decimal("1.10"),
    "enum": Colour.RED,
    "key": {dt.date(2026, 11, 23): 1},
    "keys": {frozenset({1, 2}): 1},
}
"""Each would arrive as something else."""


def nested(depth: int) -> Any:
    """Return an array within lists."""
    import numpy as np

    found: Any = np.arange(3)
    for _ in range(depth):
        found = [found]
    return found


class Crossing(Actor):
    """Takes and returns all kinds of values."""

    @method
    def plain(self, value):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201
        """Return the type that any value arrived as."""
        return value

    @method(batch=Batch(max_items=4))
    def several(self, values: list[Any]) -> list[Any]:
        """Return the types that the arguments arrived as."""
        return values

    @method(idempotent=True, batch=Batch(max_items=4))
    def together(self, values: list[Any]) -> list[Any]:
        """Return the types that the items arrived as; a map sends several in one call."""
        return values

    @method
    def result(self, name: str) -> Any:
        """Return a value that cannot be sent."""
        return VALUES[name]

    @method
    def nested(self, name: str) -> Any:
        """Return it inside another value."""
        return [{"here": (VALUES[name],)}]

    @method
    def deep(self, depth: int) -> Any:
        """Return lists nested so deep."""
        return nested(depth)

    @method(idempotent=True, batch=Batch(max_items=4))
    def deep_items(self, depths: list[int]) -> list[Any]:
        """Return the same for each item."""
        return [nested(depth) for depth in depths]

    @method(thread=True)
    def deep_part(self, depth: int) -> Iterator[Any]:
        """Stream the same."""
        yield nested(depth)

    @method(thread=True)
    def deep_end(self, depth: int) -> Generator[int, None, Any]:
        """Stream a number, and return the same."""
        yield 1
        return nested(depth)

    @method
    def of_datetime(self, value: dt.datetime) -> bool:
        """Return whether it arrived as its annotation says."""
        return bool(value.replace(tzinfo=None) == VALUES["naive"])

    @method
    def of_date(self, value: dt.date) -> bool:
        """Return whether it arrived as its annotation says."""
        return bool(value == VALUES["date"])

    @method
    def of_time(self, value: dt.time) -> bool:
        """Return whether it arrived as its annotation says."""
        return bool(value == VALUES["time"])

    @method
    def of_timedelta(self, value: float) -> bool:
        """Return whether it arrived as its seconds."""
        return bool(dt.timedelta(seconds=value) == VALUES["timedelta"])

    @method
    def of_uuid(self, value: uuid.UUID) -> bool:
        """Return whether it arrived as its annotation says."""
        return bool(value == VALUES["uuid"])

    @method
    def of_decimal(self, value: decimal.Decimal) -> bool:
        """Return whether it arrived as its annotation says."""
        return bool(value == VALUES["decimal"])

    @method
    def of_enum(self, value: Colour) -> bool:
        """Return whether it arrived as its annotation says."""
        return value is Colour.RED

    @method
    def numbered(self, value: dict[int, int]) -> dict[int, int]:
        """Return a map with keys that are numbers."""
        return value
