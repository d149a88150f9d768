"""Traces of running pools: their content, and who may make them. The file is whole whatever ends."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import atomr_mp
from atomr_mp import errors
from atomr_mp.operator.session import OperatorSession
from atomr_mp.operator.trace.rows import CLIENTS, GPU_ROWS
from atomr_mp.operator.trace.tracer import PoolTracer
from atomr_mp.process.files.rundir import SESSION_SOCKET
from tests.support import DEADLINE_S, Ledger, settled

CLI = (sys.executable, "-m", "atomr_mp.cli")
LONG_S = 60.0

Events = list[dict[str, Any]]


@pytest.fixture(scope="module")
def pool() -> Iterator[atomr_mp.Pool]:
    """A pool that the tests share."""
    with Ledger() as ledger, ledger.start() as started:
        yield started


@contextlib.contextmanager
def traced(pool: atomr_mp.Pool, file: Path) -> Iterator[None]:
    """Trace a pool within the `with` block; the file is there afterwards."""
    stop = threading.Event()
    with OperatorSession(pool.run_dir / SESSION_SOCKET) as observer, file.open("wb", buffering=0) as out:
        tracer = PoolTracer(observer, LONG_S, stop.is_set)
        runs = threading.Thread(target=lambda: tracer.run(out))
        runs.start()
        try:
            yield
        finally:
            stop.set()
            runs.join(DEADLINE_S)
        assert not runs.is_alive()


def read(file: Path) -> tuple[Events, dict[str, Any]]:
    """Return the events of a file, and what it says of itself."""
    found = json.loads(file.read_bytes())
    for event in found["traceEvents"]:
        assert event["ph"] in {"X", "b", "e", "s", "f", "i", "M"}
        assert isinstance(event["pid"], int)
        assert event["ph"] == "M" or event["ts"] > 0
        assert event.get("dur", 0) >= 0
    return found["traceEvents"], found["otherData"]


def named(events: Events, name: str, *, client: bool = False) -> Events:
    """Return the spans of a name, in devices' rows but for those of the GPU's own times, or in clients'."""
    spans = [event for event in events if event["ph"] == "X" and (event["pid"] >= CLIENTS) is client]
    return [event for event in spans if event["name"] == name and (client or event["tid"] < GPU_ROWS)]


