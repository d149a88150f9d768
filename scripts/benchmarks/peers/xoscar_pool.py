"""xoscar: actors in sub-processes of a pool, called by coroutines."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any, Final

from benchmarks.contestant import SILENCE_S, Arrays, Client, Contestant, Recovery, SilenceError
from benchmarks.peers import together

HOST: Final = "127.0.0.1"


class XoscarPool(Contestant):
    """A pool in this process's event loop, which runs while there is something to wait for."""

    name = "xoscar"
    package = used = "import xoscar"

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._loop = asyncio.new_event_loop()
        self._pool: Any = None
        self._refs: list[Any] = []

    def start(self, workers: int) -> None:
        """Start sub-processes with an actor each, and call them."""
        self._run(self._start(workers))

    def connect(self) -> Client:
        """Return the first actor; another process connects to its sub-process."""
        ref, loop = self._ref(), self._loop
        run = loop.run_until_complete
        return Client(
            lambda: run(ref.empty()),
            lambda payload: loop.create_task(ref.echo(payload)),
            run,
        )

    def processes(self) -> dict[str, list[int]]:
        """Return a worker; this process looks after it."""
        return {"worker": [self._run(self._ref().pid())]}

    def recovery(self) -> Recovery:
        """Return how to lose the sub-process."""
        import xoscar as xo

        ref = self._ref()
        lost = (xo.ServerClosed, xo.ActorNotExist, ConnectionError)

        def empty() -> None:
            try:
                self._run(ref.empty())
            except lost:
                self._run(asyncio.sleep(0.005))  # the loop is also what starts the process again
                raise

        def until_there() -> int:
            while True:
                try:
                    empty()
                    found: int = self._run(ref.pid())
                    return found
                except lost:
                    continue

        def hold(fifo: str) -> Callable[[], object]:
            task = self._loop.create_task(ref.hold(fifo))
            # The request leaves while the loop runs; whoever calls opens the fifo next, and waits without the loop.
            self._run(asyncio.sleep(0.05))
            return partial(self._answer, task)

        return Recovery(until_there, empty, hold, lost)

    def arrays(self) -> Arrays:
        """Return moves from actor to actor."""
        one, other = self._refs

        def hand_on(nbytes: int) -> None:
            if self._run(other.fetched_ends(one, nbytes)) != 2:
                raise RuntimeError("what was handed on is not what was made")

        return Arrays(hand_on=hand_on)

    def stop(self) -> None:
        """Stop the pool."""
        if self._pool is not None:
            self._run(self._pool.stop())
            self._pool = None

    def _run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self._loop.run_until_complete(work)

    async def _start(self, workers: int) -> None:
        import xoscar as xo

        self._pool = await xo.create_actor_pool(HOST, n_process=workers, auto_recover="actor")
        for at, address in enumerate(list(self._pool.sub_processes)):
            self._refs.append(await xo.create_actor(echo_class(), address=address, uid=f"echo-{at}"))
        for ref in self._refs:
            await ref.empty()
        (self.directory / "address").write_text(self._refs[0].address, encoding="utf-8")

    def _ref(self) -> Any:
        if not self._refs:
            import xoscar as xo

            address = (self.directory / "address").read_text(encoding="utf-8")
            self._refs = [self._run(xo.actor_ref(address, "echo-0"))]
        return self._refs[0]

    def _answer(self, task: asyncio.Task[Any]) -> object:
        try:
            return self._run(asyncio.wait_for(task, SILENCE_S))
        except TimeoutError as error:
            raise SilenceError from error


def echo_class() -> type:
    """Return the actor's class, which needs the package; by name in this module, so that workers find it."""
    import xoscar as xo

    class Echo(xo.Actor):  # type: ignore[misc]  # without types where it is not installed
        """The actor."""

        async def empty(self) -> None:
            """Answer."""

        async def echo(self, payload: bytes) -> bytes:
            """Answer with what was sent."""
            return payload

        async def pid(self) -> int:
            """Return the actor's process."""
            return os.getpid()

        async def hold(self, fifo: str) -> None:
            """Say that this runs; then sleep, and block everything else."""
            together.hold(fifo)

        async def make(self, nbytes: int) -> Any:
            """Return a new array."""
            return together.make(nbytes)

        async def fetched_ends(self, other: Any, nbytes: int) -> int:
            """Have another actor make an array; return the sum of its ends."""
            return together.ends(await other.make(nbytes))

    return Echo
