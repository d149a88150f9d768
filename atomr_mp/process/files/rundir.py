"""The run directory: where a pool's supervisor, workers and clients find each other. An edge over files.

It belongs to one user (mode 0700) and to one living supervisor at a time, which holds a lock on the directory itself,
and its name outside of it (`beacon`). Clients only look (`RunDirectory.open`). What is in it may be removed at any
time: the supervisor makes it anew (`HeldRunDirectory.restore`). In it:

    lock            the supervisor's identity, empty after an orderly end; its flock too
    session.sock    where clients connect
    d0-g1.sock      data socket of device 0's worker, generation 1
    workers/PID     identity of a worker, so that the next supervisor finds those of a killed one
    NAME.log        output of workers
    events.jsonl  the supervisor's event log
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import re
import signal
import time
from collections.abc import Iterable
from enum import StrEnum
from pathlib import Path
from typing import Final, NamedTuple, Self

from atomr_mp import errors
from atomr_mp.process import points
from atomr_mp.process.files import beacon, safedir
from atomr_mp.process.files.beacon import Beacon
from atomr_mp.process.identity import Identity, wait_ended

SESSION_SOCKET: Final = "session.sock"

EVENTS: Final = "events.jsonl"
"""The event log; its older parts have a number behind it."""

RELAY_PROBE: Final = "relay-probe"
"""Socket that a relay has while it starts; one that is killed then leaves it."""

CLEANER_S: Final = 1.0
"""How long a program that cleans folders may hold the directory's lock when a pool starts."""

_LOG: Final = logging.getLogger(__name__)


def default_run_dir(pool: str) -> Path:
    """Return the default run directory of a pool; make nothing.

    That is `$XDG_RUNTIME_DIR/atomr-mp/POOL`, or `/tmp/atomr-mp-UID/POOL` (`$TMPDIR` instead of /tmp if set)
    where there is no such directory of ours, as in containers.

    Raises:
        ConfigurationError: `pool` is not 1 to 64 of A-Z a-z 0-9 . _ - without a dot in front.
    """
    if not re.fullmatch(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}", pool):
        raise errors.ConfigurationError(
            f"{pool!r} is no name for a pool; use 1 to 64 of A-Z a-z 0-9 . _ - and no dot in front"
        )
    return _default_base() / pool


SOCKETS: Final = ("d999-g999999.sock", "session.sock")
"""The longest names of sockets there."""


def find_run_dir(pool: str | None, run_dir: str | Path | None) -> Path:
    """Return the run directory that a command or a client means; make nothing.

    Args:
        pool: The pool's name; None for ATOMR_MP_POOL, or "default".
        run_dir: Its run directory; None for ATOMR_MP_RUN_DIR if no name is given either, or the default for its name.

    Raises:
        ConfigurationError: `pool` is not a name.
    """
    if run_dir is None and pool is None:
        run_dir = os.environ.get("ATOMR_MP_RUN_DIR")
    if run_dir is not None:
        return Path(run_dir).absolute()
    return default_run_dir(pool or os.environ.get("ATOMR_MP_POOL", "default"))


class PoolState(StrEnum):
    """A run directory, as `list_pools` returns it."""

    RUNNING = "running"
    STALE = "stale"
    """Its supervisor was killed; the next start cleans up."""


class PoolEntry(NamedTuple):
    """A pool, as `list_pools` returns it."""

    name: str
    path: Path
    state: PoolState
    supervisor_pid: int


