"""A client that was away for too long hears why its session is over, and the event log says the same."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from atomr_mp import errors
from atomr_mp.process.files.events import read_events
from atomr_mp.remote import keys
from tests import remote as served
from tests.support import DEADLINE_S, PROBE, Ledger, settled
from tests.tcp_proxy import Proxy

GRACE_S = 1.0
AWAY = "the client was away for more than 1 s (`remote_grace_s`), so the relay has ended the session"


def ends(found: served.Served) -> list[str]:
    """Return the texts of the ends of remote sessions."""
    events = read_events(Path(found.pool.run_dir) / "events.jsonl")
    return [str(event["text"]) for event in events if event["event"] == "remote_end"]


def refused(found: served.Served) -> int:
    """Return how much the pool's relays have refused."""
    remote = found.pool.status().remote
    assert remote is not None
    return remote.refused


def through(found: served.Served) -> Proxy:
    """Return a proxy before a relay."""
    host, _, port = found.address.removeprefix("tcp://").rpartition(":")
    return Proxy(host, int(port))


CALLS = """
import sys, atomr_mp
with atomr_mp.connect(sys.argv[1], keys=sys.argv[2]) as pool:
    pool.wait_ready()
    print("ready", flush=True)
    try:
        while True:
            pool.call("Probe.echo", 1).result()
    except atomr_mp.errors.SessionLost as error:
        print(error.message, flush=True)
"""


@contextlib.contextmanager
def stopped_client(found: served.Served, proxy: Proxy) -> Iterator[subprocess.Popen[bytes]]:
    """Run a client that calls until its session is lost, and then says why. Stop it once the relay knows it."""
    with served.client_process(found._replace(address=proxy.address), CALLS, "ready") as client:
        assert settled(lambda: len(found.sessions) == 1, DEADLINE_S)
        client.send_signal(signal.SIGSTOP)
        yield client


def last_words(client: subprocess.Popen[bytes]) -> str:
    """Have a stopped client go on; return why its session has ended."""
    client.send_signal(signal.SIGCONT)
    assert client.stdout is not None
    return client.stdout.readline().decode().strip()


@pytest.mark.parametrize("cuts", [False, True])
def test_a_client_that_comes_back_too_late_hears_what_the_log_says(ledger: Ledger, *, cuts: bool) -> None:
    """Whether its connection has ended meanwhile or not: the supervisor, which lives, is not called dead."""
    found = served.serve(ledger, PROBE, remote_grace_s=GRACE_S)
    with found.pool, through(found) as proxy, stopped_client(found, proxy) as client:
        if cuts:
            proxy.cut()
        assert settled(lambda: bool(ends(found)), DEADLINE_S)
        assert last_words(client) == AWAY
        assert client.wait(DEADLINE_S) == 0
        assert all(text.endswith(f"has ended: {AWAY}") for text in ends(found))
        assert refused(found) == 0


def test_a_session_that_the_supervisor_has_ended_is_told_as_that(ledger: Ledger) -> None:
    """Its relay has ended meanwhile, so the supervisor has kept the session, and then has not."""
    found = served.serve(ledger, PROBE, remote_grace_s=GRACE_S)
    with found.pool, through(found) as proxy, stopped_client(found, proxy) as client:
        before = found.pool.status().sessions
        os.kill(found.pid, signal.SIGKILL)
        served.listening(found.pool)
        assert settled(lambda: found.pool.status().sessions < before, DEADLINE_S)
        why = last_words(client)
        assert why.startswith("the pool has ended this session")
        assert settled(lambda: bool(ends(found)), DEADLINE_S)
        assert ends(found)[0].endswith(f"the supervisor has ended it: {why}")


def test_what_an_honest_client_could_not_know_is_no_refusal_and_refusals_outlive_the_relay(ledger: Ledger) -> None:
    """Lanes to workers that have ended, and what follows on them, break no rule; a stranger's key does."""
    found = served.serve(ledger, PROBE, gpus=2)
    with found.pool, found.connect() as client:
        client.wait_ready()
        for number in range(4):
            os.kill(found.pool.devices[number % 2].pid, signal.SIGKILL)
            for reply in [client.call("Probe.echo", each, deadline_s=DEADLINE_S) for each in range(20)]:
                with contextlib.suppress(errors.WorkerLost, errors.ConnectionLost):
                    reply.result()
            client.wait_ready()
        assert refused(found) == 0
        with pytest.raises(errors.NotAuthorized):
            _stranger(found)
        assert settled(lambda: refused(found) > 0, DEADLINE_S)
        before = refused(found)
        os.kill(found.pid, signal.SIGKILL)
        served.listening(found.pool)
        assert refused(found) >= before


def _stranger(found: served.Served) -> None:
    """Connect with a key that the pool does not admit."""
    pair = keys.new_pair()
    server = keys.read_server(found.keys_dir).public
    path = served.key_file(found.keys_dir, "mallory")
    keys.write_new(path, keys.ClientKeys(name="mallory", public=pair.public, secret=pair.secret, server=server))
    found.connect("mallory")
