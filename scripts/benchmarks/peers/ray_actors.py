"""Ray: actors of a local cluster, which Ray starts again when their process dies."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

from benchmarks.contestant import Arrays, AsyncClient, Client, Contestant, Recovery
from benchmarks.peers import together

NAMESPACE: Final = "bench"
STORE_BYTES: Final = 3 * 2**30
"""Room for arrays; Ray takes it from /dev/shm as it is used."""


class RayActors(Contestant):
    """Named actors, one a process."""

    name = "ray"
    package = "import ray"
    used = "import ray; ray.init"

    def start(self, workers: int) -> None:
        """Start a cluster of this machine, and call each actor."""
        import ray

        start_cluster(self.directory, workers)
        actor = ray.remote(max_restarts=-1, num_cpus=1)(Echo)
        self._actors = [actor.options(name=f"echo-{at}").remote() for at in range(workers)]
        ray.get([each.empty.remote() for each in self._actors])

    def connect(self) -> Client:
        """Return the first actor; another process joins the cluster."""
        import ray

        actor = self._actor()
        return Client(lambda: ray.get(actor.empty.remote()), actor.echo.remote, ray.get)

    def connect_async(self) -> AsyncClient:
        """Return the same, awaited."""
        actor = self._actor()

        async def empty() -> object:
            return await actor.empty.remote()

        async def echo(payload: bytes) -> object:
            return await actor.echo.remote(payload)

        return AsyncClient(empty, echo)

    def processes(self) -> dict[str, list[int]]:
        """Return the actor's process, and all else that Ray has started, its raylet first."""
        import ray

        return {"supervisor": cluster_pids(), "worker": [ray.get(self._actor().pid.remote())]}

    def recovery(self) -> Recovery:
        """Return how to lose the actor's process."""
        import ray

        actor = self._actor()

        def hold(fifo: str) -> Callable[[], object]:
            return partial(ray.get, actor.hold.remote(fifo))

        return Recovery(
            lambda: self._settled_pid(actor),
            lambda: ray.get(actor.empty.remote()),
            hold,
            ray.exceptions.RayActorError,
        )

    def arrays(self) -> Arrays:
        """Return the object store's ways: immutable arrays in shared memory, by reference."""
        import ray

        assert self._actors is not None
        one, other = self._actors
        small = ray.put(together.make(64))
        refs: dict[int, Any] = {}

        def put(source: Any, _target: Any) -> None:
            ray.put(source)

        def take(source: Any, target: Any) -> None:
            if source.nbytes not in refs:
                refs[source.nbytes] = ray.put(source)
            target[...] = ray.get(refs[source.nbytes])

        def hand_on(nbytes: int) -> None:
            if ray.get(other.ends.remote(one.make.remote(nbytes))) != 2:
                raise RuntimeError("what was handed on is not what was made")

        with_ref = (lambda: ray.get(one.seen.remote(1)), lambda: ray.get(one.seen.remote(small)))
        return Arrays(put, take, hand_on, with_ref)

    def stop(self) -> None:
        """Stop the cluster, or leave it."""
        import ray

        ray.shutdown()

    _actors: list[Any] | None = None

    def _actor(self) -> Any:
        if self._actors is None:
            import ray

            join_cluster(self.directory)
            self._actors = [ray.get_actor("echo-0", namespace=NAMESPACE)]
        return self._actors[0]

    def _settled_pid(self, actor: Any) -> int:
        import ray

        while True:
            try:
                found: int = ray.get(actor.pid.remote())
                return found
            except ray.exceptions.RayActorError:
                continue


class Echo:
    """The actor."""

    def empty(self) -> None:
        """Answer."""

    def echo(self, payload: bytes) -> bytes:
        """Answer with what was sent."""
        return payload

    def pid(self) -> int:
        """Return the actor's process."""
        return os.getpid()

    def hold(self, fifo: str) -> None:
        """Say that this runs; then sleep."""
        together.hold(fifo)

    def make(self, nbytes: int) -> Any:
        """Return a new array."""
        return together.make(nbytes)

    def ends(self, array: Any) -> int:
        """Return the sum of an array's ends."""
        return together.ends(array)

    def seen(self, _value: Any) -> None:
        """Answer, whatever came."""


def start_cluster(directory: Path, cpus: int, gpus: int = 0) -> None:
    """Start a cluster of this machine, without a dashboard; leave its address for those who join."""
    import ray

    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    temporary = directory / "r"
    temporary.mkdir(exist_ok=True)
    context = ray.init(
        num_cpus=max(2, cpus),
        num_gpus=gpus,
        include_dashboard=False,
        object_store_memory=STORE_BYTES,
        namespace=NAMESPACE,
        log_to_driver=False,
        logging_level="error",
        _temp_dir=str(temporary),
    )
    (directory / "address").write_text(context.address_info["address"], encoding="utf-8")


def join_cluster(directory: Path) -> None:
    """Join the cluster that another process has started."""
    import ray

    address = (directory / "address").read_text(encoding="utf-8")
    ray.init(
        address=address,
        namespace=NAMESPACE,
        log_to_driver=False,
        logging_level="error",
        _temp_dir=str(directory / "r"),
    )


def cluster_pids() -> list[int]:
    """Return the processes that this one's cluster consists of beside its actors, the raylet first."""
    import psutil

    found = psutil.Process().children(recursive=True)
    ours = [each for each in found if not each.name().startswith("ray::")]
    return [each.pid for each in sorted(ours, key=lambda each: each.name() != "raylet")]
