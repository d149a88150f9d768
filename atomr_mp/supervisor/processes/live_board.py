"""The board of a worker that may be writing it just now, as far as it is believed."""

from __future__ import annotations

import time

from atomr_mp.protocol.board import BoardReader, check


class LiveBoard:
    """A worker's board, read by copies that were checked.

    Args:
        memory: The board.
    """

    def __init__(self, memory: memoryview) -> None:
        self.defect = ""
        """Why the board was not believed when it was last read, "" if it was."""
        self._memory = memory
        self._believed = b""
        """The latest copy that was believed."""

    @property
    def last(self) -> BoardReader | None:
        """The latest copy that was believed, None if none was."""
        return BoardReader(memoryview(self._believed)) if self._believed else None

    def read(self) -> BoardReader | None:
        """Return a copy of the board, without its stacks; None if no worker can have written it."""
        with self._memory.cast("Q") as words:
            copy, self.defect = check.look(words, time.monotonic_ns, self._believed)
        if self.defect:
            return None
        self._believed = copy
        return self.last
