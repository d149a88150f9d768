from __future__ import annotations

import asyncio
import logging
import threading
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atomr_mp import errors
from atomr_mp.serve import server_log
from atomr_mp.serve.parent import supervisor_watch
from atomr_mp.serve.parent.supervisor_watch import SILENT_S, Silence, SupervisorWatch

STEPS = st.lists(st.tuples(st.floats(0, 3 * SILENT_S), st.booleans()), max_size=60)


@given(STEPS)
def test_each_long_silence_is_told_once_and_so_is_its_end(steps: list[tuple[float, bool]]) -> None:
    """And no other: whatever answers in time is worth no line."""
    now_s = answered_s = 100.0
    silence, open_ = Silence(now_s), False
    for after_s, answers in steps:
        now_s += after_s
        told_s = silence.look(now_s)
        assert (told_s is not None) is (not open_ and now_s - answered_s >= SILENT_S)
        open_ = open_ or told_s is not None
        if answers:
            ended_s = silence.answered(now_s)
            assert (ended_s is not None) is open_
            assert ended_s in {None, now_s - answered_s}
            answered_s, open_ = now_s, False
        assert silence.since_s(now_s) == now_s - answered_s


class FakePool:
    """A pool whose supervisor answers while it is not stopped."""

    supervisor_pid = 42
    lost: errors.PoolLost | None = None

    def __init__(self) -> None:
        self.goes = threading.Event()
        self.goes.set()

    def status(self) -> str:
        """Answer; or wait until the supervisor goes on."""
        self.goes.wait(30)
        return "status"


def test_a_stopped_supervisor_is_told_and_starves_the_watchdog(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The service manager hears that the server lives only while its supervisor answers."""
    monkeypatch.setattr(supervisor_watch, "ASK_EVERY_S", 0.01)
    monkeypatch.setattr(supervisor_watch, "SILENT_S", 0.2)
    caplog.set_level(logging.INFO, logger="atomr_mp.serve")
    heard: list[str] = []
    notifier: Any = SimpleNamespace(watchdog_s=0.1)

    async def watch() -> None:
        pool: Any = FakePool()
        came = asyncio.Event()

        def note(record: logging.LogRecord) -> bool:
            heard.append(record.getMessage())
            came.set()
            return True

        async def until(text: str) -> None:
            async with asyncio.timeout(30):
                while not any(text in each for each in heard):
                    came.clear()
                    await came.wait()

        def alive() -> None:
            heard.append("alive")
            came.set()

        notifier.alive = alive
        server_log.LOG.addFilter(note)
        watching = asyncio.ensure_future(SupervisorWatch(lambda: pool, notifier).keep_watching())
        try:
            await until("alive")
            pool.goes.clear()
            await until("(pid 42) has not answered for")
            pool.goes.set()
            await until("answers again, after")
            del heard[: next(at for at, each in enumerate(heard) if "has not answered" in each)]
            assert "answers again" in heard[1]  # the watchdog hears nothing before
            await until("alive")
        finally:
            server_log.LOG.removeFilter(note)
            pool.goes.set()
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)

    asyncio.run(watch())
