"""Random gang calls of overlapping worlds while members, clients and calls do everything that ends an epoch.

Each execution is noted in a file by its rank, alone or in a batch. Afterwards every call of a client that lived has one
outcome, and each result is what NumPy says. What may not run twice has run at most once on a rank, and not at all where
its error says so. All ranks of a world have run the calls, and the steps of streams, of an epoch in one order, as far
as each has come. Streams have all parts once, and resumable ones end well. If all ends of members are planned, no call
is aborted.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any, Final

import numpy as np

import atomr_mp

ACTORS: Final = Path(__file__).with_name("world_actor.py")
CLIENT: Final = Path(__file__).with_name("world_client.py")
WORLDS: Final = {
    "a": {"devices": [0, 1, 2, 3], "actors": ["Noting"], "begin_timeout_s": 1.0},
    "b": {"devices": [3, 1], "actors": ["Other"], "begin_timeout_s": 1.0},
}
DEADLINE_S: Final = 60.0
ALLOWED: Final = {
    "sums": set[str](),
    "late": set[str](),
    "twice": set[str](),
    "raises": {"ActorFailed"},
    "raises late": {"ActorFailed"},
    "differs": {"WorldMismatch", "CollectiveAborted"},
    "kills": {"WorkerLost", "CollectiveAborted", "PoisonRequest"},
    "poisons": {"ContextPoisoned", "CollectiveAborted", "PoisonRequest"},
}
LOST: Final = {"WorkerLost", "CollectiveAborted", "ContextPoisoned"}
"""Outcomes that any call which may not run twice can have, unless all ends are planned."""
HARMS: Final = ("kill", "kill", "two", "stop", "restart", "none")
PLANNED: Final = ("restart", "restart", "restart", "reload", "none")


class WorldWalk:
    """One run.

    Args:
        seconds: How long clients call.
        seed: Decides about calls and losses.
        clients: How many clients; the last one is killed.
        standby: What the pool has behind its workers.
        planned: Whether members are replaced as planned, and nothing else happens to them.
    """

    def __init__(
        self, seconds: float, seed: int, clients: int = 4, standby: str = "hot", *, planned: bool = False
    ) -> None:
        self._seconds = seconds
        self._chosen = random.Random(seed)
        self._seed = seed
        self._clients = clients
        self._standby = standby
        self._planned = planned
        self.counts: Final[Counter[str]] = Counter()
        self.wrong: Final[list[str]] = []

    def run(self) -> None:
        """Call, harm, and judge."""
        with tempfile.TemporaryDirectory(prefix="atomr-mp-worlds-", dir="/tmp") as folder:
            notes = Path(folder) / "notes"
            notes.mkdir()
            os.environ["WORLD_NOTES"] = str(notes)
            try:
                with atomr_mp.start(
                    actors=[f"{ACTORS}:Noting", f"{ACTORS}:Other"],
                    gpus=4,
                    backend="host",
                    run_dir=Path(folder) / "run",
                    standby=self._standby,
                    worlds=WORLDS,
                    max_restarts=100_000,
                    backoff_initial_s=0.0,
                    max_suspicions=0,
                    max_replays=1000,  # losses come more often than in life
                ) as pool:
                    outcomes = self._use(pool, Path(folder))
            finally:
                del os.environ["WORLD_NOTES"]
            self._judge(outcomes, notes)

    def _use(self, pool: atomr_mp.Pool, folder: Path) -> list[dict[str, Any]]:
        for name in WORLDS:
            pool.world(name).wait_ready(DEADLINE_S)
        programs = []
        for client in range(1, self._clients + 1):
            command = [sys.executable, str(CLIENT), str(folder / "run"), str(client), str(self._seed)]
            output = (folder / f"client-{client}").open("wb")
            manner = "gentle" if self._planned else "rough"
            programs.append(subprocess.Popen([*command, str(self._seconds), manner], stdout=output))
            output.close()
        until_s = time.monotonic() + self._seconds
        killed_client = time.monotonic() + self._seconds / 2
        while time.monotonic() < until_s:
            time.sleep(self._chosen.uniform(0.1, 0.8))  # a pace: clients call meanwhile
            self._harm(pool)
            if killed_client and time.monotonic() > killed_client:
                programs[-1].kill()
                self.counts["clients killed"] += 1
                killed_client = 0.0
        outcomes = []
        for client, program in enumerate(programs, start=1):
            try:
                code = program.wait(DEADLINE_S * 1.5)
            except subprocess.TimeoutExpired:
                program.kill()
                code = program.wait()
                self.wrong.append(f"client {client} was not answered")
            if code and program is not programs[-1]:
                self.wrong.append(f"client {client} ended with {code}")
            for line in (folder / f"client-{client}").read_text().splitlines():
                with contextlib.suppress(json.JSONDecodeError):  # the last line of a killed one
                    outcomes.append(json.loads(line))
        return outcomes

    def _harm(self, pool: atomr_mp.Pool) -> None:
        device = self._chosen.randrange(4)
        pid = pool.devices[device].pid
        way = self._chosen.choice(PLANNED if self._planned else HARMS)
        if not pid:
            return
        self.counts[way] += 1
        with contextlib.suppress(ProcessLookupError, atomr_mp.errors.AtomrError):
            if way == "restart":
                pool.restart(device)
            elif way == "reload":
                pool.reload(DEADLINE_S)
            elif way == "stop":
                os.kill(pid, signal.SIGSTOP)
                time.sleep(self._chosen.uniform(0, 0.5))  # how long it is stopped is what is tested
                os.kill(pid, signal.SIGCONT)
            elif way in {"kill", "two"}:
                os.kill(pid, signal.SIGKILL)
                other = pool.devices[(device + 1) % 4].pid
                if way == "two" and other:
                    os.kill(other, signal.SIGKILL)

    def _judge(self, outcomes: list[dict[str, Any]], notes: Path) -> None:
        runs = {path.name: [tuple(map(int, line.split())) for line in _lines(path)] for path in notes.iterdir()}
        executed: dict[str, Counter[int]] = {name: Counter(number for number, _ in each) for name, each in runs.items()}
        for outcome in outcomes:
            self._judge_one(outcome, executed)
        self._judge_order(runs)

    def _judge_one(self, call: dict[str, Any], executed: dict[str, Counter[int]]) -> None:
        world, number = call["world"], call["number"]
        size = len(WORLDS[world]["devices"])  # type: ignore[arg-type]
        counts = [executed.get(f"{world}-{rank}", Counter())[number] for rank in range(size)]
        error = call.get("error")
        self.counts[f"{call['way']}: {error or 'answered'}"] += 1
        self.counts["in batches"] += call["method"].startswith("batch") and not error
        if call["way"] == "streams":
            self._judge_stream(call, size, error)
            return
        if call["method"].endswith("once") and max(counts) > 1:
            self.wrong.append(f"call {number} of once has run {counts} times: {call}")
        if error is None:
            if min(counts) < 1:
                self.wrong.append(f"call {number} was answered and has run {counts} times")
            expected = (np.asarray(call["values"], np.float64) * sum(range(1, size + 1))).tolist()
            results = call["result"] if call["each"] else [call["result"]]
            if call["way"] in {"sums", "late", "twice"} and any(each != expected for each in results):
                self.wrong.append(f"call {number} of {call['way']} has a wrong result")
            if call["each"] and len(results) != size:
                self.wrong.append(f"call {number} has {len(results)} results")
            return
        if not call["maybe"] and max(counts):
            self.wrong.append(f"call {number} was said not to have run, and has {counts} times: {call}")
        lost = LOST if call["method"].endswith("once") and not self._planned else set[str]()
        allowed = ALLOWED[call["way"]] | lost
        if call["way"] in {"kills", "poisons"}:
            allowed |= LOST
        if error not in allowed:
            self.wrong.append(f"call {number} ({call['method']}, {call['way']}) ended with {error}: {call['text']}")

    def _judge_stream(self, call: dict[str, Any], size: int, error: str | None) -> None:
        first = call["values"][0] * sum(range(1, size + 1))
        expected = [float(first + step) for step in range(call["count"])]
        closes, found = call["closes"], call["result"]
        is_whole = found == expected or (closes is not None and found == expected[:closes])
        if (error is None and not is_whole) or found != expected[: len(found)]:
            self.wrong.append(f"stream {call['number']} has parts missing, or twice, or wrong: {call}")
        if error not in {None, *(LOST if call["method"].endswith("once") and not self._planned else ())}:
            self.wrong.append(f"stream {call['number']} ({call['method']}) ended with {error}: {call['text']}")

    def _judge_order(self, runs: dict[str, list[tuple[int, ...]]]) -> None:
        by_epoch: dict[tuple[str, int], dict[int, list[int]]] = defaultdict(dict)
        for name, each in runs.items():
            world, rank = name.split("-")[0], int(name.split("-")[1])
            for number, epoch in each:
                by_epoch[world, epoch].setdefault(rank, []).append(number)
        for (world, epoch), ranks in by_epoch.items():
            self.counts["epochs with calls"] += 1
            longest = max(ranks.values(), key=len)
            for rank, order in ranks.items():
                if order != longest[: len(order)]:
                    self.wrong.append(f"rank {rank} of world {world} has another order in epoch {epoch}")


def _lines(path: Path) -> list[str]:
    return [line for line in path.read_text().splitlines() if line.count(" ") == 1]
