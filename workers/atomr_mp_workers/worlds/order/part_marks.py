"""What the parts of a call say besides that they have come, while some of them are missing. Pure."""

from __future__ import annotations

from typing import Final

from atomr_mp.protocol.world import NoteKind
from atomr_mp_workers.worlds.order.steps import PartKey

_ALONE: Final = frozenset({NoteKind.CAME_ALONE, NoteKind.OPENED_ALONE})


class PartMarks:
    """The marks of all calls that have not come to all members.

    Args:
        size: How many ranks there are.
    """

    def __init__(self, size: int) -> None:
        self.left: Final[set[PartKey]] = set()
        """Calls whose client has closed a connection with a part of them."""
        self._alone: Final[dict[PartKey, int]] = {}
        """On how many ranks a call has to run alone, if on any."""
        self._size: Final = size

    def came(self, key: PartKey, kind: NoteKind) -> None:
        """Take in how a part has come."""
        if kind in _ALONE:
            self._alone[key] = self._alone.get(key, 0) + 1

    def agree(self, key: PartKey) -> bool:
        """Return whether all parts of a call say the same, and forget them: the last one has come."""
        self.left.discard(key)
        return not self._alone or self._alone.pop(key, 0) in {0, self._size}

    def forget(self, key: PartKey) -> None:
        """Take in that a call will not run."""
        self.left.discard(key)
        self._alone.pop(key, None)

    def forget_session(self, session: int) -> None:
        """Take in that no call of a session will run."""
        for key in [key for key in (*self.left, *self._alone) if key[0] == session]:
            self.forget(key)

    def clear(self) -> None:
        """Forget all calls."""
        self.left.clear()
        self._alone.clear()
