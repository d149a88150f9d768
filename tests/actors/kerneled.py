"""An actor whose module has NumPy functions in place of kernels, for tests without a GPU."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any, Final

import numpy as np

from atomr_mp_workers import Actor, Context, host_kernel, method
from atomr_mp_workers.host_kernels import HostTensorMap
from atomr_mp_workers.libraries.kernels.modules import LoadedModule

SOURCE: Final = """
struct Pair { int first; double second; };
template <class T> __global__ void scale(T* x, T factor, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] *= factor;
}
extern "C" __global__ void add(const float* a, const float* b, float* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = a[i] + b[i];
}
extern "C" __global__ void unpack(double* out, Pair pair, char letter) {
    out[0] = pair.first; out[1] = pair.second; out[2] = letter;
}
extern "C" __global__ void __launch_bounds__(128) bounded(float* x) { x[threadIdx.x] = gridDim.x; }
extern "C" __global__ void wild(float* x, long long far) { x[far] = 1; }
extern "C" __global__ void wait(float* x, int ms) { x[0] = ms; }
struct alignas(64) Map { unsigned long long words[16]; };
extern "C" __global__ void flip(const __grid_constant__ Map from, const __grid_constant__ Map to, int n) {}
extern "C" __global__ void nobodys(float* x) { x[0] = 1; }
"""
"""Kernels, for the functions below and for a GPU."""

NAMES: Final = ("scale<float>", "scale<double>")


@host_kernel("scale<float>")
def scale(x: Any, factor: Any, n: Any, *, grid: Any, block: Any) -> None:
    """Multiply the first n elements."""
    n = min(int(n), grid[0] * block[0])
    x[:n] *= factor


@host_kernel("add")
def add(a: Any, b: Any, out: Any, n: Any, *, grid: Any, block: Any) -> None:
    """Add the first n elements."""
    n = min(int(n), grid[0] * block[0])
    np.add(a[:n], b[:n], out=out[:n])


@host_kernel("unpack")
def unpack(out: Any, pair: bytes, letter: Any, *, grid: Any, block: Any) -> None:
    """Show what a structure and a byte have become."""
    del grid, block
    out[0] = int.from_bytes(pair[:4], "little", signed=True)
    out[1] = np.frombuffer(pair, "float64", 1, 8)[0]
    out[2] = letter


@host_kernel("faulty")
def faulty(x: Any, *, grid: Any, block: Any) -> None:
    """Write to what the launch may only read, or raise."""
    del grid, block
    x[0] = 1
    raise KeyError("mine")


@host_kernel("deferred")
def deferred(x: Any, *, grid: Any, block: Any) -> Any:
    """Return what would write, and is never run."""
    del grid, block
    return (x.fill(1) for _ in range(1))


@host_kernel("bounded")
def bounded(x: Any, *, grid: Any, block: Any) -> None:
    """Write the number of blocks."""
    x[: block[0]] = grid[0]


@host_kernel("wild")
def wild(x: Any, far: Any, *, grid: Any, block: Any) -> None:
    """End the process, as a wild pointer does, if `far` is not an index of x."""
    del grid, block
    if not 0 <= far < x.size:
        os.kill(os.getpid(), signal.SIGKILL)
    x[far] = 1


@host_kernel("wait")
def wait(x: Any, ms: Any, *, grid: Any, block: Any) -> None:
    """Take a while."""
    del grid, block
    time.sleep(int(ms) / 1000)
    x[0] = ms


@host_kernel("which")
def which(x: Any, *, grid: Any, block: Any) -> None:
    """Write whether it runs on the process's loop."""
    del grid, block
    x[0] = threading.current_thread() is threading.main_thread()


@host_kernel("flip")
def flip(from_: HostTensorMap, to: HostTensorMap, n: Any, *, grid: Any, block: Any) -> None:
    """Copy the first n boxes of each row of boxes, upside down; a GPU's kernel does nothing."""
    del grid, block
    assert not from_.array.flags.writeable
    assert (from_.swizzle, to.swizzle, from_.box) == ("64B", "none", to.box)
    rows, columns = from_.box
    to.array[:rows, : n * columns] = from_.array[:rows, : n * columns][::-1]


class Kerneled(Actor):
    """Has kernels of its own."""

    def setup(self, context: Context) -> None:
        """Keep the libraries, and the module whose arrays they take."""
        self._libraries = context.libraries
        self._xp: Any = np if context.backend == "host" else __import__("cupy")

    @method
    def empty(self) -> None:
        """Do nothing."""

    @method
    def pid(self) -> int:
        """Return this process's pid."""
        return os.getpid()

    @method
    def modules(self) -> int:
        """Return how many modules are loaded in this process."""
        return sum(isinstance(each, LoadedModule) for each in gc.get_objects())

    @method
    def add_here(self, a: Any, b: Any) -> Any:
        """Compile in the actor, launch there, and record a program of a launch."""
        module = self._libraries.kernels.compile(SOURCE)
        a, b = self._xp.asarray(a), self._xp.asarray(b)
        out, twice = self._xp.zeros_like(a), self._xp.zeros_like(a)
        module["add"](a, b, out, a.size, grid=1, block=a.size, out=out)
        with self._libraries.program() as p:
            p.kernels.launch(module["add"], out, out, twice, a.size, grid=1, block=a.size, out=twice)
        p.run()
        return twice

    @method
    def scale_here(self, x: Any, flag: bool) -> Any:  # noqa: FBT001 - an argument of a call
        """Double an array by a launch in one body of a branch, or have it three times by one in the other."""
        scale, x = self._libraries.kernels.compile(SOURCE, names=NAMES)["scale<float>"], x.copy()
        with self._libraries.program() as p:
            condition = p.input("flag", (), "bool")
            with p.if_(condition):
                p.kernels.launch(scale, x, 2.0, 4, grid=1, block=4, inout=x)
            with p.else_():
                p.kernels.launch(scale, x, 3.0, 4, grid=1, block=4, inout=x)
        p.run(flag=flag)
        return x

    @method
    def flip_here(self, x: Any) -> Any:
        """Launch with tensor maps in the actor, alone and in a program."""
        kernels, x, out, twice = self._libraries.kernels, x.copy(), np.zeros_like(x), np.zeros_like(x)
        flips = kernels.compile(SOURCE)["flip"]
        of_out = kernels.tensor_map(out, box=(4, 16))
        flips(kernels.tensor_map(x, box=(4, 16), swizzle="64B"), of_out, 1, grid=1, block=1, inout=of_out)
        with self._libraries.program() as p:
            from_ = p.kernels.tensor_map(out, box=(4, 16), swizzle="64B")
            p.kernels.launch(flips, from_, kernels.tensor_map(twice, box=(4, 16)), 1, grid=1, block=1, inout=twice)
        p.run()
        return out, twice

    @method
    def processes_of(self) -> list[int]:
        """Return the children of this process."""
        children = Path(f"/proc/self/task/{os.getpid()}/children").read_text(encoding="ascii")
        return [int(each) for each in children.split()]
