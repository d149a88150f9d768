"""A map that is cut off: the same command continues it, and the output does not show it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import atomr_mp
from atomr_mp import errors
from atomr_mp.mapping.journal_frames import frames
from atomr_mp.mapping.run import Failure, Progress
from tests.support import ACTORS, DEADLINE_S, Gate, Ledger, settled

MAPPED = f"{ACTORS}/mapped.py:Mapped"
ITEMS = 300
GATED = 200
"""The item that waits at the gate."""
IN_FLIGHT = 8


class Job:
    """A run of the command with a journal."""

    def __init__(self, ledger: Ledger, method: str, output: str, *arguments: str) -> None:
        self.output = ledger.path / output
        self.journal = ledger.path / "journal"
        self._source = ledger.path / "in.jsonl"
        self._command = [
            *(sys.executable, "-m", "atomr_mp.cli", "map", method, "--input", str(self._source)),
            *("--output", str(self.output), "--journal", str(self.journal), "--in-flight", str(IN_FLIGHT), *arguments),
        ]

    def items(self, gate: str) -> None:
        """Write the input; one item waits at the gate and one is refused."""
        numbers = [-n if n == 50 else n for n in range(ITEMS)]
        self._source.write_text("".join(f"{json.dumps([gate if n == GATED else '', n])}\n" for n in numbers))

    def start(self) -> subprocess.Popen[str]:
        """Begin, or go on."""
        return subprocess.Popen(self._command, stderr=subprocess.PIPE, text=True)

    def finish(self, status: int = 1) -> str:
        """Go on to the end; return what is said. One item fails, hence the status."""
        with self.start() as process:
            _, told = process.communicate(timeout=DEADLINE_S)
        assert process.returncode == status, told
        return told

    def wait_kept(self, count: int) -> None:
        """Wait until the journal has so many outcomes, by its bytes: an outcome is longer than this."""
        assert settled(lambda: self.journal.exists() and self.journal.stat().st_size > 40 * count), "nothing was kept"


def computed_once(ledger: Ledger, runs: int) -> None:
    """Check that nothing was computed again except items in flight at a run's end."""
    counts = Counter(ledger.runs())
    assert len(counts) == ITEMS
    again = {number for number, count in counts.items() if count > 1}
    assert len(again) <= IN_FLIGHT * (runs - 1)
    assert str(GATED) in again


def check(job: Job) -> None:
    """Check that the output equals that of an undisturbed run."""
    if job.output.suffix == ".npy":
        rows = np.load(job.output)
        expected = np.stack([np.arange(float(ITEMS))] * 2, axis=1)
        expected[50] = np.nan
        np.testing.assert_array_equal(rows, expected)
        failures = Path(f"{job.output}.failures.jsonl").read_text().splitlines()
        assert [json.loads(line)["index"] for line in failures] == [50]
        return
    lines: list[Any] = [json.loads(line) for line in job.output.read_text().splitlines()]
    assert lines[50]["error"]["code"] == "actor_failed"
    lines[50] = [50, 50]
    assert lines == [[n, n] for n in range(ITEMS)]


@pytest.fixture
def pool(ledger: Ledger) -> Iterator[atomr_mp.Pool]:
    """Start a pool that outlives the commands."""
    with ledger.start(MAPPED, backoff_initial_s=0.05) as pool:
        yield pool


@pytest.fixture
def gate(ledger: Ledger) -> Iterator[Gate]:
    """Where an item waits."""
    with ledger.gate("gate") as gate:
        yield gate


@pytest.mark.parametrize("output", ["out.jsonl", "out.npy"])
def test_a_killed_map_goes_on_where_it_was(pool: atomr_mp.Pool, ledger: Ledger, gate: Gate, output: str) -> None:
    """Killed twice; then the output is whole, and only items in flight were computed twice."""
    job = Job(ledger, "Mapped.note", output, "--run-dir", str(pool.run_dir))
    job.items(gate.path)
    for _ in range(2):
        with job.start() as process:
            gate.wait()
            job.wait_kept(GATED - IN_FLIGHT)
            process.send_signal(signal.SIGKILL)
        gate.open()
        assert not job.output.exists(), "an output that is not whole"
    gate.open()
    told = job.finish()
    check(job)
    computed_once(ledger, 3)
    assert "of them by the journal" in told
    before = ledger.runs()
    job.finish()  # once more: all is in the journal
    check(job)
    assert ledger.runs() == before


def test_a_map_whose_supervisor_is_killed_goes_on_with_another(ledger: Ledger, gate: Gate) -> None:
    """It ends with status 2 and no output; the next run does the rest on a pool of its own."""
    run_dir = ledger.run_dir("own")
    own = ("--actor", MAPPED, "--backend", "host", "--gpus", "1", "--run-dir", str(run_dir))
    job = Job(ledger, "Mapped.note", "out.jsonl", *own)
    job.items(gate.path)
    with job.start() as process:
        gate.wait()
        with atomr_mp.connect(run_dir=run_dir) as pool:
            os.kill(pool.supervisor_pid, signal.SIGKILL)
        _, told = process.communicate(timeout=DEADLINE_S)
        assert process.returncode == 2, told
    assert "supervisor" in told
    assert not job.output.exists()
    gate.open(2)
    job.finish()
    check(job)
    computed_once(ledger, 2)


