"""The meeting of an epoch whose data NCCL moves: ranks compare and wait on the host, and then put calls on streams.

A call comes behind a meeting of all ranks, so it waits on the device for others only until they have put theirs, and
for what lies before it on their streams. While it does, the board shows that this rank waits. If the epoch ends
meanwhile, the abort ends the call with anything for a result, and the gang call with `CollectiveAborted`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Final, NoReturn

from atomr_mp import errors
from atomr_mp_workers.worlds.cuda.watch import Onlooker
from atomr_mp_workers.worlds.epoch_place import EpochPlace
from atomr_mp_workers.worlds.exchange.meeting import Meeting
from atomr_mp_workers.worlds.nccl.captures import leave_captures_alone
from atomr_mp_workers.worlds.nccl.communicator import Communicator, GateShutError
from atomr_mp_workers.worlds.nccl.library import failed

_onlooker: Final = Onlooker()


class NcclMeeting(Meeting):
    """One process's side of the collectives of one epoch. See `Meeting`.

    Args:
        place: What this process has of the epoch.
        communicator: Returns the epoch's communicator; None until it is formed.
    """

    def __init__(self, place: EpochPlace, communicator: Callable[[], Communicator | None]) -> None:
        super().__init__(place)
        self._communicator: Final = communicator
        self._stream: Any = None
        """The stream that the latest call is on."""
        self._begun: Any = None
        """An event before the first call that had not ended when a later one was put; None if nothing was put."""
        self._done: Any = None
        """An event behind the latest call."""
        self._tell: Callable[[bool], object] = bool
        self._on_host = self._on_device = self._told = False
        """Whether this rank waits on the host or on its device, and what the board shows."""
        self._is_busy = False
        self._looks: Final = threading.Lock()
        """Guards what looks share with the world's thread."""

    @property
    def is_idle(self) -> bool:
        """Whether no gang call runs. Any thread."""
        return not self._is_busy

    def begin(self, sequence: int, waits: Callable[[bool], object] = bool, limit_ns: int = 0, method: str = "") -> None:
        """Take collectives of a gang call from now on, of this thread; see `Meeting.begin`."""
        super().begin(sequence, self._wait_on_host, limit_ns, method)
        self._begun = self._done = None
        self._tell, self._is_busy = waits, True
        _onlooker.look_on(self)

    def end(self) -> None:
        """Take no more collectives, and ring the peers that wait."""
        with self._looks:
            self._is_busy = self._on_host = self._on_device = False
            self._show()
            self._tell = bool
        super().end()

    def put(self, stream: Any, function: str, *arguments: Any) -> None:
        """Put a call on a stream that all ranks have met for.

        Args:
            stream: The stream.
            function: The function of `Nccl`.
            arguments: Its arguments, but for the communicator and the stream.

        Raises:
            CollectiveAborted: The epoch is over, or the call has failed, which ends the epoch.
        """
        communicator = self._communicator()
        if communicator is None:
            self._give_up()
        if self._stream is not None and self._stream.ptr != stream.ptr:
            stream.wait_event(self._stream.record())
        before = stream.record()
        try:
            status = communicator.call(function, *arguments, stream.ptr)
        except GateShutError:
            self._give_up()
        if status:
            why = failed(status, f"put {function} on a stream").message
            communicator.fail(why)
            self._abort(self.rank, why)
        done = stream.record()
        self._stream = stream
        with self._looks:
            if self._done is None or self._done.done:
                self._begun = before
            self._done = done

    def settle(self) -> None:
        """Wait for the calls so far.

        Raises:
            CollectiveAborted: The epoch is over.
        """
        found = self.settled()
        if found is not None:
            raise found

    def settled(self) -> errors.RequestError | None:
        """Wait for the calls so far; return the error if the epoch has ended meanwhile, None if it has not."""
        if self._done is None:
            return None
        self._done.synchronize()
        communicator = self._communicator()
        if communicator is not None and not communicator.is_shut:
            return None
        try:
            self._give_up()
        except errors.CollectiveAborted as error:
            return error

    def look(self) -> None:
        """Look whether this rank waits on its device for others. Another thread."""
        leave_captures_alone()
        with self._looks:
            if self._is_busy and self._done is not None:
                self._on_device = bool(self._begun.done) and not self._done.done
                self._show()

    def _give_up(self) -> NoReturn:
        """Raise that the gate is shut: the epoch is over, or has failed here.

        Raises:
            CollectiveAborted: In any case.
        """
        self._raise_if_over()
        communicator = self._communicator()
        why = communicator.failure if communicator is not None else ""
        self._abort(self.rank, why or "its communicator was closed")

    def _wait_on_host(self, waits: bool) -> None:  # noqa: FBT001 - a value to be shown
        with self._looks:
            self._on_host = waits
            self._show()

    def _show(self) -> None:
        waits = self._on_host or self._on_device
        if waits != self._told:
            self._told = waits
            self._tell(waits)
