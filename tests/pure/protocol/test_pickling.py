"""What stands for something in one process is not pickled; the error says how another process comes to the pool."""

from __future__ import annotations

import copy
import inspect
import pickle
from collections.abc import Callable
from typing import Any
from unittest.mock import MagicMock

import pytest

import atomr_mp
from atomr_mp import errors
from atomr_mp.client.actor_ref import ActorRef
from atomr_mp.client.reply import Reply
from atomr_mp.libraries.fft import Fft
from atomr_mp.libraries.program import Program
from atomr_mp.startup.pool_to_enter import PoolToEnter

CLASSES: list[Any] = [
    *(found for name in atomr_mp.__all__ if inspect.isclass(found := getattr(atomr_mp, name))),
    ActorRef,
    Fft,
    PoolToEnter,
    Program,
]

MADE: dict[Any, Callable[[], Any]] = {
    ActorRef: lambda: ActorRef(MagicMock(), "Words", None, None),
    Reply: lambda: Reply(MagicMock(), 1, "Words.length", 0, b"", is_over=True),
}
"""Makes objects that look at their fields."""


@pytest.mark.parametrize("cls", CLASSES)
@pytest.mark.parametrize("how", [pickle.dumps, copy.copy, copy.deepcopy])
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # of objects without a constructor
def test_it_is_refused_with_the_way_for_the_other_process(cls: Any, how: Any) -> None:
    """A class that is made public later is of this list by itself."""
    made = MADE[cls]() if cls in MADE else cls.__new__(cls)
    with pytest.raises(errors.NotPicklable, match=r"atomr_mp\.connect") as refused:
        how(made)
    assert cls.__name__ in refused.value.message
    assert isinstance(refused.value, TypeError)
