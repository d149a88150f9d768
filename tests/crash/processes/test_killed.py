"""SIGKILL for each kind of process: a client, the supervisor, the application that owns the pool."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

import atomr_mp
from atomr_mp import errors
from tests.support import PROBE, Ledger, Patience, Watched, settled, wait_generation


@pytest.mark.parametrize(
    ("hold", "note"), [("Probe.hold", "Probe.note"), ("Probe.hold_on_thread", "Probe.note_on_thread")]
)
def test_a_killed_client_s_queue_is_discarded(ledger: Ledger, hold: str, note: str) -> None:
    """Its running requests finish, its queued ones never run, and all other clients' requests do."""
    with ledger.start() as pool, ledger.gate("gate") as gate:
        sessions = pool.status().sessions
        with ledger.program("client", pool.run_dir, "0", hold, gate.path, note, "20") as client:
            gate.wait()
            assert client.hear() == ["sent"]
            assert pool.status().sessions == sessions + 1
            others = [pool.call(note, f"other-{n}") for n in range(5)]
            if hold == "Probe.hold_on_thread":
                # The loop has them all, and listens: what it reads just now could keep it from hearing of the end.
                assert settled(lambda: pool.status().devices[0].queue_depth == 1 + 20 + 5)
            client.kill()
            # With the session the workers have been told: they listen to that before they run anything.
            assert settled(lambda: pool.status().sessions == sessions)
            gate.open()
            assert [reply.result() for reply in others] == [f"other-{n}" for n in range(5)]
        assert pool.call(note, "last").result() == "last"
        assert ledger.runs() == [*(f"other-{n}" for n in range(5)), "last"]
        status = pool.status().devices[0]
        assert (status.running, status.queue_depth) == (0, 0)
        assert (status.generation, pool.devices[0].restarts) == (1, 0)


def test_many_clients_come_and_are_killed(ledger: Ledger) -> None:
    """Nothing of them accumulates in the supervisor."""
    with ledger.start() as pool, ledger.gate("gate") as gate:
        files = Path(f"/proc/{pool.supervisor_pid}/fd")
        before = len(list(files.iterdir()))
        for _ in range(5):
            with ledger.program(
                "client", pool.run_dir, "0", "Probe.hold_on_thread", gate.path, "Probe.note_on_thread", "5"
            ) as client:
                gate.wait()
                client.kill()
            assert settled(lambda: pool.status().sessions == 1)
            gate.open()
        assert settled(lambda: len(list(files.iterdir())) == before)
        assert pool.call("Probe.where").result()[2] == 1


@pytest.mark.parametrize(("standby", "children"), [("none", 3), ("warm", 5), ("hot", 5)])
def test_nothing_outlives_a_killed_supervisor(ledger: Ledger, standby: str, children: int) -> None:
    """Even what is busy in C code ends, and standbys and the zygote. Callers get a typed error; a new start works."""
    with ledger.gate("busy") as gate, ledger.gate("held") as held_gate:
        pool = ledger.start(gpus=2, standby=standby)
        supervisor = psutil.Process(pool.supervisor_pid)
        assert settled(lambda: len(supervisor.children()) == children)
        with atomr_mp.connect(run_dir=pool.run_dir) as other:
            wait_generation(other, 1, device=1)
            pending = [
                pool.call("Probe.wait_in_c", gate.path, device=0),
                pool.call("Probe.note", "never", device=0),
                other.call("Probe.hold_on_thread", held_gate.path, device=1),
            ]
            gate.wait()
            held_gate.wait()
            with Watched([supervisor.pid, *(each.pid for each in supervisor.children())]) as watched:
                patience = Patience()
                supervisor.kill()
                found = [reply.exception() for reply in pending]
                assert patience.left_s > 0
                assert [type(error) for error in found] == [errors.PoolLost] * 3
                assert watched.left(patience) == []
            for client in (pool, other):
                with pytest.raises(errors.PoolLost):
                    client.call("Probe.where")
            with pytest.raises(errors.PoolUnreachable):
                atomr_mp.connect(run_dir=pool.run_dir)
        pool.close()
    with ledger.start() as again:
        assert again.call("Probe.where").result()[1:] == [0, 1]
    assert ledger.runs() == []


