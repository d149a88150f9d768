"""Ended sessions, and the ends of mappings and processes that are awaited before their memory is given back."""

from __future__ import annotations

import os
import select
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from atomr_mp import checks, errors
from atomr_mp.process.identity import wait_ended
from atomr_mp.protocol.messages import control, session
from atomr_mp.supervision.reclaim import Due, Reclaims, Worker
from atomr_mp.supervisor.device.device import SupervisedDevice
from atomr_mp.supervisor.loop import Loop
from atomr_mp.supervisor.sessions.descriptor_limit import check_room
from atomr_mp.transport.session import SessionPeer


@dataclass
class _Client:
    """A client's process, some of whose sessions have ended."""

    pid: int
    pidfd: int
    peer: SessionPeer
    """The connection by which it has asked."""
    numbers: set[int] = field(default_factory=set)
    """The ended sessions that wait for its end."""


@dataclass
class _Parting:
    """The connection of an ended session, from which its client's last words are awaited."""

    peer: SessionPeer
    says_bye: bool
    """Whether its client has said that it ends the connection once it has no slab mapped."""


class Awaited(NamedTuple):
    """An ended session whose memory was not given back yet."""

    number: int
    state: str
    """Its state as `operators.SessionHeld` has it."""
    pid: int | None
    """The process whose end, or whose word, is awaited."""


