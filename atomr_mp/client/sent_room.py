"""Parts of streams that are kept, so that resumable ones can go on elsewhere."""

from __future__ import annotations

import threading
from typing import Final

from atomr_mp.client.reply import ArrivedPart, StreamReply
from atomr_mp.protocol.messages.devices import Resumes

MAX_STREAM_BYTES: Final = 4 * 2**20
"""Most bytes of parts kept for one stream."""

MAX_SENT_BYTES: Final = 64 * 2**20
"""Most bytes kept for all streams of a client."""


class SentRoom:
    """Counts the kept bytes of all streams. Thread-safe; each stream is guarded by its lane's lock.

    Args:
        most_bytes: Most bytes to keep.
    """

    def __init__(self, most_bytes: int = MAX_SENT_BYTES) -> None:
        self._most_bytes: Final = most_bytes
        self._lock: Final = threading.Lock()
        self._bytes = 0

    def take(self, nbytes: int) -> bool:
        """Take room for so many bytes more (give it back if negative); False if there is none."""
        with self._lock:
            if nbytes > 0 and self._bytes + nbytes > self._most_bytes:
                return False
            self._bytes += nbytes
        return True

    def keep(self, stream: StreamReply, part: ArrivedPart) -> None:
        """Keep a part that a stream may need to go on elsewhere; one that cannot be kept ends that possibility."""
        if stream.resumes is not Resumes.SENT:
            return
        nbytes = len(part.body)
        is_plain = not part.frames and part.leases is None
        if is_plain and stream.sent_bytes + nbytes <= MAX_STREAM_BYTES and self.take(nbytes):
            stream.sent.append(part.body)
            stream.sent_bytes += nbytes
        else:
            stream.resumes = Resumes.NEVER
            self.forget(stream)

    def forget(self, stream: StreamReply) -> None:
        """Release a stream's parts."""
        if stream.sent_bytes:
            self.take(-stream.sent_bytes)
            stream.sent, stream.sent_bytes = [], 0
