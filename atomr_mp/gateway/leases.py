"""The leases that a remote session holds, through its local client."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from atomr_mp import checks, errors
from atomr_mp.client.memory.leases import Lease, Releases
from atomr_mp.protocol.messages import remote
from atomr_mp.protocol.refs import WireRef
from atomr_mp.protocol.token import unpack

if TYPE_CHECKING:
    from atomr_mp.client.memory.memory import ClientMemory
    from atomr_mp.client.memory.refs import GpuRef


class HeldRefs:
    """A buffer's leases that a remote session holds."""

    __slots__ = ("count", "leases")

    def __init__(self) -> None:
        self.count = 0
        """How many leases the client counts."""
        self.leases: list[Lease] = []


class LeaseHold(NamedTuple):
    """Keeps a lease for a call."""

    lease: Lease
    hold: object


@checks.owned(by_maker=True)
class HeldLeases:
    """A session's leases by buffer."""

    def __init__(self) -> None:
        self._held: Final[dict[tuple[bytes, int], HeldRefs]] = {}
        self.serial = 0
        """Serial of the last message that gave leases back."""

    def __len__(self) -> int:
        return sum(held.count for held in self._held.values())

    def take(self, leases: Mapping[int, Lease]) -> None:
        """Hold the leases that came with an answer."""
        for buffer, lease in leases.items():
            held = self._held.setdefault((lease.releases.token, buffer), HeldRefs())
            held.count += 1 if lease.hold is None else lease.hold.count
            held.leases.append(lease)

    def hold(self, ref: WireRef) -> LeaseHold:
        """Keep a lease for a call.

        Raises:
            GpuRefReleased: The session has no lease of the buffer.
        """
        held = self._held.get((ref.token, ref.buffer))
        if held is None or not held.leases:
            raise errors.GpuRefReleased(
                f"this session has no lease of buffer {ref.buffer:#x}: it was freed, or is another client's",
                device=device_of(ref),
            )
        lease = held.leases[0]
        return LeaseHold(lease, lease.hold)

    def is_next(self, serial: int) -> bool:
        """Return whether a message that gives leases back is new, and take its serial in; a repeated one is not.

        Raises:
            ProtocolError: A serial was left out.
        """
        if serial <= self.serial:
            return False
        if serial != self.serial + 1:
            raise errors.ProtocolError(f"release {serial} after {self.serial}")
        self.serial = serial
        return True

    def give_back(self, leased: Iterable[tuple[bytes, int]]) -> list[Releases]:
        """Give leases back; return the `Releases` of the local client that they go through.

        Args:
            leased: The token and the buffer of each.
        """
        freed = {}
        for key in leased:
            held = self._held.get(key)
            if held is None:
                continue
            held.count -= 1
            if held.count <= 0:
                releases = held.leases[0].releases
                freed[releases.token] = releases
                del self._held[key]
        return list(freed.values())

    def incarnation_ended(self, device: int, generation: int) -> None:
        """Forget the leases of an incarnation that has ended with its memory."""
        for key in [key for key in self._held if unpack(key[0])[1:] == (device, generation)]:
            del self._held[key]

    def clear(self) -> None:
        """Forget all leases."""
        self._held.clear()


def told(leases: Mapping[int, Lease]) -> list[remote.RefLeased]:
    """Return an answer's leases as a client is told of them."""
    leased: list[remote.RefLeased] = []
    for buffer, lease in leases.items():
        count = 1 if lease.hold is None else lease.hold.count
        leased += [remote.RefLeased(lease.releases.token, buffer)] * count
    return leased


def device_of(ref: WireRef) -> int:
    """Return the device that a ref belongs to."""
    return unpack(ref.token)[1]


def foreign(
    memory: ClientMemory, refs: list[WireRef], kept: list[LeaseHold], device: int | None
) -> tuple[list[object], Sequence[GpuRef]]:
    """Return the objects that a call keeps for its refs, and those of the refs that are of other devices."""
    from atomr_mp.client.memory.refs import GpuRef

    found: list[GpuRef] = [
        GpuRef(memory, hold.lease, wire.slab, wire.layout) for wire, hold in zip(refs, kept, strict=True)
    ]
    keep, _, _, _, others = memory.attach(found, device)
    return keep, others
