"""The reply to a gang call, and the replies to its parts."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any, Final, Never

import msgspec

from atomr_mp import errors
from atomr_mp.client.reply import Reply, decode
from atomr_mp.client.worlds.arguments import GangArguments, RankArguments
from atomr_mp.client.worlds.gang_life import GangState

PART_DEADLINE_NS: Final = 2**62
"""A time that never comes, by any machine's clock: the lane ends no part by its deadline."""


class GangPart(Reply):
    """The answer to a part of a gang call. Its lane alone has it."""

    of: GangReply | None = None
    """The whole call, until the part has ended."""
    rank: int = 0
    limit_ns: int = 0
    """The deadline of the whole call, CLOCK_MONOTONIC: for the watchdog, and for rank 0, which drops a late call."""


class GangReply(Reply):
    """The answer to a call of a world: rank 0's result, or each rank's, once all ranks have ended; or an error.

    It is used as a `Reply`. It ends with its deadline, and with `cancel`. What has begun goes on, since no rank may be
    left out; a call that rank 0 has not published is dropped on all ranks. The attribute `rank` of an error says which
    rank has ended with it, -1 for none.
    """

    number: int = -1
    """The world's number."""
    world: str = ""
    """The world's name."""
    each: bool = False
    """Whether the result is a list of all ranks' results."""
    once: bool = False
    """Whether it is a collective on refs, or a program: it is sent at once or not at all, and never again."""
    is_program: bool = False
    """Whether it is a program. Its ranks say whether they have begun it."""
    given: Sequence[Any] | None = None
    """The results by rank, where the caller has given the memory for them."""
    keeps: object = None
    """The handle of a world that a session has made, until the reply is over: without one the world is closed."""
    life: GangState = GangState.NEW
    arguments: GangArguments | RankArguments | None = None
    """What its parts are made of, until the reply is over."""
    epoch: int = 0
    """The epoch in which it was sent last, 0 if it was not sent."""
    parts: Sequence[GangPart] = ()
    """The parts by rank. Once it is over: those whose results it has."""
    outstanding: int = 0
    """How many parts have not ended."""

    def told(self) -> str:
        """Describe the reply for the log. This may be called while the lock of its lane is held."""
        state = "pending" if not self.is_over else repr(self.error) if self.error else "done"
        return f"<GangReply {self.id} of {self.method} in the world {self.world}: {state}>"

    def result(self, timeout_s: float | None = None, **unknown: Never) -> Any:
        """Wait until all ranks have ended, and return the result: rank 0's, or with `each` a list by rank.

        See `Reply.result`.
        """
        if not self.each:
            return super().result(timeout_s, **unknown)
        super().result(timeout_s, **unknown)
        if self.given is not None:
            return list(self.given)
        return [
            decode(part.body, part.frames) if part.leases is None else self.lane.decode(*_content(part))
            for part in self.parts
        ]

    def __await__(self) -> Generator[Any, None, Any]:
        if not self.each:
            return (yield from super().__await__())
        if not self.is_over:
            yield from self.arrival()
        if self.error is not None:
            raise errors.unraised(self.error)
        if self.given is not None:
            return list(self.given)
        results = []
        for part in self.parts:
            if part.leases is None:
                results.append(decode(part.body, part.frames))
            else:
                results.append((yield from self.lane.decode_aside(*_content(part)).__await__()))
        return results


def _content(part: GangPart) -> tuple[bytes, Sequence[memoryview], Any]:
    return part.body, part.frames, part.leases


NOTHING: Final = msgspec.msgpack.encode(None)
"""The body of a reply whose results are in its parts."""
