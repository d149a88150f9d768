"""Remote clients through cuts and kills: each call has one outcome and at most one run, and nothing is left."""

from __future__ import annotations

import collections
import contextlib
import itertools
import os
import random
import signal
import subprocess
import sys
import time
from typing import Final

import numpy as np
import pytest

import atomr_mp
from atomr_mp import errors
from atomr_mp.client.reply import Reply
from tests import remote as served
from tests.support import ACTORS, DEADLINE_S, Ledger, settled, standby_of
from tests.tcp_proxy import Proxy, faults

ACTOR = f"{ACTORS}/noting.py:Noting"
ROUNDS = int(os.environ.get("ATOMR_MP_TEST_ROUNDS", "12"))
"""Rounds of the test under random faults; hours by a larger number."""


def runs(ledger: Ledger, file: str = "runs") -> collections.Counter[str]:
    """Return how often each call has run."""
    path = ledger.path / file
    return collections.Counter(path.read_text(encoding="utf-8").split()) if path.exists() else collections.Counter()


def through(found: served.Served) -> Proxy:
    """Return a proxy before a relay."""
    host, _, port = found.address.removeprefix("tcp://").rpartition(":")
    return Proxy(host, int(port))


def connect(found: served.Served, proxy: Proxy) -> atomr_mp.Pool:
    """Connect through a proxy."""
    return found._replace(address=proxy.address).connect()


def test_faults_of_the_network_are_not_noticed(ledger: Ledger) -> None:
    """Delays, drops, cuts at any byte, half-closes, flipped bits, stalls: one run and one answer for each call."""
    rng = random.Random(7)
    found = served.serve(ledger, ACTOR)
    with found.pool, through(found) as proxy, connect(found, proxy) as pool:
        pool.wait_ready()
        number = 0
        for _ in range(ROUNDS):
            replies = {}
            fault = rng.choice(faults(proxy, rng))
            for step in range(40):
                replies[number] = pool.call("Noting.once", str(number), deadline_s=DEADLINE_S)
                number += 1
                if step == 20:
                    fault()
            time.sleep(0.1 if rng.random() < 0.7 else 1.8)  # the fault; 1.8 s ends a silent connection
            proxy.heal()
            for tag, reply in replies.items():
                assert reply.result() == str(tag)
        assert runs(ledger) == {str(tag): 1 for tag in range(number)}
        remote = found.pool.status().remote
        assert remote is not None
        assert remote.restarts == 0
        assert settled(lambda: [each.kept_bytes < 2**20 for each in found.sessions] == [True], DEADLINE_S)


CALLS: Final = """
import sys, atomr_mp
with atomr_mp.connect(sys.argv[1], keys=sys.argv[2]) as pool:
    pool.wait_ready()
    print("ready", flush=True)
    for line in sys.stdin:
        print(pool.call("Noting.same", line.strip(), deadline_s=30).result(), flush=True)
"""


