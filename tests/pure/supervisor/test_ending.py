"""Where the end of an incarnation came from, by all that its supervisor knows of it."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from atomr_mp import errors
from atomr_mp.process.cgroup import WorkerCgroup
from atomr_mp.process.spawn import ExitCause
from atomr_mp.protocol.board import BOARD_BYTES, BoardReader, BoardWriter
from atomr_mp.supervision.suspicion import Cause
from atomr_mp.supervisor.processes.incarnation_end import IncarnationEnd
from atomr_mp.supervisor.processes.parting import Parting

KILLED = ExitCause(signal=9)


@dataclasses.dataclass
class Ended:
    """An incarnation that has ended, as far as `IncarnationEnd` looks at it."""

    cause: ExitCause
    drained: bool = False
    wish: str = ""
    late: bool = False
    fault: errors.AtomrError | None = None
    cgroup: WorkerCgroup | None = None
    device: int = 0
    generation: int = 1

    @property
    def parting(self) -> Parting:
        """Why it was to end."""
        parting = Parting()
        parting.wished(self.wish)
        if self.drained:
            parting.told_to_finish()
        if self.late:
            parting.took_too_long(1.0)
        if self.fault is not None:
            parting.failed(self.fault)
        return parting

    @property
    def end(self) -> str:
        """How it ended, in words."""
        return self.cause.describe()


@pytest.mark.parametrize(
    ("ended", "cause"),
    [
        (Ended(KILLED), Cause.UNKNOWN),
        (Ended(ExitCause()), Cause.UNKNOWN),
        (Ended(ExitCause(signal=15), drained=True), Cause.UNKNOWN),
        (Ended(ExitCause(status=0)), Cause.INSIDE),
        (Ended(ExitCause(signal=11)), Cause.INSIDE),
        (Ended(KILLED, fault=errors.WorkerHung("")), Cause.INSIDE),
        (Ended(KILLED, fault=errors.ContextPoisoned("")), Cause.INSIDE),
        (Ended(KILLED, fault=errors.DeviceUnavailable("")), Cause.SUPERVISOR),
        (Ended(KILLED, wish="reload"), Cause.SUPERVISOR),
        (Ended(KILLED, drained=True, late=True), Cause.SUPERVISOR),
        (Ended(ExitCause(status=0), drained=True), Cause.SUPERVISOR),
    ],
)
def test_where_an_end_came_from(ended: Ended, cause: Cause) -> None:
    """The supervisor's own kills are no one's doing."""
    assert death_of(ended).cause is cause


def test_what_the_process_was_sending_to_itself_explains_that_signal_only() -> None:
    """Not another one that came meanwhile."""
    assert death_of(Ended(KILLED), signals=1 << 9 - 1).cause is Cause.INSIDE
    assert death_of(Ended(KILLED), signals=1 << 15 - 1).cause is Cause.UNKNOWN
    assert death_of(Ended(ExitCause(signal=64)), signals=2**64 - 1).cause is Cause.INSIDE


def test_an_oom_kill_of_its_own_cgroup_explains_a_sigkill(tmp_path: Path) -> None:
    """As the kernel counts it there."""
    cgroup = WorkerCgroup(tmp_path)
    assert death_of(Ended(KILLED, cgroup=cgroup)).cause is Cause.UNKNOWN
    (tmp_path / "memory.events").write_text("oom 1\noom_kill 1\n")
    assert death_of(Ended(KILLED, cgroup=cgroup)).cause is Cause.INSIDE
    assert death_of(Ended(ExitCause(signal=15), cgroup=cgroup)).cause is Cause.UNKNOWN


def test_only_what_was_let_in_alone_has_died_alone() -> None:
    """Not what happened to be the only one."""
    assert death_of(Ended(KILLED))[:2] == (1, False)
    assert death_of(Ended(KILLED), alone=True)[:2] == (1, True)
    assert death_of(Ended(KILLED, wish="stop"), alone=True).running == 0


def death_of(ended: Any, *, signals: int = 0, alone: bool = False) -> Any:
    """Return what an end says of its requests, with one that ran and signals that are noted on the board."""
    memory = memoryview(bytearray(BOARD_BYTES))
    writer, reader = BoardWriter(memory), BoardReader(memory)
    writer.start(3, 4, 5, 0)
    writer.signal(signals)
    if alone:
        writer.alone(3, 4)
    return IncarnationEnd(ended, reader, suspecting=True, now_ns=10).death
