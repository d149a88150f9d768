"""Keeps threads of the runtime's own out of captures of CUDA graphs that methods make meanwhile.

In CUDA's default mode a capture is spoiled if any other thread allocates memory, or asks for an event.
"""

from __future__ import annotations

import functools
import threading
from typing import Final

from cuda.bindings import driver

_thread: Final = threading.local()


def leave_captures_alone() -> None:
    """Let the calling thread spoil no capture of another thread from now on."""
    if not getattr(_thread, "is_done", False) and _has_driver():
        _thread.is_done = True
        driver.cuThreadExchangeStreamCaptureMode(driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED)


@functools.cache
def _has_driver() -> bool:
    """Return whether there is CUDA's driver; tests over a stand-in for it have none."""
    try:
        driver.cuDriverGetVersion()
    except RuntimeError:
        return False
    return True
