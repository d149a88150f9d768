"""Shared by tests with real pools: a ledger of leftovers, gates, and waits with a deadline.

A pool under test inherits `LEDGER` from the environment, and so does every process that it starts, however far it
goes from us: that is how `Ledger` finds them. Nothing here sleeps where there is an event to wait for.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import resource
import secrets
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Final, Self

import pytest

import atomr_mp
from atomr_mp import errors, testing
from atomr_mp.client.client import Client
from atomr_mp.client.programs import KnownPrograms
from atomr_mp.client.reply_life import ReplyState
from atomr_mp.libraries.program import Program as LibraryProgram
from atomr_mp.operator.pool_status import DeviceStandby
from atomr_mp.process.identity import wait_ended
from atomr_mp.process.scheduling import threads
from atomr_mp.protocol.messages.devices import DeviceInfo, DeviceState
from atomr_mp.protocol.messages.session import DeviceChanged
from atomr_mp.supervision.watchdog import Thread
from soaking.delays import any_has_waited_s
from tests.waiting import readable

LEDGER: Final = "ATOMR_MP_TEST"
"""Environment variable that marks all processes of a ledger; its value is the ledger's directory."""

BACKEND: Final = os.environ.get("ATOMR_MP_TEST_BACKEND", "host")
"""The backend of the tests' pools; the same tests hold on each."""

ENGINE: Final = os.environ.get("ATOMR_MP_TEST_ENGINE", "")
"""The engine of worlds on GPUs that do not name one; empty for the default."""

DEADLINE_S: Final = 30.0
"""Longest wait for anything: far more than it takes, also on a busy machine."""

PROMISE_S: Final = 2.0
"""Within this time nothing of the dead remains."""

ACTORS: Final = Path(__file__).parent / "actors"
PROBE: Final = f"{ACTORS}/probe.py:Probe"
BYSTANDER: Final = f"{ACTORS}/probe.py:Bystander"
KEEPER: Final = f"{ACTORS}/keeper.py:Keeper"


