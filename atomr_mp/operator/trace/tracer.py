"""Traces a running pool: asks the supervisor, reads the workers' rings while they come, and writes the file."""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Callable, Iterator
from typing import BinaryIO, Final

from atomr_mp import errors
from atomr_mp.operator.session import OperatorSession
from atomr_mp.operator.trace.events_file import FORMAT, Event, EventsFile
from atomr_mp.operator.trace.rows import DeviceRows, TraceRows
from atomr_mp.protocol.messages import operators, session
from atomr_mp.protocol.timeline import RING_BYTES, RecordReader
from atomr_mp.version import __version__

LOOK_S: Final = 0.05
"""Interval of looks at the rings: nothing tells that one has records, which would cost its worker a system call."""

ASK_S: Final = 1.0
"""How often, at most, the supervisor is asked for names of clients that have come."""

MOST_AT_ONCE: Final = 20_000
"""Most records of one ring that are taken at a look, so that the end of the trace is not late."""


class Ring:
    """The records of one process of a device.

    Args:
        memory: The ring, mapped.
        rows: Makes its events.
    """

    def __init__(self, memory: memoryview, rows: DeviceRows) -> None:
        self.reader: Final = RecordReader(memory)
        self.rows: Final = rows

    def events(self) -> Iterator[Event]:
        """Yield the events of what has come."""
        self.rows.generation = self.reader.generation
        for count, record in enumerate(self.reader.read()):
            yield from self.rows.events(record)
            if count >= MOST_AT_ONCE:
                return


