"""Takes nvidia-ml-py's place in the process that watches GPUs' health: GPUs that a test drives through the ledger.

For each GPU there is a file of its UUID: a line `recovery N` says what the driver asks for, `memory PID BYTES` what is
taken of it, `xid N` reports an error.
"""
# ruff: noqa: N802 - NVIDIA's names

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from types import SimpleNamespace

from tests.fakes.fake_nvml import Card, FakeNvml

LEDGER = Path(os.environ["ATOMR_MP_TEST"])

LOOK_S = 0.05


class ScriptedNvml(FakeNvml):
    """Reads what its GPUs are to do."""

    def __init__(self) -> None:
        super().__init__(*(Card(path.name) for path in sorted(LEDGER.glob("GPU-*"))))
        self._done = dict.fromkeys((card.uuid for card in self.cards), 0)

    def nvmlInit(self) -> None:
        """Begin, as the GPUs are now."""
        super().nvmlInit()
        self._read()

    def nvmlEventSetWait_v2(self, events: object, _timeout_ms: int) -> SimpleNamespace:
        """Wait for a moment, and look whether there is something new."""
        if not self.events:
            time.sleep(LOOK_S)  # as long as the driver would wait, which has an event to wait for
            self._read()
        return super().nvmlEventSetWait_v2(events, 0)

    def _read(self) -> None:
        for card in self.cards:
            lines = (LEDGER / card.uuid).read_text().splitlines()
            for what, *numbers in (line.split() for line in lines[self._done[card.uuid] :]):
                number, *more = map(int, numbers)
                if what == "recovery":
                    card.recovery = number
                elif what == "memory":
                    card.pids, card.taken = (number,), {number: more[0]}
                else:
                    self.events.append((card, self.nvmlEventTypeXidCriticalError, number, 0xFFFFFFFF))
            self._done[card.uuid] = len(lines)


sys.modules[__name__] = ScriptedNvml()
if hasattr(sys.modules["__main__"], "POLL_S"):
    sys.modules["__main__"].POLL_S = LOOK_S  # type: ignore[attr-defined]
