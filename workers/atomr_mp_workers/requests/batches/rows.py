"""Rows: which requests of a method can be one call of it, how their arguments are joined, and how a result is split.

Pure. Arrays, tensors and lists have a row for each of their first entries.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Hashable, Sequence
from typing import Any, Final

from atomr_mp import errors
from atomr_mp.protocol import foreign
from atomr_mp.protocol.words import counted
from atomr_mp_workers.memory.arrays import DeviceArray


class RowRules:
    """What the arguments of a method with batches of rows have to be.

    Args:
        name: "Actor.method".
        parameters: The parameters' names, by position.
        most: Most rows of a request.
    """

    def __init__(self, name: str, parameters: Sequence[str], most: int) -> None:
        self._name: Final = name
        self._parameters: Final = parameters
        self._most: Final = most

    def rows_of(self, arguments: tuple[Any, ...]) -> tuple[int, Hashable]:
        """Return how many rows arguments have, and a key that is equal for arguments that can be joined.

        Raises:
            InvalidRequest: They have no rows, too many or not the same number in each, or one cannot be compared.
        """
        counts: dict[str, int] = {}
        key: list[Hashable] = []
        for parameter, value in zip(self._parameters, arguments, strict=True):
            if type(value) is list:
                key.append(list)
            elif not _is_array(value):
                key.append(self._frozen(parameter, value))
                continue
            elif value.shape:
                key.append((type(value), str(value.dtype), tuple(value.shape[1:])))
            else:
                raise errors.InvalidRequest(f"{self._name}: {parameter} is an array without dimensions, and needs rows")
            counts[parameter] = len(value)
        if not counts:
            raise errors.InvalidRequest(f"{self._name}: no argument is an array or a list, so there are no rows")
        most, least = max(counts.values()), min(counts.values())
        if most != least:
            told = ", ".join(f"{parameter} has {count}" for parameter, count in counts.items())
            raise errors.InvalidRequest(f"{self._name}: all arguments have the same number of rows, and {told}")
        if not 0 < most <= self._most:
            raise errors.InvalidRequest(
                f"{self._name}: a request has from 1 to {self._most} rows (max_items of its Batch), not {most}"
            )
        return most, tuple(key)

    def _frozen(self, parameter: str, value: Any) -> Hashable:
        try:
            return _frozen(value)
        except TypeError as error:
            raise errors.InvalidRequest(
                f"{self._name}: {parameter} has {error}, which cannot be compared with that of other requests; "
                "beside rows, send None, bool, int, float, complex, str, bytes, and maps of these and of lists"
            ) from None


class OtherRowsError(Exception):
    """A result has no rows, or another number of them; the text says what it is."""


def joined(requests: Sequence[tuple[Any, ...]]) -> tuple[Any, ...]:
    """Return the arguments of one call with the rows of all requests, in their order.

    Those of a single request are passed as they are. Joined arrays are read-only copies.

    Args:
        requests: The arguments of each; they have the same key.
    """
    if len(requests) == 1:
        return requests[0]
    return tuple(map(_join, zip(*requests, strict=True)))


def split(result: Any, counts: Sequence[int]) -> list[Any]:
    """Return the rows of a result for each request; arrays are views of it.

    Args:
        result: What the method has returned.
        counts: How many rows each request has.

    Raises:
        OtherRowsError: It has another number of rows, or none.
    """
    ends = list(itertools.accumulate(counts))
    spans = [slice(end - count, end) for end, count in zip(ends, counts, strict=True)]
    if isinstance(result, dict):
        columns = [_parts(each, spans, f" as {name!r}") for name, each in result.items()]
        return [dict(zip(result, parts, strict=True)) for parts in _by_request(columns)]
    if isinstance(result, tuple):
        return list(_by_request([_parts(each, spans, f" at [{at}]") for at, each in enumerate(result)]))
    return _parts(result, spans, "")


def _frozen(value: Any) -> Hashable:
    """Return a plain value in a form that is equal only to that of the same value: 1, 1.0 and True are different.

    Raises:
        TypeError: It is, or holds, something else; the text names what.
    """
    kind = type(value)
    if kind in {float, complex}:
        return kind, repr(value)
    if kind in _SCALARS:
        return kind, value
    if kind is list:
        return kind, tuple(map(_frozen, value))
    if kind is dict:
        return kind, tuple([(_frozen(name), _frozen(each)) for name, each in value.items()])
    raise TypeError(f"a {kind.__name__}")


_SCALARS: Final = frozenset({type(None), bool, int, str, bytes})


def _is_array(value: Any) -> bool:
    numpy = sys.modules.get("numpy")
    return (numpy is not None and type(value) is numpy.ndarray) or foreign.is_tensor(value)


def _join(values: tuple[Any, ...]) -> Any:
    first = values[0]
    if type(first) is list:
        return list(itertools.chain.from_iterable(values))
    if not _is_array(first):
        return first
    import numpy as np

    is_tensor = foreign.is_tensor(first)
    whole = np.concatenate([foreign.to_array(each) for each in values] if is_tensor else values)
    whole.flags.writeable = False
    return foreign.to_tensor(whole) if is_tensor else whole


def _parts(column: Any, spans: Sequence[slice], where: str) -> list[Any]:
    """Return the rows of an array or a list for each request."""
    is_array = not isinstance(column, DeviceArray) and (
        _is_array(column) or hasattr(column, "__array_interface__") or hasattr(column, "__cuda_array_interface__")
    )
    if not (is_array and len(column.shape)) and not isinstance(column, list):
        raise OtherRowsError(f"a {type(column).__name__}{where}")
    if len(column) != spans[-1].stop:
        raise OtherRowsError(f"{counted(len(column), 'row')}{where}")
    return [column] if len(spans) == 1 else [column[span] for span in spans]


def _by_request(columns: list[list[Any]]) -> zip[tuple[Any, ...]]:
    if not columns:
        raise OtherRowsError("nothing")
    return zip(*columns, strict=True)
