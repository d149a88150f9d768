"""Resident memory: its descriptors are kept here, and never opened. The registry decides which process gets one.

Theory of operation. Resident memory (a model's weights, say) outlives the processes that use it. A process that wants
some during its `setup` says so on the control channel and waits (`ResidentWanted`). The registry
(`supervision.residents`, which is pure) elects the first that asks. That process makes the memory, fills it, seals it
against writing, and sends its descriptor (`ResidentSealed`). Everybody else who has asked, or asks later, gets the
descriptor (`ResidentAdopt`), and maps it for reading. A process that ends before it has sealed the memory, or gives up,
has its part discarded, and who has waited longest is elected.

The memory lives as long as a descriptor or a mapping of it does. This process keeps one descriptor of each sealed
blob and lets go of it (`Drop`) when a later version is sealed and nobody uses it any more, when an operator frees it,
or when the pool stops. So a promotion, a restart or a crash finds the memory as it was: the next process adopts it.

`ended` must be called for each process only when it has been reaped, or as `stuck`: memory that a living process fills
belongs to it.
"""

from __future__ import annotations

import fcntl
import logging
import time
from collections.abc import Sequence
from typing import Final, NamedTuple

from atomr_mp import checks, errors
from atomr_mp.process.files.events import EventLog
from atomr_mp.protocol.codec import ErrorInfo
from atomr_mp.protocol.messages import control, operators, session
from atomr_mp.supervision.reclaim import Worker
from atomr_mp.supervision.residents import Action, Adopt, Drop, FillOrder, Key, Refuse, Registry, ResidentBlob, Shape
from atomr_mp.supervisor.device.device import SupervisedDevice
from atomr_mp.supervisor.sessions.descriptor_limit import check_memory
from atomr_mp.transport.descriptors import Descriptor

_LOG: Final = logging.getLogger("atomr_mp.supervisor")


_Answer = control.ResidentFill | control.ResidentAdopt | control.ResidentRefused


class _Sealed(NamedTuple):
    """The descriptor of a blob, and its expected content."""

    descriptor: Descriptor
    checksum: bytes


