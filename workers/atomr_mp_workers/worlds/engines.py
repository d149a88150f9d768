"""Makes the parts of a place in a world that depend on the backend: collectives in the host's memory, or on the GPU."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from atomr_mp import errors
from atomr_mp.protocol.messages import control
from atomr_mp_workers.device.base import WorkerDevice
from atomr_mp_workers.worlds.epoch_place import EpochPlace
from atomr_mp_workers.worlds.mailboxes import Mailboxes, NoMailboxes
from atomr_mp_workers.worlds.order.files import WorldFiles

if TYPE_CHECKING:
    from atomr_mp_workers.worlds.exchange.world import OwnWorld

Tell = Callable[..., object]
"""Tells the supervisor of something, and hands it a descriptor, if one is given, which stays the caller's."""


class Engine(NamedTuple):
    """The parts of a place in a world that depend on the backend."""

    view: OwnWorld
    """The world as its actors see it."""
    make_meeting: Callable[[EpochPlace], Any]
    """Makes the process's side of an epoch's collectives."""
    mailboxes: Mailboxes
    """The mailboxes on devices."""
    close: Callable[[], object]
    """Gives the device's memory back, once nothing of the world runs here."""


class _OnGpu(Mailboxes, Protocol):
    """What carries out collectives on a GPU."""

    @property
    def collectives(self) -> Callable[[Any], Any]:
        """Makes the collectives of a meeting."""

    @property
    def make_meeting(self) -> Callable[[EpochPlace], Any]:
        """Makes the process's side of an epoch's collectives."""

    def export(self) -> int:
        """Return a descriptor of the mailbox; it is the caller's."""

    def rehearse(self) -> Any:
        """Return a meeting with itself."""

    def close(self) -> None:
        """Give all memory back."""


def engine_of(
    offered: control.WorldOffered,
    files: WorldFiles,
    device: WorkerDevice,
    tell: Tell,
    make: Callable[..., Any] | None = None,
) -> Engine:
    """Return the parts of a place in a world that is offered to this process.

    Args:
        offered: The world, and the rank of this process.
        files: The world's files.
        device: The device.
        tell: See `Tell`.
        make: Makes what collectives in the host's memory copy, see `Collectives`; None for NumPy's memory.

    Raises:
        AtomrError: There is no memory for it, or a package is missing.
    """
    from atomr_mp_workers.worlds.exchange.meeting import Meeting  # most processes are in no world
    from atomr_mp_workers.worlds.exchange.world import OwnWorld, through_memory

    place = offered.name, offered.rank, offered.size
    if not device.asynchronous:
        return Engine(OwnWorld(*place, collectives=partial(through_memory, make=make)), Meeting, NoMailboxes(), bool)
    try:
        engine = _on_gpu(offered, files, tell)
        descriptor = engine.export()
    except Exception as error:
        explained = device.explain(error)
        if explained is None or explained.ends_worker:
            raise explained or error from error
        raise errors.SetupFailed(f"no place in the world {offered.name!r} can be made: {explained}") from error
    try:
        tell(control.WorldMailbox(offered.world), descriptor)
    finally:
        os.close(descriptor)
    graphs = offered.engine == "mailboxes"
    view = OwnWorld(*place, engine.rehearse, engine.collectives, graphs=graphs)
    return Engine(view, engine.make_meeting, engine, engine.close)


def _on_gpu(offered: control.WorldOffered, files: WorldFiles, tell: Tell) -> _OnGpu:
    """Return the engine that carries out collectives on this process's GPU."""
    place = offered.name, offered.rank, offered.size, offered.generation
    if offered.engine == "nccl":
        from atomr_mp_workers.worlds.nccl import library
        from atomr_mp_workers.worlds.nccl.engine import NcclEngine

        return NcclEngine(*place, files, library.load(), lambda why: tell(control.Unsound(why)), spares=offered.spares)
    from atomr_mp_workers.worlds.cuda.engine import CudaEngine

    return CudaEngine(*place, files.device_page(offered.rank, offered.generation), files)
