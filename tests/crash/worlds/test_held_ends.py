"""Readers that stop, die or are away hold up no planned end: calls of other sessions are answered.

A worker may drain, and a remote client be away, for longer than these tests last. So what is answered was not held up.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import pytest

import atomr_mp
from atomr_mp import cli, errors
from atomr_mp.process.files.events import read_events
from tests import remote as served
from tests.crash.remote.test_remote_lost import connect, through
from tests.support import ACTORS, DEADLINE_S, Ledger, settled, wait_generation
from tests.worlds import on_host, start

STREAMING: Final = f"{ACTORS}/streaming_worldly.py:Streaming"
STEPPING: Final = f"{ACTORS}/stepping_worldly.py:Stepping"
STREAMER: Final = f"{ACTORS}/streaming.py:Streamer"
RESUMER: Final = f"{ACTORS}/streaming.py:Resumer"
NEVER_S: Final = 20 * DEADLINE_S
"""Longer than any test."""

READER: Final = """
import atomr_mp, signal, sys
pool = atomr_mp.connect(sys.argv[1], keys=sys.argv[2]) if sys.argv[2:] else atomr_mp.connect(run_dir=sys.argv[1])
pool.wait_ready()
world = pool.world("tp")
world.wait_ready(30)
stream = world.stream("Streaming.slow", "left", 0.05, ahead=1000)
next(stream)
print("reads", flush=True)
signal.pause()
"""
"""Reads a stream that has room for long."""


def restart(pool: atomr_mp.Pool, way: str) -> threading.Thread:
    """Restart a device, or reload all, and wait until its world has begun to close."""
    world = pool.world("tp")
    epoch = world.epoch
    does = (lambda: pool.reload(NEVER_S)) if way == "reload" else (lambda: pool.restart(int(way[-1])))
    thread = threading.Thread(target=does)
    thread.start()
    assert settled(lambda: world.state != "ready" or world.epoch > epoch)
    return thread


def events(ledger: Ledger) -> list[dict[str, Any]]:
    """Return the events so far."""
    return list(read_events(ledger.run_dir() / "events.jsonl"))


@contextmanager
def reader(*where: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a client of its own that has a stream open."""
    with subprocess.Popen([sys.executable, "-c", READER, *where], stdout=subprocess.PIPE) as client:
        try:
            assert client.stdout is not None
            assert client.stdout.readline() == b"reads\n"
            yield client
        finally:
            client.kill()


@pytest.mark.parametrize(("way", "standby"), [("restart 0", "hot"), ("restart 1", "none"), ("reload", "hot")])
def test_a_reader_that_stops_holds_up_no_planned_end(ledger: Ledger, way: str, standby: str) -> None:
    """Its stream ends on all ranks at one place, with an error that says why; the epoch ends as planned."""
    with start(ledger, STREAMING, 2, standby=standby, drain_timeout_s=NEVER_S) as pool:
        stopped = pool.world("tp").stream("Streaming.count", "stopped", 100, ahead=2)
        assert next(stopped) == 0.0
        with atomr_mp.connect(run_dir=pool.run_dir) as other:
            ending = restart(pool, way)
            world = other.world("tp")
            assert world.call("Streaming.note", "other", deadline_s=DEADLINE_S).result() == 3.0
            with pytest.raises(errors.CollectiveAborted, match="its reader has taken nothing for 2 s") as raised:
                list(stopped)
            assert raised.value.maybe_executed
            assert raised.value.parts >= 1
            ending.join(DEADLINE_S)
            assert not ending.is_alive()
        assert "world_broken" not in [event["event"] for event in events(ledger)]


