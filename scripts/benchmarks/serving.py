"""Calls over HTTP: one after another, many at a time, and while workers are killed.

The base is the same server without a pool, plus one `Pool.call`.
"""

from __future__ import annotations

import os
import selectors
import signal
import socket
import statistics
import threading
import time
from time import perf_counter_ns
from typing import Final

from benchmarks.contestant import Contestant, Serving
from benchmarks.sizes import Sizes

LOAD_CLIENTS: Final = 4
"""That call one after another while workers are killed."""

AFTER_KILL_S: Final = 0.3
"""For how long calls are looked at after a kill."""


def serve(contestant: Contestant, sizes: Sizes) -> dict[str, float]:
    """Measure a server, if the contestant has one."""
    serving = contestant.serving()
    if serving is None:
        return {}
    client = HttpClient(serving)
    for _ in range(sizes.warm_up):
        client.call()
    times_ns = []
    for _ in range(sizes.calls // 2):
        begun_ns = perf_counter_ns()
        client.call()
        times_ns.append(perf_counter_ns() - begun_ns)
    percentiles = statistics.quantiles(times_ns, n=100)
    found = {
        "call_p50": percentiles[49] / 1e3 + serving.more_us,
        "call_p99": percentiles[98] / 1e3 + serving.more_us,
        "flight": in_flight(serving, sizes.window, sizes.flight_calls // 2),
    }
    return found | kills(serving, sizes.kills) if serving.standby_pid is not None else found


class HttpClient:
    """A connection for one call at a time; as little as can speak to a server."""

    def __init__(self, serving: Serving) -> None:
        self.socket: Final = socket.create_connection(("127.0.0.1", serving.port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.request: Final = serving.request
        self._seen = b""

    def call(self) -> int:
        """Call, and return the answer's status."""
        self.socket.sendall(self.request)
        while (status := self.read()) is None:
            pass
        return status

    def read(self) -> int | None:
        """Read what has come; return the status if that is a whole answer."""
        data = self.socket.recv(65536)
        if not data:
            raise ConnectionError("the server has closed the connection")
        self._seen += data
        head, separator, body = self._seen.partition(b"\r\n\r\n")
        if not separator:
            return None
        length = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0])
        if len(body) < length:
            return None
        self._seen = b""
        return int(head[9:12])


def in_flight(serving: Serving, window: int, calls: int) -> float:
    """Return how many calls a second are answered with so many at a time."""
    with selectors.DefaultSelector() as selector:
        clients = [HttpClient(serving) for _ in range(window)]
        for client in clients:
            selector.register(client.socket, selectors.EVENT_READ, client)
            client.socket.sendall(client.request)
        left = calls
        begun_ns = perf_counter_ns()
        while left > 0:
            for key, _ in selector.select():
                client = key.data
                if client.read() is not None:
                    left -= 1
                    client.socket.sendall(client.request)
        rate = (calls - left) / (perf_counter_ns() - begun_ns) * 1e9
        for client in clients:
            client.socket.close()
    return rate


def kills(serving: Serving, count: int) -> dict[str, float]:
    """Kill workers under load, each when the next standby is ready; return how many calls failed, and the longest.

    Of each kill the longest call that ended soon after it is noted; the median of these is returned.
    """
    stop = threading.Event()
    ended: list[tuple[int, int, int]] = []
    """When each call has ended, how long it took, and its status."""

    def load() -> None:
        client = HttpClient(serving)
        while not stop.is_set():
            begun_ns = perf_counter_ns()
            try:
                status = client.call()
            except OSError:
                status, client = 0, HttpClient(serving)
            now_ns = perf_counter_ns()
            ended.append((now_ns, now_ns - begun_ns, status))

    threads = [threading.Thread(target=load) for _ in range(LOAD_CLIENTS)]
    for thread in threads:
        thread.start()
    longest_ms = []
    assert serving.standby_pid is not None
    assert serving.worker_pid is not None
    try:
        for _ in range(count):
            while serving.standby_pid() is None:
                time.sleep(0.01)  # nothing tells a client
            killed_ns = perf_counter_ns()
            os.kill(serving.worker_pid(), signal.SIGKILL)
            time.sleep(AFTER_KILL_S)
            longest_ms.append(max(took for at, took, _ in ended if at >= killed_ns) / 1e6)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    failed = sum(status != 200 for _, _, status in ended)
    return {"failed": float(failed), "longest": statistics.median(longest_ms), "under_load": float(len(ended))}
