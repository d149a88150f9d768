"""LitServe: an HTTP server before worker processes. A client keeps a connection for each request, and sends JSON."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

from benchmarks.contestant import (
    BATCH,
    SILENCE_S,
    STREAM_PARTS,
    Client,
    Contestant,
    Embed,
    Recovery,
    Serving,
    SilenceError,
    http_request,
)

PROGRAM: Final = "benchmarks.peers.litserve_program"
HOST: Final = "127.0.0.1"
START_S: Final = 100.0
ECHO: Final = "none"
"""In place of a backend: the server is to have no model."""
PATIENCE_S: Final = 60.0
"""How long an answer may take, without kills."""


class LitserveServer(Contestant):
    """A server of its own process group; `restart_workers` is on."""

    name = "litserve"
    package = used = "import litserve"

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._server: subprocess.Popen[bytes] | None = None
        self._connections: list[Connection] = []
        self._patience_s = PATIENCE_S

    def start(self, workers: int) -> None:
        """Start the server, and call it once it says that it is healthy."""
        self._start(workers, ECHO)
        self._ask({"call": "empty"})

    def connect(self) -> Client:
        """Return a client that sends requests; another process finds the port."""
        return Client(
            partial(self._ask, {"call": "empty"}),
            lambda payload: self._send({"call": "echo", "payload": payload.decode("latin-1")}),
            self._receive,
        )

    def processes(self) -> dict[str, list[int]]:
        """Return the process of the worker, and the others, their parent first."""
        import psutil

        assert self._server is not None
        worker = self._ask({"call": "pid"})
        others = [each.pid for each in psutil.Process(self._server.pid).children(recursive=True)]
        return {"supervisor": [self._server.pid, *(pid for pid in others if pid != worker)], "worker": [worker]}

    def recovery(self) -> Recovery:
        """Return how to lose the worker, which the server looks for every two seconds."""

        def hold(fifo: str) -> Callable[[], object]:
            return partial(self._receive, self._send({"call": "hold", "fifo": fifo}))

        self._connections.clear()
        self._patience_s = SILENCE_S
        return Recovery(
            lambda: self._until_there({"call": "pid"}), partial(self._ask, {"call": "empty"}), hold, RefusedError
        )

    def serving(self) -> Serving:
        """Start the server."""
        self.start(1)
        stream = http_request("/stream", json.dumps({"upto": STREAM_PARTS}).encode())
        return Serving(self._port(), http_request("/predict", b'{"call": "empty"}'), stream)

    def embedding(self, backend: str) -> Embed:
        """Return the model's server, with as many texts under way as make two batches."""
        self._start(1, backend)

        def embed(texts: Iterable[str]) -> Iterator[object]:
            flight: deque[Connection] = deque()
            for text in texts:
                flight.append(self._send({"text": text}))
                if len(flight) >= 2 * BATCH:
                    yield self._receive(flight.popleft())
            while flight:
                yield self._receive(flight.popleft())

        return embed

    def stop(self) -> None:
        """Stop the server."""
        while self._connections:
            self._connections.pop().http.close()
        if self._server is not None:
            import psutil

            with contextlib.suppress(psutil.NoSuchProcess):
                for each in psutil.Process(self._server.pid).children(recursive=True):
                    each.kill()
            self._server.kill()
            self._server.wait()
            self._server = None

    def _start(self, workers: int, backend: str) -> None:
        with socket.create_server((HOST, 0)) as free:
            port = free.getsockname()[1]
        (self.directory / "port").write_text(str(port), encoding="utf-8")
        command = [sys.executable, "-m", PROGRAM, str(port), str(workers), backend]
        self._server = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=sys.stderr)
        until = time.monotonic() + START_S
        while not self._healthy():
            if self._server.poll() is not None or time.monotonic() > until:
                raise RuntimeError("the server did not start")
            time.sleep(0.01)  # nothing tells when it listens

    def _healthy(self) -> bool:
        connection = http.client.HTTPConnection(HOST, self._port())
        with contextlib.closing(connection):
            try:
                connection.request("GET", "/health")
                return connection.getresponse().status == http.HTTPStatus.OK
            except OSError:
                return False

    def _until_there(self, body: dict[str, Any]) -> Any:
        while True:
            try:
                return self._ask(body)
            except (RefusedError, SilenceError):
                continue

    def _ask(self, body: dict[str, Any]) -> Any:
        return self._receive(self._send(body))

    def _send(self, body: dict[str, Any]) -> Connection:
        connection = self._connections.pop() if self._connections else Connection(self._port(), self._patience_s)
        connection.send(json.dumps(body).encode())
        return connection

    def _receive(self, connection: Connection) -> Any:
        answer = connection.receive()
        self._connections.append(connection)
        return json.loads(answer)

    def _port(self) -> int:
        return int((self.directory / "port").read_text(encoding="utf-8"))


class RefusedError(Exception):
    """The server answered with an error, or has gone."""


class Connection:
    """A connection, for one request at a time."""

    def __init__(self, port: int, patience_s: float) -> None:
        self.http: Final = http.client.HTTPConnection(HOST, port, timeout=patience_s)

    def send(self, body: bytes) -> None:
        """Send a request."""
        try:
            self.http.request("POST", "/predict", body, {"Content-Type": "application/json"})
        except OSError as error:
            self.http.close()
            raise RefusedError(str(error)) from error

    def receive(self) -> bytes:
        """Receive its answer."""
        try:
            response = self.http.getresponse()
            body = response.read()
        except TimeoutError as error:
            self.http.close()
            raise SilenceError(str(error)) from error
        except (OSError, http.client.HTTPException) as error:
            self.http.close()
            raise RefusedError(str(error)) from error
        if response.status != http.HTTPStatus.OK:
            raise RefusedError(f"{response.status}: {body[:200]!r}")
        return body