class RunDirectory:
    """A run directory as anybody sees it: its paths, and which supervisor holds it.

    Attributes:
        path: The directory, absolute.
        supervisor: The process that holds it.
    """

    def __init__(self, path: Path, supervisor: Identity) -> None:
        self.path = path
        self.supervisor = supervisor

    @staticmethod
    def create(path: Path) -> HeldRunDirectory:
        """Make the directory if it is missing, check it, and take it for this process.

        Raises:
            ConfigurationError: The directory is not safe, not ours, cannot be made, or its name is too long.
            PoolBusy: Another supervisor holds it.
        """
        return HeldRunDirectory(path)

    @classmethod
    def open(cls, path: Path) -> RunDirectory:
        """Return the run directory of a running pool; changes nothing.

        Raises:
            ConfigurationError: The directory is not safe or not ours.
            PoolUnreachable: No supervisor holds it.
        """
        path = path.absolute()
        if not path.exists():
            if living := _by_beacon(path):
                return cls(path, living)  # which makes the directory anew
            raise errors.PoolUnreachable(
                f"there is no pool at {path}; start one with `atomr-mp start`, or name its run directory"
            )
        safedir.check(path)
        supervisor = _read_identity(path / "lock")
        if supervisor is None or not supervisor.alive():
            supervisor = _by_beacon(path) or supervisor
        if supervisor is None:
            raise errors.PoolUnreachable(f"no pool runs at {path}; start one with `atomr-mp start`")
        if not supervisor.alive():
            raise errors.PoolUnreachable(
                f"no pool runs at {path}: its supervisor (pid {supervisor.pid}) was killed and left the "
                "directory behind, or runs in another container; the next start there cleans up"
            )
        return cls(path, supervisor)

    @staticmethod
    def list_pools(elsewhere: Iterable[Path] = ()) -> list[PoolEntry]:
        """Return this user's pools under the default directory, except those that ended in order.

        Args:
            elsewhere: Other run directories that are looked at too.
        """
        paths = set(elsewhere)
        with contextlib.suppress(OSError):  # there is none, or another user has made it and lets nobody in
            paths.update(_default_base().iterdir())
        return [entry for path in sorted(paths) if (entry := _entry(path)) is not None]

    def ended_in_order(self, timeout_s: float) -> bool:
        """Wait for the supervisor's end; return whether it gave the directory back, which a killed one does not."""
        pidfd = self.supervisor.open_pidfd()
        if pidfd is not None:
            try:
                wait_ended([pidfd], timeout_s)
            finally:
                os.close(pidfd)
        return _read_identity(self.path / "lock") != self.supervisor

    @property
    def session_socket(self) -> Path:
        """Where clients connect to the supervisor."""
        return self.path / SESSION_SOCKET

    def worker_socket(self, device: int, generation: int) -> Path:
        """Return the data socket of one incarnation of a device."""
        return self.path / f"d{device}-g{generation}.sock"

    def log(self, name: str) -> Path:
        """Return the file for the output of `name`, a plain word."""
        return self.path / f"{name}.log"

    @property
    def events(self) -> Path:
        """The supervisor's event log."""
        return self.path / EVENTS


