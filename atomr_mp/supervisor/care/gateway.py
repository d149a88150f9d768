"""Keeps the gateway running, on a listening socket that outlives it, so that no connection is refused meanwhile."""

from __future__ import annotations

import ipaddress
import logging
import os
import socket
import time
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol

import msgspec

from atomr_mp import errors
from atomr_mp.process.files.rundir import HeldRunDirectory
from atomr_mp.protocol.messages import operators, remote
from atomr_mp.supervision.remote_records import Fates
from atomr_mp.supervision.settings import PoolSettings
from atomr_mp.supervisor.care.gateway_process import GatewayProcess
from atomr_mp.supervisor.care.helpers import Helpers
from atomr_mp.supervisor.loop import Loop, Timer

_LOG: Final = logging.getLogger("atomr_mp.supervisor")

TCP: Final = "tcp://"

MAX_PORT: Final = 2**16 - 1

BACKLOG: Final = 1024
"""Connections that wait while no gateway lives, or while it is busy."""

FIRST_AGAIN_S: Final = 0.1
LAST_AGAIN_S: Final = 5.0
"""Least and greatest delay of a further start after an end. The first comes at once; each delay is twice the last."""

WELL_S: Final = 10.0
"""After a life of this length the next start comes at once."""

WELL_WITH_STANDBY_S: Final = 1.0
"""After a life of this length the gateway that stands by takes over at once: its start is paid for."""

QUIET_S: Final = 5.0
"""A gateway that has said nothing for so long is killed: its loop says every second that it turns."""

LOOK_S: Final = 1.0
"""How often it is checked whether the gateway is silent."""

Done = Callable[[errors.AtomrError | None], object]
Note = Callable[[str, str, dict[str, str]], object]
"""Notes an event: its name, its text, and its facts."""


