"""Maps over a world: items run as its calls, in the items' order, with a journal and errors as on devices."""

from __future__ import annotations

import asyncio
import itertools
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import atomr_mp
from atomr_mp import errors
from atomr_mp.mapping.run import Failure, Progress
from tests.support import ACTORS, DEADLINE_S, PROBE, Ledger
from tests.worlds import on_host

WORLDLY = f"{ACTORS}/worldly.py:Worldly"
SIZE = 2
SUM = sum(range(1, SIZE + 1))

pytestmark = on_host


@pytest.fixture(scope="module")
def pool() -> Iterator[atomr_mp.Pool]:
    """A pool with a world, beside an actor of all devices."""
    worlds = {"tp": {"devices": [1, 0], "actors": ["Worldly"]}}
    with Ledger() as ledger, ledger.start(WORLDLY, PROBE, gpus=SIZE, worlds=worlds, max_restarts=100) as started:
        yield started


def noted(pool: atomr_mp.Pool) -> list[int]:
    """Return what the ranks have noted, which is the same on all."""
    logs = pool.world("tp").call("Worldly.noted", each=True).result(DEADLINE_S)
    assert all(log == logs[0] for log in logs)
    found: list[int] = logs[0]
    return found


def test_results_come_in_the_order_of_the_items(pool: atomr_mp.Pool) -> None:
    """Numbers, and arrays that lie in shared memory; each item is called once on all ranks."""
    seen: list[Progress] = []
    items = [float(n) for n in range(300)]
    assert list(pool.map("Worldly.add", items, on_progress=seen.append)) == [n * SUM for n in items]
    assert (seen[-1].done, seen[-1].failed, seen[-1].resubmitted) == (300, 0, 0)
    for n, found in enumerate(pool.map("Worldly.add", (np.full(50_000, n) for n in range(20)))):
        np.testing.assert_array_equal(found, np.full(50_000, n * SUM))
    begin = len(noted(pool))
    assert list(pool.map("Worldly.note", range(100))) == list(range(100))
    assert noted(pool)[begin:] == list(range(100))
    assert list(pool.map("Probe.echo", [1, 2])) == [1, 2], "the pool's other actors have all devices"


def test_items_are_taken_as_they_are_needed(pool: atomr_mp.Pool) -> None:
    """An endless input is no problem; what was sent when the reader leaves is not in the next one's way."""
    found: Any = pool.map("Worldly.add", itertools.count(), in_flight=3)
    assert list(itertools.islice(found, 50)) == [n * SUM for n in range(50)]
    found.close()
    assert pool.world("tp").call("Worldly.add", 1.0).result(DEADLINE_S) == SUM


def test_event_loops_map_too(pool: atomr_mp.Pool) -> None:
    """In order, or as the results come, from any iterable; failures in their place."""

    async def use() -> None:
        assert [n async for n in pool.amap("Worldly.add", range(200))] == [n * SUM for n in range(200)]
        found = [n async for n in pool.amap("Worldly.add", range(50), ordered=False, in_flight=4)]
        assert sorted(found) == [n * SUM for n in range(50)]
        mixed = [n async for n in pool.amap("Worldly.add", [1, "text", 2], return_failures=True)]
        assert (mixed[0], mixed[2]) == (SUM, 2 * SUM)
        assert isinstance(mixed[1].error, errors.ActorFailed)

    asyncio.run(use())