@checks.owned(by_maker=True)
class ResidentKeeper:
    """The resident memory of a pool.

    Args:
        backend: The pool's backend; the devices of the host, or of one GPU, share memory.
        max_bytes: Most bytes in all; 0 for no limit.
        devices: The pool's devices, by index.
        events: The event log.
    """

    def __init__(self, backend: str, max_bytes: int, devices: Sequence[SupervisedDevice], events: EventLog) -> None:
        self._on_host: Final = backend == "host"
        self._devices = devices
        self._events = events
        self._registry = Registry(max_bytes)
        self._sealed: dict[Key, _Sealed] = {}

    @property
    def nbytes(self) -> int:
        """Size of all blobs, unfinished ones included."""
        return self._registry.nbytes

    @property
    def descriptors(self) -> list[int]:
        """The descriptors that are kept open here."""
        return [sealed.descriptor.fileno() for sealed in self._sealed.values()]

    def limit(self, max_bytes: int) -> None:
        """Set another limit for further blobs."""
        self._registry.max_bytes = max_bytes

    def heard(self, worker: Worker, message: control.OfResident, descriptor: Descriptor | None) -> None:
        """Receive a process's message.

        Args:
            worker: The worker.
            message: The message.
            descriptor: Came with it; the caller's.

        Raises:
            ProtocolError: The message is out of turn, or the memory is not sealed.
        """
        key = Key(self._gpu_of(worker[0]), message.name, message.version)
        match message:
            case control.ResidentWanted():
                shape = Shape(message.layout, message.arrays, message.nbytes)
                self._carry_out(self._registry.wanted(worker, key, shape))
            case control.ResidentSealed():
                self._on_sealed(worker, key, message.checksum, descriptor)
            case control.ResidentAbandoned():
                self._carry_out(self._registry.abandoned(worker, key))
            case control.ResidentRejected():
                self._note("resident_corrupt", worker, f"resident memory {key.name!r} has another checksum")
                self._carry_out(self._registry.rejected(worker, key))

    def ended(self, worker: Worker, *, stuck: bool = False) -> None:
        """A process has ended, and was reaped; or it is `stuck`, and its end is not waited for."""
        self._carry_out(self._registry.ended(worker, stuck=stuck))

    def answer(self, request: operators.ListResidents | operators.FreeResident) -> session.FromSupervisor:
        """Answer an operator."""
        match request:
            case operators.ListResidents(request_id):
                blobs = [self._info(blob) for blob in self._registry.blobs]
                return operators.Residents(request_id, blobs, self._registry.max_bytes)
            case operators.FreeResident(request_id, name, device, version, force):
                try:
                    gpu = None if device is None else self._gpu_of(device)
                    freed, actions = self._registry.free(name, gpu, version, force=force)
                except errors.InvalidRequest as error:
                    return session.Answer(request_id, ErrorInfo.of(error))
                self._carry_out(actions)
                return operators.Residents(request_id, [self._info(blob) for blob in freed], self._registry.max_bytes)

    def close(self) -> None:
        """Release everything."""
        for sealed in self._sealed.values():
            sealed.descriptor.close()
        self._sealed.clear()

    def _gpu_of(self, device: int) -> int | None:
        """Return whose memory a device's resident memory lies in, see `Key`.

        Raises:
            InvalidRequest: There is no such device.
        """
        devices = self._devices
        if device >= len(devices):
            raise errors.InvalidRequest(f"there is no device {device}; this pool has {len(devices)}")
        return None if self._on_host else devices[device].gpu

    def _on_sealed(self, worker: Worker, key: Key, checksum: bytes, descriptor: Descriptor | None) -> None:
        blob = self._registry.filled_by(worker, key)
        if descriptor is None:
            # The kernel had no room for it. The process goes on with its memory; the next one fills its own.
            _LOG.warning("resident memory %r came without its file descriptor, and is not kept", key.name)
            self._carry_out(self._registry.abandoned(worker, key))
            return
        if self._on_host:
            _check_sealed(key, descriptor.fileno(), blob.shape.nbytes)
        actions = self._registry.sealed(worker, key)
        self._sealed[key] = _Sealed(descriptor.share(), checksum)
        self._note("resident_sealed", worker, f"resident memory {key.name!r} version {key.version!r} is filled")
        self._carry_out(actions)

    def _carry_out(self, actions: Sequence[Action]) -> None:
        for action in actions:
            match action:
                case Drop(key):
                    self._sealed.pop(key).descriptor.close()
                    self._note("resident_freed", None, f"resident memory {key.name!r} version {key.version!r} is freed")
                case FillOrder(worker, key):
                    self._tell(worker, control.ResidentFill(key.name, key.version))
                case Adopt(worker, key):
                    descriptor, checksum = self._sealed[key]
                    self._tell(worker, control.ResidentAdopt(key.name, key.version, checksum), descriptor.share())
                case Refuse(worker, key, error):
                    self._tell(worker, control.ResidentRefused(key.name, key.version, ErrorInfo.of(error)))

    def _tell(self, worker: Worker, message: _Answer, descriptor: Descriptor | None = None) -> None:
        index, generation = worker
        process = self._devices[index].roles.of(generation)
        if process is not None:
            process.tell(message, descriptor)
        elif descriptor is not None:
            descriptor.close()

    def _info(self, blob: ResidentBlob) -> operators.ResidentInfo:
        devices = self._devices
        users = sorted(blob.users if blob.filler is None else {blob.filler, *blob.waiters})
        processes = [(index, generation, devices[index].roles.of(generation)) for index, generation in users]
        return operators.ResidentInfo(
            device=next((each.index for each in devices if each.gpu == blob.key.gpu), None),
            name=blob.key.name,
            version=blob.key.version,
            state=blob.state,
            nbytes=blob.shape.nbytes,
            arrays=blob.shape.arrays,
            users=[
                operators.ResidentUser(index, generation, process.pid if process else None)
                for index, generation, process in processes
            ],
            gpu=blob.key.gpu,
        )

    def _note(self, event: str, worker: Worker | None, text: str) -> None:
        _LOG.info("%s", text)
        who = {} if worker is None else {**self._devices[worker[0]].facts, "generation": worker[1]}
        self._events.append({"time": time.time(), "event": event, "text": text, **who})


def _check_sealed(key: Key, descriptor: int, nbytes: int) -> None:
    """Check that a descriptor is memory of this size, sealed against writing.

    Raises:
        ProtocolError: It is not.
    """
    try:
        check_memory(descriptor, nbytes)
    except errors.InvalidRequest as error:
        raise errors.ProtocolError(f"resident memory {key.name!r}: {error.message}") from error
    if not fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & fcntl.F_SEAL_WRITE:
        raise errors.ProtocolError(f"resident memory {key.name!r}: it is not sealed against writing")
