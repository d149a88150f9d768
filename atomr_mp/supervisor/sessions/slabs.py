"""Shared memory between clients and workers; only its file descriptors pass through here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from atomr_mp import checks, errors
from atomr_mp.protocol.codec import ErrorInfo
from atomr_mp.protocol.messages import control, session
from atomr_mp.supervision.reclaim import Worker
from atomr_mp.supervisor.sessions.descriptor_limit import check_memory, check_room
from atomr_mp.supervisor.sessions.result_slabs import KeptResultSlabs
from atomr_mp.transport.descriptors import Descriptor

if TYPE_CHECKING:
    from atomr_mp.supervisor.device.device import SupervisedDevice
    from atomr_mp.supervisor.processes.incarnation import Incarnation

MAX_SLABS: Final = 256
"""Most slabs that a session may have registered at a time."""

MAX_ASKS: Final = 256
"""Most unanswered questions for slabs of a session. A worker that is busy in user code answers them later."""

MAX_LOANS: Final = 256
"""Most slabs that a session may have lent at a time."""

Request = session.OpenSlab | session.RegisterSlab | session.ForgetSlab | session.LendSlab | session.ResultsRead


class RegisteredSlab(NamedTuple):
    """Memory of a client."""

    nbytes: int
    descriptor: Descriptor


class Loan(NamedTuple):
    """A device's slab that another device's workers map, each incarnation anew."""

    device: int
    generation: int
    slab: int
    to_device: int


class Lent(NamedTuple):
    """Its descriptor."""

    nbytes: int
    handle: bytes
    descriptor: Descriptor | None


@dataclass
class _Holdings:
    """A session's slabs and questions."""

    slabs: dict[int, RegisteredSlab] = field(default_factory=dict)
    last_slab: int = -1
    loans: dict[Loan, Lent] = field(default_factory=dict)
    asks: set[int] = field(default_factory=set)
    offered: set[tuple[Worker, int]] = field(default_factory=set)
    """Slabs of standbys, and of those that have taken over."""


class _Ask(NamedTuple):
    """A question to a worker on behalf of a client."""

    number: int
    """The session."""
    request: session.OpenSlab | session.LendSlab

    @property
    def worker(self) -> Worker:
        """The incarnation that was asked."""
        return self.request.device, self.request.generation


