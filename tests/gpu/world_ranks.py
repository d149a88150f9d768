"""Processes that take part in collectives on GPUs without a pool: this one hands their mailboxes on, and has no CUDA.

Each process runs what it is given as text, with these names: `rank`, `size`, `gpu`, `exchange`, `meeting`,
`collectives`, `cp` (CuPy), `np` and `peers`, an object with the words that its lines would have.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import pickle
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, Final, Self

from tests.framing import LENGTH, exactly

PAGE_BYTES: Final = 4096
LIMIT_S: Final = 60.0


class RankProcess:
    """One process.

    Args:
        gpu: The GPU, by its number among all.
        gpus: How many there are.
        rank: Its rank.
        size: How many ranks there are.
        generation: Its generation.
    """

    def __init__(self, gpu: int, gpus: int, rank: int, size: int, generation: int) -> None:
        self.where: Final = (rank, generation)
        self._socket, theirs = socket.socketpair()
        self._socket.settimeout(LIMIT_S)
        self._page: Final = os.memfd_create("page", os.MFD_CLOEXEC)
        os.ftruncate(self._page, PAGE_BYTES)
        self.page: Final = memoryview(mmap.mmap(self._page, PAGE_BYTES)).cast("Q")
        given = os.environ.get("CUDA_VISIBLE_DEVICES")
        all_gpus = given.split(",") if given else [str(each) for each in range(gpus)]
        visible = [all_gpus[gpu], *(each for number, each in enumerate(all_gpus) if number != gpu)]
        environment = os.environ | {
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
            "CUDA_VISIBLE_DEVICES": ",".join(visible),
        }
        arguments = [str(each) for each in (theirs.fileno(), self._page, gpu, rank, size, generation)]
        self.process: Final = subprocess.Popen(
            [sys.executable, "-m", "tests.gpu.world_ranks", *arguments],
            pass_fds=(theirs.fileno(), self._page),
            env=environment,
        )
        theirs.close()
        self.mailbox: Final = self._ready()

    def _ready(self) -> int:
        _, descriptors, _, _ = socket.recv_fds(self._socket, 1, 1)
        assert descriptors, "the process has ended"
        return descriptors[0]

    def map(self, other: RankProcess) -> None:
        """Give the process the mailbox of another."""
        self.send(f"exchange.map({other.where}, take_descriptor())")
        socket.send_fds(self._socket, [b"f"], [other.mailbox])
        self.get()

    def send(self, code: str) -> None:
        """Have it run a text; the value of its last line, or of `result`, is got by `get`."""
        given = code.encode()
        self._socket.sendall(LENGTH.pack(len(given)) + given)

    def get(self) -> Any:
        """Wait for the value of the text that was sent."""
        (length,) = LENGTH.unpack(exactly(self._socket, LENGTH.size))
        found = pickle.loads(exactly(self._socket, length))
        if isinstance(found, str) and found.startswith("raised "):
            raise AssertionError(found)
        return found

    def do(self, code: str) -> Any:
        """Have it run a text, and wait for its value."""
        self.send(code)
        return self.get()

    def kill(self, how: int = signal.SIGKILL) -> None:
        """End it by a signal."""
        self.process.send_signal(how)

    def close(self) -> None:
        """End it, and close all."""
        self.process.kill()
        self.process.wait()
        self._socket.close()
        with contextlib.suppress(OSError):
            os.close(self.mailbox)
        with contextlib.suppress(OSError):
            os.close(self._page)


class Ranks:
    """The members of a world, with their mailboxes mapped by each other.

    Args:
        gpus: The GPU of each rank.
        count: How many GPUs there are.
    """

    def __init__(self, gpus: Sequence[int], count: int) -> None:
        self.all: Final = [RankProcess(gpu, count, rank, len(gpus), 1) for rank, gpu in enumerate(gpus)]
        for each in self.all:
            for other in self.all:
                if each is not other:
                    each.map(other)
        self.apart: Final = len(set(gpus)) == len(gpus)
        """Whether each has a GPU of its own."""
        self.epoch = 0
        self.join()

    def join(self) -> None:
        """Have all join the next epoch."""
        self.epoch += 1
        generations = [each.where[1] for each in self.all]
        self.each(f"join({self.epoch}, {generations})")

    def each(self, code: str) -> list[Any]:
        """Have all run a text at once; return its values by rank."""
        for process in self.all:
            process.send(code)
        return [process.get() for process in self.all]

    def close(self) -> None:
        """End all."""
        for each in self.all:
            each.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_raised: object) -> None:
        self.close()


def _main() -> None:
    descriptor, page_descriptor, gpu, rank, size, generation = map(int, sys.argv[1:7])
    connection = socket.socket(fileno=descriptor)
    page = memoryview(mmap.mmap(page_descriptor, PAGE_BYTES))

    import cupy
    import numpy as np

    from atomr_mp.protocol.world import MemberWriter
    from atomr_mp.protocol.world.memory import LINE_BYTES
    from atomr_mp_workers.worlds.cuda.collectives import CudaCollectives
    from atomr_mp_workers.worlds.cuda.exchange import CudaExchange
    from atomr_mp_workers.worlds.cuda.meeting import CudaMeeting, CudaRehearsal
    from atomr_mp_workers.worlds.epoch_place import EpochPlace

    cupy.cuda.Device(0).use()
    cupy.cuda.runtime.free(0)
    stream = cupy.cuda.Stream(non_blocking=True)
    exchange = CudaExchange(rank, size, generation, page)
    names: dict[str, Any] = {"rank": rank, "size": size, "gpu": gpu, "exchange": exchange, "cp": cupy, "np": np}
    names |= {"stream": stream, "page": page.cast("Q"), "left": [], "readers": []}
    names["rehearsal"] = CudaCollectives(CudaRehearsal("w", exchange))
    names["collectives"] = names["rehearsal"]
    names["take_descriptor"] = lambda: socket.recv_fds(connection, 1, 1)[1][0]

    def join(epoch: int, generations: Sequence[int]) -> None:
        names["readers"] = [SimpleNamespace(is_open=True, ended=lambda: 0) for _ in range(size)]
        exchange.join(epoch, generations)
        names["writer"] = MemberWriter(memoryview(bytearray(LINE_BYTES)).cast("Q"), epoch)
        place = EpochPlace(
            "w", rank, epoch, names["writer"], names["readers"], (), (), lambda: None, names["left"].append
        )
        names["meeting"] = CudaMeeting(place, exchange, lambda _meeting: None)
        names["collectives"] = CudaCollectives(names["meeting"])
        names["meeting"].begin(1)

    names["join"] = join
    mailbox = exchange.export()
    socket.send_fds(connection, [b"f"], [mailbox])
    os.close(mailbox)
    while True:
        try:
            (length,) = LENGTH.unpack(exactly(connection, LENGTH.size))
            code = exactly(connection, length).decode()
        except AssertionError:
            os._exit(0)
        try:
            names["result"] = None
            with stream:
                try:
                    value = eval(compile(code, "<given>", "eval"), names)
                except SyntaxError:
                    exec(compile(code, "<given>", "exec"), names)
                    value = names["result"]
        except BaseException:  # noqa: BLE001 - it is told
            value = f"raised {traceback.format_exc()}"
        packed = pickle.dumps(value)
        connection.sendall(LENGTH.pack(len(packed)) + packed)


if __name__ == "__main__":
    _main()
