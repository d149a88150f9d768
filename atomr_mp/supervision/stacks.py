"""Reads the stacks of a hung worker: which thread it is, and in what kind of code. Pure.

They are as Python's `faulthandler` writes them: a paragraph for each thread, the innermost frame first.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from enum import StrEnum
from itertools import pairwise
from typing import Final, NamedTuple

from atomr_mp.protocol.board import PlaceKind

FRAME: Final = re.compile(r'  File "(?P<file>.*)", line (?P<line>\d+) in (?P<function>[^"\n]*)')

CUDA: Final = re.compile(
    r"/(cupy|cupyx|cupy_backends|nvmath|nvidia|cudnn|torch/cuda|torch/backends/cuda|cuda/(core|bindings)"
    r"|atomr_mp_workers/(device/cuda\w*|libraries/\w+/cuda)\.py)"
)
"""In files of what calls CUDA."""

INNERMOST: Final = 3
"""So many frames of a method's own are looked at for CUDA's: what waits for the GPU does so right behind them. Of C
code there are no frames: where that waits, the device's unfinished work tells."""


class CallSite(StrEnum):
    """The kind of code in which a worker hangs."""

    PYTHON = "python"
    NATIVE = "native"
    """In C code that does not come back, and may hold the interpreter's lock."""
    CUDA = "cuda"
    """In a call that waits for the GPU, or on the GPU itself."""


class StackFrame(NamedTuple):
    """A function that has been called and not returned."""

    file: str
    line: int
    function: str


class HangReport(NamedTuple):
    """The description of a hang."""

    where: CallSite
    stack: str
    """Stack of the thread that hangs, or of those that may; empty if this process has none."""
    at: StackFrame | None
    """Its innermost frame."""
    method: StackFrame | None = None
    """The request's method in it."""


def diagnose(text: str, kind: PlaceKind, *, answers: bool, unfinished: bool = False) -> HangReport:
    """Return the description of a hung request, by the stacks.

    Args:
        text: All stacks; empty if the process has not even written them.
        kind: Where the request runs.
        answers: The main thread has run Python code when it was asked to.
        unfinished: What runs where the request does has put work on the device, which has not done it.
    """
    threads = [part for part in re.split(r"^(?=Thread 0x|Current thread 0x)", text, flags=re.MULTILINE) if part]
    stacks = [(part, frames(part)) for part in threads]
    if not stacks:
        return HangReport(CallSite.CUDA if unfinished else CallSite.NATIVE, "", None)
    main = next((each for each in stacks if _is_main(each[1])), stacks[-1])
    if kind is PlaceKind.EVENT_LOOP:
        return _of_event_loops(stacks, answers=answers, unfinished=unfinished)
    calling = [each for each in stacks if each is not main and _calls(each[1])]
    busy = not _is_idle(main[1])
    found = [main] if busy and (kind is not PlaceKind.THREAD or not calling) else calling
    if not found:
        # Nothing runs here: it was given to the GPU, which has not done it.
        return HangReport(CallSite.CUDA if kind is PlaceKind.STREAM else CallSite.PYTHON, "", None)
    # Only the main thread shows whether it runs Python code.
    return _report(found, answers=answers, in_c=not answers or found[0] is not main, unfinished=unfinished)


def _of_event_loops(
    stacks: Sequence[tuple[str, Sequence[StackFrame]]], *, answers: bool, unfinished: bool
) -> HangReport:
    """Return the report of a request on an event loop: the code that holds it up, if any does."""
    found = [each for each in stacks if _turns(each[1]) and not _awaits(each[1][0])]
    if not found:  # the request awaits something, and does not end though it was told to
        return HangReport(CallSite.PYTHON, "", None)
    return _report(found, answers=answers, in_c=True, unfinished=unfinished)


def _report(
    found: Sequence[tuple[str, Sequence[StackFrame]]], *, answers: bool, in_c: bool, unfinished: bool
) -> HangReport:
    """Return the report of a request, by its stacks."""
    stack, inner = "\n".join(part.strip() for part, _ in found), found[0][1]
    own = list(itertools.takewhile(lambda frame: not _is_call(frame), inner))
    if (in_c and unfinished) or any(CUDA.search(frame.file) for frame in own[:INNERMOST]):
        where = CallSite.CUDA
    else:
        where = CallSite.PYTHON if answers else CallSite.NATIVE
    methods = [frame for frame, outer in pairwise(inner) if _is_call(outer)]
    return HangReport(where, stack, inner[0] if inner else None, methods[0] if methods else None)


def frames(text: str) -> Sequence[StackFrame]:
    """Return the frames in a paragraph, innermost first."""
    return [
        StackFrame(found["file"], int(found["line"]), found["function"])
        for line in text.splitlines()
        if (found := FRAME.fullmatch(line))
    ]


def _is_main(stack: Sequence[StackFrame]) -> bool:
    return any(_is(frame, "host.py", "_serve") for frame in stack)


def _is_idle(stack: Sequence[StackFrame]) -> bool:
    """Whether the loop waits, or is on its way to."""
    return bool(stack) and (_is(stack[0], "host.py", "_serve") or _is(stack[0], "host.py", "_sleep"))


def _calls(stack: Sequence[StackFrame]) -> bool:
    """Whether a request's method runs here."""
    return any(_is(frame, "requests/request.py", "call") for frame in stack)


def _turns(stack: Sequence[StackFrame]) -> bool:
    """Whether this is the thread of an actor's event loop."""
    return any(_is(frame, "requests/off_loop/event_loop.py", "_serve") for frame in stack)


def _awaits(frame: StackFrame) -> bool:
    """Whether an event loop waits here; one in C has no frame of its own."""
    return frame.file.endswith("/selectors.py") or _is(frame, "requests/off_loop/event_loop.py", "_serve")


def _is_call(frame: StackFrame) -> bool:
    """Whether this is what calls methods, or awaits them."""
    return _is(frame, "requests/request.py", "call") or _is(frame, "requests/off_loop/tasks.py", "work")


def _is(frame: StackFrame, file: str, function: str) -> bool:
    return frame.function == function and frame.file.endswith(f"/atomr_mp_workers/{file}")
