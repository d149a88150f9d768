"""The pool as one look has found it. Pure; `process/census` looks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from atomr_mp.protocol.words import counted
from atomr_mp.supervision.standstill import Standstill

Worker = tuple[int, int]
"""A process, by its device and generation."""


class Memfd(NamedTuple):
    """Memory that processes share."""

    name: str
    nbytes: int


class Process(NamedTuple):
    """A process of this user, as the kernel tells."""

    pid: int
    start_ticks: int
    parent: int
    group: int
    since: float
    command: str
    zombie: bool = False
    marked: bool = False
    """It was started by a supervisor of this run directory, or by what that has started."""
    worker: Worker | None = None
    """Which worker has started it, as its environment says."""
    descriptors: Mapping[str, int] = {}
    """How many of each kind it has open."""
    watches: tuple[int, ...] = ()
    """The pids that its pidfds mean; -1 for one that has been reaped."""
    opened: frozenset[int] = frozenset()
    """Inodes of the slabs that it has descriptors of."""
    mapped: frozenset[int] = frozenset()
    """Inodes of slabs that it has mapped."""
    standstill: Standstill | None = None
    """Why it does not run although it lives, if it is marked or the supervisor."""


class Socket(NamedTuple):
    """A socket in the run directory."""

    since: float
    listeners: tuple[int, ...]
    """Pids."""


class Observed(NamedTuple):
    """The findings of one look."""

    processes: Mapping[int, Process]
    """All of this user, by pid."""
    slabs: Mapping[int, Memfd]
    """By inode."""
    sockets: Mapping[str, Socket] = {}
    """By name."""
    notes: frozenset[int] = frozenset()
    """Pids that are noted in the run directory."""
    survivors: frozenset[int] = frozenset()
    """The pids that still belong to the noted processes."""
    gpus: Mapping[str, Sequence[tuple[int, int]]] = {}
    """By UUID: which pids take how many bytes."""
    supervisor: int = 0
    """The pid in the run directory's lock, 0 if there is none."""
    epoch: str = ""
    """Of the pool's latest life, as its event log says; see `process_tags.epoch_label`."""
    ended: Mapping[Worker, float] = {}
    """When its incarnations have ended in that life, by the same log; seconds since the epoch."""
    turned_away: frozenset[str] = frozenset()
    """Sockets of workers at which a connection was ended at once."""


def ancestors(process: Process, processes: Mapping[int, Process]) -> Iterator[int]:
    """Yield the pids of a process's parent, its parent's, and so on."""
    seen: set[int] = set()
    pid = process.parent
    while pid and pid not in seen:
        seen.add(pid)
        yield pid
        above = processes.get(pid)
        pid = above.parent if above is not None else 0


def worker_name(worker: Worker) -> str:
    """Return a worker's name."""
    return f"device {worker[0]} generation {worker[1]}"


def slab_size(slab: Memfd) -> str:
    """Return shared memory's name, with its size."""
    return f"a slab of {slab.nbytes:,} bytes"


def descriptors(process: Process) -> str:
    """Return how many descriptors a process has open, by kind."""
    total = sum(process.descriptors.values())
    kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(process.descriptors.items()))
    return f"{counted(total, 'descriptor')}" + (f" ({kinds})" if kinds else "")
