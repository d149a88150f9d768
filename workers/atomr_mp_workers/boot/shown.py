"""What the system shows of this process: its title, and the run directory of the pool that it belongs to.

Both are read from the memory that a process gets when it begins, where it can be written anew: a zygote begins before
it knows its pool, and a forked worker has what the zygote has. That memory is written through a file, which refuses
addresses that are not there, and no text may be longer than the one before it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from atomr_mp.protocol import process_tags

_TITLE: Final = b"--title="


def show_title(pool: str, what: str) -> None:
    """Show what this process is as the last word of its command line, which `ps` tells."""
    _write("cmdline", _ARG_START, _TITLE, os.fsencode(f"atomr-mp {pool} {what}"), b" ")


def show_run_dir(run_dir: str) -> bool:
    """Show the run directory in this process's environment; return whether it is shown there."""
    prefix, path = f"{process_tags.RUN_DIR}=".encode(), os.fsencode(run_dir)
    shown = Path("/proc/self/environ")
    if prefix + path not in shown.read_bytes().split(b"\0"):
        _write("environ", _ENV_START, prefix, path, b"\0")
    return prefix + path in shown.read_bytes().split(b"\0")


def _write(name: str, field: int, prefix: bytes, text: bytes, filler: bytes) -> None:
    """Write a text in the place of what comes behind a prefix; nothing where there is no place, or no permission."""
    before, found, behind = Path(f"/proc/self/{name}").read_bytes().partition(b"\0" + prefix)
    room = len(behind.partition(b"\0")[0])
    if not found or len(text) > room:
        return
    start = int(Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()[field])
    try:
        memory = os.open("/proc/self/mem", os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return
    try:
        os.pwrite(memory, text.ljust(room, filler), start + len(before) + len(found))
    except OSError:
        return
    finally:
        os.close(memory)


_ARG_START: Final = 48 - 3
_ENV_START: Final = 50 - 3
"""Where the command line and the environment begin in memory, by the numbers of proc_pid_stat(5)."""