def test_what_may_run_once_only_is_set_aside_when_it_was_under_way(
    pool: atomr_mp.Pool, ledger: Ledger, gate: Gate
) -> None:
    """Nothing has run twice, and items that may have run are named, until `--retry-failed` asks for them."""
    run_dir = ("--run-dir", str(pool.run_dir))
    job = Job(ledger, "Mapped.note_once", "out.jsonl", *run_dir)
    job.items(gate.path)
    with job.start() as process:
        gate.wait()
        job.wait_kept(GATED - IN_FLIGHT)
        process.send_signal(signal.SIGKILL)
    gate.open()
    assert "not idempotent" in job.finish()
    runs = ledger.runs()
    assert len(runs) == len(set(runs))
    lines = [json.loads(line) for line in job.output.read_text().splitlines()]
    aside = [n for n, line in enumerate(lines) if isinstance(line, dict)]
    assert GATED in aside
    assert len(aside) <= IN_FLIGHT
    gate.open()
    Job(ledger, "Mapped.note_once", "out.jsonl", *run_dir, "--retry-failed").finish(0)
    lines = [json.loads(line) for line in job.output.read_text().splitlines()]
    assert lines == [-n if n == 50 else n for n in range(ITEMS)]


def test_a_flipped_bit_in_a_journal_has_nothing_run_twice(pool: atomr_mp.Pool, ledger: Ledger, gate: Gate) -> None:
    """The job is refused, and says how to go on; the damaged part is set aside, and the rest is known."""
    run_dir = ("--run-dir", str(pool.run_dir))
    job = Job(ledger, "Mapped.note_once", "out.jsonl", *run_dir)
    job.items(gate.path)
    gate.open()
    job.finish(0)
    runs = ledger.runs()
    content = bytearray(job.journal.read_bytes())
    done = [frame for frame in frames(bytes(content)) if b"done" in frame.record]
    content[done[100].end - 1] ^= 4
    job.journal.write_bytes(content)
    assert "--repair-journal" in job.finish(2)
    assert job.journal.read_bytes() == content
    Job(ledger, "Mapped.note_once", "out.jsonl", *run_dir, "--repair-journal").finish()
    assert ledger.runs() == runs
    lines = [json.loads(line) for line in job.output.read_text().splitlines()]
    assert sum(isinstance(line, dict) for line in lines) == 1
    job.finish()  # it is whole again


def test_what_failed_is_tried_again_only_if_asked_for(pool: atomr_mp.Pool, ledger: Ledger) -> None:
    """Like in the library: in its place, or raised."""
    journal = ledger.path / "journal"

    def outcomes(**options: Any) -> list[Any]:
        return list(pool.map("Mapped.note", [1, -2, 3], journal=journal, return_failures=True, **options))

    for retried, runs in ((False, 1), (False, 1), (True, 2)):
        seen: list[Progress] = []
        first, failure, last = outcomes(retry_failed=retried, on_progress=seen.append)
        assert (first, last) == ([1, 1], [3, 3])
        assert isinstance(failure, Failure)
        assert isinstance(failure.error, errors.ActorFailed)
        assert ledger.runs().count("-2") == runs
    assert seen[-1].recorded == 2
    with pytest.raises(errors.ActorFailed):
        list(pool.map("Mapped.note", [1, -2, 3], journal=str(journal)))
    assert Counter(ledger.runs()) == {"1": 1, "-2": 2, "3": 1}


def test_another_job_s_journal_is_refused(pool: atomr_mp.Pool, ledger: Ledger) -> None:
    """Another method at once, other items when they come; and a second map while the first is read."""
    journal = ledger.path / "journal"
    assert list(pool.map("Mapped.square", range(5), journal=journal)) == [n * n for n in range(5)]
    with pytest.raises(errors.JournalMismatch, match=r"Mapped\.square\(number\)"):
        pool.map("Mapped.root", range(5), journal=journal)
    with pytest.raises(errors.JournalMismatch, match="item 1, counted from 0, is another"):
        list(pool.map("Mapped.square", [0, 7], journal=journal))
    with pytest.raises(errors.JournalMismatch, match="the input has 3 items"):
        list(pool.map("Mapped.square", range(3), journal=journal))
    more = pool.map("Mapped.square", range(7), journal=journal)
    assert next(more) == 0
    with pytest.raises(errors.ConfigurationError, match="in use by another map"):
        pool.map("Mapped.square", range(7), journal=journal)
    assert list(more) == [n * n for n in range(1, 7)]
