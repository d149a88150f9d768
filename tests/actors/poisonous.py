"""Methods that end the process at certain arguments: on the loop, on a thread, in a batch."""

from __future__ import annotations

import ctypes
import os
import signal
import threading
from os import kill as kept_kill
from pathlib import Path
from typing import Any

from atomr_mp import errors
from atomr_mp_workers import Actor, Batch, Context, method


class Poisonous(Actor):
    """Items are [tag, gate, how]: the tag is noted, the gate is waited at, and what then ends the process."""

    _context: Context

    def setup(self, context: Context) -> None:
        """Remember where this is."""
        self._context = context

    @method(idempotent=True)
    def on_loop(self, item: list[str]) -> str:
        """Run on the loop; return the tag."""
        return _run(item)

    @method(idempotent=True, thread=True)
    def on_thread(self, item: list[str]) -> str:
        """Run on the actor's thread; return the tag."""
        return _run(item)

    @method(idempotent=True, thread=True, hang_timeout_s=1.0)
    def in_time(self, item: list[str]) -> str:
        """Do the same, within a second."""
        return _run(item)

    @method(idempotent=True, batch=Batch(max_items=4, max_wait_s=30))
    def in_batch(self, items: list[list[str]]) -> list[str]:
        """Run four together; return the tags."""
        return [_run(item) for item in items]

    @method(idempotent=True, batch=Batch(max_items=4, max_wait_s=30), thread=True)
    def in_batch_on_thread(self, items: list[list[str]]) -> list[str]:
        """Do the same on the actor's thread."""
        return [_run(item) for item in items]

    @method
    def once(self, item: list[str]) -> str:
        """Run at most once; return the tag."""
        return _run(item)

    @method(thread=True)
    def once_on_thread(self, item: list[str]) -> str:
        """Do the same on the actor's thread."""
        return _run(item)

    @method(idempotent=True)
    def total(self, item: list[str], array: Any) -> float:
        """Return the sum of an array, however it has come."""
        import numpy as np

        _run(item)
        return float(np.asarray(getattr(array, "array", array)).sum())

    @method
    def keep(self) -> Any:
        """Return a ref."""
        return self._context.empty((4,), "float32")

    @method(idempotent=True)
    def where(self) -> list[int]:
        """Return pid, device and generation."""
        return [os.getpid(), self._context.device, self._context.generation]


def _run(item: list[str]) -> str:
    tag, gate, how = item
    with Path(os.environ["ATOMR_MP_TEST"], "runs").open("ab", buffering=0) as runs:
        runs.write(f"{tag}\n".encode())
    if gate:
        with Path(f"{gate}.here").open("ab", buffering=0) as here:
            here.write(b"%d\n" % os.getpid())
        with Path(f"{gate}.go").open("rb", buffering=0) as go:
            go.read(1)
    match how:
        case "exit":
            os._exit(7)
        case "segv":
            ctypes.string_at(0)
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "kill_in_c":
            ctypes.CDLL(None).kill(os.getpid(), signal.SIGKILL)
        case "child":
            _fork_and_die()
        case "kept_kill":
            kept_kill(os.getpid(), signal.SIGKILL)
        case "hang":
            threading.Event().wait()
        case "poison":
            raise errors.ContextPoisoned("on purpose", status=700)
    return tag


def _fork_and_die() -> None:
    """Have a child kill itself."""
    child = os.fork()
    if child == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