def gpu_count() -> int:
    """Return how many GPUs tests may use: those of this machine, or those that CUDA_VISIBLE_DEVICES names."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return len(visible.split(",") if visible else list(Path("/proc/driver/nvidia/gpus").iterdir()))


def needs_devices(count: int) -> None:
    """Skip the test if the machine has fewer devices of the backend under test."""
    if BACKEND == "cuda" and count > gpu_count():
        pytest.skip(f"needs {count} GPUs")


def shared_devices(count: int) -> dict[str, Any]:
    """Return settings for so many devices; several share a GPU if there are fewer."""
    if BACKEND != "cuda":
        return {"gpus": count}
    gpus = max(each for each in range(1, count + 1) if each <= gpu_count() and not count % each)
    return {"gpus": gpus, "workers_per_gpu": count // gpus}


class Ledger:
    """Counts processes, descriptors, threads and files before a test, and again after it.

    Attributes:
        path: A directory of the ledger's own, short enough for sockets; also where the actors under test find it.
    """

    def __init__(self) -> None:
        self.path: Final = Path(tempfile.mkdtemp(prefix="am-", dir="/tmp"))
        self._run_dirs: list[Path] = []
        self._gates: list[Gate] = []
        self._outer: str | None = None
        self._descriptors: dict[int, str] = {}
        self._threads = 0

    def __enter__(self) -> Self:
        self._outer = os.environ.get(LEDGER)
        os.environ[LEDGER] = str(self.path)
        self._descriptors, self._threads = open_descriptors(), _threads()
        return self

    def __exit__(
        self, _type: type[BaseException] | None, failed: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        if self._outer is None:
            del os.environ[LEDGER]
        else:
            os.environ[LEDGER] = self._outer
        left = self._processes_left()
        for pid in left:
            with contextlib.suppress(ProcessLookupError):  # it has ended since
                os.kill(pid, signal.SIGKILL)
        for gate in self._gates:
            gate.close()
        files = [path for run_dir in self._run_dirs for path in _not_logs(run_dir)]
        settled(lambda: _threads() <= self._threads, Patience())
        threads = _threads()
        shutil.rmtree(self.path)
        if failed is not None:
            return
        assert not left, f"processes are left: {left}"
        assert not files, f"files are left: {files}"
        assert threads <= self._threads, f"threads are left: {threading.enumerate()}"
        # Garbage of earlier tests may have been collected meanwhile; what is garbage of this one is no leak.
        if self._left_open():
            gc.collect()
            # Threads of earlier tests may have ended meanwhile: one of this test may still be about to close its own.
            settled(lambda: not self._left_open(), Patience())
        left_open = self._left_open()
        assert not left_open, f"descriptors are left: {left_open}"

    def run_dir(self, name: str = "run") -> Path:
        """Return the path of a run directory, whose leftovers count."""
        path = self.path / name
        if path not in self._run_dirs:
            self._run_dirs.append(path)
        return path

    def start(
        self,
        *actors: str,
        gpus: int = 1,
        run_dir: str = "run",
        faults: Iterable[testing.At] | None = None,
        **settings: Any,
    ) -> atomr_mp.Pool:
        """Start a pool on the backend under test; with `faults`, if only an empty list, some can be injected.

        It bears being ended by the same request again and again.
        """
        settings.setdefault("max_suspicions", 0)
        if settings.setdefault("backend", BACKEND) == BACKEND:
            needs_devices(gpus)
        if ENGINE and settings["backend"] == "cuda" and settings.get("worlds"):
            if settings.get("workers_per_gpu", 1) > 1:
                pytest.skip(f"{ENGINE} takes one rank on a GPU")
            settings["worlds"] = {name: {"engine": ENGINE, **world} for name, world in settings["worlds"].items()}
        settings |= {"actors": actors or (PROBE, BYSTANDER), "gpus": gpus, "run_dir": self.run_dir(run_dir)}
        return atomr_mp.start(**settings) if faults is None else testing.start(faults=faults, **settings)

    def gate(self, name: str) -> Gate:
        """Make a gate."""
        gate = Gate(self.path / name)
        self._gates.append(gate)
        return gate

    def runs(self, name: str = "runs") -> list[str]:
        """Return what the actors have noted, oldest first."""
        path = self.path / name
        return path.read_text().split() if path.exists() else []

    def processes(self) -> list[int]:
        """Return the pids of all processes that were started with this ledger, wherever they are."""
        mark = f"\0{LEDGER}={self.path}\0".encode()
        pids = map(int, filter(str.isdecimal, os.listdir("/proc")))  # noqa: PTH208 - each test looks
        return [pid for pid in pids if mark in _environment(pid)]

    def program(self, name: str, *arguments: str | Path, errors: bool = False) -> Program:
        """Start one of the programs beside the crash tests."""
        return Program(Path(__file__).parent / "programs" / f"{name}.py", *map(str, arguments), errors=errors)

    def _left_open(self) -> dict[int, str]:
        return dict(open_descriptors().items() - self._descriptors.items())

    def _processes_left(self) -> list[int]:
        return self.processes() if not settled(lambda: not self.processes(), Patience()) else []


@contextlib.contextmanager
def client_of(shared: atomr_mp.Pool) -> Iterator[atomr_mp.Pool]:
    """Connect to a pool that tests share; afterwards its workers are as before, and have nothing to do."""
    before = shared.devices
    with atomr_mp.connect(run_dir=shared.run_dir) as own:
        own.wait_ready()
        yield own
    assert shared.devices == before
    assert settled(lambda: all(worker.queue_depth == 0 for worker in shared.status().devices))


class Gate:
    """A place where whoever arrives says so, and waits until it opens. Actors get its path (`probe.arrive`).

    After the `with` it stays open for all who still come, or are about to open it, until it is closed.
    """

    def __init__(self, path: Path) -> None:
        self.path: Final = str(path)
        # Both ends open on our side: nobody blocks in opening, and nothing is lost that comes early.
        self._here, self._go = (self._fifo(end) for end in (".here", ".go"))
        self._came: deque[int] = deque()
        """Who has arrived, and was not waited for yet."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.open(1000)

    def close(self) -> None:
        """Close it; whoever comes now waits for ever."""
        os.close(self._here)
        os.close(self._go)

    def wait(self, count: int = 1) -> list[int]:
        """Wait until so many have arrived, but for those waited for before; return their pids."""
        until, poll = time.monotonic() + DEADLINE_S, select.poll()
        poll.register(self._here, select.POLLIN)
        while len(self._came) < count:
            assert poll.poll(1000 * max(0.0, until - time.monotonic())), "nobody has arrived"
            self._came.extend(int(line) for line in os.read(self._here, 4096).split())  # a line is written at once
        return [self._came.popleft() for _ in range(count)]

    def open(self, count: int = 1) -> None:
        """Let so many pass, now or when they come."""
        os.write(self._go, b"." * count)

    def _fifo(self, end: str) -> int:
        os.mkfifo(self.path + end)
        return os.open(self.path + end, os.O_RDWR | os.O_NONBLOCK)


