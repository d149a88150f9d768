"""Refuses to pickle, or to send, what stands for something in one process. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NoReturn

from atomr_mp import errors


def refusal(instead: str, send: str = "plain values", name: str = "") -> Callable[[Any], NoReturn]:
    """Return a `__reduce__` that refuses to pickle, and to copy.

    Args:
        instead: What to do in the other process.
        send: What to send as an argument or result instead of such an object.
        name: The class that users know, if the object is a part of one of these; else its own.
    """

    def refuse(self: Any) -> NoReturn:
        raise errors.NotPicklable(
            f"a {name or type(self).__name__} is of this process, and cannot be pickled or copied: {instead}"
        )

    setattr(refuse, _SENT, (name, send))
    return refuse


def why_not_sent(kind: type) -> str:
    """Return why objects of a class cannot be arguments or results, and what to send instead; empty if they may be."""
    found = getattr(kind.__reduce__, _SENT, None)
    if found is None:
        return ""
    name, send = found
    return f"a {name or kind.__name__} cannot be sent: it is of this process; send {send}"


CONNECT: Final = "in the other process join the pool by `atomr_mp.connect(run_dir=pool.run_dir)`"
"""How another process comes to a pool."""

_SENT: Final = "__atomr_mp_sent__"
"""Attribute of a refusal with the words for arguments."""