def test_a_reader_that_stops_holds_up_no_planned_end_of_a_method_with_steps(ledger: Ledger) -> None:
    """Others that share its steps are read to their ends."""
    with start(ledger, STEPPING, 2, standby="hot", drain_timeout_s=NEVER_S) as pool:
        world = pool.world("tp")
        stopped = world.stream("Stepping.count", {"name": "stopped", "upto": 1000}, ahead=2)
        read = world.stream("Stepping.count", {"name": "read", "upto": 1000}, ahead=2)
        first = [next(stopped), next(read)]
        restart(pool, "restart 1")
        assert [first[1], *read] == [3 * number for number in range(1000)]
        assert list(world.stream("Stepping.go_on", {"name": "next", "upto": 2})) == [0, 3]
        with pytest.raises(errors.CollectiveAborted, match="its reader has taken nothing for 2 s"):
            list(stopped)
        assert "world_broken" not in [event["event"] for event in events(ledger)]


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_local_client_that_is_killed_or_stopped_holds_up_no_planned_end(ledger: Ledger, how: int) -> None:
    """A killed one ends its streams; a stopped one takes nothing once it has all for which it has given credit."""
    with start(ledger, STREAMING, 2, standby="hot", drain_timeout_s=NEVER_S) as pool:
        program = READER.replace("ahead=1000", "ahead=4")
        client = subprocess.Popen([sys.executable, "-c", program, str(pool.run_dir)], stdout=subprocess.PIPE)
        with client:
            assert client.stdout is not None
            assert client.stdout.readline() == b"reads\n"
            client.send_signal(how)
            restart(pool, "restart 1")
            assert pool.world("tp").call("Streaming.note", "other", deadline_s=DEADLINE_S).result() == 3.0
            client.kill()
        assert "world_broken" not in [event["event"] for event in events(ledger)]


@on_host
@pytest.mark.parametrize("dies", ["before", "meanwhile"])
def test_a_remote_client_that_is_killed_holds_up_no_planned_end(ledger: Ledger, dies: str) -> None:
    """Though its session is kept, and its streams have room."""
    worlds = {"tp": {"devices": [0, 1], "actors": ["Streaming"]}}
    settings: dict[str, Any] = {"drain_timeout_s": NEVER_S, "remote_grace_s": NEVER_S, "standby": "hot"}
    found = served.serve(ledger, STREAMING, gpus=2, worlds=worlds, **settings)
    with found.pool as pool:
        pool.world("tp").wait_ready(DEADLINE_S)
        with reader(found.address, str(served.key_file(found.keys_dir, "alice"))) as client:
            if dies == "before":
                client.kill()
            restart(pool, "restart 1")
            client.kill()
            assert pool.world("tp").call("Streaming.note", "other", deadline_s=DEADLINE_S).result() == 3.0
            assert len(found.sessions) == 1, "the session waits for its client"
        assert "world_broken" not in [event["event"] for event in events(ledger)]


@on_host
def test_a_remote_client_that_was_away_hears_what_became_of_its_streams(ledger: Ledger) -> None:
    """Those that can go on elsewhere have lost nothing; others end with an error."""
    worlds = {"tp": {"devices": [0, 1], "actors": ["Streaming"]}}
    settings: dict[str, Any] = {"drain_timeout_s": NEVER_S, "remote_grace_s": NEVER_S, "standby": "hot"}
    found = served.serve(ledger, STREAMING, gpus=2, worlds=worlds, **settings)
    with found.pool as pool, through(found) as proxy, connect(found, proxy) as remote:
        world = remote.world("tp")
        world.wait_ready(DEADLINE_S)
        moving, staying = (
            world.stream("Streaming.numbers", 50),
            world.stream("Streaming.slow", "left", 0.05, ahead=1000),
        )
        begun = [next(moving), next(staying)]
        proxy.stalled = {"up", "down"}
        proxy.cut()
        assert settled(lambda: [each.connected for each in found.sessions] == [False], DEADLINE_S)
        restart(pool, "restart 1")
        assert pool.world("tp").call("Streaming.note", "other", deadline_s=DEADLINE_S).result() == 3.0
        proxy.heal()
        assert [begun[0], *moving] == [3.0 * number for number in range(50)]
        with pytest.raises(errors.CollectiveAborted, match="its client is away"):
            list(staying)
        assert remote.lost is None


