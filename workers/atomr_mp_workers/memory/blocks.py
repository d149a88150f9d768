"""The parts of a device's memory: slabs, and what a session holds in them. Bookkeeping, no decisions.

`slabs.Slabs` and `store.Store` decide.
"""

from __future__ import annotations

from collections import Counter, deque
from typing import Any, Final

from atomr_mp.protocol.allocation import Space
from atomr_mp.protocol.messages.data import MAX_RELEASED
from atomr_mp.protocol.refs import SlabNumber
from atomr_mp_workers.device.base import Slab, SlabMemory, WorkerDevice
from atomr_mp_workers.memory.arrays import Block, DeviceArray

OURS: Final = -1
"""Stands for a session's number: this process itself."""

SEVERAL: Final = -2
"""Stands for a session's number: several sessions, whose requests run together."""


class OwnSlab:
    """A slab of this process and who uses it."""

    def __init__(self, number: int, memory: Slab, device: WorkerDevice, holder: Holder) -> None:
        self.number: Final = number
        self.device: Final = device
        """The owner of the memory: this process's device, or its host."""
        self.memory: Final = memory
        self.space: Final = Space(memory.nbytes)
        self.holder: Final = holder
        self.opened: Counter[tuple[int, int | None]] = Counter()
        """How often it is open elsewhere, by (session, device or None for the client itself)."""
        self.handed_in = False
        """Whether the supervisor has a descriptor of it too, so that results in it outlive this process."""


class Holder:
    """One session's holdings; this process itself is one too.

    Args:
        number: The session's number; `OURS` for this process.
    """

    def __init__(self, number: int) -> None:
        self.number: Final = number
        self.leases: dict[int, tuple[Block, int]] = {}
        """Buffers, and the number of leases of each."""
        self.views: dict[int, Block] = {}
        """Borrows that the client took, by its ids."""
        self.passing_reads: set[int] = set()
        """Ids of the client's reads for which writers wait, see `passing_reads`."""
        self.pid = 0
        """The client's process; 0 for none."""
        self.slabs: list[OwnSlab] = []
        self.client_slabs: dict[SlabNumber, SlabMemory] = {}
        self.foreign_slabs: dict[tuple[int, int, SlabNumber], SlabMemory] = {}
        self.unmapped: dict[SlabNumber | tuple[int, int, SlabNumber], str] = {}
        """Those that could not be mapped, and why."""
        self.resolved: list[DeviceArray] = []
        """Refs among the arguments that are being decoded."""
        self.opened_bytes = 0
        """Bytes of arrays that were opened, of refs and of the client's memory."""
        self.programs: dict[int, tuple[bytes, bytes]] = {}
        """Programs that this session has sent, by place: the digest, and the definition."""
        self.no_kernels = ""
        """Why this session may not use kernels of its own; empty if it may."""
        self.group = ""
        """Its session's group, as that of a remote client's key; empty for none."""
        self.is_relayed = False
        """Whether its client is on another machine."""
        self.harmless: set[bytes] = set()
        """Digests of programs that were found to launch no kernels, if it may not."""
        self.returned: deque[int] = deque()
        """Uses of client slabs that have ended, to be reported to the client."""
        self.pool: Any = None
        """The device's pool for arrays that user code makes."""
        self.gone = False

    def take_returned(self) -> list[int]:
        """Return the uses of client slabs that have ended since the last call, as many as fit into a message."""
        returned = self.returned
        return [returned.popleft() for _ in range(min(len(returned), MAX_RELEASED))]


class Extent:
    """The taken part of a slab: given back when the last array over it has gone, on any thread."""

    __slots__ = ("_given_back", "_offset", "_slab")

    def __init__(self, given_back: deque[tuple[OwnSlab, int]], slab: OwnSlab, offset: int) -> None:
        self._given_back = given_back
        self._slab = slab
        self._offset = offset

    def __del__(self) -> None:
        self._given_back.append((self._slab, self._offset))


class Use:
    """A use of a client's memory: the client hears of it when the last array over it has gone."""

    __slots__ = ("_id", "_returned")

    def __init__(self, returned: deque[int], use: int) -> None:
        self._returned = returned
        self._id = use

    def __del__(self) -> None:
        self._returned.append(self._id)
