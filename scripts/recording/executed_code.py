"""Records which functions of the product run in a process; `scripts/test-gpu` has it done while tests run.

The processes write to a folder, each to a file of its own. A line is a test and the functions that ran for it, as
"module:qualified name". Under `EVER` is what ran in the process at any time, also at imports, and under `AGAIN` what
ran in more than one test.
"""

from __future__ import annotations

import atexit
import json
import os
import sys
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final

FOLDER: Final = "ATOMR_MP_RECORD"
"""Names the folder."""
ROOMS: Final = "ATOMR_MP_RECORDED_ROOMS"
"""Names the beginnings of the names of modules that matter, separated by commas."""
TESTS: Final = "ATOMR_MP_RECORDED_TESTS"
"""Names the beginnings of the names of tests that matter, separated by commas."""
TEST: Final = "ATOMR_MP_RECORDED_TEST"
"""Names the test that has started a process."""

EVER: Final = "ever"
AGAIN: Final = "again"

ROOT: Final = Path(__file__).resolve().parents[2]
PACKAGES: Final = (f"{ROOT}/", "atomr_mp/"), (f"{ROOT}/workers/", "atomr_mp_workers/")
TOOL: Final = 4
"""The number of this tool for `sys.monitoring`, one that it gives to no kind of tools."""


def watch(note: Callable[[str], None]) -> Callable[[], None]:
    """Have the functions of the product noted that run from now on, in all threads; return how to begin anew.

    What ran is not noted again before that, under Python 3.12 and later.
    """

    def look(code: CodeType, _offset: int = 0) -> Any:
        for root, package in PACKAGES:
            if code.co_filename.startswith(root + package):
                path = code.co_filename.removeprefix(root).removesuffix(".py").removesuffix("/__init__")
                module = path.replace("/", ".")
                if module.startswith(rooms):
                    note(f"{module}:{code.co_qualname}")
        return None if monitoring is None else monitoring.DISABLE

    def profile(frame: FrameType, event: str, _value: Any) -> None:
        if event == "call":
            look(frame.f_code)

    rooms = tuple(os.environ[ROOMS].split(","))
    monitoring: Any = getattr(sys, "monitoring", None)
    if monitoring is None:  # in Python 3.11, slowly
        threading.setprofile(profile)
        sys.setprofile(profile)
        return lambda: None
    monitoring.use_tool_id(TOOL, "atomr-mp")
    monitoring.register_callback(TOOL, monitoring.events.PY_START, look)
    monitoring.set_events(TOOL, monitoring.events.PY_START)
    atexit.register(monitoring.set_events, TOOL, 0)  # before this module's names are gone
    again: Callable[[], None] = monitoring.restart_events
    return again


def write(test: str, functions: Iterable[str]) -> None:
    """Write a line to this process's file."""
    line = json.dumps([test, sorted(functions)]) + "\n"
    with Path(os.environ[FOLDER], f"{os.getpid()}.jsonl").open("a", encoding="utf-8") as file:
        file.write(line)
