"""torch.multiprocessing: processes and queues, with which one builds the rest. Nothing watches a process."""

from __future__ import annotations

import queue
from typing import TYPE_CHECKING, Any

from benchmarks.contestant import SILENCE_S, Arrays, Client, Contestant, Recovery, SilenceError
from benchmarks.peers import together

if TYPE_CHECKING:
    from collections.abc import Callable


class TorchQueues(Contestant):
    """Workers with a queue in and a queue out each; the client is the process that started them."""

    name = "torch-mp"
    package = used = "import torch.multiprocessing"
    joinable = False

    def start(self, workers: int) -> None:
        """Start all, then call each."""
        import torch.multiprocessing as mp

        context = mp.get_context("spawn")
        for _ in range(workers):
            asked, answers = context.Queue(), context.Queue()
            process = context.Process(target=serve, args=(asked, answers), daemon=True)
            process.start()
            self._workers.append((process, asked, answers))
        for at in range(workers):
            self._call(at, "empty")

    def connect(self) -> Client:
        """Return the queues of the first."""
        _, asked, answers = self._workers[0]
        return Client(
            lambda: self._call(0, "empty"),
            lambda payload: asked.put(("echo", payload)),
            lambda _: answers.get(),
        )

    def processes(self) -> dict[str, list[int]]:
        """Return a worker; this process looks after it, as far as anybody does."""
        return {"worker": [self._workers[0][0].pid]}

    def recovery(self) -> Recovery:
        """Return how to lose the process, which stays lost."""

        def hold(fifo: str) -> Callable[[], object]:
            _, asked, answers = self._workers[0]
            asked.put(("hold", fifo))

            def wait() -> object:
                try:
                    return answers.get(timeout=SILENCE_S)
                except queue.Empty as error:
                    raise SilenceError from error

            return wait

        return Recovery(lambda: self._call(0, "pid"), None, hold, ())

    def arrays(self) -> Arrays:
        """Return tensors, which queues hand on as file descriptors of shared memory."""

        def hand_on(nbytes: int) -> None:
            made = self._call(0, "make_tensor", nbytes)
            if self._call(1, "ends", made) != 2:
                raise RuntimeError("what was handed on is not what was made")

        return Arrays(hand_on=hand_on)

    def stop(self) -> None:
        """Kill the processes."""
        while self._workers:
            process, asked, answers = self._workers.pop()
            process.kill()
            process.join()
            for each in (asked, answers):
                each.cancel_join_thread()
                each.close()

    def __init__(self, directory: Any) -> None:
        super().__init__(directory)
        self._workers: list[tuple[Any, Any, Any]] = []

    def _call(self, at: int, name: str, *arguments: Any) -> Any:
        _, asked, answers = self._workers[at]
        asked.put((name, *arguments))
        return answers.get()


def serve(asked: Any, answers: Any) -> None:
    """Answer calls, one after the other."""
    functions: dict[str, Callable[..., Any]] = {
        each.__name__: each for each in (together.empty, together.echo, together.pid, together.hold, together.ends)
    }
    functions["make_tensor"] = make_tensor
    while True:
        name, *arguments = asked.get()
        answers.put(functions[name](*arguments))


def make_tensor(nbytes: int) -> Any:
    """Return a new tensor of bytes, with something at both ends."""
    import torch

    return torch.from_numpy(together.make(nbytes))
