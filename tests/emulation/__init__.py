"""The kernels of collectives, compiled for the host: blocks of threads whose turns are drawn, on ranks of one process.

Values, waits, ends and comparisons are those of the text that GPUs run. What the host cannot show is how late a store
is seen by others.
"""

from __future__ import annotations

import ctypes
import shutil
import struct
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from atomr_mp_workers.worlds.cuda import layout as places
from atomr_mp_workers.worlds.cuda.source import KERNELS, TYPES

COMPILER: Final = shutil.which("g++")

WORKERS: Final = 64
"""Threads of a block that work; half of them put into a ring, and half of them read it."""

HALF_BYTES: Final = 4096
"""A half of a mailbox, so small that few elements flow."""

MOST_TURNS: Final = 20_000_000

REPLACED_NS: Final = 3_000_000
"""How long the kernels of a process wait that was replaced."""

_SMALLER: Final = {
    "#define THREADS 544": f"#define THREADS {WORKERS + places.WATCHERS}",
    "#define PRODUCERS 128": f"#define PRODUCERS {WORKERS // 2}",
    "#define CONSUMERS 384": f"#define CONSUMERS {WORKERS // 2}",
}
_OF_THE_HOST: Final = {
    "__shared__ Shared sh;": "Shared& sh = *(Shared*)emulated::current->home->shared;",
    "struct Shared { volatile u32 ": "struct Shared { emulated::Watched ",
}

BEGIN, PUSH, PULL, FLOW_PULL, MOVE, FLOW_MOVE = range(6)
DTYPES: Final = ("float32", "int32", "int8", "float16", "bfloat16")


def compile_kernels(folder: Path) -> ctypes.CDLL:
    """Return the kernels as a library of the host, made in a folder."""
    text = KERNELS
    for theirs, ours in (_SMALLER | _OF_THE_HOST).items():
        assert theirs in text
        text = text.replace(theirs, ours)
    here = Path(__file__).parent
    source, library = folder / "kernels.cpp", folder / "kernels.so"
    parts = [TYPES, (here / "device.hpp").read_text(), text, (here / "run.hpp").read_text()]
    source.write_text("\n".join(parts))
    assert COMPILER is not None
    options = ["-std=c++17", "-O1", "-w", "-fno-strict-aliasing", "-ffp-contract=off", "-shared", "-fPIC"]
    subprocess.run([COMPILER, *options, "-o", str(library), str(source)], check=True)
    found = ctypes.CDLL(str(library))
    found.run.restype = ctypes.c_longlong
    return found


class Launch(NamedTuple):
    """A kernel's launch on one rank, as `exchange` makes it."""

    kernel: int
    signature: tuple[int, int] = (0, 0)
    type: int = 0
    blocks: int = 1
    x: int = 0
    width: int = 0
    rows: int = 1
    y: int = 0
    elements: int = 0
    op: int = 0
    how: int = places.GIVES | places.WANTS
    from_: int = -1


class Fault(NamedTuple):
    """What happens amid the turns."""

    fault_at: int = 0
    """At this turn the ranks in `dead`, as bits, stop for ever; 0 for never."""
    dead: int = 0
    stop_at: int = 0
    """At this turn the stop words say that the epoch is over; 0 for never."""


NO_FAULT: Final = Fault()


