"""Refuses to pickle what stands for something in one process. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NoReturn

from atomr_mp import errors


def refusal(instead: str) -> Callable[[Any], NoReturn]:
    """Return a `__reduce__` that refuses to pickle, and to copy.

    Args:
        instead: What to do in the other process.
    """

    def refuse(self: Any) -> NoReturn:
        raise errors.NotPicklable(
            f"a {type(self).__name__} is of this process, and cannot be pickled or copied: {instead}"
        )

    return refuse


CONNECT: Final = "in the other process join the pool by `atomr_mp.connect(run_dir=pool.run_dir)`"
"""How another process comes to a pool."""