class PoolTracer:
    """Traces a pool once.

    Args:
        observer: An operator's session of its own; stays the caller's.
        seconds: How long.
        stop: Says that the trace is to end before that.
    """

    def __init__(self, observer: OperatorSession, seconds: float, stop: Callable[[], bool] = lambda: False) -> None:
        self._observer = observer
        self._seconds = seconds
        self._stop = stop
        self._rings: dict[int, list[Ring]] = {}
        self._ends: dict[tuple[int, int], int] = {}
        """When incarnations have ended, by device and generation."""
        self._asked_s = 0.0
        self._over = ""
        """Why the trace has ended before its time."""
        self._begun_ns = 0
        self._ended_ns = 0
        self._known = {device.index: (device.generation, str(device.state)) for device in observer.welcome.devices}
        self._rows = TraceRows(self._begin())

    def run(self, file: BinaryIO) -> Event:
        """Trace, and write; return the facts of the trace, which are in the file too.

        Args:
            file: Where to, unbuffered.

        Raises:
            OSError: The file cannot be written.
        """
        out = EventsFile(file, self.facts)
        until_s = self._begun_ns / 1e9 + self._seconds
        try:
            while not self._over and (left_s := until_s - time.monotonic()) > 0:
                out.write(self._events(min(left_s, LOOK_S)), self.facts)
                if self._stop():
                    self._over = "it was stopped"
            self._ended_ns = time.monotonic_ns()
            out.write(self._last_events(), self.facts)
            facts = self.facts
        finally:
            out.close(self.facts)
            for _, ring in self._all():
                ring.reader.release()
        return facts | {"events_left_out": out.left_out}

    @property
    def facts(self) -> Event:
        """What is to be known of the whole trace."""
        welcome = self._observer.welcome
        rings = [ring for rings in self._rings.values() for ring in rings]
        facts: Event = {
            "made_by": f"atomr-mp {__version__}",
            "format": FORMAT,
            "pool": welcome.pool,
            "clock": "CLOCK_MONOTONIC",
            "began_ns": self._begun_ns,
            "seconds": round(((self._ended_ns or time.monotonic_ns()) - self._begun_ns) / 1e9, 3),
            "processes": len(rings),
            "dropped": sum(ring.reader.dropped for ring in rings),
            "unmatched": self._rows.lost,
        }
        if self._over:
            facts["ended_early"] = self._over
        garbled = [f"device {device}: {ring.reader.garbled}" for device, ring in self._all() if ring.reader.garbled]
        return facts | ({"garbled": garbled} if garbled else {})

    def _all(self) -> Iterator[tuple[int, Ring]]:
        for device, rings in self._rings.items():
            for ring in rings:
                yield device, ring

    def _begin(self) -> str:
        """Have the trace begin; return the pool's backend."""
        inventory = self._observer.inventory()
        self._clients = _names(inventory)
        self._begun_ns = self._observer.trace(self._seconds).started_ns
        return inventory.backend

    def _events(self, wait_s: float) -> Iterator[Event]:
        """Yield the events of some time."""
        self._rows.clients.update(self._clients)
        until_s = time.monotonic() + wait_s
        while not self._over and (left_s := until_s - time.monotonic()) > 0:
            try:
                message = self._observer.next_event(left_s)
            except TimeoutError:
                break
            except errors.PoolLost as lost:
                self._over = lost.message
                break
            yield from self._hear(message)
        yield from self._of_rings()
        if self._rows.sessions and time.monotonic() >= self._asked_s + ASK_S and not self._over:
            self._asked_s = time.monotonic()
            self._ask_names()
        yield from self._rows.client_names()

    def _ask_names(self) -> None:
        """Learn the names of clients that have come."""
        try:
            self._rows.clients.update(_names(self._observer.inventory(ASK_S)))
        except errors.PoolLost as lost:
            self._over = self._over or lost.message
        except (errors.AtomrError, TimeoutError):  # it does not matter much
            return

    def _of_rings(self) -> Iterator[Event]:
        for _, ring in self._all():
            yield from ring.events()

    def _last_events(self) -> Iterator[Event]:
        """Yield the events that the end of the trace leaves."""
        if not self._over:
            self._ask_names()
        for message in self._observer.heard():
            yield from self._hear(message)
        yield from self._of_rings()
        for device, ring in self._all():
            ended_ns = self._ends.get((device, ring.rows.generation))
            if ended_ns is None:
                yield from ring.rows.unfinished(self._ended_ns, "the trace ended before it")
            else:
                yield from ring.rows.unfinished(ended_ns, "its worker ended before it")
        yield from self._rows.client_names()
        yield from self._rows.nameless()
        if self._over and self._rings:
            yield from self._rows.instant(min(self._rings), self._ended_ns, f"the trace ends: {self._over}", {})

    def _hear(self, message: session.FromSupervisor) -> Iterator[Event]:
        """Take in what the supervisor says, and yield what happens to devices."""
        now_ns = time.monotonic_ns()
        match message:
            case operators.TraceRing():
                self._open(message)
                yield from self._rows.device_names(message.device)
            case session.DeviceChanged(device):
                before, now = self._known.get(device.index), (device.generation, str(device.state))
                if now == before:
                    return
                self._known[device.index] = now
                taken = f", generation {now[0]} takes over" if before is not None and before[0] != now[0] else ""
                name = f"{now[1]}{taken}"
                facts: Event = {"generation": now[0], "state": now[1], "reason": device.reason}
                yield from self._rows.instant(device.index, now_ns, name, facts)
            case session.IncarnationStopped(ended):
                self._ends[ended.device, ended.generation] = now_ns
            case session.IncarnationEnded(device, generation, planned, error):
                self._ends.setdefault((device, generation), now_ns)
                how = "has left" if planned else f"is lost ({error.code})"
                facts = {"generation": generation, "cause": error.code, "message": error.message}
                yield from self._rows.instant(device, now_ns, f"generation {generation} {how}", facts)
            case session.Goodbye(error):
                self._over = error.message
            case _:
                pass

    def _open(self, ring: operators.TraceRing) -> None:
        descriptor = self._observer.take_ring(ring)
        if descriptor is None:
            return
        try:
            if os.fstat(descriptor).st_size < RING_BYTES:
                return
            memory = memoryview(mmap.mmap(descriptor, RING_BYTES))
        finally:
            os.close(descriptor)
        self._rings.setdefault(ring.device, []).append(Ring(memory, DeviceRows(self._rows, ring.device)))


def _names(inventory: operators.Inventory) -> dict[int, str]:
    """Return words for clients, by session."""
    return {
        each.number: f"client {each.client}" + (f" (pid {each.pid})" if each.pid else "") for each in inventory.sessions
    }
