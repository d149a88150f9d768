"""Where a worker can die, by how: what each of its callers gets, and that no other caller notices."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Iterator
from typing import Final, NamedTuple

import pytest

import atomr_mp
from atomr_mp import errors, testing
from atomr_mp.protocol.messages.devices import DeviceState
from atomr_mp.testing import Exit, Fail, Kill
from tests.support import PROMISE_S, Delays, Gate, Ledger, settled, wait_generation, wait_state

CAUSES: Final = {
    "exit": "exited with status 7",
    "segv": "killed by SIGSEGV",
    "kill": "killed by SIGKILL",
}
HOW: Final = ("exception", *CAUSES)
SURVIVED: Final[dict[str, type[errors.RequestError]]] = {
    "decoding": errors.InvalidRequest,
    "on_loop": errors.ActorFailed,
    "on_thread": errors.ActorFailed,
    "replying": errors.ActorFailed,
}
"""Where a request can die, and what its caller gets if it was by an exception only."""


class Running(NamedTuple):
    """A pool of two devices; a request runs on the second all the time."""

    ledger: Ledger
    pool: atomr_mp.Pool
    elsewhere: atomr_mp.Reply
    gate: Gate


@pytest.fixture(scope="module")
def running() -> Iterator[Running]:
    """One pool for all cases: that it goes on is the point."""
    with (
        Ledger() as ledger,
        ledger.start(gpus=2, max_restarts=1000, backoff_initial_s=0.0, faults=[]) as pool,
        ledger.gate("elsewhere") as gate,
    ):
        elsewhere = pool.call("Bystander.hold", gate.path, device=1, deadline_s=600)
        gate.wait()
        before = pool.devices[1]
        yield Running(ledger, pool, elsewhere, gate)
        assert not elsewhere.done
        gate.open()
        assert elsewhere.result() == before.pid
        assert pool.devices[1] == before


@pytest.fixture(autouse=True)
def _elsewhere_nothing_was_noticed(running: Running) -> Iterator[None]:
    """The other device keeps its process, its generation and its running request, and answers meanwhile."""
    before = running.pool.devices[1]
    yield
    assert running.pool.devices[1] == before
    assert running.pool.call("Probe.where", device=1).result() == [before.pid, 1, before.generation]
    assert not running.elsewhere.done


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("where", SURVIVED)
def test_each_caller_gets_what_is_true_of_its_request(running: Running, where: str, how: str) -> None:
    """The killer and what ran beside it may have been executed, what was queued was not, the idle go on."""
    ledger, pool = running.ledger, running.pool
    before = wait_state(pool, DeviceState.READY)
    queue = "Probe.note_on_thread" if where == "on_thread" else "Probe.note"
    tags = [f"{where}-{how}-{n}" for n in range(6)]
    with (
        atomr_mp.connect(run_dir=pool.run_dir) as other,
        ledger.gate(f"{where}-{how}") as gate,
        ledger.gate(f"{where}-{how}-beside") as gate_beside,
    ):
        wait_generation(other, before.generation)
        beside = other.call("Bystander.hold", gate_beside.path, device=0)
        assert gate_beside.wait() == [before.pid]
        arguments = [{"how": how, "gate": gate.path}] if where == "decoding" else [how, gate.path]
        killer = pool.call(f"Probe.crash_{where}", *arguments, device=0)
        assert gate.wait() == [before.pid]
        queued = [client.call(queue, tag, device=0) for tag, client in zip(tags, (pool, other) * 3, strict=True)]
        assert settled(lambda: all(reply.generation for reply in queued)), "they are sent though nobody waits"
        released, delays = time.monotonic(), Delays(pool.supervisor_pid, before.pid)
        gate.open()
        error = killer.exception()
        assert time.monotonic() - released - delays.so_far_s() < PROMISE_S
        if how == "exception":
            assert type(error) is SURVIVED[where]
            assert "on purpose" in error.message
            assert [reply.result() for reply in queued] == tags
            gate_beside.open()
            assert beside.result() == before.pid
            assert pool.devices[0] == before
        else:
            for reply, maybe_executed in [(killer, True), (beside, True), *((reply, False) for reply in queued)]:
                lost = reply.exception()
                assert type(lost) is errors.WorkerLost, reply
                assert lost.maybe_executed is maybe_executed, reply
                assert (lost.device, lost.generation, lost.cause) == (0, before.generation, CAUSES[how])
            assert not set(tags) & set(ledger.runs())
        expected = before.generation + (how != "exception")
        answers = [client.call("Probe.where", device=0).result() for client in (pool, other)]
        assert [answer[1:] for answer in answers] == [[0, expected]] * 2
        after = pool.devices[0]
        assert (after.generation, after.pid) == (expected, answers[0][0])
        assert after.restarts == before.restarts + (how != "exception")


@pytest.mark.parametrize("fault", [Fail(), Exit(7), Kill(signal.SIGSEGV), Kill()], ids=repr)
@pytest.mark.parametrize("where", ["import", "setup"])
def test_a_start_that_fails_is_tried_again_and_callers_wait_for_it(
    running: Running, where: testing.Point, fault: testing.Fault
) -> None:
    """Only an actor that cannot be imported is not tried again, for that would not help: its callers get the error."""
    pool = running.pool
    before = wait_state(pool, DeviceState.READY)
    injected = testing.inject(pool, at=where, fault=fault, device=0)
    killed = pool.call("Probe.fail", "kill", device=0)
    assert type(killed.exception()) is errors.WorkerLost
    waiting = [pool.call("Probe.where", device=0) for _ in range(3)]
    if (where, fault) == ("import", Fail()):
        for reply in waiting:
            with pytest.raises(errors.DeviceUnavailable, match="on purpose") as caught:
                reply.result()
            assert not caught.value.maybe_executed
        stopped = wait_state(pool, DeviceState.STOPPED)
        assert stopped.error is not None
        assert type(stopped.error.error()) is errors.ActorLoadFailed
        pool.restart(0)
        wait_generation(pool, before.generation + 2)
        waiting = [pool.call("Probe.where", device=0)]
    answers = [reply.result() for reply in waiting]
    after = pool.devices[0]
    assert len(injected.fired) == 1
    assert answers == [[after.pid, 0, before.generation + 2]] * len(waiting)
    assert after.restarts == before.restarts + 2
    log = (pool.run_dir / "device-0.log").read_text()
    assert re.search(rf"generation {before.generation + 1}\b", log)