class HeldRunDirectory(RunDirectory):
    """A run directory that this process holds as its supervisor; made by `RunDirectory.create`.

    A start goes: `create`, `end_survivors`, `clean`, then the sockets.
    """

    def __init__(self, path: Path) -> None:
        path = path.absolute()
        safedir.check_socket_paths(path, SOCKETS)
        super().__init__(path, Identity.of(os.getpid()))
        self._workers = path / "workers"
        with contextlib.ExitStack() as undo:
            try:
                self._beacon = _light(path)
                if self._beacon is not None:
                    undo.callback(self._beacon.close)
                safedir.make(path)
                safedir.check(path)
                self._directory_fd = _lock_directory(path)
                undo.callback(os.close, self._directory_fd)
                self._lock_fd = _lock_file(path)
                undo.callback(os.close, self._lock_fd)
                self._workers.mkdir(mode=0o700, exist_ok=True)
                _write(self._lock_fd, f"{self.supervisor}\n")
            except OSError as error:
                raise errors.ConfigurationError(f"the run directory {path} cannot be used: {error}") from error
            undo.pop_all()
        self._noted: dict[int, Identity] = {}
        """The noted workers of this supervisor, by pid."""
        self._closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def record_worker(self, pid: int, start_ticks: int) -> None:
        """Note a worker that was started, if it is not noted yet. A full disk loses the note, with a warning."""
        if pid in self._noted:
            return
        noted = Identity(pid, start_ticks, self.supervisor.boot_id)
        try:
            self._note(noted)
            self._noted[pid] = noted
        except OSError as error:
            _LOG.warning("worker process %d cannot be noted for the next start: %s", pid, error)

    def forget_worker(self, pid: int) -> None:
        """Remove the note of a worker that was reaped."""
        with contextlib.suppress(OSError):  # it was swept away, with the folder maybe
            (self._workers / str(pid)).unlink()
        self._noted.pop(pid, None)

    def restore(self) -> list[str]:
        """Make the directory, its lock and its records anew, as far as they were removed; return their names.

        Sockets are their listeners' to make anew.

        Raises:
            PoolBusy: The directory was replaced by one that another process holds.
            ConfigurationError: It was replaced by one that is not safe.
            OSError: It cannot be made now; another attempt may succeed.
        """
        if self._beacon is not None:
            self._beacon.let_go()
        lost = []
        if safedir.inode(self.path) != safedir.inode(self._directory_fd):
            lost.append(str(self.path))
            self.path.parent.mkdir(mode=0o700, exist_ok=True)
            self.path.mkdir(mode=0o700, exist_ok=True)
            safedir.check(self.path)
            self._directory_fd = _exchanged(self._directory_fd, _lock_directory(self.path))
        if safedir.inode(self.path / "lock") != safedir.inode(self._lock_fd):
            lost.append("lock")
            self._lock_fd = _exchanged(self._lock_fd, _lock_file(self.path))
            _write(self._lock_fd, f"{self.supervisor}\n")
        self._workers.mkdir(mode=0o700, exist_ok=True)
        for pid, noted in self._noted.items():
            if not (self._workers / str(pid)).exists():
                lost.append(f"workers/{pid}")
                self._note(noted)
        return lost

    def _note(self, noted: Identity) -> None:
        points.point("disk")
        (self._workers / str(noted.pid)).write_text(str(noted), encoding="ascii")

    def survivors(self) -> list[Identity]:
        """Return the workers that a former supervisor noted and that still run; before the first start."""
        noted = [_read_identity(path) for path in sorted(self._workers.iterdir())]
        return [identity for identity in noted if identity is not None and identity.alive()]

    def end_survivors(self, timeout_s: float) -> list[Identity]:
        """Kill the survivors, if any, and wait until they have ended; return them.

        The kernel sent each the same signal when its supervisor ended; here the point is the waiting, for
        they hold their GPU until they are gone.

        Raises:
            Unrecoverable: Some did not end within `timeout_s`.
        """
        with contextlib.ExitStack() as stack:
            pidfds: dict[int, Identity] = {}
            for identity in self.survivors():
                pidfd = identity.open_pidfd()
                if pidfd is not None:
                    stack.callback(os.close, pidfd)
                    pidfds[pidfd] = identity
                    with contextlib.suppress(ProcessLookupError):
                        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            ended = wait_ended(pidfds, timeout_s)
            left = [str(identity.pid) for pidfd, identity in pidfds.items() if pidfd not in ended]
            if left:
                raise errors.Unrecoverable(
                    f"workers of the former supervisor survive SIGKILL (pid {', '.join(left)}), most likely "
                    "stuck in the driver: their GPUs cannot be used before they end; look at `dmesg`, reset "
                    "the GPU or reboot",
                    maybe_executed=False,
                )
            return list(pidfds.values())

    def clean(self) -> None:
        """Remove the sockets and worker notes of a former life; after `end_survivors`, before any start."""
        for path in [*self._sockets(), *self._workers.iterdir()]:
            path.unlink(missing_ok=True)

    def close(self) -> None:
        """Remove the sockets and give the directory back; logs stay. May be called twice."""
        if self._closed:
            return
        self._closed = True
        try:
            if safedir.inode(self.path) == safedir.inode(self._directory_fd):  # or it is another's by now
                for path in self._sockets():
                    path.unlink(missing_ok=True)
            os.ftruncate(self._lock_fd, 0)
        finally:
            os.close(self._lock_fd)
            os.close(self._directory_fd)
            if self._beacon is not None:
                self._beacon.close()

    def _sockets(self) -> list[Path]:
        return [*self.path.glob("*.sock"), self.path / RELAY_PROBE]


