"""The input of `atomr-mp map`: a file's items, one after another."""

from __future__ import annotations

import stat
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple, NoReturn

import msgspec

from atomr_mp import errors
from atomr_mp.mapping.schedule import Unreadable
from atomr_mp.protocol.flow.limits import MAX_DEPTH

_NPY: Final = b"\x93NUMPY"
"""How a file of `numpy.save` begins."""


class Items(NamedTuple):
    """An opened input."""

    each: Iterable[Any]
    """The items, read as they are needed."""
    total: int | None
    """Number of items; None if it is not known beforehand."""


def open_items(name: str) -> Items:
    """Open an input by the end of its name; `-` is JSON lines from stdin.

    A file of JSON lines is read through once before, so that a bad line costs no job. A bad line of stdin is an
    `Unreadable`, whose error stands in its place, since the lines before it are done already. So is a line that is
    nested too deeply, of a file too: it is JSON, but no item that can be sent.

    Raises:
        ConfigurationError: It cannot be read, or read once only, or its content does not fit its name.
    """
    path = Path(name)
    try:
        if name == "-":
            return Items(_lines(sys.stdin.buffer, "stdin", _in_its_place), None)
        _check_twice(path)
        if path.suffix == ".npy":
            return _rows(path)
        if path.suffix == ".jsonl":
            with path.open("rb") as file:
                total = sum(1 for _ in _lines(file, name, _refused))
            return Items(_file_lines(path), total)
    except (OSError, ValueError) as error:
        raise errors.ConfigurationError(f"the input {name} cannot be read: {error}") from error
    raise errors.ConfigurationError(f"the input {name} is neither .jsonl nor .npy")


def _check_twice(path: Path) -> None:
    """Refuse what is there and cannot be read twice, such as a named pipe, whose second opening would wait for ever.

    Raises:
        ConfigurationError: It is no plain file.
    """
    mode = path.stat().st_mode
    if stat.S_ISDIR(mode):
        raise errors.ConfigurationError(f"the input {path} is a directory; name a file")
    if not stat.S_ISREG(mode):
        raise errors.ConfigurationError(
            f"the input {path} is no plain file, and is read twice; to read JSON lines of a pipe or a device as they "
            f"come, give them to stdin: `--input - < {path}`"
        )


def _file_lines(path: Path) -> Iterator[Any]:
    with path.open("rb") as file:
        yield from _lines(file, str(path), _in_its_place)  # the file may have changed since it was checked


def _lines(file: Iterable[bytes], name: str, bad: Callable[[str], Any]) -> Iterator[Any]:
    """Yield the values of lines; for a line that is not JSON, the value of `bad` for the reason."""
    decode = msgspec.json.Decoder().decode
    for number, line in enumerate(file, 1):
        try:
            value = decode(line)
        except RecursionError:
            value = _in_its_place(f"line {number} of {name} is nested deeper than {MAX_DEPTH}")
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            why = "is not JSON: " + str(error) if line.strip() else "is empty; each line is an item, `null` for none"
            value = bad(f"line {number} of {name} {why}")
        yield value


def _refused(why: str) -> NoReturn:
    raise errors.ConfigurationError(why)


def _in_its_place(why: str) -> Unreadable:
    return Unreadable(errors.InvalidRequest(why))


def _rows(path: Path) -> Items:
    import numpy as np

    with path.open("rb") as file:
        if file.read(len(_NPY)) != _NPY:
            raise ValueError("it is no file of `numpy.save`")
    # Mapped, so that a file larger than memory is read as it is needed.
    mapped = np.asarray(np.lib.format.open_memmap(path, mode="r"))
    if mapped.ndim == 0:
        raise ValueError("it holds a single number; items are along the first axis")
    return Items(mapped, len(mapped))
