"""Finds monkey patching of the standard library under which a client cannot wait."""

from __future__ import annotations

import sys
from typing import Final

from atomr_mp import errors

PATCHERS: Final = {"gevent": ("gevent.monkey", "saved"), "eventlet": ("eventlet.patcher", "already_patched")}
"""The module of each library that patches others, and the name under which it notes them."""

NEEDED: Final = frozenset(
    {"_thread", "os", "queue", "select", "selectors", "socket", "subprocess", "thread", "threading"}
)
"""Modules by which clients wait, as the patchers name them."""


def check_not_patched() -> None:
    """Refuse to start or join a pool in a process whose waits were replaced.

    Raises:
        ConfigurationError: gevent or eventlet has patched what clients need.
    """
    for library, (module, noted) in PATCHERS.items():
        patched = sorted(NEEDED.intersection(getattr(sys.modules.get(module), noted, ())))
        if patched:
            raise errors.ConfigurationError(
                f"{library} has patched {', '.join(patched)} of the standard library in this process. A pool's client "
                "waits in the kernel for several descriptors at once, with threads of its own, which would stop every "
                f"greenlet, or never return. Use the pool in a process that {library} has not patched, or serve it by "
                "`atomr-mp serve` and ask by HTTP"
            )