class Program:
    """A program beside the tests, which says and gets lines. Killed at the end of the `with`.

    Args:
        path: The program.
        *arguments: Its arguments.
        errors: What it writes to stderr is heard by `hear_error`.
    """

    def __init__(self, path: Path, *arguments: str, errors: bool = False) -> None:
        self._popen = subprocess.Popen(
            [sys.executable, str(path), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE if errors else None,
            bufsize=0,
        )
        self.pid: Final = self._popen.pid

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self._popen.kill()
        self._popen.__exit__(None, None, None)

    def hear(self) -> list[str]:
        """Return the words of the next line."""
        return self._hear(self._popen.stdout)

    def hear_error(self) -> list[str]:
        """Return the words of the next line on stderr."""
        return self._hear(self._popen.stderr)

    def _hear(self, out: IO[bytes] | None) -> list[str]:
        assert out is not None
        assert readable([out], DEADLINE_S), "the program said nothing"
        line = out.readline()
        assert line, f"the program has ended: {self._popen.wait(DEADLINE_S)}"
        return line.decode().split()

    def tell(self, line: str = "") -> None:
        """Say a line to it."""
        assert self._popen.stdin is not None
        self._popen.stdin.write(f"{line}\n".encode())

    def interrupt(self) -> None:
        """Press Ctrl-C."""
        self._popen.send_signal(signal.SIGINT)

    def kill(self) -> None:
        """End it with SIGKILL."""
        self._popen.kill()


@contextlib.contextmanager
def running(process: subprocess.Popen[Any]) -> Iterator[None]:
    """Kill a process afterwards that has not ended by then: a test that fails is not to wait for it."""
    with process:
        try:
            yield
        finally:
            process.kill()


class Watched:
    """Processes whose end is to be seen, whoever their parent is."""

    def __init__(self, pids: Iterable[int]) -> None:
        self._pidfds = {os.pidfd_open(pid): pid for pid in pids}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        for pidfd in self._pidfds:
            os.close(pidfd)

    def left(self, within: float | Patience | None = None) -> list[int]:
        """Wait for their end, for seconds or with patience; return the pids of those that go on."""
        if isinstance(within, float | int):
            ended = wait_ended(self._pidfds, within)
        else:
            patience = Patience() if within is None else within
            ended = wait_ended(self._pidfds, patience.left_s)
            while len(ended) < len(self._pidfds) and (left_s := patience.left_s) > 0:
                ended = wait_ended(self._pidfds, left_s)
        return [pid for pidfd, pid in self._pidfds.items() if pidfd not in ended]


class Delays:
    """For how long processes, this one among them, have waited for a processor since this was made.

    What takes longer for want of one is a busy machine's doing, and breaks no promise of ours. Where the kernel tells
    for how long any process has waited, that counts if it is more: others' processes may be waited for.
    """

    def __init__(self, *pids: int) -> None:
        self._before = {pid: threads(pid) for pid in (os.getpid(), *pids)}
        self._any_before_s = any_has_waited_s()

    def so_far_s(self, *started: int) -> float:
        """Return it, of each process for its thread that has waited longest; `started` have begun since."""
        now = {pid: threads(pid) for pid in (*self._before, *started)}
        these_s = sum(max(self._waited_ns(pid, of), default=0) for pid, of in now.items()) / 1e9
        return max(these_s, any_has_waited_s() - self._any_before_s)

    def _waited_ns(self, pid: int, now: dict[int, Thread]) -> Iterator[int]:
        before = self._before.get(pid, {})
        return (each.delayed_ns - (before[tid].delayed_ns if tid in before else 0) for tid, each in now.items())


class Patience:
    """A time in which something has to happen, and as long again as processes wait for a processor meanwhile.

    Args:
        within_s: How long it may take on a machine that has nothing else to do.
    """

    def __init__(self, within_s: float = PROMISE_S) -> None:
        now = time.monotonic()
        self._until, self._longest_until = now + within_s, now + max(within_s, DEADLINE_S)
        self._delays = Delays()

    @property
    def left_s(self) -> float:
        """How much of the time is left; negative once it is over."""
        return min(self._until + self._delays.so_far_s(), self._longest_until) - time.monotonic()


class Edges:
    """Tells that a descriptor has become readable, or more so, since it was last asked; may be used with `with`."""

    def __init__(self, descriptor: int) -> None:
        self._poll = select.epoll()
        self._poll.register(descriptor, select.EPOLLIN | select.EPOLLET)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Close its own descriptor."""
        self._poll.close()

    def wait(self, timeout_s: float) -> bool:
        """Return whether it has, or does within this time."""
        return bool(self._poll.poll(timeout_s))


def settled(condition: Callable[[], bool], within: float | Patience = DEADLINE_S) -> bool:
    """Return whether a condition that no event signals becomes true in time; looks once more when that is over.

    It looks less often the longer that takes: a look may ask another process.

    Args:
        condition: The condition.
        within: For how long to look, in seconds or with patience.
    """
    began = time.monotonic()
    until = began + (within if isinstance(within, float | int) else 0)
    over = False
    while not condition():
        if over:
            return False
        # Between looks at what no event tells of: another process's counters, memory, files.
        time.sleep(min(0.002 + (time.monotonic() - began) / 20, 0.02))
        over = within.left_s < 0 if isinstance(within, Patience) else time.monotonic() > until
    return True


class Events:
    """What a pool's devices are from now on, in order, also what passes before anybody has looked.

    Args:
        pool: The pool, or another client of it.
    """

    def __init__(self, pool: atomr_mp.Pool) -> None:
        self._pool = pool
        self._devices: list[DeviceInfo] = []
        pool.on_event(lambda event: self._devices.append(event.device) if isinstance(event, DeviceChanged) else None)

    def wait(self, condition: Callable[[DeviceInfo], bool]) -> DeviceInfo:
        """Wait until a device is, or was, as the condition says; return it as it was then."""
        wait_until(self._pool, lambda: any(map(condition, self._devices)))
        return next(filter(condition, self._devices))


def local_client(pool: atomr_mp.Pool) -> Client:
    """Return the client of a pool, to look inside."""
    return pool._client


def wait_until(pool: atomr_mp.Pool, condition: Callable[[], bool], within_s: float = DEADLINE_S) -> None:
    """Take in a pool's events until the condition holds."""
    assert pool._client.wait_until(condition, within_s), f"in vain: {pool!r}"


def wait_state(pool: atomr_mp.Pool, state: DeviceState, device: int = 0) -> DeviceInfo:
    """Wait until a device is in a state, as this client sees it."""
    wait_until(pool, lambda: pool._client.devices[device].state is state)
    return pool._client.devices[device]


@contextlib.contextmanager
def stopped(pid: int) -> Iterator[None]:
    """Have a process stand still meanwhile."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def wait_generation(pool: atomr_mp.Pool, generation: int, device: int = 0, within_s: float = DEADLINE_S) -> DeviceInfo:
    """Wait until this client may call an incarnation of a device."""

    def admitted() -> bool:
        info = pool._client.devices[device]
        return info.admitted and info.generation >= generation

    wait_until(pool, admitted, within_s)
    return pool._client.devices[device]


def standby_of(pool: atomr_mp.Pool, device: int = 0) -> DeviceStandby:
    """Return what `status` tells of a device's standby, or of its zygote."""
    standby = pool.status().devices[device].standby
    assert standby is not None
    return standby


def standby_pid(pool: atomr_mp.Pool, device: int = 0) -> int:
    """Return the process of a device's standby, which it has."""
    pid = standby_of(pool, device).pid
    assert pid is not None
    return pid


def wait_sent(*replies: atomr_mp.Reply) -> None:
    """Wait until requests have left for their workers: one that is called beside others waits for company first.

    A worker that is killed before takes none of them along: they go to the next one, whatever they are.
    """
    unsent = {ReplyState.BACKLOG, ReplyState.WAITING}
    assert settled(lambda: not any(reply.state in unsent for reply in replies)), f"not sent: {replies}"


def pretend_told(device: atomr_mp.Device, program: LibraryProgram) -> KnownPrograms:
    """Have a client believe that its worker knows a program, which it names by the digest from now on."""
    assert program._recorded is not None
    known = device._programs or device._make_programs()
    _, run = known.shortened(program._recorded, device._generation)
    assert run is not None
    run._told.known = True
    return known


def hurry(reply: atomr_mp.Reply) -> None:
    """Let a reply's deadline pass soon, as seen here; the worker, which may begin late, knows another."""
    reply.deadline_ns = time.monotonic_ns() + 100_000_000


def free_port() -> int:
    """Return a port at which nothing listens, for a process that is yet to be started.

    The kernel gives ports of this range to nobody who asks for any port, as most tests do.
    """
    while True:
        port = 20_000 + secrets.randbelow(10_000)
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


def _environment(pid: int) -> bytes:
    try:
        with open(f"/proc/{pid}/environ", "rb") as environment:  # noqa: PTH123 - each test looks
            return b"\0" + environment.read()
    except OSError:  # it has ended, or is another user's
        return b""


def open_descriptors(pid: int | str = "self") -> dict[int, str]:
    """Return what a process has open, by number; not what it closes while it is looked at."""
    found = {}
    for path in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # in this process: the one by which the directory was read
            found[int(path.name)] = str(path.readlink())
    return found


def in_loop(use: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    """Run a coroutine function with a deadline."""

    async def bounded() -> Any:
        return await asyncio.wait_for(use(), DEADLINE_S)

    return asyncio.run(bounded())


def _threads() -> int:
    return len(list(Path("/proc/self/task").iterdir()))


def _not_logs(run_dir: Path) -> list[str]:
    """Return what is in a run directory but for logs and an empty lock."""
    if not run_dir.exists():
        return []
    found = [path for path in run_dir.rglob("*") if ".log" not in path.name and "events.jsonl" not in path.name]
    return [
        str(path)
        for path in found
        if not (path.name == "workers" and path.is_dir()) and not (path.name == "lock" and not path.stat().st_size)
    ]


@contextlib.contextmanager
def full_disk(at_bytes: int) -> Iterator[None]:
    """Let no file grow beyond a size: writes are cut short, then refused, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (at_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def parts_of(stream: atomr_mp.ReplyStream) -> tuple[list[Any], errors.AtomrError | None]:
    """Return what a stream delivers, and what it ends with."""
    parts: list[Any] = []
    try:
        for part in stream:
            parts.append(part)  # noqa: PERF402 - what came before an error counts
    except errors.AtomrError as error:
        return parts, error
    return parts, None
