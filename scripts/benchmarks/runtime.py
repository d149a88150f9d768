"""The runtime as an application uses it, on the host backend."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from time import sleep
from typing import TYPE_CHECKING, Any, Final

from benchmarks.contestant import (
    BATCH,
    STREAM_PARTS,
    Arrays,
    AsyncClient,
    Client,
    Contestant,
    Embed,
    Recovery,
    Serving,
    SharedGpu,
    Signals,
    http_request,
)

if TYPE_CHECKING:
    from atomr_mp import Pool

EMBED: Final = Path(__file__).parents[2] / "examples" / "embed.py"
ACTORS: Final = Path(__file__).with_name("processes")
ACTOR: Final = ACTORS / "echo_actor.py"
STREAMING: Final = ACTORS / "streaming_actor.py"
SMALL_MODEL: Final = ACTORS / "small_model_actor.py"
TORCH_ACTOR: Final = ACTORS / "torch_actor.py"
HOLD_S: Final = 60.0
"""How long a held request sleeps, if it is not killed."""


class Runtime(Contestant):
    """A pool of this process."""

    name = "runtime"
    package = "import atomr_mp"
    used = "import atomr_mp.startup.config; atomr_mp.start, atomr_mp.connect"
    bears_kills = True

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._pool: Pool | None = None
        self._others: Final = ExitStack()
        """Ends what else was started."""

    def start(self, workers: int, standby: str = "none", *, torch: bool = False) -> None:
        """Start a pool and call each device."""
        import atomr_mp

        self._pool = atomr_mp.start(
            actors=[f"Echo={TORCH_ACTOR if torch else ACTOR}:Echo"],
            gpus=workers,
            backend="host",
            run_dir=self._run_dir,
            standby=standby,
            preload=["torch"] if torch and standby == "warm" else [],
            max_restarts=10_000,  # the measurement kills more often than the default allows,
            max_suspicions=0,  # and while the same request runs
        )
        for reply in [self._pool.call("Echo.empty", device=device) for device in range(workers)]:
            reply.result()

    def connect(self) -> Client:
        """Return a client of this process's pool, joining the pool if another process has started it."""
        from atomr_mp import Reply

        echo = self._echo()
        call = echo.empty
        return Client(lambda: call().result(), echo.echo, Reply.result)

    def connect_async(self) -> AsyncClient:
        """Return the same: calls find the event loop by themselves."""
        echo = self._echo()
        return AsyncClient(echo.empty, echo.echo)

    def processes(self) -> dict[str, list[int]]:
        """Return the supervisor and device 0's process."""
        pool = self._joined()
        return {"supervisor": [pool.supervisor_pid], "worker": [pool.devices[0].pid]}

    def recovery(self) -> Recovery:
        """Return how to lose device 0's process."""
        from atomr_mp import errors

        pool = self._joined()
        echo = self._echo()

        def pid() -> int:
            pool.wait_ready()
            return pool.devices[0].pid

        def hold(fifo: str) -> Callable[[], object]:
            return echo.hold(fifo, HOLD_S).result  # type: ignore[no-any-return]  # a user's method, by its name

        return Recovery(pid, lambda: echo.empty().result(), hold, errors.WorkerLost)

    def failover(self, standby: str, *, torch: bool) -> Recovery:
        """Return the same for a pool with this behind its worker."""
        self.stop()
        self.start(1, standby, torch=torch)
        pool, way = self._joined(), self.recovery()

        def pid() -> int:
            found = way.pid()
            while standby == "hot" and pool.devices[0].standby is None:
                sleep(0.001)
            return found

        return replace(way, pid=pid)

    def unwarmed(self, backend: str, losses: int) -> dict[str, dict[str, float]]:
        """Return the figures of another pool than the one before."""
        from benchmarks.standalone.loaded_failover import unwarmed

        return unwarmed(backend, losses)

    def arrays(self) -> Arrays:
        """Return refs' ways."""
        pool, echo = self._joined(), self._echo()
        device, other = pool.device(0), pool.actor("Echo", device=1)
        small = device.zeros((16,))
        refs: dict[int, Any] = {}

        def put(source: Any, _target: Any) -> None:
            with device.put(source):
                pass

        def take(source: Any, target: Any) -> None:
            if source.nbytes not in refs:
                refs[source.nbytes] = device.put(source)
            refs[source.nbytes].numpy(out=target)

        def hand_on(nbytes: int) -> None:
            made = echo.make(nbytes).result()
            if other.ends(made).result() != 2:
                raise RuntimeError("what was handed on is not what was made")
            made.free()

        with_ref = (lambda: echo.seen(1).result(), lambda: echo.seen(small).result())
        return Arrays(put, take, hand_on, with_ref)

    def streaming(self, standby: str) -> Any:
        """Return another pool than the one before."""
        import atomr_mp

        self.stop()
        streams = STREAMING
        self._pool = atomr_mp.start(
            actors=[f"{ACTOR}:Echo", f"{streams}:Stream", f"{streams}:Engine"],
            gpus=1,
            backend="host",
            run_dir=self._run_dir,
            standby=standby,
            max_restarts=10_000,
            max_suspicions=0,
        )
        return self._pool

    def signals(self) -> Signals:
        """Return pools of their own."""
        from benchmarks.processes.signalled import signalled

        return signalled(self.directory, self._others)

    def serving(self) -> Serving:
        """Start `atomr-mp serve` with a pool of its own, and join that to see its processes."""
        port, token = self._serve(
            *("--actor", f"Echo={ACTOR}:Echo", "--actor", f"Stream={STREAMING}:Stream", "--backend", "host"),
            *("--standby", "hot", "--set", "max_restarts=10000", "--set", "max_suspicions=0"),
        )
        pool = self._joined()

        def worker_pid() -> int:
            pool.wait_ready()
            return pool.devices[0].pid

        def standby_pid() -> int | None:
            found = pool.status().devices[0].standby
            return found.pid if found is not None and found.state == "ready" else None

        request = http_request("/call/Echo.again", b"{}", token)
        stream = http_request("/call/Stream.count", b"[%d]" % STREAM_PARTS, token)
        again = pool.actor("Echo").again
        return Serving(
            port,
            request,
            stream,
            pool_call=lambda: again().result(),
            worker_pid=worker_pid,
            standby_pid=standby_pid,
        )

    def _serve(self, *options: str) -> tuple[int, str]:
        """Start `atomr-mp serve` with one worker, and join its pool; return the port and the token."""
        import re
        import subprocess
        import sys

        import atomr_mp

        command = [sys.executable, "-m", "atomr_mp", "serve", "--port", "0", "--gpus", "1"]
        server = subprocess.Popen(
            [*command, "--run-dir", str(self._run_dir), *options], stdout=subprocess.PIPE, text=True
        )
        self._others.callback(server.wait)
        self._others.callback(server.terminate)
        assert server.stdout is not None
        told = "".join(server.stdout.readline() for _ in range(3))
        port, token = re.search(r":(\d+)$", told, re.MULTILINE), re.search(r"Bearer ([^']+)'", told)
        assert port is not None
        assert token is not None
        self._pool = atomr_mp.connect(run_dir=self._run_dir)
        self._pool.wait_ready()
        return int(port[1]), token[1]

    def served_embedding(self, backend: str) -> Embed:
        """Return the example's actor over HTTP, with as many texts under way as make two batches."""
        from benchmarks.subjects.serving import asks

        port, token = self._serve("--actor", f"{EMBED}:Embed", "--backend", "cuda" if backend == "cuda" else "host")
        return asks(port, "/call/Embed.embed", token, 2 * BATCH)

    def embedding(self, backend: str) -> Embed:
        """Return the example's actor, through `map`."""
        import atomr_mp

        self._pool = pool = atomr_mp.start(
            actors=[f"{EMBED}:Embed"],
            gpus=1,
            backend="cuda" if backend == "cuda" else "host",
            run_dir=self._run_dir,
        )
        return lambda texts: pool.map("Embed.embed", texts)

    def shared_gpu(self, workers: int, backend: str) -> SharedGpu:
        """Return another pool than the one before, with hot standbys."""
        import atomr_mp

        self.stop()
        self._pool = pool = atomr_mp.start(
            actors=[f"{SMALL_MODEL}:SmallModel"],
            gpus=1,
            workers_per_gpu=workers,
            backend="cuda" if backend == "cuda" else "host",
            run_dir=self._run_dir,
            standby="hot",
            standby_starts=workers,
            max_restarts=10_000,
            max_suspicions=0,
        )
        return SharedGpu(
            lambda device: pool.call("SmallModel.run", device=device),
            lambda device: pool.devices[device].pid,
            lambda: all(device.admitted and device.standby is not None for device in pool.devices),
        )

    def stop(self) -> None:
        """Close the pools; that stops those that were started here."""
        self._others.close()
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.close()

    @property
    def _run_dir(self) -> Path:
        return self.directory / "run"

    def _joined(self) -> Pool:
        import atomr_mp

        if self._pool is None:
            self._pool = atomr_mp.connect(run_dir=self._run_dir)
            self._pool.wait_ready()
        return self._pool

    def _echo(self) -> Any:
        return self._joined().actor("Echo", device=0)
