"""Output without a reader, or that a disk does not take: it costs lines, which are counted, and nothing else."""

from __future__ import annotations

import contextlib
import fcntl
import io
import os
import re
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import atomr_mp
from atomr_mp import errors, output
from atomr_mp.process.files.events import read_events
from tests.support import BACKEND, DEADLINE_S, PROBE, Ledger, free_port, running, settled, wait_generation

ROOT: Final = Path(__file__).parents[3]
END = b"end\n"
NOTICE = re.compile(rb"\[atomr-mp: (\d+) lines? could not be written here\]\n")


@contextlib.contextmanager
def unread_pipe(size: int = 4096) -> Iterator[tuple[int, int]]:
    """Make a pipe that is full and has no reader."""
    reader, writer = os.pipe()
    try:
        fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, size)
        os.write(writer, b"." * (size - 1) + b"\n")
        yield reader, writer
    finally:
        os.close(reader)
        os.close(writer)


@given(st.lists(st.integers(0, 3000), min_size=1, max_size=300), st.integers(0, 300))
@settings(max_examples=60, deadline=None)
def test_each_line_is_written_or_counted(lengths: list[int], read_from: int) -> None:
    """Whenever somebody begins to read, lines are whole and in order, and missing lines are counted."""
    with unread_pipe() as (reader, writer):
        stream = io.TextIOWrapper(io.BufferedWriter(output.QueuedOutput(writer)), line_buffering=True)
        raw = stream.buffer.raw
        heard = bytearray()

        def read() -> None:
            while not heard.endswith(END):
                heard.extend(os.read(reader, 65536))

        thread = threading.Thread(target=read)
        for number, length in enumerate(lengths):
            if number == read_from:
                thread.start()
            stream.write(f"{number}:{'x' * length}\n")
        if thread.ident is None:
            thread.start()
        raw.drain(DEADLINE_S)
        os.write(writer, END)
        thread.join(DEADLINE_S)
    rest = bytes(heard).removesuffix(END).partition(b"\n")[2]  # the first line filled the pipe
    lost = sum(map(int, NOTICE.findall(rest)))
    lines = NOTICE.sub(b"", rest).decode().splitlines()
    numbers = [int(line.partition(":")[0]) for line in lines]
    assert numbers == sorted(set(numbers))
    assert all(line == f"{number}:{'x' * lengths[number]}" for number, line in zip(numbers, lines, strict=True))
    assert len(lines) + lost == len(lengths)


DISK = """
import resource, sys
from atomr_mp import output
_, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
output.protect()
for number in range(100):
    full = 30 <= number < 60
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 if full else hard, hard))
    print(number, flush=True)
print(flush=True, file=sys.stderr)
"""


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_file_that_is_full_for_a_while_lacks_lines_and_says_how_many(ledger: Ledger, unbuffered: str) -> None:
    """Nothing is raised where they are printed."""
    path = ledger.path / "output"
    with path.open("wb") as file:
        environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
        subprocess.run([sys.executable, "-c", DISK], stdout=file, env=environment, check=True)
    said = path.read_bytes()
    assert sum(map(int, NOTICE.findall(said))) >= 30
    assert NOTICE.sub(b"", said).split() == [str(each).encode() for each in (*range(30), *range(60, 100))]


TALKING = """
import logging, sys
from atomr_mp_workers import Actor, method
class Talking(Actor):
    @method
    def talk(self, number: int) -> int:
        print("x" * 100, flush=True)
        print("y" * 20000)
        print("z", file=sys.stderr)
        logging.getLogger("talking").warning("w" * 100)
        return number
"""

TALKS = """
import sys
import atomr_mp
if __name__ == "__main__":
    with atomr_mp.start(actors=[sys.argv[1]], gpus=1, backend=sys.argv[2], run_dir=sys.argv[3]) as pool:
        print(pool.supervisor_pid, pool.devices[0].pid, flush=True)
        for order in sys.stdin:
            if order == "reload\\n":
                try:
                    pool.reload()
                except atomr_mp.errors.AtomrError as error:
                    print(type(error).__name__, flush=True)
            else:
                print(sum(pool.call("Talking.talk", n).exception() is None for n in range(20)), flush=True)
"""


