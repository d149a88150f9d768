"""The soak: a pool, its clients, and what kills both; in rounds, after each of which everything must be as it was."""

from __future__ import annotations

import collections
import os
import random
import secrets
import signal
import time
from pathlib import Path
from typing import Final

import psutil
from rich.console import Console

import atomr_mp
from atomr_mp import errors
from soaking import words
from soaking.caller import GRACE_S
from soaking.census import MARK, Census, census, marked
from soaking.clients import Client, Clients

ACTORS: Final = ("Echo", "Maker", "Hoard")
DEVICES: Final = 2

SPARED: Final = 1
"""The device that is not killed any more from the middle of the first round on, so that its worker grows old."""

ROUND_S: Final = 150.0
"""About how long a round is."""

SURVIVORS: Final = 2
VICTIMS: Final = 2
"""How many clients are never killed, and how many at random; these are replaced."""

KILL_WORKER_S: Final = 4.0
KILL_CLIENT_S: Final = 5.0
"""A kill comes after a time between 0 and this, again and again."""

SETTLE_S: Final = 20.0
"""How long a round's end may take to be as the beginning: what is shared waits for up to five seconds, and the clients'
sockets are closed by threads of libzmq."""

GROWTH_BYTES: Final = {"supervisor": 2 * 2**20, "worker": 12 * 2**20, "client": 8 * 2**20}
"""How much more memory of its own (USS) a process may have after any round than at first."""

MALLOC: Final = {"MALLOC_MMAP_THRESHOLD_": "65536"}
"""By itself the C library keeps tens of MiB of what threads have freed. Then nobody could see what was not."""

MEMORY_BYTES: Final = 4 * 2**30
"""Most that a device's slabs may take. None of it may be wanting."""

AT_REST: Final = ("used_bytes", "leases", "views", "shared")
"""Figures of a device's memory that are 0 when nobody holds anything."""

ALONE: Final = ("slabs", "slab_bytes", "open_elsewhere", "client_slabs", "foreign_slabs")
"""Those that are 0 when nobody is connected."""


