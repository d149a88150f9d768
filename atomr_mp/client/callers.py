"""Tells who calls: a thread that may block, or a coroutine, whose event loop must not be blocked.

A Jupyter kernel runs its cells inside its own event loop, which stands still meanwhile. So code of a cell may block, as
in a thread without a loop, while a coroutine may not: other tasks wait for it. Both see the same running loop. What
differs is the innermost coroutine that is being run: under a cell it belongs to IPython or to the kernel, or it is the
cell itself, if that awaits something.
"""

from __future__ import annotations

import sys
from types import FrameType
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import asyncio

COROUTINES: Final = 0x80 | 0x100 | 0x200
"""Flags of the code of coroutines, of generators used as such, and of asynchronous generators; as in `inspect`, which
takes long to import."""

COMPREHENSIONS: Final = frozenset({"<listcomp>", "<setcomp>", "<dictcomp>"})
"""Coroutines, if they await something; they are part of the code around them."""

HOSTS: Final = ("IPython.", "ipykernel.")
"""Modules whose coroutines run cells, and callbacks of widgets."""


class Kernel:
    """What is known of a kernel in this process; found out when a client is made, and when a loop first calls."""

    is_here = False
    """Whether there is one. Without one, frames are not inspected."""


def notice_kernel() -> None:
    """Find out whether this process has a kernel, which may have come since the last time."""
    Kernel.is_here = "ipykernel" in sys.modules


def running_loop() -> asyncio.AbstractEventLoop | None:
    """Return the event loop that runs in this thread; asyncio is not imported for it."""
    # Exported for event loops' authors; the public function raises where there is none, at ten times the cost. While
    # another thread still imports asyncio, it may not be there yet: nor is a loop.
    running = getattr(sys.modules.get("asyncio"), "_get_running_loop", None)
    return None if running is None else running()


def calling_loop() -> asyncio.AbstractEventLoop | None:
    """Return the event loop that the caller must not block, None if there is none."""
    loop = running_loop()
    return None if loop is not None and Kernel.is_here and in_cell() else loop


def can_await() -> bool:
    """Whether the caller is a coroutine, or a cell that awaits something."""
    if running_loop() is None:
        return False
    notice_kernel()
    if not Kernel.is_here:
        return True
    frame, is_awaiting = _coroutine()
    return frame is None or is_awaiting


def in_cell() -> bool:
    """Whether the caller is code of a cell, or called by such code. For a process with a kernel and a running loop."""
    frame, _ = _coroutine()
    return frame is not None


def _coroutine() -> tuple[FrameType | None, bool]:
    """Return the frame of the coroutine under which a cell's code runs, and whether that is the cell; else None."""
    frame: FrameType | None = sys._getframe(2)  # noqa: SLF001 - there is no other way to ask who calls
    while frame is not None:
        code = frame.f_code
        if code.co_flags & COROUTINES and code.co_name not in COMPREHENSIONS:
            if _is_of_host(frame):
                return frame, False
            # Code at the top level of a module is a coroutine only if IPython has compiled it so.
            awaits = code.co_name.startswith("<") and frame.f_back is not None and _is_of_host(frame.f_back)
            return (frame, True) if awaits else (None, False)
        if code.co_name == "run_forever" and frame.f_globals.get("__name__") == "asyncio.base_events":
            break  # a callback of another loop, such as a map's, which a cell runs
        frame = frame.f_back
    return None, False


def _is_of_host(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__", "")).startswith(HOSTS)
