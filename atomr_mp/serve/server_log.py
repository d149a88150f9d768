"""The form of the server's log: one line an event, as text or as JSON.

What is told as an event has a name and facts, which JSON shows beside the text. No record, of ours or of a library,
makes more than one line of its own: further lines begin with a mark, and control characters are escaped.
"""

from __future__ import annotations

import json
import logging
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, Final, Literal, TextIO

from atomr_mp import output
from atomr_mp.protocol.raised import MARK, lines_of, one_line

LOG: Final = logging.getLogger("atomr_mp.serve")

LogFormat = Literal["text", "json"]

MOST_CHARS: Final = 8192
"""Longest line."""


def start_logging(form: LogFormat, stream: TextIO | None = None) -> None:
    """Write log lines, and what Python itself would print as text: warnings, and uncaught exceptions.

    Args:
        form: Their form.
        stream: Where they go; by default standard error.
    """
    logging.basicConfig(level=logging.INFO, stream=stream or sys.stderr)
    for handler in logging.getLogger().handlers:
        handler.setFormatter(_formatter(form))
    logging.captureWarnings(True)
    threading.excepthook = _thread_failed
    sys.unraisablehook = _unraisable


def lost_notice(form: LogFormat) -> Callable[[int], str]:
    """Return the function that makes the line for so many lost lines."""
    formatter = _formatter(form)

    def notice(lost: int) -> str:
        record = logging.LogRecord(LOG.name, logging.WARNING, "", 0, output.lost_lines(lost), (), None)
        vars(record).update(event="lines_lost", facts={"lines": lost})
        return formatter.format(record)

    return notice


def _formatter(form: LogFormat) -> logging.Formatter:
    return JsonFormatter() if form == "json" else TextFormatter()


def _thread_failed(failed: threading.ExceptHookArgs) -> None:
    name = "" if failed.thread is None else failed.thread.name
    LOG.error("thread %s has ended with an exception", name, exc_info=failed.exc_value)


def _unraisable(failed: Any) -> None:
    what = failed.err_msg or "an exception is ignored"
    LOG.error("%s: %s", what, one_line(f"{failed.object!r}", 300), exc_info=failed.exc_value)


def tell(level: int, event: str, text: str, /, **facts: Any) -> None:
    """Log an event.

    Args:
        level: Of `logging`.
        event: Its name, for programs.
        text: What has happened, for people. Further lines have come through `lines_of`.
        **facts: The same, for programs.
    """
    LOG.log(level, "%s", text, extra={"event": event, "facts": facts})


class TextFormatter(logging.Formatter):
    """Makes a line of text, with a traceback's lines behind it."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the lines."""
        first, *more = _message(record)
        return f"\n{MARK}".join([f"{self.formatTime(record)} {first}", *more, *_traceback(record)])


class JsonFormatter(logging.Formatter):
    """Makes a JSON object."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        text, *more = _message(record)
        more += _traceback(record)
        found = {
            "time": f"{seconds}.{int(record.msecs):03}Z",
            "level": record.levelname.lower(),
            "event": getattr(record, "event", "log"),
            "text": text,
            **({"traceback": more} if more else {}),
            **getattr(record, "facts", {}),
        }
        return json.dumps(found, default=str)


def _message(record: logging.LogRecord) -> list[str]:
    """Return a record's line, and those behind it that are marked."""
    try:
        text = record.getMessage()
    except (TypeError, ValueError, KeyError):  # of a library that logs a wrong format
        text = str(record.msg)
    first, *more = text.split(f"\n{MARK}")
    return [one_line(first, MOST_CHARS), *(one_line(line, MOST_CHARS) for line in more)]


def _traceback(record: logging.LogRecord) -> list[str]:
    if not record.exc_info or record.exc_info[1] is None:
        return []
    from atomr_mp.protocol.exceptions import traceback_of

    return lines_of(traceback_of(record.exc_info[1]))
