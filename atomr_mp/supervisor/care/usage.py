"""Memory and start time of a process, from the kernel."""

from __future__ import annotations


def memory_bytes(pid: int) -> int:
    """Return the resident memory of a process, 0 if there is none."""
    try:
        import psutil  # late, since a supervisor needs it only when it is asked
    except OSError:  # no descriptor is left
        return 0
    try:
        return int(psutil.Process(pid).memory_info().rss) if pid else 0
    except (psutil.Error, OSError):
        return 0


def started_at(pid: int) -> float:
    """Return when a process began, in seconds since the epoch, 0 if there is none."""
    try:
        import psutil
    except OSError:
        return 0.0
    try:
        return float(psutil.Process(pid).create_time()) if pid else 0.0
    except (psutil.Error, OSError):
        return 0.0
