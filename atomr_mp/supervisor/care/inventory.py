"""The supervisor's own account of the pool, to compare with the kernel's."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Final

from atomr_mp.process.identity import start_ticks
from atomr_mp.protocol.board import Gauge
from atomr_mp.protocol.messages import operators
from atomr_mp.supervisor.care.helpers import Helpers
from atomr_mp.supervisor.device.device import SupervisedDevice
from atomr_mp.supervisor.processes.incarnation import Incarnation
from atomr_mp.supervisor.processes.process_factory import ProcessFactory
from atomr_mp.supervisor.sessions.residents import ResidentKeeper
from atomr_mp.supervisor.sessions.sessions import Sessions
from atomr_mp.supervisor.worlds.worlds import Worlds

MOST: Final = 8192
"""Most sessions, and most descriptors, in an inventory, since the message has a limit."""


def take_inventory(
    epoch: bytes,
    backend: str,
    devices: Sequence[SupervisedDevice],
    sessions: Sessions,
    factory: ProcessFactory,
    helpers: Helpers,
    residents: ResidentKeeper,
    worlds: Worlds,
    strangers: Iterable[int],
    remote: operators.RemoteStatus | None,
) -> operators.Inventory:
    """Return it, under no id yet."""
    descriptors = [*sessions.descriptors, *residents.descriptors, *worlds.descriptors]
    standby = 0 if remote is None else remote.standby_pid
    held, memfds = sessions.held(), sorted({os.fstat(each).st_ino for each in descriptors})
    return operators.Inventory(
        id=0,
        epoch=epoch,
        backend=backend,
        processes=[
            *(_worker(each, worker) for each in devices for worker in (*each.roles.all, *each.quarantine.stuck)),
            *(
                operators.ProcessHeld("standby relay" if pid == standby else name, pid, start_ticks(pid))
                for pid, name in sorted(helpers.names.items())
            ),
            *(
                operators.ProcessHeld("process from before the pool", pid, start_ticks(pid))
                for pid in sorted(strangers)
            ),
            *(
                operators.ProcessHeld("zygote" if pid == factory.pid else "reserve", pid, start_ticks(pid))
                for pid in sorted(factory.pids - {0})
            ),
        ],
        sessions=held[:MOST],
        memfds=memfds[:MOST],
        complete=max(len(held), len(memfds)) <= MOST,
        remote=remote,
    )


def _worker(device: SupervisedDevice, worker: Incarnation) -> operators.ProcessHeld:
    role = "worker" if worker is device.roles.active else "standby" if worker is device.roles.standby else "predecessor"
    if worker.is_stuck:
        role = "stuck"
    board = worker.live_board.read()
    gauges = Gauge.SLAB_BYTES, Gauge.LEASES, Gauge.SESSIONS
    slab_bytes, leases, sessions = (board.read(gauge) if board else 0 for gauge in gauges)
    running = len(board.running()) if board else 0
    ticks = worker.process.identity.start_ticks
    believed = board is not None
    return operators.ProcessHeld(
        role, worker.pid, ticks, device.index, worker.generation, slab_bytes, leases, running, believed, sessions
    )
