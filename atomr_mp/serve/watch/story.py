"""What has happened to a pool, from its event log: its latest events, and the timeline of each device."""

from __future__ import annotations

import itertools
import time
from collections import deque
from pathlib import Path
from typing import Any, Final

from atomr_mp.process.files.events import Follower, Scalar, read_events
from atomr_mp.serve.watch.timeline import MOST_TEXT, Timeline

MOST_EVENTS: Final = 100
"""How many of the latest events are shown."""

BAD: Final = frozenset(
    {
        *("board", "circuit_open", "end", "fault", "relay_end", "relay_hung", "hung", "poison_request"),
        "import_barred",
        *("quarantined", "reload_failed", "resident_corrupt", "sick", "standby_failed", "unkillable", "violation"),
        *("supervisor_paused", "world_broken", "world_waits"),
    }
)

GOOD: Final = frozenset(
    {
        *("circuit_closed", "promoted", "ready", "recovered", "reload_end", "request_admitted", "standby_ready"),
        *("unstuck", "world_ready"),
    }
)


class Story:
    """Reads the event log of a pool.

    Args:
        path: The log.

    Raises:
        OSError: It cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self._follower: Final = Follower(path)  # first: no event falls between
        self._events: Final[deque[dict[str, Any]]] = deque(maxlen=MOST_EVENTS)
        self._timeline: Final = Timeline()
        # The follower comes upon the last of these again if they were written meanwhile.
        latest: deque[dict[str, Scalar]] = deque(maxlen=1000)
        try:
            for event in read_events(path):
                latest.append(event)
                self._take(event)
            for event in self._follower.more():
                if event not in latest:
                    self._take(event)
        except OSError:
            self.close()
            raise

    def close(self) -> None:
        """Close the log."""
        self._follower.close()

    def shown(self) -> dict[str, Any]:
        """Return the latest events and the timelines, as JSON values."""
        for event in self._follower.more():
            self._take(event)
        return {"news": list(self._events), "timeline": self._timeline.shown(time.time())}

    def _take(self, event: dict[str, Scalar]) -> None:
        self._timeline.take(event)
        told = shown_event(event)
        # A request that has ended two workers is told of for each of them, in the same words.
        recent = itertools.islice(reversed(self._events), 8)
        if told["event"] != "poison_request" or told["text"] not in [each["text"] for each in recent]:
            self._events.append(told)


def shown_event(event: dict[str, Scalar]) -> dict[str, Any]:
    """Return an event as the page shows it."""
    name = str(event.get("event"))
    at = event.get("time")
    return {
        "at": at if isinstance(at, int | float) else 0.0,
        "event": name,
        "kind": "ready" if name in GOOD else "fault" if name in BAD else "plain",
        "device": event.get("device"),
        "generation": event.get("generation"),
        "text": str(event.get("text") or name)[:MOST_TEXT],
    }
