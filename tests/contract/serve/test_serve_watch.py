"""Who looks on at several front ends: one of them watches the pool for all."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from http.client import HTTPResponse
from typing import Any, Final, Self

import pytest

from atomr_mp.operator.session import OperatorSession
from tests.serving import Server
from tests.support import Ledger, settled

pytest.importorskip("httptools")
pytest.importorskip("uvloop")


def test_one_front_end_watches_for_all_and_another_when_it_is_gone() -> None:
    """The others show what it has seen; who looks on there notices nothing of its end."""
    with Ledger() as ledger, Server(ledger, "--workers", "2") as server, contextlib.ExitStack() as closing:
        first, second = server.front_ends()
        ours = observers(ledger)

        def view(front_end: int, other: int) -> Viewer:
            os.kill(other, signal.SIGSTOP)
            try:
                viewer = closing.enter_context(Viewer(server))
                assert viewer.next()["devices"]
            finally:
                os.kill(other, signal.SIGCONT)
            assert front_end in server.front_ends()
            return viewer

        with view(first, second):
            follower = view(second, first)  # although the one that watches stands still
            assert observers(ledger) == ours + 1
            os.kill(first, signal.SIGKILL)
            assert settled(lambda: first not in server.front_ends())
        assert settled(lambda: observers(ledger) == ours + 1)
        generation = follower.next()["devices"][0]["generation"]
        with OperatorSession(ledger.run_dir() / "session.sock") as session:
            os.kill(session.status().workers[0].device.pid, signal.SIGKILL)
        assert settled(lambda: follower.next()["devices"][0]["generation"] > generation)


class Viewer:
    """Somebody who looks on. Use it with `with`."""

    def __init__(self, server: Server) -> None:
        self._connection: Final = server.connect()
        token = f"authorization: Bearer {server.token}"
        self._connection.sendall(f"GET /watch/events HTTP/1.1\r\nhost: localhost\r\n{token}\r\n\r\n".encode())
        self._response: Final = HTTPResponse(self._connection)
        self._response.begin()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self._response.close()
        self._connection.close()

    def next(self) -> dict[str, Any]:
        """Wait for the next look."""
        while not (line := self._response.readline()).startswith(b"data: "):
            assert line, "it has ended"
        found: dict[str, Any] = json.loads(line.removeprefix(b"data: "))
        return found


def observers(ledger: Ledger) -> int:
    """Return how many sessions watch the pool, this one not counted."""
    with OperatorSession(ledger.run_dir() / "session.sock") as session:
        return sum(each.state == "observes" for each in session.inventory().sessions) - 1
