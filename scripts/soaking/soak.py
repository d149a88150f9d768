"""The soak: a pool, its clients, and kills of both, in rounds; after each round everything must be as before."""

from __future__ import annotations

import collections
import os
import random
import secrets
import signal
import time
from pathlib import Path
from typing import Any, Final, NamedTuple

import psutil
from rich.console import Console

import atomr_mp
from atomr_mp import errors
from atomr_mp.operator.doctor import examine
from atomr_mp.operator.session import OperatorSession
from atomr_mp.process.files.events import read_events
from atomr_mp.process.files.rundir import SESSION_SOCKET
from atomr_mp.process.gpus.nvml import survey
from atomr_mp.protocol.allocation import SLAB_BYTES
from atomr_mp.supervision.audit.findings import State
from soaking import words
from soaking.caller import GRACE_S
from soaking.census import MARK, Census, census, mapped_slabs, marked
from soaking.clients import Client, Clients
from soaking.condemned import innocent
from soaking.disturbances import Disturbance, schedule

ACTORS: Final = ("Echo", "Once", "Maker", "Housed", "Hoard", "Teller", "Awaited")

ROUND_S: Final = 150.0
"""About how long a round is."""

WORKER: Final = "kill of a worker"
CLIENT: Final = "kill of a client"
"""What is done to a pool."""

SETTLE_S: Final = 20.0
"""How long the state at a round's end may take to be that of its beginning: shared refs wait up to five seconds, and
other processes close their sockets late."""

SETTLED: Final = 3
"""After this many rounds, bounded tables are as full as they get."""

GROWTH_BYTES: Final = {"supervisor": 2**20, "worker": 6 * 2**20, "client": 4 * 2**20}
"""How much more memory of its own (USS) a process may have after any later round than its kind had until then."""

MALLOC: Final = {"MALLOC_MMAP_THRESHOLD_": "65536"}
"""By default the C library keeps tens of MiB that threads have freed, which would hide leaks."""

MEMORY_BYTES: Final = 4 * 2**30
"""Most that a device's slabs may take. It has to suffice."""

RESIDENT_BYTES: Final = 2 * 2**20
"""Resident memory of each device's actors: one version, and none that is out of use."""

AT_REST: Final = ("used_bytes", "leases", "views", "shared")
"""Figures of a device's memory that are 0 when no client holds anything."""

ALONE: Final = ("slabs", "slab_bytes", "open_elsewhere", "client_slabs", "foreign_slabs")
"""Those that are 0 when no client is connected."""

CACHED: Final[dict[str, int]] = {"slabs": 1, "slab_bytes": SLAB_BYTES}
"""If CuPy allocates in slabs, memory that an actor has allocated and dropped stays in CuPy's pool."""


class Shape(NamedTuple):
    """What runs."""

    devices: int = 2
    survivors: int = 2
    """Clients that are never killed."""
    victims: int = 2
    """Clients that are killed at random, and replaced."""
    backend: str = "host"
    standby: str = "none"

    @property
    def spared(self) -> int:
        """The device that is left alone from the middle of the first round on.

        So its worker grows old, and must not notice what happens to the others.
        """
        return self.devices - 1

    @property
    def processes(self) -> int:
        """How many processes the supervisor has when all run."""
        standbys = 0 if self.standby == "none" else self.devices
        return 1 + self.devices + standbys  # the zygote, and what it has forked

    @property
    def versions(self) -> int:
        """How many of its resident memory a device may have in use: its standby may have a later one."""
        return 2 if self.standby == "hot" else 1

    @property
    def refs(self) -> bool:
        """Whether clients use refs, which they look at as NumPy's arrays."""
        return self.backend == "host"


class Moment(NamedTuple):
    """When something is done."""

    pool: atomr_mp.Pool
    clients: Clients
    use: words.Use
    """The orders for clients that start now."""
    devices: range
    """Devices that may be disturbed."""