def test_status_names_who_holds_up_a_planned_end(ledger: Ledger) -> None:
    """The method, the client and the time; and so does an event."""
    with (
        start(ledger, STREAMING, 2, standby="hot", drain_timeout_s=NEVER_S) as pool,
        atomr_mp.connect(run_dir=pool.run_dir) as other,
    ):
        world = pool.world("tp")
        stream = other.world("tp").stream("Streaming.slow", "read", 0.01)
        next(stream)
        done = threading.Event()

        def read() -> None:
            with contextlib.suppress(errors.Cancelled):
                for _ in stream:
                    if done.is_set():
                        stream.close()

        thread = threading.Thread(target=read)
        thread.start()
        restart(pool, "restart 0")
        held = "s for Streaming.slow of client "

        def waits() -> str:
            return next(each.waits for each in pool.status().worlds if each.name == "tp")

        assert settled(lambda: held in waits())
        assert f"(pid {os.getpid()})" in waits()
        assert settled(lambda: any(event["event"] == "world_held" for event in events(ledger)))
        event = next(event for event in events(ledger) if event["event"] == "world_held")
        assert (event["world"], event["epoch"], event["method"]) == ("tp", 1, "Streaming.slow")
        done.set()
        thread.join(DEADLINE_S)
        world.wait_ready(DEADLINE_S)
        assert settled(lambda: waits() == "")


