"""Keeps the gateway running, on a listening socket that outlives it, so that no connection is refused meanwhile."""

from __future__ import annotations

import ipaddress
import logging
import os
import select
import socket
import time
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol

import msgspec

from atomr_mp import errors
from atomr_mp.process.files.rundir import HeldRunDirectory
from atomr_mp.protocol.messages import operators, remote
from atomr_mp.supervision.remote_records import Fates
from atomr_mp.supervisor.care.helpers import Helpers
from atomr_mp.supervisor.loop import Loop, Timer
from atomr_mp.supervisor.plan import GatewayPlan

_LOG: Final = logging.getLogger("atomr_mp.supervisor")

MODULE: Final = "atomr_mp.gateway"

TCP: Final = "tcp://"

MAX_PORT: Final = 2**16 - 1

BACKLOG: Final = 1024
"""Connections that wait while no gateway lives, or while it is busy."""

FIRST_AGAIN_S: Final = 0.1
LAST_AGAIN_S: Final = 5.0
"""Least and greatest delay of a further start after an end. The first comes at once; each delay is twice the last."""

WELL_S: Final = 10.0
"""After a life of this length the next start comes at once again."""

STOP_S: Final = 3.0
"""How long it may take to say goodbye to its clients at the pool's end."""

PACKET_BYTES: Final = 2**18

QUIET_S: Final = 5.0
"""A gateway that has said nothing for so long is killed: its loop says every second that it turns."""

LOOK_S: Final = 1.0
"""How often that is looked at."""

Done = Callable[[errors.AtomrError | None], object]
Note = Callable[[str, str, dict[str, str]], object]
"""Notes an event: its name, its text, and its facts."""


