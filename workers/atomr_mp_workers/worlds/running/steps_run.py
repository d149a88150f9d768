"""One step of a world's method over many streams: its streams in the ring's order, and what each has come to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from atomr_mp.protocol.world import Outcome
from atomr_mp_workers.live import Live, LiveStream
from atomr_mp_workers.memory.blocks import Holder
from atomr_mp_workers.requests.kinds.stream import StreamRequest
from atomr_mp_workers.requests.method import Method
from atomr_mp_workers.requests.streams.steps import StepsRun


class SteppedStream:
    """A stream that runs together with others on this rank.

    Args:
        stream: The stream.
        live: The same as its method sees it.
    """

    def __init__(self, stream: StreamRequest, live: LiveStream[Any, Any]) -> None:
        self.stream: Final = stream
        self.live: Final = live
        self.outcome = Outcome.GOES_ON
        """What its latest step has come to here."""

    @property
    def is_untold(self) -> bool:
        """Whether the method would still have to hear that the stream is gone."""
        return self.outcome in {Outcome.GOES_ON, Outcome.LEFT}


class GangStepsRun(StepsRun):
    """One step of a world's method.

    Args:
        method: The method.
        members: The live streams, in the order of the entry.
        new: Those that begin.
        gone: Streams that are gone.
        leaving: Those of them that get their answers after the step.
        holder: The holder of the memory that it makes.
    """

    def __init__(
        self,
        method: Method,
        members: Sequence[SteppedStream],
        new: list[LiveStream[Any, Any]],
        gone: list[LiveStream[Any, Any]],
        leaving: Sequence[StreamRequest],
        holder: Holder,
    ) -> None:
        lives = {each.live.id: each.live for each in members}
        super().__init__(method, Live(lives, new, gone), [each.stream for each in members], leaving, holder)
        self.members: Final = members

    def come_to(self) -> list[Outcome]:
        """Note, and return, what each stream has come to. The world's thread, after the step."""
        failed = self.error is not None or self.raised is not None
        for each in self.members:
            if each.live.over:
                each.outcome = Outcome.ENDED if each.stream.error is None else Outcome.FAILED
            elif failed or each.stream.error is not None:
                each.outcome = Outcome.LEFT
        return [each.outcome for each in self.members]
