"""loky: processes behind an executor, as joblib has them. A pool that lost a process is replaced by the next."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from benchmarks.contestant import Arrays, Client, Contestant, Recovery
from benchmarks.peers import together

if TYPE_CHECKING:
    from collections.abc import Callable

NEVER_S = 3600
"""Idle processes are to stay."""


class LokyExecutor(Contestant):
    """The reusable executor, which other processes cannot join."""

    name = "loky"
    package = used = "import loky"
    joinable = False

    def start(self, workers: int) -> None:
        """Start workers; a task cannot be sent to one of them, so they meet."""
        meeting = self.directory / "meeting"
        meeting.mkdir()
        executor = self._executor(workers)
        met = [executor.submit(together.meet, str(meeting), workers) for _ in range(workers)]
        self._pids = [each.result() for each in met]

    def connect(self) -> Client:
        """Return the executor."""
        submit = self._executor(len(self._pids)).submit
        return Client(
            lambda: submit(together.empty).result(),
            lambda payload: submit(together.echo, payload),
            lambda future: future.result(),
        )

    def processes(self) -> dict[str, list[int]]:
        """Return a worker; this process looks after it."""
        return {"worker": [self._pids[0]]}

    def recovery(self) -> Recovery:
        """Return how to lose the one process, and to get an executor that works."""
        from loky.process_executor import BrokenProcessPool

        def call(function: Callable[..., Any]) -> Any:
            return self._executor(1).submit(function).result()

        def hold(fifo: str) -> Callable[[], object]:
            return self._executor(1).submit(together.hold, fifo).result  # type: ignore[no-any-return]

        return Recovery(lambda: call(together.pid), lambda: call(together.empty), hold, BrokenProcessPool)

    def arrays(self) -> Arrays:
        """Return moves through the parent, by pickle: two executors, so that it is known which process has an array."""
        import loky

        one, other = (loky.ProcessPoolExecutor(1, timeout=NEVER_S) for _ in range(2))
        self._others = [one, other]

        def hand_on(nbytes: int) -> None:
            made = one.submit(together.make, nbytes).result()
            if other.submit(together.ends, made).result() != 2:
                raise RuntimeError("what was handed on is not what was made")

        return Arrays(hand_on=hand_on)

    def stop(self) -> None:
        """Shut the executors down."""
        from loky.reusable_executor import get_reusable_executor

        for each in (*self._others, get_reusable_executor(timeout=NEVER_S)):
            each.shutdown(wait=True, kill_workers=True)

    _others: tuple[Any, ...] | list[Any] = ()
    _pids: list[int]

    @staticmethod
    def _executor(workers: int) -> Any:
        import loky

        return loky.get_reusable_executor(max_workers=workers, timeout=NEVER_S)
