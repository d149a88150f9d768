"""The supervisor's sessions: who is connected, what they are told, what they ask."""

from __future__ import annotations

import logging
import os
import resource
import select
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from atomr_mp import errors
from atomr_mp.protocol import control, session
from atomr_mp.protocol.codec import VERSION, ErrorInfo
from atomr_mp.supervisor.loop import Loop, Timer
from atomr_mp.supervisor.plan import Plan
from atomr_mp.transport.session import SessionListener, SessionPeer, refusal

if TYPE_CHECKING:
    from atomr_mp.supervisor.device import Device

_LOG: Final = logging.getLogger("atomr_mp.supervisor")

HELLO_S: Final = 10.0
"""How long a connection may stay silent before its hello."""

ACCEPT_PAUSE_S: Final = 0.1
"""How long nobody is accepted after it has failed: whoever waits is still there, and would be tried without end."""

RESERVED_DESCRIPTORS: Final = 256
"""What sessions leave for workers that are to be started and for files; at most half of what the kernel allows."""


class Orders(Protocol):
    """What sessions may ask of the supervisor."""

    @property
    def devices(self) -> list[Device]:
        """The pool's devices."""

    def status(self, request_id: int) -> session.Status:
        """Return a snapshot."""

    def restart(self, device: int) -> None:
        """Have a device's worker replaced.

        Raises:
            InvalidRequest: There is no such device.
        """

    def stop(self, why: str) -> None:
        """Stop the pool."""

    def owner_gone(self) -> None:
        """The session to which the pool's life is bound has ended."""


class Session:
    """A connected client."""

    def __init__(self, number: int, peer: SessionPeer, *, owner: bool) -> None:
        self.number: Final = number
        self.peer: Final = peer
        self.owner: Final = owner
        self.name = ""
        """Empty before the hello."""
        self.observer = True
        self.hello_timer: Timer | None = None
        self.session: Final = os.urandom(16)
        self.secret: Final = os.urandom(16)
        self.closed = False

    @property
    def may_call(self) -> bool:
        """Whether the workers know this session."""
        return bool(self.name) and not self.observer


