"""The bytes of a block that are undefined since the request that should have written them failed. Pure.

There is one *hull* a block: all bytes from the first undefined one to the last, with the request that is to blame, and
the parts that failed requests should have written. A completed write removes the parts that it covers without gaps, or
is equal to. Without parts there is no hull any more. Nor is there once a client has accepted the content as it is.

A request that certainly did not start has changed nothing. It is *missed* only by requests that were queued behind it.

Nothing here knows a clock: requests have the order in which they took their borrows, and times as arguments.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from atomr_mp.protocol.layout import Layout
from atomr_mp.protocol.libraries.coverage import is_dense

NEVER_NS: Final = 2**63
MOST_PARTS: Final = 64
"""Most parts of a hull that are remembered."""
MOST_MISSED: Final = 16
"""Most writes of a block that are remembered apart though their requests did not start."""


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
    """The triangle of each matrix that it writes; empty for all elements, None if it may leave out any. Of a program
    that leaves out some, its name: it leaves out the same ones each time."""


class Hull(NamedTuple):
    """Undefined bytes."""

    low: int
    high: int
    parts: tuple[WrittenPart, ...]
    """The parts that failed requests should have written; none if there are too many, so that all has to be written."""
    culprit: Culprit


class Missed(NamedTuple):
    """Memory that was not written, since its request did not start."""

    low: int
    high: int
    culprit: Culprit
    until_ns: int
    """Requests received by then may have counted on it."""
    order: int
    """The place of the last of these requests in the order of borrows: only a later one writes what they did not."""
    unheard: tuple[int, ...] = ()
    """The places of those for which messages that were in flight may not have been received."""


class Content(NamedTuple):
    """The state of a block's content, if it is not all well."""

    hull: Hull | None = None
    missed: tuple[Missed, ...] = ()
    """Each is missed by other readers, so they are kept apart; the earliest first."""


def after_failure(content: Content | None, part: WrittenPart, culprit: Culprit) -> Content:
    """Return the state after a writer has failed that may have begun."""
    content = content or Content()
    low, high = part.layout.span
    hull = content.hull
    if low == high:
        return content
    if hull is None:
        return content._replace(hull=Hull(low, high, (part,), culprit))
    parts = hull.parts if part in hull.parts or not hull.parts else (*hull.parts, part)
    if len(parts) > MOST_PARTS:
        parts = ()
    return content._replace(hull=Hull(min(low, hull.low), max(high, hull.high), parts, hull.culprit))


def after_absence(content: Content | None, part: WrittenPart, culprit: Culprit) -> Content:
    """Return the state after a writer is found not to start: its readers may have been on their way."""
    content = content or Content()
    low, high = part.layout.span
    missed = (*content.missed, Missed(low, high, culprit, NEVER_NS, culprit.order, (culprit.order,)))
    return content._replace(missed=missed if len(missed) <= MOST_MISSED else (_both(*missed[:2]), *missed[2:]))


def after_hearing(content: Content | None, order: int, now_ns: int) -> Content | None:
    """Return the state after all messages were received that were in flight when a writer was found not to start.

    Args:
        content: The state before.
        order: The writer's place in the order of borrows.
        now_ns: The time.
    """
    if content is None or not content.missed:
        return content
    return content._replace(missed=tuple(_heard(each, order, now_ns) for each in content.missed))


def after_write(content: Content, part: WrittenPart, order: int) -> Content | None:
    """Return the state after a completed write; None if all is well.

    Args:
        content: The state before.
        part: The part that was written.
        order: The writer's place in the order of borrows.
    """
    hull, missed = content
    if hull is not None:
        hull = _without(hull, part)
    missed = tuple(each for each in missed if order <= each.order or not covers(part, each.low, each.high))
    return Content(hull, missed) if hull is not None or missed else None


def _heard(missed: Missed, order: int, now_ns: int) -> Missed:
    if order not in missed.unheard:
        return missed
    unheard = tuple(each for each in missed.unheard if each != order)
    return missed._replace(unheard=unheard, until_ns=NEVER_NS if unheard else now_ns)


def _both(one: Missed, other: Missed) -> Missed:
    """Join two writes that did not start: the readers of both miss the result."""
    low, high = min(one.low, other.low), max(one.high, other.high)
    culprit = min(one.culprit, other.culprit, key=lambda each: each.order)
    unheard = tuple(dict.fromkeys((*one.unheard, *other.unheard)))
    return Missed(low, high, culprit, max(one.until_ns, other.until_ns), max(one.order, other.order), unheard)


def _without(hull: Hull, part: WrittenPart) -> Hull | None:
    """Remove the parts that a completed write has written; return the rest of the hull."""
    if covers(part, hull.low, hull.high):
        return None
    same = part if part.triangle is not None else None
    left = tuple(each for each in hull.parts if each != same and not covers(part, *each.layout.span))
    if len(left) == len(hull.parts):
        return hull
    spans = [each.layout.span for each in left]
    return Hull(min(low for low, _ in spans), max(high for _, high in spans), left, hull.culprit) if left else None


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
    for each in missed:
        if each.culprit.order < order and received_ns <= each.until_ns and max(low, each.low) < min(high, each.high):
            return each.culprit
    return None


def covers(part: WrittenPart, low: int, high: int) -> bool:
    """Return whether a part has every byte from `low` to `high`."""
    at, end = part.layout.span
    return at <= low and high <= end and part.triangle == "" and is_dense(part.layout)
