"""The process that workers are forked from: it has imported the modules that they need, and no others.

It has one thread and never calls CUDA, since neither threads nor CUDA survive a fork, and it checks both before each
fork. The supervisor starts it; do not start it by hand.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import os
import random
import re
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final, NoReturn

from atomr_mp import output
from atomr_mp.protocol.exceptions import describe
from atomr_mp.protocol.messages import control, data, zygote
from atomr_mp_workers import own_process
from atomr_mp_workers.boot import self_signals
from atomr_mp_workers.boot.lifeline import die_with
from atomr_mp_workers.boot.shown import show_run_dir, show_title
from atomr_mp_workers.import_path import add_current_folder, standard_library

BLAS_THREADS: Final = "OPENBLAS_NUM_THREADS"
"""NumPy's BLAS starts its threads at import unless this variable is 1."""

RUNTIME: Final = (
    "atomr_mp_workers.boot.worker_main",
    "atomr_mp_workers.device.host",
    "atomr_mp_workers.device.host_memory",  # and with it NumPy
)
OF_BACKEND: Final[dict[str, tuple[str, ...]]] = {"host": (), "cuda": ("cupy",)}


def main() -> None:
    """Import, then fork on each order, until the supervisor hangs up."""
    options = dict(word.removeprefix("--").split("=", 1) for word in sys.argv[1:])
    die_with(int(options["parent"]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])  # the supervisor blocks some until it can handle them
    channel = socket.socket(fileno=int(options["fd"]))
    channel.set_inheritable(False)
    channel.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, zygote.MAX_PACKET_BYTES)
    self_signals.wrap()  # before a module keeps a function; notes begin with the worker
    gc.disable()  # no module that is imported is garbage
    missing = preload(RUNTIME)
    for codec in (control.FROM_SUPERVISOR, data.FROM_CLIENT):
        codec.get_ready()  # once for all workers
    standard_library()  # likewise: to look it up takes milliseconds
    # Out of the collector's sight: it would touch, and so copy, memory that parent and child share.
    gc.freeze()
    gc.enable()
    forks = Forks(channel)
    while True:
        packet, descriptors, _, _ = socket.recv_fds(channel, zygote.MAX_PACKET_BYTES, 3)
        if not packet:
            return
        order = zygote.TO_ZYGOTE.decode(packet)
        if isinstance(order, zygote.Preload):
            missing += prepare(order, descriptors)
            forks.set_blas_threads = _blas_threads()
            answer: zygote.FromZygote = zygote.Warmed(missing)
        else:
            answer = forks.fork(order, descriptors)
        for descriptor in descriptors:
            os.close(descriptor)
        channel.send(zygote.FROM_ZYGOTE.encode(answer))


def prepare(order: zygote.Preload, descriptors: list[int]) -> list[str]:
    """Become the zygote of a pool; return the modules that could not be imported, and why."""
    for standard in (1, 2):
        os.dup2(descriptors[0], standard)
    output.protect()
    show_title(order.pool, "zygote")
    if not show_run_dir(order.run_dir):
        sys.exit("the run directory cannot be shown in the environment of this process; another is to be started")
    os.environ.update(order.limits)
    missing = preload(OF_BACKEND[order.backend])
    add_current_folder()  # after what is ours, and only for what the user names
    missing += preload(order.modules)
    gc.collect()
    gc.freeze()
    return missing


def preload(modules: Iterable[str]) -> list[str]:
    """Import modules; return those that failed, and why. A worker that needs them will report the same."""
    given = os.environ.get(BLAS_THREADS)
    os.environ[BLAS_THREADS] = "1"
    missing = []
    for module in modules:
        try:
            importlib.import_module(module)
        except BaseException as error:  # noqa: BLE001 - a module may raise whatever it likes
            missing.append(f"{module}: {describe(error)}"[:1000])
        own_process.check()
    if given is None:
        del os.environ[BLAS_THREADS]
    else:
        os.environ[BLAS_THREADS] = given
    return missing


def obstacle() -> str:
    """Return why this process cannot be forked safely; empty if it can."""
    threads = sum(1 for _ in Path("/proc/self/task").iterdir())
    if threads != 1:
        return f"it has {threads} threads, and a fork would take only one: something that it imports starts them"
    for path in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # the descriptor that reads the directory
            if str(target := path.readlink()).startswith("/dev/nvidia"):
                return f"it has {target} open, and CUDA does not survive a fork: something that it imports uses it"
    return ""


