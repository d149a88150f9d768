"""The supervisor stops for a while, and harms no process by that."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

import atomr_mp
from atomr_mp.process.files.events import read_events
from atomr_mp.process.scheduling import standstill
from atomr_mp.protocol.own_time import RELAY_QUIET_S
from tests import remote as served
from tests.support import ACTORS, DEADLINE_S, PROBE, Ledger, settled, stopped

NAPPING = f"{ACTORS}/napping.py:Napping"
LONG_S = RELAY_QUIET_S + 3
"""Longer than the relay may be silent, and a hello may take."""


@pytest.fixture
def serving(ledger: Ledger) -> Iterator[served.Served]:
    """A pool behind a relay, with two devices."""
    found = served.serve(ledger, PROBE, NAPPING, gpus=2, standby="hot")
    with found.pool:
        yield found


def processes(found: served.Served) -> dict[str, Any]:
    """Return the pids of a pool's processes, but for those that have none."""
    status = found.pool.status()
    assert status.remote is not None
    workers = [(each.pid, each.generation, each.standby and each.standby.pid) for each in status.devices]
    return {"workers": workers, "relay": status.remote.pid, "relay's standby": status.remote.standby_pid}


def names(found: served.Served) -> list[str]:
    """Return the names of a pool's events."""
    return [str(event["event"]) for event in read_events(found.pool.run_dir / "events.jsonl")]


def complete(found: served.Served) -> bool:
    """Return whether all processes of a pool are there."""
    status = found.pool.status()
    hot = all(each.standby is not None and each.standby.state == "ready" for each in status.devices)
    return hot and status.remote is not None and bool(status.remote.standby_pid)


@pytest.mark.parametrize("together", [False, True], ids=["alone", "with the relay"])
def test_a_supervisor_that_goes_on_harms_nobody(serving: served.Served, *, together: bool) -> None:
    """The relay, the workers and their standbys live on, and no call is lost: neither those that may run but once."""
    assert settled(lambda: complete(serving))
    before, relay = processes(serving), serving.pid
    pid = serving.pool.supervisor_pid
    with serving.connect() as remote:
        assert remote.call("Napping.nap", 0.0).result(DEADLINE_S) == 0.0
        with stopped(pid):
            assert settled(lambda: standstill(pid) is not None)
            calls = [each.call("Napping.nap", LONG_S, device=at) for at, each in enumerate((remote, serving.pool))]
            if together:
                os.kill(relay, signal.SIGSTOP)
            try:
                assert calls[1].result(DEADLINE_S) == LONG_S, "it tells that the time has passed"
            finally:
                os.kill(relay, signal.SIGCONT)
        assert calls[0].result(DEADLINE_S) == LONG_S
        assert settled(lambda: "supervisor_paused" in names(serving))
        assert remote.call("Napping.nap", 0.0).result(DEADLINE_S) == 0.0
        assert processes(serving) == before
        assert remote.lost is None
    assert not {"relay_hung", "relay_end", "end", "hung", "standby_end"} & set(names(serving))


def test_a_relay_that_is_silent_is_still_found(serving: served.Served) -> None:
    """Also after a pause of the supervisor."""
    assert settled(lambda: complete(serving))
    with stopped(serving.pool.supervisor_pid):
        assert settled(lambda: standstill(serving.pool.supervisor_pid) is not None)
    with atomr_mp.connect(run_dir=serving.pool.run_dir) as own:
        relay = serving.pid
        os.kill(relay, signal.SIGSTOP)
        assert settled(lambda: "relay_hung" in names(serving))
        assert settled(lambda: serving.pid not in {0, relay})
        assert own.lost is None
