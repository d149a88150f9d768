"""The free and taken ranges of a slab, beside a model that knows each unit by itself."""

from __future__ import annotations

import itertools
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    precondition,
    rule,
)

from atomr_mp.protocol.allocation import ALIGNMENT_BYTES, SLAB_BYTES, Space, aligned, slab_bytes_for

UNITS: Final = 16
"""Of a small slab's alignment: few, so that it is full, and full of holes, most of the time."""


class Slab(RuleBasedStateMachine):
    """A space, and which unit belongs to whom."""

    taken: Bundle[int] = Bundle("taken")

    @initialize(rest=st.sampled_from([0, 1, ALIGNMENT_BYTES - 1]))
    def make(self, rest: int) -> None:
        """Make a slab, perhaps with an end that is too small for anything."""
        self.space = Space(UNITS * ALIGNMENT_BYTES + rest)
        self.owners: list[int | None] = [None] * UNITS
        """The offset to which each unit belongs."""
        self.sizes: dict[int, int] = {}

    @rule(target=taken, nbytes=st.integers(0, (UNITS + 1) * ALIGNMENT_BYTES))
    def take(self, nbytes: int) -> int:
        """Take the first piece that is large enough."""
        units = max(1, -(-nbytes // ALIGNMENT_BYTES))
        expected = next(
            (at for at in range(UNITS - units + 1) if all(owner is None for owner in self.owners[at : at + units])),
            None,
        )
        offset = self.space.take(nbytes)
        if expected is None:
            assert offset is None
            return -1
        assert offset == expected * ALIGNMENT_BYTES, "not the first that fits"
        self.owners[expected : expected + units] = [offset] * units
        self.sizes[offset] = units
        return offset

    @rule(offset=consumes(taken))
    def give(self, offset: int) -> None:
        """Give a piece back."""
        if offset >= 0:
            self.space.give(offset)
            self.owners = [None if owner == offset else owner for owner in self.owners]
            del self.sizes[offset]

    @rule(offset=st.integers(-1, UNITS * ALIGNMENT_BYTES))
    def give_what_is_not_taken(self, offset: int) -> None:
        """Room never taken, or given back already, changes nothing."""
        if offset not in self.sizes:
            with pytest.raises(KeyError):
                self.space.give(offset)

    @precondition(lambda self: not self.sizes)
    @rule()
    def take_all(self) -> None:
        """Room given back piece by piece is one piece again."""
        assert self.space.take(self.space.nbytes // ALIGNMENT_BYTES * ALIGNMENT_BYTES) == 0
        self.space.give(0)

    @invariant()
    def the_figures_are_right(self) -> None:
        """Taken memory is counted in whole units."""
        assert bool(self.space) == bool(self.sizes)
        assert self.space.used_bytes == sum(owner is not None for owner in self.owners) * ALIGNMENT_BYTES

    @invariant()
    def neighbours_are_joined(self) -> None:
        """No two free ranges touch, they ascend, and with what is taken they are the whole slab."""
        ranges = list(zip(self.space._offsets, self.space._sizes, strict=True))
        assert all(offset + size < after for (offset, size), (after, _) in itertools.pairwise(ranges))
        assert sum(size for _, size in ranges) + self.space.used_bytes == self.space.nbytes
        assert all(size > 0 for _, size in ranges)


TestSlab = Slab.TestCase


@given(st.lists(st.integers(0, 5000), max_size=60), st.randoms(use_true_random=False))
def test_all_is_one_piece_again_in_whatever_order_it_was_given_back(sizes: list[int], random: object) -> None:
    """Fragments never stay."""
    space = Space(SLAB_BYTES)
    offsets = [space.take(size) for size in sizes]
    assert None not in offsets
    random.shuffle(offsets)  # type: ignore[attr-defined]
    for offset in offsets:
        assert offset is not None
        space.give(offset)
    assert not space
    assert space.take(SLAB_BYTES) == 0
    assert space.take(0) is None


@given(st.integers(0, 2**47))
def test_a_buffer_is_aligned_and_has_room_in_its_new_slab(nbytes: int) -> None:
    """Even one without bytes takes a place of its own; a large one wastes less than a page."""
    size = aligned(nbytes)
    assert size >= max(nbytes, 1)
    assert size % ALIGNMENT_BYTES == 0
    assert size < nbytes + ALIGNMENT_BYTES or nbytes == 0
    slab = slab_bytes_for(size)
    assert slab >= size
    assert slab == SLAB_BYTES or slab < size + 2**21
    assert slab % 4096 == 0
    assert Space(slab).take(nbytes) == 0
