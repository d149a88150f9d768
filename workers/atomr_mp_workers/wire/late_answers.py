"""Sends on what a peer made no room for at once, while the loop runs requests.

Its thread has another use: of a process that is killed, the last thread to end takes the memory down, so the supervisor
hears early of an end only if there are two.
"""

from __future__ import annotations

import os
import select
import threading
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from atomr_mp_workers.wire.data_peer import DataPeer


class LateAnswers:
    """The peers for whom something waits for room. `lock` is to be held for all but `close`."""

    def __init__(self) -> None:
        self.lock: Final = threading.Lock()
        """Held to change what waits."""
        self._waiting: Final[dict[int, DataPeer]] = {}
        """By descriptor."""
        self._room = select.epoll()
        self._end: Final = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._room.register(self._end, select.EPOLLIN)
        self._thread: Final = threading.Thread(target=self._run, name="atomr-mp late answers", daemon=True)
        self._thread.start()

    def add(self, peer: DataPeer) -> None:
        """Send what waits for a peer whenever there is room, until nothing does. It may be there already."""
        if peer.descriptor in self._waiting:
            return
        self._waiting[peer.descriptor] = peer
        self._room.register(peer.descriptor, select.EPOLLOUT)

    def remove(self, peer: DataPeer) -> None:
        """Send nothing more; the peer is about to be closed."""
        if self._waiting.pop(peer.descriptor, None) is not None:
            self._room.unregister(peer.descriptor)

    def close(self) -> None:
        """End; nothing waits any more."""
        os.eventfd_write(self._end, 1)
        self._thread.join()
        self._room.close()
        os.close(self._end)

    def _run(self) -> None:
        while True:
            for descriptor, _ in self._room.poll():
                if descriptor == self._end:
                    return
                with self.lock:
                    peer = self._waiting.get(descriptor)  # it may have been closed, or be another
                    if peer is not None and not peer.send_late():
                        self.remove(peer)
