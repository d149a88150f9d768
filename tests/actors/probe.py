"""Actors for tests: they note that they ran, wait at a gate, and die in every way, everywhere.

NumPy is imported where it is used: most workers of these actors see no array, and end before it is worth its time.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from atomr_mp import errors
from atomr_mp_workers import Actor, Context, method

How = Literal["exception", "exit", "segv", "kill", "hang"]

LEDGER: Final = Path(os.environ["ATOMR_MP_TEST"])
SLEEPER: Final = (sys.executable, "-I", "-S", "-c", "import signal; signal.pause()")


class OnPurposeError(Exception):
    """An exception of an unexpected class."""


def die(how: str) -> None:
    """Raise, exit, or be killed."""
    match how:
        case "exception":
            raise OnPurposeError("on purpose")
        case "exit":
            os._exit(7)
        case "segv":
            ctypes.string_at(0)
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "hang":
            while True:
                signal.pause()
    raise ValueError(f"no way to die: {how!r}")


class UnspeakableError(Exception):
    """Cannot even be turned into text."""

    def __str__(self) -> str:
        raise OnPurposeError("in __str__")


def raise_strangely(how: str) -> None:
    """Raise an exception without text, an invalid one of ours, one with strange facts, or the interpreter's end."""
    match how:
        case "text":
            raise UnspeakableError
        case "typed":
            raise errors.OutOfMemory(None, requested_bytes=2**70)  # type: ignore[arg-type]
        case "fact":
            import numpy as np

            raise errors.OutOfMemory("on purpose", requested_bytes=np.int64(7))  # type: ignore[arg-type]
        case "no fact":
            raise errors.OutOfMemory("on purpose", requested_bytes=None)  # type: ignore[arg-type]
        case "exit":
            raise SystemExit(3)


def arrive(gate: str) -> None:
    """Say that we are here, and wait at the gate."""
    announce(gate)
    with Path(f"{gate}.go").open("rb", buffering=0) as go:
        go.read(1)


def announce(gate: str) -> None:
    """Say that we are here."""
    with Path(f"{gate}.here").open("ab", buffering=0) as here:
        here.write(b"%d\n" % os.getpid())


def note(tag: str, file: str = "runs") -> None:
    """Leave a line that outlives this process."""
    with (LEDGER / file).open("ab", buffering=0) as runs:
        runs.write(f"{tag}\n".encode())


class Bomb(msgspec.Struct):
    """An argument that raises while it is decoded."""

    how: How
    gate: str

    def __post_init__(self) -> None:
        """Raise."""
        arrive(self.gate)
        die(self.how)


class Probe(Actor):
    """Runs on the loop, unless a method says otherwise."""

    _context: Context

    def setup(self, context: Context) -> None:
        """Remember where this is."""
        self._context = context

    def teardown(self) -> None:
        """Leave a note."""
        note(f"{self._context.device}-{self._context.generation}", "teardowns")

    @method
    def where(self) -> list[int]:
        """Return pid, device and generation."""
        return [os.getpid(), self._context.device, self._context.generation]

    @method
    def echo(self, value: Any) -> Any:
        """Return the argument."""
        return value

    @method
    def note(self, tag: str) -> str:
        """Record that this ran, and return what was noted."""
        note(tag)
        return tag

    @method
    def long_text(self, tag: str, size: int) -> str:
        """Return a text of this size, and write down that this ran."""
        note(tag)
        return "x" * size

    @method(thread=True)
    def note_on_thread(self, tag: str) -> str:
        """Do the same on the actor's thread."""
        note(tag)
        return tag

    @method
    def hold(self, gate: str) -> int:
        """Wait at a gate, and return the generation."""
        arrive(gate)
        return self._context.generation

    @method(thread=True)
    def hold_on_thread(self, gate: str) -> int:
        """Do the same on the actor's thread."""
        arrive(gate)
        return self._context.generation

    @method
    def fail(self, how: How) -> None:
        """Die at once."""
        die(how)

    @method
    def raise_strangely(self, how: str) -> None:
        """Raise an exception that is hard to report."""
        raise_strangely(how)

    @method(thread=True)
    def raise_strangely_on_thread(self, how: str) -> None:
        """Do the same on the actor's thread."""
        raise_strangely(how)

    @method
    def crash_on_loop(self, how: How, gate: str) -> None:
        """Die while running on the loop."""
        arrive(gate)
        die(how)

    @method(thread=True)
    def crash_on_thread(self, how: How, gate: str) -> None:
        """Die while running on the thread."""
        arrive(gate)
        die(how)

    @method
    def crash_decoding(self, bomb: Bomb) -> None:
        """Never run."""

    @method
    def crash_replying(self, how: How, gate: str) -> Any:
        """Die after having run."""
        import numpy as np

        class Trap(np.ndarray[Any, Any]):
            @property
            def nbytes(self) -> int:
                arrive(gate)
                die(how)
                return 0

        return np.zeros(3).view(Trap)

    @method
    def wait_in_c(self, gate: str) -> None:
        """Never come back from C code that keeps the interpreter's lock, the GIL."""
        announce(gate)
        while True:
            ctypes.PyDLL(None).pause()

    @method
    def inheritable(self) -> list[str]:
        """Return the descriptors that a program started here would inherit, besides the standard ones."""
        found = []
        for path in Path("/proc/self/fd").iterdir():
            with contextlib.suppress(OSError):  # the descriptor that reads the directory
                if int(path.name) > 2 and os.get_inheritable(int(path.name)):
                    found.append(str(path.readlink()))
        return found

    @method
    def fork_and_start(self) -> list[int]:
        """Have a forked child with a child, one that was started, and two that left for a session of their own."""
        forked, grandchild = _fork_twice()
        started = subprocess.Popen(SLEEPER).pid
        apart = subprocess.Popen(SLEEPER, start_new_session=True).pid
        daemon = subprocess.run(
            [
                sys.executable,
                "-I",
                "-S",
                "-c",
                "import subprocess as s, sys; print(s.Popen(sys.argv[1:], start_new_session=True, stdout=2).pid)",
                *SLEEPER,
            ],
            stdout=subprocess.PIPE,
            check=True,
        )
        return [forked, grandchild, started, apart, int(daemon.stdout)]


class Bystander(Actor):
    """An actor with a thread of its own, which goes on whatever happens to `Probe`."""

    @method(thread=True)
    def hold(self, gate: str) -> int:
        """Wait at a gate, and return our pid."""
        arrive(gate)
        return os.getpid()


def _fork_twice() -> tuple[int, int]:
    """Fork a child that forks; return both pids."""
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        grandchild = os.fork()
        if grandchild:
            os.write(theirs, b"%d" % grandchild)
        while True:
            signal.pause()
    try:
        return child, int(os.read(ours, 100))
    finally:
        os.close(ours)
        os.close(theirs)
