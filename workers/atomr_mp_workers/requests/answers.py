"""Puts answers into the outboxes of their peers. Only with the loop's turn."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final, cast

import msgspec

from atomr_mp import checks, errors
from atomr_mp.protocol import values
from atomr_mp.protocol.codec import ErrorInfo
from atomr_mp.protocol.messages import data
from atomr_mp_workers.memory.arrays import Block, DeviceArray
from atomr_mp_workers.memory.store import Store
from atomr_mp_workers.requests import contents
from atomr_mp_workers.requests.kinds.items import ItemsSlice
from atomr_mp_workers.requests.kinds.stream import StreamRequest
from atomr_mp_workers.requests.kinds.stream_life import StreamState
from atomr_mp_workers.requests.peers import Peer
from atomr_mp_workers.requests.raised import wire_form
from atomr_mp_workers.requests.request import Request

ERROR_BYTES: Final = 4096
"""Bytes that an item's error counts for among waiting answers: about its size where many items have failed."""


@checks.owned()
class Answers:
    """Gives the answers of requests to their peers.

    Args:
        store: The store, which leases the buffers in a result.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self.outbox: Final[dict[Peer, None]] = {}
        """Peers with answers or parts to send, in order. Only what puts one of these there adds its peer, so that no
        answer stays behind; the loop does not sleep while there are some."""
        self.streams: Final[set[StreamRequest]] = set()
        """Streams that have not been answered."""
        self.withheld: list[tuple[Request, errors.AtomrError | None, Sequence[Block]]] = []
        """Answers of writers that did not start, with their unwritten blocks, and answers of readers that were refused
        for them. As long as these wait, no client knows that a writer did not start."""
        self._withheld_before = 0
        """How many of them have waited for a whole turn."""

    def give(self, request: Request, error: errors.AtomrError | None) -> None:
        """Answer a request; hold its answer if readers of its unwritten memory may be in flight."""
        if request.missed or (self.withheld and isinstance(error, errors.GpuRefUndefined)):
            self.withheld.append((request, error, request.missed))
            request.missed = ()
            return
        self._give(request, error)

    def _give(self, request: Request, error: errors.AtomrError | None) -> None:
        kind = type(request)  # an isinstance check on an abstract class takes as long as the answer
        if kind is ItemsSlice:
            self._give_items(cast("ItemsSlice", request), error)
        else:
            if kind is StreamRequest:
                self.forget(cast("StreamRequest", request))
                if cast("StreamRequest", request).moves:
                    return
                request.peer.unanswered += 1  # it does not count among them
            if error is not None:
                # Its method may have had a result before that: a stream's was to end it, and what a device had yet to
                # compute has failed.
                request.encoded = None
            told = request.batch_rows, request.ran_ns
            self.reply(request.peer, request.id, request.encoded, error, told=told)

    def forget(self, stream: StreamRequest) -> None:
        """Record that a stream is answered, or need not be."""
        stream.state = StreamState.OVER
        self.streams.discard(stream)
        stream.peer.streams.pop(stream.id, None)

    def give_part(self, stream: StreamRequest, number: int, encoded: values.Encoded, nbytes: int) -> None:
        """Put a part of a stream into the peer's outbox; see `MadePart` for the arguments."""
        peer = stream.peer
        session = peer.session
        if session.ended:
            return
        body, frames, placed = encoded
        self.outbox[peer] = None
        if not frames and not placed:
            peer.parts.append(data.Part(stream.id, number, 0, body, nbytes))
            return
        leases = [self._store.lease(session.holder, array) for array in placed if isinstance(array, DeviceArray)]
        peer.parts.append(data.Part(stream.id, number, len(frames), body, nbytes, leases))
        peer.part_frames += frames

    def _give_items(self, part: ItemsSlice, error: errors.AtomrError | None) -> None:
        """Put the outcomes of a slice's items into the peer's outbox."""
        peer, many = part.peer, part.many
        many.unanswered -= part.items
        peer.unanswered += 1  # the call counts as one until all of it is answered
        if not many.unanswered:
            peer.unanswered -= 1
            peer.payload_bytes -= many.payload_bytes
        answers = part.answers if error is None else [(part.places, None)]
        peer.unanswered += len(answers) - 1
        for places, encoded in answers:
            failed = {at: part.failed[at] for at in places if at in part.failed} if part.failed else None
            self.reply(peer, part.id, encoded, error, places, failed)
        part.answers = []

    def reply(
        self,
        peer: Peer,
        request_id: int,
        result: values.Encoded | None,
        error: errors.AtomrError | None,
        places: list[int] | None = None,
        failed: dict[int, ErrorInfo] | None = None,
        told: tuple[int, int] = (0, 0),
    ) -> None:
        """Put a reply into a peer's outbox.

        Args:
            peer: The peer that sent the request.
            request_id: Its id.
            result: Its result; None if there is an error.
            error: The error that it has ended with.
            places: The items that this answer is about.
            failed: The errors of some of them.
            told: The reply's `batch_rows` and `ran_ns`.
        """
        session = peer.session
        if session.ended:
            peer.unanswered -= 1
            return
        self.outbox[peer] = None
        if result is None:
            assert error is not None
            form, ran_ns = session.error_form(error), told[1]
            peer.replies.append(data.CallReply(request_id, 0, b"", form, items=places, ran_ns=ran_ns))
            peer.unanswered -= 1
            return
        body, frames, placed = result
        if not frames and not placed and not places:
            peer.replies.append(data.CallReply(request_id, 0, body, None, [], None, None, 0, *told))
            peer.unanswered -= 1
        else:
            leases = [self._store.lease(session.holder, array) for array in placed if isinstance(array, DeviceArray)]
            reply = data.CallReply(request_id, len(frames), body, None, leases, places, failed, 0, *told)
            peer.replies.append(reply)
            peer.unanswered -= 1
            if failed:
                peer.reply_bytes += ERROR_BYTES * len(failed)
            peer.frames += frames
            peer.reply_bytes += sum(map(len, frames))
        peer.reply_bytes += len(body)

    def tell_time(self, request: Request, gpu_ns: int) -> None:
        """Add to an answer that was just given how long the device has worked for it; not if it is withheld."""
        replies = request.peer.replies
        if replies and replies[-1].id == request.id and replies[-1].items is None:
            replies[-1] = msgspec.structs.replace(replies[-1], gpu_ns=gpu_ns)

    def end_turn(self) -> None:
        """Give the answers held since an earlier turn of the loop: all messages sent before them have been read."""
        due, self.withheld, self._withheld_before = (
            self.withheld[: self._withheld_before],
            self.withheld[self._withheld_before :],
            len(self.withheld) - self._withheld_before,
        )
        now_ns = time.monotonic_ns()
        for request, error, blocks in due:
            contents.note_heard(blocks, request.order, now_ns)
            self._give(request, error)

    def distrust(self, error: errors.ContextPoisoned) -> None:
        """Drop all unsent results: they may have been computed after the context was lost."""
        for peer in self.outbox:
            peer.replies = [
                data.CallReply(reply.id, 0, b"", peer.session.error_form(error), items=reply.items)
                if reply.error is None
                else _named(reply, reply.error, error)
                for reply in peer.replies
            ]
            peer.frames = []
            peer.parts, peer.part_frames = [], []


def _named(reply: data.CallReply, info: ErrorInfo, lost: errors.ContextPoisoned) -> data.CallReply:
    """Return a reply with an error; of the request that has noticed the loss, with all that is known of it."""
    if info.code != lost.code:
        return reply
    told = wire_form(lost)
    where = {name: told.fields[name] for name in ("device", "generation")}
    named = msgspec.structs.replace(info, message=told.message, fields=info.fields | where)
    return msgspec.structs.replace(reply, error=named)
