"""What a method returns may be given back to it, over HTTP and in Python, and is the same value, of any types."""

from __future__ import annotations

import base64
import dataclasses
import itertools
from typing import Any, Final, Literal, NamedTuple

import hypothesis
import msgspec
import pydantic
import pytest
from hypothesis import strategies as st

from atomr_mp.protocol import values
from atomr_mp.protocol.messages.devices import MethodInfo
from atomr_mp.serve.http.exchange import JSON
from atomr_mp.serve.values import results, schemas
from atomr_mp_workers.annotations import convert, decoded
from atomr_mp_workers.schemas import Described, schema_of

NUMBERS: Final = itertools.count()
"""Makes names of classes."""


class Made(NamedTuple):
    """A type, and its values."""

    kind: Any
    values: st.SearchStrategy[Any]


LEAVES: Final = [
    Made(bytes, st.binary(max_size=6)),
    Made(bytes | None, st.none() | st.binary(max_size=3)),
    Made(str, st.text(max_size=4) | st.sampled_from(["YWI=", "abcd"])),
    Made(int, st.integers(-3, 3)),
]

ENCODED: Final = Made(pydantic.Base64Bytes, st.binary(max_size=6).map(base64.b64encode))
"""Bytes that pydantic itself has as base64; a model is made with their text."""


@st.composite
def made(draw: st.DrawFn, depth: int = 3, *, pydantic_s: bool | None = None) -> Made:
    """Return a type. Within pydantic's own there can be no struct."""
    own = draw(st.booleans()) if pydantic_s is None else pydantic_s
    kind = draw(st.sampled_from(["leaf", "list", "map", "optional", "tuple", "class", "class", "union"]))
    if depth == 0 or kind == "leaf":
        leaf: Made = draw(st.sampled_from(LEAVES))
        return leaf
    if kind == "class":
        return _class_of(draw, own, depth, {})
    if kind == "union":
        tags: list[Any] = [draw(st.sampled_from(LEAVES)) for _ in "ab"]
        options = [_class_of(draw, own, depth, {"a": each}, tag=f"t{at}") for at, each in enumerate(tags)]
        return Made(options[0].kind | options[1].kind, options[0].values | options[1].values)
    inner = draw(made(depth - 1, pydantic_s=own))
    lists = st.lists(inner.values, max_size=2)
    found: dict[str, Made] = {
        "list": Made(list[inner.kind], lists),  # type: ignore[name-defined]
        "map": Made(dict[str, inner.kind], st.dictionaries(st.text(max_size=2), inner.values, max_size=2)),  # type: ignore[name-defined]
        "optional": Made(inner.kind | None, st.none() | inner.values),
        "tuple": Made(tuple[inner.kind, ...], lists.map(tuple)),  # type: ignore[name-defined]
    }
    return found[kind]


def _class_of(draw: st.DrawFn, own: bool, depth: int, more: dict[str, Made], tag: str = "") -> Made:  # noqa: FBT001
    """Return a class with fields; with a tag, it is an option of a union."""
    inside = True if own else None
    fields = more | {name: draw(made(depth - 1, pydantic_s=inside)) for name in "bc"[: draw(st.integers(0, 2))]}
    fields = fields or {"a": LEAVES[0]}
    hints: dict[str, Any] = {name: each.kind for name, each in fields.items()}
    name = f"Made{next(NUMBERS)}"
    makers = ["model", "aliased", "dataclass"] if own and not tag else ["model"] if own else ["struct", "dataclass"]
    maker = "struct" if tag and not own else draw(st.sampled_from(makers))
    cls: Any
    if maker == "struct":
        cls = msgspec.defstruct(name, list(hints.items()), tag=tag or None)
    elif maker == "dataclass":
        cls = dataclasses.make_dataclass(name, list(hints.items()))
        cls = pydantic.dataclasses.dataclass(cls) if own else cls
    else:
        if draw(st.booleans()):
            hints["e"] = ENCODED.kind
            fields["e"] = ENCODED
        defined: dict[str, Any] = {field: (hint, ...) for field, hint in hints.items()}
        if tag:
            defined["kind"] = (Literal[tag], tag)
        config: Any = {"ser_json_bytes": draw(st.sampled_from(["utf8", "base64", "hex"]))}
        if maker == "aliased":
            config |= {"alias_generator": str.upper, "populate_by_name": True}
        cls = pydantic.create_model(name, __config__=config, **defined)
    return Made(cls, st.fixed_dictionaries({each: found.values for each, found in fields.items()}).map(_maker(cls)))


