"""The pool as one look has found it, against its supervisor's account. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from atomr_mp.protocol import process_tags
from atomr_mp.protocol.messages.operators import Inventory, ProcessHeld, SessionHeld
from atomr_mp.protocol.words import counted
from atomr_mp.supervision.audit.findings import Finding, State, Supervision
from atomr_mp.supervision.audit.leftovers import Unsupervised, still_mapped
from atomr_mp.supervision.audit.observed import (
    Memfd,
    Observed,
    Process,
    Socket,
    Worker,
    ancestors,
    descriptors,
    slab_size,
    worker_name,
)

ENDED: Final = frozenset({"ended", "maps", "parts"})
"""States of sessions that have ended, in `SessionHeld`."""


def compare(observed: Observed, supervision: Supervision, believed: Inventory | None) -> list[Finding]:
    """Return the findings of one look.

    Args:
        observed: What there is.
        supervision: How the supervisor is.
        believed: What the supervisor believes; None if it does not answer.
    """
    if believed is not None:
        return list(_Compared(observed, believed).findings())
    return list(Unsupervised(observed, supervision).findings())


class _Compared:
    """One look at a pool whose supervisor answers."""

    def __init__(self, observed: Observed, believed: Inventory) -> None:
        self._observed = observed
        self._believed = believed
        self._processes = observed.processes
        self._held = {each.pid: each for each in believed.processes}
        self._workers: dict[Worker, ProcessHeld] = {
            (each.device, each.generation): each for each in believed.processes if each.device is not None
        }
        self._clients = {each.pid for each in believed.sessions if each.pid is not None}
        self._epoch = process_tags.epoch_label(believed.epoch)
        self._knows_pids = self._are_ours({pid for taken in observed.gpus.values() for pid, _ in taken})

    def findings(self) -> Iterator[Finding]:
        yield from self._supervisor()
        for held in self._believed.processes:
            yield self._process(held)
        yield from self._strangers()
        yield from self._sessions()
        yield from self._remote()
        yield from self._sockets()
        yield from self._notes()
        for held in self._workers.values():
            yield from self._memory_of(held)
        yield from self._slabs()
        yield from self._gpus()

    def _supervisor(self) -> Iterator[Finding]:
        pid = self._observed.supervisor
        process = self._processes.get(pid)
        if process is None:
            yield Finding(
                State.UNACCOUNTED,
                "supervisor",
                f"the supervisor answers, and there is no process {pid}",
                "look from its own pid namespace; or /proc hides it (hidepid): look as the pool's user",
            )
            return
        known = {*self._held, *self._clients}
        odd = [each for each in process.watches if each not in known]
        yield Finding(
            State.OK,
            "supervisor",
            f"the supervisor, pid {pid}: {descriptors(process)}",
            since=process.since,
            pid=pid,
        )
        if odd:
            of = ", ".join("one that has ended" if each == -1 else str(each) for each in sorted(odd))
            yield Finding(
                State.UNACCOUNTED,
                "descriptor",
                f"the supervisor watches processes that it does not know of: {of}",
                "please report it; a restart of the pool closes them",
                pid=pid,
            )
        if self._believed.complete:
            for inode in sorted(process.opened - set(self._believed.memfds)):
                slab = self._observed.slabs[inode]
                yield Finding(
                    State.UNACCOUNTED,
                    "descriptor",
                    f"the supervisor has {slab_size(slab)} (inode {inode}) open for nobody",
                    "please report it; a restart of the pool closes it",
                    pid=pid,
                    nbytes=slab.nbytes,
                )

    def _process(self, held: ProcessHeld) -> Finding:
        process = self._processes.get(held.pid)
        what = _role(held)
        if process is None or process.start_ticks != held.start_ticks:
            return Finding(
                State.UNACCOUNTED,
                "process",
                f"{what}, pid {held.pid}, is not there",
                "please report it; `atomr-mp restart DEVICE` starts another",
                pid=held.pid,
            )
        if (still := process.standstill) is not None:
            what = f"{what}, pid {held.pid}, is {still.why}"
            return Finding(State.UNWELL, "process", what, still.remedy, process.since, held.pid)
        return Finding(
            State.OK, "process", f"{what}, pid {held.pid}: {descriptors(process)}", since=process.since, pid=held.pid
        )

    def _strangers(self) -> Iterator[Finding]:
        """Tell of processes that belong to the pool and that the supervisor has not started."""
        supervisor = self._observed.supervisor
        for process in self._processes.values():
            if process.pid in self._held or process.pid == supervisor:
                continue
            chain = list(ancestors(process, self._processes))
            starter = next((self._held[pid] for pid in chain if pid in self._held), None)
            if starter is None and process.worker is not None and not process.zombie:
                starter = self._workers.get(process.worker)  # whoever was between them has ended
            if starter is not None:
                what = f"pid {process.pid} ({process.command}), started by {_role(starter)}"
                yield Finding(State.OK, "process", what, since=process.since, pid=process.pid)
            elif supervisor in chain or process.marked or process.group in self._held:
                if process.zombie:
                    what, remedy = "has ended and was not reaped", "please report it; it goes with the supervisor"
                else:
                    what, remedy = (
                        "was left by a worker that has ended",
                        f"`kill -9 {process.pid}`, and please report it",
                    )
                yield Finding(
                    State.UNACCOUNTED,
                    "process",
                    f"pid {process.pid} ({process.command}) {what}",
                    remedy,
                    process.since,
                    process.pid,
                )

    def _remote(self) -> Iterator[Finding]:
        """Tell of the relay, and of each remote client's session."""
        remote = self._believed.remote
        if remote is None:
            return
        if remote.listening:
            behind = f"pid {remote.standby_pid} stands by" if remote.standby_pid else "no other stands by yet"
            what = f"remote clients are admitted at {remote.address}; {behind}"
            yield Finding(State.OK, "relay", what, pid=remote.pid)
        else:
            yield Finding(
                State.UNACCOUNTED,
                "relay",
                f"no relay listens at {remote.address}; it has ended {counted(remote.restarts, 'time')}",
                "`atomr-mp logs` and `atomr-mp events` tell why: as a rule the keys cannot be read",
            )
        for each in remote.sessions:
            what = f"remote client {each.client} with key {each.key}: {each.kept_bytes} bytes are not acknowledged"
            if each.connected:
                yield Finding(State.OK, "session", what, pid=remote.pid, nbytes=each.kept_bytes)
            else:
                what += "; its connection is cut, and the session waits `remote_grace_s` for it"
                yield Finding(State.HELD, "session", what, pid=remote.pid, nbytes=each.kept_bytes)

    def _sessions(self) -> Iterator[Finding]:
        for each in self._believed.sessions:
            process = None if each.pid is None else self._processes.get(each.pid)
            if each.state in ENDED:
                what = f"session {each.number} has ended; its memory waits for {_awaited(each)}"
                wrong = "" if each.pid is None else self._is_awaited_in_vain(each, process)
                if wrong:
                    yield Finding(State.UNACCOUNTED, "session", f"{what}, {wrong}", "please report it", pid=each.pid)
                else:
                    yield Finding(State.HELD, "session", what, pid=each.pid)
            elif each.state == "cut":
                what = f"session {each.number} of {each.client} has no connection, and waits `remote_grace_s` for one"
                yield Finding(State.HELD, "session", what)
            elif process is None:
                yield Finding(
                    State.UNACCOUNTED,
                    "session",
                    f"session {each.number} of {each.client}: its process, pid {each.pid}, is not there",
                    "a process that it has forked may have its connection: find and end that",
                    pid=each.pid,
                )
            elif process is not None:
                weight = "" if each.weight == 1 else f", weight {each.weight:g}"
                what = f"session {each.number} {each.state}: {each.client}, pid {each.pid}{weight}"
                yield Finding(State.OK, "session", what, since=process.since, pid=each.pid)
        leases = sum(each.leases for each in self._believed.processes if not each.running)
        known = sum(each.state in {"calls", "cut", *ENDED} for each in self._believed.sessions)
        if leases and not known:
            yield Finding(
                State.UNACCOUNTED,
                "session",
                f"{counted(leases, 'lease is', 'leases are')} held, and there is no session",
                "please report it; `atomr-mp restart DEVICE` ends them",
            )
        for held in self._workers.values() if self._believed.complete else ():
            if held.sessions > known:
                yield Finding(
                    State.UNACCOUNTED,
                    "session",
                    f"{_role(held)} holds memory for {counted(held.sessions, 'session')}, and there "
                    f"{'is' if known == 1 else 'are'} {known}",
                    f"please report it; `atomr-mp restart {held.device}` frees it",
                    pid=held.pid,
                )

    def _is_awaited_in_vain(self, ended: SessionHeld, process: Process | None) -> str:
        """Return why an ended session's memory must not wait for a process, "" if it may."""
        remote = self._believed.remote
        if process is None:
            return "which is not there"
        if remote is not None and ended.pid in {remote.pid, remote.standby_pid}:
            return "which is the relay: it unmaps a session's memory at once"
        if ended.state != "parts" and self._believed.backend == "host" and not self._maps_workers_memory(process):
            return "which has none mapped"
        return ""

    def _maps_workers_memory(self, process: Process) -> bool:
        slabs = self._observed.slabs
        owners = [process_tags.owner(slabs[inode].name) for inode in process.mapped if inode in slabs]
        return any(of is not None and of.epoch == self._epoch and of.worker is not None for of in owners)

    def _sockets(self) -> Iterator[Finding]:
        ours = {*self._held, self._observed.supervisor}
        for name, socket in sorted(self._observed.sockets.items()):
            worker = _worker_of_socket(name)
            expected = {self._workers[worker].pid} if worker in self._workers else set() if worker else ours
            if not expected:
                remedy = "remove the file, and please report it"
                yield Finding(State.UNACCOUNTED, "socket", f"{name} is nobody's", remedy, socket.since)
            elif not expected & set(socket.listeners):
                yield Finding(
                    State.UNACCOUNTED,
                    "socket",
                    f"nobody of the pool listens at {name}",
                    "please report it; the restart of its device makes another",
                    socket.since,
                )
            else:
                (pid, *_) = expected & set(socket.listeners)
                yield self._listens(name, socket, pid)

    def _listens(self, name: str, socket: Socket, pid: int) -> Finding:
        if name in self._observed.turned_away:
            return Finding(
                State.UNACCOUNTED,
                "socket",
                f"{name}: pid {pid} listens, and ends connections at once",
                "it has no descriptor left: raise its limit (ulimit -n), or have its actors close what they open",
                socket.since,
                pid,
            )
        return Finding(State.OK, "socket", f"{name}: pid {pid} listens", since=socket.since, pid=pid)

    def _notes(self) -> Iterator[Finding]:
        for pid in sorted(self._observed.notes - self._held.keys()):
            yield Finding(
                State.UNACCOUNTED,
                "note",
                f"workers/{pid} names a process that the supervisor does not have",
                "please report it; the next start removes it",
                pid=pid,
            )

    def _memory_of(self, held: ProcessHeld) -> Iterator[Finding]:
        """Tell of a worker's own slabs."""
        process = self._processes.get(held.pid)
        if process is None:
            return
        slabs = self._observed.slabs
        mine = {inode for inode in process.opened if _worker_of(slabs[inode], self._epoch) == _key(held)}
        found_bytes = sum(slabs[inode].nbytes for inode in mine)
        what = f"{_role(held)} has {counted(len(mine), 'memfd')} of {found_bytes:,} bytes"
        if not held.believed:
            what += ", and its board is not believed: what its slabs take is not known"
            yield Finding(State.HELD, "memory", what, pid=held.pid, nbytes=found_bytes)
            return
        # On a GPU most slabs are no memfds.
        too_few = found_bytes < held.slab_bytes and self._believed.backend == "host"
        on_gpus = self._on_gpus(held.pid)
        if on_gpus is not None and on_gpus + found_bytes < held.slab_bytes and not held.running:
            yield Finding(
                State.UNACCOUNTED,
                "memory",
                f"{what} and, as the driver tells, {on_gpus:,} bytes of GPUs; it says that its slabs take "
                f"{held.slab_bytes:,}",
                "please report it; a restart of the device ends it",
                pid=held.pid,
                nbytes=on_gpus + found_bytes - held.slab_bytes,
            )
        elif (too_few or found_bytes > held.slab_bytes) and not held.running:
            yield Finding(
                State.UNACCOUNTED,
                "memory",
                f"{what}, and says that its slabs take {held.slab_bytes:,}",
                "please report it; a restart of the device ends it",
                pid=held.pid,
                nbytes=found_bytes - held.slab_bytes,
            )
        elif mine or held.slab_bytes or held.leases:
            others = {pid for pid, each in self._processes.items() if each.mapped & mine} - {held.pid}
            mapped = f", mapped by pid {', '.join(map(str, sorted(others)))}" if others else ""
            what = f"{_role(held)} has slabs of {held.slab_bytes:,} bytes with {counted(held.leases, 'lease')}{mapped}"
            yield Finding(State.OK, "memory", what, pid=held.pid, nbytes=held.slab_bytes)

    def _slabs(self) -> Iterator[Finding]:
        """Report slabs that have lost their worker, and clients' own."""
        for inode, slab in sorted(self._observed.slabs.items()):
            of = process_tags.owner(slab.name)
            if of is None or of.epoch != self._epoch:
                continue
            if of.resident:
                yield self._resident(inode, slab)
                continue
            owner = None if of.worker is None else self._workers.get(of.worker)
            if owner is not None and inode in self._open_at(owner.pid):
                continue  # shown with the worker
            yield from self._slab(inode, slab, of.worker, lives=owner is not None)

    def _slab(self, inode: int, slab: Memfd, worker: Worker | None, *, lives: bool) -> Iterator[Finding]:
        """Tell who holds a slab that has no worker, or is a client's."""
        clients = {pid for pid, each in self._processes.items() if inode in each.mapped | each.opened}
        clients -= {self._observed.supervisor}
        workers, clients = clients & self._held.keys(), clients - self._held.keys()
        for pid in sorted(clients):
            if worker is None:
                what = f"pid {pid} has memory of its own for arguments, {slab_size(slab)}"
                yield Finding(State.OK, "memory", what, pid=pid, nbytes=slab.nbytes)
            else:
                yield still_mapped(self._observed, pid, slab, worker, lives=lives)
        for pid in sorted(workers):
            if worker is None and clients:
                continue
            whose = "a client that has ended" if worker is None else worker_name(worker)
            who = f"{_role(self._held[pid])}, pid {pid},"
            what = f"{who} has {slab_size(slab)} of {whose} mapped: an actor keeps an array"
            yield Finding(State.HELD, "memory", what, pid=pid, nbytes=slab.nbytes)

    def _resident(self, inode: int, slab: Memfd) -> Finding:
        """Tell who has memory that outlives the workers."""
        users = {pid for pid, each in self._processes.items() if inode in each.mapped | each.opened}
        users -= {self._observed.supervisor}
        what = f"resident memory of {slab.nbytes:,} bytes, used by {_pids(users)}"
        if inode in self._believed.memfds:
            return Finding(State.OK, "memory", what, nbytes=slab.nbytes)
        what = f"{what}, which the supervisor has not: it is being filled, or was freed and goes with the last of them"
        return Finding(State.HELD, "memory", what, nbytes=slab.nbytes)

    def _open_at(self, pid: int) -> frozenset[int]:
        process = self._processes.get(pid)
        return frozenset() if process is None else process.opened

    def _gpus(self) -> Iterator[Finding]:
        """Tell who takes memory of GPUs."""
        if not self._knows_pids:
            what = "the driver tells pids of another pid namespace, so nobody can be found by them"
            yield Finding(State.OK, "gpu", what)
            return
        for uuid, taken in sorted(self._observed.gpus.items()):
            for pid, nbytes in taken:
                yield self._gpu(uuid, pid, nbytes)

    def _are_ours(self, using: set[int]) -> bool:
        """Whether pids that the driver tells are of this pid namespace: else the same number means another process."""
        contexts = {
            pid
            for pid, held in self._held.items()
            if held.device is not None and pid in self._processes and self._processes[pid].descriptors.get("gpu")
        }
        return not using or bool(using & (contexts or self._processes.keys() | {self._observed.supervisor}))

    def _on_gpus(self, pid: int) -> int | None:
        """Return how much memory of GPUs a process takes; None if that is unknown."""
        taken = [nbytes for each in self._observed.gpus.values() for user, nbytes in each if user == pid]
        return sum(taken) if self._knows_pids and taken and all(taken) else None

    def _gpu(self, uuid: str, pid: int, nbytes: int) -> Finding:
        held, process = self._held.get(pid), self._processes.get(pid)
        takes = f"takes {nbytes:,} bytes of {uuid}" if nbytes else f"uses {uuid}; how much is not told"
        if held is not None:
            what = f"{_role(held)}, pid {pid}, {takes}"
        elif pid in self._clients:
            what = f"a client, pid {pid}, {takes}"
        elif process is not None:
            what = f"pid {pid} ({process.command}), which is not the pool's, {takes}"
        else:
            what = f"pid {pid}, which is another user's or has ended, {takes}"
        return Finding(State.OK, "gpu", what, pid=pid, nbytes=nbytes or None)


