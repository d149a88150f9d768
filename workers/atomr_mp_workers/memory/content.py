"""The bytes of a block that are undefined since the request that should have written them failed. Pure.

There is one *hull* a block: all bytes from the first undefined one to the last, with the request that is to blame. A
failure makes it larger, never smaller. It is removed as a whole: by a completed write that covers it without gaps or
writes exactly the failed request's part, or when a client accepts the content as it is.

A request that certainly did not start has changed nothing. It is *missed* only by requests that were queued behind it.

Nothing here knows a clock: requests have the order in which they took their borrows, and times as arguments.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from atomr_mp.protocol.layout import Layout

NEVER_NS: Final = 2**63


class Culprit(NamedTuple):
    """The request whose failure left bytes undefined."""

    method: str
    request: int
    """Its number on its client's connection."""
    code: str
    """Code of its error."""
    message: str
    order: int
    """Its place in the order in which requests took their borrows."""


class WrittenPart(NamedTuple):
    """The part of a block that a request writes."""

    layout: Layout
    triangle: str | None = ""
    """The triangle of each matrix that it writes; empty for all elements, None if it may leave out any."""


class Hull(NamedTuple):
    """Undefined bytes."""

    low: int
    high: int
    part: WrittenPart | None
    """The part that the failed request should have written; None if several different parts."""
    culprit: Culprit


class Missed(NamedTuple):
    """Memory that was not written, since its request did not start."""

    low: int
    high: int
    culprit: Culprit
    until_ns: int
    """Requests received by then may have counted on it."""


class Content(NamedTuple):
    """The state of a block's content, if it is not all well."""

    hull: Hull | None = None
    missed: Missed | None = None


def after_failure(content: Content | None, part: WrittenPart, culprit: Culprit) -> Content:
    """Return the state after a writer has failed that may have begun."""
    content = content or Content()
    low, high = part.layout.span
    hull = content.hull
    if low == high:
        return content
    if hull is None:
        return content._replace(hull=Hull(low, high, part, culprit))
    same = part if part == hull.part else None
    return content._replace(hull=Hull(min(low, hull.low), max(high, hull.high), same, hull.culprit))


def after_absence(content: Content | None, part: WrittenPart, culprit: Culprit) -> Content:
    """Return the state after a writer is found not to start: its readers may have been on their way."""
    content = content or Content()
    low, high = part.layout.span
    missed = content.missed
    if missed is not None:
        low, high, culprit = min(low, missed.low), max(high, missed.high), missed.culprit
    return content._replace(missed=Missed(low, high, culprit, NEVER_NS))


def after_hearing(content: Content | None, now_ns: int) -> Content | None:
    """Return the state after all messages were received that were in flight when a writer was found not to start."""
    if content is None or content.missed is None:
        return content
    return content._replace(missed=content.missed._replace(until_ns=now_ns))


def after_write(content: Content, part: WrittenPart) -> Content | None:
    """Return the state after a completed write; None if all is well."""
    hull, missed = content
    if hull is not None and (part == hull.part or covers(part, hull.low, hull.high)) and part.triangle is not None:
        hull = None
    if missed is not None and covers(part, missed.low, missed.high):
        missed = None
    return None if hull is None and missed is None else Content(hull, missed)


def blame(content: Content, layout: Layout, order: int, received_ns: int) -> Culprit | None:
    """Return the request whose failure forbids a read, None if there is none.

    Args:
        content: The state of the block.
        layout: The layout of the read.
        order: The reader's place in the order of borrows; later writers do not concern it.
        received_ns: When the reader was received.
    """
    low, high = layout.span
    hull, missed = content
    if hull is not None and hull.culprit.order < order and max(low, hull.low) < min(high, hull.high):
        return hull.culprit
    if missed is None or missed.culprit.order >= order or received_ns > missed.until_ns:
        return None
    return missed.culprit if max(low, missed.low) < min(high, missed.high) else None


def covers(part: WrittenPart, low: int, high: int) -> bool:
    """Return whether a part has every byte from `low` to `high`."""
    at, end = part.layout.span
    return at <= low and high <= end and part.triangle == "" and _is_dense(part.layout)


def _is_dense(layout: Layout) -> bool:
    """Return whether elements lie without gaps, in any order of the dimensions."""
    expected = layout.item_bytes
    for stride, n in sorted((abs(stride), n) for n, stride in zip(layout.shape, layout.strides, strict=True) if n != 1):
        if stride != expected:
            return False
        expected *= n
    return True
