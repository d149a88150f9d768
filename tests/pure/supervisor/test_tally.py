from __future__ import annotations

from atomr_mp.protocol.board import BOARD_BYTES, BoardReader, BoardWriter, Counter
from atomr_mp.protocol.messages.operators import EndCount
from atomr_mp.supervision.tally import DeviceTally


def board(answered: int, failed: int, queued: int) -> BoardReader:
    """Return the board of a worker that has done so much, each in 100 ns."""
    memory = memoryview(bytearray(BOARD_BYTES))
    writer = BoardWriter(memory)
    writer.receive(answered + failed + queued)
    writer.count(Counter.FAILED, failed)
    for _ in range(answered + failed):
        writer.end(writer.start(1, 1, 50, 1000), 150, 50)
    return BoardReader(memory)


def test_sums_go_on_when_an_incarnation_ends() -> None:
    """What the former did and what the current ones do; what a dead one held is lost, unless it moved on."""
    tally = DeviceTally()
    tally.add(board(answered=3, failed=1, queued=2), "sigkill", lost=True)
    tally.add(board(answered=0, failed=0, queued=5), "recycle", lost=False)
    figures = tally.figures([board(answered=9, failed=1, queued=1), board(answered=1, failed=1, queued=0)])
    assert (figures.received, figures.answered, figures.failed, figures.lost) == (24, 13, 3, 2)
    assert figures.latency_ns == 1600
    assert figures.latencies[7] == sum(figures.latencies) == 16
    assert figures.ends == [EndCount("recycle", 1), EndCount("sigkill", 1)]
    assert tally.figures().answered == 3


def test_any_memory_gives_figures_that_can_be_sent() -> None:
    """A worker whose code writes where it should not spoils its own figures, and no status."""
    tally = DeviceTally()
    for _ in range(2):
        tally.add(BoardReader(memoryview(bytearray(b"\xff" * BOARD_BYTES))), "exit", lost=True)
    figures = tally.figures()
    assert all(0 <= count < 2**63 for count in [*figures.latencies, figures.answered, figures.lost, figures.received])
