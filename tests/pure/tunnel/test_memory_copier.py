"""A copy by a channel that tells of its room in one way only: by what `receive` takes in."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Final

import pytest

from atomr_mp.client import interrupts
from atomr_mp.protocol.tunnel.ranges import REQUEST, RangeAnswer, SlabKey
from atomr_mp.tunnel import memory_channel
from atomr_mp.tunnel.memory_channel import MemoryCopier
from atomr_mp.tunnel.returns import RelayReturns
from tests.support import DEADLINE_S

ROOM: Final = 1000
"""Bytes that go at once before something has come."""


class QuietChannel:
    """A channel whose descriptor never speaks, and whose other end takes everything in at once.

    Args:
        nbytes: What is to be written.
        opens: Whether its room grows once, as by the relay's word that it is open; else it comes back by parts.
    """

    ended = False
    error = None
    opened = True

    def __init__(self, nbytes: int, *, opens: bool) -> None:
        self._opens = opens
        self._left = nbytes + REQUEST.size
        self._room = ROOM
        self._news: deque[Callable[[], None]] = deque()
        self._never = os.eventfd(0, os.EFD_CLOEXEC)

    def fileno(self) -> int:
        """Return a descriptor that is not readable."""
        return self._never

    @property
    def has_room(self) -> bool:
        """Whether something can be sent."""
        return self._room > 0

    def send(self, data: Any) -> int:
        """Take what there is room for; the other end tells of it."""
        sent = min(len(data), self._room)
        self._room -= sent
        self._left -= sent
        if sent:
            self._news.append(self._grow)
        return sent

    def receive(self) -> memoryview | None:
        """Take all news in; return the answer once everything has come."""
        while self._news:
            self._news.popleft()()
        return None if self._left else memoryview(RangeAnswer(refused=False, nbytes=0).pack())

    def close(self) -> None:
        """Give the descriptor back."""
        os.close(self._never)

    def _grow(self) -> None:
        self._room = 2**30 if self._opens else ROOM


@pytest.mark.parametrize("opens", [True, False])
def test_a_copy_goes_on_as_soon_as_there_is_room(monkeypatch: pytest.MonkeyPatch, *, opens: bool) -> None:
    """It does not wait for a descriptor after it has taken in what would have signalled there."""

    def wait(*_arguments: object) -> None:
        pytest.fail("it waits, though there is room")

    monkeypatch.setattr(interrupts, "wait", wait)
    content = memoryview(bytes(50 * ROOM))
    channel: Any = QuietChannel(len(content), opens=opens)
    copier = MemoryCopier(lambda: channel, lambda **_: None)
    copier.write(SlabKey(1), 0, content)
    copier.close()


def test_a_copy_goes_on_as_soon_as_the_session_has_another_relay(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long it would wait for the next attempt."""
    monkeypatch.setattr(memory_channel, "again_ns", lambda _attempts: 3600 * 10**9)
    content, returns = memoryview(bytes(3)), RelayReturns()
    channel: Any = QuietChannel(len(content), opens=True)
    tried = threading.Event()
    opened = 0

    def opens() -> Any:
        nonlocal opened
        opened += 1
        if opened == 1:
            raise OSError("the relay has gone")
        return channel

    def check(*, reads: bool) -> None:
        if reads:
            tried.set()

    copier = MemoryCopier(opens, check, returns)
    thread = threading.Thread(target=copier.write, args=(SlabKey(1), 0, content), daemon=True)
    thread.start()
    assert tried.wait(DEADLINE_S)
    returns.back()
    thread.join(DEADLINE_S)
    assert not thread.is_alive()
    copier.close()
