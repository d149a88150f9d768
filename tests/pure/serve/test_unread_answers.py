"""Room for answers that clients have not read: taken in order, never beyond the limit, and given back in the end."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atomr_mp import errors
from atomr_mp.serve.http.limits import Limits
from atomr_mp.serve.http.unread_answers import SMALL_BYTES, UnreadAnswers
from atomr_mp.serve.problems import ClientLeft
from tests.support import DEADLINE_S

MOST = 10 * SMALL_BYTES
SIZES = st.sampled_from([0, 1, SMALL_BYTES, SMALL_BYTES + 1, 3 * SMALL_BYTES, MOST, MOST + 1, 40 * SMALL_BYTES])


class Reader:
    """A connection that does not read."""

    unread_bytes = 0


class Asking:
    """Makes an answer in a task of its own, once there is room."""

    def __init__(self, unread: UnreadAnswers, nbytes: int) -> None:
        self.nbytes = nbytes
        self.left = asyncio.get_running_loop().create_future()
        self.is_sent = asyncio.Event()
        self.is_made = False
        self.is_refused = False
        self._unread = unread
        self.task = asyncio.create_task(self._make())

    async def _make(self) -> None:
        try:
            await self._unread.take(self.nbytes, self.left)
        except ClientLeft:
            self.is_refused = True
            return
        self.is_made = True
        try:
            await self.is_sent.wait()
        finally:
            self._unread.give_back(self.nbytes)
            self.is_made = False

    @property
    def waits(self) -> bool:
        """Whether it has not been made."""
        return not self.is_made and not self.task.done()


def reads(unread: UnreadAnswers, reader: Reader, nbytes: int) -> None:
    """Have a reader leave some bytes, or none."""
    reader.unread_bytes = nbytes
    unread.add(reader)
    if not nbytes:
        unread.discard(reader)


async def settle() -> None:
    """Let all tasks go as far as they can."""
    for _ in range(8):
        await asyncio.sleep(0)


def check(unread: UnreadAnswers, reader: Reader, asked: list[Asking]) -> None:
    """Assert what holds between steps."""
    copied = unread.copied_bytes
    assert copied == sum(each.nbytes for each in asked if each.is_made) + reader.unread_bytes
    assert all(each.is_made or each.task.done() for each in asked if each.nbytes <= SMALL_BYTES)
    large = [each for each in asked if each.nbytes > SMALL_BYTES]
    waiting = [each for each in large if each.waits]
    if waiting:
        assert copied
        assert copied + waiting[0].nbytes > MOST
        assert not any(each.is_made for each in large[large.index(waiting[0]) + 1 :])


@given(st.lists(st.tuples(st.sampled_from(["ask", "send", "leave", "cancel", "reads"]), SIZES, st.integers(0, 9))))
def test_any_walk(walk: list[tuple[str, int, int]]) -> None:
    """Small ones never wait; others are let in by age, as soon as there is room; one too large is made alone."""

    async def main() -> None:
        unread, reader, asked = UnreadAnswers(Limits(unread_bytes=MOST)), Reader(), list[Asking]()
        for step, nbytes, which in walk:
            chosen = asked[which % len(asked)] if asked else None
            if step == "ask":
                asked.append(Asking(unread, nbytes))
            elif step == "reads":
                reads(unread, reader, nbytes)
                unread.give_back(0)  # a client that reads a part only is not told of
            elif chosen is not None and step == "send" and chosen.is_made:
                chosen.is_sent.set()
            elif chosen is not None and step == "leave" and not chosen.left.done():
                waited = chosen.waits
                chosen.left.set_result(None)
                await settle()
                assert chosen.is_refused or not waited
            elif chosen is not None and step == "cancel":
                chosen.task.cancel()
            await settle()
            check(unread, reader, asked)
        reads(unread, reader, 0)
        for each in asked:
            each.is_sent.set()
        async with asyncio.timeout(DEADLINE_S):
            for each in asked:
                with contextlib.suppress(asyncio.CancelledError):
                    await each.task
        assert not unread.copied_bytes
        assert unread.crowd() is None

    asyncio.run(main())


def test_what_waits_for_too_long_is_given_up() -> None:
    """As a client that reads nothing is: else a few of these would keep all others out for many times as long."""

    async def main() -> None:
        unread = UnreadAnswers(Limits(unread_bytes=MOST, stall_s=0.05))
        first, second = Asking(unread, MOST), Asking(unread, MOST)
        with pytest.raises(errors.DeadlineExceeded, match=r"no room for 0\.05 s") as caught:
            await second.task
        assert caught.value.maybe_executed
        first.is_sent.set()
        await first.task
        assert (unread.copied_bytes, unread.crowd()) == (0, None)

    asyncio.run(main())


def test_what_waits_is_counted_before_it_is_made() -> None:
    """Calls are refused while answers to earlier ones wait, although these have no copies yet."""

    async def main() -> None:
        unread = UnreadAnswers(Limits(unread_bytes=MOST))
        first, second = Asking(unread, MOST), Asking(unread, MOST)
        await settle()
        assert (first.is_made, second.waits, unread.copied_bytes) == (True, True, MOST)
        refused = unread.crowd()
        assert refused is not None
        assert f"{2 * MOST} bytes of answers" in refused.message
        for each in (first, second):
            each.is_sent.set()
            await each.task
        assert unread.crowd() is None

    asyncio.run(main())
