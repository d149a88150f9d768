"""A remote client's refs: their memory is the pool's, the gateway holds their leases, messages carry their content."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NoReturn

from atomr_mp import errors
from atomr_mp.client.memory.leases import Lease, LeaseKind, Releases
from atomr_mp.client.memory.refs import GpuRef, SharedRef, read_shared, write_shared
from atomr_mp.client.pool_client import PoolClient
from atomr_mp.protocol import token
from atomr_mp.protocol.declaration.factors import Scalar
from atomr_mp.protocol.libraries import memory
from atomr_mp.protocol.libraries.base import LibraryRequest
from atomr_mp.protocol.messages.remote import MAX_REMOTE_IDS, RefLeased, RefsReleased
from atomr_mp.protocol.refs import ClientArray, WireRef

if TYPE_CHECKING:
    import numpy as np

REQUEST_DEADLINE_S: Final = 60.0
"""Deadline of the requests that a ref makes for itself."""

NO_VIEWS: Final = (
    "a remote client cannot map the pool's memory: another machine has it. numpy() copies the elements, and requests "
    "take the ref as it is"
)


class RemoteMemory:
    """The state that a remote client's refs share. Thread-safe.

    Args:
        client: The client.
        give_back: Sends due releases, if possible.
    """

    def __init__(self, client: PoolClient, give_back: Callable[[], None]) -> None:
        self._client: Final = client
        self._give_back: Final = give_back
        self._releases: dict[bytes, Releases] = {}
        """Releases of the incarnations whose leases this gateway holds, by token."""

    # --- for the session, with its lock held -----------------------------------------------------------------------

    def leases(self, leased: Iterable[RefLeased], *, current: bool) -> dict[int, Lease]:
        """Return the leases that came with an answer, by buffer.

        Args:
            leased: The leases.
            current: Whether the living gateway holds them; leases of an earlier gateway are gone.
        """
        found: dict[int, Lease] = {}
        for each in leased:
            lease = found.get(each.buffer)
            if lease is not None:
                if lease.hold is not None:
                    lease.hold.count += 1
                continue
            releases = self._of(each.token) if current else _gone(each.token)
            found[each.buffer] = Lease(releases, each.buffer)
        return found

    def take_released(self) -> list[RefsReleased]:
        """Return released leases to tell the gateway, as many as fit into a message."""
        if not self._releases:
            return []
        refs = []
        for of, releases in list(self._releases.items()):
            buffers: list[int] = []
            while releases.pending and len(buffers) < MAX_REMOTE_IDS // 2:
                kind, number = releases.pending.popleft()
                if kind is LeaseKind.LEASE:
                    buffers.append(number)
            if buffers and not releases.over:
                refs.append(RefsReleased(of, buffers))
        return refs

    def gateway_ended(self) -> None:
        """Take in that the gateway that held the leases has ended."""
        for releases in self._releases.values():
            releases.over = True
        self._releases.clear()

    def incarnation_ended(self, device: int, generation: int) -> None:
        """Take in that a worker has ended, and its memory with it."""
        ended = self._releases.pop(token.pack(self._client.epoch, device, generation), None)
        if ended is not None:
            ended.over = True

    def _of(self, of: bytes) -> Releases:
        found = self._releases.get(of)
        if found is None:
            found = self._releases[of] = Releases(of)
        return found

    # --- for calls -------------------------------------------------------------------------------------------------

    def attach(self, placed: Sequence[object], device: int | None) -> tuple[list[WireRef], list[object], int | None]:
        """Return a call's refs, the objects to keep until it is answered, and its device.

        Raises:
            GpuRefWrongDevice: The refs are of several devices, and none is named.
            PoolMismatch: A ref is of another pool.
            GpuRefReleased: A ref is another client's.
        """
        wires: list[WireRef] = []
        keep: list[object] = []
        to = device
        for each in placed:
            assert isinstance(each, GpuRef)
            wire = each.to_wire()
            if not each.is_of(self):
                if wire.token[:16] != self._client.epoch:
                    raise errors.PoolMismatch(f"{each!r} is of another pool, or of an earlier life of this one")
                raise errors.GpuRefReleased(
                    f"{each!r} is another client's, and this one has no lease of it: share() and claim() it",
                    device=each.device,
                )
            if to is None:
                to = each.device
            elif device is None and to != each.device:
                raise errors.GpuRefWrongDevice(
                    f"the arguments are of devices {to} and {each.device}: name the device that the request is for "
                    "(device=), or copy one (copy_to)",
                    device=each.device,
                )
            wires.append(wire)
            keep.append(each.lease.hold)
        return wires, keep, to

    def resolver(self, leases: Mapping[int, Lease]) -> Callable[[WireRef | ClientArray], object]:
        """Return a function that makes refs from the content of an answer with these leases."""

        def resolve(wire: WireRef | ClientArray) -> object:
            lease = leases.get(wire.buffer) if isinstance(wire, WireRef) else None
            if not isinstance(wire, WireRef) or lease is None or wire.token != lease.releases.token:
                raise errors.ProtocolError("a result with a ref for which there is no lease")
            return GpuRef(self, lease, wire.slab, wire.layout)

        return resolve

    # --- for refs and devices --------------------------------------------------------------------------------------

    def check(self, lease: Lease) -> None:
        """Raise the error of a lease that cannot be used any more."""
        lost, releases = self._client.lost, lease.releases
        if lost is not None:
            raise errors.PoolLost(lost.message)
        if lease.released:
            raise errors.GpuRefReleased(
                f"buffer {lease.buffer:#x} of device {releases.device} was freed", device=releases.device
            )
        current = self._client.devices[releases.device].generation
        if current > releases.generation:
            raise errors.GpuRefStale(
                f"the ref is of generation {releases.generation} of device {releases.device}, which has ended; it is "
                f"now at generation {current}",
                device=releases.device,
                generation=releases.generation,
                current=current,
            )
        if releases.over:
            raise errors.GpuRefStale(
                "the gateway through which this client holds the ref has ended, and its memory was given back",
                device=releases.device,
                generation=releases.generation,
                current=current,
            )

    def state_of(self, lease: Lease) -> str:
        """Return a word that says whether a buffer can be used."""
        try:
            self.check(lease)
        except errors.GpuRefReleased:
            return "released"
        except errors.GpuRefStale:
            return "stale"
        except errors.PoolLost:
            return "pool lost"
        return "current"

    def free(self, lease: Lease) -> None:
        """Give a buffer back, and say so at once if possible."""
        if not lease.released:
            lease.release()
            self._give_back()

    def view(self, _ref: GpuRef, *, write: bool) -> NoReturn:  # noqa: ARG002 - the face of all memories
        """Refuse: another machine's memory cannot be mapped."""
        raise errors.Unsupported(NO_VIEWS)

    def copy(self, ref: GpuRef, out: np.ndarray[Any, Any] | None) -> np.ndarray[Any, Any]:
        """Return a copy of a ref's elements."""
        if out is not None and (out.shape != ref.shape or out.dtype != ref.numpy_dtype):
            raise ValueError(
                f"out is {out.dtype} of shape {out.shape}, the ref {ref.dtype} of shape {ref.shape}; they must be the "
                "same"
            )
        copied: np.ndarray[Any, Any] = self.request(memory.Get(ref), ref.device)
        if out is None:
            return copied
        out[...] = copied
        return out

    def put(self, array: np.ndarray[Any, Any], _dtype: str, device: int) -> GpuRef:
        """Return a new buffer with a copy of an array."""
        ref: GpuRef = self.request(memory.Put(array), device)
        return ref

    def host_array(self, _shape: tuple[int, ...], _dtype: str) -> NoReturn:
        """Refuse: no memory is shared by both machines."""
        raise errors.Unsupported(f"host_array: {NO_VIEWS}")

    def on_gpu(self, device: int) -> bool:
        """Return whether a device's memory is a GPU's."""
        return bool(self.uuid_of(device))

    def uuid_of(self, device: int) -> str:
        """Return the UUID of a device's GPU, "" on the host backend."""
        return self._client.devices[device].uuid

    def fill(self, ref: GpuRef, value: Scalar) -> None:
        """Write a value into all elements."""
        self.request(memory.Fill(ref, value), ref.device)

    def accept(self, ref: GpuRef) -> None:
        """Accept a buffer's content although it may be undefined."""
        self.request(memory.Accept(ref), ref.device)

    def copy_on_device(self, source: GpuRef, target: GpuRef) -> None:
        """Copy elements on the target's device."""
        self.request(memory.Copy(source, target), target.device)

    def share(self, ref: GpuRef, for_s: float) -> bytes:
        """Have a buffer kept for another client, remote or local."""
        claim = os.urandom(16)
        self.request(memory.Share(ref, claim, for_s), ref.device)
        return write_shared(SharedRef(ref.to_wire(), claim))

    def claim(self, shared: bytes) -> GpuRef:
        """Claim a buffer that another client has shared."""
        message, device, generation = read_shared(shared, self._client.epoch)
        if device >= len(self._client.devices):
            raise errors.ProtocolError(
                f"what was shared is of device {device}; this pool has {len(self._client.devices)}"
            )
        current = self._client.devices[device].generation
        if generation != current:
            raise errors.GpuRefStale(
                f"what was shared is of generation {generation} of device {device}, which is now at {current}",
                device=device,
                generation=generation,
                current=current,
            )
        ref: GpuRef = self.request(memory.Claim(message.ref.buffer, message.claim), device)
        return ref

    def request(
        self, request: LibraryRequest, device: int, deadline_s: float = REQUEST_DEADLINE_S, *, library: str = "memory"
    ) -> Any:
        """Make a request of a library, and return its result. Blocks."""
        request.check()
        return self._client.submit(
            f"{library}.{request.name}", request, device=device, deadline_s=deadline_s, blocking=True, wait=True
        ).result()


def _gone(of: bytes) -> Releases:
    releases = Releases(of)
    releases.over = True
    return releases