class Soak:
    """One run.

    Args:
        console: Where to report.
        duration_s: How long.
        rounds: How many; None for some minutes each, and two at least.
        seed: Of all random choices.
        shape: What runs.
    """

    def __init__(
        self, console: Console, duration_s: float, rounds: int | None, seed: int, shape: Shape | None = None
    ) -> None:
        self._console = console
        self.rounds: Final = rounds or max(2, round(duration_s / ROUND_S))
        self._round_s = duration_s / self.rounds
        self._chance = random.Random(seed)
        self.shape: Final = shape or Shape()
        self._seed = seed
        self.counts: Final[collections.Counter[str]] = collections.Counter()
        """What has happened, and how often."""
        self._wrong: list[str] = []
        self._condemned: set[str] = set()
        """Innocent requests that were reported."""
        self.deadly: Final[set[int]] = set()
        """Pids of workers that have met a deadly fault; all others were killed from outside."""
        self.run_dir = Path()
        """Run directory of the pool, once it was started."""
        self.held: Final[dict[str, list[dict[str, int]]]] = {}
        """Holdings of processes at their first comparison and at their last."""
        self.own_bytes: Final[collections.defaultdict[str, list[int]]] = collections.defaultdict(list)
        """How much memory of their own they had after each round."""
        self._before: dict[str, Census] = {}
        """Holdings of the supervisor before any client came, and of other processes after their first round; the spared
        worker stands for all."""
        self._most_bytes: collections.Counter[str] = collections.Counter()
        """The most memory of its own that any of a kind had until they had settled."""

    def run(self) -> list[str]:
        """Run; return the failed checks."""
        mark = os.environ[MARK] = secrets.token_hex(8)
        os.environ.update(MALLOC)
        if self.shape.backend == "cuda":
            survey()  # the driver keeps what it opens
        here = psutil.Process().num_fds()
        soaked, witness = (Path(__file__).with_name(name) for name in ("soak_actor.py", "witness.py"))
        with self.start([*(f"{soaked}:{name}" for name in ACTORS), f"{witness}:Witness"]) as pool:
            self.run_dir = pool.run_dir
            self._wait_for_all(pool)
            found = _between_events(pool)
            more = self.shape.devices * (self.shape.versions - 1)  # it keeps what opens them
            self._before["supervisor"] = found._replace(descriptors=found.descriptors + more)
            clients = Clients(pool.run_dir, self._chance, self._count)
            try:
                for _ in range(self.shape.survivors):
                    clients.start(survives=True)
                number = 0
                while self.goes_on(number):
                    self._round(pool, clients, number)
                    number += 1
            finally:
                statuses = clients.close()
            if any(statuses):
                self._wrong.append(f"clients ended with {statuses}")
        del os.environ[MARK]
        self._wrong += [f"a process is left: {left}" for left in marked(mark)]
        if psutil.Process().num_fds() > here:
            self._wrong.append(f"{psutil.Process().num_fds()} descriptors are open here, {here} were at the beginning")
        return self._wrong

    def start(self, actors: list[str]) -> atomr_mp.Pool:
        """Start the pool."""
        return atomr_mp.start(actors=actors, **self.settings())

    def settings(self) -> dict[str, Any]:
        """Return the pool's settings."""
        return {
            "gpus": self.shape.devices,
            "backend": self.shape.backend,
            "standby": self.shape.standby,
            "max_restarts": 10**6,
            "within_s": 1.0,
            "backoff_initial_s": 0.0,
            "memory_bytes": MEMORY_BYTES,
        }

    # --- a round ---------------------------------------------------------------------------------------------------

    def _round(self, pool: atomr_mp.Pool, clients: Clients, number: int) -> None:
        """Let all work, and come to rest, and leave; compare what is left."""
        until_s = time.monotonic() + self._round_s
        use = self.use(number, until_s)
        for client in clients.living:
            client.tell(use)
        for _ in range(self.shape.victims):
            clients.start(survives=False).tell(use)
        self._disturb(pool, clients, use, number)
        self.rest()
        for client in [client for client in clients.living if not client.survives]:
            self._kill_client(clients, client)
        self._wait(clients, words.Rested)
        self._wait_for_ends(pool, clients)
        self._release(pool)
        self._expect(pool, AT_REST, "is held though nobody holds anything")
        for client in clients.living:
            client.tell(words.Leave())
        self._wait(clients, words.Left)
        self.expect_alone(pool)
        self._wait_for_all(pool)
        self._expect_resident(pool)
        self._compare(pool, clients, number)
        self._examine(pool)
        self._expect_justice(pool)
        self.after_round(pool, number)

    def use(self, number: int, until_s: float) -> words.Use:
        """Return the clients' orders for a round."""
        return words.Use(until_s, self.shape.spared if number else None, self.shape.refs)

    def after_round(self, pool: atomr_mp.Pool, number: int) -> None:
        """See to what else has to be so."""

    def goes_on(self, number: int) -> bool:
        """Whether there is another round after so many."""
        return number < self.rounds

    def _disturb(self, pool: atomr_mp.Pool, clients: Clients, use: words.Use, number: int) -> None:
        """Carry out the seed's disturbances of the round."""
        begun_s = report_s = time.monotonic()
        everything = schedule(f"{self._seed}/{number}", self.kinds, self._round_s)
        for each in [*everything, None]:
            until_s = use.until_s if each is None else begun_s + each.at_s
            while (now_s := time.monotonic()) < until_s:
                if now_s >= report_s:
                    report_s = now_s + max(1.0, self._round_s / 5)
                    self._report(pool, number, use.until_s - now_s)
                self.look_after(now_s)
                clients.hear(max(0.001, min(until_s, report_s, now_s + self.look_every_s) - now_s))
            if each is not None:
                spares = number > 0 or each.at_s > self._round_s / 2
                devices = range(self.shape.spared if spares else self.shape.devices)
                self.disturb(Moment(pool, clients, use, devices), each)

    @property
    def kinds(self) -> dict[str, float]:
        """What is done, and how often, see `disturbances.schedule`."""
        return {WORKER: 2.0, CLIENT: 2.5}

    look_every_s = 1.0

    def look_after(self, now_s: float) -> None:
        """See to what was begun earlier."""

    def rest(self) -> None:
        """Have done with what was begun."""

    def wrong(self, what: str) -> None:
        """Tell of something that must not be."""
        self._wrong.append(what)

    def disturb(self, moment: Moment, what: Disturbance) -> None:
        """Do one thing."""
        device = what.choose(moment.devices)
        if what.kind == CLIENT:
            self.kill_client(moment, what)
        elif what.again().roll < 0.3:
            moment.pool.restart(device)
            self.counts["restart"] += 1
        else:
            self.kill_worker(moment, device)

    def kill_worker(self, moment: Moment, device: int) -> None:
        """Kill a device's worker, if it has one just now."""
        pid = moment.pool.devices[device].worker_pid
        if pid is not None:
            self.kill(moment.pool, pid, WORKER)

    def kill(self, pool: atomr_mp.Pool, pid: int, what: str) -> bool:
        """Kill a process of the pool; return whether it was one."""
        try:
            if pid and psutil.Process(pid).ppid() == pool.supervisor_pid:
                os.kill(pid, signal.SIGKILL)
                self.counts[what] += 1
                return True
        except (psutil.NoSuchProcess, ProcessLookupError):  # it comes back just now
            pass
        return False

    def kill_client(self, moment: Moment, what: Disturbance) -> None:
        """Kill one of the clients that may be killed, and start another."""
        victims = [client for client in moment.clients.living if not client.survives]
        if victims:
            self._kill_client(moment.clients, what.choose(victims))
            moment.clients.start(survives=False).tell(moment.use)

    def _kill_client(self, clients: Clients, client: Client) -> None:
        clients.kill(client)
        self.counts[CLIENT] += 1

    def _wait(self, clients: Clients, kind: type[words.FromClient]) -> None:
        late = clients.wait(kind, GRACE_S + SETTLE_S)
        self._wrong += [f"client {client.pid} has not said {kind.__name__}" for client in late]

    def _wait_for_ends(self, pool: atomr_mp.Pool, clients: Clients) -> None:
        """Wait until workers know of the ends of killed clients: no call of theirs runs behind ours then."""
        until_s = time.monotonic() + SETTLE_S
        with OperatorSession(pool.run_dir / SESSION_SOCKET) as observer:
            while (left := _calling(observer) - 1 - len(clients.living)) > 0:  # without ours
                if time.monotonic() > until_s:
                    self._wrong.append(f"{left} sessions of killed clients have not ended")
                    return
                time.sleep(0.05)  # of another client's end no event tells

    def _release(self, pool: atomr_mp.Pool) -> None:
        """Have the actors drop what they have kept, which has to be as it was."""
        pool.wait_ready()
        for device in range(self.shape.devices):
            try:
                if not pool.call("Hoard.drop", device=device).result():
                    self._wrong.append(f"what an actor of device {device} kept was written over")
            except errors.AtomrError as error:
                self._wrong.append(f"Hoard.drop: {error!r}")

    # --- what is left ----------------------------------------------------------------------------------------------

    def expect_alone(self, pool: atomr_mp.Pool) -> None:
        """See that nothing is there which is only for clients."""
        self._expect(pool, ALONE, "is there though nobody is connected")

    def _expect(self, pool: atomr_mp.Pool, names: tuple[str, ...], what: str) -> None:
        """See that figures of all devices come to 0."""
        until_s = time.monotonic() + SETTLE_S
        while left := self._not_zero(pool, names):
            if time.monotonic() > until_s:
                all_figures = [pool.device(device).statistics() for device in range(self.shape.devices)]
                self._wrong.append(f"{what}: {left}; of all devices: {all_figures}")
                for device in range(self.shape.devices):
                    self._ask_witness(pool, device)
                return
            time.sleep(0.02)  # no event tells when a share's time is over

    def _not_zero(self, pool: atomr_mp.Pool, names: tuple[str, ...]) -> dict[str, int]:
        figures = [pool.device(device).statistics() for device in range(self.shape.devices)]
        expected = self.expected
        return {
            f"{name} of device {device}": each[name]
            for device, each in enumerate(figures)
            for name in names
            if each[name] > expected.get(name, 0)
        }

    @property
    def expected(self) -> dict[str, int]:
        """Figures of a device's memory that are not 0 when no client holds anything."""
        return CACHED if self.shape.backend == "cuda" else {}

    def _expect_resident(self, pool: atomr_mp.Pool) -> None:
        """See that of resident memory there is what is in use; that of an earlier version may be about to go."""
        until_s = time.monotonic() + SETTLE_S
        while True:
            blobs, rest = divmod(pool.status().resident_bytes, RESIDENT_BYTES)
            if not rest and self.shape.devices <= blobs <= self.shape.devices * self.shape.versions:
                return
            if time.monotonic() > until_s:
                self._wrong.append(f"there are {blobs} pieces of resident memory for {self.shape.devices} devices")
                return
            time.sleep(0.05)  # no event tells of it

    def _wait_for_all(self, pool: atomr_mp.Pool) -> None:
        """Wait until all processes are there that are to be; what stands by may have been given up by now."""
        until_s = time.monotonic() + SETTLE_S
        with OperatorSession(pool.run_dir / SESSION_SOCKET) as observer:
            while (found := _made(observer)) != self.shape.processes or _starts(observer):
                if time.monotonic() > until_s:
                    if not self.shape.devices <= found <= self.shape.processes:
                        self._wrong.append(f"{found} processes are there, {self.shape.processes} have to be")
                    return
                time.sleep(0.05)  # no event tells when a process is forked ahead

    def _examine(self, pool: atomr_mp.Pool) -> None:
        """Compare what there is with what the supervisor believes."""
        for each in examine(pool.run_dir)[1]:
            if each.state is State.UNACCOUNTED:
                self._wrong.append(f"unaccounted for: {each.kind}: {each.what}")
        self.counts["examined"] += 1

    def _expect_justice(self, pool: atomr_mp.Pool) -> None:
        """See that no request was condemned for kills that came from outside."""
        for each in innocent(read_events(pool.run_dir / "events.jsonl"), self.deadly):
            if each not in self._condemned:
                self._condemned.add(each)
                self._wrong.append(f"an innocent request was condemned: {each}")

    def _compare(self, pool: atomr_mp.Pool, clients: Clients, number: int) -> None:
        """Compare what processes hold with what they held at first, once it changes no more."""
        until_s = time.monotonic() + SETTLE_S
        while True:
            now = self.take_census(pool, clients.living)
            for name, found in now.items():
                self._before.setdefault(_kind(name), found)
            more = [name for name, found in now.items() if found.slabs or found.exceeds(self._before[_kind(name)])]
            if not more or time.monotonic() > until_s:
                break
            time.sleep(0.05)  # of what another process closes, no event tells
        for name in more:
            mapped = mapped_slabs(self._processes(pool, clients.living)[name])
            self._wrong.append(f"{name} holds {now[name]}, at first it was {self._before[_kind(name)]}; {mapped}")
            if _kind(name) == "worker":
                self._ask_witness(pool, int(name.split()[1]))
        for name, found in now.items():
            kind = _kind(name)
            self.own_bytes[name].append(found.own_bytes)
            if number < max(1, self.rounds // SETTLED):
                self._most_bytes[kind] = max(self._most_bytes[kind], found.own_bytes)
            elif found.own_bytes > (bound := self._most_bytes[kind] + GROWTH_BYTES[name.split()[0]]):
                self._wrong.append(f"{name} has {found.own_bytes >> 10} KiB, more than {bound >> 10} KiB")
        self.held.update({name: [self._before[_kind(name)]._asdict(), found._asdict()] for name, found in now.items()})
        sizes = ", ".join(
            f"{name} {found.own_bytes / 2**20:.1f} MiB, {found.descriptors} descriptors, {found.threads} threads"
            for name, found in now.items()
        )
        self._console.print(f"after round {number + 1} of {self.rounds}: {sizes}")

    def take_census(self, pool: atomr_mp.Pool, clients: list[Client]) -> dict[str, Census]:
        """Return the holdings of processes."""
        return {name: census(pid) for name, pid in self._processes(pool, clients).items()}

    def _processes(self, pool: atomr_mp.Pool, clients: list[Client]) -> dict[str, int]:
        """Return the pids of the processes that are compared, by name."""
        processes = {"supervisor": pool.supervisor_pid}
        # Those that were forked, or have stood by, differ from each other in what they have come to open.
        if self.shape.standby == "none":
            processes |= self._workers(pool)
        return processes | {f"client {client.pid}": client.pid for client in clients}

    def _workers(self, pool: atomr_mp.Pool) -> dict[str, int]:
        """Return all, the one that is spared first: what it holds after a round is what any may hold."""
        by_age = sorted(pool.devices, key=lambda device: device.index != self.shape.spared)
        return {f"worker {device.index}": device.pid for device in by_age}

    def _ask_witness(self, pool: atomr_mp.Pool, device: int) -> None:
        """Have a worker tell what keeps slabs mapped in it."""
        try:
            told = pool.call("Witness.keepers", device=device).result()
        except errors.AtomrError as error:
            told = [f"Witness.keepers: {error!r}"]
        self._wrong += [f"worker {device}: {each}" for each in told]

    # --- bookkeeping -----------------------------------------------------------------------------------------------

    def _count(self, count: words.Count) -> None:
        self.counts.update(count.counts)
        for each in count.wrong:
            if each not in self._wrong:  # the others are counted
                self._console.print(f"wrong: {each}", style="red", markup=False)
        self._wrong += count.wrong

    def _report(self, pool: atomr_mp.Pool, number: int, left_s: float) -> None:
        status = pool.status()
        memory = [f"supervisor {status.supervisor_memory_bytes >> 20} MiB"]
        memory += [f"worker {worker.index} {worker.memory_bytes >> 20} MiB" for worker in status.devices]
        counts = ", ".join(f"{name} {count:,}" for name, count in sorted(self.counts.items()))
        self._console.print(f"round {number + 1}, {left_s:.0f} s left: {counts}; {', '.join(memory)}")


def _made(observer: OperatorSession) -> int:
    """Return how many processes there are that workers are, or come from: helpers come and go."""
    processes = observer.inventory().processes
    return sum(each.device is not None or each.role in {"zygote", "reserve"} for each in processes)


def _between_events(pool: atomr_mp.Pool) -> Census:
    """Return the supervisor's holdings while it has no client but us.

    While it handles an event, it may have closed descriptors that it is about to open anew: those by which it watches a
    worker's threads, when one of these has ended. So they count if an answer of its own lies between two equal looks.
    """
    until_s = time.monotonic() + SETTLE_S
    found = None
    with OperatorSession(pool.run_dir / SESSION_SOCKET) as observer:
        while True:
            alone = len(observer.inventory().sessions) == 2
            now = census(pool.supervisor_pid)
            if (alone and found is not None and now[:2] == found[:2]) or time.monotonic() > until_s:
                return now._replace(descriptors=now.descriptors - 1)  # without that of the observer
            found = now


def _calling(observer: OperatorSession) -> int:
    """Return how many clients there are."""
    return sum(each.state == "calls" for each in observer.inventory().sessions)


def _starts(observer: OperatorSession) -> bool:
    """Return whether some of them are still to say that they are ready."""
    return any(each.standby is not None and each.standby.state == "starting" for each in observer.status().workers)


def _kind(name: str) -> str:
    return "worker" if name.startswith("worker") else name
