"""Keeps the relay running, on a listening socket that outlives it, so that no connection is refused meanwhile."""

from __future__ import annotations

import ipaddress
import logging
import os
import socket
from collections.abc import Callable
from typing import Final, NamedTuple

from atomr_mp import errors
from atomr_mp.process.files.rundir import HeldRunDirectory
from atomr_mp.protocol.messages import operators, relay
from atomr_mp.protocol.own_time import RELAY_QUIET_S
from atomr_mp.supervision.settings import PoolSettings
from atomr_mp.supervisor.care.helpers import Helpers
from atomr_mp.supervisor.care.relay_process import RelayProcess
from atomr_mp.supervisor.loop import Loop, Timer

_LOG: Final = logging.getLogger("atomr_mp.supervisor")

TCP: Final = "tcp://"

BACKLOG: Final = 1024
"""Connections that wait while no relay lives, or while it is busy."""

FIRST_AGAIN_S: Final = 0.1
LAST_AGAIN_S: Final = 5.0
"""Least and greatest delay of a further start after an end. The first comes at once; each delay is twice the last."""

WELL_S: Final = 10.0
"""After a life of this length the next start comes at once."""

WELL_WITH_STANDBY_S: Final = 1.0
"""After a life of this length the relay that stands by takes over at once: its start is paid for."""

ATTEMPTS: Final = 2
"""How often a relay is looked for that says goodbye: the one that stands by may have ended too."""

BACK_S: Final = 5.0
"""Within so long after a relay's start the clients of the one before have come back."""

LEAST_QUIET_S: Final = 3.0
"""The same where clients would give their sessions up before that: its interval, and a step of the supervisor's own
time."""

LOOK_S: Final = 1.0
"""How often it is checked whether the relay is silent."""

Done = Callable[[errors.AtomrError | None], object]
Note = Callable[[str, str, dict[str, str]], object]
"""Notes an event: its name, its text, and its facts."""


