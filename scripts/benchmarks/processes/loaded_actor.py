"""Models that answer under load, fail on order, and record the stacks of their process."""

from __future__ import annotations

import importlib
import os
import sys
import threading
import time
from collections import deque
from types import FrameType
from typing import Any, Final

import numpy as np

from atomr_mp import errors
from atomr_mp_workers import Actor, Context, method

ROWS: Final = 4096
LAYERS: Final = 16
"""Layers of 64 MiB each."""

EVERY_S: Final = 0.005
KEPT: Final = 1200
"""Looks at the stacks that are remembered: those of six seconds."""
DEPTH: Final = 12
"""Frames of a stack that are remembered, the innermost."""

FAULTY: Final = r"""
extern "C" __global__ void illegal() { *(volatile int*)0x10 = 1; }
"""

DOUBLED: Final = r"""
extern "C" __global__ void doubled(float* array, int size) {
    int at = blockIdx.x * blockDim.x + threadIdx.x;
    if (at < size) array[at] *= 2;
}
"""

Look = tuple[int, dict[str, list[str]]]
"""When, by CLOCK_MONOTONIC in nanoseconds, and each thread's frames, the innermost first."""


class StackSampler:
    """Looks at the stacks of all threads every few milliseconds.

    A gap between two looks is a finding too: some thread held the interpreter's lock.
    """

    def __init__(self) -> None:
        self._looks: deque[Look] = deque(maxlen=KEPT)
        self._thread = threading.Thread(target=self._run, name="stack sampler", daemon=True)
        self._thread.start()

    def between(self, from_ns: int, to_ns: int) -> list[Look]:
        """Return the looks of a time, and one before it and one after it."""
        margin_ns = int(EVERY_S * 2e9)
        return [look for look in list(self._looks) if from_ns - margin_ns <= look[0] <= to_ns + margin_ns]

    def _run(self) -> None:
        while True:
            time.sleep(EVERY_S)
            names = {thread.ident: thread.name for thread in threading.enumerate()}
            del names[self._thread.ident]
            frames = sys._current_frames()  # noqa: SLF001 - there is no other way to see other threads' frames
            self._looks.append((time.monotonic_ns(), {name: _stack(frames.get(at or 0)) for at, name in names.items()}))


class _Model(Actor):
    """Base of both models."""

    _sampler: StackSampler | None = None

    def setup(self, _context: Context) -> None:
        """Begin to look at the stacks, unless the environment says not to."""
        if not os.environ.get("LOADED_FAILOVER_BLIND"):
            self._sampler = StackSampler()

    @method(thread=True)
    def looks(self, from_ns: int, to_ns: int) -> tuple[int, list[Look]]:
        """Return this process, and the looks at its stacks of a time."""
        return os.getpid(), self._sampler.between(from_ns, to_ns) if self._sampler is not None else []


class OnHost(_Model):
    """Answers with NumPy."""

    def setup(self, context: Context) -> None:
        """Make what an answer needs."""
        super().setup(context)
        self._small = np.ones(64, np.float32)

    @method
    def answer(self, value: float) -> tuple[float, int]:
        """Return 64 times the value, and this process."""
        return float((self._small * value).sum()), os.getpid()

    @method
    def doubled(self, array: Any) -> tuple[Any, int]:
        """Return twice an array, and this process."""
        return array * 2, os.getpid()

    @method
    def poison(self, number: int) -> None:
        """Lose the context."""
        raise errors.ContextPoisoned(f"the measurement's poison number {number}", status=700)


class OnGpu(_Model):
    """Answers with CuPy, by way of weights that outlive the process."""

    def setup(self, context: Context) -> None:
        """Find or fill the weights, and run everything once, so that an answer needs nothing that is not loaded."""
        self._prepare(context)
        self.answer(1.0)
        self.doubled(np.ones(80_000, np.float32))

    def _prepare(self, context: Context) -> None:
        super().setup(context)
        import cupy

        self._cupy: Any = cupy
        self._illegal = cupy.RawModule(code=FAULTY).get_function("illegal")
        layout = {"layers": ((LAYERS, ROWS, ROWS), "float32")}
        self._weights = context.resident("weights", layout, version="1", fill=_fill)["layers"][-1]
        self._x = cupy.zeros(ROWS, cupy.float32)

    @method
    def answer(self, value: float) -> tuple[float, int]:
        """Return `ROWS` times the value, by way of the weights, and this process."""
        self._x.fill(value)
        return float((self._weights @ self._x)[0]), os.getpid()

    @method
    def doubled(self, array: Any) -> tuple[Any, int]:
        """Return twice an array of the host's, by way of the GPU, and this process."""
        return (self._cupy.asarray(array) * 2).get(), os.getpid()

    @method
    def poison(self, number: int) -> None:  # noqa: ARG002 - tells one request from another
        """Poison the context."""
        self._illegal((1,), (1,), ())


class UnwarmedOnHost(OnHost):
    """Loads nothing for `doubled` before its first call."""

    @method
    def doubled(self, array: Any) -> tuple[Any, int]:
        """Return twice an array, by a module that takes long to import, and this process."""
        return array * importlib.import_module("imported_late").FACTOR, os.getpid()


class UnwarmedOnGpu(OnGpu):
    """Compiles the kernel of `doubled` at its first call, in each process."""

    _kernel: Any = None

    def setup(self, context: Context) -> None:
        """Find or fill the weights, and prepare `answer` alone."""
        self._prepare(context)
        self.answer(1.0)

    @method
    def doubled(self, array: Any) -> tuple[Any, int]:
        """Return twice an array of the host's, by way of the GPU, and this process."""
        if self._kernel is None:  # as a library that keeps compiled code in memory alone
            self._kernel = self._cupy.RawModule(code=f"// {os.getpid()}\n{DOUBLED}").get_function("doubled")
        found = self._cupy.asarray(array)
        self._kernel((-(-found.size // 256),), (256,), (found, found.size))
        return found.get(), os.getpid()


class WarmedOnGpu(UnwarmedOnGpu):
    """The same, but each process compiles the kernel before it is ready."""

    @method(example=lambda: (np.ones(80_000, np.float32),))
    def doubled(self, array: Any) -> tuple[Any, int]:
        """Return the same."""
        return super().doubled(array)


def _fill(arrays: Any) -> None:
    arrays["layers"][...] = 1


def _stack(frame: FrameType | None) -> list[str]:
    """Return the innermost frames of a stack."""
    found: list[str] = []
    while frame is not None and len(found) < DEPTH:
        path = frame.f_code.co_filename
        found.append(f"{'/'.join(path.split('/')[-2:])}:{frame.f_lineno} {frame.f_code.co_name}")
        frame = frame.f_back
    return found
