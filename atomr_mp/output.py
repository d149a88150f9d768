"""Output that neither fails its writer nor keeps it waiting: of every process of ours that writes lines. An edge.

A disk may be full, and a pipe may be left unread. Either costs lines, which are counted and told in their place, and
nothing else. Files are written at once. Anything else, such as a pipe or a terminal, is written by a thread from a
bounded queue. O_NONBLOCK is never set: the flag would hold for every process that shares the descriptor, the shell
included.
"""

from __future__ import annotations

import atexit
import contextlib
import io
import os
import select
import stat
import sys
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Final, TextIO

QUEUE_BYTES: Final = 2**18
"""Most bytes that may wait for a reader."""

IDLE_S: Final = 1.0
"""How long the thread waits for another line before it ends."""


END_S: Final = 0.5
"""How long the end of a process waits for a reader of its last lines."""


Notice = Callable[[int], str]
"""Returns the line that stands in the place of so many lost ones, without a line end."""


def protect(notice: Notice | None = None) -> None:
    """Make standard output and error of this process such output; what it inherits stays as it is.

    To be called once, before anything keeps one of them, such as a handler of `logging`.

    Args:
        notice: The form of the line on standard error that counts lost lines; by default a text.
    """
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        with contextlib.suppress(AttributeError, OSError, ValueError):  # it is closed, or is none: nothing is written
            made = _protected(stream, (notice if name == "stderr" else None) or lost_lines)
            setattr(sys, name, made)
            setattr(sys, f"__{name}__", made)


