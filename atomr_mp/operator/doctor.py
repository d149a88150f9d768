"""Looks at a pool from outside, as often as it takes to tell what lasts from what changes. A shell."""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Final

from atomr_mp import errors
from atomr_mp.operator.pool_status import LOST, WorldStatus, status_of
from atomr_mp.operator.session import ANSWER_S, OperatorSession, patience_s
from atomr_mp.process.census import look
from atomr_mp.process.files.rundir import SESSION_SOCKET, RunDirectory
from atomr_mp.process.gpus.hardware import nvidia_hardware
from atomr_mp.process.scheduling import standstill
from atomr_mp.protocol.messages.devices import OUT_OF_USE, WorldState
from atomr_mp.protocol.messages.operators import Inventory, WorkerStatus
from atomr_mp.protocol.words import counted
from atomr_mp.supervision.audit.findings import LASTS_S, Finding, Inspection, State, Supervision
from atomr_mp.supervision.audit.ledger import compare

AGAIN_S: Final = 0.2
"""Between two looks: no event reports what another process gives up."""

ANSWER_MS: Final = 100
"""How long a worker may take to greet. One that runs a method on its loop takes longer, and that is no finding."""

LONGEST_S: Final = 10.0
"""How long a pool is looked at in which there is always something new that is unaccounted for."""


def examine(run_dir: Path, lasts_s: float = LASTS_S) -> tuple[Supervision, list[Finding]]:
    """Compare what there is of a pool with what its supervisor believes. Blocks, as a rule for some 50 ms.

    Args:
        run_dir: Its run directory.
        lasts_s: How long something has to be unaccounted for until it is told; so long it takes then.

    Raises:
        ConfigurationError: The run directory is not safe, or not ours.
    """
    watch = Inspection(lasts_s)
    gpus = bool(nvidia_hardware())
    begun_s = time.monotonic()
    while True:
        supervision, findings = _once(run_dir.absolute(), gpus=gpus)
        now_s = time.monotonic()
        if supervision is Supervision.SILENT:  # the supervisor has had a long time to answer
            return supervision, findings
        if watch.look(now_s, findings) or now_s - begun_s > LONGEST_S + lasts_s:
            return supervision, watch.findings
        time.sleep(AGAIN_S)


def _once(run_dir: Path, *, gpus: bool) -> tuple[Supervision, list[Finding]]:
    believed, faults, supervision = _ask(run_dir)
    observed = look(run_dir, gpus=gpus)
    if supervision is Supervision.ANSWERS:
        workers = [name for name, found in observed.sockets.items() if found.listeners and name != SESSION_SOCKET]
        observed = observed._replace(turned_away=turned_away(run_dir, workers))
    if supervision is Supervision.ENDED and observed.supervisor:
        supervision = Supervision.KILLED
    return supervision, [*compare(observed, supervision, believed), *faults]


def _ask(run_dir: Path) -> tuple[Inventory | None, list[Finding], Supervision]:
    """Return the supervisor's inventory, what it tells of faults of the runtime, and its own state."""
    try:
        directory = RunDirectory.open(run_dir)
    except errors.PoolUnreachable:
        return None, [], Supervision.ENDED
    try:
        if standstill(directory.supervisor.pid) is not None:
            return None, [], Supervision.SILENT
        with OperatorSession(run_dir / SESSION_SOCKET, patience_s(directory.supervisor)) as observer:
            inventory = observer.inventory(ANSWER_S)
            status = observer.status(ANSWER_S)
            told = [_fault(each) for each in status.workers if _met(each)]
            closed = {each.device.index for each in status.workers if each.device.state in OUT_OF_USE}
            told += [found for each in status_of(status, None, time.time()).worlds for found in _world(each, closed)]
            if status.unwritable:
                told.append(Finding(State.UNWELL, "disk", f"{status.unwritable}: {LOST}", "make room on that disk"))
            if status.reload_failed:
                what = f"the last reload failed: {status.reload_failed}"
                told.append(Finding(State.UNWELL, "reload", what, _RELOAD_REMEDY, since=status.reload_failed_at))
            return inventory, told, Supervision.ANSWERS
    except (TimeoutError, errors.AtomrError):
        # It may have ended just now; or it is so young that it does not listen yet.
        return None, [], Supervision.SILENT if directory.supervisor.alive() else Supervision.ENDED


def _met(worker: WorkerStatus) -> int:
    """Return how many faults of the runtime a device's workers have met."""
    return worker.figures.internal_errors


def _fault(worker: WorkerStatus) -> Finding:
    return Finding(
        State.OK,
        "fault",
        f"{counted(_met(worker), 'request')} of device {worker.device.index} met a fault of the runtime itself",
        f"report what `atomr-mp logs {worker.device.index}` has under `internal error`",
    )


def _world(world: WorldStatus, closed: AbstractSet[int] = frozenset()) -> list[Finding]:
    """Return the finding on a world that is not ready, or whose members wait for one of them.

    Args:
        world: The world.
        closed: Devices that refuse calls.
    """
    if world.state is not WorldState.READY:
        why = "; ".join(filter(None, (world.reason, world.waits)))
        calls = "its calls wait" if closed.isdisjoint(world.devices) else "its calls are refused at once"
        what = f"the world {world.name} is {world.state}, so {calls}{why and f': {why}'}"
        state = State.UNWELL if world.state in _UNWELL else State.OK
        return [Finding(state, "world", what, _REMEDIES.get(world.state, ""))]
    if not world.waits:
        return []
    remedy = "if this lasts, look at what that rank runs: `atomr-mp status`, `atomr-mp logs DEVICE`"
    return [Finding(State.OK, "world", f"in the world {world.name} {world.waits}", remedy)]


_RELOAD_REMEDY: Final = "correct it, or put the files back, and `atomr-mp reload`: the next workers load what is there"

_UNWELL: Final = frozenset({WorldState.WAITING, WorldState.FORMING, WorldState.ABORTING})
"""States of a world without a ready epoch that no planned end explains."""

_REMEDIES: Final = {
    WorldState.WAITING: "treat the device that is named, or reload if its code differs",
    WorldState.FORMING: "wait; a member that does not join in time is replaced",
    WorldState.CLOSING: "wait; it goes on without what runs longer than `drain_timeout_s`",
    WorldState.ABORTING: "wait; a member that does not leave in time is replaced",
}


def turned_away(run_dir: Path, names: Iterable[str]) -> frozenset[str]:
    """Return the workers' sockets at which a connection, without logging in, is ended at once.

    Blocks, as a rule for a millisecond.
    """
    return frozenset(name for name in names if _ends(run_dir / name))


def _ends(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as connected:
        try:
            connected.connect(str(path))
        except OSError:  # nobody listens there, which the look at the sockets tells
            return False
        greeted = select.poll()
        greeted.register(connected, select.POLLIN)
        try:
            return bool(greeted.poll(ANSWER_MS)) and not connected.recv(64)
        except OSError:
            return True
