from __future__ import annotations

import logging
import os
from pathlib import Path
from unittest.mock import patch

from hypothesis import given
from hypothesis import strategies as st

from atomr_mp.process.files import disk
from atomr_mp.process.files.disk import DiskState

FOLDER = Path("/pool")
FILES = [FOLDER / name for name in ("events.jsonl", "device-0.log", "device-1.log")]
STEPS = st.lists(st.tuples(st.sampled_from(["failed", "written", "look", "fills", "empties"]), st.sampled_from(FILES)))


class Told(logging.Handler):
    """Keeps what it hears."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a line."""
        self.lines.append(record.getMessage())


@given(STEPS)
def test_a_change_of_the_disk_is_told_once(steps: list[tuple[str, Path]]) -> None:
    """For each file, and for a full disk, failing and working are reported in turn; a full disk by one line."""
    state, told, full = DiskState(), Told(), False
    logger = logging.getLogger(disk.NAME)
    logger.addHandler(told)
    try:
        with patch.object(disk, "has_room", lambda _folder: not full):
            for step, path in steps:
                before = len(told.lines)
                match step:
                    case "failed":
                        state.failed(path, OSError(28, "No space left on device"))
                    case "written":
                        state.written(path)
                    case "look":
                        state.look(FOLDER)
                    case _:
                        full = step == "fills"
                assert len(told.lines) <= before + 1
                if full and step in {"failed", "look"}:
                    assert f"the disk of {FOLDER} is full" in "".join(told.lines)
    finally:
        logger.removeHandler(told)
    for path in FILES:
        changes = [" cannot be written: " in line for line in told.lines if line.startswith(f"{path} ")]
        assert changes == [number % 2 == 0 for number in range(len(changes))]
    changes = [" is full: " in line for line in told.lines if line.startswith(f"the disk of {FOLDER} ")]
    assert changes == [number % 2 == 0 for number in range(len(changes))]


def test_a_disk_has_room_by_what_this_user_may_write(tmp_path: Path) -> None:
    """Of the blocks that are kept for root, only root has something; a folder that is gone is not full."""
    assert disk.has_room(tmp_path)
    assert disk.has_room(tmp_path / "gone")
    size = os.statvfs_result((4096, 4096, 100, 1, 0, 10, 10, 10, 0, 255))
    with patch.object(os, "statvfs", return_value=size):
        assert disk.has_room(tmp_path) == (os.geteuid() == 0)


def test_what_cannot_be_written_is_kept_until_it_can_be() -> None:
    """With the time of its beginning; a full disk comes before a file, and a folder below another is looked at too."""
    state, full = DiskState(), [True]
    with patch.object(disk, "has_room", lambda _folder: not full):
        assert (state.trouble, state.take_over()) == (None, None)
        state.failed(FOLDER / "workers" / "7", OSError(28, "No space left on device"))
        state.look(FOLDER)
        found = state.trouble
        assert str(found).startswith(f"the disk of {FOLDER}/workers is full since ")
        assert (state.trouble, state.take_over()) == (found, None)
        full.clear()
        state.look(FOLDER)
        assert (state.trouble, state.take_over(), state.take_over()) == (None, found, None)
        state.failed(FILES[0], OSError(13, "Permission denied"))
        assert str(state.trouble).startswith(f"{FILES[0]} cannot be written since ")
        state.written(FILES[0])
        assert state.trouble is None
