"""A thread that looks on while gang calls run on GPUs: whether this rank waits there, and for whom."""

from __future__ import annotations

import threading
import time
from typing import Final, Protocol

LOOK_S: Final = 0.002
IDLE_LOOKS: Final = 50
"""After so many looks without a gang call the thread waits for the next one."""


class Looked(Protocol):
    """What is looked at."""

    @property
    def is_idle(self) -> bool:
        """Whether nothing runs."""

    def look(self) -> None:
        """Look."""


class Onlooker:
    """Looks at all meetings of this process while one of them has a gang call. Any thread."""

    def __init__(self) -> None:
        self._busy: dict[Looked, int] = {}
        """What is looked at, and how often it was idle in a row."""
        self._lock: Final = threading.Lock()
        self._rung: Final = threading.Event()
        self._runs = False

    @property
    def busy(self) -> bool:
        """Whether anything is looked at."""
        return bool(self._busy)

    def look_on(self, meeting: Looked) -> None:
        """Look at a meeting from now on, until it has been idle for a while."""
        if meeting in self._busy:
            self._busy[meeting] = 0
            return
        with self._lock:
            self._busy[meeting] = 0
            if not self._runs:
                self._runs = True
                threading.Thread(target=self._run, name="world-onlooker", daemon=True).start()
        self._rung.set()

    def _run(self) -> None:
        while True:
            self._rung.wait()
            self._rung.clear()
            while self._busy:
                time.sleep(LOOK_S)
                for meeting, idle in list(self._busy.items()):
                    try:
                        meeting.look()
                    except ValueError:  # its page was given back amid a call, whose process is about to end
                        del self._busy[meeting]
                        continue
                    if not meeting.is_idle:
                        self._busy[meeting] = 0
                    elif idle < IDLE_LOOKS:
                        self._busy[meeting] = idle + 1
                    else:
                        self._forget(meeting)

    def _forget(self, meeting: Looked) -> None:
        del self._busy[meeting]
        if not meeting.is_idle:  # it has begun one meanwhile
            self._busy[meeting] = 0
