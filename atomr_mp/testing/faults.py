"""Orders for faults: written for processes that were started to look for them."""

from __future__ import annotations

import contextlib
import itertools
import os
import select
import shutil
import tempfile
import time
import weakref
from collections.abc import Iterable, Iterator
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any, Final, Self

import msgspec

import atomr_mp
from atomr_mp import errors
from atomr_mp.process import points
from atomr_mp.protocol.keywords import checked_names, checks_names
from atomr_mp.protocol.messages import injection
from atomr_mp.protocol.messages.injection import Fault, Order, Point
from atomr_mp.protocol.words import counted

WAIT_S: Final = 30.0
"""How long `Injection.wait` waits by default."""


@checks_names
@dataclass(frozen=True)
class At:
    """A fault, and where and how often it happens.

    Attributes:
        point: Where: "import" (of an actor's module), "setup" (of an actor), "fill" (of resident memory), "ready"
            (before the worker says that it is), "promotion" (of a standby), "decode" (of a request's arguments),
            "borrow" (of the memory that it uses), "enqueue" (just before its method runs, or puts work on the device),
            "before_reply" (after that, before its answer is sent), "export" (a client wants to map memory of the
            worker); "world_join" and "world_leave" (before a member says that it has joined or left an epoch),
            "world_note" (a part of a world's call has come, and no other rank knows), "world_publish" (rank 0 is about
            to give calls their order), "world_meet" (before a rank meets the others); "allocate" (of the device's
            memory, for buffers); "nvml" (the driver is asked, in the supervisor's helpers or within `Faults.here`),
            "disk" (something is written to the run directory, by the supervisor).
        fault: What happens.
        device: The device of the worker or standby; None for any.
        generation: The incarnation; None for any.
        of: At which request, "Actor.method"; at which actor's import or setup; at which resident memory; empty for any.
        times: How often in all, whichever process comes by; None for as long as it is not withdrawn.
    """

    point: Point
    fault: Fault
    _: KW_ONLY
    device: int | None = None
    generation: int | None = None
    of: str = ""
    times: int | None = 1