class Sessions:
    """All connected clients.

    Args:
        plan: The pool's plan.
        epoch: The pool's epoch.
        loop: The supervisor's loop.
        orders: Who carries out what clients ask.
    """

    def __init__(self, plan: Plan, epoch: bytes, loop: Loop, orders: Orders) -> None:
        self._plan = plan
        self._epoch = epoch
        self._loop = loop
        self._orders = orders
        self._sessions: dict[int, Session] = {}
        self._last_number = 0
        self._actors: list[session.ActorInfo] = []
        self._snapshot: session.Status | None = None
        """Answers all that is asked in one read: a client that asks without end must not keep the others waiting."""
        self.refused = 0

    def __len__(self) -> int:
        return sum(1 for each in self._sessions.values() if each.may_call)

    def listen(self, listener: SessionListener) -> None:
        """Take in whoever connects."""

        def accept(_events: int) -> None:
            try:
                peer = listener.accept()
            except OSError as error:  # no descriptor is left: the client waits in the backlog
                _LOG.warning("a client cannot be accepted: %s", error)
                self._loop.forget(listener.fileno())
                self._loop.call_later(ACCEPT_PAUSE_S, watch)
                return
            if peer is not None:
                self.add(peer, owner=False)

        def watch() -> None:
            self._loop.watch(listener.fileno(), select.EPOLLIN, accept)

        watch()

    def add(self, peer: SessionPeer, *, owner: bool) -> None:
        """Take a connection in, if its process may connect.

        Args:
            peer: The connection.
            owner: The pool's life is bound to this session.
        """
        self._last_number += 1
        added = self._sessions[self._last_number] = Session(self._last_number, peer, owner=owner)
        refused = refusal(peer.credentials) or _crowded(peer)
        if refused is not None:
            self.refused += 1
            self._end(added, refused)
            return
        self._loop.watch(peer.fileno(), select.EPOLLIN, lambda events: self._on_ready(added, events))

        def expect_hello() -> None:
            self.refused += 1
            self._end(added, errors.ProtocolError(f"no hello within {HELLO_S:g} s"))

        added.hello_timer = self._loop.call_later(HELLO_S, expect_hello)

    def close(self, error: errors.AtomrError) -> None:
        """End all sessions."""
        for each in list(self._sessions.values()):
            self._end(each, error)

    # --- what devices tell -----------------------------------------------------------------------------------------

    def introductions(self) -> Iterable[control.SessionOpened]:
        """Return an introduction for every client that may call."""
        return [_introduction(each) for each in self._sessions.values() if each.may_call]

    def device_changed(self, device: Device, actors: list[session.ActorInfo] | None = None) -> None:
        """Tell every client the device's new state, and what its actors are if that is new."""
        if actors == self._actors:
            actors = None
        elif actors is not None:
            self._actors = actors
        for each in list(self._sessions.values()):
            if each.name:
                self._send(each, session.DeviceChanged(device.info(each.number), actors))

    def incarnation_ended(self, _device: Device, make: Callable[[int], session.IncarnationEnded]) -> None:
        """Tell every client that an incarnation has ended."""
        for each in list(self._sessions.values()):
            if each.name:
                self._send(each, make(each.number))

    def admitted(self, device: Device, number: int) -> None:
        """Tell a client that it may call a device."""
        each = self._sessions.get(number)
        if each is not None:
            self._send(each, session.DeviceChanged(device.info(number)))

    def violated(self, number: int, reason: str) -> None:
        """End a session that broke the rules of the data plane."""
        each = self._sessions.get(number)
        if each is not None:
            self.refused += 1
            self._end(each, errors.ProtocolError(f"this client broke the rules of the data plane: {reason}"))

    # --- what clients say ------------------------------------------------------------------------------------------

    def _on_ready(self, each: Session, events: int) -> None:
        if events & select.EPOLLOUT:
            if not each.peer.flush():
                self._end(each, None)
                return
            if not each.peer.wants_to_write:
                self._loop.rewatch(each.peer.fileno(), select.EPOLLIN)
        if not events & ~select.EPOLLOUT:
            return
        try:
            messages = each.peer.receive()
            if messages is None:
                self._end(each, None)
                return
            self._snapshot = None
            for message in messages:
                self._hear(each, message)
                if each.closed:
                    return
        except errors.AtomrError as error:
            self.refused += 1
            self._end(each, error)

    def _hear(self, each: Session, message: session.FromClient) -> None:
        match message:
            case session.Hello(version, name, observer) if not each.name:
                session.check_version(version)
                self._welcome(each, name, observer=observer)
            case _ if not each.name or isinstance(message, session.Hello):
                raise errors.ProtocolError("a session begins with one hello")
            case session.StatusRequest(request_id):
                self._snapshot = self._snapshot or self._orders.status(request_id)
                self._send(each, msgspec.structs.replace(self._snapshot, id=request_id))
            case session.RestartRequest(request_id, device):
                self._snapshot = None
                try:
                    self._orders.restart(device)
                except errors.AtomrError as error:
                    self._send(each, session.Answer(request_id, ErrorInfo.of(error)))
                else:
                    self._send(each, session.Answer(request_id))
            case session.StopRequest(request_id):
                self._snapshot = None
                self._send(each, session.Answer(request_id))
                self._orders.stop(f"{each.name} asked for it")

    def _welcome(self, each: Session, name: str, *, observer: bool) -> None:
        each.name, each.observer = name, observer
        _cancel_hello_timer(each)
        welcome = session.Welcome(
            version=VERSION,
            pool=self._plan.pool,
            epoch=self._epoch,
            supervisor_pid=os.getpid(),
            session=each.session,
            secret=each.secret,
            window=self._plan.window,
            devices=[device.info(each.number) for device in self._orders.devices],
            actors=self._actors,
        )
        self._send(each, welcome)
        if each.may_call:
            for device in self._orders.devices:
                device.tell(_introduction(each))

    def _send(self, each: Session, message: session.FromSupervisor) -> None:
        if each.closed:
            return
        if not each.peer.send(message):
            _LOG.warning("client %s does not read its events; its session is over", each.name)
            self._end(each, None)
        elif each.peer.wants_to_write:
            self._loop.rewatch(each.peer.fileno(), select.EPOLLIN | select.EPOLLOUT)

    def _end(self, each: Session, error: errors.AtomrError | None) -> None:
        """End a session, telling the client why if it is still there."""
        if each.closed:
            return
        each.closed = True
        _cancel_hello_timer(each)
        del self._sessions[each.number]
        if error is not None:
            each.peer.send(session.Goodbye(ErrorInfo.of(error)))
        self._loop.forget(each.peer.fileno())
        each.peer.close()
        if each.may_call:
            for device in self._orders.devices:
                device.tell(control.SessionEnded(each.number))
        if each.owner:
            # Later: whoever tells clients of a device is in the middle of a step of that device.
            self._loop.call_later(0, self._orders.owner_gone)


def _crowded(peer: SessionPeer) -> errors.Overloaded | None:
    """Return why there is no room for a session, None if there is."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    # The kernel gives the lowest number that is free.
    if limit == resource.RLIM_INFINITY or peer.fileno() < limit - min(RESERVED_DESCRIPTORS, limit // 2):
        return None
    return errors.Overloaded(
        "the supervisor has as many sessions as its limit of open files admits; close some, or raise the limit"
    )


def _cancel_hello_timer(each: Session) -> None:
    if each.hello_timer is not None:
        each.hello_timer.cancel()
        each.hello_timer = None  # it holds the session


def _introduction(each: Session) -> control.SessionOpened:
    return control.SessionOpened(each.number, each.session, each.secret)