@checks.owned(by_maker=True)
class SessionReclaim:
    """Watches the processes of ended sessions, and tells the workers to give memory back.

    Args:
        loop: The supervisor's loop.
        devices: The pool's devices, by index.
    """

    def __init__(self, loop: Loop, devices: Sequence[SupervisedDevice]) -> None:
        self._loop = loop
        self._devices = devices
        self._reclaims = Reclaims()
        self._mapping: dict[int, list[_Client]] = {}
        """The processes that have asked for slabs of living sessions: of one whose relay has ended, several."""
        self._asked: dict[int, SessionPeer] = {}
        """The connections by which living sessions have asked for slabs."""
        self._watched: dict[int, _Client] = {}
        """Processes by pid, so that a process costs one descriptor, whatever its number of ended sessions."""
        self._partings: dict[int, _Parting] = {}
        """The connections of ended sessions whose clients may have slabs mapped, and have not said otherwise."""

    def may_map(self, number: int, peer: SessionPeer) -> None:
        """A session asks for a slab, which its process may have mapped from then on.

        Raises:
            Overloaded: There is no room for a descriptor of the process.
        """
        if self._asked.get(number) is peer:
            return
        try:
            pidfd = peer.open_pidfd()
        except OSError as error:
            raise errors.Overloaded(f"the client's process cannot be watched: {error.strerror}") from error
        if pidfd is not None:
            try:
                check_room(pidfd)
            except errors.Overloaded:
                os.close(pidfd)
                raise
            self._mapping.setdefault(number, []).append(_Client(peer.credentials.pid, pidfd, peer))
        self._asked[number] = peer

    def cut(self, number: int) -> bool:
        """A session goes on without its connection; return whether its slabs were mapped by that one's process."""
        kept = []
        for client in self._mapping.pop(number, []):
            if _has_ended(client):
                os.close(client.pidfd)
            else:
                kept.append(client)
        if kept:
            self._mapping[number] = kept
        return self._asked.pop(number, None) is not None

    def ended(
        self, number: int, told: Iterable[Worker], peer: SessionPeer | None, *, bye: bool, mapped: bool = False
    ) -> None:
        """A session has ended.

        Args:
            number: The session's number.
            told: Workers that were told.
            peer: Its connection, if it has one; owned from here on.
            bye: Its client has said so.
            mapped: It has said that it has slabs mapped: it ends the connection once it has none.
        """
        self._asked.pop(number, None)  # a session that never asked for a slab has none mapped
        living = []
        for client in self._mapping.pop(number, []):
            if (bye and not mapped and client.peer is peer) or _has_ended(client):
                os.close(client.pidfd)
            else:
                living.append(client)
        due = self._reclaims.ended(number, told, gone=not living)
        for client in living:
            self._watch(client, number)
        if peer is not None:
            if any(client.peer is peer for client in living):
                self._await_last_words(number, _Parting(peer, says_bye=bye))
            else:
                peer.close()
        self._carry_out(due)

    def acknowledged(self, number: int, worker: Worker) -> None:
        """A worker has finished with the session."""
        self._carry_out(self._reclaims.acknowledged(number, worker))

    def worker_ended(self, worker: Worker) -> None:
        """A worker has ended."""
        self._carry_out(self._reclaims.worker_ended(worker))

    @property
    def waiting(self) -> list[Awaited]:
        """The ended sessions whose memory was not given back yet."""
        pids = {number: client.pid for client in self._watched.values() for number in client.numbers}
        return [Awaited(number, self._state(number), pids.get(number)) for number in self._reclaims.numbers]

    def close(self) -> None:
        """Stop watching processes, and connections."""
        for client in list(self._watched.values()):
            self._forget(client)
        for number in list(self._partings):
            self._close(number)

    def _state(self, number: int) -> str:
        parting = self._partings.get(number)
        if parting is None:
            return "ended"
        return "maps" if parting.says_bye else "parts"

    def _await_last_words(self, number: int, parting: _Parting) -> None:
        """Listen to the client of an ended session, which may have slabs mapped, until it has none or has gone."""
        self._partings[number] = parting
        parting.peer.say_no_more()
        self._loop.watch(parting.peer.fileno(), select.EPOLLIN, lambda _: self._hear_last(number, parting))
        self._hear_last(number, parting)  # it may have gone already, and its connection need not be kept then

    def _hear_last(self, number: int, parting: _Parting) -> None:
        try:
            messages = parting.peer.receive()
        except errors.ProtocolError:  # as below
            self._close(number)
            return
        if messages is None:
            self._close(number)
            if parting.says_bye:
                self._unmapped(number, parting.peer)
            return
        for message in messages:
            if parting.says_bye:  # it has broken the rules, and only its process's end tells
                self._close(number)
                return
            match message:
                case session.Bye(mapped=False):
                    self._close(number)
                    self._unmapped(number, parting.peer)
                    return
                case session.Bye():
                    parting.says_bye = True
                case session.RegisterSlab(request_id):
                    descriptor = parting.peer.take_descriptor(request_id)
                    if descriptor is not None:
                        descriptor.close()
                case _:
                    pass  # it was said before the client has heard of the end

    def _unmapped(self, number: int, peer: SessionPeer) -> None:
        """A session's client has said that it has no slab mapped in its process."""
        client = self._watched.get(peer.credentials.pid)
        if client is not None:
            client.numbers.discard(number)
            if not client.numbers:
                self._forget(client)
        self._no_longer_in(number)

    def _close(self, number: int) -> None:
        parting = self._partings.pop(number, None)
        if parting is not None:
            self._loop.forget(parting.peer.fileno())
            parting.peer.close()

    def _watch(self, client: _Client, number: int) -> None:
        watched = self._watched.get(client.pid)
        if watched is not None and _has_ended(watched):  # the pid is another process's by now
            self._gone(watched)
            watched = None
        if watched is None:
            watched = self._watched[client.pid] = client
            self._loop.watch(client.pidfd, select.EPOLLIN, lambda _: self._gone(client))
        else:
            os.close(client.pidfd)
        watched.numbers.add(number)

    def _gone(self, client: _Client) -> None:
        self._forget(client)
        for number in sorted(client.numbers):
            self._no_longer_in(number)

    def _no_longer_in(self, number: int) -> None:
        """A process of a session has lost its access to memory."""
        if not any(number in other.numbers for other in self._watched.values()):
            self._carry_out(self._reclaims.client_gone(number))

    def _forget(self, client: _Client) -> None:
        del self._watched[client.pid]
        self._loop.forget(client.pidfd)
        os.close(client.pidfd)

    def _carry_out(self, due: list[Due]) -> None:
        for number, workers in due:
            for index, generation in workers:
                worker = self._devices[index].roles.of(generation)
                if worker is not None:
                    worker.tell(control.Reclaim(number))
            self._close(number)
            for client in list(self._watched.values()):
                client.numbers.discard(number)
                if not client.numbers:
                    self._forget(client)


def _has_ended(client: _Client) -> bool:
    return bool(wait_ended([client.pidfd], 0))
