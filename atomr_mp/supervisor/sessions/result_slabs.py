"""Slabs with results by value, kept open so that an answer stands when its worker has ended.

A worker hands in each such slab before the first answer that needs it (`control.ResultSlab`), and its sessions get them
from here. While it lives it is told who has them open, which it counts (`control.ResultSlabOpened`). Once it has ended,
they stay until its sessions give them back, end, or have not asked for `KEEP_S`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from atomr_mp import checks, errors
from atomr_mp.protocol.messages import control
from atomr_mp.supervision.reclaim import Worker
from atomr_mp.supervisor.loop import Loop, Timer
from atomr_mp.supervisor.sessions.descriptor_limit import check_memory, check_room
from atomr_mp.transport.descriptors import Descriptor

KEEP_S: Final = 30.0
"""How long slabs of an ended incarnation stay for a session that asks for none."""

MAX_RESULT_SLABS: Final = 256
"""Most slabs of one incarnation that are kept for a session."""


class KeptSlab(NamedTuple):
    """A slab and its descriptor."""

    nbytes: int
    descriptor: Descriptor


@checks.owned(by_maker=True)
class KeptResultSlabs:
    """All kept slabs.

    Args:
        loop: The supervisor's loop.
        quota_bytes: Returns the most bytes that slabs of ended incarnations of a device may take together.
    """

    def __init__(self, loop: Loop, quota_bytes: Callable[[int], int]) -> None:
        self.unkept = 0
        """Number of slabs that could not be kept, or not any longer, for lack of room."""
        self._loop = loop
        self._quota_bytes = quota_bytes
        self._kept: dict[tuple[int, Worker], dict[int, KeptSlab]] = {}
        """Slabs by session and incarnation, then by number."""
        self._timers: dict[tuple[int, Worker], Timer] = {}
        """Slabs of ended incarnations; the session that has not asked for longest comes first."""

    @property
    def descriptors(self) -> list[Descriptor]:
        """The descriptors that are kept open."""
        return [slab.descriptor for slabs in self._kept.values() for slab in slabs.values()]

    def hand_in(self, worker: Worker, message: control.ResultSlab, descriptor: Descriptor | None) -> None:
        """Keep a slab of a living session. Without room for it, the slab ends with its worker.

        Args:
            worker: The worker that has it.
            message: The worker's message about it.
            descriptor: Came with it; stays the caller's. None if either side had no room for it.
        """
        slabs = self._kept.setdefault((message.number, worker), {})
        try:
            if descriptor is None or len(slabs) >= MAX_RESULT_SLABS:
                raise errors.Overloaded("no room for a result's slab")
            check_memory(descriptor.fileno(), message.nbytes)
            check_room(descriptor.fileno())
        except errors.AtomrError:
            self.unkept += 1
            if not slabs:
                del self._kept[message.number, worker]
            return
        before = slabs.pop(message.slab, None)
        if before is not None:
            before.descriptor.close()
        slabs[message.slab] = KeptSlab(message.nbytes, descriptor.share())

    def freed(self, worker: Worker, message: control.ResultSlabFreed) -> None:
        """Release a slab that its worker has freed."""
        slabs = self._kept.get((message.number, worker), {})
        slab = slabs.pop(message.slab, None)
        if slab is not None:
            slab.descriptor.close()
            if not slabs:
                self._forget(message.number, worker)

    def find(self, number: int, worker: Worker, slab: int) -> KeptSlab | None:
        """Return a session's slab, which stays the callee's; its time starts again if the incarnation has ended."""
        found = self._kept.get((number, worker), {}).get(slab)
        if found is not None and (number, worker) in self._timers:
            self._keep_on(number, worker)
        return found

    def of(self, number: int, worker: Worker) -> Mapping[int, KeptSlab]:
        """Return a session's slabs of an incarnation, by number; they stay the callee's."""
        return self._kept.get((number, worker), {})

    def incarnation_over(self, worker: Worker) -> None:
        """Let the time run in which sessions can still ask for an incarnation's slabs."""
        for number, ended in [key for key in self._kept if key[1] == worker]:
            self._keep_on(number, ended)
        device, _ = worker
        while self._ended_bytes(device) > self._quota_bytes(device):
            oldest = next(key for key in self._timers if key[1][0] == device)
            self.unkept += len(self._kept[oldest])
            self._forget(*oldest)

    def given_back(self, number: int, worker: Worker) -> None:
        """Release a session's slabs of an incarnation."""
        self._forget(number, worker)

    def session_ended(self, number: int) -> None:
        """Release all slabs of a session."""
        for _, worker in [key for key in self._kept if key[0] == number]:
            self._forget(number, worker)

    def _keep_on(self, number: int, worker: Worker) -> None:
        """Start the time of a session's slabs again."""
        timer = self._timers.pop((number, worker), None)
        if timer is not None:
            timer.cancel()
        self._timers[number, worker] = self._loop.call_later(KEEP_S, lambda: self._forget(number, worker))

    def _forget(self, number: int, worker: Worker) -> None:
        for slab in self._kept.pop((number, worker), {}).values():
            slab.descriptor.close()
        timer = self._timers.pop((number, worker), None)
        if timer is not None:
            timer.cancel()

    def _ended_bytes(self, device: int) -> int:
        """Return the bytes that the slabs of a device's ended incarnations take."""
        ended = [key for key in self._timers if key[1][0] == device]
        return sum(slab.nbytes for key in ended for slab in self._kept[key].values())
