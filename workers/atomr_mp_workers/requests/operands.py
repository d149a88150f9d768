"""The memory that a request uses: borrows it, waits for earlier uses, and returns it. Only with the loop's turn."""

from __future__ import annotations

from typing import Any

from atomr_mp import errors
from atomr_mp_workers.device.base import Event, WorkerDevice
from atomr_mp_workers.memory.arrays import DeviceArray
from atomr_mp_workers.requests import contents
from atomr_mp_workers.requests.request import Request


def borrow(request: Request, arguments: tuple[Any, ...], arrays: list[DeviceArray]) -> None:
    """Find out which memory a request uses, and what uses it now."""
    if len(arrays) == 1 and request.method.reads:  # a shortcut to the same result as below
        block = arrays[0].block
        request.is_lent = block.foreign
        request.borrows = ((block, False),)
        request.after = block.borrows.before(write=False)
        if request.after or block.borrows.content is not None or block.borrows.open_writers:
            _read(request, arguments, arrays)
        return
    blocks = dict.fromkeys([array.block for array in arrays], False)
    request.is_lent = any(block.foreign for block in blocks)
    written = request.method.written(arguments)
    for array in written:
        if array.block.foreign:
            raise errors.GpuRefWrongDevice(
                "a request writes only memory of the device that it runs on", device=array.block.device
            )
        array.writable = True
        blocks[array.block] = True
    if written and request.method.admit is None:  # a view writes nothing by itself
        request.writes, request.order = written, next(contents.orders)
    after: list[Event] = []
    for block, write in blocks.items():
        after += block.borrows.before(write=write)
    request.borrows = tuple(blocks.items())
    request.after = after
    if after or contents.are_doubtful(blocks):
        _read(request, arguments, arrays)


def _read(request: Request, arguments: tuple[Any, ...], arrays: list[DeviceArray]) -> None:
    """Note which memory a request reads that is undefined, or may be once earlier requests have ended.

    Raises:
        GpuRefUndefined: Some of the memory is undefined.
    """
    request.order = request.order or next(contents.orders)
    request.reads = request.method.read(arguments, list(arrays))
    error = contents.undefined(request)
    if error is not None:
        try:
            raise error
        finally:
            del error  # this frame and it would keep each other, and the arguments, until a collection


def lend(request: Request, device: WorkerDevice) -> None:
    """Make an event on which others wait for the end of a request that does not run at once."""
    if request.borrows and request.event is None:
        event = request.event = device.make_event()
        for block, write in request.borrows:
            block.borrows.add(event, write=write)
        if request.writes:
            contents.open_writes(request)


def is_free(request: Request) -> bool:
    """Return whether all earlier uses of the request's memory have ended; a dropped request uses none."""
    return all(event.done for event in request.after) and not (request.reads and contents.are_open(request))


def let_go(request: Request) -> None:
    """Return the borrows of a request."""
    if request.event is not None and not request.event.done:
        request.event.end()
    request.borrows = request.after = request.arguments = request.reads = request.writes = ()