@checks.owned(by_maker=True)
class Slabs:
    """Carries out clients' requests about slabs.

    Args:
        devices: The pool's devices, by index.
        reply: Answers a session: its number, the message, and a descriptor to go with it, owned by the callee.
        results: The slabs of ended incarnations that can still be opened.
    """

    def __init__(
        self,
        devices: Sequence[SupervisedDevice],
        reply: Callable[[int, session.FromSupervisor, Descriptor | None], None],
        results: KeptResultSlabs,
    ) -> None:
        self._devices = devices
        self._reply = reply
        self._results = results
        self._holdings: dict[int, _Holdings] = {}
        """By session."""
        self._asks: dict[int, _Ask] = {}
        self._last_ask = 0

    def hear(self, number: int, request: Request, descriptor: Descriptor | None = None) -> None:
        """Carry out a session's request, which is answered now or later.

        Args:
            number: The session's number.
            request: The request.
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
                case session.ResultsRead(device, generation):
                    self._results.given_back(number, (device, generation))
                case session.RegisterSlab():
                    self._register(number, held, request, descriptor)
                    self._reply(number, session.Answer(request.id), None)
        except errors.AtomrError as error:
            assert not isinstance(request, session.ForgetSlab | session.ResultsRead)  # these two cannot fail
            self._reply(number, session.Answer(request.id, ErrorInfo.of(error)), None)
        finally:
            if descriptor is not None:
                descriptor.close()

    def introductions(
        self, number: int, device: int
    ) -> Iterator[tuple[control.ClientSlab | control.ForeignSlab, Descriptor | None]]:
        """Yield the messages about a session's slabs for a device's worker; each descriptor is the receiver's."""
        held = self._holdings.get(number)
        if held is None:
            return
        for slab, (nbytes, descriptor) in held.slabs.items():
            yield control.ClientSlab(number, slab, nbytes), descriptor.share()
        for loan, lent in held.loans.items():
            if loan.to_device == device:
                yield _foreign(number, loan, lent)

    def kept(self, number: int) -> Iterator[tuple[session.SlabKept, Descriptor]]:
        """Yield a session's registered slabs, for its next connection; each descriptor is the receiver's."""
        held = self._holdings.get(number)
        for slab, (nbytes, descriptor) in [] if held is None else list(held.slabs.items()):
            yield session.SlabKept(slab, nbytes), descriptor.share()

    def offer(self, number: int, device: int, may_map: Callable[[], object]) -> None:
        """Give a session the slabs that a device's standby has made for its results; each once.

        Args:
            number: The session's number.
            device: The device.
            may_map: Called before the session gets any; raises `Overloaded` if it must not.
        """
        standby = self._device(device).roles.standby
        if standby is None or not standby.is_ready or standby.is_behind or number not in standby.admitted:
            return
        held = self._holdings.setdefault(number, _Holdings())
        worker = device, standby.generation
        for slab, (nbytes, descriptor) in self._results.of(number, worker).items():
            if (worker, slab) not in held.offered:
                may_map()
                held.offered.add((worker, slab))
                standby.tell(control.ResultSlabOpened(number, slab))  # first: the client may close it at once
                self._reply(number, session.SlabOffered(device, standby.generation, slab, nbytes), descriptor.share())

    def exported(self, worker: Worker, message: control.SlabExported, descriptor: Descriptor | None) -> None:
        """Hand on a worker's answer.

        Args:
            worker: The worker.
            message: The answer.
            descriptor: Came with it; owned from here on.
        """
        try:
            ask = self._asks.get(message.id)
            if ask is None or ask.worker != worker:  # the session that asked has ended
                return
            self._close_ask(message.id)
            try:
                self._hand_on(ask, message, descriptor)
            except errors.AtomrError as error:
                self._reply(ask.number, session.Answer(ask.request.id, ErrorInfo.of(error)), None)
        finally:
            if descriptor is not None:
                descriptor.close()

    def incarnation_over(self, device: int, generation: int) -> None:
        """Answer the questions that an incarnation will not answer; tell the other workers that it is over.

        Its loans to others end with it; loans to it go to the next one. Results that it has handed in stay.
        """
        self._results.incarnation_over((device, generation))
        for ask_id, ask in list(self._asks.items()):
            if ask.worker == (device, generation) and ask_id in self._asks:
                self._close_ask(ask_id)
                if isinstance(ask.request, session.OpenSlab) and self._open_kept(ask.number, ask.request):
                    continue
                stale = self._stale(device, generation)
                self._reply(ask.number, session.Answer(ask.request.id, ErrorInfo.of(stale)), None)
        for held in self._holdings.values():
            held.offered = {each for each in held.offered if each[0] != (device, generation)}
            for loan in [loan for loan in held.loans if (loan.device, loan.generation) == (device, generation)]:
                _close(held.loans.pop(loan))
        for other in self._devices:
            if other.index != device:
                for worker in other.roles.all:
                    worker.tell(control.IncarnationOver(device, generation))

    def session_ended(self, number: int) -> None:
        """Release a session's slabs."""
        self._results.session_ended(number)
        held = self._holdings.pop(number, None)
        if held is not None:
            for ask_id in held.asks:
                del self._asks[ask_id]
            for slab in held.slabs.values():
                slab.descriptor.close()
            for lent in held.loans.values():
                _close(lent)

    @property
    def descriptors(self) -> list[int]:
        """The descriptors that are kept open here."""
        held = self._holdings.values()
        mine = [slab.descriptor for each in held for slab in each.slabs.values()]
        lent = [loan.descriptor for each in held for loan in each.loans.values() if loan.descriptor is not None]
        return [descriptor.fileno() for descriptor in (*mine, *lent, *self._results.descriptors)]

    # --- what clients ask ------------------------------------------------------------------------------------------

    def _open(self, number: int, held: _Holdings, request: session.OpenSlab) -> None:
        owner = self._device(request.device).roles.of(request.generation)
        if (owner is None or owner.leaving) and self._open_kept(number, request):
            return
        owner = self._incarnation(request.device, request.generation, number)
        # A worker that has handed the slab in need only be told. It may be busy: asking it would cost the client two
        # more hops just when a worker has taken over. One that is behind is asked, since questions are few.
        if not owner.is_behind and self._results.find(number, (request.device, request.generation), request.slab):
            owner.tell(control.ResultSlabOpened(number, request.slab))  # first: the client may close it at once
            self._open_kept(number, request)
            return
        self._ask(number, held, request, owner, to_device=None)

    def _open_kept(self, number: int, request: session.OpenSlab) -> bool:
        """Answer from the slabs that an incarnation has handed in; False if this slab is not one of them."""
        kept = self._results.find(number, (request.device, request.generation), request.slab)
        if kept is not None:
            self._reply(number, session.SlabOpened(request.id, kept.nbytes), kept.descriptor.share())
        return kept is not None

    def _lend(self, number: int, held: _Holdings, request: session.LendSlab) -> None:
        if request.device == request.to_device:
            raise errors.InvalidRequest(f"device {request.device} cannot be lent its own memory")
        self._device(request.to_device)
        owner = self._incarnation(request.device, request.generation, number)
        self._ask(number, held, request, owner, to_device=request.to_device)

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
        for worker in workers_of(self._devices):
            _check_listens(worker)
        held.last_slab = request.slab
        held.slabs[request.slab] = RegisteredSlab(request.nbytes, descriptor.share())
        for worker in workers_of(self._devices):
            worker.tell(control.ClientSlab(number, request.slab, request.nbytes), descriptor.share())

    def _forget(self, number: int, held: _Holdings, slab: int) -> None:
        forgotten = held.slabs.pop(slab, None)
        if forgotten is not None:
            forgotten.descriptor.close()
            for worker in workers_of(self._devices):
                worker.tell(control.ClientSlabForgotten(number, slab))

    # --- what workers are asked ------------------------------------------------------------------------------------

    def _ask(
        self,
        number: int,
        held: _Holdings,
        request: session.OpenSlab | session.LendSlab,
        owner: Incarnation,
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
        owner.tell(control.ExportSlab(self._last_ask, number, request.slab, to_device))

    def _close_ask(self, ask_id: int) -> None:
        self._holdings[self._asks.pop(ask_id).number].asks.discard(ask_id)

    def _hand_on(self, ask: _Ask, message: control.SlabExported, descriptor: Descriptor | None) -> None:
        """Give a slab that a worker has exported to the client or worker that it is for.

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
                lent = Lent(message.nbytes, message.handle, shared)
                try:
                    self._hand_over(number, request, lent)
                except BaseException:
                    _close(lent)
                    raise
                self._reply(number, session.Answer(request.id), None)

    def _hand_over(self, number: int, request: session.LendSlab, lent: Lent) -> None:
        """Give a slab to the borrower's workers, if there are any, and keep it for later ones; owned from here on.

        Raises:
            Overloaded: The session has lent too many, there is no room for it, or a worker does not listen.
        """
        loans = self._holdings[number].loans
        loan = Loan(request.device, request.generation, request.slab, request.to_device)
        if len(loans) >= MAX_LOANS and loan not in loans:
            raise errors.Overloaded(f"this session has {MAX_LOANS} slabs lent to other devices", device=loan.to_device)
        if lent.descriptor is not None:
            check_room(lent.descriptor.fileno())
        borrowers = workers_of([self._device(loan.to_device)])
        for worker in borrowers:
            _check_listens(worker)
        before = loans.pop(loan, None)
        if before is not None:
            _close(before)
        loans[loan] = lent
        for worker in borrowers:
            worker.tell(*_foreign(number, loan, lent))

    def _incarnation(self, index: int, generation: int, number: int) -> Incarnation:
        """Return an incarnation that has admitted the session; it may be finishing its requests.

        Raises:
            InvalidRequest: There is no such device, or the session was never admitted there.
            GpuRefStale: The incarnation has ended.
        """
        worker = self._device(index).roles.of(generation)
        if worker is None:
            raise self._stale(index, generation)
        if number not in worker.admitted:
            raise errors.InvalidRequest(f"device {index} has not admitted this session")
        return worker

    def _device(self, index: int) -> SupervisedDevice:
        if index >= len(self._devices):
            raise errors.InvalidRequest(f"there is no device {index}; this pool has {len(self._devices)}")
        return self._devices[index]

    def _stale(self, index: int, generation: int) -> errors.GpuRefStale:
        device = self._devices[index]
        current = device.roles.generation if device.roles.active is not None else 0
        now = f"its current one is {current}" if current else "it has none at present"
        return errors.GpuRefStale(
            f"generation {generation} of device {index} has ended, and its memory with it; {now}",
            device=index,
            generation=generation,
            current=current,
        )


def _foreign(number: int, loan: Loan, lent: Lent) -> tuple[control.ForeignSlab, Descriptor | None]:
    """Return the message for the borrower's worker; the descriptor is the receiver's."""
    message = control.ForeignSlab(number, loan.device, loan.generation, loan.slab, lent.nbytes, lent.handle)
    return message, None if lent.descriptor is None else lent.descriptor.share()


def _close(lent: Lent) -> None:
    if lent.descriptor is not None:
        lent.descriptor.close()


def workers_of(devices: Iterable[SupervisedDevice]) -> list[Incarnation]:
    """Return all workers that take calls, may take calls later, or finish their requests."""
    workers = []
    for device in devices:
        former = device.roles.predecessor
        workers += [worker for worker in (device.roles.active, device.roles.standby) if worker is not None]
        if former is not None and former.drained and not former.leaving:
            workers.append(former)
    return workers


def _check_listens(worker: Incarnation) -> None:
    """Refuse to queue descriptors for a worker that is so far behind that the kernel's buffer to it is full.

    So they stay few, whatever clients do while it is busy. And when a client is told that a thing was done, the message
    has reached the worker's end of the channel, which it reads before it takes calls.
    """
    if worker.is_behind:
        raise errors.Overloaded(
            f"device {worker.device}'s worker is busy, and takes no more memory at present", device=worker.device
        )
