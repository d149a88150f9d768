"""The page that says that a world's epoch is over, and why."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atomr_mp.protocol.world import cause_of_stop, is_over, store_stop
from atomr_mp.protocol.world.memory import STOP_BYTES
from atomr_mp.protocol.world.stop import MOST_WORDS, TEXT_AT


@given(st.integers(1, 2**61), st.integers(-1, 63), st.text())
def test_who_sees_the_stop_word_sees_the_cause(epoch: int, rank: int, cause: str) -> None:
    """Of this epoch, cut if it is long, and whole characters of it."""
    words = memoryview(bytearray(STOP_BYTES)).cast("Q")
    store_stop(words, epoch, rank, cause)
    assert is_over(words, epoch)
    assert not is_over(words, epoch + 1)
    found, text = cause_of_stop(words, epoch)
    assert found == rank
    assert cause.encode()[: 8 * MOST_WORDS].decode(errors="ignore") == text
    assert cause_of_stop(words, epoch - 1) == cause_of_stop(words, epoch + 1) == (-1, "")
    store_stop(words, epoch + 1)
    assert is_over(words, epoch)
    assert cause_of_stop(words, epoch + 1) == (-1, "")


@pytest.mark.parametrize("bad", [0, 2**64 - 1])
def test_new_memory_and_damage_give_a_cause_too(bad: int) -> None:
    """An empty or a wrong one, and no error."""
    words = memoryview(bytearray(STOP_BYTES)).cast("Q")
    assert cause_of_stop(words, 5) == (-1, "")
    store_stop(words, 5, 1, "killed")
    for at in range(2, TEXT_AT + 1):
        words[at] = bad
    assert isinstance(cause_of_stop(words, 5)[1], str)