def test_a_failed_item_has_its_index_and_its_rank(pool: atomr_mp.Pool) -> None:
    """Raised in its place, or yielded there; its error says which rank has raised it."""
    found = list(pool.map("Worldly.add", [1, "text", 2], return_failures=True))
    assert (found[0], found[2]) == (SUM, 2 * SUM)
    assert isinstance(found[1], Failure)
    assert (found[1].index, found[1].attempts) == (1, 1)
    assert isinstance(found[1].error, errors.ActorFailed)
    assert found[1].error.rank == 0
    with pytest.raises(errors.ActorFailed) as raised:
        list(pool.map("Worldly.add", [1, "text", 2]))
    assert "item 1 of this map" in raised.value.__notes__[0]
    ref = pool.device(0).put(np.ones(3))
    (refused,) = pool.map("Worldly.add", [ref], return_failures=True)
    assert "ref" in str(refused.error)
    assert refused.attempts == 0
    (late,) = pool.map("Worldly.wait", [0.3], deadline_s=0.1, return_failures=True)
    assert isinstance(late.error, errors.DeadlineExceeded)
    ref.free()


def test_a_journal_goes_on_where_a_map_was_left(pool: atomr_mp.Pool, tmp_path: Path) -> None:
    """What it has recorded runs no more; an item of a method that must not run twice and was in flight is set aside."""
    begin, journal = len(noted(pool)), tmp_path / "journal"
    found: Any = pool.map("Worldly.note", range(1000, 1060), in_flight=4, journal=journal)
    assert list(itertools.islice(found, 20)) == list(range(1000, 1020))
    found.close()
    again = list(pool.map("Worldly.note", range(1000, 1060), journal=journal, return_failures=True))
    assert [n for n in again if not isinstance(n, Failure)][:20] == list(range(1000, 1020))
    assert sum(isinstance(n, Failure) for n in again) <= 4
    ran = noted(pool)[begin:]
    assert sorted(ran) == sorted(set(ran)), "none has run twice"
    assert set(range(1000, 1060)) - set(ran) <= {n.index + 1000 for n in again if isinstance(n, Failure)}


def test_wrong_use_is_told_in_the_caller_s_words(pool: atomr_mp.Pool) -> None:
    """Before anything is sent."""
    with pytest.raises(errors.InvalidRequest, match="belongs to the world tp, whose calls run in the order"):
        pool.map("Worldly.add", [1], priority=1)
    with pytest.raises(errors.InvalidRequest, match="belongs to the world tp, whose calls run in the order"):
        pool.amap("Worldly.add", [1], priority=-1)
    with pytest.raises(errors.WrongArgument, match="device"):
        pool.map("Worldly.add", [1], device=1)  # type: ignore[call-arg]
    with pytest.raises(errors.InvalidRequest, match=r"call pool.world\('tp'\)"):
        pool.call("Worldly.add", 1)


def test_the_command_maps_a_file(pool: atomr_mp.Pool, tmp_path: Path) -> None:
    """Through the world of a running pool."""
    source, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text("".join(f"{n}\n" for n in range(30)), encoding="utf-8")
    command = [sys.executable, "-m", "atomr_mp.cli", "map", "Worldly.add", "--input", source, "--output", output]
    told: Any = subprocess.run(
        [*map(str, command), "--run-dir", str(pool.run_dir)],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert told.returncode == 0, told.stderr
    assert [json.loads(line) for line in output.read_text(encoding="utf-8").splitlines()] == [
        n * SUM for n in range(30)
    ]


def test_the_command_starts_a_world_for_its_job(tmp_path: Path) -> None:
    """Of all of its actors; without an actor there is nothing to make a world of."""
    source, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text("1\n2\n", encoding="utf-8")
    command = [sys.executable, "-m", "atomr_mp.cli", "map", "Worldly.add", "--input", source, "--output", output]
    own = ["--gpus", str(SIZE), "--backend", "host", "--run-dir", str(tmp_path / "own"), "--world", "tp=0,1"]
    refused = subprocess.run(
        [*map(str, command), *own], capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )
    assert refused.returncode == 2
    assert "name its --actor" in refused.stderr
    told = subprocess.run(
        [*map(str, command), *own, "--actor", WORLDLY], capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )
    assert told.returncode == 0, told.stderr
    assert [json.loads(line) for line in output.read_text(encoding="utf-8").splitlines()] == [SUM, 2 * SUM]
