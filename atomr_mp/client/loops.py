"""The event loop that runs in this thread, for whatever must not block it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio


def running_loop() -> asyncio.AbstractEventLoop | None:
    """Return the event loop that runs in this thread; asyncio is not imported for it."""
    # Exported for event loops' authors; the public function raises where there is none, at ten times the cost. While
    # another thread still imports asyncio, it may not be there yet: nor is a loop.
    running = getattr(sys.modules.get("asyncio"), "_get_running_loop", None)
    return None if running is None else running()
