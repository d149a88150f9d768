"""Requests of an event loop that use refs of other devices: held until these are lent, while the loop goes on."""

from __future__ import annotations

import copy
import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from atomr_mp import errors
from atomr_mp.client.lanes.device_link import DeviceLink
from atomr_mp.client.lanes.services import LazyMemory
from atomr_mp.client.reply import Reply
from atomr_mp.protocol import values

if TYPE_CHECKING:
    from atomr_mp.client.memory.memory import RefLoan
    from atomr_mp.client.memory.refs import GpuRef


class LoopLending:
    """A part of a loop's lane; for the loop's thread, without the lane's lock.

    Each ref is asked for on the loop's own connection to the ref's device, so the question comes behind all that the
    loop has called there before. Meanwhile the request is *gated*: it has its place in the order of its device, and
    those behind it wait too. A gated request waits only for what was called earlier in the same loop, so no two wait
    for each other.

    Args:
        memory: The client's shared memory.
        request_ids: The session's.
        links: The lane's links, by device.
        make: Makes a request of the lane from its id, method, deadline and body.
        enter: Sends a question to a device, or holds it.
        settled: Called with the link and the request when all is lent, or with the error if that is impossible.
        cancel: Cancels a question that is not needed any more.
        call_soon: Calls a function in the loop, from any thread.
    """

    def __init__(
        self,
        memory: LazyMemory,
        request_ids: Iterator[int],
        links: Sequence[DeviceLink],
        *,
        make: Callable[[int, str, int, bytes], Reply],
        enter: Callable[[Reply, int], None],
        settled: Callable[[DeviceLink, Reply, errors.AtomrError | None], None],
        cancel: Callable[[Reply], None],
        call_soon: Callable[..., object],
    ) -> None:
        self._memory = memory
        self._request_ids = request_ids
        self._links = links
        self._make = make
        self._enter = enter
        self._settled = settled
        self._cancel = cancel
        self._call_soon = call_soon

    def begin(self, reply: Reply, foreign: Sequence[GpuRef], device: int) -> None:
        """Ask for the refs that a request needs, and gate it; it has not been sent, and is about to be.

        Raises:
            AtomrError: One cannot be asked for.
        """
        memory = self._memory.get()
        loans = memory.loans(foreign)
        questions = [self._question(loan, reply.deadline_ns) for loan in loans]
        links = [*[self._links[loan.device] for loan in loans], self._links[device]]
        chain = [*questions, reply]
        for (asked, waiting), link in zip(itertools.pairwise(chain), links[1:], strict=True):
            link.gated[waiting], link.in_order = 1, True
            asked.callbacks = [partial(self._on_answer, link, waiting)]
        reply.kept = (*reply.kept, *[loan.borrow for loan in loans])
        reply.callbacks = [*(reply.callbacks or ()), partial(self._on_end, links[-1], questions)]
        unreached = memory.unreached(foreign, device)
        links[-1].gated[reply] += bool(unreached)
        try:
            for question, loan in zip(questions, loans, strict=True):
                self._enter(question, loan.device)
        except BaseException:
            for each, link in zip(chain, links, strict=True):
                link.gated.pop(each, None)
            raise
        if unreached:
            threading.Thread(
                target=self._reach, args=(links[-1], reply, unreached), name="atomr-mp lending", daemon=True
            ).start()

    def _question(self, loan: RefLoan, deadline_ns: int) -> Reply:
        body, _, placed = values.encode(loan.request, self._memory.place)
        question = self._make(next(self._request_ids), f"memory.{loan.request.name}", deadline_ns, body)
        question.kept, question.copies, question.refs, *_ = self._memory.get().attach(placed, loan.device)
        return question

    def _reach(self, link: DeviceLink, reply: Reply, refs: Sequence[GpuRef]) -> None:
        """Have a device given other devices' memory; on a thread of its own, since busy workers answer later."""
        error: errors.AtomrError | None = None
        try:
            for ref in refs:
                self._memory.get().reach(ref, link.device)
        except errors.AtomrError as failed:
            error = errors.unraised(failed)
        self._call_soon(self._lent, link, reply, error)

    def _on_answer(self, link: DeviceLink, waiting: Reply, question: Reply) -> None:
        self._lent(link, waiting, question.error)

    def _lent(self, link: DeviceLink, waiting: Reply, error: errors.AtomrError | None) -> None:
        """Take in that one thing that a request waits for has come, or never will."""
        left = link.gated.get(waiting)
        if left is None:
            return
        if error is None and left > 1:
            link.gated[waiting] = left - 1
            return
        del link.gated[waiting]
        if isinstance(error, errors.RequestError):
            error = copy.copy(error)
            error.maybe_executed = False  # the request was not sent
        self._settled(link, waiting, error)

    def _on_end(self, link: DeviceLink, questions: Sequence[Reply], reply: Reply) -> None:
        """Let those behind a request go on, if it ended before it was sent."""
        for question in questions:
            if not question.is_over:
                self._cancel(question)
        if link.gated.pop(reply, None) is not None:
            self._settled(link, reply, None)
