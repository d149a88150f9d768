"""Figures by method, in memory that the front ends share: durations by outcome or device, first parts, parts.

Each front end writes rows of its own, and any of them reads all rows. A row has its key as text and a histogram.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from typing import Final, NamedTuple

ROWS: Final = 4096
"""Rows of one front end; what does not fit is counted in the last ones, under the method "other"."""

KEY_BYTES: Final = 256

BUCKETS: Final = 64
"""Buckets of a histogram: durations in nanoseconds by their number of bits."""

SUM: Final = BUCKETS
ROW_WORDS: Final = BUCKETS + 2
ROW_BYTES: Final = KEY_BYTES + 8 * ROW_WORDS

CALL: Final = "call"
"""Durations of calls, by method and outcome."""
DEVICE_CALL: Final = "device"
"""Durations of calls that a device had, by method and device."""
FIRST_PART: Final = "first"
"""Times until the first part of a stream."""
PARTS: Final = "parts"
"""Parts of streams, counted in the sum."""

OTHER: Final = "other"
"""Stands for the methods that have found no row of their own."""

OTHER_ROWS: Final = 16
"""Rows that are kept for those methods, at least one for each kind."""


class MethodFigure(NamedTuple):
    """A histogram of all front ends."""

    kind: str
    method: str
    outcome: str
    """"ok" or the code of an error, or the device's number; empty of what has none."""
    buckets: list[int]
    total: int
    """Nanoseconds, or parts."""


def shared_bytes(slots: int) -> int:
    """Return how many bytes of shared memory the front ends' rows take; unused rows take no memory."""
    return slots * ROWS * ROW_BYTES


class MethodFigures:
    """The figures of one front end, beside those of the others.

    Args:
        descriptor: Descriptor of the shared memory; None for memory of this process alone.
        slots: How many front ends share it.
        slot: This process's slot.
        offset: Where its rows begin in the memory, in bytes: a whole number of pages.
        reads_only: Whether nothing is counted here, but only read.
    """

    def __init__(
        self, descriptor: int | None = None, slots: int = 1, slot: int = 0, offset: int = 0, *, reads_only: bool = False
    ) -> None:
        protection = mmap.PROT_READ if reads_only else mmap.PROT_READ | mmap.PROT_WRITE
        fd, size = -1 if descriptor is None else descriptor, shared_bytes(slots)
        self._memory: Final = memoryview(mmap.mmap(fd, size, prot=protection, offset=offset))
        self._slots: Final = slots
        self._slot: Final = slot
        self._rows: dict[tuple[str, str, str], memoryview] = {}
        self._pairs: Final[dict[tuple[str, str, int], tuple[memoryview, memoryview | None]]] = {}
        """The rows of a call by method, code and device: that of its outcome, and that of its device."""
        for at in range(ROWS):  # the rows of the process before this one go on
            key = self._key(slot, at)
            if not key:
                break
            self._rows[key] = self._words(slot, at)

    def answered(self, method: str, code: str, device: int, ns: int) -> None:
        """Count a call's duration, by its outcome and by its device.

        Args:
            method: "Actor.method".
            code: "ok", or an error's code.
            device: The device that had it; -1 if none had.
            ns: Its duration in nanoseconds.
        """
        pair = self._pairs.get((method, code, device)) or self._pair(method, code, device)
        bucket = ns.bit_length()
        for row in pair:
            if row is not None:
                row[bucket] += 1
                row[SUM] += ns

    def _pair(self, method: str, code: str, device: int) -> tuple[memoryview, memoryview | None]:
        of_code = self._rows.get((CALL, method, code)) or self._row(CALL, method, code)
        of_device = None
        if device >= 0:
            shown = str(device)
            of_device = self._rows.get((DEVICE_CALL, method, shown)) or self._row(DEVICE_CALL, method, shown)
        if len(self._pairs) < ROWS:
            self._pairs[method, code, device] = of_code, of_device
        return of_code, of_device

    def took(self, kind: str, method: str, outcome: str, ns: int) -> None:
        """Count a duration."""
        row = self._rows.get((kind, method, outcome)) or self._row(kind, method, outcome)
        row[ns.bit_length()] += 1
        row[SUM] += ns

    def count(self, kind: str, method: str, several: int) -> None:
        """Count things that have no duration."""
        row = self._rows.get((kind, method, "")) or self._row(kind, method, "")
        row[SUM] += several

    def set_latest(self, kind: str, method: str, value: int) -> None:
        """Note the latest value of what only grows, such as a time."""
        row = self._rows.get((kind, method, "")) or self._row(kind, method, "")
        row[SUM] = value

    def latest(self, kind: str) -> dict[str, int]:
        """Return the greatest value of all front ends, by method; see `set_latest`."""
        found: dict[str, int] = {}
        for slot in range(self._slots):
            for at in range(ROWS):
                key = self._key(slot, at)
                if not key:
                    break
                if key[0] == kind:
                    found[key[1]] = max(found.get(key[1], 0), self._words(slot, at)[SUM])
        return found

    def _row(self, kind: str, method: str, outcome: str) -> memoryview:
        """Return the row of a key that has none yet, or that of all which find no room."""
        key = f"{kind} {method} {outcome}".encode()
        if len(self._rows) >= ROWS - OTHER_ROWS or len(key) > KEY_BYTES:
            method, outcome = OTHER, ""
            key = f"{kind} {method} {outcome}".encode()
            found = self._rows.get((kind, method, outcome))
            if found is not None or len(self._rows) >= ROWS:  # of kinds that we do not have, the last one takes all
                return found if found is not None else self._words(self._slot, ROWS - 1)
        at = len(self._rows)
        row = self._rows[kind, method, outcome] = self._words(self._slot, at)
        begin = self._start(self._slot, at)
        # A process that was killed here may have left a longer key without its first byte.
        self._memory[begin + 1 : begin + KEY_BYTES] = key[1:].ljust(KEY_BYTES - 1, b"\0")  # no word: text
        self._memory[begin] = key[0]  # last: a reader takes a row without a first byte for none
        return row

    def _start(self, slot: int, at: int) -> int:
        return (slot * ROWS + at) * ROW_BYTES

    def _key(self, slot: int, at: int) -> tuple[str, str, str] | tuple[()]:
        begin = self._start(slot, at)
        if not self._memory[begin]:  # first: a copy of many bytes reads them in any order
            return ()
        kind, _, rest = (
            bytes(self._memory[begin : begin + KEY_BYTES]).rstrip(b"\0").decode(errors="replace").partition(" ")
        )
        method, _, outcome = rest.partition(" ")
        return kind, method, outcome

    def _words(self, slot: int, at: int) -> memoryview:
        begin = self._start(slot, at) + KEY_BYTES
        return self._memory[begin : begin + 8 * ROW_WORDS].cast("Q")

    def all(self) -> Iterator[MethodFigure]:
        """Yield the sums of all front ends, by kind, method and outcome."""
        found: dict[tuple[str, str, str], list[int]] = {}
        for slot in range(self._slots):
            for at in range(ROWS):
                key = self._key(slot, at)
                if not key:
                    break
                words = self._words(slot, at).tolist()
                found[key] = [a + b for a, b in zip(found[key], words, strict=True)] if key in found else words
        for (kind, method, outcome), words in sorted(found.items()):
            yield MethodFigure(kind, method, outcome, words[:BUCKETS], words[SUM])
