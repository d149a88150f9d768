"""What Schemathesis has to know of this server: how it asks, and what its schemas cannot say."""

from __future__ import annotations

import io
from typing import Any, Final

import numpy as np
import schemathesis
from hypothesis.extra import numpy as st_numpy

ARRAYS: Final = frozenset({"small", "real", "pairs", "any_array", "arrays"})
"""Methods with arrays as their first parameters."""

UNTYPED: Final = frozenset({"anything", "echo", "bare", "tree", "records", "arrays", "any_array"})
"""Methods with values that nothing describes."""


@schemathesis.hook
def filter_body(context: schemathesis.HookContext, body: Any) -> bool:
    """Leave out what JSON Schema cannot tell from what is right.

    Lists that make an array are equally long. A whole number beyond 64 bits is a number for JSON Schema; written
    without an exponent, the server refuses it where no annotation says that it is a float.
    """
    assert context.operation is not None
    name = context.operation.path.rpartition(".")[2]
    if name in ARRAYS and isinstance(body, dict | list):
        given = body.values() if isinstance(body, dict) else body
        if any(isinstance(each, list) and shape(each) is None for each in given):
            return False
    return not (name in UNTYPED and is_wide(body))


@schemathesis.hook
def filter_case(_context: schemathesis.HookContext, case: schemathesis.Case[Any]) -> bool:
    """Leave out forms whose files are anything but bytes: any text is the content of a file, too."""
    if case.media_type != "multipart/form-data" or not isinstance(case.body, dict):
        return True
    content = case.operation.definition.raw["requestBody"]["content"]
    described = content["multipart/form-data"]["schema"]["properties"]
    files = [value for name, value in case.body.items() if "binary" in repr(described.get(name))]
    return all(isinstance(each, bytes) for value in files for each in (value if isinstance(value, list) else [value]))


def shape(value: Any) -> tuple[int, ...] | None:
    """Return the shape of nested lists; None if they are not equally long."""
    if not isinstance(value, list):
        return ()
    inner = {shape(each) for each in value}
    if len(inner) > 1 or None in inner:
        return None
    return (len(value), *(inner.pop() or () if inner else ()))


def is_wide(value: Any) -> bool:
    """Return whether a value has a whole number of more than 64 bits."""
    if isinstance(value, dict | list):
        return any(map(is_wide, value.values() if isinstance(value, dict) else value))
    return isinstance(value, int) and not -(2**63) <= value < 2**64


def file_of(array: Any) -> bytes:
    """Return an array as a file."""
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


schemathesis.openapi.media_type(
    "application/x-npy", st_numpy.arrays(np.float32, st_numpy.array_shapes(min_dims=0, max_side=3)).map(file_of)
)
