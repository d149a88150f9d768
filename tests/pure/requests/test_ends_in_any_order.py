"""Requests that run ahead of each other on streams, as on a GPU, where ends are seen in any order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atomr_mp_workers.device.base import Event, Work, WorkerDevice
from tests.deciding import NAME, DecidingWorker, DeferringStream, Invert


class RunningAhead(DeferringStream):
    """A stream that may find its work done at once, before the ends of its earlier work were taken back.

    Args:
        device: Makes events.
        at_once: Says of each piece of work whether it is found done at once.
        recorded: The events that any such stream can wait for.
    """

    def __init__(self, device: WorkerDevice, at_once: Iterator[bool], recorded: set[Event]) -> None:
        super().__init__(device)
        self._at_once = at_once
        self._recorded = recorded

    def submit(self, work: Work, after: Sequence[Event], nbytes: int) -> bool:
        """Do work at once, and perhaps keep its end back."""
        super().submit(work, after, nbytes)
        if not work.goes_on and next(self._at_once, False):
            self.pending.pop()
            return True
        return False


STEPS = st.lists(st.tuples(st.integers(0, 1), st.booleans(), st.sampled_from(["go", "take back", ""])), max_size=12)


@settings(deadline=None, max_examples=150)
@given(STEPS, st.lists(st.integers(0, 1), max_size=40))
def test_each_request_is_answered_in_whatever_order_ends_are_seen(
    steps: list[tuple[int, bool, str]], ends: list[int]
) -> None:
    """Each reads what the one before it has written. None of them waits for an event that has been."""
    with pytest.MonkeyPatch.context() as patch:
        worker = DecidingWorker(patch, "deferring")
        recorded: set[Event] = set()
        at_once = iter([now for _, now, _ in steps])
        streams = [RunningAhead(worker.device, at_once, recorded) for _ in range(2)]
        peer = worker.client(1)
        arrays = [worker.array(peer, [1.0, 2.0]) for _ in range(len(steps) + 1)]
        zeros = [worker.array(peer, [0.0]) for _ in steps]
        worker.envelope.make_ready(f"{NAME}.invert")
        method = worker.envelope._methods[f"{NAME}.invert"]
        asked = []
        for at, (which, _, then) in enumerate(steps):
            method.stream = streams[which]
            asked.append(worker.request(peer, Invert(arrays[at], arrays[at + 1], zeros[at])))
            worker.dispatcher.work()
            if then == "go" and streams[which].pending:
                streams[which].go()
            elif then == "take back":
                worker.dispatcher.take_back()
        for which in [*ends, *[0] * len(steps), *[1] * len(steps)]:
            if streams[which].pending:
                streams[which].go()
        worker.dispatcher.take_back()
        while any(stream.pending for stream in streams):
            for stream in streams:
                stream.go_all()
            worker.dispatcher.take_back()
        assert not worker.dispatcher.busy
        worker.close()