def test_a_full_disk_costs_log_lines_and_events_and_nothing_else(ledger: Ledger) -> None:
    """Methods that print and log are answered, orders carried out; standard error tells of it, without a traceback."""
    (ledger.path / "talking.py").write_text(TALKING)
    (ledger.path / "talks.py").write_text(TALKS)
    target = f"{ledger.path}/talking.py:Talking"
    command = [sys.executable, str(ledger.path / "talks.py"), target, BACKEND, str(ledger.run_dir())]
    streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, text=True, bufsize=1, **streams) as program, running(program):  # type: ignore[call-overload]

        def ask(order: str) -> str:
            program.stdin.write(f"{order}\n")
            return str(program.stdout.readline().strip())

        pids = [int(pid) for pid in program.stdout.readline().split()]
        assert ask("talk") == "20"
        limits = {pid: resource.prlimit(pid, resource.RLIMIT_FSIZE) for pid in pids}
        for pid, (_, hard) in limits.items():
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (1, hard))  # EFBIG where a full disk has ENOSPC
        for _ in range(3):
            assert ask("talk") == "20"
            assert ask("reload") == "ConfigurationError"  # it has no memory to ask by; it is told all the same
        for pid, limit in limits.items():
            resource.prlimit(pid, resource.RLIMIT_FSIZE, limit)
        assert ask("talk") == "20"
        said = program.communicate(timeout=DEADLINE_S)[1]
        assert program.returncode == 0
    lines = said.splitlines()
    assert all(line.startswith("atomr-mp: ") for line in lines), said
    assert "events.jsonl cannot be written: " in lines[0]
    assert lines[-1].endswith("events.jsonl can be written again")
    assert set(lines[1:-1]) == {  # the events that the event log lacks
        "atomr-mp: the reload of the pool begins, one device at a time",
        "atomr-mp: nothing was reloaded: [Errno 27] File too large",
    }
    log = (ledger.run_dir() / "device-0.log").read_bytes()
    assert sum(map(int, NOTICE.findall(log))) >= 3 * 20 * 3
    assert any(each.get("lost_events") for each in read_events(ledger.run_dir() / "events.jsonl"))


def test_an_unread_pipe_keeps_no_process_of_a_pool_waiting(ledger: Ledger) -> None:
    """The supervisor, its helpers and the relay share a stderr that is full: kills, orders and SIGTERM work."""
    run_dir = ledger.run_dir()
    command = [
        *(sys.executable, "-m", "atomr_mp", "start", "--backend", BACKEND, "--gpus", "1", "--actor", PROBE),
        *("--run-dir", str(run_dir), "--set", "metrics=unix:metrics.sock", "--set", "max_restarts=1000"),
        *("--set", f"listen=tcp://127.0.0.1:{free_port()}", "--set", "insecure=true"),
        *("--set", "backoff_initial_s=0.01", "--set", "backoff_max_s=0.01"),
    ]
    with (
        unread_pipe() as (_, writer),
        subprocess.Popen(command, stdout=writer, stderr=writer) as supervisor,
        running(supervisor),
    ):
        assert settled((run_dir / "session.sock").exists)
        with atomr_mp.connect(run_dir=run_dir) as pool:
            pool.wait_ready()
            for generation in range(2, 5):
                os.kill(pool.devices[0].pid, signal.SIGKILL)
                wait_generation(pool, generation)
            assert pool.call("Probe.echo", 1).result() == 1
            pool.reload(DEADLINE_S)
            with pytest.raises(errors.InvalidRequest):
                pool.restart(9)
        supervisor.send_signal(signal.SIGTERM)
        assert supervisor.wait(DEADLINE_S) == 0
