"""The input of `atomr-mp map`: a file's items, one after another."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import msgspec

from atomr_mp import errors
from atomr_mp.mapping.schedule import Unreadable


class Items(NamedTuple):
    """An opened input."""

    each: Iterable[Any]
    """The items, read as they are needed."""
    total: int | None
    """Number of items; None if it is not known beforehand."""


def open_items(name: str) -> Items:
    """Open an input by the end of its name; `-` is JSON lines from stdin.

    A file of JSON lines is read through once before, so that a bad line costs no job. A bad line of stdin is an
    `Unreadable`, whose error stands in its place, since the lines before it are done already.

    Raises:
        ConfigurationError: It cannot be read, or its content does not fit its name.
    """
    path = Path(name)
    try:
        if name == "-":
            return Items(_lines(sys.stdin.buffer, "stdin", _in_its_place), None)
        if path.suffix == ".npy":
            return _rows(path)
        if path.suffix == ".jsonl":
            with path.open("rb") as file:
                total = sum(1 for _ in _lines(file, name, _refused))
            return Items(_file_lines(path), total)
    except (OSError, ValueError) as error:
        raise errors.ConfigurationError(f"the input {name} cannot be read: {error}") from error
    raise errors.ConfigurationError(f"the input {name} is neither .jsonl nor .npy")


def _file_lines(path: Path) -> Iterator[Any]:
    with path.open("rb") as file:
        yield from _lines(file, str(path), _in_its_place)  # the file may have changed since it was checked


def _lines(file: Iterable[bytes], name: str, bad: Callable[[str], Any]) -> Iterator[Any]:
    """Yield the values of lines; for a line that is not JSON, the value of `bad` for the reason."""
    decode = msgspec.json.Decoder().decode
    for number, line in enumerate(file, 1):
        try:
            value = decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            value = bad(f"line {number} of {name} is not JSON: {error}")
        yield value


def _refused(why: str) -> NoReturn:
    raise errors.ConfigurationError(why)


def _in_its_place(why: str) -> Unreadable:
    return Unreadable(errors.InvalidRequest(why))


def _rows(path: Path) -> Items:
    import numpy as np

    # Mapped, so that a file larger than memory is read as it is needed.
    mapped = np.asarray(np.load(path, mmap_mode="r", allow_pickle=False))
    if mapped.ndim == 0:
        raise ValueError("it holds a single number; items are along the first axis")
    return Items(mapped, len(mapped))