class Soak:
    """One run.

    Args:
        console: Where to report.
        duration_s: How long.
        rounds: How many; None for some minutes each, and two at least.
        seed: Of all random choices.
    """

    def __init__(self, console: Console, duration_s: float, rounds: int | None, seed: int) -> None:
        self._console = console
        self._rounds = rounds or max(2, round(duration_s / ROUND_S))
        self._round_s = duration_s / self._rounds
        self._chance = random.Random(seed)
        self._counts: collections.Counter[str] = collections.Counter()
        self._wrong: list[str] = []
        self._before: dict[str, Census] = {}
        """What the supervisor held before any client came, and others after their first round; the spared worker stands
        for all."""

    def run(self) -> list[str]:
        """Run; return what went wrong."""
        mark = os.environ[MARK] = secrets.token_hex(8)
        os.environ.update(MALLOC)
        here = psutil.Process().num_fds()
        with self._start() as pool:
            self._before["supervisor"] = census(pool.supervisor_pid)
            clients = Clients(pool.run_dir, self._chance, self._count)
            try:
                for _ in range(SURVIVORS):
                    clients.start(survives=True)
                for number in range(self._rounds):
                    self._round(pool, clients, number)
            finally:
                statuses = clients.close()
            if any(statuses):
                self._wrong.append(f"clients ended with {statuses}")
        del os.environ[MARK]
        self._wrong += [f"a process is left: {left}" for left in marked(mark)]
        if psutil.Process().num_fds() > here:
            self._wrong.append(f"{psutil.Process().num_fds()} descriptors are open here, {here} were at the beginning")
        return self._wrong

    def _start(self) -> atomr_mp.Pool:
        actors = Path(__file__).with_name("soak_actor.py")
        return atomr_mp.start(
            actors=[f"{actors}:{name}" for name in ACTORS],
            gpus=DEVICES,
            backend="host",
            max_restarts=10**6,
            within_s=1.0,
            backoff_initial_s=0.0,
            memory_bytes=MEMORY_BYTES,
        )

    # --- a round ---------------------------------------------------------------------------------------------------

    def _round(self, pool: atomr_mp.Pool, clients: Clients, number: int) -> None:
        """Let all work, and come to rest, and leave; compare what is left."""
        until_s = time.monotonic() + self._round_s
        use = words.Use(until_s, SPARED if number else None)
        for client in clients.living:
            client.tell(use)
        for _ in range(VICTIMS):
            clients.start(survives=False).tell(use)
        self._disturb(pool, clients, use, number)
        for client in [client for client in clients.living if not client.survives]:
            self._kill_client(clients, client)
        self._wait(clients, words.Rested)
        self._let_go(pool)
        self._expect(pool, AT_REST, "is held though nobody holds anything")
        for client in clients.living:
            client.tell(words.Leave())
        self._wait(clients, words.Left)
        self._expect(pool, ALONE, "is there though nobody is connected")
        self._compare(pool, clients, number)

    def _disturb(self, pool: atomr_mp.Pool, clients: Clients, use: words.Use, number: int) -> None:
        """Kill workers and clients until the time is over."""
        chance = self._chance
        begun_s = report_s = time.monotonic()
        halfway_s = begun_s + self._round_s / 2
        worker_s, client_s = begun_s + KILL_WORKER_S / 2, begun_s + KILL_CLIENT_S / 2
        while (now_s := time.monotonic()) < use.until_s:
            if now_s >= worker_s:
                worker_s = now_s + KILL_WORKER_S * chance.random()
                self._end_worker(pool, 1 - SPARED if number or now_s > halfway_s else chance.randrange(DEVICES))
            if now_s >= client_s:
                client_s = now_s + KILL_CLIENT_S * chance.random()
                victims = [client for client in clients.living if not client.survives]
                if victims:
                    self._kill_client(clients, chance.choice(victims))
                    clients.start(survives=False).tell(use)
            if now_s >= report_s:
                report_s = now_s + max(1.0, self._round_s / 5)
                self._report(pool, number, use.until_s - now_s)
            clients.hear(max(0.0, min(worker_s, client_s, report_s, use.until_s) - time.monotonic()))

    def _end_worker(self, pool: atomr_mp.Pool, device: int) -> None:
        """Kill a worker, or have it replaced."""
        if self._chance.random() < 0.3:
            pool.restart(device)
            self._counts["restart"] += 1
            return
        pid = pool.devices[device].pid
        try:
            if pid and psutil.Process(pid).ppid() == pool.supervisor_pid:
                os.kill(pid, signal.SIGKILL)
                self._counts["kill of a worker"] += 1
        except (psutil.NoSuchProcess, ProcessLookupError):  # it comes back just now
            return

    def _kill_client(self, clients: Clients, client: Client) -> None:
        clients.kill(client)
        self._counts["kill of a client"] += 1

    def _wait(self, clients: Clients, kind: type[words.FromClient]) -> None:
        late = clients.wait(kind, GRACE_S + SETTLE_S)
        self._wrong += [f"client {client.pid} has not said {kind.__name__}" for client in late]

    def _let_go(self, pool: atomr_mp.Pool) -> None:
        """Have the actors drop what they have kept, which has to be as it was."""
        pool.wait_ready()
        for device in range(DEVICES):
            try:
                if not pool.call("Hoard.drop", device=device).result():
                    self._wrong.append(f"what an actor of device {device} kept was written over")
            except errors.AtomrError as error:
                self._wrong.append(f"Hoard.drop: {error!r}")

    # --- what is left ----------------------------------------------------------------------------------------------

    def _expect(self, pool: atomr_mp.Pool, names: tuple[str, ...], what: str) -> None:
        """See that figures of all devices come to 0."""
        until_s = time.monotonic() + SETTLE_S
        while left := self._not_zero(pool, names):
            if time.monotonic() > until_s:
                self._wrong.append(f"{what}: {left}")
                return
            time.sleep(0.02)  # no event tells when a share's time is over

    def _not_zero(self, pool: atomr_mp.Pool, names: tuple[str, ...]) -> dict[str, int]:
        figures = [pool.device(device).statistics() for device in range(DEVICES)]
        return {
            f"{name} of device {device}": each[name]
            for device, each in enumerate(figures)
            for name in names
            if each[name]
        }

    def _compare(self, pool: atomr_mp.Pool, clients: Clients, number: int) -> None:
        """Compare what processes hold with what they held at first, once it changes no more."""
        until_s = time.monotonic() + SETTLE_S
        while True:
            now = self._census(pool, clients.living)
            for name, found in now.items():
                self._before.setdefault(_kind(name), found)
            more = [name for name, found in now.items() if found.slabs or found.exceeds(self._before[_kind(name)])]
            if not more or time.monotonic() > until_s:
                break
            time.sleep(0.05)  # of a socket that libzmq closes, no event tells
        for name in more:
            self._wrong.append(f"{name} holds {now[name]}, at first it was {self._before[_kind(name)]}")
        for name, found in now.items():
            bound = self._before[_kind(name)].own_bytes + GROWTH_BYTES[name.split()[0]]
            if found.own_bytes > bound:
                self._wrong.append(f"{name} has {found.own_bytes >> 10} KiB, more than {bound >> 10} KiB")
        sizes = ", ".join(
            f"{name} {found.own_bytes / 2**20:.1f} MiB, {found.descriptors} descriptors, {found.threads} threads"
            for name, found in now.items()
        )
        self._console.print(f"after round {number + 1} of {self._rounds}: {sizes}")

    def _census(self, pool: atomr_mp.Pool, clients: list[Client]) -> dict[str, Census]:
        processes = {"supervisor": pool.supervisor_pid}
        # The one that is spared first: what it holds after a round is what any may hold.
        for device in sorted(pool.devices, key=lambda device: device.index != SPARED):
            processes[f"worker {device.index}"] = device.pid
        processes |= {f"client {client.pid}": client.pid for client in clients}
        return {name: census(pid) for name, pid in processes.items()}

    # --- bookkeeping -----------------------------------------------------------------------------------------------

    def _count(self, count: words.Count) -> None:
        self._counts.update(count.counts)
        for each in count.wrong:
            if each not in self._wrong:  # the others are counted
                self._console.print(f"wrong: {each}", style="red", markup=False)
        self._wrong += count.wrong

    def _report(self, pool: atomr_mp.Pool, number: int, left_s: float) -> None:
        status = pool.status()
        memory = [f"supervisor {status.supervisor_memory_bytes >> 20} MiB"]
        memory += [f"worker {worker.device.index} {worker.memory_bytes >> 20} MiB" for worker in status.workers]
        counts = ", ".join(f"{name} {count:,}" for name, count in sorted(self._counts.items()))
        self._console.print(f"round {number + 1}, {left_s:.0f} s left: {counts}; {', '.join(memory)}")


def _kind(name: str) -> str:
    return "worker" if name.startswith("worker") else name
