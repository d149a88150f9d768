"""What logs show of exceptions that users' code has raised. Pure: time is an argument.

A text of an exception is users' data. A log shows it in lines of its own with a mark in front, so that none of them can
be taken for a line of the log, without control characters, and of bounded length. The same exception is shown whole
once in a while, and otherwise counted.
"""

from __future__ import annotations

import re
from typing import Final, Literal, NamedTuple

from atomr_mp import errors

LogErrors = Literal["full", "type", "off"]
"""What the logs show of an exception of an actor: all, its type and place, or nothing."""

MOST_CHARS: Final = 1024
"""Longest line of a traceback, and longest text of one exception."""

MOST_LINES: Final = 100
"""Most lines of a traceback: the first ones and the last ones."""

WINDOW_S: Final = 60.0
"""For how long an exception is only counted after it was shown."""

MOST_KEYS: Final = 256
"""How many exceptions are distinguished at a time."""

MARK: Final = "  | "
"""Begins each line of a traceback in a text."""

Key = tuple[str, str, str]
"""Method, kind and place, see `Raised`."""

UNKNOWN: Final = "an unknown place"
"""The place of an exception whose traceback names none."""

NOT_SENT: Final = "not sent"
"""Stands for the place where a method has returned what cannot be sent."""

NOWHERE: Final = ""
"""Stands for the place of an error that was not raised by a method's code."""

_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_PLACE: Final = re.compile(r'^ +(?:\| +)*File "(.*)", line (\d+), in ([^"\n]*)$')
_FRAME: Final = "  "
_NUMBER: Final = re.compile(r"\d+")
_HEADERS: Final = frozenset(
    {
        "Traceback (most recent call last):",
        "During handling of the above exception, another exception occurred:",
        "The above exception was the direct cause of the following exception:",
    }
)


def one_line(text: str, most: int = MOST_CHARS) -> str:
    """Return a text as one line: control characters are escaped, and what is too long is cut."""
    found = _CONTROL.sub(_escape, text[:most])
    if len(found) <= most and len(text) <= most:
        return found
    return f"{found[: most - 1]}…"


def _escape(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode("ascii")


def lines_of(traceback: str) -> list[str]:
    """Return the lines of a traceback that a log may show; the text of each exception is one of them."""
    lines: list[str] = []
    text: list[str] = []

    def end_text() -> None:
        if text:
            lines.append(one_line("\n".join(text).rstrip("\n")))
            text.clear()

    for line in traceback.split("\n"):
        if line in _HEADERS:
            end_text()
            lines.append(line)
        elif text or (line and not line.startswith(_FRAME)):
            text.append(line)
        elif line:
            lines.append(one_line(line))
    end_text()
    left_out = len(lines) - MOST_LINES
    if left_out > 0:
        half = MOST_LINES // 2
        return [*lines[:half], f"  ({left_out} lines are left out)", *lines[-half:]]
    return lines


def place_of(traceback: str) -> str:
    """Return where the exception of a traceback was raised, "FILE:LINE in FUNCTION"; empty if it says nothing."""
    place = ""
    is_text = False
    for line in traceback.split("\n"):
        if line in _HEADERS:
            is_text = False
        elif line and not line.startswith(_FRAME):
            is_text = True
        elif not is_text and (found := _PLACE.match(line)):
            place = f"{found[1]}:{found[2]} in {found[3]}"
    return one_line(place, 300)


class Raised(NamedTuple):
    """What a method has raised, or another end of it that is no result, for a log."""

    method: str
    kind: str
    """Name of the exception's class, of the type of a result that cannot be sent, or code of an error of ours."""
    details: str
    """The traceback, or the message of an error that has none."""
    place: str
    """Where it was raised; or `NOT_SENT` and the cause, or `NOWHERE`."""

    @property
    def key(self) -> Key:
        """Equal for exceptions that count as the same."""
        return (self.method, self.kind, self.place)

    @property
    def headline(self) -> str:
        """What has happened, without the message."""
        return _headline(self.key)


def raised(method: str, error: errors.AtomrError) -> Raised:
    """Return the description of the error that a method has ended with."""
    kind, traceback = getattr(error, "exception", ""), getattr(error, "traceback_text", "")
    if traceback:
        return Raised(method, kind, traceback, place_of(traceback) or UNKNOWN)
    returned = getattr(error, "returned", "")
    if returned:
        return Raised(method, returned, error.message, f"{NOT_SENT}: {_cause_of(error.message)}")
    return Raised(method, kind or error.code, error.message, NOWHERE)


def _cause_of(message: str) -> str:
    """Return why a value was not sent, without its numbers: one cause has one text, whatever the sizes are."""
    return one_line(_NUMBER.sub("N", message.partition("cannot be sent: ")[2]), 200)


def _headline(key: Key) -> str:
    method, kind, place = one_line(key[0], 300), one_line(key[1], 300), key[2]
    if place.startswith(NOT_SENT):
        return f"{method} returned a value of type {kind}, which cannot be sent"
    return f"{method} raised {kind} at {place}" if place != NOWHERE else f"{method} ended with {kind}"


class Repeats:
    """Decides which exceptions are shown, and counts the others."""

    def __init__(self) -> None:
        self._known: Final[dict[Key, list[float]]] = {}
        """When each was shown, and how many came since; the oldest first."""

    def note(self, key: Key, now_s: float) -> bool:
        """Return whether an exception is shown; else it is counted. Call `due` before it."""
        known = self._known.get(key)
        if known is not None:
            known[1] += 1
            return False
        if len(self._known) >= MOST_KEYS:  # as many places raise in a minute: this one is counted with others
            key = ("other methods", "exceptions", "more places than are told apart")
            if key in self._known:
                self._known[key][1] += 1
                return False
            self._known[key] = [now_s, 1.0]
            return False
        self._known[key] = [now_s, 0.0]
        return True

    def due(self, now_s: float) -> list[tuple[Key, int]]:
        """Return the exceptions whose minute is over, with how often they came in it unseen, and forget them."""
        found = []
        for key, (shown_s, more) in list(self._known.items()):
            if now_s - shown_s < WINDOW_S:
                break
            del self._known[key]
            if more:
                found.append((key, int(more)))
        return found

    def next_s(self, now_s: float) -> float | None:
        """Return in how many seconds something is due; None if nothing will be."""
        return max(0.0, next(iter(self._known.values()))[0] + WINDOW_S - now_s) if self._known else None


def summary(key: Key, more: int) -> str:
    """Return the line for exceptions that were only counted."""
    cause = f" ({key[2].removeprefix(NOT_SENT)[2:]})" if key[2].startswith(NOT_SENT) else ""
    return f"… {more:,} more of the same: {_headline(key)}{cause}"
