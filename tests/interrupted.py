"""Interrupts at chosen lines of the package."""

from __future__ import annotations

import functools
import linecache
import signal
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final

import atomr_mp

PACKAGE: Final = str(Path(atomr_mp.__file__).parent)
SPARED: Final = frozenset({"__del__", "release", "_loop"})
"""Functions in which Python would raise nothing that anybody sees, or nothing at all: it looks for signals after calls,
at the beginning of a function and at the end of a loop's turn, not between any two lines."""

VISITS: Final = 2
"""How often a line is come to that counts: a loop's third turn begins as its second did."""


class Interrupted:
    """Runs something with an interrupt before the n-th line of the package that this thread comes to."""

    def __init__(self, at: int) -> None:
        self._left = at
        self._visits: Counter[tuple[CodeType, int]] = Counter()
        self.error: KeyboardInterrupt | None = None
        """What it was interrupted by, with a traceback that shows what was at hand; a notebook keeps that, too."""

    def by(self, function: Callable[[], object]) -> bool:
        """Return whether it was interrupted; False if it has not so many lines."""
        sys.settrace(self._trace)
        try:
            function()
        except KeyboardInterrupt as error:
            self.error = error
            return True
        finally:
            sys.settrace(None)
        assert self._left > 0, "the interrupt was lost"
        return False

    def _trace(self, frame: FrameType, event: str, _argument: object) -> Any:
        code = frame.f_code
        if not code.co_filename.startswith(PACKAGE) or code.co_name in SPARED:
            return None
        if event == "line":
            self._visits[code, frame.f_lineno] += 1
            if self._visits[code, frame.f_lineno] <= VISITS and not _is_with(code.co_filename, frame.f_lineno):
                self._left -= 1
                if not self._left:
                    sys.settrace(None)
                    signal.raise_signal(signal.SIGINT)
        return self._trace


@functools.cache
def _is_with(file: str, line: int) -> bool:
    """Return whether a line is a `with`: it is come to again at its end, where Python looks for no signal."""
    return linecache.getline(file, line).lstrip().startswith("with ")
