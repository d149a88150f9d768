"""The borrows of several buffers beside a model: requests, clients' reads and time, in any order."""

from __future__ import annotations

from typing import Any, Final

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from atomr_mp import errors
from atomr_mp_workers.device.host import HostEvent
from atomr_mp_workers.memory.blocks import Holder
from atomr_mp_workers.memory.borrows import Borrows
from atomr_mp_workers.memory.passing_reads import PassingReads

BLOCKS: Final = 3
PID: Final = 4321
SOME: Final = st.sets(st.integers(0, BLOCKS - 1), min_size=1)
PICK: Final = st.integers(0, 1000)
SECOND_NS: Final = 10**9


class FakeBlock:
    """A stand-in for a block, with real borrows."""

    def __init__(self) -> None:
        self.borrows = Borrows()


class FakeArray:
    """All of a block."""

    def __init__(self, block: FakeBlock) -> None:
        self.block, self.nbytes = block, 2**29


class Use:
    """A use of some blocks, as the model knows it: a request, or a client's read."""

    def __init__(self, blocks: set[int], after: list[Any], earlier: list[Use], *, write: bool, read: int = 0) -> None:
        self.blocks, self.after, self.earlier, self.write, self.read = blocks, after, earlier, write, read
        self.event = HostEvent()
        self.until_ns: int | None = None
        """Of a read whose turn has come: when writers stop waiting for it."""
        self.ended = False

    def end(self) -> None:
        """Nothing has to wait for it now."""
        self.ended = True
        self.event.end()

    def excludes(self, blocks: set[int], *, write: bool) -> bool:
        """Whether a later use has to wait for it."""
        return bool(self.blocks & blocks) and (write or self.write) and not self.ended


class ReadsAndWriters(RuleBasedStateMachine):
    """Uses come, wait for what they must and nothing else, and end; time passes."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks: list[Any] = [FakeBlock() for _ in range(BLOCKS)]
        self.reads = PassingReads()
        self.holder = Holder(7)
        self.holder.pid = PID
        self.uses: list[Use] = []
        self.now_ns = 0
        self.numbers = 0

    def is_overdue(self, use: Use) -> bool:
        """Whether writers are refused because of a read."""
        return use.until_ns is not None and use.until_ns <= self.now_ns and not use.ended

    def arrive(self, blocks: set[int], *, write: bool, read: int = 0) -> None:
        """Let a use come; a writer beside an overdue read is refused by its name, and nothing else is."""
        overdue = [use for use in self.uses if write and self.is_overdue(use) and use.blocks & blocks]
        try:
            after = [event for at in sorted(blocks) for event in self.blocks[at].borrows.before(write=write)]
        except errors.BorrowConflict as error:
            conflict, after = error.message, []
        else:
            conflict = ""
        assert bool(overdue) == (f"process {PID} " in conflict)
        if conflict:
            return
        earlier = [use for use in self.uses if use.excludes(blocks, write=write)]
        use = Use(blocks, after, earlier, write=write, read=read)
        if read:
            arrays: list[Any] = [FakeArray(self.blocks[at]) for at in blocks]
            self.reads.begin(self.holder, arrays, read, use.event)
        else:
            for at in blocks:
                self.blocks[at].borrows.add(use.event, write=write)
        self.uses.append(use)

    def ready(self) -> list[Use]:
        """Return the requests that may run and the reads whose turn has come, by the events that they wait for."""
        return [
            use for use in self.uses if not use.ended and use.until_ns is None and all(each.done for each in use.after)
        ]

    @rule(blocks=SOME, write=st.booleans())
    def request(self, blocks: set[int], write: bool) -> None:  # noqa: FBT001
        """A request comes."""
        self.arrive(blocks, write=write)

    @rule(blocks=SOME)
    def read(self, blocks: set[int]) -> None:
        """A client wants to read."""
        self.numbers += 1
        self.arrive(blocks, write=False, read=self.numbers)

    @precondition(lambda self: self.ready())
    @rule(pick=PICK)
    def run(self, pick: int) -> None:
        """A request runs and ends, or is refused; or the turn of a read comes."""
        ready = self.ready()
        use = ready[pick % len(ready)]
        blockers = [each for each in use.earlier if not each.ended]
        refused = self.reads.refusal(use.after)
        assert (refused is not None) == bool(blockers) == any(self.is_overdue(each) for each in blockers)
        if use.read:
            use.until_ns = self.now_ns + SECOND_NS + SECOND_NS * len(use.blocks) // 2
            self.reads.grant(self.holder, use.read, self.now_ns)
        else:
            use.end()

    @rule(pick=PICK)
    def end_read(self, pick: int) -> None:
        """A client has read, or has given it up before its turn."""
        reads = [use for use in self.uses if use.read and not use.ended]
        if reads:
            use = reads[pick % len(reads)]
            self.reads.end(self.holder, use.read)
            use.end()
            assert self.reads.has_ended

    @rule(s=st.sampled_from([0.3, 1.0, 3.0]))
    def wait(self, s: float) -> None:
        """Time passes."""
        self.now_ns += int(s * SECOND_NS)
        dues = [use.until_ns for use in self.uses if use.until_ns is not None and not use.ended]
        due_ns = self.reads.due_ns
        assert due_ns is None or due_ns in dues
        self.reads.expire(self.now_ns)

    @invariant()
    def what_is_read_in_parts_stays_as_it_is(self) -> None:
        """From a read's turn to its end, even if its time is over meanwhile."""
        for use in self.uses:
            for at, block in enumerate(self.blocks):
                open_now = use.until_ns is not None and not use.ended and at in use.blocks
                assert not use.read or self.reads.covers(self.holder, use.read, block) == open_now

    @invariant()
    def nothing_waits_without_a_reason(self) -> None:
        """Whatever has no blocker left may run, so that no request waits for ever."""
        for use in self.uses:
            blockers = [each for each in use.earlier if not each.ended and not self.is_overdue(each)]
            assert use.ended or bool(blockers) == (not all(event.done for event in use.after))


TestReadsAndWriters = pytest.mark.filterwarnings("error")(ReadsAndWriters.TestCase)
TestReadsAndWriters.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
