"""What an operator sees of a running pool: the live view, and log lines that say where they come from."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import termios

import pytest

import atomr_mp
from tests.support import DEADLINE_S, Ledger, running
from tests.waiting import readable

ACTOR = """
import logging
from atomr_mp_workers import Actor, Context, method
class Talker(Actor):
    def setup(self, context: Context) -> None:
        self.log = context.log
        self.log.info("here")
    @method
    def say(self, words: str) -> None:
        self.log.warning(words)
    @method(thread=True)
    def say_elsewhere(self, words: str) -> None:
        logging.getLogger("library").warning(words)
    def teardown(self) -> None:
        self.log.info("gone")
"""
TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"


def test_lines_have_their_context(ledger: Ledger) -> None:
    """In a request which one, on whichever thread; before and after it none."""
    (ledger.path / "talker.py").write_text(ACTOR)
    with ledger.start(f"{ledger.path}/talker.py:Talker") as pool:
        pool.call("Talker.say", "one").result()
        pool.call("Talker.say_elsewhere", "two").result()
        pool.restart(0)
        run_dir = pool.run_dir
    lines = (run_dir / "device-0.log").read_text().splitlines()
    first = f"^{TIME} (INFO|WARNING) device=0 generation=1"
    assert re.fullmatch(rf"{first} actor: here", lines[1]), lines
    assert re.fullmatch(rf"{first} method=Talker\.say request=\d+ session=\d+ actor: one", lines[2]), lines
    assert re.fullmatch(rf"{first} method=Talker\.say_elsewhere request=\d+ session=\d+ library: two", lines[3]), lines
    assert re.fullmatch(rf"{first} actor: gone", lines[4]), lines


def test_top_prints_one_view_for_a_program(ledger: Ledger) -> None:
    """Without a terminal, too."""
    with ledger.start(gpus=2) as pool:
        once = subprocess.run([*top(pool), "--once"], capture_output=True, text=True, timeout=DEADLINE_S, check=False)
        assert once.returncode == 0, once.stderr
        assert "2 of 2 devices ready, 1 client" in once.stdout
        assert "no faults" in once.stdout


@pytest.mark.parametrize("how", ["ctrl-c", "q", "stop", "kill"])
def test_top_goes_on_until_it_is_told_to_end_or_the_pool_ends(ledger: Ledger, how: str) -> None:
    """All are good ends but that of a supervisor which was killed; the terminal is as it was before."""
    with contextlib.ExitStack() as stack:
        pool = ledger.start(gpus=2)
        stack.callback(pool.close)
        terminal, theirs = os.openpty()
        stack.callback(os.close, terminal)
        stack.callback(os.close, theirs)
        before = termios.tcgetattr(theirs)
        live = subprocess.Popen(
            top(pool), stdin=theirs, stdout=theirs, stderr=theirs, env={**os.environ, "TERM": "xterm"}
        )
        stack.enter_context(running(live))
        seen = b""
        while b"no faults" not in seen:
            assert readable([terminal], DEADLINE_S), seen
            seen += os.read(terminal, 65536)
        match how:
            case "ctrl-c":
                live.send_signal(signal.SIGINT)
            case "q":
                os.write(terminal, b"xq")
            case "stop":
                pool.close()
            case "kill":
                os.kill(pool.supervisor_pid, signal.SIGKILL)
        ended = os.pidfd_open(live.pid)
        stack.callback(os.close, ended)
        # Read on: it cannot end while nobody reads what it has written.
        while ended not in (ready := readable([terminal, ended], DEADLINE_S)):
            assert ready, seen
            seen += os.read(terminal, 65536)
        while readable([terminal], 0):
            seen += os.read(terminal, 65536)
        assert live.wait() == (1 if how == "kill" else 0), seen
        assert (b"was stopped" in seen) == (how == "stop")
        assert (b"the pool's supervisor" in seen) == (how == "kill")
        assert termios.tcgetattr(theirs) == before
    if how == "kill":
        with ledger.start():
            """The next start cleans up."""


def top(pool: atomr_mp.Pool) -> list[str]:
    """Return the command."""
    return [sys.executable, "-m", "atomr_mp.cli", "top", "--run-dir", str(pool.run_dir), "--interval", "0.1"]
