"""The words between a worker and the compiler's process. Pure.

Each is a length of four bytes and a message in msgpack. The worker sends a `Setup` and then a job, and hears one
answer. The process reads the job only once it is confined. The worker believes nothing of an answer: the source may
have taken the process over.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from atomr_mp.protocol.codec import Codec
from atomr_mp_workers.compiling.jobs import MAX_CODE_BYTES, MAX_NAMES, Job, Lowered

LENGTH_BYTES: Final = 4
MAX_SETUP_BYTES: Final = 2**16
MAX_JOB_BYTES: Final = MAX_CODE_BYTES + 4 * 2**24
"""More than `jobs.check` admits: a character has up to four bytes."""
MAX_RAW_LOG_CHARS: Final = 2**20
"""Bounds a log before its messages are taken out."""
MAX_ANSWER_BYTES: Final = MAX_CODE_BYTES + 2**25


def bounded(log: str, most_chars: int = MAX_RAW_LOG_CHARS) -> str:
    """Return a log of at most so many characters: its beginning, and of its end whole lines, where errors may be."""
    if len(log) <= most_chars:
        return log
    half = most_chars // 2
    return f"{log[: half - 1]}\n{log[-half:].partition(chr(10))[2]}"


RawLog = Annotated[str, msgspec.Meta(max_length=MAX_RAW_LOG_CHARS)]


class Setup(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What a compiler's process has to know before it looks at a job."""

    nvrtc: str
    builtins: str
    nvjitlink: str
    """The libraries' paths; the linker's is empty if there is none."""
    includes: tuple[str, ...]
    """Folders of headers."""
    links: bool
    """Whether the job is a link."""
    memory_bytes: int
    cpu_s: int
    idle: bool
    """Whether to run only on a processor that is idle."""
    confined: bool
    """Whether to give up the reach for files and processes."""


class CodeAnswer(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="done"):
    """The job is done."""

    code: Annotated[bytes, msgspec.Meta(min_length=1, max_length=MAX_CODE_BYTES)]
    lowered: Annotated[dict[str, Lowered], msgspec.Meta(max_length=MAX_NAMES)]
    log: RawLog


class RefusedAnswer(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="refused"):
    """The compiler, or the linker, has refused the job."""

    status: Annotated[str, msgspec.Meta(max_length=200)]
    """The library's name of the reason."""
    log: RawLog


class UnfitAnswer(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="unfit"):
    """The process cannot compile at all: a library or a right is missing."""

    why: Annotated[str, msgspec.Meta(max_length=2000)]


Answer = CodeAnswer | RefusedAnswer | UnfitAnswer

SETUP: Final[Codec[Setup]] = Codec(Setup, channel="compiler's")
JOB: Final[Codec[Job]] = Codec(Job, channel="compiler's")
ANSWER: Final[Codec[Answer]] = Codec(Answer, channel="compiler's")


def framed(message: bytes) -> bytes:
    """Return a message with its length in front."""
    return len(message).to_bytes(LENGTH_BYTES, "little") + message
