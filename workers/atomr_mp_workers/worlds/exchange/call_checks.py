"""Checks when a collective is called: amid a gang call, on its own thread. Without NumPy."""

from __future__ import annotations

import threading

from atomr_mp import errors
from atomr_mp_workers import own_process


def check_call(world: str, thread: int) -> None:
    """Refuse a collective outside of a gang call, on another thread, or in a forked child, which has the same pages.

    Args:
        world: The world's name.
        thread: The thread that runs a gang call, 0 for none.

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
    raise errors.InvalidRequest(
        f"a collective of world {world!r} was called outside of a gang call; call the method through "
        f"`pool.world({world!r})`, and the collective in it"
    )
