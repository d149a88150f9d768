"""Valid messages, made by the types of their fields."""

from __future__ import annotations

import random
from typing import Any

import msgspec
from msgspec import inspect

TEXTS = ("a", "Target.echo", "device 0", "é", "worker_lost", "float32")


def value_of(rng: random.Random, info: inspect.Type) -> Any:  # noqa: PLR0911 - one for each kind of type
    """Return a value of a type."""
    match info:
        case inspect.UnionType():
            return value_of(rng, rng.choice(info.types))
        case inspect.StructType():
            return info.cls(**{field.name: value_of(rng, field.type) for field in info.fields if _given(rng, field)})
        case inspect.ListType() | inspect.VarTupleType():
            least = info.min_length or 0
            count = rng.randint(least, min(least + 3, info.max_length or 3))
            return [value_of(rng, info.item_type) for _ in range(count)]
        case inspect.TupleType():
            return tuple(value_of(rng, each) for each in info.item_types)
        case inspect.DictType():
            return {value_of(rng, info.key_type): value_of(rng, info.value_type) for _ in range(rng.randint(0, 2))}
        case inspect.EnumType():
            return rng.choice(list(info.cls))
        case inspect.LiteralType():
            return rng.choice(info.values)
        case inspect.BoolType():
            return rng.random() < 0.5
        case inspect.NoneType():
            return None
        case _:
            return _scalar(rng, info)


def _given(rng: random.Random, field: inspect.Field) -> bool:
    """Return whether a field is written; one with a default may be left out."""
    return field.required or rng.random() < 0.7


def _scalar(rng: random.Random, info: inspect.Type) -> Any:
    match info:
        case inspect.IntType():
            low = -(2**63) if info.ge is None else info.ge
            high = 2**63 - 1 if info.le is None else info.le
            high = high if info.lt is None else info.lt - 1
            return rng.choice((low, high, rng.randint(low, min(high, low + 9)), rng.randint(low, high)))
        case inspect.FloatType():
            return rng.uniform(info.ge or 0.0, 9.0 if info.le is None else info.le)
        case inspect.StrType():
            return rng.choice(TEXTS)
        case inspect.BytesType():
            least = info.min_length or 0
            arguments = msgspec.msgpack.encode([1, "two", [3.0]])
            return arguments if least == 0 and (info.max_length or 99) > len(arguments) else rng.randbytes(least)
        case _:
            raise TypeError(f"no values of {info}")