def test_bytes_that_somebody_has_changed_end_no_process(ledger: Ledger) -> None:
    """Not the application's, nor the relay's: in a message or in a handshake, and then the connection is cut."""
    found = served.serve(ledger, ACTOR)
    with found.pool, through(found) as proxy, contextlib.ExitStack() as stack:
        key = served.key_file(found.keys_dir, "alice")
        client = stack.enter_context(
            subprocess.Popen(
                [sys.executable, "-c", CALLS, proxy.address, key], stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
        )
        stack.callback(client.kill)
        assert client.stdin is not None
        assert client.stdout is not None
        relay = found.pid
        assert client.stdout.readline() == b"ready\n"
        for number, (direction, of_a_message) in enumerate(itertools.product(("down", "up"), (True, False))):
            proxy.flip = {direction}
            if of_a_message:
                client.stdin.write(b"%d\n" % number)
                client.stdin.flush()
                assert settled(lambda: not proxy.flip, DEADLINE_S)
            proxy.cut()
            if not of_a_message:
                assert settled(lambda: not proxy.flip, DEADLINE_S)
                client.stdin.write(b"%d\n" % number)
                client.stdin.flush()
            assert client.stdout.readline() == b"%d\n" % number
        client.stdin.close()
        assert client.wait(DEADLINE_S) == 0
        assert found.pid == relay


def test_cuts_in_quick_succession_cost_no_session(ledger: Ledger) -> None:
    """A connection may have ended, and the next one be there, before client or relay have looked at the first."""
    rng = random.Random(7)
    found = served.serve(ledger, ACTOR)
    with found.pool, through(found) as proxy, connect(found, proxy) as pool:
        pool.wait_ready()
        for number in range(60):
            if number % 20 == 1:  # the next one takes the session over, while connections are cut
                served.listening(found.pool)
                os.kill(found.pid, signal.SIGKILL)
            proxy.flip = {"up"} if number % 3 == 0 else set()
            proxy.cut()
            time.sleep(rng.choice([0, 0.0005, 0.002, 0.02, 0.03]))  # cuts come at any time
            if number % 3 == 2:
                assert pool.call("Noting.same", number, deadline_s=DEADLINE_S).result() == number


def test_calls_go_on_while_their_client_is_away(ledger: Ledger) -> None:
    """Their answers are there when it is back."""
    found = served.serve(ledger, ACTOR)
    with found.pool, through(found) as proxy, connect(found, proxy) as pool, ledger.gate("held") as gate:
        pool.wait_ready()
        ref = pool.device().put(np.ones(3))
        held = pool.call("Noting.hold", gate.path, "held")
        gate.wait()
        behind = pool.call("Noting.once", "behind")
        with pytest.raises(TimeoutError):  # so that it is sent
            behind.result(timeout_s=0.01)
        proxy.stalled = {"up", "down"}
        gate.open()
        assert settled(lambda: runs(ledger)["behind"] == 1, DEADLINE_S)
        proxy.heal()
        assert (held.result(), behind.result()) == ("held", "behind")
        assert ref.numpy().sum() == 3
    assert runs(ledger) == {"held": 1, "behind": 1}


def test_a_client_that_is_away_for_too_long_is_told_what_may_have_run(ledger: Ledger) -> None:
    """Once it is back; its session and its refs are gone after the grace time."""
    found = served.serve(ledger, ACTOR, remote_grace_s=1.0)
    with found.pool, through(found) as proxy, connect(found, proxy) as pool, ledger.gate("held") as gate:
        pool.wait_ready()
        ref = pool.device().put(np.ones(3))
        late = pool.call("Noting.hold", gate.path, "late")
        gate.wait()
        assert settled(lambda: len(found.sessions) == 1, DEADLINE_S)
        proxy.stalled = {"up", "down"}
        assert settled(lambda: not found.sessions, DEADLINE_S)
        proxy.heal()
        proxy.cut()
        with pytest.raises(errors.SessionLost) as lost:
            late.result()
        assert lost.value.maybe_executed
        with pytest.raises(errors.SessionLost):
            pool.call("Noting.once", "never")
        with pytest.raises(errors.PoolLost):
            ref.numpy()
    assert runs(ledger) == {"late": 1}


def test_a_killed_relay_costs_what_had_started(ledger: Ledger) -> None:
    """Idempotent calls are sent again, and so is what the worker has not received; others end. Refs stay good."""
    found = served.serve(ledger, ACTOR)
    with found.pool, through(found) as proxy, connect(found, proxy) as pool:
        pool.wait_ready()
        ref = pool.device().put(np.ones(3))
        assert pool.call("Noting.once", "before").result() == "before"
        with ledger.gate("held") as gate:
            started = pool.call("Noting.hold", gate.path, "started")
            gate.wait()
            queued = [pool.call("Noting.once", f"queued-{number}") for number in range(20)]
            again = pool.call("Noting.again", "again")
            with pytest.raises(TimeoutError):  # so that they are sent
                again.result(timeout_s=0.01)
            os.kill(found.pid, signal.SIGKILL)
            served.listening(found.pool)
            gate.open()  # it cannot say what has started before its loop turns
            with pytest.raises(errors.ConnectionLost) as lost:
                started.result()
            assert lost.value.maybe_executed
            assert "its worker lives; the pool's relay, which carried the connection, has lost it" in str(lost.value)
            for number, reply in enumerate(queued):
                error = reply.exception()  # the worker may have received it before the relay's end
                assert reply.result() == f"queued-{number}" if error is None else type(error) is errors.ConnectionLost
            assert again.result() == "again"
        assert ref.numpy().sum() == 3
        remote = found.pool.status().remote
        assert remote is not None
        assert remote.restarts == 1
    counted = runs(ledger)
    assert all(count == 1 for tag, count in counted.items() if tag != "again"), counted
    assert {"before", "started", "again"} <= set(counted)


def test_relays_are_killed_again_and_again(ledger: Ledger) -> None:
    """Under calls from a thread: no idempotent one fails, none of the others runs twice, each has one outcome."""
    found = served.serve(ledger, ACTOR, gpus=2)
    outcomes: collections.Counter[str] = collections.Counter()
    wrong: list[str] = []

    def settle(tag: str, reply: Reply) -> None:
        error = reply.exception()
        outcomes[type(error).__name__ if error else "answered"] += 1
        if error is None and reply.result() != tag:
            wrong.append(tag)
        if error is not None and not (isinstance(error, errors.ConnectionLost) and tag.startswith("once")):
            wrong.append(f"{tag}: {error!r}")
        if error is not None and not getattr(error, "maybe_executed", True):
            wrong.append(f"{tag} was sent nowhere")

    with found.pool, found.connect() as pool:
        pool.wait_ready()
        flying: collections.deque[tuple[str, Reply]] = collections.deque()
        for number in range(1500):
            kind = "again" if number % 2 else "once"
            tag = f"{kind}-{number}"
            flying.append((tag, pool.call(f"Noting.{kind}", tag, deadline_s=DEADLINE_S)))
            if number in {300, 700, 1100}:
                os.kill(found.pid, signal.SIGKILL)
                served.listening(found.pool)
            while len(flying) > 32:
                settle(*flying.popleft())
        while flying:
            settle(*flying.popleft())
    assert not wrong, wrong[:5]
    counted = runs(ledger)
    twice = {tag for tag, count in counted.items() if count > 1 and tag.startswith("once")}
    assert not twice
    assert sum(outcomes.values()) == 1500


def test_a_worker_s_end_is_reported_through_the_relay(ledger: Ledger) -> None:
    """As for local clients: running calls get an error, unstarted ones are sent to the next worker."""
    found = served.serve(ledger, ACTOR)
    with found.pool, found.connect() as pool:
        pool.wait_ready()
        ref = pool.device().put(np.ones(3))
        with ledger.gate("held") as gate:
            held = pool.call("Noting.hold", gate.path, "held")
            again = pool.call("Noting.again", "again")
            (pid,) = gate.wait()
            os.kill(pid, signal.SIGKILL)
            with pytest.raises(errors.WorkerLost):
                held.result()
            assert again.result() == "again"
        with pytest.raises(errors.GpuRefStale):
            ref.numpy()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_nothing_of_a_dead_client_stays(ledger: Ledger, how: signal.Signals) -> None:
    """Its refs and calls go with its session, when its grace is over."""
    found = served.serve(ledger, ACTOR, remote_grace_s=0.5)
    code = (
        "import sys, signal, numpy, atomr_mp\n"
        "pool = atomr_mp.connect(sys.argv[1], keys=sys.argv[2])\n"
        "pool.wait_ready()\n"
        "ref = pool.device().put(numpy.ones(100))\n"
        "print('ready', flush=True)\n"
        "signal.pause()\n"
    )
    with found.pool, served.client_process(found, code, "ready") as client:
        assert settled(lambda: found.pool.status().devices[0].leases == 1, DEADLINE_S)
        assert settled(lambda: len(found.sessions) == 1, DEADLINE_S)
        client.send_signal(how)
        assert settled(lambda: not found.sessions, DEADLINE_S)
        assert settled(lambda: found.pool.status().devices[0].leases == 0, DEADLINE_S)


def test_a_pool_that_stops_says_so(ledger: Ledger) -> None:
    """The client hears of it at once, and not after some deadline."""
    found = served.serve(ledger, ACTOR)
    with found.connect() as pool:
        pool.wait_ready()
        found.pool.close()
        with pytest.raises(errors.PoolLost, match="stopped"):
            pool._client.wait_until(lambda: False, DEADLINE_S)


@pytest.mark.parametrize("standby", [True, False])
def test_a_pool_that_stops_just_after_its_relay_has_died_says_so(ledger: Ledger, *, standby: bool) -> None:
    """The next relay waits for the clients that are about to come back, even one that has not listened yet."""
    found = served.serve(ledger, ACTOR)
    with found.pool, found.connect() as pool:
        pool.wait_ready()
        remote = found.pool.status().remote
        assert remote is not None
        for pid in [remote.pid] if standby else [remote.standby_pid, remote.pid]:
            os.kill(pid, signal.SIGKILL)
        found.pool.close()
        assert settled(lambda: pool.lost is not None, DEADLINE_S)
        assert type(pool.lost) is errors.PoolLost
        assert "stopped" in str(pool.lost)


def test_a_worker_that_is_stopped_keeps_deadlines_and_goes_on(ledger: Ledger) -> None:
    """Calls meanwhile end by their deadline, which both ends know; calls resume with the worker."""
    found = served.serve(ledger, ACTOR)
    with found.pool, found.connect() as pool:
        pool.wait_ready()
        pid = found.pool.devices[0].pid
        os.kill(pid, signal.SIGSTOP)
        try:
            late = pool.call("Noting.once", "late", deadline_s=0.3)
            patient = pool.call("Noting.again", "patient", deadline_s=DEADLINE_S)
            with pytest.raises(errors.DeadlineExceeded):
                late.result()
        finally:
            os.kill(pid, signal.SIGCONT)
        assert patient.result() == "patient"
        assert found.pool.devices[0].pid == pid


def test_a_standby_s_end_and_a_stopped_supervisor_are_not_noticed(ledger: Ledger) -> None:
    """Calls go from the relay to the worker, and need neither."""
    found = served.serve(ledger, ACTOR, standby="warm")
    with found.pool, found.connect() as pool:
        pool.wait_ready()

        def standby() -> int:
            behind = standby_of(found.pool)
            return (behind.state == "ready" and behind.pid) or 0

        assert settled(lambda: standby() > 0, DEADLINE_S)
        supervisor = found.pool.supervisor_pid
        os.kill(standby(), signal.SIGKILL)
        os.kill(supervisor, signal.SIGSTOP)
        try:
            assert [pool.call("Noting.again", str(number)).result() for number in range(50)] == [
                str(number) for number in range(50)
            ]
        finally:
            os.kill(supervisor, signal.SIGCONT)
        assert settled(lambda: standby() > 0, DEADLINE_S)
        assert pool.call("Noting.once", "1").result() == "1"


def test_a_relay_that_hangs_is_replaced(ledger: Ledger) -> None:
    """Its loop reports that it turns; if it does not, the next relay takes over."""
    found = served.serve(ledger, ACTOR)
    with found.pool, found.connect() as pool:
        assert pool.call("Noting.once", "1").result() == "1"
        pid = found.pid
        os.kill(pid, signal.SIGSTOP)
        assert pool.call("Noting.again", "2", deadline_s=DEADLINE_S).result() == "2"
        assert found.pid != pid


def test_large_values_survive_cuts_and_a_killed_relay(ledger: Ledger) -> None:
    """Uploads and downloads continue, or begin again; none is torn, and no room stays taken."""
    found = served.serve(ledger, ACTOR)
    content = np.arange(600_000, dtype="float64")
    with found.pool, through(found) as proxy, connect(found, proxy) as pool:
        pool.wait_ready()
        ref = pool.device().put(content)
        for fault in (proxy.cut, lambda: setattr(proxy, "cut_after", 1_000_000), proxy.cut):
            echoed = [pool.call("Noting.same", content + number, deadline_s=2 * DEADLINE_S) for number in range(3)]
            fault()
            for number, reply in enumerate(echoed):
                np.testing.assert_array_equal(reply.result(), content + number)
        np.testing.assert_array_equal(ref.numpy(), content)
        echoed = [pool.call("Noting.same", content + number, deadline_s=2 * DEADLINE_S) for number in range(3)]
        os.kill(found.pid, signal.SIGKILL)
        for number, reply in enumerate(echoed):
            np.testing.assert_array_equal(reply.result(), content + number)
        assert settled(lambda: [each.kept_bytes < content.nbytes for each in found.sessions] == [True], DEADLINE_S)