def _worker_of(slab: Memfd, epoch: str) -> Worker | None:
    of = process_tags.owner(slab.name)
    return of.worker if of is not None and of.epoch == epoch else None


def _key(held: ProcessHeld) -> Worker:
    return held.device if held.device is not None else -1, held.generation


def _awaited(ended: SessionHeld) -> str:
    """Return the reason why an ended session's memory is not free yet."""
    match ended.state:
        case "maps":
            return f"arrays that lie there in its process, pid {ended.pid}"
        case "parts":
            return f"its client in process {ended.pid} to be closed"
        case _:
            return f"the end of its process, pid {ended.pid}" if ended.pid else "workers to finish its requests"


def _worker_of_socket(name: str) -> Worker | None:
    """Return whose data socket this is, None if it is none."""
    device, _, generation = name.removeprefix("d").removesuffix(".sock").partition("-g")
    if name.startswith("d") and device.isdecimal() and generation.isdecimal():
        return int(device), int(generation)
    return None


def _role(held: ProcessHeld) -> str:
    if held.device is None:
        article = "a" if held.role.startswith("process ") else "the"
        return "a process made ahead" if held.role == "reserve" else f"{article} {held.role}"
    return f"the {held.role} of {worker_name(_key(held))}"


def _pids(pids: Iterable[int]) -> str:
    return "pid " + ", ".join(map(str, sorted(pids))) if pids else "nobody"
