"""Readers of what a failed request should have written are refused: notes failures at blocks, and looks for them.

What is noted is decided in `memory.content`. Only with the loop's turn. Nothing here is called for a request that waits
for nobody and whose memory is well, but for a look whether it writes.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Final

from atomr_mp import errors
from atomr_mp_workers.memory import content
from atomr_mp_workers.memory.arrays import Block, DeviceArray
from atomr_mp_workers.memory.content import Culprit, WrittenPart
from atomr_mp_workers.requests.request import Request

orders: Final = itertools.count(1)
"""Places in the order of borrows."""


def undefined(request: Request) -> errors.GpuRefUndefined | None:
    """Return why a request must not read what it reads, if there is a reason."""
    for array in request.reads:
        known = array.block.borrows.content
        if known is None:
            continue
        culprit = content.blame(known, array.layout, request.order, request.received_ns)
        if culprit is not None:
            return _error(array, culprit)
    return None


def settle(request: Request, error: errors.AtomrError | None) -> errors.AtomrError | None:
    """Note what has become of what a request writes; return what it ends with, its own error or that of its operands.

    Args:
        request: It has ended, or was kept from running.
        error: What it has ended with so far.
    """
    close_writes(request)
    if error is None:
        error = undefined(request)
    if error is None:
        _note_written(request)
    elif request.kept_out:
        note_absent(request, error)
    else:
        _note_failed(request, error)
    return error


def open_writes(request: Request) -> None:
    """Note a writer that does not run at once: until it is settled, readers behind it are not answered."""
    for array in request.writes:
        array.block.borrows.open_writers.append(request.order)


def close_writes(request: Request) -> None:
    """Take back what `open_writes` has noted, if it has."""
    for array in request.writes:
        if request.order in array.block.borrows.open_writers:
            array.block.borrows.open_writers.remove(request.order)


def are_open(request: Request) -> bool:
    """Return whether a writer before a request, of what it reads, is not settled yet."""
    return any(order < request.order for array in request.reads for order in array.block.borrows.open_writers)


def note_absent(request: Request, error: errors.AtomrError) -> None:
    """Record that a request does not start: who was queued behind it must not read what it was to write."""
    culprit = _culprit(request, error)
    for block, part in _parts(request):
        block.borrows.content = content.after_absence(block.borrows.content, part, culprit)
    request.missed = [array.block for array in request.writes]


def note_heard(blocks: Iterable[Block], now_ns: int) -> None:
    """Record that everything has been received that was sent before a writer's answer which did not start."""
    for block in blocks:
        block.borrows.content = content.after_hearing(block.borrows.content, now_ns)


def are_doubtful(blocks: Iterable[Block]) -> bool:
    """Return whether the content of any of these is not all well, or may turn out not to be."""
    return any(block.borrows.content is not None or block.borrows.open_writers for block in blocks)


def _note_written(request: Request) -> None:
    for array in request.writes:
        known = array.block.borrows.content
        if known is not None:
            array.block.borrows.content = content.after_write(known, _part(request, array))


def _note_failed(request: Request, error: errors.AtomrError) -> None:
    """Note which content is undefined since a request has failed; outputs that it has written as it should are well."""
    culprit = _culprit(request, error)
    spoilt = None if undefined(request) else request.method.undefined_after(request.arguments, error)
    for array in request.writes:
        borrows, part = array.block.borrows, _part(request, array)
        if spoilt is None or any(each is array for each in spoilt):
            borrows.content = content.after_failure(borrows.content, part, culprit)
        elif borrows.content is not None:
            borrows.content = content.after_write(borrows.content, part)


def _parts(request: Request) -> Iterator[tuple[Block, WrittenPart]]:
    for array in request.writes:
        yield array.block, _part(request, array)


def _part(request: Request, array: DeviceArray) -> WrittenPart:
    return WrittenPart(array.layout, request.method.triangle_of(request.arguments, array))


def _culprit(request: Request, error: errors.AtomrError) -> Culprit:
    return Culprit(request.method.name, request.id, error.code, error.message[:200], request.order)


def _error(array: DeviceArray, culprit: Culprit) -> errors.GpuRefUndefined:
    return errors.GpuRefUndefined(
        f"{array!r} should have been written by request {culprit.request} ({culprit.method}), which failed with "
        f"{culprit.code}: {culprit.message}; write all of it, or take it as it is (GpuRef.accept)",
        device=array.block.device,
        failed_method=culprit.method,
        failed_request=culprit.request,
        failed_with=culprit.code,
    )
