"""What stands for something in one process is not pickled; the error says how another process comes to the pool."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
from collections.abc import Callable
from typing import Any
from unittest.mock import MagicMock

import pytest
from hypothesis import given
from hypothesis import strategies as st

import atomr_mp
from atomr_mp import errors
from atomr_mp.client.actor_ref import ActorRef
from atomr_mp.client.lanes.threads import ThreadsLane
from atomr_mp.client.memory.refs import GpuRef
from atomr_mp.client.reply import Reply
from atomr_mp.libraries.fft import Fft
from atomr_mp.libraries.program import Program
from atomr_mp.protocol import values
from atomr_mp.protocol.pickling import why_not_sent
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
    Reply: lambda: Reply(ThreadsLane.__new__(ThreadsLane), 1, "Words.length", 0, b"", is_over=True),
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


@given(
    cls=st.sampled_from([each for each in CLASSES if not issubclass(each, GpuRef)]),
    around=st.lists(st.sampled_from(["list", "tuple", "dict", "dataclass"]), max_size=3),
)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_as_an_argument_it_is_refused_with_what_to_send(cls: Any, around: list[str]) -> None:
    """By the name that its user knows, wherever it is in the arguments; and never by a part of it."""
    value = MADE[cls]() if cls in MADE else cls.__new__(cls)
    for each in around:
        value = {"list": [value], "tuple": (1, value), "dict": {"a": value}, "dataclass": Holding(value)}[each]
    with pytest.raises(errors.InvalidRequest, match=rf"a {cls.__name__} cannot be sent: .*; send ."):
        values.encode((value,))


@dataclasses.dataclass
class Holding:
    """Crosses as a map."""

    held: Any


def test_each_says_what_to_send() -> None:
    """A reply its result, for one."""
    said = {cls.__name__: why_not_sent(cls).partition("; ")[2] for cls in CLASSES}
    assert said["Reply"] == "send its `result()`"
    assert said["Device"] == "send its `index`"
    assert all(said[name] != "send plain values" for name in ("Pool", "ReplyStream", "ActorRef"))
