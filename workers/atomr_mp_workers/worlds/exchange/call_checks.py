"""Checks when a collective is called, amid a call of the world, on its own thread; and errors of it. Without NumPy."""

from __future__ import annotations

import threading

from atomr_mp import errors
from atomr_mp_workers import own_process


def check_call(world: str, thread: int) -> None:
    """Refuse a collective outside of a call of its world, on another thread, or in a forked child with the same pages.

    Args:
        world: The world's name.
        thread: The thread that runs a call, 0 for none.

    Raises:
        InvalidRequest: It is refused.
    """
    own_process.check()
    if thread == threading.get_ident():
        return
    if thread:
        raise errors.InvalidRequest(
            f"a collective of world {world!r} was called on another thread than the one that runs the method; call it "
            "in the method itself"
        )
    raise outside(world)


def outside(world: str) -> errors.InvalidRequest:
    """Return the error of a collective that no call of the world runs."""
    return errors.InvalidRequest(
        f"a collective of world {world!r} was called outside of a call of the world; call the method through "
        f"`pool.world({world!r})`, and the collective in it"
    )


def differing(world: str, method: str, rank: int, other: int, why: str) -> errors.WorldMismatch:
    """Return the error of ranks that have called different things.

    Args:
        world: The world's name.
        method: The method that runs; empty for none of an actor.
        rank: This rank.
        other: A rank that has called something else.
        why: Both sides, in words.
    """
    return errors.WorldMismatch(f"in {place(world, method)} {why}", world=world, rank=rank, other=other)


def place(world: str, method: str) -> str:
    """Return words for the place of a collective: the method, if one of an actor runs, and the world."""
    return f"{method} of world {world!r}" if method else f"world {world!r}"


def in_later_call(rank: int, cause: str, diverged: bool) -> tuple[int, str, bool]:  # noqa: FBT001 - as it is kept
    """Return the cause by which an epoch was given up, as a later call has it: its ranks have not diverged."""
    return rank, f"in an earlier call {cause}" if diverged else cause, False
