"""What a forked child does with the tunnel: libzmq's threads do not exist there, so nothing of libzmq's may be used."""

from __future__ import annotations

import os
import weakref
from typing import Final, Protocol


class Forgettable(Protocol):
    """Something that a forked child has to leave alone."""

    def forget_in_child(self) -> None:
        """Drop everything, in a forked child; may be called twice."""


def drop_in_child(each: Forgettable) -> None:
    """Have something dropped in forked children; it is not kept by this."""
    _HELD.add(each)


def keep_in_child(of_libzmq: object) -> None:
    """Keep an object of libzmq's for ever, in a forked child: its collection would call libzmq."""
    _FORKED.append(of_libzmq)


def forget_in_child() -> None:
    """Drop all of the tunnel's in a forked child, before anything else there uses it; may be called twice."""
    for each in list(_HELD):
        each.forget_in_child()


_HELD: Final[weakref.WeakSet[Forgettable]] = weakref.WeakSet()
_FORKED: Final[list[object]] = []
"""Sockets and contexts that a fork has brought along."""

os.register_at_fork(after_in_child=forget_in_child)
