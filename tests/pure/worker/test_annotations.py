"""An actor's annotations: each that loads can be called, and what no argument can be is refused by name."""

from __future__ import annotations

import collections
import dataclasses
import datetime as dt
import enum
import pathlib
import re
import sys
import typing
import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, Final, NamedTuple

import msgspec
import numpy as np
import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from atomr_mp import errors
from atomr_mp.protocol import values
from atomr_mp.protocol.messages.control import ActorSpec
from atomr_mp.protocol.refs import WireRef
from atomr_mp.protocol.token import TOKEN_BYTES
from atomr_mp_workers import Actor, DeviceArray, method
from atomr_mp_workers.loaded_method import LoadedMethod
from atomr_mp_workers.loading import load
from tests.fakes import fake_torch


class Kind(NamedTuple):
    """An annotation, and an argument that fits it."""

    annotation: Any
    argument: Any
    fits: bool = True


class Colour(enum.Enum):
    """Has values."""

    RED = "red"


class Box(pydantic.BaseModel):
    """A model."""

    left: int


class Series:
    """Stands for a class of pandas'."""

    __module__ = "pandas"


class Image:
    """Stands for a class of PIL's."""

    __module__ = "PIL.Image"


class Endless(msgspec.Struct):
    """Contains itself always."""

    inner: Endless


class Chain(msgspec.Struct):
    """Contains itself or not."""

    inner: Chain | None = None


class Quacks(typing.Protocol):
    """Cannot be asked about."""

    def quack(self) -> None:
        """Do so."""


POSSIBLE: Final = [
    Kind(Any, 1),
    Kind(object, 1),
    Kind(int, 1),
    Kind(float, 1.5),
    Kind(str, "a"),
    Kind(bytes, b"a"),
    Kind(complex, 1j),
    Kind(dt.datetime, "2020-01-01T00:00:00"),
    Kind(dt.timedelta, "PT1S"),
    Kind(Colour, "red"),
    Kind(typing.Literal["a", 2], 2),
    Kind(typing.Hashable, "a"),
    Kind(collections.abc.Sized, "a"),
    Kind(np.ndarray, np.zeros(2)),
    Kind(NDArray[np.float32], np.zeros(2, "float32")),
    Kind(fake_torch.Tensor, np.zeros(2)),
    Kind(Box, {"left": 1}),
    Kind(Annotated[int, pydantic.Field(ge=1)], 1),
    Kind(pydantic.PositiveInt, 1),
    Kind(pydantic.HttpUrl, "http://example.org/"),
    Kind(Chain, {"inner": {}}),
]

IMPOSSIBLE: Final = [
    Kind(each, None, fits=False)
    for each in (
        Series,
        Image,
        pathlib.Path,
        range,
        slice,
        np.float32,
        Callable[[int], int],
        type[int],
        Iterator[int],
        Quacks,
        Endless,
        typing.NoReturn,
        set[list[int]],
        dict[np.ndarray, int],
    )
]


def in_struct(inner: Kind) -> Kind:
    """Return one that has another in a struct's field."""
    made = msgspec.defstruct("Holding", [("part", inner.annotation)])
    return Kind(made, {"part": inner.argument}, inner.fits)


def in_dataclass(inner: Kind) -> Kind:
    """Return one that has another in a dataclass's field."""
    made = dataclasses.make_dataclass("Keeping", [("part", inner.annotation)])
    return Kind(made, {"part": inner.argument}, inner.fits)


def optional(inner: Kind) -> Kind:
    """Return one that may be None."""
    return Kind(typing.Optional[inner.annotation], inner.argument, inner.fits)  # noqa: UP045 - of any value


WRAPPERS: Final[list[Callable[[Kind], Kind]]] = [
    optional,
    in_struct,
    in_dataclass,
    lambda inner: Kind(list[inner.annotation], [inner.argument], inner.fits),  # type: ignore[name-defined]
    lambda inner: Kind(Mapping[str, inner.annotation], {"a": inner.argument}, inner.fits),  # type: ignore[name-defined]
    lambda inner: Kind(tuple[inner.annotation, int], [inner.argument, 1], inner.fits),  # type: ignore[name-defined]
    lambda inner: Kind(Annotated[inner.annotation, "a note"], inner.argument, inner.fits),
]

kinds: st.SearchStrategy[Kind] = st.recursive(
    st.sampled_from([*POSSIBLE, *IMPOSSIBLE]),
    lambda inner: st.builds(lambda wrap, each: wrap(each), st.sampled_from(WRAPPERS), inner),
    max_leaves=3,
)


