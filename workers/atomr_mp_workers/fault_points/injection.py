"""Carries out the faults that a test has ordered; imported in a test's workers only."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import threading
from pathlib import Path
from typing import Any, Final, NoReturn

from atomr_mp import errors
from atomr_mp.protocol.messages import control, injection
from atomr_mp.protocol.messages.injection import Exit, Fail, Fault, Hang, HangInKernel, Kill, NoMemory, Point, Poison
from atomr_mp_workers.fatal import FatalError

OF_ARGUMENTS: Final = ("decode", "borrow")
OF_THE_LOOP: Final = ("ready", "promotion", "export", "world_join", "world_note", "world_publish", "world_leave")


class InjectedError(Exception):
    """The exception that `Fail` raises."""


class FaultHook:
    """The hook of `points`.

    Args:
        directory: The directory of the orders.
    """

    def __init__(self, directory: str) -> None:
        self._directory = Path(directory)
        self._device: int | None = None
        self._generation = 0
        self._backend = "host"
        self.in_kernel = False

    def begin(self, start: control.Start) -> None:
        """Learn which process this is."""
        self._device, self._generation, self._backend = start.device, start.generation, start.backend

    def __call__(self, at: Point, of: str) -> None:
        """Carry out the oldest order for this place, if there is one that no other process takes first."""
        try:
            names = os.listdir(self._directory)  # noqa: PTH208 - names are all that is wanted
        except FileNotFoundError:  # the test is over
            return
        for name, fault in injection.found(names, self._read, at, self._device, self._generation, of):
            if self._take(name):
                self._carry_out(fault, at)
                return

    def _read(self, name: str) -> bytes:
        return (self._directory / name).read_bytes()

    def _take(self, name: str) -> bool:
        """Take an order, and announce it; False if another process has it."""
        if not injection.lasts(name):
            try:
                (self._directory / name).unlink()
            except FileNotFoundError:
                return False
        with contextlib.suppress(OSError):  # nobody reads it
            pipe = os.open(self._directory / injection.fired(name), os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                os.write(pipe, b"%d\n" % os.getpid())
            finally:
                os.close(pipe)
        return True

    def _carry_out(self, fault: Fault, at: Point) -> None:
        match fault:
            case Kill(number):
                signal.raise_signal(number)
            case Exit(status):
                os._exit(status)
            case Fail(message):
                _fail(message, at)
            case Hang(seconds, gil):
                _sleep_in_c(ctypes.PyDLL(None), seconds) if gil else threading.Event().wait(seconds)
            case HangInKernel(seconds):
                self._hang_in_kernel(seconds)
            case Poison(status):
                self._poison(status, at)
            case NoMemory():
                raise errors.OutOfMemory("a test lets the device have no memory left")

    def _hang_in_kernel(self, seconds: float | None) -> None:
        if self._backend == "cuda":
            self._kernels().spin(seconds)
        else:
            self.in_kernel = True
            _sleep_in_c(ctypes.CDLL(None), seconds)
            self.in_kernel = False

    def _poison(self, status: int, at: Point) -> None:
        if self._backend == "cuda":
            self._kernels().poison(status)
        error = errors.ContextPoisoned(f"a test has poisoned the context, with status {status}", status=status)
        raise FatalError(error) if at in OF_THE_LOOP else error

    @staticmethod
    def _kernels() -> Any:
        from atomr_mp_workers.fault_points import cuda_injection

        return cuda_injection


def _fail(message: str, at: Point) -> NoReturn:
    if at in OF_ARGUMENTS:
        raise errors.InvalidRequest(message)
    raise FatalError(errors.SetupFailed(message)) if at in OF_THE_LOOP else InjectedError(message)


def _sleep_in_c(library: ctypes.CDLL, seconds: float | None) -> None:
    if seconds is not None:
        library.usleep(int(seconds * 1e6))
        return
    # Not pause(): that returns when a signal comes, and the watchdog sends one.
    lock = ctypes.create_string_buffer(64)  # a pthread_mutex_t that is free, and then ours
    while True:
        library.pthread_mutex_lock(lock)