class Ranks:
    """The processes of one world: those of the present epoch by rank, and behind them those that were replaced.

    Args:
        library: The kernels.
        size: How many ranks there are.
        bound_ns: How long a kernel waits; a turn counts as 50 ns.
    """

    CALL: Final = 7

    def __init__(self, library: ctypes.CDLL, size: int, bound_ns: int = 2**62) -> None:
        self.size: Final = size
        self._library: Final = library
        self._bound_ns: Final = bound_ns
        whole = places.layout_of(size)
        self.layout: Final = whole._replace(half=HALF_BYTES)
        self.epoch = 5
        self.generations: Final = [1] * size
        self.mailboxes: Final = [aligned(self.layout.nbytes) for _ in range(size)]
        self.pages: Final = [aligned(8 * places.PAGE_WORDS).view(np.uint64) for _ in range(size)]
        self.tables: Final = [aligned(places.TABLE_BYTES) for _ in range(size)]
        self._join()

    def replace(self, rank: int) -> int:
        """Have another process take a rank, and all join the next epoch; return the place of the one that was there.

        That one counts its collectives anew, so that what it still writes looks like parts of the new epoch.
        """
        for all_of_a_kind in (self.mailboxes, self.pages, self.tables):
            all_of_a_kind.append(all_of_a_kind[rank])
            all_of_a_kind[rank] = aligned(all_of_a_kind[rank].nbytes).view(all_of_a_kind[rank].dtype)
        self.tables[-1][:8] = 0
        self.generations[rank] += 1
        self.epoch += 1
        self._join()
        return len(self.tables) - 1

    def rehearse(self, rank: int) -> None:
        """Have a process compute alone, as before it joins an epoch."""
        bases = [self.mailboxes[rank].ctypes.data] * self.size
        self.tables[rank][:] = np.frombuffer(places.pack_table(0, rank, self._slots, bases, rehearses=True), np.uint8)

    @property
    def _slots(self) -> list[int]:
        return [places.slot_of(rank, generation) for rank, generation in enumerate(self.generations)]

    def _join(self) -> None:
        bases = [each.ctypes.data for each in self.mailboxes[: self.size]]
        for rank in range(self.size):
            self.pages[rank][places.CODE] = self.pages[rank][places.WAITING] = 0
            self.mailboxes[rank][: self.layout.halves] = 0
            packed = places.pack_table(self.epoch, rank, self._slots, bases)
            self.tables[rank][:] = np.frombuffer(packed, np.uint8)

    def run(self, launches: Sequence[tuple[int, Launch]], seed: int, fault: Fault = NO_FAULT, mend: int = 0) -> int:
        """Run launches, each in its process, those of one in order; return how many turns were taken, -1 for no end."""
        places_of = sorted({place for place, _ in launches})
        bounds = [self._bound_ns if place < self.size else REPLACED_NS for place in places_of]
        begins = [
            (place, Launch(BEGIN, x=self.CALL, width=mend, rows=bound))
            for place, bound in zip(places_of, bounds, strict=True)
        ]
        packed = b"".join(self._pack(place, each) for place, each in [*begins, *launches])
        pages = (ctypes.c_void_p * len(self.pages))(*[each.ctypes.data for each in self.pages])
        numbers = (seed + 1, MOST_TURNS, fault.fault_at, fault.dead, fault.stop_at, self.epoch)
        count = len(launches) + len(begins)
        turns: int = self._library.run(packed, count, len(self.pages), *map(ctypes.c_uint64, numbers), pages)
        return turns

    def code(self, rank: int) -> int:
        """Return why a rank's collectives have ended early, 0 if they have not."""
        return int(self.pages[rank][places.CODE])

    def sequence(self, rank: int) -> int:
        """Return how many collectives a rank has counted."""
        return int(self.tables[rank][:8].view(np.uint64)[0])

    def _pack(self, rank: int, each: Launch) -> bytes:
        signature = each.signature[0], each.signature[1] | each.blocks << places.BLOCKS_SHIFT
        threads = 1 if each.kernel == BEGIN else WORKERS + places.WATCHERS
        return struct.pack(
            "=6I4Q8Q5QIIiI",
            *(rank, each.kernel, each.type, each.blocks, threads, 0),
            *(self.tables[rank].ctypes.data, self.pages[rank].ctypes.data, *signature),
            *self.layout,
            *(each.x, each.width, each.rows, each.y, each.elements),
            *(each.op, each.how, each.from_, 0),
        )


def aligned(nbytes: int) -> Any:
    """Return bytes, all zero, as a GPU's memory is aligned."""
    room = np.zeros(nbytes + 256, np.uint8)
    at = -room.ctypes.data % 256
    return room[at : at + nbytes]
