"""Makes the parts of a place in a world that depend on the backend: collectives in the host's memory, or on the GPU."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from atomr_mp import errors
from atomr_mp.protocol.messages import control
from atomr_mp_workers.device.base import WorkerDevice
from atomr_mp_workers.worlds.mailboxes import Mailboxes, NoMailboxes
from atomr_mp_workers.worlds.order.files import WorldFiles

if TYPE_CHECKING:
    from atomr_mp_workers.worlds.exchange.world import OwnWorld

Tell = Callable[[control.WorldMailbox, int], object]
"""Tells the supervisor of a mailbox, with its descriptor, which stays the caller's."""


class Engine(NamedTuple):
    """The parts of a place in a world that depend on the backend."""

    view: OwnWorld
    """The world as its actors see it."""
    make_meeting: Callable[..., Any]
    """Makes the process's side of an epoch's collectives, see `Membership`."""
    mailboxes: Mailboxes
    """The mailboxes on devices."""
    close: Callable[[], object]
    """Gives the device's memory back, once nothing of the world runs here."""


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
    from atomr_mp_workers.worlds.cuda.engine import CudaEngine

    page = files.device_page(offered.rank, offered.generation)
    try:
        engine = CudaEngine(offered.name, offered.rank, offered.size, offered.generation, page, files)
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
    view = OwnWorld(*place, engine.rehearse, engine.collectives)
    return Engine(view, engine.make_meeting, engine, engine.close)