@pytest.fixture(autouse=True, scope="module")
def _torch() -> Iterator[None]:
    """Let the stand-in be torch."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "torch", fake_torch)
        yield


def loaded(annotation: Any) -> LoadedMethod:
    """Return the method of an actor, loaded, whose one parameter has an annotation."""

    def takes(self: Actor, given: Any) -> None:
        """Never run."""

    takes.__annotations__ = {"given": annotation, "return": None}
    made = type("Made", (Actor,), {"takes": method(takes), "__module__": __name__})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys.modules[__name__], "Made", made, raising=False)
        return load(ActorSpec("Made", f"{__name__}:Made")).methods[0]


@settings(max_examples=300, deadline=None)
@given(kinds)
def test_what_loads_can_be_called_and_what_cannot_is_refused_by_name(each: Kind) -> None:
    """For an annotation of any kind, however deep the class is that decides."""
    if not each.fits:
        with pytest.raises(errors.ActorLoadFailed, match=r"Made\.takes: ") as refused:
            loaded(each.annotation)
        assert "parameter given" in refused.value.message or "annotations cannot be resolved" in refused.value.message
        return
    taken = loaded(each.annotation)
    for body, frames, _ in (values.encode((each.argument,)), values.encode({"given": each.argument})):
        (argument,) = taken.arguments(body, [memoryview(frame) for frame in frames], lambda _: None)
        if each.annotation in {Box, complex, fake_torch.Tensor}:
            assert isinstance(argument, each.annotation)


NAMED: Final = {
    *(
        "None",
        "bool",
        "int",
        "float",
        "str",
        "bytes",
        "list",
        "map",
        "complex",
        "datetime",
        "uuid",
        "NumPy array",
        "ref",
    ),
    *("NumPy array or ref", "NumPy array, ref or complex", "tensor, NumPy array or ref"),
}
"""What errors call types."""

MET: Final[list[Any]] = [
    *(list[int], tuple[int, str], set[int], dict[str, int], Chain, int, float, str, bytes, bool, None, int | None),
    *(int | str, list[int] | dict[str, int] | None, np.ndarray, NDArray[np.float32] | None, DeviceArray, complex),
    *(
        Colour,
        dt.datetime,
        uuid.UUID,
        list[np.ndarray],
        fake_torch.Tensor,
        list[DeviceArray],
        Annotated[list[int], "x"],
    ),
]

SENT: Final[list[Any]] = [
    *(None, True, 3, 2.5, "s", b"b", [1], {"a": 1}, {1: 2}, [None], [[1]], np.zeros(3), np.float32(3), np.array(3.0)),
    *(1j, [np.zeros(2)], {"a": np.zeros(2)}),
]


@given(annotation=st.sampled_from(MET), sent=st.sampled_from(SENT) | st.none(), as_ref=st.booleans())
def test_a_misfit_is_told_in_the_words_of_the_documentation(annotation: Any, sent: Any, *, as_ref: bool) -> None:
    """A list is no array to a caller, and an array no `ext`."""
    taken = loaded(annotation)
    body, frames, _ = values.encode((sent,))
    if as_ref:
        wire = WireRef(bytes(TOKEN_BYTES), 1, 1, "uint8", (4,), (1,), 0)
        body = b"\x91" + msgspec.msgpack.encode(wire.extension)
    try:
        taken.arguments(body, [memoryview(frame) for frame in frames], lambda _: object.__new__(DeviceArray))
    except errors.InvalidRequest as error:
        told = error.message
    else:
        return
    found = re.search(r"Expected `([^`]*)`(?:, got `([^`]*)`)?", told)
    if found is not None:
        assert {*found[1].split(" | "), found[2] or "None"} <= NAMED, told


@pytest.mark.parametrize(
    ("annotation", "said"),
    [
        (Series, "no argument can be a pandas.Series: callers send an array"),
        (Image | None, "callers send the bytes of the encoded image"),
        (list[pathlib.Path], "callers send a str"),
        (Endless, "no value of it has an end"),
        (int | np.ndarray, "an array or another class stands alone, or with None; annotate it as Any"),
        (tuple[Box, Series], "pandas.Series"),
    ],
)
def test_a_refusal_says_what_to_write_instead(annotation: Any, said: str) -> None:
    """And names the parameter."""
    with pytest.raises(errors.ActorLoadFailed, match=said) as refused:
        loaded(annotation)
    assert "Made.takes: the annotation of parameter given cannot be used" in refused.value.message
