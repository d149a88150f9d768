"""Refuses readers of memory that a failed request should have written: notes failures at blocks, and checks them.

`memory.content` decides about the notes. Only with the loop's turn. A request that waits for no other and whose memory
is well only has its writes checked here.
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
    """Return why a request must not read its memory, None if it may."""
    for array in request.reads:
        known = array.block.borrows.content
        if known is None:
            continue
        for each in request.method.written_before(request.arguments, array):
            known = known and content.after_write(known, _part(request, each), request.order)
        if known is None:
            continue
        culprit = content.blame(known, array.layout, request.order, request.received_ns)
        if culprit is not None:
            return _error(array, culprit)
    return None


def settle(request: Request, error: errors.AtomrError | None) -> errors.AtomrError | None:
    """Note the state of the memory that a request writes; return the request's error, or that of its operands.

    Args:
        request: A request that has ended, or was kept from running.
        error: Its error so far.
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
    """Take back the note of `open_writes`, if there is one."""
    for array in request.writes:
        if request.order in array.block.borrows.open_writers:
            array.block.borrows.open_writers.remove(request.order)


def are_open(request: Request) -> bool:
    """Return whether an earlier writer of memory that a request reads is not settled yet."""
    return any(order < request.order for array in request.reads for order in array.block.borrows.open_writers)


def note_absent(request: Request, error: errors.AtomrError) -> None:
    """Record that a request does not start: requests queued behind it must not read the memory that it should write."""
    culprit = _culprit(request, error)
    for block, part in _parts(request):
        block.borrows.content = content.after_absence(block.borrows.content, part, culprit)
    # A part of a world's call may have been refused before, and give up what it writes; then the call is dropped.
    request.missed = [*request.missed, *(array.block for array in request.writes)]


def note_heard(blocks: Iterable[Block], order: int, now_ns: int) -> None:
    """Record that all messages were received that were sent before the answer of a writer that did not start."""
    for block in blocks:
        block.borrows.content = content.after_hearing(block.borrows.content, order, now_ns)


def are_doubtful(blocks: Iterable[Block]) -> bool:
    """Return whether the content of any of these blocks is undefined, or may turn out to be."""
    return any(block.borrows.content is not None or block.borrows.open_writers for block in blocks)


def _note_written(request: Request) -> None:
    for array in request.writes:
        known = array.block.borrows.content
        if known is not None:
            array.block.borrows.content = content.after_write(known, _part(request, array), request.order)


def _note_failed(request: Request, error: errors.AtomrError) -> None:
    """Note which content is undefined since a request has failed; outputs that it has fully written are well."""
    culprit = _culprit(request, error)
    spoilt = None if undefined(request) else request.method.undefined_after(request.arguments, error)
    for array in request.writes:
        borrows, part = array.block.borrows, _part(request, array)
        if spoilt is None or any(each is array for each in spoilt):
            borrows.content = content.after_failure(borrows.content, part, culprit)
        elif borrows.content is not None:
            borrows.content = content.after_write(borrows.content, part, request.order)


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