def _default_base() -> Path:
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    if runtime.startswith("/") and safedir.private_mode(Path(runtime)):
        return Path(runtime, "atomr-mp")
    temporary = os.environ.get("TMPDIR", "")
    if not temporary.startswith("/"):
        temporary = "/tmp"  # noqa: S108  # `safedir` is for what others could do there
    return Path(temporary, f"atomr-mp-{os.geteuid()}")


def _light(path: Path) -> Beacon | None:
    """Take the directory's name; None where it cannot be had, as where another user has it."""
    try:
        return Beacon(path)
    except BlockingIOError as error:
        raise _busy(path) from error
    except OSError as error:
        _LOG.warning("the name of the run directory %s cannot be held: %s", path, error)
        return None


def _lock_directory(path: Path) -> int:
    """Return the descriptor that holds the directory; it must never reach another process.

    The lock also keeps systemd-tmpfiles from ageing the directory, see tmpfiles.d(5).
    """
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
    until = time.monotonic() + CLEANER_S
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            if _holder(path) is None and time.monotonic() < until:  # a cleaner has it, for a moment
                time.sleep(CLEANER_S / 20)
                continue
            os.close(fd)
            raise _busy(path) from error
        except OSError:  # a file system without such locks; the file is locked besides
            pass
        return fd


def _lock_file(path: Path) -> int:
    """Return the descriptor that holds the file with the supervisor's identity; for it the same is true."""
    fd = os.open(path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(fd)
        raise _busy(path) from error
    except OSError:
        os.close(fd)
        raise
    return fd


def _entry(path: Path) -> PoolEntry | None:
    """Return the pool of a run directory; None if it is no such directory, or its pool has ended in order."""
    try:
        safedir.check(path)
    except errors.ConfigurationError as error:
        _LOG.debug("not a pool: %s", error)
        return None
    supervisor = _read_identity(path / "lock")
    if supervisor is None or not supervisor.alive():
        supervisor = _by_beacon(path) or supervisor
    if supervisor is None:
        return None
    state = PoolState.RUNNING if supervisor.alive() else PoolState.STALE
    return PoolEntry(path.name, path, state, supervisor.pid)


def _holder(path: Path) -> Identity | None:
    """Return the living supervisor of a run directory, as far as files and the beacon tell."""
    noted = _read_identity(path / "lock")
    if noted is not None and noted.alive():
        return noted
    found = _by_beacon(path)
    return None if found is None or found.pid == os.getpid() else found


def _by_beacon(path: Path) -> Identity | None:
    pid = beacon.holder(path)
    with contextlib.suppress(ProcessLookupError):  # it has ended since
        return Identity.of(pid) if pid else None
    return None


def _busy(path: Path) -> errors.PoolBusy:
    holder = _holder(path)
    pid = holder.pid if holder is not None else 0
    who = f"pid {pid}" if pid else "just starting"
    return errors.PoolBusy(
        f"a supervisor ({who}) already holds {path}; connect to it, stop it with `atomr-mp stop`, or "
        "choose another name",
        supervisor_pid=pid,
    )


def _exchanged(old: int, new: int) -> int:
    os.close(old)
    return new


def _write(fd: int, text: str) -> None:
    os.ftruncate(fd, 0)
    data = text.encode("ascii")
    if os.pwrite(fd, data, 0) < len(data):
        raise OSError("no space is left for the lock's content")


def _read_identity(path: Path) -> Identity | None:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        return Identity.parse(os.read(fd, 4096).decode("ascii", "replace"))
    except OSError:
        return None
    finally:
        os.close(fd)
