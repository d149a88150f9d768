"""A remote client that dies in an upload, a supervisor that dies, a crowd of strangers: no other client is harmed."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections import Counter

import psutil
import pytest

from atomr_mp import errors
from atomr_mp.process.files.events import read_events
from atomr_mp.remote import keys
from tests import remote as served
from tests.support import ACTORS, DEADLINE_S, Ledger, settled, wait_generation

ACTOR = f"{ACTORS}/noting.py:Noting"
STRANGERS = 500
"""Connections of the test, as many as come in three seconds at 10,000 a minute."""

UPLOADS = """
import sys, numpy, atomr_mp
pool = atomr_mp.connect(sys.argv[1], keys=sys.argv[2])
content = numpy.ones(2**22)
while True:
    pool.call("Noting.same", content).result()
"""


def test_nothing_of_a_client_stays_that_is_killed_in_an_upload(ledger: Ledger) -> None:
    """The sent part of its arguments goes with its session, and others are served meanwhile."""
    found = served.serve(ledger, ACTOR, remote_grace_s=0.3)
    key = served.key_file(found.keys_dir, "alice")
    with found.pool, found.connect() as other:
        client = subprocess.Popen([sys.executable, "-c", UPLOADS, found.address, key])
        try:
            assert settled(lambda: any(each.kept_bytes for each in found.sessions), DEADLINE_S)
        finally:
            client.kill()
            client.wait()
        assert other.call("Noting.once", "1").result() == "1"
        assert settled(lambda: len(found.sessions) == 1, DEADLINE_S)
        assert found.sessions[0].kept_bytes < 2**20
        other.device().put(bytearray(2**22)).free()


def test_calls_end_by_their_deadlines_where_the_pool_has_vanished(ledger: Ledger) -> None:
    """No call waits for a killed supervisor beyond its deadline."""
    found = served.serve(ledger, ACTOR)
    with found.connect() as pool:
        pool.wait_ready()
        relay = psutil.Process(found.pid)
        os.kill(found.pool.supervisor_pid, signal.SIGKILL)
        psutil.wait_procs([relay], DEADLINE_S)
        assert not relay.is_running()
        with pytest.raises((errors.DeadlineExceeded, errors.PoolLost)):
            pool.call("Noting.once", "1", deadline_s=0.5).result()
    found.pool.close()
    ledger.start(ACTOR).close()  # the next start removes what a killed supervisor has left


def test_a_crowd_of_strangers_is_let_go(ledger: Ledger) -> None:
    """Each is refused, whatever it sends; who was there before is served, and no descriptor stays."""
    found = served.serve(ledger, ACTOR)
    host, _, port = found.address.removeprefix("tcp://").rpartition(":")
    with found.pool, found.connect() as pool:
        pool.wait_ready()
        assert pool.call("Noting.again", "before").result() == "before"  # the connection is there from now on
        relay = psutil.Process(found.pid)
        before = relay.num_fds()
        for number in range(STRANGERS):
            with socket.create_connection((host, int(port)), DEADLINE_S) as stranger:
                stranger.sendall(b"\xff\x00\x00\x00\x00\x00\x00\x00\x01\x7f" * (number % 7) + os.urandom(number))
            if number % 50 == 0:
                assert pool.call("Noting.again", str(number)).result() == str(number)
        assert settled(lambda: relay.num_fds() <= before)
        assert found.pid == relay.pid


def test_a_relay_without_descriptors_is_in_the_log(ledger: Ledger) -> None:
    """Those who are connected are served on."""
    found = served.serve(ledger, ACTOR)
    with found.pool, found.connect() as pool:
        assert pool.call("Noting.again", "before").result() == "before"
        relay = psutil.Process(found.pid)
        _, most = relay.rlimit(psutil.RLIMIT_NOFILE)
        relay.rlimit(psutil.RLIMIT_NOFILE, (relay.num_fds() + 1, most))
        assert settled(lambda: "relay_full" in _events(found), DEADLINE_S)
        assert pool.call("Noting.again", "after").result() == "after"
        assert found.pid == relay.pid


def test_a_suspect_runs_alone_and_is_refused_if_it_ends_a_second_worker(ledger: Ledger) -> None:
    """As for local clients; what ran beside it meanwhile is sent once."""
    found = served.serve(ledger, f"{ACTORS}/poisonous.py:Poisonous", max_suspicions=2, backoff_initial_s=0.01)
    poison = ["poison", "", "exit"]
    with found.pool, found.connect() as pool, ledger.gate("gate") as gate:
        assert isinstance(pool.call("Poisonous.once", poison).exception(), errors.WorkerLost)
        wait_generation(pool, 2)
        beside = pool.call("Poisonous.on_thread", ["beside", gate.path, ""])
        gate.wait()
        assert pool.call("Poisonous.once", ["innocent", "", ""]).result() == "innocent"
        again = pool.call("Poisonous.once", poison)
        assert settled(lambda: found.pool.status().devices[0].queue_depth == 2, DEADLINE_S)
        gate.open()
        assert beside.result() == "beside"
        ended = again.exception()
        assert isinstance(ended, errors.PoisonRequest)
        with pytest.raises(errors.PoisonRequest) as refused:
            pool.call("Poisonous.once", poison)
        assert (ended.ends, ended.maybe_executed, refused.value.maybe_executed) == (2, True, False)
        assert ended.fingerprint == refused.value.fingerprint
        assert Counter(ledger.runs()) == {"poison": 2, "beside": 1, "innocent": 1}


def test_the_relay_that_stands_by_takes_over(ledger: Ledger) -> None:
    """It is there when it is needed, and the next one stands by as soon as it listens."""
    found = served.serve(ledger, ACTOR)
    with found.pool, found.connect() as pool:
        pool.wait_ready()
        for number in range(2):
            next_pid = _standby_pid(found)
            os.kill(found.pid, signal.SIGKILL)
            assert pool.call("Noting.again", str(number)).result() == str(number)
            assert found.pid == next_pid
        before = found.pid
        os.kill(_standby_pid(found), signal.SIGKILL)
        assert pool.call("Noting.again", "2").result() == "2"
        assert settled(lambda: "relay_standby_end" in _events(found), DEADLINE_S)
        assert found.pid == before


def test_a_relay_that_stood_by_uses_the_keys_of_today(ledger: Ledger) -> None:
    """The keys of the server and the client were changed meanwhile."""
    found = served.serve(ledger, ACTOR)
    with found.pool:
        next_pid = _standby_pid(found)
        (found.keys_dir / keys.SERVER_FILE).unlink()
        served.key_file(found.keys_dir, "alice").unlink()
        (found.keys_dir / keys.ADMITTED_FILE).unlink()
        served.make_keys(found.keys_dir.parent)
        served.admit(found.keys_dir)
        os.kill(found.pid, signal.SIGKILL)
        assert settled(lambda: found.pid == next_pid, DEADLINE_S)
        with found.connect() as pool:
            assert pool.call("Noting.again", "1").result() == "1"


def _events(found: served.Served) -> list[object]:
    assert found.pool.run_dir is not None
    return [event["event"] for event in read_events(found.pool.run_dir / "events.jsonl")]


def _standby_pid(found: served.Served) -> int:
    """Wait for a relay that stands by."""

    def pid() -> int:
        remote = found.pool.status().remote
        assert remote is not None
        return remote.standby_pid

    assert settled(lambda: pid() > 0, DEADLINE_S)
    return pid()
