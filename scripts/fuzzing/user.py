"""A user of a pool that does as it likes. Arguments: the run directory, and what to do, by `ACTIONS`' names.

Whatever it does, it may only meet the package's own errors, and those that Python itself has for misuse of a loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np

import atomr_mp
from atomr_mp import errors

LARGE: Final = np.ones(100_000)

ACTOR: Final = f"{Path(__file__).with_name('annotated.py')}:Annotated_"

SOON_S: Final = 40.0
"""How long a pool may take to start, and whatever else must happen some time."""

Pool = atomr_mp.Pool


def main() -> int:
    """Do one thing after another, in two clients that are open at the same time."""
    _, run_dir, *names = sys.argv
    with atomr_mp.connect(run_dir=run_dir) as pool, atomr_mp.connect(run_dir=run_dir) as other:
        for at, name in enumerate(names):
            with contextlib.suppress(errors.AtomrError):
                ACTIONS[name](other if at % 3 == 2 else pool)
    return 0


def call(pool: Pool) -> None:
    """Call as soon as possible after connecting."""
    assert pool.call("Annotated_.echo", 7).result() == 7


def call_large(pool: Pool) -> None:
    """Send a large array, and get it back."""
    np.testing.assert_array_equal(pool.call("Annotated_.echo", LARGE).result(), LARGE)


def forget(pool: Pool) -> None:
    """Call, and forget the replies."""
    for value in (1, LARGE, "x"):
        pool.call("Annotated_.echo", value)


def poll(pool: Pool) -> None:
    """Look whether an answer has come, now and then, for a moment."""
    reply, until_s = pool.call("Annotated_.echo", 1), time.monotonic() + 0.05
    while not reply.done and time.monotonic() < until_s:
        time.sleep(0.001)


def cancel(pool: Pool) -> None:
    """Cancel what was just sent."""
    for _ in range(3):
        pool.call("Annotated_.echo", LARGE).cancel()


def misuse(pool: Pool) -> None:
    """Give arguments that do not fit."""
    for method, value in (("echo", object()), ("plain", "`$[9]"), ("nobody", 1), ("literals", {"a": "\udc80"})):
        with contextlib.suppress(errors.AtomrError):
            pool.call(f"Annotated_.{method}", value).result()


def stream(pool: Pool) -> None:
    """Leave a stream in its middle, and name it on."""
    opened = pool.stream("Annotated_.streamed", 3)
    for _ in opened:
        break
    KEPT.append(opened)


def keep_ref(pool: Pool) -> None:
    """Put arrays, look at one, and keep both."""
    ref = pool.device(0).put(LARGE)
    KEPT.append((ref, ref.numpy(), ref[::-2]))


def fork(pool: Pool) -> None:
    """Fork, with a call under way; the child tries to go on, and ends in one of several ways."""
    reply = pool.call("Annotated_.echo", LARGE)
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        with contextlib.suppress(errors.AtomrError):
            pool.call("Annotated_.echo", 1).result()
        os._exit(0)
    os.waitpid(child, 0)
    assert len(reply.result()) == len(LARGE)


def close_loop(pool: Pool) -> None:
    """Close a loop with calls and a stream that are not awaited."""
    loop = asyncio.new_event_loop()

    async def begin() -> None:
        assert await pool.call("Annotated_.echo", 2) == 2
        KEPT.append([pool.call("Annotated_.echo", LARGE), pool.stream("Annotated_.streamed", 3)])

    loop.run_until_complete(begin())
    loop.close()


def leave_task(pool: Pool) -> None:
    """Cancel tasks that wait for an answer, and for a part."""

    async def wait() -> None:
        async for _ in pool.stream("Annotated_.streamed", 3):
            await asyncio.sleep(60)

    async def begin() -> None:
        tasks = [asyncio.create_task(wait()) for _ in range(3)]
        await pool.call("Annotated_.echo", 3)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(begin())


def leave_map(pool: Pool) -> None:
    """Leave a map in its middle."""
    for _ in pool.map("Annotated_.echo", range(200)):
        break


def from_threads(pool: Pool) -> None:
    """Call from several threads at a time."""
    threads = [threading.Thread(target=call_quietly, args=(pool,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def call_quietly(pool: Pool) -> None:
    """Call, in a thread whose errors are not seen."""
    with contextlib.suppress(errors.AtomrError):
        call_large(pool)


def leave(pool: Pool) -> None:
    """Close the client, with a call under way."""
    pool.call("Annotated_.echo", LARGE)
    pool.close()


def come_early(_pool: Pool) -> None:
    """Connect to another pool while that starts: one client calls, polls and stays, others leave before it is ready."""
    with tempfile.TemporaryDirectory(prefix="atomr-mp-early-", dir="/tmp") as directory:
        options = ("--backend", "host", "--gpus", "1", "--actor", ACTOR, "--run-dir", f"{directory}/run")
        command = [sys.executable, "-m", "atomr_mp.cli", "start", *options]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as starting:
            try:
                be_early(f"{directory}/run")
            except errors.AtomrError as refused:
                raise AssertionError("an early client is refused") from refused
            finally:
                starting.terminate()
                starting.wait(SOON_S)


def be_early(run_dir: str) -> None:
    """Call, poll until the answers have come, and call again; others come and go meanwhile."""
    with connect_soon(run_dir) as early:
        replies = [early.call("Annotated_.echo", value, deadline_s=SOON_S) for value in (7, "x")]
        with atomr_mp.connect(run_dir=run_dir) as other:
            other.call("Annotated_.echo", 8)
        atomr_mp.connect(run_dir=run_dir).close()
        wait_for(lambda: all(reply.done for reply in replies))
        assert [reply.result() for reply in replies] == [7, "x"]
        call(early)


def connect_soon(run_dir: str) -> Pool:
    """Connect to a pool as soon as it lets anybody in."""
    clients: list[Pool] = []

    def connected() -> bool:
        with contextlib.suppress(errors.PoolUnreachable):
            clients.append(atomr_mp.connect(run_dir=run_dir))
        return bool(clients)

    wait_for(connected)
    return clients[0]


def wait_for(condition: Callable[[], bool]) -> None:
    """Look again and again whether something has happened."""
    until_s = time.monotonic() + SOON_S
    while not condition():
        assert time.monotonic() < until_s, "nothing has happened"
        time.sleep(0.002)


def die(pool: Pool) -> None:
    """Be killed, with calls under way."""
    forget(pool)
    os.kill(os.getpid(), signal.SIGKILL)


KEPT: Final[list[Any]] = []
"""Named to the end of the process."""

ACTIONS: Final[dict[str, Callable[[Pool], None]]] = {
    each.__name__: each
    for each in (
        *(call, call_large, forget, poll, cancel, misuse, stream, keep_ref, fork),
        *(close_loop, leave_task, leave_map, from_threads, leave, come_early, die),
    )
}

if __name__ == "__main__":
    sys.exit(main())
