"""The page's figures of a pool, from two samples of its status. Pure."""

from __future__ import annotations

import time
from typing import Any, Final, NamedTuple

from atomr_mp.operator.figures import quantile
from atomr_mp.operator.pool_status import WorldStatus, status_of
from atomr_mp.protocol.messages.operators import Figures, Status, WorkerStatus

MOST_METHODS: Final = 16
"""Most batched methods shown of a device, the busiest first."""

MOST_REFUSED: Final = 50
"""Most refused requests shown, the latest."""

MOST_WORLDS: Final = 64
"""Most worlds shown."""

MOST_TEXT: Final = 400


class StatusSample(NamedTuple):
    """A status, and when it was asked for."""

    at_s: float
    status: Status


def snapshot(before: StatusSample | None, after: StatusSample) -> dict[str, Any]:
    """Return the figures, as JSON values only.

    Args:
        before: An earlier sample, for rates and latencies; None for figures since the pool's start.
        after: The latest.
    """
    status = after.status
    earlier = {} if before is None else {worker.device.index: worker for worker in before.status.workers}
    seconds = (after.at_s - before.at_s) if before is not None else time.time() - status.supervisor_started_at
    return {
        "pool": status.pool,
        "backend": status.backend,
        "version": status.version,
        "up_s": max(0.0, time.time() - status.supervisor_started_at),
        "stopping": status.stopping,
        "clients": status.sessions,
        "supervisor_bytes": status.supervisor_memory_bytes,
        "resident_bytes": status.resident_bytes,
        "refused": [
            {
                "method": each.request.method,
                "fingerprint": each.request.fingerprint.hex(),
                "since": each.since,
                "ends": each.ends,
            }
            for each in status.quarantined[-MOST_REFUSED:]
        ],
        "refused_in_all": len(status.quarantined),
        "worlds": [_world(each) for each in status_of(status, None, time.time()).worlds[:MOST_WORLDS]],
        "devices": [_device(earlier.get(worker.device.index), worker, seconds) for worker in status.workers],
    }


def _world(world: WorldStatus) -> dict[str, Any]:
    return {
        "name": world.name,
        "devices": world.devices,
        "state": world.state.value,
        "epoch": world.epoch,
        "calls": world.published,
        "note": "; ".join(filter(None, (world.reason, world.waits)))[:MOST_TEXT],
        "members": [each.doing[:MOST_TEXT] for each in world.members],
    }


def _device(before: WorkerStatus | None, after: WorkerStatus, seconds: float) -> dict[str, Any]:
    info, new = after.device, after.figures
    old = before.figures if before is not None else None
    seconds = max(seconds, 1e-3)
    answered = new.answered + new.failed - (old.answered + old.failed if old else 0)
    failed = _failures(new) - (_failures(old) if old else 0)
    counts = [late - early for late, early in zip(new.latencies, old.latencies, strict=True)] if old else new.latencies
    return {
        "index": info.index,
        "name": info.name,
        "uuid": info.uuid,
        "place": info.place,
        "state": info.state.value,
        "still": bool(after.standstill),
        "circuit": info.circuit.value,
        "reason": after.reason[:MOST_TEXT],
        "generation": info.generation,
        "pid": info.worker_pid,
        "ends": info.restarts,
        "rate": answered / seconds,
        "errors": failed / seconds,
        "p50_ms": _ms(quantile(counts, 0.5)),
        "p99_ms": _ms(quantile(counts, 0.99)),
        "running": after.running,
        "running_s": after.running_for_s if after.running else 0.0,
        "queue": after.queue_depth,
        "memory_bytes": after.memory_bytes if info.worker_pid else 0,
        "slab_bytes": after.slab_bytes,
        "batches": _batches(before, after, seconds),
        "standby": _standby(after),
        "fault": after.last_fault[:MOST_TEXT],
        "fault_at": after.last_fault_at,
    }


def _failures(figures: Figures) -> int:
    return figures.failed + figures.expired + figures.rejected + figures.lost


def _standby(worker: WorkerStatus) -> dict[str, Any] | None:
    found = worker.standby
    if found is None or found.mode == "none":
        return None
    return {
        "mode": found.mode,
        "state": found.state,
        "generation": found.generation,
        "costs_ms": found.next_fault_costs_ms,
        "note": found.note[:MOST_TEXT],
    }


def _batches(before: WorkerStatus | None, after: WorkerStatus, seconds: float) -> list[dict[str, Any]]:
    """Return the work of batched methods between two samples, or since the start of a new incarnation."""
    same = before is not None and before.device.generation == after.device.generation
    old = {each.method: each for each in before.batches} if before is not None and same else {}
    found: list[dict[str, Any]] = []
    for new in after.batches:
        earlier = old.get(new.method)
        batches = new.batches - (earlier.batches if earlier else 0)
        items = new.items - (earlier.items if earlier else 0)
        wait_s = new.wait_s - (earlier.wait_s if earlier else 0.0)
        found.append(
            {
                "method": new.method,
                "rate": batches / seconds,
                "items": items / batches if batches else 0.0,
                "wait_ms": wait_s / items * 1e3 if items else 0.0,
            }
        )
    return sorted(found, key=lambda each: -each["rate"])[:MOST_METHODS]


def _ms(ns: float | None) -> float | None:
    return None if ns is None else ns / 1e6