class RelayKeeper:
    """The relay's process, which is replaced after each end, and the one that stands by.

    Args:
        settings: The pool's settings.
        keys_dir: The directory of the keys; empty for no encryption.
        run_dir: The run directory.
        loop: The supervisor's loop.
        helpers: Start processes.
        note: Notes events.

    Raises:
        ConfigurationError: The address cannot be used.
    """

    def __init__(
        self,
        settings: PoolSettings,
        keys_dir: str,
        run_dir: HeldRunDirectory,
        loop: Loop,
        helpers: Helpers,
        note: Note,
    ) -> None:
        self._settings = settings
        self._keys_dir = keys_dir
        self._run_dir = run_dir
        self._loop = loop
        self._helpers = helpers
        self._note = note
        self._listener = listen(settings.listen)
        host, port = self._listener.getsockname()[:2]
        self.address: Final = f"{TCP}[{host}]:{port}" if ":" in host else f"{TCP}{host}:{port}"
        self._serving: RelayProcess | None = None
        self._standby: RelayProcess | None = None
        """Takes over at the other's end. It is started when that listens: two never make themselves ready together."""
        self._starts = 0
        self._watching: Timer | None = None
        self._again_s = 0.0
        self._figures = relay.RelayFigures(listening=False, sessions=[], refused=0)
        self._refused_before = 0
        """What the relays before have refused."""
        self._reading: dict[int, Done] = {}
        """Callbacks that wait for the keys to be read, by number."""
        self._questions = 0
        self._stopping = False
        self._draining = False

    def start(self) -> None:
        """Have a relay listen: the one that stands by, or a new one. To be called once the supervisor listens."""
        if self._stopping:
            return
        if not self._have_listen():
            self._loop.call_later(LAST_AGAIN_S, self.start)
        elif self._watching is None:
            self._watching = self._loop.call_later(LOOK_S, self._watch)

    def _have_listen(self) -> bool:
        """Have the relay listen that stands by, or a new one; return False if none can be started."""
        serving, self._standby = self._standby or self._new(), None
        if serving is None:
            return False
        self._serving = serving
        self._starts += 1
        serving.listen()
        if self._draining:
            serving.send(relay.RelayDrains())
        return True

    def _new(self) -> RelayProcess | None:
        """Start a process that stands by."""
        settings = relay.RelaySettings(
            endpoint=self.address,
            listener=self._listener.fileno(),
            session_socket=str(self._run_dir.session_socket),
            run_dir=str(self._run_dir.path),
            keys_dir=self._keys_dir,
            max_sessions=self._settings.remote_sessions,
            max_bytes=self._settings.remote_bytes,
            grace_s=self._settings.remote_grace_s,
        )
        try:
            return RelayProcess(settings, self._loop, self._helpers, self._take, self._ended)
        except OSError as error:
            _LOG.warning("the relay cannot be started: %s", error)
            return None

    def _stand_by(self) -> None:
        """Start the next one, which stands by, if one listens and none stands by."""
        if self._stopping or self._standby is not None or not self._figures.listening:
            return
        self._standby = self._new()
        if self._standby is None:
            self._loop.call_later(LAST_AGAIN_S, self._stand_by)

    def status(self) -> operators.RemoteStatus:
        """Return how remote clients are served."""
        figures, serving, standby = self._figures, self._serving, self._standby
        return operators.RemoteStatus(
            self.address,
            0 if serving is None else serving.pid,
            figures.listening,
            max(0, self._starts - 1),
            self._refused_before + figures.refused,
            figures.sessions,
            0 if standby is None else standby.pid,
        )

    def read_keys(self, done: Done) -> None:
        """Tell the relay to read the admitted keys again; the next one reads them anyway."""
        if self._serving is None or not self._figures.listening:
            done(None)
            return
        self._questions += 1
        self._reading[self._questions] = done
        self._serving.send(relay.KeysChanged(self._questions))

    def drain(self) -> None:
        """Have it end the sessions of clients that are away: the pool stops."""
        self._draining = True
        if self._serving is not None:
            self._serving.send(relay.RelayDrains())

    def close(self, why: str) -> None:
        """Tell it to say goodbye, and stop listening. Blocks for a moment."""
        self._stopping = True
        for _ in range(ATTEMPTS):  # one that has just ended, seen or not, leaves clients that are about to come back
            if self._starts and (self._serving is None or self._serving.is_gone):
                self._have_listen()
        processes = [process for process in (self._serving, self._standby) if process is not None]
        for process in processes:
            lived_s = self._loop.own_s - process.listens_since
            process.send(relay.RelayStops(why, self._starts > 1 and lived_s < BACK_S))
        for process in processes:
            process.wait_stopped()
        self._listener.close()

    def _watch(self) -> None:
        """Kill a relay whose loop does not turn."""
        self._watching = self._loop.call_later(LOOK_S, self._watch)
        serving = self._serving
        limit_s = quiet_s(self._settings.remote_grace_s)
        if serving is not None and self._loop.own_s - serving.heard_at > limit_s:
            self._note("relay_hung", f"the relay has said nothing for {limit_s:g} s, and is killed", {})
            serving.kill()

    def _ended(self, process: RelayProcess, status: int) -> None:
        if process is self._standby:
            self._standby = None
            if not self._stopping:
                self._note("relay_standby_end", f"the relay that stood by has ended with status {status}", {})
                self._loop.call_later(LAST_AGAIN_S, self._stand_by)
            return
        self._serving = None
        self._refused_before += self._figures.refused
        self._figures = relay.RelayFigures(listening=False, sessions=[], refused=0)
        for done in self._reading.values():
            done(None)
        self._reading.clear()
        if self._stopping:
            return
        lived_s = self._loop.own_s - process.listens_since
        well = lived_s > (WELL_S if self._standby is None else WELL_WITH_STANDBY_S)
        self._again_s = 0.0 if well or (not self._again_s and self._starts == 1) else max(FIRST_AGAIN_S, self._again_s)
        delay_s = self._again_s
        self._again_s = min(LAST_AGAIN_S, max(FIRST_AGAIN_S, 2 * self._again_s))
        self._note("relay_end", f"the relay has ended with status {status}; the next listens in {delay_s:g} s", {})
        if delay_s:
            self._loop.call_later(delay_s, self.start)
        else:
            self.start()

    def _take(self, message: relay.FromRelay) -> None:
        match message:
            case relay.RelayFigures():
                begins = message.listening and not self._figures.listening
                self._figures = message
                if begins:
                    self._note("relay_start", f"remote clients are admitted at {self.address}", {})
                    self._stand_by()
            case relay.RelayEvent(event, text, client, key):
                self._note(event, text, {name: fact for name, fact in (("client", client), ("key", key)) if fact})
            case relay.KeysRead(number, error):
                done = self._reading.pop(number, None)
                if done is not None:
                    done(None if error is None else error.error())


def quiet_s(grace_s: float) -> float:
    """Return how long a relay may say nothing, so that clients still come back to the next one.

    Args:
        grace_s: How long clients that are cut keep their sessions. Where that is too short for any relay to be found
            hung in time, they lose them.
    """
    return min(RELAY_QUIET_S, grace_s / 2) if grace_s >= 2 * LEAST_QUIET_S else RELAY_QUIET_S


class Address(NamedTuple):
    """The address where a relay listens."""

    host: str
    port: int


def listen(address: str) -> socket.socket:
    """Return a socket that listens at an address.

    Raises:
        ConfigurationError: It cannot be.
    """
    host, port = parse(address)
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listening = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen(BACKLOG)
        return listening
    except OSError as error:
        raise errors.ConfigurationError(
            f"listen = {address!r}: nothing can listen there: {os.strerror(error.errno or 0)}"
        ) from error


def parse(address: str) -> Address:
    """Return host and port of an address.

    Raises:
        ConfigurationError: It is not an address.
    """
    host, _, port = address.removeprefix(TCP).rpartition(":")
    host = host.strip("[]")
    host = "0.0.0.0" if host == "*" else host  # noqa: S104 - the operator asks for all interfaces
    try:
        if not address.startswith(TCP):
            raise ValueError
        ipaddress.ip_address(host)
        if not 0 <= int(port) < 2**16:
            raise ValueError
    except ValueError:
        raise errors.ConfigurationError(
            f"listen = {address!r}: use off, or tcp://ADDRESS:PORT with an address of this machine, as "
            "tcp://10.0.0.5:5570 (tcp://*:5570 for all of them)"
        ) from None
    return Address(host, int(port))


def is_loopback(address: str) -> bool:
    """Whether only this machine can connect."""
    return ipaddress.ip_address(parse(address).host).is_loopback