def _maker(cls: Any) -> Any:
    return lambda given: cls(**given)


def given_back(kind: Any, value: Any) -> Any:
    """Return a value that a method has returned over HTTP, and that was sent to it again."""
    schema = schema_of([Described("x", kind, decoded(kind).hint, True)], kind)
    plan = schemas.plan_of("A.m", MethodInfo("m", ["x"], idempotent=True, deadline_s=None, doc="", schema=schema))
    _, text = results.encode(crossed(value), JSON[1], plan.as_json)
    args, _ = plan.arguments([msgspec.json.decode(text)])
    return taken(kind, crossed(args[0]))


def crossed(value: Any) -> Any:
    """Return a value as it arrives at the other end."""
    body, frames, _ = values.encode(value)
    assert not frames
    return msgspec.msgpack.decode(body)


def taken(kind: Any, value: Any) -> Any:
    """Return the argument that a method gets for a value that has arrived."""
    return msgspec.msgpack.decode(msgspec.msgpack.encode(value), type=decoded(kind).hint, dec_hook=convert)


@hypothesis.given(st.data())
@hypothesis.settings(deadline=None, suppress_health_check=list(hypothesis.HealthCheck))
def test_a_result_is_taken_as_the_argument_that_it_was(data: st.DataObject) -> None:
    """Over HTTP and in Python. Bytes are base64 in JSON at any depth, whatever a model's configuration says."""
    kind, given = data.draw(made())
    try:
        decoded(kind)
    except TypeError:  # an actor with such an annotation does not load: msgspec has unions with one model at most
        hypothesis.reject()
    value = data.draw(given)
    assert given_back(kind, value) == value
    assert taken(kind, crossed(value)) == value


class Box(pydantic.BaseModel):
    """Has names beside its fields' own."""

    model_config = pydantic.ConfigDict(populate_by_name=True)
    left: bytes = pydantic.Field(alias="theLeft")
    right: bytes = pydantic.Field(b"r", validation_alias=pydantic.AliasChoices("toTheRight", "other"))


@pytest.mark.parametrize("name", ["theLeft", "left"])
@pytest.mark.parametrize("other", ["toTheRight", "other", "right"])
def test_bytes_are_converted_by_whichever_name_they_are_given(name: str, other: str) -> None:
    """A model's schema has all names by which a field may be given."""
    schema = schema_of([Described("x", Box, decoded(Box).hint, True)], Box)
    plan = schemas.plan_of("A.m", MethodInfo("m", ["x"], idempotent=True, deadline_s=None, doc="", schema=schema))
    (given,), _ = plan.arguments([{name: "YWI=", other: "Y2Q="}])
    assert taken(Box, given) == Box.model_validate({"left": b"ab", "right": b"cd"})


def test_types_that_refer_to_themselves_often_take_no_longer() -> None:
    """The conversion by a class is made once, however many ways lead to it."""
    hints = dict.fromkeys("abcd", "Tree | None")
    tree = msgspec.defstruct("Tree", [("content", bytes), *((each, hint, None) for each, hint in hints.items())])
    tree.__module__, globals()["Tree"] = __name__, tree
    value = tree(b"1", a=tree(b"2", d=tree(b"3")))
    assert given_back(tree, value) == value
