"""Waits for descriptors, whatever their numbers: `select.select` refuses those above 1,023."""

from __future__ import annotations

import select
from collections.abc import Iterable
from typing import Protocol, TypeVar


class HasFileno(Protocol):
    """An open file, socket or connection."""

    def fileno(self) -> int:
        """Return its descriptor."""


_File = TypeVar("_File", bound=int | HasFileno)


def readable(files: Iterable[_File], timeout_s: float) -> list[_File]:
    """Return those of the files that can be read, or have ended; wait until there is one, or for so long."""
    poll, by_descriptor = select.poll(), {}
    for file in files:
        descriptor = file if isinstance(file, int) else file.fileno()
        poll.register(descriptor, select.POLLIN)
        by_descriptor[descriptor] = file
    return [by_descriptor[descriptor] for descriptor, _ in poll.poll(timeout_s * 1000)]
