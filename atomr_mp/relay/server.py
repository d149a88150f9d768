"""The relay at work: its sockets, keys, time, and the supervisor's orders."""

from __future__ import annotations

import contextlib
import os
import resource
import select
import threading
import time
from pathlib import Path
from typing import Final

from atomr_mp import errors
from atomr_mp.process.files.rundir import RELAY_PROBE
from atomr_mp.protocol.codec import ErrorInfo
from atomr_mp.protocol.messages import relay
from atomr_mp.relay.admission import AdmittedKeys
from atomr_mp.relay.channels import RelayChannels
from atomr_mp.relay.control import RelayControl
from atomr_mp.relay.probe import check_refuses
from atomr_mp.relay.refusals import Refusals
from atomr_mp.relay.router import RelayRouter
from atomr_mp.remote.curve import check_library
from atomr_mp.remote.keys import ServerKeys, read_server
from atomr_mp.supervisor.loop import Loop

TICK_S: Final = 0.5
"""How often connections are tried, and the supervisor hears that the loop turns."""

LAST_WORDS_S: Final = 1.0
"""How long clients may take to hear that the pool has stopped; libzmq drops what is sent right before its end. An idle
client looks every half second."""

LOOK_S: Final = 0.005
"""How often it is looked meanwhile whether all have heard."""

DESCRIPTORS_S: Final = 5.0
"""How often open descriptors are counted."""

FULL: Final = 0.95
"""Part of the limit of descriptors from which an event tells of it."""

TOLD_SESSIONS: Final = 256
"""Most sessions in the figures for the supervisor."""


class Relay:
    """Serves remote clients.

    Args:
        settings: Its settings.
    """

    def __init__(self, settings: relay.RelaySettings) -> None:
        check_library()
        self._settings = settings
        self._loop: Final = Loop()
        self._admission: Final = AdmittedKeys(Path(settings.keys_dir) if settings.keys_dir else None)
        self._control: Final = RelayControl(self._loop, settings.control, self._hear)
        self._listening = False
        self._told_to_listen = False
        self._probing = False
        self._full = False
        """Whether hardly any descriptor is left."""
        self._told: relay.RelayFigures | None = None
        self._refusals: Final = Refusals()
        self._channels: Final = RelayChannels(
            self._loop,
            self._send,
            self._admission.find,
            Path(settings.session_socket),
            settings.max_sessions,
            settings.max_bytes,
            settings.grace_s,
            self._tell,
        )
        self._keys = self._read_keys()
        self._router = self._make_router()

    def serve(self) -> int:
        """Serve from the supervisor's order until the pool ends; return the process's status."""
        self._probe()
        self._loop.run()
        self._router.close()
        return 0

    def _read_keys(self) -> ServerKeys | None:
        return read_server(Path(self._settings.keys_dir)) if self._settings.keys_dir else None

    def _make_router(self) -> RelayRouter:
        return RelayRouter(
            self._loop,
            self._admission.answer,
            self._keys,
            self._channels.take,
            self._channels.take_first,
        )

    def _probe(self) -> None:
        """Check that a random key is refused, before any client can connect; then listen if that was ordered."""
        if self._keys is None:
            return
        self._probing = True
        path = Path(self._settings.run_dir) / RELAY_PROBE
        done = os.eventfd(0, os.EFD_CLOEXEC)
        refused: list[BaseException | None] = []
        server = self._keys.public

        def check() -> None:
            try:
                check_refuses(f"ipc://{path}", server)
                refused.append(None)
            except BaseException as error:  # noqa: BLE001 - the loop's thread raises it
                refused.append(error)
            os.eventfd_write(done, 1)

        def over(_events: int) -> None:
            self._loop.forget(done)
            os.close(done)
            thread.join()
            self._router.unbind(f"ipc://{path}")
            path.unlink(missing_ok=True)
            if refused[0] is not None:
                raise refused[0]
            self._admission.refused = 0
            self._probing = False
            if self._told_to_listen:
                self._listen()

        self._router.bind(f"ipc://{path}")
        self._loop.watch(done, select.EPOLLIN, over)
        thread = threading.Thread(target=check, name="atomr-mp relay probe", daemon=True)
        thread.start()

    def _listen(self) -> None:
        if self._probing or self._listening:
            return
        keys = self._read_keys()
        if keys != self._keys:  # the operator has made other keys while this relay stood by
            self._router.close()
            self._keys = keys
            self._router = self._make_router()
            self._probe()
            return
        self._admission.read()
        self._router.listen_on(self._settings.listener, self._settings.endpoint)
        self._listening = True
        self._tick()
        self._look_at_descriptors()

    def _look_at_descriptors(self) -> None:
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        used = sum(1 for _ in Path("/proc/self/fd").iterdir())
        full = used > limit * FULL
        if full and not self._full:
            text = (
                f"the relay has {used} of {limit} descriptors open: new connections wait, and its thread is busy until "
                "some close; strangers may be the cause: put the relay behind a firewall"
            )
            self._control.tell(relay.RelayEvent("relay_full", text))
        self._full = full
        self._loop.call_later(DESCRIPTORS_S, self._look_at_descriptors)

    def _tick(self) -> None:
        if self._admission.changed:
            with contextlib.suppress(errors.ConfigurationError):  # the earlier keys stay admitted
                self._admission.read()
                self._channels.revoke()
        self._channels.look(self._loop.own_s)
        self._tell_figures()
        admission, now_s = self._admission, self._loop.own_s
        if text := self._refusals.look(admission.refused, admission.refused_from, self._channels.refused, now_s):
            self._control.tell(relay.RelayEvent("remote_refused", text))
        self._control.tell(relay.RelayAlive())
        self._loop.call_later(TICK_S, self._tick)

    def _hear(self, message: relay.ToRelay) -> None:
        match message:
            case relay.KeysChanged(number):
                try:
                    self._admission.read()
                except errors.ConfigurationError as error:
                    self._control.tell(relay.KeysRead(number, ErrorInfo.of(error)))
                    return
                self._channels.revoke()
                self._tell_figures()
                self._control.tell(relay.KeysRead(number))
            case relay.RelayListens():
                self._told_to_listen = True
                self._listen()
            case relay.RelayDrains():
                self._channels.grace_s = 0.0
            case relay.RelayStops(why, awaited):
                self._channels.end_all(errors.PoolLost(why))
                self._stop_once_told(time.monotonic() + LAST_WORDS_S, awaited=awaited)

    def _stop_once_told(self, until: float, *, awaited: bool) -> None:
        """End once all clients that can be reached have heard why, or the time is over."""
        if (awaited or self._channels.is_telling) and time.monotonic() < until:
            self._loop.call_later(LOOK_S, lambda: self._stop_once_told(until, awaited=awaited))
        else:
            self._loop.stop()

    def _send(self, route: bytes, packet: bytes) -> bool:
        return self._router.send(route, packet)

    def _tell_figures(self) -> None:
        sessions = [status for status, _ in zip(self._channels.statuses(), range(TOLD_SESSIONS), strict=False)]
        refused = self._admission.refused + self._channels.refused
        figures = relay.RelayFigures(self._listening, sessions, refused)
        if figures != self._told:
            self._told = figures
            self._control.tell(figures)

    def _tell(self, event: str, text: str, client: str, key: str) -> None:
        self._control.tell(relay.RelayEvent(event, text, client, key))
