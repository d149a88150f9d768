"""The time for which any process has waited for a processor: what is late because of that breaks no promise."""

from __future__ import annotations

from pathlib import Path


def any_has_waited_s() -> float:
    """Return for how long some process of this machine has waited for a processor since its start; 0 if none tells."""
    try:
        some, _, _ = Path("/proc/pressure/cpu").read_text(encoding="ascii").partition("\n")
    except OSError:  # a kernel that does not count it
        return 0.0
    return int(some.rpartition("total=")[2]) / 1e6
