"""A client with many calls in flight, a program: prints a line of JSON for each loss of the worker that it meets.

Arguments: the run directory, the actor, how many calls are in flight, each how manieth has 320 KB in and out (0 for
none), the device. It leaves when its input ends. The calls are not idempotent, so that those of a lost worker end as
errors.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections import Counter, deque
from typing import Any, Final

import numpy as np

import atomr_mp
from atomr_mp import errors

LARGE: Final = 80_000
"""Elements of a large array, of four bytes each."""
DEADLINE_S: Final = 60.0


class Caller:
    """Keeps calls in flight, and times how long it has no good answer of a new worker.

    Args:
        actor: The actor.
        in_flight: How many calls.
        large_every: Each how manieth is large; 0 for none.
    """

    def __init__(self, actor: Any, in_flight: int, large_every: int) -> None:
        self._actor = actor
        self._large_every = large_every
        self._array = np.ones(LARGE, np.float32)
        self._sent = 0
        self._flight = deque(self._send() for _ in range(in_flight))
        self._worker = 0
        """The process that has given the last good answer."""
        self._error_ns = 0
        """When the first call failed since then; 0 if none has."""
        self._answered_ns: dict[bool, int] = {}
        """When the new process has given its first good answer, and its first large one."""
        self._failed: Counter[str] = Counter()

    def turn(self) -> dict[str, Any] | None:
        """Take the oldest answer and send another call; return how a recovery went that this answer ends."""
        reply = self._flight.popleft()
        try:
            result, worker = reply.result(DEADLINE_S)
        except errors.AtomrError as error:
            self._error_ns = self._error_ns or time.monotonic_ns()
            self._failed[type(error).__name__] += 1
            self._flight.append(self._send())
            return None
        now_ns = time.monotonic_ns()
        large = isinstance(result, np.ndarray)
        if large and (result[0], result[-1]) != (2, 2):
            raise AssertionError("a wrong answer")
        self._flight.append(self._send())
        return self._took(worker, now_ns, large=large)

    def _took(self, worker: int, now_ns: int, *, large: bool) -> dict[str, Any] | None:
        """Note a good answer; of one that its worker sent before its end, nothing."""
        if not self._error_ns or worker == self._worker:
            self._worker = worker
            return None
        self._answered_ns.setdefault(large, now_ns)
        if len(self._answered_ns) <= bool(self._large_every):
            return None
        first_ns, large_ns = min(self._answered_ns.values()), self._answered_ns.get(True)
        found = {"error_ns": self._error_ns, "answer_ns": first_ns, "large_ns": large_ns, "failed": dict(self._failed)}
        self._error_ns, self._worker = 0, worker
        self._answered_ns.clear()
        self._failed.clear()
        return found

    def _send(self) -> Any:
        self._sent += 1
        if self._large_every and self._sent % self._large_every == 0:
            return self._actor.doubled(self._array)
        return self._actor.answer(2.0)


def main() -> None:
    """Call until the input ends."""
    run_dir, name, in_flight, large_every, device = sys.argv[1:]
    leaves = threading.Thread(target=sys.stdin.read, daemon=True)
    leaves.start()
    with atomr_mp.connect(run_dir=run_dir) as pool:
        pool.wait_ready()
        caller = Caller(pool.actor(name, device=int(device)), int(in_flight), int(large_every))
        for _ in range(2 * int(in_flight)):
            caller.turn()
        print("ready", flush=True)
        while leaves.is_alive():
            found = caller.turn()
            if found is not None:
                print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