def test_an_event_loop_survives_its_pool(ledger: Ledger) -> None:
    """Awaiting callers get the error, and the loop does not spin on the dead session afterwards."""

    async def use() -> float:
        waiting = [pool.call("Probe.hold", gate.path) for _ in range(3)]
        await asyncio.to_thread(gate.wait)
        os.kill(pool.supervisor_pid, signal.SIGKILL)
        found = await asyncio.gather(*waiting, return_exceptions=True)
        assert [type(error) for error in found] == [errors.PoolLost] * 3
        with pytest.raises(errors.PoolLost):
            await pool.call("Probe.where")
        before = time.process_time()
        await asyncio.sleep(0.2)  # a loop that has nothing to do must use no processor for as long
        return time.process_time() - before

    with ledger.gate("gate") as gate:
        pool = ledger.start()
        busy_s = asyncio.run(use())
        pool.close()
    assert busy_s < 0.1
    with ledger.start():
        """The next start removes what the killed one has left."""


@pytest.mark.parametrize("busy", [0, 1])
def test_a_pool_ends_with_its_killed_application(ledger: Ledger, busy: int) -> None:
    """Supervisor and workers are gone in two seconds, whatever they were doing."""
    run_dir = ledger.run_dir()
    with (
        ledger.gate("busy") as gate,
        ledger.program("application", run_dir, PROBE, "2", *[gate.path] * busy) as program,
    ):
        pids = [int(pid) for pid in program.hear()]
        if busy:
            gate.wait()
        with Watched(pids) as watched, atomr_mp.connect(run_dir=run_dir) as client:
            wait_generation(client, 1, device=1)
            pending = client.call("Probe.wait_in_c", gate.path, device=1)
            gate.wait()
            patience = Patience()
            program.kill()
            error = pending.exception()
            assert isinstance(error, errors.PoolLost | errors.WorkerLost)
            assert error.maybe_executed
            assert watched.left(patience) == []
    with ledger.start() as again:
        assert again.call("Probe.where").result()[1:] == [0, 1]


def test_a_pool_ends_with_an_application_that_is_killed_while_it_stops_the_pool(ledger: Ledger) -> None:
    """It waits for a request then, whose answer has become superfluous."""
    run_dir = ledger.run_dir()
    with ledger.gate("busy") as gate, ledger.program("application", run_dir, PROBE, "1", gate.path) as program:
        pids = [int(pid) for pid in program.hear()]
        gate.wait()
        with Watched(pids) as watched, atomr_mp.connect(run_dir=run_dir) as client:
            program.tell()
            assert settled(lambda: client.status().reason == "the pool stops")
            program.kill()
            assert watched.left() == []


@pytest.mark.parametrize("closes", [0, 1])
def test_the_second_interrupt_ends_a_pool_that_waits_for_a_request(ledger: Ledger, closes: int) -> None:
    """The first says what is waited for, and how to end it at once, even if the pool is stopping already."""
    run_dir = ledger.run_dir()
    with (
        ledger.gate("busy") as gate,
        ledger.program("application", run_dir, PROBE, "1", gate.path, errors=True) as program,
    ):
        pids = [int(pid) for pid in program.hear()]
        gate.wait()
        with Watched([program.pid, *pids]) as watched, atomr_mp.connect(run_dir=run_dir) as client:
            if closes:
                program.tell()
                assert settled(lambda: client.status().reason == "the pool stops")
            program.interrupt()
            told = " ".join(program.hear_error())
            assert told == "atomr-mp: waiting for 1 request, at most 30 s; Ctrl-C again kills"
            program.interrupt()
            assert watched.left() == []


def test_a_pool_stops_when_its_application_ends_without_closing_it(ledger: Ledger) -> None:
    """An exit that skips all handlers is like a kill."""
    code = (
        "import os, sys, atomr_mp\n"
        "pool = atomr_mp.start(actors=[sys.argv[1]], gpus=1, backend='host', run_dir=sys.argv[2])\n"
        "os._exit(0)"
    )
    subprocess.run([sys.executable, "-c", code, PROBE, str(ledger.run_dir())], check=True, timeout=30)