@checks_names
class Injection:
    """A fault that was ordered; made by `inject` and `Faults.add`. Use it with `with`, or `withdraw` it.

    Args:
        directory: Where processes look.
        number: Its own.
        at: The order.
    """

    def __init__(self, directory: Path, number: int, at: At) -> None:
        self._directory = directory
        self._names = injection.names(number, at.times)
        pipe = directory / injection.fired(self._names[0] if self._names else f"{number:06}-")
        os.mkfifo(pipe, 0o600)
        # Open for writing too: so whoever writes finds a reader, and we no end of file.
        self._pipe = os.open(pipe, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        self._close_pipe = weakref.finalize(self, os.close, self._pipe)
        self._heard = b""
        _write(directory, self._names, at)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.withdraw()

    @property
    def fired(self) -> list[int]:
        """The pids of the processes that have come by so far and met the fault, in order."""
        self._hear()
        return [int(line) for line in self._heard.split(b"\n")[:-1]]

    def wait(self, times: int = 1, timeout_s: float = WAIT_S) -> list[int]:
        """Wait until it has happened so often in all; return the pids. Of an event, not by looking again and again.

        Raises:
            TimeoutError: It has not.
        """
        until_s = time.monotonic() + timeout_s
        poll = select.poll()  # select(2) knows no descriptor above 1023
        poll.register(self._pipe, select.POLLIN)
        while len(pids := self.fired) < times:
            left_s = until_s - time.monotonic()
            if not self._close_pipe.alive or left_s <= 0:
                raise TimeoutError(
                    f"the fault has happened {counted(len(pids), 'time')} within {timeout_s:g} s, not {times}"
                )
            poll.poll(left_s * 1000)
        return pids

    def withdraw(self) -> None:
        """Let it happen no more. May be called twice."""
        for name in self._names:
            (self._directory / name).unlink(missing_ok=True)
        self._hear()
        self._close_pipe()

    def _hear(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while self._close_pipe.alive:
                self._heard += os.read(self._pipe, 4096)


@checks_names
class Faults:
    """A place for orders. Processes that are started with its `environment` look there; use it with `with`.

    For pools that are started by the command, or otherwise than by `start`.
    """

    def __init__(self) -> None:
        self._directory: Final = Path(tempfile.mkdtemp(prefix="atomr-mp-faults-"))
        self._numbers = itertools.count(1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    @property
    def environment(self) -> dict[str, str]:
        """Variables for a supervisor's environment, so that it and its workers look here."""
        return {injection.DIRECTORY: str(self._directory)}

    def add(self, at: At) -> Injection:
        """Order a fault.

        Raises:
            ConfigurationError: This fault cannot happen there.
        """
        _check(at)
        return Injection(self._directory, next(self._numbers), at)

    def declare(self, faults: Iterable[At]) -> None:
        """Order faults without waiting for them.

        Raises:
            ConfigurationError: One cannot happen where it was ordered.
        """
        for at in faults:
            _check(at)
            _write(self._directory, injection.names(next(self._numbers), at.times), at)

    @contextlib.contextmanager
    def here(self) -> Iterator[None]:
        """Have this process meet the faults too (at the point "nvml"), and what it starts meanwhile."""
        before = {name: os.environ.get(name) for name in self.environment}
        os.environ.update(self.environment)
        points.arm(str(self._directory))
        try:
            yield
        finally:
            points.arm(None)
            for name, value in before.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value

    def close(self) -> None:
        """Withdraw all orders. May be called twice; processes that look meet nothing then."""
        shutil.rmtree(self._directory, ignore_errors=True)


def start(*, faults: Iterable[At] = (), **settings: Any) -> atomr_mp.Pool:
    """Start a pool, as `atomr_mp.start` does, in which faults can be injected.

    Its processes look for faults at every point, which costs some microseconds a request; do not measure it. While it
    starts, whatever else this process starts, in other threads, looks for them too.

    Args:
        faults: Those that are there from the beginning, as in `setup`.
        **settings: As for `atomr_mp.start`.

    Raises:
        ConfigurationError: A fault cannot happen where it was ordered; or as `atomr_mp.start` says.
        AtomrError: As `atomr_mp.start` says: a fault may keep the pool from starting.
    """
    place = Faults()
    try:
        place.declare(faults)
        with place.here():
            pool = atomr_mp.start(**settings)
    except BaseException:
        place.close()
        raise
    _PLACES[pool] = place
    weakref.finalize(pool, place.close)
    return pool


@checked_names
def inject(
    pool: atomr_mp.Pool,
    *,
    at: Point,
    fault: Fault,
    device: int | None = None,
    generation: int | None = None,
    of: str = "",
    times: int | None = 1,
) -> Injection:
    """Order a fault in a running pool; withdrawn at the end of the `with`. The arguments are those of `At`.

    Raises:
        ConfigurationError: The pool was not started by `start` of this module, so that its processes do not look for
            faults; or this fault cannot happen there.
    """
    place = _PLACES.get(pool)
    if place is None:
        raise errors.ConfigurationError(
            "faults can be injected in pools that were started by atomr_mp.testing.start, in this process"
        )
    return place.add(At(at, fault, device=device, generation=generation, of=of, times=times))


def _check(at: At) -> None:
    problem = Order(at.point, at.fault).problem
    if problem:
        raise errors.ConfigurationError(problem)


def _write(directory: Path, names: Iterable[str], at: At) -> None:
    order = msgspec.json.encode(Order(at.point, at.fault, at.device, at.generation, at.of))
    for name in names:
        # Under a name that nobody reads first, so that it is never seen half written.
        written = directory / name.replace("-", ".")
        written.write_bytes(order)
        written.rename(directory / name)


_PLACES: Final[weakref.WeakKeyDictionary[atomr_mp.Pool, Faults]] = weakref.WeakKeyDictionary()