class GatewayKeeper:
    """The gateway's process, which is replaced after each end, and the one that stands by.

    Args:
        settings: The pool's settings.
        keys_dir: The directory of the keys; empty for no encryption.
        run_dir: The run directory.
        loop: The supervisor's loop.
        helpers: Start processes.
        note: Notes events.
        remotes: The records of remote sessions.

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
        remotes: Remotes,
    ) -> None:
        self._remotes = remotes
        self._settings = settings
        self._keys_dir = keys_dir
        self._run_dir = run_dir
        self._loop = loop
        self._helpers = helpers
        self._note = note
        self._listener = listen(settings.listen)
        try:
            self._bulk = listen(bulk_address(settings.listen))
        except errors.ConfigurationError:
            self._listener.close()
            raise
        host, port = self._listener.getsockname()[:2]
        self.address: Final = f"{TCP}[{host}]:{port}" if ":" in host else f"{TCP}{host}:{port}"
        self._serving: GatewayProcess | None = None
        self._standby: GatewayProcess | None = None
        """Takes over at the other's end. It is started when that listens: two never make themselves ready together."""
        self._starts = 0
        self._watching: Timer | None = None
        self._again_s = 0.0
        self._figures = remote.GatewayFigures(listening=False, sessions=[], refused=0)
        self._reading: dict[int, Done] = {}
        """Callbacks that wait for the keys to be read, by number."""
        self._questions = 0
        self._stopping = False

    def start(self) -> None:
        """Have a gateway listen: the one that stands by, or a new one. To be called once the supervisor listens."""
        if self._stopping:
            return
        serving, self._standby = self._standby or self._new(), None
        if serving is None:
            self._loop.call_later(LAST_AGAIN_S, self.start)
            return
        self._serving = serving
        self._starts += 1
        serving.listen()
        if self._watching is None:
            self._watching = self._loop.call_later(LOOK_S, self._watch)

    def _new(self) -> GatewayProcess | None:
        """Start a process that stands by."""
        settings = remote.GatewaySettings(
            endpoint=self.address,
            listener=self._listener.fileno(),
            bulk_listener=self._bulk.fileno(),
            bulk_port=self._bulk.getsockname()[1],
            session_socket=str(self._run_dir.session_socket),
            run_dir=str(self._run_dir.path),
            keys_dir=self._keys_dir,
            max_sessions=self._settings.remote_sessions,
            max_bytes=self._settings.remote_bytes,
            grace_s=self._settings.remote_grace_s,
            max_replays=self._settings.max_replays,
        )
        try:
            return GatewayProcess(settings, self._loop, self._helpers, self._take, self._ended)
        except OSError as error:
            _LOG.warning("the gateway cannot be started: %s", error)
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
            figures.refused,
            figures.sessions,
            0 if standby is None else standby.pid,
        )

    def read_keys(self, done: Done) -> None:
        """Tell the gateway to read the admitted keys again; the next one reads them anyway."""
        if self._serving is None or not self._figures.listening:
            done(None)
            return
        self._questions += 1
        self._reading[self._questions] = done
        self._serving.send(remote.KeysChanged(self._questions))

    def close(self, why: str) -> None:
        """Tell it to say goodbye, and stop listening. Blocks for a moment."""
        self._stopping = True
        processes = [process for process in (self._serving, self._standby) if process is not None]
        for process in processes:
            process.send(remote.GatewayStops(why))
        for process in processes:
            process.wait_stopped()
        self._listener.close()
        self._bulk.close()

    def _watch(self) -> None:
        """Kill a gateway whose loop does not turn."""
        self._watching = self._loop.call_later(LOOK_S, self._watch)
        serving = self._serving
        if serving is not None and time.monotonic() - serving.heard_at > QUIET_S:
            self._note("gateway_hung", f"the gateway has said nothing for {QUIET_S:g} s, and is killed", {})
            serving.kill()

    def _ended(self, process: GatewayProcess, status: int) -> None:
        if process is self._standby:
            self._standby = None
            if not self._stopping:
                self._note("gateway_standby_end", f"the gateway that stood by has ended with status {status}", {})
                self._loop.call_later(LAST_AGAIN_S, self._stand_by)
            return
        self._serving = None
        self._figures = msgspec.structs.replace(self._figures, listening=False, sessions=[])
        for done in self._reading.values():
            done(None)
        self._reading.clear()
        if self._stopping:
            return
        lived_s = time.monotonic() - process.listens_since
        well = lived_s > (WELL_S if self._standby is None else WELL_WITH_STANDBY_S)
        self._again_s = 0.0 if well or (not self._again_s and self._starts == 1) else max(FIRST_AGAIN_S, self._again_s)
        delay_s = self._again_s
        self._again_s = min(LAST_AGAIN_S, max(FIRST_AGAIN_S, 2 * self._again_s))
        self._note("gateway_end", f"the gateway has ended with status {status}; the next listens in {delay_s:g} s", {})
        if delay_s:
            self._loop.call_later(delay_s, self.start)
        else:
            self.start()

    def _take(self, process: GatewayProcess, message: remote.FromGateway) -> None:
        match message:
            case remote.FindSession(number, key, session):
                process.send(remote.SessionFound(number, self._remotes.find(key, session)))
            case remote.AskFates(number, key, session, unanswered):
                self._remotes.when_known(
                    key, session, unanswered, lambda fates: process.send(remote.FatesKnown(number, *fates))
                )
                self._remotes.when_quiet(key, session, lambda: process.send(remote.SessionQuiet(number)))
            case remote.GatewayFigures():
                begins = message.listening and not self._figures.listening
                self._figures = message
                if begins:
                    self._note("gateway_start", f"remote clients are admitted at {self.address}", {})
                    self._stand_by()
            case remote.GatewayEvent(event, text, client, key):
                self._note(event, text, {name: fact for name, fact in (("client", client), ("key", key)) if fact})
            case remote.KeysRead(number, error):
                done = self._reading.pop(number, None)
                if done is not None:
                    done(None if error is None else error.error())


class Remotes(Protocol):
    """The records of remote sessions."""

    def find(self, key: str, session: bytes) -> bool:
        """Return whether this is a known remote session whose gateway has ended."""

    def when_known(self, key: str, session: bytes, unanswered: Sequence[int], done: Callable[[Fates], object]) -> None:
        """Call `done` with the started calls, once calls of former gateways have ceased to start."""

    def when_quiet(self, key: str, session: bytes, done: Callable[[], object]) -> None:
        """Call `done` once calls of former gateways have ceased to run."""


class Address(NamedTuple):
    """The address where a gateway listens."""

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


def bulk_address(address: str) -> str:
    """Return where bulk connections go: to the next port."""
    host, port = parse(address)
    if port == MAX_PORT:
        raise errors.ConfigurationError(f"listen = {address!r}: the port above it is needed too, and there is none")
    return f"{TCP}[{host}]:{port + 1 if port else 0}" if ":" in host else f"{TCP}{host}:{port + 1 if port else 0}"


def is_loopback(address: str) -> bool:
    """Whether only this machine can connect."""
    return ipaddress.ip_address(parse(address).host).is_loopback