def hold_standard() -> None:
    """Open what is closed of standard input, output and error, to the null device.

    Else the next file of this process, or a socket of ours, would get its number: what anybody prints would go there,
    and a process that is started would have its own output in the place of a socket that it is given.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest free number, which is this one


def print_anything() -> None:
    """Have standard output and error of this process write characters that their encoding lacks as escapes.

    Names of files, and what a user has typed, may have such characters; they are no reason to fail.
    """
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, ValueError):  # it is closed, or is none
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]


def drain() -> None:
    """Wait a moment until standard output and error are written: to be called before the process is exchanged."""
    for stream in (sys.stdout, sys.stderr):
        raw = getattr(getattr(stream, "buffer", None), "raw", getattr(stream, "buffer", None))
        if isinstance(raw, QueuedOutput):
            raw.drain(END_S)


def open_file(descriptor: int) -> io.TextIOWrapper:
    """Return a text file on a descriptor that appends; owned from here on."""
    raw = FileOutput(descriptor, "a")
    return io.TextIOWrapper(io.BufferedWriter(raw), encoding="utf-8", errors="backslashreplace")


def open_pipe(descriptor: int, notice: Notice) -> io.TextIOWrapper:
    """Return a text file on a pipe; its descriptor stays the caller's.

    Args:
        descriptor: The end to write to.
        notice: The form of the line that counts lost lines.
    """
    buffer: Any = io.BufferedWriter(QueuedOutput(descriptor, notice))
    return io.TextIOWrapper(buffer, encoding="utf-8", errors="backslashreplace", line_buffering=True)


def lost_lines(lost: int) -> str:
    """Return the text that counts lost lines."""
    return f"[atomr-mp: {lost} line{'' if lost == 1 else 's'} could not be written here]"


def _protected(stream: TextIO, notice: Notice) -> TextIO:
    unbuffered = isinstance(stream.buffer, io.RawIOBase)  # PYTHONUNBUFFERED
    former = stream.buffer if unbuffered else getattr(stream.buffer, "raw", None)
    if isinstance(former, FileOutput | QueuedOutput):
        return stream
    descriptor = stream.fileno()
    regular = stat.S_ISREG(os.fstat(descriptor).st_mode)
    raw: io.RawIOBase
    if regular:
        stream.flush()
        raw = FileOutput(descriptor, "w", closefd=False)
        raw.notice = notice
    else:
        raw = QueuedOutput(descriptor, notice)
    buffer: Any = raw if unbuffered else io.BufferedWriter(raw)
    return io.TextIOWrapper(
        buffer,
        encoding=stream.encoding,
        errors="backslashreplace",
        line_buffering=not regular or getattr(stream, "line_buffering", False),
        write_through=unbuffered,
    )


def _lines(data: memoryview) -> int:
    return max(1, bytes(data).count(b"\n"))


class FileOutput(io.FileIO):
    """A file whose `write` takes everything, and loses what the disk does not."""

    notice: Notice = staticmethod(lost_lines)
    """The form of the line that counts lost lines."""
    _lost = 0

    def write(self, data: Any, /) -> int:
        """Write all bytes, or lose them; return how many they were."""
        view = memoryview(data).cast("B")
        try:
            if self._lost:
                begin = "\n" if self._ends_cut() else ""
                self._write_all(memoryview(f"{begin}{self.notice(self._lost)}\n".encode()))
                self._lost = 0
            self._write_all(view)
        except OSError:
            self._lost += _lines(view)
        return len(view)

    def _write_all(self, left: memoryview) -> None:
        while left:
            left = left[super().write(left) or 0 :]

    def _ends_cut(self) -> bool:
        """Return whether the file's last line was written in part, by whomever: several may write to one file."""
        try:
            reading = os.open(f"/proc/self/fd/{self.fileno()}", os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            try:
                length = os.fstat(reading).st_size
                return length > 0 and os.pread(reading, 1, length - 1) != b"\n"
            finally:
                os.close(reading)
        except OSError:
            return True  # an empty line does no harm


class QueuedOutput(io.RawIOBase):
    """A pipe, a terminal or a device, written by a thread that begins with the first line.

    Args:
        descriptor: Stays the caller's.
        notice: The form of the line that counts lost lines.
    """

    def __init__(self, descriptor: int, notice: Notice = lost_lines) -> None:
        self._descriptor: Final = descriptor
        self._notice: Final = notice
        self._begin()
        atexit.register(self.drain, END_S)
        os.register_at_fork(after_in_child=self._begin)  # a child has neither the thread nor its lines to write

    def _begin(self) -> None:
        self._queue: deque[bytes] = deque()
        self._waiting = 0
        """Number of bytes in the queue."""
        self._lost = 0
        """Number of lines since the last notice."""
        self._changed = threading.Condition()  # reentrant: a signal's handler may write
        self._thread: threading.Thread | None = None

    def writable(self) -> bool:
        """Return True."""
        return True

    def fileno(self) -> int:
        """Return the descriptor."""
        return self._descriptor

    def isatty(self) -> bool:
        """Return whether it is a terminal."""
        return os.isatty(self._descriptor)

    def write(self, data: Any, /) -> int:
        """Queue all bytes, or lose them; return how many they were."""
        view = memoryview(data).cast("B")
        with self._changed:
            if self._waiting + len(view) > QUEUE_BYTES:
                self._lost += _lines(view)
                return len(view)
            self._put(bytes(view))
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="atomr-mp-output", daemon=True)
                thread.start()
                self._thread = thread
            self._changed.notify_all()
        return len(view)

    def drain(self, timeout_s: float) -> None:
        """Wait until everything is written, or the reader has gone."""
        with self._changed:
            self._changed.wait_for(lambda: not self._queue, timeout_s)

    def _put(self, data: bytes) -> None:
        if self._lost:
            data, self._lost = f"{self._notice(self._lost)}\n".encode() + data, 0
        self._queue.append(data)
        self._waiting += len(data)

    def _run(self) -> None:
        while True:
            with self._changed:
                if not self._changed.wait_for(lambda: self._queue, IDLE_S):
                    self._thread = None
                    return
                data = self._queue[0]
            written = self._write_all(data)
            with self._changed:
                self._queue.popleft()
                self._waiting -= len(data)
                if not written:
                    self._lost += _lines(memoryview(data))
                elif self._lost and not self._queue:
                    self._put(b"")
                self._changed.notify_all()

    def _write_all(self, data: bytes) -> bool:
        left = memoryview(data)
        try:
            while left:
                try:
                    left = left[os.write(self._descriptor, left) :]
                except BlockingIOError:  # somebody who shares the descriptor has set O_NONBLOCK
                    _wait_writable(self._descriptor)
        except OSError:  # nobody will read, or the device has gone
            return False
        return True


def _wait_writable(descriptor: int) -> None:
    poll = select.poll()
    poll.register(descriptor, select.POLLOUT)
    poll.poll()
