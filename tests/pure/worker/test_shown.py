"""What the system shows of a process: written anew in its memory, and read by others from /proc."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import hypothesis
from hypothesis import strategies as st

from atomr_mp.protocol import process_tags

ROOM: Final = 40
PROGRAM: Final = """
import sys
from atomr_mp_workers.boot.shown import show_run_dir, show_title
shown = [show_run_dir(sys.argv[1])]
for what in sys.argv[2:-1]:
    show_title("pool", what)
print(shown[0], flush=True)
sys.stdin.read()
"""
words = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=2 * ROOM)


@hypothesis.settings(max_examples=20)
@hypothesis.given(
    run_dir=words.map("/{}".format),
    room=st.one_of(st.none(), st.integers(0, 2 * ROOM)),
    titles=st.lists(words.filter(str.strip), max_size=3),
)
def test_what_has_room_is_shown_and_nothing_else_is_changed(run_dir: str, room: int | None, titles: list[str]) -> None:
    """The caller learns whether the run directory is shown; a title that is too long leaves the one before it."""
    variable = {} if room is None else {process_tags.RUN_DIR: "-" * room}
    before = {**os.environ, "BEFORE": "-", **variable, "ZBEHIND": "-"}
    first = f"--title={'first'.ljust(ROOM)}"
    command = [sys.executable, "-c", PROGRAM, run_dir, *titles, first]
    with subprocess.Popen(command, env=before, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        said = process.stdout.readline().strip()
        proc = Path(f"/proc/{process.pid}")
        *others, title = (proc / "cmdline").read_bytes().decode().removesuffix("\0").split("\0")
        pairs = (proc / "environ").read_bytes().split(b"\0")
    fits = room is not None and len(run_dir.encode()) <= room
    assert said == str(fits)
    expected = {**before, process_tags.RUN_DIR: run_dir} if fits else before
    assert {os.fsdecode(pair) for pair in pairs if pair} == {f"{name}={text}" for name, text in expected.items()}
    fitting = [each for each in titles if len(f"atomr-mp pool {each}".encode()) <= ROOM]
    shown = f"atomr-mp pool {fitting[-1]}" if fitting else "first"
    assert others == command[:-1]
    assert title.rstrip(" ") == f"--title={shown}".rstrip(" ")
