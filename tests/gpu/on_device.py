"""Libraries' requests on a GPU in this process: NumPy's buffers are copied there and back.

The first test that runs loads CUDA, not the collection of tests.
"""

from __future__ import annotations

import functools
import importlib.util
from typing import Any, Final

import pytest

from atomr_mp.protocol import token
from atomr_mp.protocol.declaration.arguments import with_arrays
from atomr_mp.protocol.libraries.base import LibraryRequest
from atomr_mp_workers.device.streams import StreamAllocator
from atomr_mp_workers.libraries.base import LibraryContext
from atomr_mp_workers.memory.arrays import Block, DeviceArray
from atomr_mp_workers.memory.store import Store
from atomr_mp_workers.requests.off_loop.in_progress import InProgress
from atomr_mp_workers.requests.request import Elsewhere, Later, Next
from tests.fakes.fake_arrays import FakeArray

NEEDS_CUPY: Final = [
    pytest.mark.gpu,
    pytest.mark.skipif(importlib.util.find_spec("cupy") is None, reason="needs CuPy"),
]
"""Marks of a file of tests that use CuPy."""

NOTHING: Final[Any] = None
SERVING: Final[list[str]] = []
"""Engines that libraries have reported."""


@functools.cache
def device() -> Any:
    """Return this process's GPU."""
    from atomr_mp_workers.device.cuda import CudaDevice

    return CudaDevice()


@functools.cache
def library(name: str) -> Any:
    """Return a library, on a stream of its own."""
    from atomr_mp_workers.libraries import implementation

    cls = implementation(name, "cuda")
    assert cls is not None
    return cls(context(), device().make_stream(name, inline_bytes=0))


class ContextOfTests(LibraryContext):
    """A context for libraries; keeps the engines that they report."""

    def served_by(self, _library: str, engine: str) -> None:
        """Keep it."""
        SERVING.append(engine)


@functools.cache
def context() -> LibraryContext:
    """Return a context for libraries."""
    there = device()
    store = Store(there, token.pack(bytes(16), 0, 1), 2**33, InProgress())
    streams = StreamAllocator("single", lambda name, _priority: there.make_stream(name, inline_bytes=0))
    return ContextOfTests("cuda", there, store, streams, lambda: store.buffers.ours, lambda: None)


def run(name: str, request: LibraryRequest) -> Any:
    """Have a library do a request, and return its result; its arrays' memory travels to the GPU and back.

    An error says which request it was, for a context that is lost fails all that follow.
    """
    try:
        return _run(name, request)
    except Exception as error:
        error.add_note(f"in {request!r}")
        raise


def _run(name: str, request: LibraryRequest) -> Any:
    arrays: dict[str, Any] = {field: array for field, _, array in request.arrays() if array is not None}
    slabs = {array.number: array.slab for array in arrays.values()}
    there = {number: device().make_slab(slab.nbytes) for number, slab in slabs.items()}
    for number, slab in slabs.items():
        over(there[number]).set(slab)
    synchronize()
    stream = library(name).stream.stream
    with stream:
        result = started(name, with_arrays(request, lambda array: _there(there, array)))
        if isinstance(result, Elsewhere):
            result = result.then(result.work())
        while isinstance(result, Next):
            stream.synchronize()
            result = result.enqueue()
    stream.synchronize()
    for number, slab in slabs.items():
        slab[:] = over(there[number]).get()
    return result.read() if isinstance(result, Later) else result


def started(name: str, request: LibraryRequest) -> Any:
    """Have a library start a request on arrays of the GPU, and return what its method returns."""
    if request.is_idle():
        return library(name).rest(request)
    prepare = getattr(library(name), f"prepare_{request.name}", None)
    plan = () if prepare is None else (prepare(request),)
    return getattr(library(name), request.name)(request, *plan)


def placed(slab: Any, array: FakeArray) -> DeviceArray:
    """Return an array in a slab on the GPU that lies there as it does in its own."""
    block = Block(
        slab,
        over(slab),
        token=b"",
        device=0,
        buffer=array.number,
        slab_number=array.number,
        offset=0,
        nbytes=slab.nbytes,
        foreign=False,
    )
    block.attached = array.attached_on_gpu() if hasattr(array, "attached_on_gpu") else None
    return DeviceArray(block, array.layout, writable=True)


def _there(slabs: dict[int, Any], array: Any) -> DeviceArray:
    return placed(slabs[array.number], array)


def over(slab: Any) -> Any:
    """Return a slab's bytes."""
    return slab.bytes(NOTHING, 0, slab.nbytes)


def synchronize() -> None:
    """Wait for the GPU."""
    import cupy

    cupy.cuda.Device().synchronize()
