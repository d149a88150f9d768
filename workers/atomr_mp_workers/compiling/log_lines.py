"""Takes the messages out of a compiler's log, and leaves the source's lines behind. Pure.

NVRTC shows the line of an error below its message. That line may be of a file that the source has included, which the
caller may not see. So only lines of the form of a message stay: "name(line): error: text", and those of the assembler
and the linker, which know no source. The caller has the source, and can show its lines.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

MAX_LINE_CHARS: Final = 1000

_PLACED: Final = re.compile(
    r"(?:[^()\x00-\x1f]{1,512}\([0-9]{1,9}\)|At end of source): "
    r"(?:(?:catastrophic |internal )?error|warning|remark|note|info)\b.*+"
)
"""Matches a line of the front end. The lines of a source are indented, by two spaces."""

_UNPLACED: Final = re.compile(
    r"(?:(?:nvrtc|ptxas|nvlink|nvJitLink|libnvvm|libNVVM)\b|(?:fatal|error|warning|info) {1,8}: ).*+"
)
"""Matches a line of the tools behind it; the linker does not give its name."""


_ERROR: Final = re.compile(
    r"(?:[^()\x00-\x1f]{1,512}\([0-9]{1,9}\)|At end of source): (?:catastrophic |internal )?error\b"
    r"|(?![^()\x00-\x1f]{1,512}\([0-9]{1,9}\): ).*?\b(?:error|fatal)\b"
)
"""Matches a message of an error: of the front end, or of a tool behind it."""


def is_error(message: str) -> bool:
    """Return whether a message is an error's, and no warning."""
    return _ERROR.match(message) is not None


def messages(log: str, most_chars: int, folders: Iterable[str] = ()) -> str:
    """Return the messages of a log, one a line.

    Args:
        log: The compiler's log, of any content.
        most_chars: Most characters that are returned. Errors have room before other messages; the last line says how
            many messages are left out.
        folders: The toolkit's own folders, which are left out of names.
    """
    heads = [f"{folder.rstrip('/')}/" for folder in folders]
    found = [text for line in log.split("\n") if (text := _message(line, heads)) is not None]
    room, kept = most_chars - _NOTE_CHARS, set()
    for at in sorted(range(len(found)), key=lambda each: not is_error(found[each])):
        room -= len(found[at]) + 1
        if room < 0:
            break
        kept.add(at)
    shown = [found[at] for at in sorted(kept)]
    if len(shown) < len(found):
        shown.append(f"[{len(found) - len(shown)} more messages]")
    return "\n".join(shown)


def _message(line: str, heads: Iterable[str]) -> str | None:
    if line[:1].isspace():
        return None
    for head in heads:
        line = line.removeprefix(head)
    line = line.rstrip()[:MAX_LINE_CHARS]
    if not (_PLACED.match(line) or _UNPLACED.match(line)):
        return None
    return "".join(each if each.isprintable() else "?" for each in line)


_NOTE_CHARS: Final = 40
"""Room for the last line."""
