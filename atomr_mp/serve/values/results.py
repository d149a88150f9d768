"""A call's result as a body: JSON, a raw array, or raw bytes. Pure."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from atomr_mp import errors
from atomr_mp.serve.http.accept import weight
from atomr_mp.serve.http.exchange import JSON
from atomr_mp.serve.problems import Header, Problem
from atomr_mp.serve.values import arrays

NPY: Final = b"application/x-npy"
OCTETS: Final = b"application/octet-stream"

USUAL: Final = frozenset({b"", b"*/*", b"application/json"})
"""The values of `Accept` that most clients send."""

MOST_ELEMENTS: Final = 2**20
"""Elements of arrays in a JSON answer: a front end that writes them is deaf to others for some tenths of a second."""

NPY_HEADER: Final[Header] = (b"content-type", NPY)
OCTETS_HEADER: Final[Header] = (b"content-type", OCTETS)


def form_of(accept: bytes, schema: Mapping[str, Any]) -> bytes:
    """Return the media type in which a client wants a result: JSON unless it wants a raw form more.

    Args:
        accept: The request's `Accept`.
        schema: The result's schema.

    Raises:
        Problem: 406; the method certainly does not return the only type that the client accepts.
    """
    if accept in USUAL:
        return JSON[1]
    # Where two are wanted as much, the one that every result has comes first, and an array's before that of bytes.
    wanted = {form: weight(accept, form).quality for form in (JSON[1], NPY, OCTETS)}
    for form in sorted(wanted, key=wanted.__getitem__, reverse=True):
        if not wanted[form]:
            break
        if form == JSON[1] or _may_be(schema, form):
            return form
    if not any(wanted.values()):
        raise Problem(
            406, "not_acceptable", "answers are application/json, application/x-npy or application/octet-stream"
        )
    raise Problem(406, "not_acceptable", "this method returns neither an array nor bytes; ask for application/json")


def _may_be(schema: Mapping[str, Any], form: bytes) -> bool:
    """Return whether a result may have a raw form."""
    if not schema or "anyOf" in schema:
        return True
    return schema.get("format") == "ndarray" if form == NPY else schema.get("contentEncoding") == "base64"


def encode(result: object, form: bytes, as_json: Callable[[Any], Any] | None = None) -> tuple[Header, bytes]:
    """Return the content type and the body of a result.

    Args:
        result: The result.
        form: One of the types that `form_of` returns.
        as_json: See `ArgumentPlan.as_json`.

    Raises:
        Unsupported: The result has no such form: it has a ref, or is not an array or bytes where the client wants that.
    """
    if form == JSON[1]:
        return JSON, encode_json(result if as_json is None else as_json(result))
    if form == OCTETS:
        if isinstance(result, bytes):
            return OCTETS_HEADER, result
        raise _not_so("bytes", result)
    numpy = sys.modules.get("numpy")
    if numpy is None or not isinstance(result, numpy.ndarray):
        raise _not_so("array", result)
    try:
        return NPY_HEADER, arrays.to_npy(result)
    except ValueError as error:
        raise errors.Unsupported(str(error), maybe_executed=True) from error


def about_bytes(result: object) -> int:
    """Return about how many bytes a result has: those of its arrays, texts and bytes."""
    numpy, total, left = sys.modules.get("numpy"), 0, [result]
    array = _NO_TYPE if numpy is None else numpy.ndarray
    while left:
        each = left.pop()
        if isinstance(each, str | bytes):
            total += len(each)
        elif isinstance(each, array):
            total += each.nbytes
        elif isinstance(each, dict):
            left += each.values()
        elif isinstance(each, list | tuple) and not _NUMBERS.issuperset(map(type, each)):
            left += each
    return total


def _not_so(wanted: str, result: object) -> errors.Unsupported:
    return errors.Unsupported(
        f"the result is no {wanted} but a {type(result).__name__}; ask for application/json", maybe_executed=True
    )


def encode_json(value: object) -> bytes:
    """Return a result as JSON: arrays as nested lists, bytes as base64, NaN and infinities as null.

    Raises:
        Unsupported: It has a value without a JSON form.
    """
    _left.elements = MOST_ELEMENTS
    try:
        body = _encode(value)
        if b"{" in body:
            _check_names(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise errors.Unsupported(f"the result cannot be sent as JSON: {error}", maybe_executed=True) from error
    return body


def _check_names(value: object) -> None:
    """Check that no two keys of a map have the same name in JSON, such as 1 and "1".

    Raises:
        ValueError: Two have.
    """
    left = [value]
    while left:
        each = left.pop()
        if isinstance(each, dict):
            if set(map(type, each)) - _TEXT:
                _check_keys(each)
            left += [inner for inner in each.values() if isinstance(inner, _CONTAINERS)]
        elif isinstance(each, list | tuple) and not _CONTAINER_TYPES.isdisjoint(map(type, each)):
            left += [inner for inner in each if isinstance(inner, _CONTAINERS)]


def _check_keys(found: dict[Any, Any]) -> None:
    names: dict[bytes, Any] = {}
    for key in found:
        name = _encode({key: 0})
        if name in names:
            raise ValueError(f"a map has the keys {names[name]!r} and {key!r}, which have the same name in JSON")
        names[name] = key


_NO_TYPE: Final = ()
_NUMBERS: Final = frozenset({int, float, bool, type(None)})
_TEXT: Final = frozenset({str})
_CONTAINERS: Final = (dict, list, tuple)
_CONTAINER_TYPES: Final = frozenset(_CONTAINERS)


def _encode_other(value: object) -> object:
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, numpy.ndarray):
        _left.elements -= value.size
        if _left.elements < 0:
            raise TypeError(
                f"its arrays have more than {MOST_ELEMENTS} elements; have the method return one array, and send "
                "`Accept: application/x-npy`"
            )
        return arrays.to_lists(value)
    if type(value).__name__ == "GpuRef":
        raise TypeError("it has a ref to device memory; have the method return the array itself")
    raise TypeError(f"a {type(value).__name__} has no form in JSON")


class _Left(threading.local):
    """What an answer that is being written may still have; of each thread."""

    elements = MOST_ELEMENTS


_left: Final = _Left()
_encode: Final = msgspec.json.Encoder(enc_hook=_encode_other).encode
