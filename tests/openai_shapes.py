"""Shared by tests of OpenAI's form: answers as OpenAI's own Python client takes them, and nothing beside."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from typing import Any, Final

import pytest

pydantic: Any = pytest.importorskip("pydantic")


UNTYPED: Final = frozenset({"store", "name", "cache_write_tokens", "completed_at"})
"""Fields of a response, and of its events, that OpenAI's reference has and the types of some versions do not."""


def strictly(kind: Any, value: Any) -> Any:
    """Return a value as the client's own type; it has no field that the type does not know, and loses none."""
    adapter = _adapter(kind)
    found = adapter.validate_python(value, strict=True)
    dumped = adapter.dump_python(found, mode="json", exclude_unset=True, by_alias=True)
    assert dumped == value
    assert set(_unknown(found)) <= UNTYPED
    return found


@functools.cache
def _adapter(kind: Any) -> Any:
    return pydantic.TypeAdapter(kind)


def _unknown(value: object) -> Iterator[str]:
    """Yield the names of all fields that their types do not have."""
    if isinstance(value, pydantic.BaseModel):
        yield from value.model_extra or ()
        for name in value.model_fields_set:
            yield from _unknown(getattr(value, name, None))
    elif isinstance(value, list):
        for each in value:
            yield from _unknown(each)


def events_of(body: bytes) -> list[tuple[str | None, Any]]:
    """Return the names and the values of a stream's events, by the client's own decoder; without the `[DONE]`."""
    from openai._streaming import SSEDecoder

    decoded: Iterable[Any] = SSEDecoder().iter_bytes(iter([body]))
    return [(each.event, each.json()) for each in decoded if each.data != "[DONE]"]