class GatewayKeeper:
    """The gateway's process, which is started again after each end.

    Args:
        plan: How it listens.
        max_replays: The pool's setting.
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
        plan: GatewayPlan,
        max_replays: int,
        run_dir: HeldRunDirectory,
        loop: Loop,
        helpers: Helpers,
        note: Note,
        remotes: Remotes,
    ) -> None:
        self._remotes = remotes
        self._plan = plan
        self._max_replays = max_replays
        self._run_dir = run_dir
        self._loop = loop
        self._helpers = helpers
        self._note = note
        self._listener = listen(plan.address)
        try:
            self._bulk = listen(bulk_address(plan.address))
        except errors.ConfigurationError:
            self._listener.close()
            raise
        host, port = self._listener.getsockname()[:2]
        self.address: Final = f"{TCP}[{host}]:{port}" if ":" in host else f"{TCP}{host}:{port}"
        self._control: socket.socket | None = None
        self._pid = 0
        self._starts = 0
        self._started_at = self._heard_at = 0.0
        self._kill: Callable[[], None] | None = None
        self._watching: Timer | None = None
        self._again_s = 0.0
        self._figures = remote.GatewayFigures(listening=False, sessions=[], refused=0)
        self._reading: dict[int, Done] = {}
        """Callbacks that wait for the keys to be read, by number."""
        self._questions = 0
        self._stopping = False

    def start(self) -> None:
        """Start it; to be called once the supervisor listens."""
        if self._stopping:
            return
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        settings = remote.GatewaySettings(
            endpoint=self.address,
            listener=self._listener.fileno(),
            bulk_listener=self._bulk.fileno(),
            bulk_port=self._bulk.getsockname()[1],
            control=theirs.fileno(),
            session_socket=str(self._run_dir.session_socket),
            run_dir=str(self._run_dir.path),
            keys_dir=self._plan.keys_dir,
            max_sessions=self._plan.max_sessions,
            max_bytes=self._plan.max_bytes,
            grace_s=self._plan.grace_s,
            max_replays=self._max_replays,
        )
        before, kill = self._helpers.pids, None
        with theirs:
            try:
                kill = self._helpers.start(
                    MODULE,
                    [msgspec.json.encode(settings).decode()],
                    [self._listener.fileno(), self._bulk.fileno(), theirs.fileno()],
                    self._ended,
                )
            except OSError as error:
                ours.close()
                _LOG.warning("the gateway cannot be started: %s", error)
                self._loop.call_later(LAST_AGAIN_S, self.start)
                return
        (self._pid,) = self._helpers.pids - before
        self._starts += 1
        self._started_at = self._heard_at = time.monotonic()
        if self._watching is None:
            self._watching = self._loop.call_later(LOOK_S, self._watch)
        self._kill = kill
        ours.setblocking(False)
        self._control = ours
        self._loop.watch(ours.fileno(), select.EPOLLIN, self._on_readable)

    def status(self) -> operators.RemoteStatus:
        """Return how remote clients are served."""
        figures = self._figures
        return operators.RemoteStatus(
            self.address, self._pid, figures.listening, max(0, self._starts - 1), figures.refused, figures.sessions
        )

    def read_keys(self, done: Done) -> None:
        """Tell the gateway to read the admitted keys again; the next one reads them anyway."""
        if self._control is None or not self._figures.listening:
            done(None)
            return
        self._questions += 1
        self._reading[self._questions] = done
        self._send(remote.KeysChanged(self._questions))

    def close(self, why: str) -> None:
        """Tell it to say goodbye, and stop listening. Blocks for a moment."""
        self._stopping = True
        if self._control is not None:
            self._send(remote.GatewayStops(why))
            self._loop.forget(self._control.fileno())
            self._control.setblocking(True)
            self._control.settimeout(STOP_S)
            try:
                while self._control.recv(PACKET_BYTES):
                    pass
            except OSError:
                _LOG.warning("the gateway did not end by itself, and is killed")
            self._control.close()
            self._control = None
        self._listener.close()
        self._bulk.close()

    def _watch(self) -> None:
        """Kill a gateway whose loop does not turn."""
        self._watching = self._loop.call_later(LOOK_S, self._watch)
        if self._kill is not None and time.monotonic() - self._heard_at > QUIET_S:
            self._note("gateway_hung", f"the gateway has said nothing for {QUIET_S:g} s, and is killed", {})
            self._kill()

    def _ended(self, status: int) -> None:
        self._kill = None
        if self._control is not None:
            self._read()  # its last words
        if self._control is not None:
            self._loop.forget(self._control.fileno())
            self._control.close()
            self._control = None
        self._pid = 0
        self._figures = msgspec.structs.replace(self._figures, listening=False, sessions=[])
        for done in self._reading.values():
            done(None)
        self._reading.clear()
        if self._stopping:
            return
        well = time.monotonic() - self._started_at > WELL_S
        self._again_s = 0.0 if well or (not self._again_s and self._starts == 1) else max(FIRST_AGAIN_S, self._again_s)
        delay_s = self._again_s
        self._again_s = min(LAST_AGAIN_S, max(FIRST_AGAIN_S, 2 * self._again_s))
        self._note("gateway_end", f"the gateway has ended with status {status}; the next starts in {delay_s:g} s", {})
        if delay_s:
            self._loop.call_later(delay_s, self.start)
        else:
            self.start()

    def _on_readable(self, _events: int) -> None:
        if not self._read() and self._control is not None:
            self._loop.forget(self._control.fileno())  # it is about to end, which its pidfd tells

    def _read(self) -> bool:
        """Read the gateway's messages; False if its channel has ended."""
        assert self._control is not None
        while True:
            try:
                packet = self._control.recv(PACKET_BYTES)
            except BlockingIOError:
                return True
            except OSError:
                return False
            if not packet:
                return False
            try:
                self._take(remote.FROM_GATEWAY.decode(packet))
            except errors.ProtocolError:
                _LOG.exception("the gateway sent a message that is dropped")

    def _take(self, message: remote.FromGateway) -> None:
        self._heard_at = time.monotonic()
        match message:
            case remote.FindSession(number, key, session):
                self._send(remote.SessionFound(number, self._remotes.find(key, session)))
            case remote.AskFates(number, key, session, unanswered):
                self._remotes.when_known(
                    key, session, unanswered, lambda fates: self._send(remote.FatesKnown(number, *fates))
                )
                self._remotes.when_quiet(key, session, lambda: self._send(remote.SessionQuiet(number)))
            case remote.GatewayFigures():
                if message.listening and not self._figures.listening:
                    self._note("gateway_start", f"remote clients are admitted at {self.address}", {})
                self._figures = message
            case remote.GatewayEvent(event, text, client, key):
                self._note(event, text, {name: fact for name, fact in (("client", client), ("key", key)) if fact})
            case remote.KeysRead(number, error):
                done = self._reading.pop(number, None)
                if done is not None:
                    done(None if error is None else error.error())

    def _send(self, message: remote.ToGateway) -> None:
        if self._control is None:
            return
        try:
            self._control.send(remote.TO_GATEWAY.encode(message))
        except OSError as error:
            _LOG.warning("the gateway takes no message: %s", error)


class Remotes(Protocol):
    """The records of remote sessions."""

    def find(self, key: str, session: bytes) -> bool:
        """Return whether this is a known remote session whose gateway has ended."""

    def when_known(self, key: str, session: bytes, unanswered: Sequence[int], done: Callable[[Fates], object]) -> None:
        """Call `done` with the started calls, once nothing of former gateways starts any more."""

    def when_quiet(self, key: str, session: bytes, done: Callable[[], object]) -> None:
        """Call `done` once nothing of former gateways runs any more."""


class Address(NamedTuple):
    """Where a gateway listens."""

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
            f"listen = {address!r}: it cannot be listened there: {os.strerror(error.errno or 0)}"
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
