"""HTTP: calls one after another, many at a time, and while workers are killed; the parts of a stream; a model.

The base is the same server without a pool, plus one `Pool.call`; of the model, the pool itself.
"""

from __future__ import annotations

import contextlib
import http
import json
import os
import selectors
import signal
import socket
import statistics
import threading
import time
from collections.abc import Iterable, Iterator
from time import perf_counter_ns
from typing import Final

from benchmarks.contestant import STREAM_PARTS, Contestant, Embed, Serving, http_request
from benchmarks.sizes import Sizes
from benchmarks.subjects.embedding import rates, use_half_the_cores

LOAD_CLIENTS: Final = 4
"""That call one after another while workers are killed."""

STREAMS: Final = 9
"""How many streams are measured; the median counts."""

LAST_CHUNK: Final = b"0\r\n\r\n"

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
    if serving.stream:
        found["part"] = statistics.median([part_us(serving) for _ in range(STREAMS)])
    return found


def serve_killed(contestant: Contestant, sizes: Sizes) -> dict[str, float]:
    """Kill the workers of a server, if the contestant has one that is to bear it."""
    serving = contestant.serving() if contestant.bears_kills else None
    return {} if serving is None else kills(serving, sizes.kills)


def serve_model(contestant: Contestant, sizes: Sizes) -> dict[str, float]:
    """Return the rates of the model that is served."""
    use_half_the_cores()
    way = contestant.served_embedding(sizes.backend)
    return {} if way is None else rates(way, sizes.embed_s)


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


def part_us(serving: Serving) -> float:
    """Return how long a part of a stream takes, in the mean of one stream."""
    client = socket.create_connection(("127.0.0.1", serving.port))
    with client:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        begun_ns = perf_counter_ns()
        client.sendall(serving.stream)
        seen = b""
        while not seen.endswith(LAST_CHUNK):
            data = client.recv(65536)
            if not data:
                raise ConnectionError("the server has closed the connection")
            seen = seen[-len(LAST_CHUNK) :] + data
        return (perf_counter_ns() - begun_ns) / 1e3 / STREAM_PARTS


def asks(port: int, path: str, token: str, window: int) -> Embed:
    """Return a function that has texts embedded by HTTP, so many at a time, each on a connection of its own."""

    def embed(texts: Iterable[str]) -> Iterator[object]:
        left = iter(texts)
        with contextlib.ExitStack() as closing, selectors.DefaultSelector() as selector:

            def ask(client: HttpClient) -> None:
                text = next(left, None)
                if text is None:
                    selector.unregister(client.socket)
                else:
                    client.socket.sendall(http_request(path, json.dumps([text]).encode(), token))

            for _ in range(window):
                client = HttpClient(Serving(port, b""))
                closing.enter_context(client.socket)
                selector.register(client.socket, selectors.EVENT_READ, client)
                ask(client)
            while selector.get_map():
                for key, _ in selector.select():
                    status = key.data.read()
                    if status is not None:
                        if status != http.HTTPStatus.OK:
                            raise RuntimeError(f"an answer with status {status}")
                        ask(key.data)
                        yield None

    return embed


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

    Of each kill the longest call that ended soon after it is noted, and the longest in as long a time before it; the
    medians of these are returned.
    """
    stop = threading.Event()
    ended: list[tuple[int, int]] = []
    """How long each call took, in the order in which they ended, and its status."""

    def load() -> None:
        client = HttpClient(serving)
        while not stop.is_set():
            begun_ns = perf_counter_ns()
            try:
                status = client.call()
            except OSError:
                status, client = 0, HttpClient(serving)
            ended.append((perf_counter_ns() - begun_ns, status))

    threads = [threading.Thread(target=load) for _ in range(LOAD_CLIENTS)]
    for thread in threads:
        thread.start()
    longest_ms, before_ms = [], []

    def longest() -> float:
        """Return the longest call that ends from now on for a while, in milliseconds."""
        before = len(ended)
        time.sleep(AFTER_KILL_S)
        return max(took for took, _ in ended[before:]) / 1e6

    assert serving.standby_pid is not None
    assert serving.worker_pid is not None
    try:
        for _ in range(count):
            while serving.standby_pid() is None:
                time.sleep(0.01)  # nothing tells a client
            before_ms.append(longest())
            os.kill(serving.worker_pid(), signal.SIGKILL)
            longest_ms.append(longest())
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    failed = sum(status != 200 for _, status in ended)
    return {
        "failed": float(failed),
        "longest": statistics.median(longest_ms),
        "worst": max(longest_ms),
        "before": statistics.median(before_ms),
        "under_load": float(len(ended)),
    }
