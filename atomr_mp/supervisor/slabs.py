"""Shared memory between clients and workers, of which only file descriptors pass through here."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from atomr_mp import errors
from atomr_mp.protocol import control, session
from atomr_mp.protocol.codec import ErrorInfo
from atomr_mp.supervisor.room import check_room
from atomr_mp.transport.descriptors import Descriptor

if TYPE_CHECKING:
    from atomr_mp.supervisor.device import Device

MAX_SLABS: Final = 256
"""Slabs that a session may have registered at a time."""

MAX_ASKS: Final = 256
"""Questions for slabs that a session may have unanswered: a worker that is busy in user code answers them later."""

Request = session.OpenSlab | session.RegisterSlab | session.ForgetSlab | session.LendSlab


class ClientSlab(NamedTuple):
    """Memory of a client."""

    nbytes: int
    descriptor: Descriptor


@dataclass
class _Holdings:
    """What a session has here."""

    slabs: dict[int, ClientSlab] = field(default_factory=dict)
    last_slab: int = -1
    asks: set[int] = field(default_factory=set)


class _Ask(NamedTuple):
    """What a worker was asked for on behalf of a client."""

    number: int
    """The session."""
    request: session.OpenSlab | session.LendSlab


class Slabs:
    """Carries out what clients ask about slabs.

    Args:
        devices: Returns the pool's devices, by index.
        reply: Answers a session: its number, the message, and a descriptor to go with it, owned by the callee.
    """

    def __init__(
        self,
        devices: Callable[[], Sequence[Device]],
        reply: Callable[[int, session.FromSupervisor, Descriptor | None], None],
    ) -> None:
        self._devices = devices
        self._reply = reply
        self._holdings: dict[int, _Holdings] = {}
        """By session."""
        self._asks: dict[int, _Ask] = {}
        self._last_ask = 0

    def hear(self, number: int, request: Request, descriptor: Descriptor | None = None) -> None:
        """Do what a session asks; it is answered now or later.

        Args:
            number: The session's number.
            request: What it asks.
            descriptor: Came with it; owned from here on.
        """
        held = self._holdings.setdefault(number, _Holdings())
        try:
            match request:
                case session.OpenSlab():
                    self._open(number, held, request)
                case session.LendSlab():
                    self._lend(number, held, request)
                case session.ForgetSlab(slab):
                    self._forget(number, held, slab)
                case session.RegisterSlab():
                    self._register(number, held, request, descriptor)
                    self._reply(number, session.Answer(request.id), None)
        except errors.AtomrError as error:
            assert not isinstance(request, session.ForgetSlab)  # which fails in no way
            self._reply(number, session.Answer(request.id, ErrorInfo.of(error)), None)
        finally:
            if descriptor is not None:
                descriptor.close()

    def introductions(self, number: int) -> Iterator[tuple[control.ClientSlab, Descriptor]]:
        """Yield what a worker must know of a session's own slabs; each descriptor is the receiver's."""
        held = self._holdings.get(number)
        if held is not None:
            for slab, (nbytes, descriptor) in held.slabs.items():
                yield control.ClientSlab(number, slab, nbytes), descriptor.share()

    def exported(self, device: int, message: control.SlabExported, descriptor: Descriptor | None) -> None:
        """Hand on what a worker answers.

        Args:
            device: Its index.
            message: The answer.
            descriptor: Came with it; owned from here on.
        """
        try:
            ask = self._asks.get(message.id)
            if ask is None or ask.request.device != device:  # the session has ended
                return
            self._settle(message.id)
            try:
                self._hand_on(ask, message, descriptor)
            except errors.AtomrError as error:
                self._reply(ask.number, session.Answer(ask.request.id, ErrorInfo.of(error)), None)
        finally:
            if descriptor is not None:
                descriptor.close()

    def incarnation_over(self, device: int, generation: int) -> None:
        """Answer what an incarnation was asked for and will not answer; tell the other workers that it is over."""
        for ask_id, ask in list(self._asks.items()):
            if ask.request.device == device and ask_id in self._asks:
                self._settle(ask_id)
                stale = self._stale(device, generation)
                self._reply(ask.number, session.Answer(ask.request.id, ErrorInfo.of(stale)), None)
        for other in self._devices():
            if other.index != device:
                other.tell(control.IncarnationOver(device, generation))

    def session_ended(self, number: int) -> None:
        """Let go of what a session has here."""
        held = self._holdings.pop(number, None)
        if held is not None:
            for ask_id in held.asks:
                del self._asks[ask_id]
            for slab in held.slabs.values():
                slab.descriptor.close()

    # --- what clients ask ------------------------------------------------------------------------------------------

    def _open(self, number: int, held: _Holdings, request: session.OpenSlab) -> None:
        self._incarnation(request.device, request.generation, number)
        self._ask(number, held, request, to_device=None)

    def _lend(self, number: int, held: _Holdings, request: session.LendSlab) -> None:
        if request.device == request.to_device:
            raise errors.InvalidRequest(f"device {request.device} cannot be lent its own memory")
        self._incarnation(request.device, request.generation, number)
        self._incarnation(request.to_device, request.to_generation, number)
        self._ask(number, held, request, to_device=request.to_device)

    def _register(
        self, number: int, held: _Holdings, request: session.RegisterSlab, descriptor: Descriptor | None
    ) -> None:
        if descriptor is None:
            raise errors.InvalidRequest(
                "no file descriptor came with this slab: none was sent, or too many are under way or open"
            )
        if request.slab <= held.last_slab:
            raise errors.InvalidRequest(f"slab {request.slab} after {held.last_slab}: their numbers only grow")
        check_memory(descriptor.fileno(), request.nbytes)
        if len(held.slabs) >= MAX_SLABS:
            raise errors.Overloaded(f"this session has {MAX_SLABS} slabs registered; forget some first")
        check_room(descriptor.fileno())
        for device in self._devices():
            _check_listens(device)
        held.last_slab = request.slab
        held.slabs[request.slab] = ClientSlab(request.nbytes, descriptor.share())
        for device in self._devices():
            device.tell(control.ClientSlab(number, request.slab, request.nbytes), descriptor.share())

    def _forget(self, number: int, held: _Holdings, slab: int) -> None:
        forgotten = held.slabs.pop(slab, None)
        if forgotten is not None:
            forgotten.descriptor.close()
            for device in self._devices():
                device.tell(control.ClientSlabForgotten(number, slab))

    # --- what workers are asked ------------------------------------------------------------------------------------

    def _ask(
        self,
        number: int,
        held: _Holdings,
        request: session.OpenSlab | session.LendSlab,
        *,
        to_device: int | None,
    ) -> None:
        if len(held.asks) >= MAX_ASKS:
            raise errors.Overloaded(
                f"{MAX_ASKS} slabs are asked for and not answered yet; wait for some", device=request.device
            )
        self._last_ask = (self._last_ask + 1) % 2**32
        self._asks[self._last_ask] = _Ask(number, request)
        held.asks.add(self._last_ask)
        self._devices()[request.device].tell(control.ExportSlab(self._last_ask, number, request.slab, to_device))

    def _settle(self, ask_id: int) -> None:
        self._holdings[self._asks.pop(ask_id).number].asks.discard(ask_id)

    def _hand_on(self, ask: _Ask, message: control.SlabExported, descriptor: Descriptor | None) -> None:
        """Give what a worker has exported to whoever it is for.

        Raises:
            AtomrError: It cannot be given.
        """
        number, request = ask
        if message.error is not None:
            raise message.error.error()
        if descriptor is None and not message.handle:
            raise errors.Overloaded(
                f"device {request.device} has no file descriptor for slab {request.slab}: too many are under way or "
                "open",
                device=request.device,
            )
        shared = None if descriptor is None or message.handle else descriptor.share()
        match request:
            case session.OpenSlab():
                self._reply(number, session.SlabOpened(request.id, message.nbytes, message.handle), shared)
            case session.LendSlab():
                try:
                    borrower = self._incarnation(request.to_device, request.to_generation, number)
                    _check_listens(borrower)
                    borrower.tell(
                        control.ForeignSlab(
                            number, request.device, request.generation, request.slab, message.nbytes, message.handle
                        ),
                        None if shared is None else shared.share(),
                    )
                finally:
                    if shared is not None:
                        shared.close()
                self._reply(number, session.Answer(request.id), None)

    def _incarnation(self, index: int, generation: int, number: int) -> Device:
        """Return a device whose current incarnation is this one, and has admitted the session.

        Raises:
            InvalidRequest: There is no such device, or the session was never admitted there.
            GpuRefStale: The incarnation has ended.
        """
        devices = self._devices()
        if index >= len(devices):
            raise errors.InvalidRequest(f"there is no device {index}; this pool has {len(devices)}")
        device = devices[index]
        if not device.runs(generation):
            raise self._stale(index, generation)
        if number not in device.admitted:
            raise errors.InvalidRequest(f"device {index} has not admitted this session")
        return device

    def _stale(self, index: int, generation: int) -> errors.GpuRefStale:
        device = self._devices()[index]
        current = device.generation if device.runs(device.generation) else 0
        now = f"its current one is {current}" if current else "it has none at present"
        return errors.GpuRefStale(
            f"generation {generation} of device {index} has ended, and its memory with it; {now}",
            device=index,
            generation=generation,
            current=current,
        )


def check_memory(descriptor: int, nbytes: int) -> None:
    """Check that a descriptor is memory of this size for ever: whoever maps it must not fault when its sender likes.

    Raises:
        InvalidRequest: It is something else.
    """
    try:
        seals = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
    except OSError as error:
        raise errors.InvalidRequest("the slab's file descriptor is no memfd") from error
    if seals & _SIZE_SEALS != _SIZE_SEALS:
        raise errors.InvalidRequest("the slab's memfd is not sealed against shrinking and growing")
    if fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE == os.O_WRONLY:
        raise errors.InvalidRequest("the slab's file descriptor cannot be read")
    size = os.fstat(descriptor).st_size
    if size != nbytes or not nbytes:
        raise errors.InvalidRequest(f"the slab's memfd has {size} bytes, announced were {nbytes}; there must be some")


def _check_listens(device: Device) -> None:
    """Refuse to queue descriptors for a worker that is so far behind that the kernel's buffer to it is full.

    So they stay few, whatever clients do while it is busy; and what a client is told was done has reached the worker's
    end of the channel, which it reads before it takes calls.
    """
    if device.is_behind:
        raise errors.Overloaded(
            f"device {device.index}'s worker is busy, and takes no more memory at present", device=device.index
        )


_SIZE_SEALS: Final = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