def command(pool: atomr_mp.Pool, *options: str | Path) -> subprocess.Popen[str]:
    """Start the command."""
    return subprocess.Popen(
        [*CLI, "trace", "--run-dir", str(pool.run_dir), *map(str, options)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    """Return the status of a command, and what it has written."""
    with process:
        out, err = process.communicate(timeout=DEADLINE_S)
        return process.returncode, out, err


def test_a_trace_has_calls_with_their_waits_steps_copies_and_rates(pool: atomr_mp.Pool, tmp_path: Path) -> None:
    """Of the loop, of threads and of libraries; replies tell the device's time meanwhile, and not before or after."""
    device, x = pool.device(0), np.ones((64, 64))
    assert _gpu_s(pool) is None
    with traced(pool, tmp_path / "trace.json"):
        assert settled(lambda: _submitted(pool) > 0)
        thread = pool.call("Probe.note_on_thread", "b")
        assert thread.result() == "b"
        assert 0 < (thread.gpu_s or 0) < DEADLINE_S
        ref = device.put(x)
        assert device.blas.gemm(ref, ref).result().numpy()[0, 0] == 64
        with device.program() as program:
            factor = program.input("factor", x.shape, "float64")
            program.returns(program.blas.gemm(factor, ref))
        assert program.run(factor=x).result().numpy()[0, 0] == 64
        with pytest.raises(errors.ActorFailed):
            pool.call("Probe.raise_strangely", "text").result()
    assert settled(lambda: _gpu_s(pool) is None)
    events, facts = read(tmp_path / "trace.json")
    assert (facts["dropped"], facts["unmatched"], facts["ended_early"]) == (0, 0, "it was stopped")
    assert facts["pool"] == pool.name
    calls = named(events, "Probe.note", client=True)
    assert len(calls) == len(named(events, "Probe.note")) > 0
    assert any(call["args"]["wait_us"] > 0 for call in calls)
    assert f"pid {os.getpid()}" in calls[-1]["args"]["client"]
    (on_thread,) = named(events, "Probe.note_on_thread")
    rows = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert rows[on_thread["tid"]].startswith("thread")
    (product,) = [event for event in named(events, "blas.gemm") if "kind" not in event["args"]]
    took_s = product["args"].get("gpu_us", product["dur"]) / 1e6
    assert product["args"]["gflops"] == pytest.approx(2 * 64**3 / took_s / 1e9, rel=1e-3)
    assert product["args"]["gbytes_per_s"] == pytest.approx(3 * 8 * 64**2 / took_s / 1e9, rel=1e-3)
    (step,) = [event for event in named(events, "blas.gemm") if event["args"].get("kind") == "step"]
    (run,) = named(events, "program.run")
    assert run["ts"] <= step["ts"] <= step["ts"] + step["dur"] <= run["ts"] + run["dur"]
    assert run["tid"] == step["tid"]
    (failed,) = named(events, "Probe.raise_strangely")
    assert failed["args"]["error"] == "actor_failed"


def _submitted(pool: atomr_mp.Pool) -> int:
    """Return the time of a call, as its request says it."""
    reply = pool.call("Probe.note", "a")
    reply.result()
    return reply.submitted_ns


def _gpu_s(pool: atomr_mp.Pool) -> float | None:
    reply = pool.call("Probe.note", "a")
    reply.result()
    return reply.gpu_s


def test_one_trace_runs_at_a_time_and_ends_with_its_session(pool: atomr_mp.Pool, tmp_path: Path) -> None:
    """The second error says when to try again; no trace goes on behind a tracer that has died."""
    with (
        OperatorSession(pool.run_dir / SESSION_SOCKET) as first,
        OperatorSession(pool.run_dir / SESSION_SOCKET) as second,
    ):
        PoolTracer(first, LONG_S)
        with pytest.raises(errors.Overloaded, match="traced already") as refused:
            PoolTracer(second, 1.0)
        assert 0 < (refused.value.retry_after_s or 0) <= LONG_S
        assert settled(lambda: (_gpu_s(pool) or 0) > 0)
    assert settled(lambda: _gpu_s(pool) is None)
    file = tmp_path / "trace.json"
    with (
        OperatorSession(pool.run_dir / SESSION_SOCKET) as third,
        (tmp_path / "trace.json").open("wb", buffering=0) as out,
    ):
        assert "ended_early" not in PoolTracer(third, 0.01).run(out)
    assert read(file)[1]["seconds"] >= 0.01


def test_the_command_writes_a_file_or_standard_output(pool: atomr_mp.Pool, tmp_path: Path) -> None:
    """It replaces no file unasked, and takes no odd times."""
    file = tmp_path / "trace.json"
    assert ended(command(pool, "--seconds", "0.1", "-o", file))[0] == 0
    first = file.read_bytes()
    status, out, err = ended(command(pool, "--seconds", "0.1", "-o", file))
    assert (status, out) == (1, "")
    assert "exists" in err
    assert file.read_bytes() == first
    assert ended(command(pool, "--seconds", "0.1", "-o", file, "--force"))[0] == 0
    assert read(file)[1]["began_ns"] > json.loads(first)["otherData"]["began_ns"]
    status, out, err = ended(command(pool, "--seconds", "0.1", "-o", "-"))
    assert status == 0
    assert json.loads(out)["otherData"]["pool"] == pool.name
    assert "tracing pool" in err
    assert ended(command(pool, "--seconds", "61"))[0] == 2
    assert ended(command(pool, "-o", tmp_path / "none" / "trace.json"))[0] == 1


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_tracer_that_is_ended_leaves_a_whole_file(pool: atomr_mp.Pool, tmp_path: Path, how: signal.Signals) -> None:
    """And the pool is not traced any longer."""
    file = tmp_path / "trace.json"
    process = command(pool, "--seconds", "60", "-o", file)
    assert process.stderr is not None
    assert "tracing pool" in process.stderr.readline()
    assert settled(lambda: (_gpu_s(pool) or 0) > 0)
    assert settled(lambda: file.exists() and b"Probe.note" in file.read_bytes())
    process.send_signal(how)
    assert ended(process)[0] == (-9 if how is signal.SIGKILL else 130)
    events, facts = read(file)
    assert named(events, "Probe.note", client=True)
    assert facts.get("ended_early", "") == ("" if how is signal.SIGKILL else "it was stopped")
    assert settled(lambda: _gpu_s(pool) is None)


def test_a_worker_s_death_and_its_successor_are_in_the_trace(ledger: Ledger, tmp_path: Path) -> None:
    """With what ran there; the successor is recorded too."""
    with ledger.start() as pool, traced(pool, tmp_path / "trace.json"):
        gate = ledger.gate("gate")
        held = pool.call("Probe.hold_on_thread", gate.path)
        (pid,) = gate.wait()
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(errors.WorkerLost):
            held.result()
        assert settled(lambda: (_gpu_s(pool) or 0) > 0)
    events, facts = read(tmp_path / "trace.json")
    assert facts["processes"] == 2
    (run,) = named(events, "Probe.hold_on_thread")
    assert run["args"]["unfinished"] == "its worker ended before it"
    assert {event["args"]["generation"] for event in named(events, "Probe.note")} == {2}
    instants = [event["name"] for event in events if event["ph"] == "i"]
    assert "generation 1 is lost (worker_lost)" in instants
    assert any("generation 2 takes over" in name for name in instants), instants


def test_a_pool_that_stops_ends_its_trace(ledger: Ledger, tmp_path: Path) -> None:
    """The file has what there was, and says why it ends."""
    with contextlib.ExitStack() as stack:
        pool = ledger.start()
        stack.callback(pool.close)
        process = command(pool, "--seconds", "60", "-o", tmp_path / "trace.json")
        assert process.stderr is not None
        assert "tracing pool" in process.stderr.readline()
        assert settled(lambda: (_gpu_s(pool) or 0) > 0)
        pool.close()
        assert ended(process)[0] == 0
    events, facts = read(tmp_path / "trace.json")
    assert "stopped" in facts["ended_early"]
    assert named(events, "Probe.note", client=True)


def test_a_full_disk_is_named_with_its_file(pool: atomr_mp.Pool) -> None:
    """What could not be written is no trace, and the command says so."""
    status, _, told = ended(command(pool, "--seconds", "0.2", "-o", "/dev/full"))
    assert status == 1
    assert "/dev/full" in told
    assert "No space left" in told
