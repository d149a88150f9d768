"""What an operator sees of a running pool: the live view, and log lines that say where they come from."""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import subprocess
import sys

from tests.support import DEADLINE_S, Ledger, running

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


def test_top_prints_a_view_and_goes_on_until_it_is_interrupted(ledger: Ledger) -> None:
    """Once for a program; live for a person, whose Ctrl-C is a good end."""
    with ledger.start(gpus=2) as pool:
        command = [sys.executable, "-m", "atomr_mp.cli", "top", "--run-dir", str(pool.run_dir), "--interval", "0.1"]
        once = subprocess.run([*command, "--once"], capture_output=True, text=True, timeout=DEADLINE_S, check=False)
        assert once.returncode == 0, once.stderr
        assert "2 of 2 devices ready, 1 client" in once.stdout
        assert "no faults" in once.stdout
        terminal, theirs = os.openpty()
        try:
            live = subprocess.Popen(command, stdout=theirs, env={**os.environ, "TERM": "xterm"})
            with running(live):
                os.close(theirs)
                seen = b""
                while b"no faults" not in seen:
                    assert select.select([terminal], [], [], DEADLINE_S)[0], seen
                    seen += os.read(terminal, 65536)
                live.send_signal(signal.SIGINT)
                # Read on: it cannot end while nobody reads what it has written.
                with contextlib.suppress(OSError):  # as this end tells that the other is closed
                    while select.select([terminal], [], [], DEADLINE_S)[0]:
                        os.read(terminal, 65536)
                assert live.wait(DEADLINE_S) == 0
        finally:
            os.close(terminal)
