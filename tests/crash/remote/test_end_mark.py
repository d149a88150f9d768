"""Answers that travel while their worker's end is reported: they count, however late they come."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Final

import pytest

import atomr_mp
from tests import remote as served
from tests.crash.remote.test_remote_lost import runs
from tests.support import ACTORS, DEADLINE_S, Ledger, settled, wait_generation

ACTOR: Final = f"{ACTORS}/noting.py:Noting"
KILLS: Final = 3
CALLS: Final = 60
LATE_S: Final = 0.1
CHUNK: Final = 65536


def _carry(source: socket.socket, target: socket.socket, late_s: float) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(CHUNK):
            time.sleep(late_s)  # that is the network
            target.sendall(data)
    for end in (source, target):
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def late_but_for_the_first(address: str) -> Iterator[str]:
    """Give the address of a proxy, which delays each connection but the first: that is a session's."""
    host, _, port = address.removeprefix("tcp://").rpartition(":")
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        threads: list[threading.Thread] = []
        ends: list[socket.socket] = []

        def accept() -> None:
            late_s = 0.0
            with contextlib.suppress(OSError):
                while True:
                    near, _ = listener.accept()
                    far = socket.create_connection((host, int(port)))
                    ends.extend((near, far))
                    for one, other in ((near, far), (far, near)):
                        one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                        thread = threading.Thread(target=_carry, args=(one, other, late_s))
                        thread.start()
                        threads.append(thread)
                    late_s = LATE_S

        accepting = threading.Thread(target=accept)
        accepting.start()
        try:
            yield f"tcp://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            accepting.join()
            for end in ends:
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
            for thread in threads:
                thread.join()
            for end in ends:
                end.close()


@pytest.fixture
def carried(ledger: Ledger) -> Iterator[tuple[atomr_mp.Pool, atomr_mp.Pool]]:
    """A pool, and a client whose answers come later than the session's messages."""
    found = served.serve(ledger, ACTOR, backoff_initial_s=0.05, max_restarts=1000)
    with (
        found.pool,
        late_but_for_the_first(found.address) as address,
        found._replace(address=address).connect(max_replays=0) as pool,
    ):
        pool.wait_ready()
        yield found.pool, pool


def _kill_once_answered(pool: atomr_mp.Pool, ran: Callable[[], int], calls: int) -> None:
    """Kill the worker as soon as it has answered all calls. The answers are on their way."""
    assert settled(lambda: ran() == calls, DEADLINE_S)
    assert settled(lambda: pool.status().devices[0].queue_depth == 0, DEADLINE_S)
    device = pool.devices[0]
    os.kill(device.pid, signal.SIGKILL)
    wait_generation(pool, device.generation + 1)


def _call_from_threads(pool: atomr_mp.Pool, tags: list[str]) -> list[str]:
    replies = [pool.call("Noting.once", tag, deadline_s=DEADLINE_S) for tag in tags]
    return [reply.result() for reply in replies]


def _call_from_a_loop(pool: atomr_mp.Pool, tags: list[str]) -> list[str]:
    async def call() -> list[str]:
        return await asyncio.gather(*[pool.call("Noting.once", tag, deadline_s=DEADLINE_S) for tag in tags])

    return asyncio.run(call())


@pytest.mark.parametrize("call", [_call_from_threads, _call_from_a_loop])
def test_an_answer_that_was_given_is_never_reported_lost(
    ledger: Ledger, carried: tuple[atomr_mp.Pool, atomr_mp.Pool], call: Callable[[atomr_mp.Pool, list[str]], list[str]]
) -> None:
    """The worker is killed while its answers travel, and the supervisor's report is there before them."""
    local, pool = carried
    for kills in range(KILLS):
        killing = threading.Thread(
            target=_kill_once_answered, args=(local, lambda: len(runs(ledger)), (kills + 1) * CALLS)
        )
        killing.start()
        tags = [f"{kills}-{number}" for number in range(CALLS)]
        assert call(pool, tags) == tags
        killing.join()
    assert set(runs(ledger).values()) == {1}
