"""The listeners of a device: the parts that it needs of the sessions and of the keeper of resident memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from atomr_mp.protocol.messages import control
from atomr_mp.protocol.messages.session import IncarnationEnded
from atomr_mp.supervision.reclaim import Worker
from atomr_mp.supervision.suspicion import Death
from atomr_mp.transport.descriptors import Descriptor

WorldMessage = control.EpochJoined | control.EpochLeft | control.EpochBroken | control.EpochHeld


Tell = Callable[[control.FromSupervisor, Descriptor | None], None]
"""Sends a process a message; the descriptor is the callee's."""


class ResidentListener(Protocol):
    """The keeper of memory that outlives the processes."""

    def heard(self, worker: Worker, message: control.OfResident, descriptor: Descriptor | None) -> None:
        """A process has said something about resident memory; the descriptor is the caller's.

        Raises:
            ProtocolError: It must not say so.
        """

    def ended(self, worker: Worker, *, stuck: bool = False) -> None:
        """A process has ended, and was reaped; or it is `stuck`, and its end is not waited for."""


class WorldListener(Protocol):
    """The worlds that devices are members of. Clients hear of the end of an epoch before they hear of its cause."""

    def starting(self, worker: Worker) -> list[tuple[control.FromSupervisor, Descriptor | None]]:
        """Return the first messages to a process that is about to start; the descriptors are the receiver's.

        Raises:
            OSError: No descriptor is left; nothing was made.
        """

    def withdraw(self, worker: Worker, offers: Sequence[tuple[control.FromSupervisor, Descriptor | None]]) -> None:
        """Take these messages back, since the process could not be made."""

    def loaded(self, worker: Worker, codes: Sequence[control.WorldCode]) -> None:
        """A process has loaded code with these digests for the actors of its worlds."""

    def ready(self, worker: Worker, code: str) -> None:
        """A process is active from now on, and what names the code that it was set up with."""

    def leaves(self, worker: Worker, reason: str, *, answers: bool) -> None:
        """The active process takes no more calls, and why; whether it carries orders out until its end."""

    def stopped(self, worker: Worker) -> None:
        """All threads of a process have stopped; the process itself may end later."""

    def ended(self, worker: Worker) -> None:
        """A process has ended, or never will."""

    def mailbox(self, worker: Worker, message: control.WorldMailbox, descriptor: Descriptor | None) -> None:
        """A process has handed its mailbox over; the descriptor is the caller's.

        Raises:
            ProtocolError: It must not do so.
        """

    def parts_wait(self, worker: Worker, message: control.PartsWait) -> None:
        """A process has said which parts of calls wait there for which."""

    def refused(self, worker: Worker, message: control.WorldRefused) -> None:
        """A process has no mailbox to hand over, and says why.

        Raises:
            ProtocolError: It is no member of this world.
        """

    def heard(self, worker: Worker, message: WorldMessage) -> None:
        """A process has said something about an epoch.

        Raises:
            ProtocolError: It must not say so.
        """


class DeviceListener(Protocol):
    """The sessions, as a device sees them."""

    def introductions(self, device: int) -> Iterable[tuple[control.FromSupervisor, Descriptor | None]]:
        """Return the messages that introduce every client to a device's worker; the descriptors are the receiver's."""

    def device_changed(self, device: int, *, published: bool = False) -> None:
        """Tell every client the device's new state, and the pool's actors if a `published` worker has changed them."""

    def incarnation_stopped(self, make: Callable[[int], IncarnationEnded], *, sends: bool) -> None:
        """Tell every client early what `incarnation_ended` will tell: the incarnation has stopped running."""

    def incarnation_ended(self, make: Callable[[int], IncarnationEnded]) -> None:
        """Tell every client that an incarnation has ended; `make` takes the session's number."""

    def died(self, worker: Worker, death: Death) -> None:
        """An incarnation, or a standby, has ended, maybe by one of its requests; clients hear of it next."""

    @property
    def reports_due_s(self) -> float:
        """Longest wait, in seconds, for clients' reports on ends that may be forgiven; 0 if none is due."""

    def incarnation_over(self, worker: Worker) -> None:
        """A process has ended, and the device has released it."""

    def admitted(self, device: int, number: int) -> None:
        """A worker, or a standby that is ready, has acknowledged a session."""

    def acknowledged(self, worker: Worker, number: int) -> None:
        """A worker has finished with a session."""

    def exported(self, worker: Worker, message: control.SlabExported, descriptor: Descriptor | None) -> None:
        """A worker has answered for a slab; the descriptor is the callee's."""

    def memory_wanted(self, device: int, number: int, tell: Tell) -> None:
        """A worker that knows a session could not map some of its memory: introduce that once more, by `tell`."""

    def result_slab(
        self, worker: Worker, message: control.ResultSlab | control.ResultSlabFreed, descriptor: Descriptor | None
    ) -> None:
        """A worker has handed in a slab with results, or freed one; the descriptor is the caller's."""

    def violated(self, number: int, reason: str) -> None:
        """A session broke the rules of the data plane."""
