"""One process's side of a world's collectives on GPUs: its mailbox, those of others, the table, and launches.

Kernels find where to send to in the *table*, in the device's memory: a captured graph refers to the table, and is bound
to no epoch. Until an epoch is joined the table says that nobody else is there: this rank's data stands for that of all.
"""

from __future__ import annotations

import contextlib
import ctypes
import struct
from collections.abc import Callable, Sequence
from typing import Any, Final

import cupy
import numpy as np
from cupy.cuda import runtime

from atomr_mp import errors
from atomr_mp.protocol.dtypes import ITEM_BYTES
from atomr_mp_workers.worlds.cuda import layout as places
from atomr_mp_workers.worlds.cuda.kernels import kernels
from atomr_mp_workers.worlds.cuda.launch import BEGIN, MOVE, PULL, PUSH, SCALE, Launch
from atomr_mp_workers.worlds.cuda.layout import WATCHERS, WORKERS, layout_of, slot_of
from atomr_mp_workers.worlds.cuda.mailbox import Mailbox

Where = tuple[int, int]
"""A rank, and a generation."""

HOST_REGISTER_MAPPED: Final = 2
"""`cudaHostRegisterMapped`, for which CuPy has no name."""


class CudaExchange:
    """One process's side of one world.

    Args:
        rank: The rank of this process.
        size: How many ranks there are.
        generation: This process.
        page: A page of the process's memory of the world; see `layout`. It is pinned from here on.

    Raises:
        CUDADriverError: There is no memory.
        CUDARuntimeError: There is no memory, or the page cannot be pinned.
    """

    def __init__(self, rank: int, size: int, generation: int, page: memoryview) -> None:
        self.rank: Final = rank
        self.size: Final = size
        self.page: Final = page.cast("Q") if page.format != "Q" else page
        self._kernels: Final = kernels()
        self._layout: Final = layout_of(size)
        self._mailbox: Final = Mailbox.make(self._layout.nbytes)
        self._mailboxes: Final[dict[Where, Mailbox]] = {}
        """Those of other processes."""
        self._members: dict[int, int] = {}
        """The generations by rank of the epoch that was joined last."""
        self._blocks: Final = places.most_blocks(int(cupy.cuda.Device(0).attributes["MultiProcessorCount"]))
        self._stream: Final = cupy.cuda.Stream(non_blocking=True)
        self._table: Final[int] = runtime.malloc(places.TABLE_BYTES)
        host = ctypes.addressof(ctypes.c_char.from_buffer(page))
        runtime.hostRegister(host, page.nbytes, HOST_REGISTER_MAPPED)
        self._pinned: int | None = host
        shared = struct.pack("=4Q8Q", self._table, host, 0, 0, *self._layout)
        self._begin: Final = Launch(b"", BEGIN)
        self._scale: Final = Launch(b"", SCALE)
        self._push: Final = Launch(shared, PUSH)
        self._pull: Final = Launch(shared, PULL)
        self._move: Final = Launch(shared, MOVE)
        self._last: Any = None
        """The stream that the latest collective is on, unless it was captured."""
        self._pointer = -1
        """CUDA's name of that stream."""
        self._set_table(0, [generation] * size, rehearses=True)

    # --- members ----------------------------------------------------------------------------------------------------

    def export(self) -> int:
        """Return a descriptor of the mailbox; it is the caller's."""
        return self._mailbox.export()

    def map(self, where: Where, descriptor: int) -> None:
        """Map the mailbox of another process; the descriptor is owned from here on.

        Raises:
            CUDADriverError: This GPU cannot reach it.
        """
        self._mailboxes[where] = Mailbox.open(self._layout.nbytes, descriptor)

    def forget(self, rank: int, generation: int) -> None:
        """Give back the mailbox of a process that is no member of the present epoch."""
        if self._members.get(rank) != generation:
            mailbox = self._mailboxes.pop((rank, generation), None)
            if mailbox is not None:
                mailbox.close()

    def join(self, epoch: int, generations: Sequence[int]) -> None:
        """Set the table for an epoch, whose members have these generations by rank. Nothing is captured again.

        Raises:
            ProtocolError: A mailbox has not come.
        """
        for word in (places.CODE, places.WAITING):
            self.page[word] = 0
        runtime.memsetAsync(self._mailbox.address, 0, self._layout.halves, self._stream.ptr)
        self._set_table(epoch, generations)
        former, self._members = self._members, dict(enumerate(generations))
        for rank, generation in former.items():
            if rank != self.rank:
                self.forget(rank, generation)

    def _set_table(self, epoch: int, generations: Sequence[int], *, rehearses: bool = False) -> None:
        bases, own = [], self._mailbox.address
        for rank, generation in enumerate(generations):
            if rehearses or rank == self.rank:
                bases.append(own)
                continue
            mailbox = self._mailboxes.get((rank, generation))
            if mailbox is None:
                raise errors.ProtocolError(f"the mailbox of rank {rank}, generation {generation}, has not come")
            bases.append(mailbox.address)
        slots = [slot_of(rank, generation) for rank, generation in enumerate(generations)]
        table = places.pack_table(epoch, self.rank, slots, bases, rehearses=rehearses)
        given = np.frombuffer(table, np.uint8)
        runtime.memcpyAsync(self._table, given.ctypes.data, len(table), runtime.memcpyHostToDevice, self._stream.ptr)
        self._stream.synchronize()

    def close(self) -> None:
        """Give all memory back: no kernel of this world runs, or will. Once is enough."""
        pinned, self._pinned = self._pinned, None
        if pinned is None:
            return
        with contextlib.suppress(runtime.CUDARuntimeError):  # the context is lost, and this process about to end
            runtime.hostUnregister(pinned)
            runtime.free(self._table)
        self.page.release()
        for mailbox in (self._mailbox, *self._mailboxes.values()):
            mailbox.close()
        self._mailboxes.clear()

    # --- launches ---------------------------------------------------------------------------------------------------

    def begin(self, call: int, mend: int, bound_ns: int) -> None:
        """Have collectives on the current stream belong to a gang call.

        Args:
            call: Its number.
            mend: The number of the collective in which the ranks have differed, 0 for none: they go on behind it.
            bound_ns: How long a kernel waits for other ranks at most.
        """
        stream = cupy.cuda.get_current_stream()
        self._order(stream, stream.ptr)
        self._begin(self._kernels.begin, 1, 1, stream.ptr, None, self._table, call, mend, bound_ns)

    def reduction(
        self, signature: tuple[int, int], types: tuple[str, str], count: int, operator: int, how: int
    ) -> Callable[[Any, int, int], None]:
        """Return a function that puts a reduction of elements on a stream, from an address and to one.

        Args:
            signature: What all ranks call.
            types: The type in the mailbox and that of the result.
            count: How many elements there are.
            operator: The kernels' number of the operator.
            how: Whether this rank wants the result.
        """
        nbytes = count * ITEM_BYTES[types[0]]
        if nbytes > places.SMALL_BYTES or types[0] == "complex128":

            def pull(stream: Any, x: int, y: int) -> None:
                self.pull(stream, signature, types, (x, nbytes, 1), y, operator, how)

            return pull
        lines = -(-nbytes // 8)
        workers = min(WORKERS, max(64, -(-lines // 32) * 32))
        blocks = max(1, min(self._blocks, -(-lines // workers)))
        signature = _with_blocks(signature, blocks)
        function, wants = self._kernels.push[types], bool(how & places.WANTS)

        def push(stream: Any, x: int, y: int) -> None:
            pointer = stream.ptr
            self._order(stream, pointer)
            self._push(function, blocks, workers + WATCHERS, pointer, signature, x, y, count, operator, wants)

        return push

    def pull(
        self,
        stream: Any,
        signature: tuple[int, int],
        types: tuple[str, str],
        rows: tuple[int, int, int],
        y: int,
        operator: int,
        how: int,
    ) -> None:
        """Reduce elements: every rank puts its own into its mailbox, and reads those of all.

        Args:
            stream: The stream.
            signature: What all ranks call.
            types: The type in the mailbox and that of the result.
            rows: The address of the elements, the bytes of a row, and how many rows there are: 1, or one a rank.
            y: Where the result goes.
            operator: The kernels' number of the operator.
            how: What this rank does.
        """
        pointer = stream.ptr
        self._order(stream, pointer)
        flows, blocks = places.way_of(rows[1], rows[2], self._blocks)
        function, signature = self._kernels.pull[types][flows], _with_blocks(signature, blocks)
        self._pull(function, blocks, WORKERS + WATCHERS, pointer, signature, *rows, y, operator, how)

    def move(
        self, stream: Any, signature: tuple[int, int], rows: tuple[int, int, int], y: int, from_: int, how: int
    ) -> None:
        """Move bytes: every rank puts its own into its mailbox, and reads those of one rank, or of all if it is -1."""
        pointer = stream.ptr
        self._order(stream, pointer)
        flows, blocks = places.way_of(rows[1], rows[2], self._blocks)
        function, signature = self._kernels.move[flows], _with_blocks(signature, blocks)
        self._move(function, blocks, WORKERS + WATCHERS, pointer, signature, *rows, y, from_, how)

    def scale(self, stream: Any, types: tuple[str, str], x: int, y: int, count: int, factor: complex) -> None:
        """Multiply elements by a factor, into the type in which they are computed."""
        number = complex(factor)
        whole = int(factor) if isinstance(factor, int) else 0
        whole = (whole + 2**63) % 2**64 - 2**63
        blocks = max(1, min(1024, -(-count // 256)))
        self._scale(
            self._kernels.scale[types], blocks, 256, stream.ptr, None, x, y, count, number.real, number.imag, whole
        )

    def synchronize(self) -> None:
        """Wait for the collectives so far."""
        if self._last is not None:
            self._last.synchronize()

    def _order(self, stream: Any, pointer: int) -> None:
        """Have a stream wait for the collective before, if that is on another one; a capture orders its own."""
        if pointer == self._pointer or stream.is_capturing():
            return
        if self._last is not None:
            stream.wait_event(self._last.record())
        self._last, self._pointer = stream, pointer


def _with_blocks(signature: tuple[int, int], blocks: int) -> tuple[int, int]:
    """Return a signature with the number of blocks, which meet those of the same number on other ranks."""
    return signature[0], signature[1] | blocks << places.BLOCKS_SHIFT
