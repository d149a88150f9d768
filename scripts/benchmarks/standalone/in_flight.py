"""Keeps a number of requests in flight, as a busy client does."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol


class Waited(Protocol):
    """A reply."""

    def result(self) -> object:
        """Wait for the answer."""


def kept_in_flight(submit: Callable[[], Waited], count: int, flying: int) -> None:
    """Send `count` requests and wait for them all: one more with each answer, `flying` at a time.

    Args:
        submit: Sends one, and does not wait.
        count: How many.
        flying: How many are in flight from the first answer to the last but so many.
    """
    waiting = deque(submit() for _ in range(min(flying, count)))
    for _ in range(count - len(waiting)):
        waiting.popleft().result()
        waiting.append(submit())
    for reply in waiting:
        reply.result()
