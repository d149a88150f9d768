"""Commands about a supervisor that does not answer tell in a short time why, and what to do."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from atomr_mp import cli, errors
from atomr_mp.client import handshake
from atomr_mp.operator import session as operator_session
from atomr_mp.process.files.rundir import RunDirectory
from atomr_mp.process.scheduling import standstill
from atomr_mp.supervision.standstill import Standstill, silent
from atomr_mp.transport.session import SessionConnection
from tests.support import DEADLINE_S, Ledger, settled, stopped

BOUND_S = 5.0
"""Within this time a command answers; its own start comes on top."""

COMMANDS = [("status", 3), ("top --once", 1), ("ready --deadline 2", 1), ("doctor", 1), ("restart 0", 1), ("stop", 1)]

STUCK = """
import sys
from pathlib import Path
from atomr_mp.process.files.rundir import RunDirectory
from atomr_mp.transport.session import SessionListener
held = RunDirectory.create(Path(sys.argv[1]))
listener = SessionListener(held.session_socket)
print(flush=True)
input()
"""
"""Holds a run directory as a supervisor does, and takes no connection: its interpreter's lock is never given back."""


def command(run_dir: Path, words: str) -> subprocess.CompletedProcess[str]:
    """Run the command on a pool."""
    whole = [sys.executable, "-m", "atomr_mp.cli", *words.split(), "--run-dir", str(run_dir)]
    return subprocess.run(whole, capture_output=True, text=True, check=False, timeout=DEADLINE_S)


def test_each_command_names_a_stopped_supervisor_and_what_has_it_go_on(ledger: Ledger) -> None:
    """At once, with another exit status than 0; clients of the pool go on."""
    with ledger.start() as pool:
        pid = pool.supervisor_pid
        with stopped(pid):
            assert settled(lambda: standstill(pid) is not None)
            for words, status in COMMANDS:
                begun_s = time.monotonic()
                told = command(pool.run_dir, words)
                text = " ".join((told.stdout + told.stderr).split())
                assert told.returncode == status, (words, text)
                assert "stopped by a signal (SIGSTOP)" in text, words
                assert f"kill -CONT {pid}" in text, words
                assert time.monotonic() - begun_s < 2 * BOUND_S, words
            found = json.loads(command(pool.run_dir, "doctor --json").stdout)
            assert (found["supervisor"], found["unwell"]) == ("silent", 1)
            assert pool.device(0).statistics()["leases"] == 0
        assert pool.status().state == "healthy"


@pytest.fixture
def stuck(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunDirectory]:
    """A supervisor that runs, and answers nothing; it is no longer young."""
    monkeypatch.setattr(operator_session, "HELLO_TIMEOUT_S", 0.0)
    monkeypatch.setattr(operator_session, "ANSWER_S", 0.5)
    path = ledger.path / "stuck"
    with subprocess.Popen(
        [sys.executable, "-c", STUCK, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        try:
            yield RunDirectory.open(path)
        finally:
            process.kill()


@pytest.mark.parametrize(("words", "status"), [("status", 3), ("top --once", 1), ("ready --deadline 0.5", 1)])
def test_a_supervisor_that_runs_and_answers_nothing_is_named(
    stuck: RunDirectory, capsys: pytest.CaptureFixture[str], words: str, status: int
) -> None:
    """With its state, and where to look."""
    begun_s = time.monotonic()
    assert cli.main([*words.split(), "--run-dir", str(stuck.path)]) == status
    assert time.monotonic() - begun_s < BOUND_S
    told = capsys.readouterr()
    text = " ".join((told.out + told.err).split())
    assert f"the supervisor (pid {stuck.supervisor.pid}) does not answer within" in text
    assert "is not stopped (state S)" in text


def test_the_doctor_finds_it_unwell(
    stuck: RunDirectory, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """So its exit status is 1."""
    monkeypatch.setattr("atomr_mp.operator.doctor.ANSWER_S", 0.5)
    assert cli.main(["doctor", "--json", "--run-dir", str(stuck.path)]) == 1
    [found] = [each for each in json.loads(capsys.readouterr().out)["findings"] if each["kind"] == "supervisor"]
    assert (found["state"], found["pid"]) == ("unwell", stuck.supervisor.pid)
    assert "busy or stuck" in found["what"]


def test_a_full_queue_of_connections_is_waited_for_in_vain_for_a_while_only(stuck: RunDirectory) -> None:
    """As when a monitor has asked a stuck supervisor again and again."""
    held: list[SessionConnection] = []

    def fill() -> None:
        while True:
            held.append(SessionConnection.connect(stuck.session_socket, queue_s=0.2))

    with pytest.raises(errors.PoolUnreachable, match=r"has taken no connection for 0\.2 s"):
        fill()
    assert held
    for each in held:
        each.close()


def test_a_supervisor_that_is_a_zombie_counts_as_killed(ledger: Ledger) -> None:
    """As far as the pool goes, it has ended."""
    path = ledger.path / "zombie"
    whole = [sys.executable, "-c", STUCK, str(path)]
    with subprocess.Popen(whole, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        os.kill(process.pid, signal.SIGKILL)
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        for words, status in (("status", 2), ("ready", 1), ("top --once", 1), ("doctor", 0)):
            told = command(path, words)
            assert told.returncode == status, words
            text = " ".join((told.stdout + told.stderr).split())
            assert str(process.pid) in text
            assert "was killed" in text


def test_a_pid_that_is_another_process_s_by_now_is_no_supervisor(ledger: Ledger) -> None:
    """The lock file names a process that was started later."""
    path = ledger.path / "reused"
    whole = [sys.executable, "-c", STUCK, str(path)]
    with subprocess.Popen(whole, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        process.kill()
    lock = path / "lock"
    _, ticks, boot = lock.read_text().split()
    lock.write_text(f"{os.getpid()} {int(ticks) + 1} {boot}")
    for words, status in (("status", 2), ("ready", 1), ("doctor", 0)):
        told = command(path, words)
        assert told.returncode == status, words
        assert "was killed" in " ".join((told.stdout + told.stderr).split())


def test_a_client_that_connects_is_told_the_same(stuck: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    """By `PoolLost`, with the pid and what to do."""
    monkeypatch.setattr(handshake.greet, "__kwdefaults__", {**(handshake.greet.__kwdefaults__ or {}), "timeout_s": 0.2})
    connected = SessionConnection.connect(stuck.session_socket)
    try:
        with pytest.raises(errors.PoolLost, match=rf"pid {stuck.supervisor.pid}\) does not answer within 0.2 s"):
            handshake.greet(connected, "test", observer=True)
    finally:
        connected.close()


def test_the_words_say_what_the_kernel_tells() -> None:
    """An unknown pid is not named."""
    assert "waits in the kernel, as for a disk (state D)" in silent(7, 5.0, "D", None)
    assert "`kill -CONT 7`" in silent(7, 5.0, "T", Standstill("stopped", "`kill -CONT 7` has it go on"))
    assert silent(0, 5.0, "", None) == "the supervisor did not answer within 5 s"
