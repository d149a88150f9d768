"""The process that workers are forked from: it has imported the modules that they need, and no others.

It has one thread and never calls CUDA, since neither threads nor CUDA survive a fork, and it checks both before each
fork. The supervisor starts it; do not start it by hand.
"""

from __future__ import annotations

import argparse
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
from atomr_mp.protocol.messages import zygote
from atomr_mp_workers import own_process
from atomr_mp_workers.boot import self_signals
from atomr_mp_workers.boot.lifeline import die_with
from atomr_mp_workers.import_path import add_current_folder

BLAS_THREADS: Final = "OPENBLAS_NUM_THREADS"
"""NumPy's BLAS starts its threads at import unless this variable is 1."""

RUNTIME: Final = (
    "atomr_mp_workers.boot.worker_main",
    "atomr_mp_workers.device.host",
    "atomr_mp_workers.device.host_memory",  # and with it NumPy
    "numpy.random",
)
OF_BACKEND: Final[dict[str, tuple[str, ...]]] = {"host": (), "cuda": ("cupy",)}


def main() -> None:
    """Import, then fork on each order, until the supervisor hangs up."""
    parser = argparse.ArgumentParser(
        prog="atomr_mp_workers.boot.zygote", description="internal: started by the supervisor", allow_abbrev=False
    )
    parser.add_argument("--fd", type=int, required=True)
    parser.add_argument("--parent", type=int, required=True)
    parser.add_argument("--backend", required=True)
    parser.add_argument("--preload", action="append", default=[])
    parser.add_argument("--title", default="", help="shown by ps, otherwise unused")
    options = parser.parse_args()
    die_with(options.parent)
    output.protect()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    channel = socket.socket(fileno=options.fd)
    channel.set_inheritable(False)
    self_signals.wrap()  # before a module keeps a function; notes begin with the worker
    missing = preload([*RUNTIME, *OF_BACKEND[options.backend]])
    add_current_folder()  # after what is ours, and only for what the user names
    missing += preload(options.preload)
    # Out of the collector's sight: it would touch, and so copy, memory that parent and child share.
    gc.collect()
    gc.freeze()
    forks = Forks(channel, _blas_threads())
    channel.send(zygote.FROM_ZYGOTE.encode(zygote.Warmed(missing)))
    while True:
        packet, descriptors, _, _ = socket.recv_fds(channel, zygote.MAX_PACKET_BYTES, 3)
        if not packet:
            return
        answer = forks.fork(zygote.TO_ZYGOTE.decode(packet), descriptors)
        for descriptor in descriptors:
            os.close(descriptor)
        channel.send(zygote.FROM_ZYGOTE.encode(answer))


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
        set_blas_threads: Sets the number of threads of NumPy's BLAS.
    """

    def __init__(self, channel: socket.socket, set_blas_threads: Callable[[int], object] | None) -> None:
        self._channel = channel
        self._set_blas_threads = set_blas_threads

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
            _allow_blas_threads(self._set_blas_threads)
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
