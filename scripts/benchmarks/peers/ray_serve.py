"""Ray Serve: a deployment with one replica, called through its handle, not over HTTP."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any, Final

from benchmarks.contestant import BATCH, BATCH_WAIT_S, Client, Contestant, Embed
from benchmarks.peers import together
from benchmarks.peers.ray_actors import cluster_pids, join_cluster, start_cluster

APPLICATION: Final = "bench"
ONGOING: Final = 256
"""Requests that a replica may have at a time; Ray's default is 5."""


class RayServe(Contestant):
    """A deployment that echoes; another that embeds, in batches."""

    name = "ray-serve"
    package = "import ray.serve"
    used = "import ray.serve; ray.serve.run"

    def start(self, workers: int) -> None:
        """Deploy as many replicas; the handle chooses."""
        from ray import serve

        start_cluster(self.directory, workers)
        serve.start(proxy_location="Disabled")
        deployment = serve.deployment(
            Echo, num_replicas=workers, max_ongoing_requests=ONGOING, ray_actor_options={"num_cpus": 0.5}
        )
        self._handle = serve.run(deployment.bind(), name=APPLICATION, route_prefix=None)
        self._handle.empty.remote().result()

    def connect(self) -> Client:
        """Return the handle; another process joins the cluster."""
        from ray import serve

        if self._handle is None:
            join_cluster(self.directory)
            self._handle = serve.get_app_handle(APPLICATION)
        handle = self._handle
        return Client(
            lambda: handle.empty.remote().result(),
            handle.echo.remote,
            lambda response: response.result(),
        )

    def processes(self) -> dict[str, list[int]]:
        """Return the replica, and all else that Ray has started."""
        assert self._handle is not None
        return {"supervisor": cluster_pids(), "worker": [self._handle.pid.remote().result()]}

    def embedding(self, backend: str) -> Embed:
        """Return the model's deployment, with as many texts under way as make two batches."""
        from ray import serve

        gpus = int(backend == "cuda")
        start_cluster(self.directory, 2, gpus)
        serve.start(proxy_location="Disabled")
        deployment = serve.deployment(
            Embedding, max_ongoing_requests=ONGOING, ray_actor_options={"num_cpus": 1, "num_gpus": gpus}
        )
        handle = serve.run(deployment.bind(backend), name=APPLICATION, route_prefix=None)

        def embed(texts: Iterable[str]) -> Iterator[object]:
            flight: deque[Any] = deque()
            for text in texts:
                flight.append(handle.remote(text))
                if len(flight) >= 2 * BATCH:
                    yield flight.popleft().result()
            while flight:
                yield flight.popleft().result()

        return embed

    def stop(self) -> None:
        """Stop the cluster, or leave it."""
        import ray

        ray.shutdown()

    _handle: Any = None


class Echo:
    """The deployment."""

    async def empty(self) -> None:
        """Answer."""

    async def echo(self, payload: bytes) -> bytes:
        """Answer with what was sent."""
        return payload

    async def pid(self) -> int:
        """Return the replica's process."""
        return os.getpid()


class Embedding:
    """The deployment of the model."""

    def __init__(self, backend: str) -> None:
        from ray import serve

        self._model = together.Model(backend)

        batched = serve.batch(max_batch_size=BATCH, batch_wait_timeout_s=BATCH_WAIT_S)
        self._encode = batched(self._encode_all)

    async def __call__(self, text: str) -> Any:
        """Return the vector of a text."""
        return await self._encode(text)

    async def _encode_all(self, texts: list[str]) -> list[Any]:
        return list(self._model.encode(texts))
