"""Named places in the runtime's own processes at which a test can have the system fail. An edge.

In production each is a look at a module's name, which is None.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from atomr_mp.protocol.messages import injection

hook: Callable[[str], None] | None = None


def point(at: Literal["nvml", "disk"]) -> None:
    """Come by a point: "nvml" before the driver is asked, "disk" before something is written to the run directory.

    Raises:
        OSError: A test wants the disk to be full.
    """
    if hook is not None:
        hook(at)


def arm(directory: str | None) -> None:
    """Carry out the faults in a directory from here on; None for none."""
    global hook  # noqa: PLW0603 - one look at a module's name is all that production is to pay
    hook = None if directory is None else lambda at: _meet(Path(directory), at)


def _meet(directory: Path, at: str) -> None:
    names = [path.name for path in directory.iterdir()] if directory.is_dir() else []
    for name, fault in injection.found(names, lambda name: (directory / name).read_bytes(), at, None, 0, ""):
        if not injection.lasts(name):
            try:
                (directory / name).unlink()
            except FileNotFoundError:
                continue
        _tell(directory / injection.fired(name))
        match fault:
            case injection.Hang(seconds):
                threading.Event().wait(seconds)
            case injection.FullDisk():
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return


def _tell(pipe: Path) -> None:
    """Say that a fault happens here."""
    with contextlib.suppress(OSError):  # nobody waits at the pipe
        descriptor = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            os.write(descriptor, b"%d\n" % os.getpid())
        finally:
            os.close(descriptor)


arm(os.environ.get(injection.DIRECTORY))
