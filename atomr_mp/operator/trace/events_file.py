"""A file of trace events, in the JSON Object Format.

It is valid JSON after each write, so a writer that is killed leaves a whole file.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, BinaryIO, Final

import msgspec

HEAD: Final = b'{"displayTimeUnit":"ms","traceEvents":[\n'

MOST_BYTES: Final = 1 << 29
"""Longest file: viewers take no more."""

FORMAT: Final = "https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU"
"""The Trace Event Format, which the events follow."""

Event = dict[str, Any]


class EventsFile:
    """Writes events.

    Args:
        file: The file, unbuffered; stays the caller's. If it can seek, it is whole after each `write`, otherwise after
            `close`.
        facts: What is known of the whole trace by now.
    """

    def __init__(self, file: BinaryIO, facts: Event) -> None:
        self._file = file
        self._seeks = file.seekable()
        self._encode: Final = msgspec.json.Encoder().encode
        self._end = self._total = 0
        self._is_empty = True
        self.left_out = 0
        """Events for which the file was too long."""
        self._put(HEAD, facts)

    def write(self, events: Iterable[Event], facts: Event) -> None:
        """Write events.

        Args:
            events: The events.
            facts: What is known of the whole trace by now.
        """
        lines: list[bytes] = []
        nbytes = self._end
        for event in events:
            line = self._encode(event)
            if nbytes + len(line) > MOST_BYTES and event["ph"] != "M":
                self.left_out += 1
            else:
                nbytes += len(line) + 2
                lines.append(line)
        if lines:
            self._put((b"" if self._is_empty else b",\n") + b",\n".join(lines), facts)
            self._is_empty = False

    def close(self, facts: Event) -> None:
        """Write the end, once."""
        _write_all(self._file, self._tail(facts))

    def _put(self, data: bytes, facts: Event) -> None:
        """Write bytes behind the last. If the file can seek, an end follows in the same write, replaced later."""
        if not self._seeks:
            _write_all(self._file, data)
            return
        self._end += len(data)
        _write_all(self._file, data + self._tail(facts))
        self._file.seek(self._end)

    def _tail(self, facts: Event) -> bytes:
        left_out = {"events_left_out": self.left_out} if self.left_out else {}
        tail = b'\n],"otherData":' + self._encode({**facts, **left_out}) + b"}\n"
        if self._seeks:  # nothing of a longer end may stay behind this one
            tail = tail.ljust(self._total - self._end)
            self._total = self._end + len(tail)
        return tail


def _write_all(file: BinaryIO, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[file.write(rest) or 0 :]
