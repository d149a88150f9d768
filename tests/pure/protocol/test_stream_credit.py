"""The credit of a stream, at both ends: any reader and any worker, and messages on their way."""

from __future__ import annotations

from collections import deque

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from atomr_mp import errors
from atomr_mp.protocol.flow.limits import MAX_AHEAD
from atomr_mp.protocol.flow.stream_credit import ReaderCredit, SenderCredit


class Flow(RuleBasedStateMachine):
    """A worker that yields parts of any size, a reader of any speed, and a connection in each direction."""

    def __init__(self) -> None:
        super().__init__()
        self.ahead, self.ahead_bytes = 3, 100
        self.reader = ReaderCredit(self.ahead, self.ahead_bytes)
        self.worker = SenderCredit(self.reader.parts, self.reader.nbytes)
        self.parts: deque[tuple[int, int]] = deque()
        self.grants: deque[tuple[int, int]] = deque()
        self.unread: deque[tuple[int, int]] = deque()
        self.read = 0

    @rule(nbytes=st.integers(0, 250))
    def take_a_step(self, nbytes: int) -> None:
        """Yield a part, if there is credit."""
        if self.worker:
            self.parts.append((self.worker.send(nbytes), nbytes))

    @precondition(lambda self: self.parts)
    @rule()
    def receive(self) -> None:
        """Take in a part: the next one, and one that was granted."""
        number, nbytes = self.parts.popleft()
        self.reader.receive(number)
        self.unread.append((number, nbytes))

    @precondition(lambda self: self.unread)
    @rule()
    def read_one(self) -> None:
        """Read a part; say now and then that more may come."""
        number, nbytes = self.unread.popleft()
        assert number == self.read
        self.read += 1
        if self.reader.read(nbytes, is_last=not self.unread):
            self.grants.append((self.reader.parts, self.reader.nbytes))

    @precondition(lambda self: self.grants)
    @rule(twice=st.booleans())
    def grant(self, twice: bool) -> None:  # noqa: FBT001 - Hypothesis names it
        """Let the worker go on; to say it twice does no harm."""
        grant = self.grants.popleft()
        for _ in range(1 + twice):
            self.worker.grant(*grant)

    @invariant()
    def is_bounded(self) -> None:
        """Unread parts are within the credit, in bytes but for the last part."""
        made = [nbytes for _, nbytes in (*self.unread, *self.parts)]
        assert len(made) <= self.ahead
        assert sum(made[:-1]) < self.ahead_bytes or len(made) <= 1

    @invariant()
    def goes_on(self) -> None:
        """Where everything has been read and said, the worker may go on: no credit is lost."""
        if not (self.parts or self.unread or self.grants):
            assert self.worker


TestFlow = Flow.TestCase


def test_no_part_is_awaited_without_credit_of_either_kind() -> None:
    """Credit counts parts and bytes. A further grant changes that, a smaller one nothing."""
    credit = ReaderCredit(3, 100)
    credit.receive(0, 100)
    assert credit.is_used_up
    assert not ReaderCredit(3, 101).is_used_up
    passed = ReaderCredit.passed(5, 100, 4, 60)
    found = [passed.is_used_up]
    passed.receive(4, 10)
    found.append(passed.is_used_up)
    passed.extend(4, 10)
    assert (passed.parts, passed.nbytes) == (5, 100)
    passed.extend(9, 300)
    found.append(passed.is_used_up)
    assert found == [False, True, False]


@pytest.mark.parametrize("number", [0, 2, 3])
def test_a_part_out_of_order_breaks_the_rules(number: int) -> None:
    """One that has come, or would leave a gap."""
    reader = ReaderCredit(4, 100)
    reader.receive(0)
    with pytest.raises(errors.ProtocolError, match=f"part {number}"):
        reader.receive(number)


def test_a_part_that_was_not_granted_breaks_the_rules() -> None:
    """However the worker counts."""
    reader = ReaderCredit(1, 100)
    reader.receive(0)
    assert reader.is_used_up
    with pytest.raises(errors.ProtocolError, match="part 1"):
        reader.receive(1)


def test_too_much_credit_breaks_the_rules() -> None:
    """It may come at once or later; less than before changes nothing."""
    with pytest.raises(errors.ProtocolError, match="credit for"):
        SenderCredit(MAX_AHEAD + 1, 1)
    worker = SenderCredit(MAX_AHEAD, 10)
    worker.send(5)
    worker.grant(MAX_AHEAD + 1, 10)
    with pytest.raises(errors.ProtocolError, match="credit for"):
        worker.grant(MAX_AHEAD + 2, 10)
    worker.grant(0, 0)
    assert worker


@pytest.mark.parametrize(
    ("ahead", "is_last", "first"),
    [
        (1, False, 1),
        (2, False, 1),
        (3, False, 2),
        (4, False, 3),
        (16, False, 12),
        (1, True, 1),
        (3, True, 2),
        (16, True, 8),
    ],
)
def test_credit_is_granted_for_many_parts_at_a_time(ahead: int, first: int, *, is_last: bool) -> None:
    """Each grant is a message. Where all has been read, the worker may wait; else what is left bridges the way."""
    reader = ReaderCredit(ahead, 10**9)
    granted = [number for number in range(1, 3 * first + 1) if reader.read(1, is_last=is_last)]
    assert granted == [first, 2 * first, 3 * first]
    assert reader.parts == 3 * first + ahead


def test_credit_in_bytes_is_granted_for_a_half_at_a_time() -> None:
    """A part of all the bytes, too, lets the worker go on."""
    reader = ReaderCredit(100, 10)
    assert [reader.read(nbytes) for nbytes in (4, 1, 10, 4)] == [False, True, True, False]
    assert reader.nbytes == 25
