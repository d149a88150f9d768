"""The output of `atomr-mp map`: written beside its place, and moved there when it is whole."""

from __future__ import annotations

import contextlib
import fcntl
import os
import sys
from abc import ABC, abstractmethod
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, BinaryIO, Final, Self

import msgspec

from atomr_mp import errors
from atomr_mp.mapping.run import Failure

if TYPE_CHECKING:
    import numpy as np

HEADER_BYTES: Final = 1024
"""Room for the header of a .npy file, whose number of rows is known only at the end. The format pads with
spaces, to a multiple of 64."""


def open_results(name: str) -> Results:
    """Open an output by the end of its name; `-` is JSON lines to stdout.

    Raises:
        ConfigurationError: It cannot be written, or its name has no known ending.
    """
    if name == "-":
        return JsonLines(None)
    path = Path(name)
    kind = {".jsonl": JsonLines, ".npy": Rows}.get(path.suffix)
    if kind is None:
        raise errors.ConfigurationError(f"the output {name} is neither .jsonl nor .npy")
    return kind(path)


class Results(ABC):
    """Takes outcomes in order. Use it with `with`: without a commit nothing is left.

    Args:
        path: Where the results go; None for stdout.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        if path is None:
            self._file: BinaryIO = sys.stdout.buffer
        else:
            self._part = path.with_name(f"{path.name}.part")
            self._file = _create(self._part)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, type_: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._path is not None:
            with contextlib.suppress(OSError):  # rows that were not written are not wanted
                self._file.close()
            self._part.unlink(missing_ok=True)

    def write(self, index: int, outcome: Any) -> Failure | None:
        """Write an outcome. Return the item's failure, or the failure to write its result; None if all is well."""
        try:
            if isinstance(outcome, Failure):
                failure = outcome
            else:
                refused = self._write_result(index, outcome)
                if refused is None:
                    return None
                failure = Failure(index, errors.Unsupported(refused, maybe_executed=True), 1)
            self._write_failure(failure)
        except OSError as error:
            raise errors.ConfigurationError(f"the output cannot be written: {error}") from error
        return failure

    def commit(self) -> None:
        """Move the results to their place."""
        try:
            self._complete()
            self._file.flush()
            if self._path is not None:
                self._file.close()
                self._part.rename(self._path)
        except OSError as error:
            raise errors.ConfigurationError(f"the output cannot be written: {error}") from error

    @abstractmethod
    def _write_result(self, index: int, result: Any) -> str | None:
        """Write a result. Return why that is not possible; None if it is written."""

    @abstractmethod
    def _write_failure(self, failure: Failure) -> None:
        """Write the entry of a failed item."""

    @abstractmethod
    def _complete(self) -> None:
        """Write the missing rest."""


class JsonLines(Results):
    """One JSON value a line; arrays become lists, bytes become base64, NaN becomes null."""

    def __init__(self, path: Path | None) -> None:
        super().__init__(path)
        self._encode = msgspec.json.Encoder(enc_hook=_as_lists).encode

    def _write_result(self, _index: int, result: Any) -> str | None:
        try:
            self.write_value(result)
        except (TypeError, ValueError, OverflowError) as error:
            return f"its result cannot be written as JSON: {error}"
        return None

    def write_value(self, value: object) -> None:
        """Write a line."""
        self._file.write(self._encode(value) + b"\n")

    def _write_failure(self, failure: Failure) -> None:
        self.write_value({"error": described(failure)})

    def _complete(self) -> None:
        pass


class Rows(Results):
    """A .npy file. The first result decides the type and shape of a row; failed items leave a blank row."""

    def __init__(self, path: Path | None) -> None:
        super().__init__(path)
        assert path is not None
        self._failures: JsonLines | None = None
        """FILE.failures.jsonl, from the first failure on."""
        self._failures_path = path.with_name(f"{path.name}.failures.jsonl")
        self._row: np.ndarray[Any, Any] | None = None
        """The row of a failed item; None before the first result."""
        self._first = 0
        """Index of that result."""
        self._rows = 0
        self._file.write(b"\0" * HEADER_BYTES)

    def __exit__(
        self, type_: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        super().__exit__(type_, error, traceback)
        if self._failures is not None:
            self._failures.__exit__(type_, error, traceback)

    def _write_result(self, index: int, result: Any) -> str | None:
        import numpy as np

        try:
            array = np.asarray(result)
        except (TypeError, ValueError, OverflowError) as error:
            return f"its result is not an array of numbers: {error}"
        if array.dtype.kind not in "biufc":
            return f"its result is no number and no array of numbers, but of {type(result).__name__}: use .jsonl output"
        if self._row is None:
            self._first = index
            self._row = np.zeros(array.shape, array.dtype)
            if array.dtype.kind in "fc":
                self._row[...] = np.nan
            for _ in range(self._rows):
                self._file.write(self._row.tobytes())
        row = self._row
        if array.shape != row.shape or not np.can_cast(array.dtype, row.dtype, "safe"):
            return (
                f"its result is {array.dtype} of shape {array.shape}, that of row {self._first} is {row.dtype} of "
                f"shape {row.shape}, but all rows of a .npy file have one type and shape"
            )
        self._file.write(np.ascontiguousarray(array, row.dtype).tobytes())
        self._rows += 1
        return None

    def _write_failure(self, failure: Failure) -> None:
        if self._failures is None:
            self._failures = JsonLines(self._failures_path)
        self._failures.write_value({"index": failure.index, "error": described(failure)})
        if self._row is not None:
            self._file.write(self._row.tobytes())
        self._rows += 1

    def _complete(self) -> None:
        import numpy as np

        # Without any result, a row counts as a number.
        row = np.full((), np.nan) if self._row is None else self._row
        if self._row is None:
            self._file.write(row.tobytes() * self._rows)
        self._file.seek(0)
        self._file.write(_header(row, self._rows))
        if self._failures is not None:
            self._failures.commit()
        else:
            self._failures_path.unlink(missing_ok=True)  # left by an earlier job


def described(failure: Failure) -> dict[str, Any]:
    """Return a failure as the outputs have it."""
    return {
        "code": failure.error.code,
        "message": failure.error.message,
        "maybe_executed": getattr(failure.error, "maybe_executed", True),
        "attempts": failure.attempts,
    }


def _header(row: np.ndarray[Any, Any], rows: int) -> bytes:
    """Return a .npy header, format version 1.0, of `HEADER_BYTES`."""
    import numpy as np

    shape = (rows, *row.shape)
    text = repr({"descr": np.lib.format.dtype_to_descr(row.dtype), "fortran_order": False, "shape": shape})
    start = np.lib.format.magic(1, 0) + (HEADER_BYTES - 10).to_bytes(2, "little")
    return start + text.encode("ascii").ljust(HEADER_BYTES - 10 - 1) + b"\n"


def _as_lists(value: Any) -> Any:
    as_list = getattr(value, "tolist", None)  # NumPy's arrays and scalars have it
    if as_list is None:
        raise TypeError(f"a {type(value).__name__} has no JSON form")
    return as_list()


def _create(path: Path) -> BinaryIO:
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)  # before another job's content is cut off
            os.ftruncate(descriptor, 0)
        except OSError:
            os.close(descriptor)
            raise
    except BlockingIOError as error:
        raise errors.ConfigurationError(f"the output cannot be written: another job writes {path}") from error
    except OSError as error:
        raise errors.ConfigurationError(f"the output cannot be written: {error}") from error
    return os.fdopen(descriptor, "wb", buffering=2**20)
