"""The reply to a stream of a world, and the replies to its parts, one for each rank."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Final

from atomr_mp import errors
from atomr_mp.client.reply import StreamReply
from atomr_mp.client.worlds.arguments import GangArguments
from atomr_mp.client.worlds.gang_life import GangState
from atomr_mp.client.worlds.gang_outcome import LOSSES, GangEnd, has_diverged
from atomr_mp.client.worlds.gang_reply import PART_DEADLINE_NS, GangPart, GangReply
from atomr_mp.protocol.flow.stream_credit import ReaderCredit
from atomr_mp.protocol.messages.data import Gang
from atomr_mp.protocol.messages.devices import MethodInfo, Resend, Resumes


class GangStreamPart(StreamReply):
    """One rank's part of a stream of a world. Its lane alone has it. What rank 0 yields goes on to the whole."""

    of: GangStream | None = None
    """The whole stream, until the part has ended."""
    rank: int = 0
    limit_ns: int = 0
    """The deadline of the first part, for its worker's watchdog; CLOCK_MONOTONIC."""


class GangStream(StreamReply):
    """A stream of a world, through all of its epochs: rank 0's parts, and its result once all ranks have ended.

    The fields are those of `GangReply`.
    """

    number: int = -1
    world: str = ""
    each: bool = False
    once: ClassVar[bool] = False
    is_program: ClassVar[bool] = False
    life: GangState = GangState.NEW
    arguments: GangArguments | None = None
    epoch: int = 0
    parts: Sequence[GangStreamPart] = ()
    """The parts by rank, until it is over or waits for another epoch."""
    outstanding: int = 0

    @property
    def carrier(self) -> StreamReply:
        """The part of rank 0, whose worker makes its parts; itself while it was not sent."""
        return self.parts[0] if self.parts else self

    def told(self) -> str:
        """Describe the stream for the log."""
        state = "pending" if not self.is_over else repr(self.error) if self.error else "done"
        return f"<GangStream {self.id} of {self.method} in the world {self.world}: {state}>"


AnyGang = GangReply | GangStream
AnyPart = GangPart | GangStreamPart
GANGS: Final = (GangReply, GangStream)
PARTS: Final = (GangPart, GangStreamPart)


def part_of(stream: GangStream, name: Gang, part_id: int, rank: int) -> GangStreamPart:
    """Return a rank's part of a stream, which goes on behind what has come; it is not sent yet."""
    assert stream.arguments is not None
    credit = stream.credit
    part = GangStreamPart(stream.lane, part_id, stream.method, PART_DEADLINE_NS, stream.arguments.body)
    part.until_ns, part.between_ns, part.limit_ns = PART_DEADLINE_NS, stream.between_ns, stream.deadline_ns
    part.credit = (
        ReaderCredit.passed(credit.parts, credit.nbytes, credit.received, credit.received_bytes) if rank else credit
    )
    part.sent, part.gang, part.of, part.rank = stream.sent, name, stream, rank
    return part


def goes_on(end: GangEnd, stream: GangStream, info: MethodInfo | None, max_replays: int) -> bool:
    """Return whether a stream whose parts have ended so is sent again, on the next ready epoch.

    Args:
        end: What its parts have come to.
        stream: The stream.
        info: Its method, None if it is not known any longer.
        max_replays: How often it may be lost without a part in between.
    """
    if not isinstance(end.error, LOSSES) or has_diverged(end.error):
        return False
    can_resume = stream.resumes is not Resumes.NEVER
    if stream.credit.received and not can_resume:
        return False  # it would begin anew
    if end.moves or (not end.sent and isinstance(end.error, errors.CollectiveAborted)) or (end.planned and can_resume):
        return True
    if info is None or stream.replays >= max_replays:
        return False
    return can_resume or info.idempotent or (info.resend is Resend.UNSTARTED and not stream.may_have_run)
