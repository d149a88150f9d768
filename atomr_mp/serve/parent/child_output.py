"""What child processes write to standard error, in the form of the server's log. For the event loop's thread.

A child's log comes through a pipe of its own, whose lines are passed on as they are: so one process writes all lines,
and none is written into the middle of another. Standard error is another pipe. Its lines are anybody's, such as an
interpreter that crashes or a library in C: each becomes an event, with the child's name in front.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from typing import Final

from atomr_mp.protocol.raised import one_line
from atomr_mp.serve.server_log import tell

MOST_BYTES: Final = 2**16
"""Most that one look reads, so that a child that writes without end does not hold up the others."""

MOST_REST_BYTES: Final = 2**22
"""Most that is read of a child that has ended: more than a pipe holds, since others may write on."""

MOST_HALF_BYTES: Final = 2**17
"""Longest line that is waited for; of a longer one, the part that has come is logged."""


class LinePipe:
    """A pipe that is read by whole lines. A child has its other end as standard error, or for its log."""

    def __init__(self) -> None:
        self.reading, self.writing = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self.reading, False)
        self._half = b""

    def lines(self) -> list[bytes]:
        """Return the whole lines that have come, without their ends."""
        if self.reading < 0:
            return []
        try:
            data = os.read(self.reading, MOST_BYTES)
        except BlockingIOError:
            return []
        *lines, self._half = (self._half + data).split(b"\n")
        if len(self._half) > MOST_HALF_BYTES:
            lines.append(self._half)
            self._half = b""
        return lines

    def rest(self) -> tuple[list[bytes], bytes]:
        """Return the whole lines that are left, and what there is of a last one: whoever writes has ended."""
        found: list[bytes] = []
        read, most = True, MOST_REST_BYTES
        while read and most > 0:  # others may still write
            before = len(self._half)
            lines = self.lines()
            read = bool(lines) or len(self._half) > before
            most -= MOST_BYTES
            found += lines
        half, self._half = self._half, b""
        return found, half

    def close(self) -> None:
        """Close both ends; may be called twice."""
        for descriptor in (self.reading, self.writing):
            if descriptor >= 0:
                os.close(descriptor)
        self.reading = self.writing = -1


class StrayLines:
    """The standard error of a child.

    Args:
        source: The child's name, for people.
    """

    def __init__(self, source: str) -> None:
        self._source: Final = source
        self.pipe: Final = LinePipe()

    def watch(self) -> None:
        """Tell from now on what comes."""
        asyncio.get_running_loop().add_reader(self.pipe.reading, self.more)

    def close(self) -> None:
        """Tell nothing more."""
        asyncio.get_running_loop().remove_reader(self.pipe.reading)
        self.pipe.close()

    def more(self) -> None:
        """Tell what has come."""
        self.tell(self.pipe.lines())

    def rest(self) -> None:
        """Tell all that is left: the child has ended."""
        lines, half = self.pipe.rest()
        self.tell([*lines, half])

    def tell(self, lines: list[bytes]) -> None:
        """Make an event of each line that is not empty."""
        for line in lines:
            shown = one_line(line.decode("utf-8", "backslashreplace").rstrip("\r").expandtabs(4))
            if shown:
                text = f"[{self._source}] {shown}"
                tell(logging.WARNING, "stderr", text, source=self._source, output=shown)


class ChildOutput:
    """The log and the standard error of a child that has the server's form of log lines.

    Args:
        source: The child's name, for people.
    """

    def __init__(self, source: str) -> None:
        self.stray: Final = StrayLines(source)
        self.log: Final = LinePipe()

    def watch(self) -> None:
        """Pass on from now on what comes."""
        asyncio.get_running_loop().add_reader(self.log.reading, self._more_log)
        self.stray.watch()

    def rest(self) -> None:
        """Pass on all that is left: the child has ended, perhaps in the middle of a line."""
        lines, half = self.log.rest()
        _pass_on(lines)
        self.stray.rest()
        self.stray.tell([half])

    def close(self) -> None:
        """Pass on nothing more."""
        asyncio.get_running_loop().remove_reader(self.log.reading)
        self.log.close()
        self.stray.close()

    def _more_log(self) -> None:
        _pass_on(self.log.lines())


def _pass_on(lines: list[bytes]) -> None:
    if lines and sys.stderr is not None:
        sys.stderr.write(b"\n".join([*lines, b""]).decode("utf-8", "backslashreplace"))
        sys.stderr.flush()