@pytest.mark.parametrize("order", ["restart", "reload"])
def test_an_order_says_which_stopped_process_holds_the_world(
    ledger: Ledger, order: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The device is ready, by its standby. The command and an event name the process."""
    with start(ledger, STREAMING, 2, begin_timeout_s=NEVER_S, standby="hot", drain_timeout_s=NEVER_S) as pool:
        assert settled(lambda: all(each.standby is not None for each in pool.devices))
        pid = pool.devices[1].pid or 0
        os.kill(pid, signal.SIGSTOP)
        try:
            device = ["1"] if order == "restart" else []
            assert cli.main([order, *device, "--run-dir", str(pool.run_dir)]) == 0
            told = capsys.readouterr().out
            assert "world tp (Streaming on devices 0 and 1) is closing, epoch 1: " in told
            assert f"rank 1 (device 1 generation 1): pid {pid} is stopped by a signal (SIGSTOP)" in told
            assert f"`kill -CONT {pid}`" in told
            assert settled(lambda: any(each["event"] == "world_held" for each in events(ledger)))
            event = next(each for each in events(ledger) if each["event"] == "world_held")
            assert (event["world"], event["epoch"], event["rank"]) == ("tp", 1, 1)
            assert f"pid {pid}" in str(event["text"])
        finally:
            os.kill(pid, signal.SIGCONT)
        pool.world("tp").wait_ready(DEADLINE_S)
        assert cli.main(["restart", "0", "--run-dir", str(pool.run_dir)]) == 0
        assert "world" not in capsys.readouterr().out


def test_a_reader_that_stops_holds_up_no_restart_without_a_standby(ledger: Ledger) -> None:
    """Of a device in no world."""
    with ledger.start(STREAMER, standby="none", drain_timeout_s=NEVER_S) as pool:
        stopped = pool.stream("Streamer.count", 1000, ahead=2)
        assert next(stopped) == 0
        with atomr_mp.connect(run_dir=pool.run_dir) as other:
            pool.restart(0)
            wait_generation(pool, 2)
            assert list(other.stream("Streamer.count", 3, deadline_s=DEADLINE_S)) == [0, 1, 2]
        with pytest.raises(errors.DeadlineExceeded, match="its reader has taken nothing for 2 s"):
            list(stopped)


RESUMING: Final = """
import atomr_mp, sys
pool = atomr_mp.connect(run_dir=sys.argv[1])
stream = pool.stream("Resumer.count", 1000, -1, "", ahead=4)
first = next(stream)
print("reads", flush=True)
sys.stdin.readline()
print([first, *stream] == list(range(1000)), flush=True)
"""
"""Reads a part, and on an order the others."""


def test_a_resumable_stream_of_a_client_that_is_stopped_goes_on_behind_a_restart(ledger: Ledger) -> None:
    """The worker ends it without an answer, so its client takes it to the next one."""
    with ledger.start(RESUMER, standby="none", drain_timeout_s=NEVER_S) as pool:
        command = [sys.executable, "-c", RESUMING, str(pool.run_dir)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as client:
            assert client.stdin is not None
            assert client.stdout is not None
            assert client.stdout.readline() == b"reads\n"
            client.send_signal(signal.SIGSTOP)
            pool.restart(0)
            wait_generation(pool, 2)
            assert list(pool.stream("Resumer.count", 3, -1, "", deadline_s=DEADLINE_S)) == [0, 1, 2]
            client.send_signal(signal.SIGCONT)
            client.stdin.write(b"\n")
            client.stdin.flush()
            assert client.stdout.readline() == b"True\n"


@pytest.mark.parametrize("way", ["restart", "reload"])
def test_a_reader_that_stops_holds_up_no_stop_behind_a_standby_that_has_taken_over(ledger: Ledger, way: str) -> None:
    """Nothing waits for the process that it holds before the pool stops, and then that process hears of it."""
    with (
        ledger.start(STREAMER, standby="hot", drain_timeout_s=NEVER_S) as pool,
        atomr_mp.connect(run_dir=pool.run_dir) as other,
    ):
        assert settled(lambda: pool.devices[0].standby is not None)
        stopped = other.stream("Streamer.count", 1000, ahead=2)
        assert next(stopped) == 0
        pool.restart(0) if way == "restart" else pool.reload(DEADLINE_S)
        assert settled(lambda: pool.devices[0].generation > 1 and pool.devices[0].admitted)
        stopping = threading.Thread(target=pool.close)
        stopping.start()
        stopping.join(DEADLINE_S)
        assert not stopping.is_alive()
        with pytest.raises((errors.DeadlineExceeded, errors.PoolLost)):
            list(stopped)


STALL_S: Final = 1.0


@pytest.mark.parametrize("planned", [False, True])
def test_a_reader_that_reads_at_once_is_not_blamed_for_a_pause_of_its_worker(ledger: Ledger, *, planned: bool) -> None:
    """Neither by `stall_s` nor by a planned end: its grants lie in the worker's socket meanwhile."""
    stall_s = NEVER_S if planned else STALL_S
    with ledger.start(STREAMER, standby="none", drain_timeout_s=NEVER_S, stall_s=stall_s) as pool:
        stream = pool.stream("Streamer.count", 20_000, ahead=1)
        assert next(stream) == 0
        worker = pool.devices[0].pid
        assert worker is not None
        if planned:
            pool.restart(0)
        half = threading.Event()
        found: list[Any] = []

        def read() -> None:
            try:
                for part in stream:
                    found.append(part)
                    if len(found) == 200:
                        half.set()
            except errors.AtomrError as error:
                found.append(error)
            half.set()

        reader = threading.Thread(target=read)
        reader.start()
        assert half.wait(DEADLINE_S)
        os.kill(worker, signal.SIGSTOP)
        time.sleep(3 * STALL_S)  # the pause itself
        os.kill(worker, signal.SIGCONT)
        reader.join(DEADLINE_S)
        assert not reader.is_alive()
        assert found == list(range(1, 20_000))


def test_a_reader_that_stops_holds_up_no_stop_of_the_pool(ledger: Ledger) -> None:
    """Nor does one in a world."""
    with (
        start(ledger, STREAMING, 2, standby="hot", drain_timeout_s=NEVER_S) as pool,
        atomr_mp.connect(run_dir=pool.run_dir) as other,
    ):
        stopped = other.world("tp").stream("Streaming.count", "stopped", 100, ahead=2)
        assert next(stopped) == 0.0
        stopping = threading.Thread(target=pool.close)
        stopping.start()
        stopping.join(DEADLINE_S)
        assert not stopping.is_alive()
        with pytest.raises((errors.CollectiveAborted, errors.PoolLost)):
            list(stopped)
