"""Tells in the server's log what happens to the pool, once for all front ends, and what its workers print.

It reads the pool's own files, its event log and the logs of its devices. So it tells the same for a pool that the
server has started and for one that it has joined, needs no session, and hears of a supervisor's end as well.
"""

from __future__ import annotations

import asyncio
import logging
import re
import threading
import time
from pathlib import Path
from typing import Final

from atomr_mp.process.files import disk
from atomr_mp.process.files.events import Follower, Scalar, read_events
from atomr_mp.process.files.follow import FollowedLog
from atomr_mp.process.files.rundir import EVENTS
from atomr_mp.protocol.raised import MARK, one_line
from atomr_mp.protocol.words import device_words
from atomr_mp.serve.server_log import tell

LOOK_S: Final = 0.25
"""How often the files are looked at, since no event tells that a file grows."""

MOST_EVENTS: Final = 50
"""Most events of one look; further ones are counted."""

MOST_LINES: Final = 100
"""Most lines of a device's log in one look; those before the last ones are counted."""

WARNINGS: Final = frozenset(
    {
        *(
            "board",
            "circuit_open",
            "end",
            "fault",
            "hung",
            "import_barred",
            "poison_request",
            "quarantined",
            "sick",
            "standby_failed",
            "stopped",
        ),
        *("reload_failed", "unkillable", "violation", "zygote_end"),
    }
)

_RAISED: Final = re.compile(rb"\S+Z ERROR device=\d+ generation=\d++.*? atomr_mp\.actor: ")
"""Begins what the front ends tell themselves, with the request's id."""


class PoolStory:
    """Reads the files of a pool.

    Args:
        run_dir: The pool's run directory.
        since_s: The time, by `time.time`, from which events are told.
        follow: Whether to show what workers write into their logs.
        looks_at_disk: Whether to tell that the disk is full. A supervisor tells that on its own standard error, which
            is not this process's if it was started elsewhere.
    """

    def __init__(self, run_dir: Path, since_s: float, *, follow: bool, looks_at_disk: bool = False) -> None:
        self._run_dir: Final = run_dir
        self._since_s: Final = since_s
        self._follow: Final = follow
        self._looks_at_disk: Final = looks_at_disk
        self._events: Follower | None = None
        self._lock: Final = threading.Lock()
        self._trouble = ""
        """The error of the last look; repetitions are not logged."""
        self._logs: Final[dict[Path, FollowedLog]] = {}
        self._told: Final[dict[int, bool]] = {}
        """Whether the latest line of a device was one that the front ends tell."""
        if follow:
            for path in self._device_logs():
                self._logs[path] = FollowedLog(path)

    async def keep_telling(self) -> None:
        """Tell until this task is cancelled."""
        while True:
            await asyncio.to_thread(self.look)
            await asyncio.sleep(LOOK_S)

    def look(self) -> None:
        """Tell what is new. What cannot be read now is looked at again the next time."""
        with self._lock:
            try:
                self._look()
            except Exception as error:  # noqa: BLE001 - files of another process, and the server goes on without them
                text = f"what happens to the pool cannot be told: {error!r}"
                if text != self._trouble:
                    tell(logging.WARNING, "story", text)
                self._trouble = text
            else:
                self._trouble = ""

    def _look(self) -> None:
        if self._looks_at_disk:
            disk.STATE.look(self._run_dir)
        self._tell_events(self._new_events())
        if self._follow:
            for path in self._device_logs():
                if path not in self._logs:
                    self._logs[path] = FollowedLog(path, whole=True)
                self._tell_output(path, *self._logs[path].more())

    def close(self) -> None:
        """Tell the last, and close the files."""
        self.look()
        with self._lock:
            for path, log in self._logs.items():
                self._tell_output(path, log.rest(), 0)
            if self._events is not None:
                self._events.close()

    def _device_logs(self) -> list[Path]:
        return sorted(self._run_dir.glob("device-*.log"))

    def _new_events(self) -> list[dict[str, Scalar]]:
        if self._events is not None:
            return self._events.more()
        path = self._run_dir / EVENTS
        self._events = Follower(path)  # first: no event falls between
        events = list(read_events(path))
        events += [event for event in self._events.more() if event not in events]
        return [event for event in events if _time(event) >= self._since_s]

    def _tell_events(self, events: list[dict[str, Scalar]]) -> None:
        for event in events[:MOST_EVENTS]:
            name = str(event.get("event"))
            facts = {key: value for key, value in event.items() if key not in {"event", "text", "time", "stacks"}}
            who = ""
            if "device" in event:
                who = f"{device_words(event)}: "
            level = logging.WARNING if name in WARNINGS else logging.INFO
            told = f"device_{name}" if who else name if name.startswith("pool_") else f"pool_{name}"
            tell(level, told, f"{who}{event.get('text') or name}", at=_time(event), **facts)
        if len(events) > MOST_EVENTS:
            text = f"{len(events) - MOST_EVENTS:,} more events of the pool are only in its event log (atomr-mp events)"
            tell(logging.WARNING, "pool_events_left_out", text, left_out=len(events) - MOST_EVENTS)

    def _tell_output(self, path: Path, lines: list[bytes], skipped: int) -> None:
        device = int(path.stem.removeprefix("device-")) if path.stem.removeprefix("device-").isdigit() else -1
        wanted = []
        for line in lines:
            is_raised = _RAISED.match(line) is not None or (
                self._told.get(device, False) and line.startswith(MARK.encode())
            )
            self._told[device] = is_raised
            if not is_raised:
                wanted.append(line)
        left_out = max(0, len(wanted) - MOST_LINES)
        if skipped or left_out:
            what = " and ".join(
                [*([f"{skipped:,} bytes"] if skipped else []), *([f"{left_out:,} lines"] if left_out else [])]
            )
            text = f"[device {device}] [{what} are only in {path.name}]"
            tell(logging.WARNING, "output_left_out", text, device=device, bytes=skipped, lines=left_out)
        for line in wanted[left_out:]:
            shown = one_line(line.decode("utf-8", "backslashreplace").rstrip("\r").expandtabs(4))
            tell(logging.INFO, "output", f"[device {device}] {shown}", device=device, output=shown)


def _time(event: dict[str, Scalar]) -> float:
    found = event.get("time")
    return float(found) if isinstance(found, int | float) else time.time()
