"""A TCP proxy that does to connections what networks do: it delays, drops, cuts, half-closes, flips bits and stalls."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import struct
import threading
import time
from collections.abc import Callable
from typing import Final, NamedTuple, Self

from tests.waiting import readable

CHUNK: Final = 16384


class Pair(NamedTuple):
    """A connection through the proxy."""

    near: socket.socket
    """The client's end."""
    far: socket.socket
    """The server's end."""


class Proxy:
    """Passes connections on to a server; use it with `with`.

    Args:
        host: The server's.
        port: The server's.
    """

    def __init__(self, host: str, port: int) -> None:
        self._server = host, port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address: Final = f"tcp://127.0.0.1:{self._listener.getsockname()[1]}"
        self._lock = threading.Lock()
        self._pairs: list[Pair] = []
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._over = False
        self._refusing = False
        self.delay_s = 0.0
        self.stalled: set[str] = set()
        """Directions ("up", "down") in which nothing passes, and nothing is lost."""
        self.dropping: set[str] = set()
        """Directions in which what comes is read and thrown away, so the stream is broken there."""
        self.flip: set[str] = set()
        """Directions in which the next chunk has a bit flipped."""
        self.cut_after: int | None = None
        """Cut by RST after so many more bytes, in both directions together."""
        self._thread = threading.Thread(target=self._run, name="proxy", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self._over = True
        os.eventfd_write(self._wake, 1)
        self._thread.join()
        self.cut()
        self._listener.close()
        os.close(self._wake)

    def cut(self) -> None:
        """Cut all connections by RST."""
        with self._lock:
            pairs, self._pairs = self._pairs, []
        for pair in pairs:
            _reset(pair)

    def cut_one(self, chance: random.Random) -> None:
        """Cut one of the connections by RST."""
        with self._lock:
            pair = self._pairs.pop(chance.randrange(len(self._pairs))) if self._pairs else None
        if pair is not None:
            _reset(pair)

    def half_close(self, direction: str) -> None:
        """End one direction of all connections, as a FIN does."""
        with self._lock:
            for pair in self._pairs:
                with contextlib.suppress(OSError):
                    (pair.far if direction == "up" else pair.near).shutdown(socket.SHUT_WR)

    def heal(self) -> None:
        """Let everything through again; broken connections are cut."""
        broken = bool(self.dropping)
        self.delay_s, self.stalled, self.dropping, self.flip, self.cut_after = 0.0, set(), set(), set(), None
        if broken:
            self.cut()
        os.eventfd_write(self._wake, 1)

    def _run(self) -> None:
        while not self._over:
            with self._lock:
                pairs = list(self._pairs)
            sources: dict[int, tuple[Pair, str]] = {}
            for pair in pairs:
                for direction, end in (("up", pair.near), ("down", pair.far)):
                    if direction not in self.stalled and end.fileno() >= 0:
                        sources[end.fileno()] = pair, direction
            with contextlib.suppress(OSError, ValueError):
                ready = readable([self._listener.fileno(), self._wake, *sources], 0.02)
                for each in ready:
                    if each == self._listener.fileno():
                        self._accept()
                    elif each == self._wake:
                        with contextlib.suppress(BlockingIOError):
                            os.eventfd_read(self._wake)
                    else:
                        self._pass(*sources[each])

    def _accept(self) -> None:
        near, _ = self._listener.accept()
        try:
            far = socket.create_connection(self._server, 5.0)
        except OSError:
            near.close()
            return
        for end in (near, far):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            end.settimeout(5.0)
        with self._lock:
            self._pairs.append(Pair(near, far))

    def _pass(self, pair: Pair, direction: str) -> None:
        source, target = (pair.near, pair.far) if direction == "up" else (pair.far, pair.near)
        try:
            data = source.recv(CHUNK)
            if not data:
                self._drop(pair)
                return
            if direction in self.dropping:
                return
            if self.delay_s:
                time.sleep(self.delay_s)  # that is the fault
            if direction in self.flip:
                self.flip = self.flip - {direction}
                at = random.randrange(len(data))
                data = data[:at] + bytes([data[at] ^ 1 << random.randrange(8)]) + data[at + 1 :]
            if self.cut_after is not None:
                left, self.cut_after = self.cut_after, max(0, self.cut_after - len(data))
                if left <= len(data):
                    target.sendall(data[:left])
                    self.cut_after = None
                    with self._lock:
                        if pair in self._pairs:
                            self._pairs.remove(pair)
                    _reset(pair)
                    return
            target.sendall(data)
        except OSError:
            self._drop(pair)

    def _drop(self, pair: Pair) -> None:
        with self._lock:
            if pair in self._pairs:
                self._pairs.remove(pair)
        for end in pair:
            end.close()


def faults(proxy: Proxy, rng: random.Random) -> list[Callable[[], object]]:
    """Return everything that can be done to a proxy's connections, once."""
    direction = rng.choice(["up", "down"])

    def set_(name: str, value: object) -> None:
        setattr(proxy, name, value)

    return [
        proxy.cut,
        lambda: set_("cut_after", rng.randrange(1, 4000)),
        lambda: proxy.half_close(direction),
        lambda: set_("flip", {direction}),
        lambda: set_("stalled", {direction}),
        lambda: set_("dropping", {direction}),
        lambda: set_("delay_s", 0.005),
    ]


def _reset(pair: Pair) -> None:
    for end in pair:
        with contextlib.suppress(OSError):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        end.close()
