"""Who waits for whom, from looks at pages that any process may have written."""

from __future__ import annotations

import random

import pytest

from atomr_mp.protocol.world import EntryKind, MemberWriter, RingWriter, Signature, line_bytes, ring_bytes
from atomr_mp.protocol.world.collectives import Collective
from atomr_mp.protocol.world.page import FIRST_TAKEN, MET, NOTES_AT
from atomr_mp.supervision.world_watch import WatchedWorld, WorldWatch, read_member, read_published

EPOCH = 3
SIZE = 3


class Pages:
    """A world's ring, and the lines of three members."""

    def __init__(self) -> None:
        self.ring = memoryview(bytearray(ring_bytes())).cast("Q")
        self.lines = [memoryview(bytearray(line_bytes())).cast("Q") for _ in range(SIZE)]
        self.publisher = RingWriter(self.ring, EPOCH)
        self.members = [MemberWriter(lines, EPOCH) for lines in self.lines]
        self.watch = WorldWatch()

    def publish(self, count: int = 1) -> None:
        """Publish calls."""
        for number in range(count):
            self.publisher.publish(EntryKind.BEGIN, [(1, number)], 1, 0)

    def meet(self, *ranks: int, kind: Collective = Collective.ALL_REDUCE) -> None:
        """Have ranks meet."""
        for rank in ranks:
            self.members[rank].meet(Signature(4, 1, 1, 255, kind))

    def look(self, now_s: float, epoch: int = EPOCH) -> WatchedWorld:
        """Look, as the supervisor does."""
        lines = [read_member(lines[:NOTES_AT], epoch) for lines in self.lines]
        return self.watch.look(epoch, read_published(self.ring[:FIRST_TAKEN], epoch), lines, now_s)


def doing(progress: WatchedWorld) -> list[str]:
    """Return what the members do."""
    return [words for _, words in progress.members]


def test_a_rank_that_has_not_met_is_waited_for() -> None:
    """The others are named, with the collective and the time since the last of them has met."""
    pages = Pages()
    pages.publish()
    assert doing(pages.look(10.0)) == ["is idle"] * 3
    for each in pages.members:
        each.begin(1)
    pages.meet(0, 1, 2)
    found = pages.look(11.0)
    assert (found.published, doing(found), found.waits) == (1, ["runs call 1"] * 3, "")
    pages.meet(0)
    pages.look(12.0)
    pages.meet(2)
    pages.look(13.0)
    found = pages.look(16.2)
    assert found.waits == "ranks 0 and 2 wait in all_reduce for rank 1, which has not met it for 3.2 s"
    assert doing(found) == ["waits in all_reduce", "runs call 1", "waits in all_reduce"]
    pages.meet(1)
    assert not pages.look(16.3).waits


def test_a_rank_that_has_not_begun_is_named() -> None:
    """Whether others wait for it in a collective or not; not before a second has passed."""
    pages = Pages()
    pages.look(5.0)
    pages.publish(2)
    for rank in (0, 2):
        pages.members[rank].begin(1)
    assert not pages.look(100.0).waits
    assert pages.look(104.0).waits == "rank 1 has not begun call 1 of 2 for 4.0 s"
    pages.members[1].be_away(True)
    assert pages.look(104.0).waits.endswith("for 4.0 s: a suspect waits or runs in its process")
    pages.meet(0, kind=Collective.BARRIER)
    pages.meet(2, kind=Collective.BARRIER)
    pages.look(105.0)
    found = pages.look(106.0)
    assert found.waits == "ranks 0 and 2 wait in barrier for rank 1, which has not begun call 1 for 1.0 s"


def test_a_call_that_has_to_run_alone_waits() -> None:
    """Until all members are quiet."""
    pages = Pages()
    pages.publish()
    for each in pages.members:
        each.begin(1)
        each.be_away(True)
    pages.members[0].be_quiet(1)
    assert doing(pages.look(1.0)) == ["waits to run call 1 alone"] * 3
    for each in pages.members:
        each.be_quiet(1)
    assert doing(pages.look(1.0)) == ["runs call 1"] * 3


def test_another_epoch_shows_nothing_of_the_one_before() -> None:
    """Its members have not joined."""
    pages = Pages()
    pages.publish(3)
    pages.members[0].begin(1)
    pages.look(1.0)
    found = pages.look(2.0, EPOCH + 1)
    assert (found.published, found.waits, doing(found)) == (0, "", ["has not joined"] * 3)


@pytest.mark.parametrize("seed", range(200))
def test_whatever_is_on_the_pages_gives_a_reading(seed: int) -> None:
    """Its numbers fit into a message."""
    made = random.Random(seed)
    pages = Pages()
    pages.publish(2)
    for each in pages.members:
        each.begin(1)
    pages.meet(0, 1, 2)
    for words, most in ((pages.ring, FIRST_TAKEN), *[(lines, NOTES_AT) for lines in pages.lines]):
        for _ in range(made.randrange(4)):
            words[made.randrange(2, most)] = made.choice(
                [0, 1, 2, 3, 2**31, 2**62, 2**63, 2**64 - 1, made.getrandbits(64)]
            )
    for now_s in (0.0, 1.0, 5.0):
        found = pages.look(now_s)
        assert 0 <= found.published < 2**62
        assert len(found.members) == SIZE
        assert all(0 <= member.ended <= member.begun < 2**62 for member, _ in found.members)


def test_damaged_lines_are_told() -> None:
    """And leave the other members' readings as they are."""
    pages = Pages()
    pages.lines[1][MET] = 2**63
    assert doing(pages.look(1.0)) == ["is idle", "cannot be read: more collectives were begun than can be", "is idle"]