class Forks:
    """Makes workers.

    Args:
        channel: To the supervisor; closed in workers.
    """

    def __init__(self, channel: socket.socket) -> None:
        self.set_blas_threads: Callable[[int], object] | None = None
        """Sets the number of threads of NumPy's BLAS."""
        self._channel = channel

    def fork(self, order: zygote.Fork, descriptors: list[int]) -> zygote.Forked | zygote.ForkRefused:
        """Fork a worker that becomes the supervisor's child, by way of a process in between that ends at once."""
        if len(descriptors) != 3:
            return zygote.ForkRefused(order.id, "the descriptors did not all arrive")
        if reason := obstacle():
            return zygote.ForkRefused(order.id, reason)
        sys.stdout.flush()  # or the child would write it again
        pid_here, pid_there = os.pipe()
        go_here, go_there = os.pipe()
        try:
            between = os.fork()
            if between == 0:
                self._be_between(order, descriptors, pid_there, go_here, [pid_here, go_there])
            os.close(pid_there)
            pid_there = -1
            pid = os.read(pid_here, 100)
            os.waitpid(between, 0)  # from here on the worker is the supervisor's child, and may be tied to it
            if not pid:
                return zygote.ForkRefused(order.id, "the second fork failed")
            os.write(go_there, b".")
            return zygote.Forked(order.id, int(pid))
        except OSError as error:
            return zygote.ForkRefused(order.id, f"fork failed: {error}")
        finally:
            for descriptor in (pid_here, pid_there, go_here, go_there):
                if descriptor >= 0:
                    os.close(descriptor)

    def _be_between(
        self,
        order: zygote.Fork,
        descriptors: list[int],
        pid_there: int,
        go_here: int,
        unneeded: list[int],
    ) -> NoReturn:
        try:
            for descriptor in unneeded:
                os.close(descriptor)
            worker = os.fork()
            if worker == 0:
                os.close(pid_there)
                self._channel.close()
                self._be_worker(order, descriptors, go_here)
            os.write(pid_there, b"%d" % worker)
        except BaseException:  # noqa: BLE001 - whatever it was, two processes must not go on with the same program
            os._exit(1)
        os._exit(0)

    def _be_worker(self, order: zygote.Fork, descriptors: list[int], go_here: int) -> NoReturn:
        try:
            control_fd, board_fd, output_fd = descriptors
            os.setpgid(0, 0)
            for standard in (1, 2):
                os.dup2(output_fd, standard)
            os.close(output_fd)
            os.environb.clear()
            os.environb.update(order.environment)
            _reseed()
            _allow_blas_threads(self.set_blas_threads)
            from atomr_mp_workers.boot.worker_main import work

            # Nothing comes if the zygote has died: then no other process knows of this one.
            told = os.read(go_here, 1)
            os.close(go_here)
            if not told:
                os._exit(1)
            work(control_fd, board_fd, order.parent)
        except BaseException:  # noqa: BLE001 - it is told here, and must not get into the zygote's own loop
            traceback.print_exc()
            os._exit(4)


def _reseed() -> None:
    """Reseed the standard generators so that siblings differ; other generators are their owners' to reseed."""
    random.seed()
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed()


def _blas_threads() -> Callable[[int], object] | None:
    """Return the function that sets the number of threads of NumPy's BLAS, None if it cannot be found."""
    maps = Path("/proc/self/maps").read_text(encoding="utf-8", errors="surrogateescape")
    for path in sorted({path for path in re.findall(r"/\S++", maps) if ".so" in path.partition("openblas")[2]}):
        library = ctypes.CDLL(path)
        for name in ("scipy_openblas_set_num_threads64_", "openblas_set_num_threads64_", "openblas_set_num_threads"):
            if hasattr(library, name):
                found: Callable[[int], object] = getattr(library, name)
                return found
    return None


def _allow_blas_threads(set_threads: Callable[[int], object] | None) -> None:
    """Give NumPy's BLAS as many threads as in a fresh interpreter; without the function, it keeps one."""
    wanted = os.environ.get(BLAS_THREADS) or os.environ.get("OMP_NUM_THREADS") or ""
    count = int(wanted) if wanted.isdecimal() and int(wanted) else len(os.sched_getaffinity(0))
    if set_threads is not None and count > 1:
        set_threads(count)


if __name__ == "__main__":
    main()
