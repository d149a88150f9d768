"""Stands for NCCL's library: ranks are processes that meet through files, and streams are those of `fake_cupy`.

As NCCL does, it tells nobody of a rank that has died, moves whatever it is given without a look at what other ranks
have called, and loses the context if a communicator is used after its abort has begun: then `poisoned` says so.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from atomr_mp_workers.worlds.nccl.library import ID_BYTES, IN_PROGRESS, NCCL_OPERATORS, SUCCESS, TYPES, Piece
from tests.fakes import fake_cupy

LOOK_S: Final = 0.0005

_FUNCTIONS: Final = {"sum": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum}
_OPERATORS: Final = {number: _FUNCTIONS[name] for name, number in NCCL_OPERATORS.items()}
_NAMES: Final = {number: name for name, number in TYPES.items()}


class _Comm:
    """One communicator of one rank."""

    def __init__(self, directory: Path, size: int, rank: int) -> None:
        self.directory, self.size, self.rank = directory, size, rank
        self.state = IN_PROGRESS
        self.aborted = threading.Event()
        self.calls = itertools.count()

    def post(self, name: str, content: bytes) -> None:
        """Show the other ranks something."""
        made = self.directory / f"{name}.{self.rank}.part"
        made.write_bytes(content)
        made.rename(self.directory / f"{name}.{self.rank}")

    def all(self, name: str) -> list[bytes] | None:
        """Return what all ranks show; None if this is aborted first."""
        paths = [self.directory / f"{name}.{rank}" for rank in range(self.size)]
        while not self.aborted.is_set():
            if all(each.exists() for each in paths):
                return [each.read_bytes() for each in paths]
            time.sleep(LOOK_S)
        return None


class FakeNccl:
    """The library.

    Args:
        directory: Where ranks meet.
    """

    def __init__(self, directory: Path) -> None:
        self.hangs_in_init = self.hangs_in_abort = self.blocks_in_calls = False
        self.init_status = SUCCESS
        self.call_status = SUCCESS
        self.abort_s = 0.01
        self.poisoned = False
        self.enqueued: Final[list[str]] = []
        """The names of all calls."""
        self.aborts = 0
        self._directory: Final = directory
        self._comms: Final[dict[int, _Comm]] = {}
        self._handles: Final = itertools.count(1)

    # --- communicators ----------------------------------------------------------------------------------------------

    def unique_id(self) -> tuple[int, bytes]:
        """Return a new id."""
        return SUCCESS, os.urandom(ID_BYTES)

    def init(self, identity: bytes, size: int, rank: int) -> tuple[int, int]:
        """Begin to form a communicator."""
        if self.init_status:
            return self.init_status, 0
        directory = self._directory / identity[:8].hex()
        directory.mkdir(exist_ok=True)
        comm, handle = _Comm(directory, size, rank), next(self._handles)
        self._comms[handle] = comm
        threading.Thread(target=self._form, args=(comm,), daemon=True).start()
        return IN_PROGRESS, handle

    def _form(self, comm: _Comm) -> None:
        comm.post("init", b"")
        if comm.all("init") is not None and not self.hangs_in_init:
            comm.state = SUCCESS

    def state(self, comm: int) -> int:
        """Return the status of the latest call."""
        return self._comms[comm].state

    def abort(self, comm: int) -> int:
        """End all that runs there."""
        self.aborts += 1
        self._comms[comm].aborted.set()
        time.sleep(self.abort_s)
        while self.hangs_in_abort:
            time.sleep(LOOK_S)
        return SUCCESS

    # --- collectives ------------------------------------------------------------------------------------------------

    def all_reduce(self, x: int, y: int, count: int, dtype: int, operator: int, comm: int, stream: int) -> int:
        """Reduce elements to all ranks."""
        return self._put("all_reduce", comm, stream, _view(x, count, dtype), lambda rows: _reduce(rows, operator, y))

    def reduce(self, x: int, y: int, count: int, dtype: int, operator: int, root: int, comm: int, stream: int) -> int:
        """Reduce elements to one rank."""

        def write(rows: list[Any]) -> None:
            if self._comms[comm].rank == root:
                _reduce(rows, operator, y)

        return self._put("reduce", comm, stream, _view(x, count, dtype), write)

    def reduce_scatter(self, x: int, y: int, count: int, dtype: int, operator: int, comm: int, stream: int) -> int:
        """Reduce, and give each rank so many elements."""
        made = self._comms[comm]
        begin = made.rank * count
        return self._put(
            "reduce_scatter",
            comm,
            stream,
            _view(x, count * made.size, dtype),
            lambda rows: _reduce([each[begin : begin + count] for each in rows], operator, y),
        )

    def all_gather(self, x: int, y: int, nbytes: int, comm: int, stream: int) -> int:
        """Give all ranks' bytes to all."""
        return self._put(
            "all_gather", comm, stream, _view(x, nbytes), lambda rows: _write(y, np.concatenate(rows).tobytes())
        )

    def broadcast(self, x: int, y: int, nbytes: int, root: int, comm: int, stream: int) -> int:
        """Give one rank's bytes to all."""
        return self._put("broadcast", comm, stream, _view(x, nbytes), lambda rows: _write(y, rows[root].tobytes()))

    def exchange(self, sent: Sequence[Piece], received: Sequence[Piece], comm: int, stream: int) -> int:
        """Send bytes to ranks and receive bytes from ranks, all at once: each rank shows all that it sends."""
        made = self._comms[comm]
        head = np.zeros(made.size, np.uint64)
        for rank, _, nbytes in sent:
            head[rank] = nbytes

        def content() -> bytes:
            pieces = {rank: _view(at, nbytes).tobytes() for rank, at, nbytes in sent}
            return head.tobytes() + b"".join(pieces.get(rank, b"") for rank in range(made.size))

        def write(rows: list[Any]) -> None:
            for rank, at, nbytes in received:
                lengths = rows[rank][: 8 * made.size].view(np.uint64)
                begin = 8 * made.size + int(lengths[: made.rank].sum())
                _write(at, rows[rank][begin : begin + nbytes].tobytes())

        return self._put("exchange", comm, stream, np.zeros(0, np.uint8), write, content)

    def _put(
        self,
        name: str,
        comm: int,
        stream: int,
        x: Any,
        write: Callable[[list[Any]], object],
        content: Callable[[], bytes] | None = None,
    ) -> int:
        made = self._comms[comm]
        if made.aborted.is_set():
            self.poisoned = True
            return 1
        while self.blocks_in_calls and not made.aborted.is_set():
            time.sleep(LOOK_S)
        self.enqueued.append(name)
        if self.call_status:
            return self.call_status
        number = next(made.calls)

        def run() -> None:
            made.post(f"call-{number}", content() if content is not None else x.tobytes())
            found = made.all(f"call-{number}")
            if found is not None:
                write([np.frombuffer(each, x.dtype) for each in found])
                (made.directory / f"call-{number - 1}.{made.rank}").unlink(missing_ok=True)

        fake_cupy.streams[stream].submit(run)
        return SUCCESS


def _view(at: int, count: int, dtype: int = TYPES["int8"]) -> Any:
    name = _NAMES[dtype]
    kind: Any = np.dtype(name) if name != "bfloat16" else _brain()
    if not count:
        return np.zeros(0, kind)
    room: Any = (ctypes.c_ubyte * (count * kind.itemsize)).from_address(at)
    return np.frombuffer(room, kind)


def _brain() -> Any:
    import ml_dtypes

    return np.dtype(ml_dtypes.bfloat16)


def _reduce(rows: list[Any], operator: int, y: int) -> None:
    total = rows[0]
    for each in rows[1:]:
        total = _OPERATORS[operator](total, each)
    _write(y, total.astype(rows[0].dtype).tobytes())


def _write(at: int, content: bytes) -> None:
    ctypes.memmove(at, content, len(content))
