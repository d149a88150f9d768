"""An actor whose methods give back what they are given, by the annotations that a schema has to describe."""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
import enum
import uuid
from collections.abc import Iterator
from typing import Annotated, Any, Literal, NamedTuple, TypedDict

import msgspec
import numpy as np
import pydantic
from numpy.typing import NDArray

from atomr_mp_workers import Actor, Batch, UploadedFile, method


class Node(msgspec.Struct):
    """Has parts of its own kind."""

    name: str
    size: Annotated[int, msgspec.Meta(ge=0, le=99)] = 0
    inner: list[Node] = []


@dataclasses.dataclass
class Point:
    """A dataclass."""

    x: float
    y: float = 0.0


class Typed(TypedDict, total=False):
    """A dictionary with certain keys."""

    a: int
    b: list[int]


class Pair(NamedTuple):
    """A named tuple."""

    left: int
    right: str


class Closed(msgspec.Struct, forbid_unknown_fields=True, tag="closed"):
    """Has a tag, and no other fields."""

    inner: Node | None = None


class Other(msgspec.Struct, tag="other"):
    """Has another tag."""

    text: str


class Model(pydantic.BaseModel):
    """A model whose fields have other names outside."""

    number: int = pydantic.Field(alias="theNumber", ge=0, strict=True)
    content: bytes = pydantic.Field(b"c", serialization_alias="itsContent")
    text: pydantic.Base64Bytes = b""


class ByBoth(pydantic.BaseModel):
    """A model whose fields are taken by either name."""

    model_config = pydantic.ConfigDict(populate_by_name=True, extra="forbid")
    first: bytes = pydantic.Field(alias="theFirst")
    inner: Model | None = pydantic.Field(None, validation_alias=pydantic.AliasChoices("inside", "within"))


class Colour(enum.Enum):
    """An enumeration by text."""

    RED = "red"
    BLUE = "blue"


class Described(Actor):
    """Has a method for each kind of value, with results that show what has arrived."""

    @method
    def nothing(self) -> None:
        """Take nothing."""

    @method
    def optional(self, a: int = 1, b: str = "b", c: float | None = None) -> list[Any]:
        """Take plain values that may be left out."""
        return [a, b, c]

    @method
    def number(self, a: float, b: list[float]) -> float:
        """Return the largest number."""
        return max([a, *b])

    @method
    def content(self, a: bytes, b: dict[str, bytes] = {}) -> bytes:  # noqa: B006 - never changed
        """Return all bytes behind each other."""
        return b"".join([a, *b.values()])

    @method
    def files(self, a: list[bytes], b: UploadedFile | None = None, c: int = 0) -> list[Any]:
        """Return what is known of files."""
        return [sum(map(len, a)), None if b is None else b.filename, c]

    @method
    def same(self, a: dict[str, list[int | str | None]], b: tuple[bool, ...] = ()) -> dict[str, list[int | str | None]]:
        """Return a dictionary as it is."""
        return a | {"b": [len(b)]}

    @method
    def tree(self, a: Node) -> Node:
        """Return a tree as it is."""
        return a

    @method
    def named(self, a: uuid.UUID, b: decimal.Decimal, c: Colour, d: Literal[1, "x"] = 1) -> list[Any]:
        """Return texts of values that are sent as texts."""
        return [str(a), str(b), c.value, d]

    @method
    def dated(self, a: dt.date, b: dt.timedelta) -> list[str]:
        """Return texts of times."""
        return [a.isoformat(), str(b)]

    @method
    def records(self, a: Point, b: Typed, c: Pair, d: Closed | Other) -> list[Any]:
        """Return some of their parts."""
        return [a.x + a.y, b, c.left, type(d).__name__]

    @method
    def model(self, a: Model) -> Model:
        """Return a model as it is."""
        return a

    @method
    def by_both(self, a: ByBoth) -> list[ByBoth]:
        """Return a model as it is."""
        return [a]

    @method
    def small(self, a: NDArray[np.int8]) -> NDArray[np.int8]:
        """Return an array of small numbers as it is."""
        return a

    @method
    def real(self, a: NDArray[np.float32], b: NDArray[np.bool_] | None = None) -> NDArray[np.float32]:
        """Return an array as it is, or zeros if anything in the other one is false."""
        return a if b is None else a * b.all()

    @method
    def pairs(self, a: NDArray[np.complex64]) -> NDArray[np.complex64]:
        """Return an array of complex numbers as it is."""
        return a

    @method
    def any_array(self, a: np.ndarray[Any, Any]) -> Any:
        """Return an array of any numbers as it is."""
        return a

    @method
    def anything(self, a, b=None):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201
        """Return whatever has come."""
        return [a, b]

    @method(batch=Batch(max_items=8))
    def batched(self, a: list[int], b: list[str]) -> list[str]:
        """Return the texts."""
        assert len(a) == len(b)
        return b

    @method(thread=True)
    def parts(self, a: Annotated[int, msgspec.Meta(ge=0, le=5)], b: str = "b") -> Iterator[str]:
        """Yield a text some times."""
        for _ in range(a):
            yield b
