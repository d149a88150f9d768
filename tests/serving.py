"""Shared by tests of the HTTP server: a server as its own process, and clients down to raw bytes."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

from atomr_mp.operator.session import OperatorSession
from atomr_mp.process.files.rundir import SESSION_SOCKET
from tests.support import ACTORS, BACKEND, DEADLINE_S, Ledger
from tests.waiting import readable

SERVED: Final = f"{ACTORS}/served.py:Served"
CLI: Final = (sys.executable, "-m", "atomr_mp.cli")


class Answer(NamedTuple):
    """An answer, read to its end."""

    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        """Return the body's value."""
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        """The error in the body."""
        found: dict[str, Any] = self.json()["error"]
        return found


class Server:
    """`atomr-mp serve` as a process; ended by SIGTERM at the end of the `with`, and looked at then.

    Args:
        ledger: Counts its processes.
        *options: Of the command.
        actor: What its own pool runs; None for a pool that runs already.
        run_dir: The pool's.
        stderr: Where it writes; None for a file that `log` reads.
    """

    def __init__(
        self,
        ledger: Ledger,
        *options: str | Path,
        actor: str | None = SERVED,
        run_dir: str = "run",
        stderr: int | None = None,
    ) -> None:
        where = () if any(each == "--uds" for each in options) else ("--port", "0")
        self._run_dir: Final = ledger.run_dir(run_dir)
        pool: tuple[str | Path, ...] = ("--run-dir", self._run_dir)
        if actor is not None:
            pool = (*pool, "--actor", actor, "--backend", BACKEND)
            if "--gpus" not in options:
                pool = (*pool, "--gpus", "1")
        beside = os.environ.get("PYTHONPATH", "")
        self._errors = (ledger.path / f"serve-{time.monotonic_ns()}.log").open("w+b")
        self.process: Final = subprocess.Popen(
            [*CLI, "serve", *map(str, (*where, *pool, *options))],
            stdout=subprocess.PIPE,
            stderr=self._errors if stderr is None else stderr,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ACTORS.parents[1]), *filter(None, [beside])])},
        )
        self.told = ""
        self.port = 0
        self.grpc: list[str] = []
        """Where gRPC is answered."""
        self.token = ""

    def __enter__(self) -> Self:
        try:
            self.told = self._hear("curl" if self.process.stdout else "")
        except BaseException:
            self.process.kill()
            self.process.__exit__(None, None, None)
            raise
        port = re.search(r"https?://[^/ ]*?:(\d+)", self.told)
        token = re.search(r"Bearer ([^']+)'", self.told)
        self.port = int(port[1]) if port else 0
        grpc = re.search(r"with gRPC at (.+)", self.told)
        self.grpc = grpc[1].split(" and ") if grpc else []
        self.token = token[1] if token else ""
        return self

    def __exit__(
        self, _type: type[BaseException] | None, failed: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        try:
            if failed is None and self.process.poll() is None:
                assert self.stop() == 0, self.log()
        finally:
            self.process.kill()
            self.process.__exit__(None, None, None)
            self._errors.close()

    @property
    def pid(self) -> int:
        """The parent's."""
        return self.process.pid

    def front_ends(self) -> list[int]:
        """Return the pids of the front ends."""
        return [pid for pid in children(self.pid) if b"front_end" in command_line(pid)]

    def watching(self) -> list[int]:
        """Return the pids of the front ends that have a session with the pool to watch it, one for each session.

        A point of the page's history is read in a short session of its own.
        """
        with OperatorSession(self._run_dir / SESSION_SOCKET) as session:
            observers = [each.pid for each in session.inventory().sessions if each.state == "observes"]
        return [pid for pid in observers if pid in self.front_ends()]

    def log(self) -> str:
        """Return what it has written to stderr."""
        # By a description of its own: a seek on the server's would move the place where that writes next.
        return Path(self._errors.name).read_bytes().decode()

    def stop(self) -> int:
        """End it in order; return its exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(DEADLINE_S)

    def connect(self, timeout_s: float = DEADLINE_S) -> socket.socket:
        """Return a connection."""
        return socket.create_connection(("127.0.0.1", self.port), timeout_s)

    @contextlib.contextmanager
    def client(self) -> Iterator[HTTPConnection]:
        """Return a connection that speaks HTTP."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=DEADLINE_S)
        try:
            yield connection
        finally:
            connection.close()

    def ask(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: dict[str, str] | None = None,
        *,
        token: str | None = None,
    ) -> Answer:
        """Ask something, with the token unless another is given; with "" without one."""
        with self.client() as connection:
            return ask(connection, method, path, body, self._headers(headers, token))

    def call(self, method: str, arguments: Any = None, **headers: str) -> Answer:
        """Call a method with JSON."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        body = json.dumps({} if arguments is None else arguments).encode()
        return self.ask("POST", f"/call/{method}", body, {"content-type": "application/json", **named})

    def raw(self, data: bytes, *, shut: bool = False) -> bytes:
        """Send bytes, and return all that comes until the server closes."""
        with self.connect() as connection:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                connection.sendall(data)
                if shut:
                    connection.shutdown(socket.SHUT_WR)
            return read_all(connection)

    def _headers(self, headers: dict[str, str] | None, token: str | None) -> dict[str, str]:
        shown = self.token if token is None else token
        return {**({"authorization": f"Bearer {shown}"} if shown else {}), **(headers or {})}

    def _hear(self, text: str) -> str:
        """Read its output until a whole line with a text has come."""
        assert self.process.stdout is not None
        seen = b""
        descriptor = self.process.stdout.fileno()
        while text.encode() not in seen or not seen.endswith(b"\n"):
            # The first is said once a pool runs, whose processes are all started before.
            assert readable([descriptor], 2 * DEADLINE_S), f"it says nothing: {seen!r} {self.log()}"
            data = os.read(descriptor, 65536)
            assert data, f"it has ended: {seen!r} {self.log()}"
            seen += data
        return seen.decode()


def ask(connection: HTTPConnection, method: str, path: str, body: bytes | None, headers: dict[str, str]) -> Answer:
    """Ask something on a connection."""
    connection.request(method, path, body, headers)
    return read(connection.getresponse())


def read(response: HTTPResponse) -> Answer:
    """Read an answer to its end."""
    body = response.read()
    return Answer(response.status, {name.lower(): value for name, value in response.getheaders()}, body)


def read_all(connection: socket.socket) -> bytes:
    """Read until the other end closes."""
    seen = b""
    with contextlib.suppress(ConnectionResetError):
        while data := connection.recv(65536):
            seen += data
    return seen


def status_of(answer: bytes) -> int:
    """Return the status in a raw answer."""
    return int(answer.split(b" ", 2)[1])


def children(pid: int) -> list[int]:
    """Return a process's children."""
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):
            found += [int(child) for child in (task / "children").read_text().split()]
    return found


def command_line(pid: int) -> bytes:
    """Return a process's arguments; empty if it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""
