"""Tells in the server's log which requests a worker has taken with it. For the event loop's thread.

The supervisor tells that a worker has ended, and why. It knows neither methods nor the ids that clients were told: only
the front end that has the requests does.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final, NamedTuple

from atomr_mp import errors
from atomr_mp.protocol.raised import one_line
from atomr_mp.protocol.words import counted
from atomr_mp.serve.served_request import ServedRequest
from atomr_mp.serve.server_log import tell

GATHER_S: Final = 0.2
"""How long requests of one worker are gathered for one line: they all end in the same moment."""

MOST_NAMED: Final = 20
"""Requests that a line names; of more it says how many."""

_Lost = errors.WorkerLost | errors.ContextPoisoned


class LostRequest(NamedTuple):
    """A request that has ended with its worker."""

    id: str
    method: str
    running: bool
    """Whether it had started and not ended, so that it may be the cause."""
    code: str = ""
    """What has become of it afterwards: "ok", or an error's code."""


class LostLog:
    """The log of requests that have ended with their worker, of one front end."""

    def __init__(self) -> None:
        self._lost: Final[dict[tuple[int, int], list[LostRequest]]] = {}
        """By device and generation."""
        self._sent_again: Final[dict[tuple[int, int], list[LostRequest]]] = {}
        """Those that their worker has not taken with it, by the device and generation of each that they ran on."""
        self._of_pool: Final[list[LostRequest]] = []
        """Those that have ended with the pool."""
        self._given_up: Final[list[LostRequest]] = []
        self._timer: asyncio.TimerHandle | None = None

    def give_up(self, served: ServedRequest) -> None:
        """Take a request that is not waited for any longer, since the server ends; `tell` tells of all."""
        self._given_up.append(LostRequest(served.id, served.called or served.path, served.sent))

    def note(self, served: ServedRequest, error: _Lost) -> None:
        """Take a request that has ended with its worker; one line reports several."""
        request = LostRequest(served.id, served.called, error.was_running and error.maybe_executed)
        self._lost.setdefault(_worker_of(served, error), []).append(request)
        self._tell_soon()

    def ran(self, served: ServedRequest) -> None:
        """Take a request whose answer is there, and that ran on workers that have ended."""
        request = LostRequest(served.id, served.called, True, served.code)
        error = served.error
        last = _worker_of(served, error) if isinstance(error, _Lost) else None
        for worker in served.ran_at:
            if worker != last:  # that one is told as lost
                self._sent_again.setdefault(worker, []).append(request)
        self._tell_soon()

    def lose_pool(self, served: ServedRequest, error: errors.PoolLost) -> None:
        """Take a request that has ended with the pool."""
        self._of_pool.append(LostRequest(served.id, served.called, error.maybe_executed))
        self._tell_soon()

    def _tell_soon(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(GATHER_S, self.tell)

    def tell(self) -> None:
        """Tell what was gathered."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for (device, generation), lost in self._lost.items():
            ran, queued = [each for each in lost if each.running], [each for each in lost if not each.running]
            groups = (("running:", ran), ("not running:", queued))
            parts = [f"{words} {_names(group)}" for words, group in groups if group]
            tell(
                logging.ERROR,
                "requests_lost",
                f"device {device} generation {generation}: {counted(len(lost), 'request')} ended with its worker; "
                + "; ".join(parts),
                device=device,
                generation=generation,
                running=[_facts(each) for each in ran[:MOST_NAMED]],
                not_running=[_facts(each) for each in queued[:MOST_NAMED]],
                requests=len(lost),
            )
        self._lost.clear()
        self._tell_sent_again()
        self._tell_of_pool()
        self._tell_given_up()

    def _tell_sent_again(self) -> None:
        for (device, generation), ran in self._sent_again.items():
            tell(
                logging.WARNING,
                "requests_ran",
                f"device {device} generation {generation}: {counted(len(ran), 'request')} ran when its worker ended, "
                f"and ended otherwise later: {_names(ran)}",
                device=device,
                generation=generation,
                running=[_facts(each) | {"code": each.code} for each in ran[:MOST_NAMED]],
                requests=len(ran),
            )
        self._sent_again.clear()

    def _tell_of_pool(self) -> None:
        if self._of_pool:
            ran, queued = (
                [each for each in self._of_pool if each.running],
                [each for each in self._of_pool if not each.running],
            )
            groups = (("may have run:", ran), ("have not run:", queued))
            tell(
                logging.ERROR,
                "requests_lost_with_pool",
                f"{counted(len(self._of_pool), 'request')} ended with the pool; "
                + "; ".join(f"{words} {_names(group)}" for words, group in groups if group),
                maybe_executed=[_facts(each) for each in ran[:MOST_NAMED]],
                not_executed=[_facts(each) for each in queued[:MOST_NAMED]],
                requests=len(self._of_pool),
            )
            self._of_pool.clear()

    def _tell_given_up(self) -> None:
        if self._given_up:
            text = f"{counted(len(self._given_up), 'request')} could not be answered before the end: "
            named = [_facts(each) for each in self._given_up[:MOST_NAMED]]
            tell(logging.WARNING, "requests_given_up", text + _names(self._given_up), given_up=named)
            self._given_up.clear()


def _worker_of(served: ServedRequest, error: _Lost) -> tuple[int, int]:
    """Return the device and generation; a worker that answers before it ends leaves out which one it is."""
    return (error.device, error.generation) if error.device >= 0 else (served.device, served.generation)


def _names(group: list[LostRequest]) -> str:
    more = f" and {len(group) - MOST_NAMED:,} more" if len(group) > MOST_NAMED else ""
    return ", ".join(map(_named, group[:MOST_NAMED])) + more


def _named(request: LostRequest) -> str:
    later = f", {request.code}" if request.code else ""
    return f"{one_line(request.method, 300)} (request {request.id}{later})"


def _facts(request: LostRequest) -> dict[str, str]:
    return {"id": request.id, "method": request.method}
