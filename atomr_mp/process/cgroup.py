"""A cgroup per worker, if we may make one: kills all processes that a worker started, however they hid. An edge.

Opt-in. It needs cgroup version 2 and a writable (delegated) cgroup around this process; where that is missing
or something fails, the answer is None or False, with the reason in the log at debug level, and process groups
and adoption (see `adopt`) remain. The interface is the kernel's Documentation/admin-guide/cgroup-v2.rst.
"""

from __future__ import annotations

import logging
import os
import select
from pathlib import Path
from typing import Final, NamedTuple

_LOG: Final = logging.getLogger(__name__)


class CgroupParent(NamedTuple):
    """The cgroup of this process, in which those of workers are made."""

    path: Path

    @classmethod
    def find(cls) -> CgroupParent | None:
        """Return this process's cgroup, None if it is not writable."""
        try:
            path = own_path()
        except (OSError, ValueError) as error:
            _LOG.debug("no cgroup for workers: %s", error)
            return None
        if path is None or not all(os.access(p, os.W_OK) for p in (path, path / "cgroup.procs")):
            _LOG.debug("no cgroup for workers: %s is not a writable version 2 cgroup", path)
            return None
        return cls(path)

    def add(self, name: str, pid: int) -> WorkerCgroup | None:
        """Make a cgroup and move a process into it, best before that starts any other; None if that fails."""
        cgroup = WorkerCgroup(self.path / name)
        cgroup.remove()  # left by a supervisor that was killed
        try:
            cgroup.path.mkdir()
            (cgroup.path / "cgroup.procs").write_text(str(pid), encoding="ascii")
            (cgroup.path / "cgroup.kill").stat()  # since Linux 5.14
        except OSError as error:
            _LOG.debug("no cgroup for process %d: %s", pid, error)
            cgroup.remove()
            return None
        return cgroup


class WorkerCgroup(NamedTuple):
    """A worker and every process that it ever started."""

    path: Path

    def kill(self) -> bool:
        """Send SIGKILL to all of it at once; return whether that was possible. Does not wait."""
        try:
            (self.path / "cgroup.kill").write_text("1", encoding="ascii")
        except OSError as error:
            _LOG.debug("cannot kill cgroup %s: %s", self.path, error)
            return False
        return True

    def oom_kills(self) -> int:
        """Return how many of its processes the kernel has killed because memory ran out; 0 if that is not counted."""
        try:
            lines = (self.path / "memory.events").read_text(encoding="ascii").splitlines()
            return sum(int(line.split()[1]) for line in lines if line.startswith("oom_kill "))
        except (OSError, ValueError, IndexError) as error:  # no memory controller, for one
            _LOG.debug("no count of oom kills in cgroup %s: %s", self.path, error)
            return 0

    def remove(self, timeout_s: float = 0.0) -> bool:
        """Remove the cgroup once nothing runs in it; return whether it is gone.

        Args:
            timeout_s: Longest wait for its processes to end.
        """
        try:
            with (self.path / "cgroup.events").open("rb", buffering=0) as events:
                poll = select.poll()
                poll.register(events, select.POLLPRI)
                if b"populated 1" in events.read():
                    poll.poll(timeout_s * 1000)
            self.path.rmdir()
        except FileNotFoundError:
            return True
        except OSError as error:
            _LOG.debug("cannot remove cgroup %s: %s", self.path, error)
            return False
        return True


def frozen_path(pid: int) -> str:
    """Return the directory of a process's version 2 cgroup if that is frozen, itself or with one around it; else ""."""
    try:
        path = own_path(str(pid))
        events = [] if path is None else (path / "cgroup.events").read_text(encoding="ascii").splitlines()
    except (OSError, ValueError):  # the process has ended, or its cgroup cannot be seen from here
        return ""
    return str(path) if "frozen 1" in events else ""


def own_path(process: str = "self") -> Path | None:
    """Return the directory of a process's version 2 cgroup, wherever that hierarchy is mounted; by default our own."""
    lines = Path(f"/proc/{process}/cgroup").read_text(encoding="utf-8").splitlines()
    own = next((line.removeprefix("0::") for line in lines if line.startswith("0::")), None)
    for mount in Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines():
        fields, _, source = mount.partition(" - ")
        if own is not None and source.startswith("cgroup2 "):
            root, mount_point = fields.split()[3:5]
            return Path(mount_point) / Path(own).relative_to(root)  # ValueError: mounted without our part of it
    return None
