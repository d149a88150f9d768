"""Planned ends: a restart that stays unnoticed, and a stop after which nothing is left undone."""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter

import numpy as np
import pytest

from atomr_mp import errors
from atomr_mp.protocol.messages.devices import DeviceState
from tests.support import ACTORS, KEEPER, PROBE, Events, Ledger, settled, wait_generation, wait_state


def test_a_planned_restart_under_load_is_not_noticed(ledger: Ledger) -> None:
    """No request fails, none is lost, none runs twice; what is in flight finishes first."""
    with ledger.start(gpus=2) as pool, ledger.gate("gate") as gate:
        replies = {}
        go_on = threading.Event()
        go_on.set()

        def use() -> None:
            number = 0
            while go_on.is_set():
                batch = {}
                for _ in range(100):
                    batch[f"{number}"] = pool.call("Probe.note", f"{number}", device=0)
                    number += 1
                for reply in batch.values():
                    reply.exception()
                replies.update(batch)

        thread = threading.Thread(target=use)
        thread.start()
        try:
            for generation in range(1, 4):
                wait_generation(pool, generation)
                # Of the next two batches at least the second was made for this generation.
                enough = len(replies) + 200
                assert settled(lambda enough=enough: len(replies) >= enough or not thread.is_alive())  # type: ignore[misc]
                held = pool.call("Bystander.hold", gate.path, device=0)
                assert gate.wait() == [pool.devices[0].pid]
                pool.restart(0)
                wait_state(pool, DeviceState.DRAINING)
                gate.open()
                assert held.exception() is None
            wait_generation(pool, 4)
            enough = len(replies) + 100
            assert settled(lambda: len(replies) >= enough or not thread.is_alive())
        finally:
            go_on.clear()
            thread.join()
        assert [reply.exception() for reply in replies.values() if reply.exception() is not None] == []
        assert Counter(ledger.runs()) == Counter(replies.keys())
        assert {reply.generation for reply in replies.values()} == {1, 2, 3, 4}
        assert pool.devices[0].restarts == 0
        assert pool.devices[1].generation == 1
        assert ledger.runs("teardowns") == ["0-1", "0-2", "0-3"]
    assert Counter(ledger.runs("teardowns")) == Counter(["0-1", "0-2", "0-3", "0-4", "1-1"])


def test_a_large_result_can_still_be_read_when_its_worker_is_to_leave(ledger: Ledger) -> None:
    """It leaves at once, and its answered results stay readable, before and after."""
    with ledger.start(KEEPER) as pool:
        for generation, looks in enumerate([True, False], 1):
            wait_generation(pool, generation)
            reply = pool.call("Keeper.double", np.ones(2**18))
            assert reply.exception() is None
            seen = Events(pool)
            pool.restart(0)
            seen.wait(lambda device: device.state is DeviceState.DRAINING)
            if looks:
                assert (reply.result() == 2).all()
            wait_generation(pool, generation + 1)
        assert (reply.result() == 2).all()


@pytest.mark.parametrize("how", ["close", "SIGTERM", "SIGINT"])
def test_a_stop_answers_what_is_in_flight_first(ledger: Ledger, how: str) -> None:
    """On the loop, on a thread, running and queued; new calls are refused meanwhile, and actors are torn down."""
    with ledger.gate("loop") as gate, ledger.gate("thread") as thread_gate:
        pool = ledger.start(gpus=2)
        running = [
            pool.call("Probe.hold", gate.path, device=0),
            pool.call("Probe.hold_on_thread", thread_gate.path, device=1),
        ]
        gate.wait()
        thread_gate.wait()
        queued = [pool.call("Probe.note", f"{n}", device=0) for n in range(5)]
        queued += [pool.call("Probe.note_on_thread", f"{n}", device=1) for n in range(5, 10)]
        assert settled(lambda: all(reply.generation for reply in queued)), "they are sent though nobody waits"
        stopping = threading.Thread(target=pool.close)
        if how != "close":
            os.kill(pool.supervisor_pid, getattr(signal, how))
        else:
            stopping.start()
        for device in range(2):
            wait_state(pool, DeviceState.STOPPING, device)
        with pytest.raises(errors.DeviceUnavailable, match="stopping"):
            pool.call("Probe.note", "late")
        gate.open()
        thread_gate.open()
        assert [reply.result() for reply in running] == [1, 1]
        assert [reply.result() for reply in queued] == [f"{n}" for n in range(10)]
        if how == "close":
            stopping.join()
        pool.close()
    assert sorted(ledger.runs()) == [f"{n}" for n in range(10)]
    assert sorted(ledger.runs("teardowns")) == ["0-1", "1-1"]
    with pytest.raises(errors.PoolLost):
        pool.call("Probe.note", "late")


def test_a_stop_does_not_wait_for_ever(ledger: Ledger) -> None:
    """A worker that does not finish in time is killed, and its caller gets an error."""
    with ledger.gate("gate") as gate:
        pool = ledger.start(drain_timeout_s=0.2)
        stuck = pool.call("Probe.wait_in_c", gate.path)
        gate.wait()
        pool.close()
    error = stuck.exception()
    assert isinstance(error, errors.WorkerLost | errors.PoolLost)
    assert error.maybe_executed


def test_a_restart_of_a_stuck_worker_kills_it_in_the_end(ledger: Ledger) -> None:
    """Its request is lost, requests that waited for the next incarnation are answered; nothing is counted."""
    with ledger.start(drain_timeout_s=0.2) as pool, ledger.gate("gate") as gate:
        stuck = pool.call("Probe.wait_in_c", gate.path)
        gate.wait()
        seen = Events(pool)
        pool.restart(0)
        seen.wait(lambda device: device.state is DeviceState.DRAINING)  # before long it is killed
        after = pool.call("Probe.where")
        error = stuck.exception()
        assert type(error) is errors.WorkerLost
        assert error.maybe_executed
        assert after.result()[1:] == [0, 2]
        assert pool.devices[0].restarts == 0


def test_an_actor_that_exits_at_its_teardown_keeps_no_other_from_its_own(ledger: Ledger) -> None:
    """The latest actor is torn down first; the worker ends as one that has finished."""
    with ledger.start(PROBE, f"{ACTORS}/ending.py:Ending") as pool:
        pool.restart(0)
        wait_generation(pool, 2)
        assert ledger.runs("teardowns") == ["0-1"]
