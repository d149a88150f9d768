"""Decides when the memory of an ended session is given back. Pure.

Two things must have happened: no worker works for the session any more (each that knew it has said so, or has ended),
and its client can reach none of the memory (it has said so, or its process has ended). Until then a kernel of one of
them may still read or write it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

Worker = tuple[int, int]
"""A process, by its device and generation."""


class Due(NamedTuple):
    """A session whose memory has to be given back now, once."""

    number: int
    workers: list[Worker]
    """Living workers that knew the session; empty if all have ended, and their memory with them."""


class Reclaims:
    """The sessions that have ended and wait for it."""

    def __init__(self) -> None:
        self._waiting: dict[int, _Ended] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def numbers(self) -> list[int]:
        """The sessions."""
        return sorted(self._waiting)

    def ended(self, number: int, workers: Iterable[Worker], *, gone: bool) -> list[Due]:
        """A session has ended.

        Args:
            number: The session's number.
            workers: Those that were told.
            gone: Its client can reach no memory.
        """
        knowing = set(workers)
        self._waiting[number] = _Ended(knowing, set(knowing), gone)
        return self._due([number])

    def acknowledged(self, number: int, worker: Worker) -> list[Due]:
        """A worker has finished with the session."""
        if number in self._waiting:
            self._waiting[number].working.discard(worker)
        return self._due([number])

    def worker_ended(self, worker: Worker) -> list[Due]:
        """A worker has ended; its successor never heard of these sessions."""
        for ended in self._waiting.values():
            ended.knowing.discard(worker)
            ended.working.discard(worker)
        return self._due(list(self._waiting))

    def client_gone(self, number: int) -> list[Due]:
        """The session's client has lost its access to memory."""
        if number in self._waiting:
            self._waiting[number].gone = True
        return self._due([number])

    def _due(self, numbers: Iterable[int]) -> list[Due]:
        due = [number for number in numbers if number in self._waiting and self._waiting[number].is_due]
        return [Due(number, sorted(self._waiting.pop(number).knowing)) for number in due]


@dataclass
class _Ended:
    knowing: set[Worker]
    """Workers that know the session."""
    working: set[Worker]
    """Workers that have not acknowledged its end."""
    gone: bool

    @property
    def is_due(self) -> bool:
        return not self.working and (self.gone or not self.knowing)
