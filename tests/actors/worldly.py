"""An actor of a world, for tests: it meets its peers, leaves them waiting, differs from them, fails and ends."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atomr_mp.protocol.world.page import MET
from atomr_mp_workers import Actor, Batch, Context, method


class Worldly(Actor):
    """What a test asks of a rank; the same request reaches all of them."""

    def setup(self, context: Context) -> None:
        """Meet the others before there are any."""
        assert context.world is not None
        self.world = context.world
        self.rehearsed = self.world.all_reduce(np.ones(3)).tolist()
        self.log: list[int] = []
        self.batches: list[list[int]] = []

    @method(idempotent=True)
    def add(self, x: Any) -> Any:
        """Return the sum of x times rank + 1."""
        return self.world.all_reduce(np.asarray(x) * (self.world.rank + 1))

    @method(idempotent=True)
    def add_slowly(self, x: float, _number: int) -> float:
        """Take a moment, then return the sum of x over the ranks."""
        time.sleep(0.005)  # what is killed meanwhile runs
        return float(self.world.all_reduce(np.asarray(x))[()])

    @method
    def add_once(self, x: Any) -> Any:
        """Do the same, and not twice."""
        return self.world.all_reduce(np.asarray(x) * (self.world.rank + 1))

    @method(idempotent=True)
    def where(self) -> list[Any]:
        """Return rank, size, epoch, process, thread, and what a rehearsal gave."""
        here = threading.get_ident() == threading.main_thread().ident
        return [self.world.rank, self.world.size, self.world.epoch, os.getpid(), here, self.rehearsed]

    @method
    def note(self, number: int, meets: bool = False) -> int:  # noqa: FBT001, FBT002 - as a caller sends it
        """Note a number in the order of calls."""
        self.log.append(number)
        if meets:
            self.world.barrier()
        return number

    @method(idempotent=True)
    def noted(self) -> list[int]:
        """Return the numbers in their order."""
        return self.log

    @method
    def fail(self, ranks: list[int], meets: bool) -> int:  # noqa: FBT001 - as a caller sends it
        """Raise on some ranks; the others meet, which nothing comes of, or return."""
        if self.world.rank in ranks:
            raise ValueError(f"rank {self.world.rank} fails")
        if meets:
            self.world.barrier()
        return int(self.world.rank)

    @method
    def differ(self, way: str) -> float:
        """Call something else on the last rank."""
        last = self.world.rank == self.world.size - 1
        x = np.ones(5 if last and way == "count" else 4, "float32" if last and way == "type" else "float64")
        if way == "kind" and last:
            return float(self.world.broadcast(x)[0])
        if way == "root":
            return float(self.world.broadcast(x, root=int(last))[0])
        return float(self.world.all_reduce(x, op="max" if last and way == "operator" else "sum")[0])

    @method(idempotent=True, hang_timeout_s=1.0)
    def end(self, rank: int, how: str, times: str) -> float:
        """End the process of a rank once, amid a call; `times` is a file that tells that it has."""
        if self.world.rank == rank and not os.path.exists(times):  # noqa: PTH110 - the shortest
            with open(times, "x"):  # noqa: PTH123
                pass
            if how == "exits":
                os._exit(3)
            if how == "hangs":
                while True:
                    pass
            if how == "stops":
                os.kill(os.getpid(), signal.SIGSTOP)
                time.sleep(100)  # the process stops a little later, and goes on no more
            os.kill(os.getpid(), signal.SIGKILL)
        return float(self.world.all_reduce(np.ones(1))[0])

    @method(idempotent=True, hang_timeout_s=1.0)
    def end_always(self, ranks: list[int], how: str, runs: str) -> float:
        """End the processes of some ranks whenever it is called; all ranks note a run in a file."""
        with open(runs, "ab", buffering=0) as file:  # noqa: PTH123
            file.write(b"%d" % self.world.rank)
        self.world.barrier()
        if self.world.rank in ranks:
            if how == "hangs":
                while True:
                    pass
            if how == "kills":
                os.kill(os.getpid(), signal.SIGKILL)
            os._exit(3)
        return float(self.world.all_reduce(np.ones(1))[0])

    @method(idempotent=True)
    def wait(self, seconds: float) -> float:
        """Take some time on all ranks."""
        time.sleep(seconds)  # the duration is what is tested: longer than a deadline
        return seconds

    @method
    def wait_on(self, rank: int, seconds: float) -> float:
        """Take some time on one rank."""
        if self.world.rank == rank:
            time.sleep(seconds)  # the others go on to the next call meanwhile
        return seconds

    @method
    def pass_gate(self, gates: list[str]) -> None:
        """Wait until the file of this rank is there; call no collective."""
        while not os.path.exists(gates[self.world.rank]):  # noqa: PTH110 - the shortest
            time.sleep(0.01)  # the file is the event

    @method
    def meet_late(self, rank: int, gate: str) -> None:
        """Meet, one rank once a file is there."""
        while self.world.rank == rank and not os.path.exists(gate):  # noqa: PTH110 - the shortest
            time.sleep(0.01)  # the file is the event
        self.world.barrier()

    @method
    def wait_once(self, seconds: float, begun: str) -> float:
        """Take some time and then meet, not twice; `begun` is a file that tells that rank 0 has begun."""
        if self.world.rank == 0:
            with open(begun, "x"):  # noqa: PTH123
                pass
        time.sleep(seconds)  # the work that a planned end has to outlast
        return float(self.world.all_reduce(np.ones(1))[0])

    @method(idempotent=True)
    def all_of(self, x: Any) -> list[Any]:
        """Return what each collective gives, of an array with a row for each rank."""
        world, x = self.world, np.asarray(x) * (self.world.rank + 1)
        right, left = (world.rank + 1) % world.size, (world.rank - 1) % world.size
        parts = [np.full(rank + world.rank, world.rank, x.dtype) for rank in range(world.size)]
        reduced = world.reduce(x, root=world.size - 1)
        return [
            world.all_reduce(x),
            world.all_gather(x),
            world.reduce_scatter(x),
            reduced if reduced is not None else False,
            world.broadcast(x, root=world.size - 1),
            world.all_to_all(x),
            world.all_to_all_v(parts),
            world.sendrecv(x, right, left),
        ]

    @method
    def misbehave(self, how: str) -> int:
        """Do on the last rank what harms the others."""
        if self.world.rank == self.world.size - 1:
            lines = self.world._meeting._writer._words
            if how == "writes over its lines":
                threading.Timer(0.1, lambda: lines.__setitem__(MET, 0)).start()
            elif how == "forks" and not os.fork():
                for _ in range(50):
                    self.world.barrier()
                os._exit(0)
        else:
            time.sleep(0.4)  # nothing tells that the last rank waits
        self.world.barrier()
        return 1

    @method(hang_timeout_s=1.0)
    def meet_for_ever(self) -> None:
        """Loop in collectives."""
        while True:
            self.world.barrier()

    def _batch(self, numbers: list[int], ways: list[str]) -> list[Any]:
        """Note a batch, meet the others, and do what its first way says that is not empty."""
        self.batches.append(numbers)
        last = self.world.rank == self.world.size - 1
        how = next((each for each in ways if each), "")
        if how == "raises" and last:
            raise ValueError(f"rank {self.world.rank} fails")
        if how.startswith("kills ") and self.world.rank == int(how.split()[1]):
            with contextlib.suppress(FileExistsError), open(how.split()[2], "x"):  # noqa: PTH123
                os.kill(os.getpid(), signal.SIGKILL)
                time.sleep(100)  # the process ends
        if how.startswith("hangs ") and self.world.rank == int(how.split()[1]):
            with contextlib.suppress(FileExistsError), open(how.split()[2], "x"):  # noqa: PTH123
                while True:
                    pass
        sums = self.world.all_reduce(np.asarray(numbers, np.int64) * (self.world.rank + 1))
        results: list[Any] = [int(each) for each in sums]
        for at, way in enumerate(ways):
            if way == "fails alone" or (way == "fails last" and last):
                results[at] = ValueError(f"{numbers[at]} fails on rank {self.world.rank}")
        return results[1:] if how == "short" and last else results

    @method(idempotent=True, hang_timeout_s=2.0, batch=Batch(max_items=8, max_wait_s=0.02))
    def together(self, number: list[int], way: list[str]) -> list[Any]:
        """Return the sum of each number times rank + 1, over the ranks."""
        return self._batch(number, way)

    @method(batch=Batch(max_items=8, max_wait_s=60))
    def when_full(self, number: list[int], way: list[str]) -> list[Any]:
        """Do the same for eight, however slowly they come."""
        return self._batch(number, way)

    @method(thread=True, batch=Batch(max_items=8, max_wait_s=0.02))
    def together_once(self, number: list[int], way: list[str]) -> list[Any]:
        """Do the same, and not twice."""
        return self._batch(number, way)

    def remainder(self, number: int, way: str) -> int:
        """Return what requests share that run together; fail for some, on all ranks or on one."""
        if way in {"no key", f"no key {self.world.rank}"}:
            raise ValueError(f"there is no key on rank {self.world.rank}")
        return number % 3

    @method(batch=Batch(max_items=100, max_wait_s=0, key="remainder"))
    def by_key(self, number: list[int], way: list[str]) -> list[Any]:
        """Do the same for numbers with one remainder."""
        return self._batch(number, way)

    @method(batch=Batch(max_items=100, max_bytes=100_000, max_wait_s=1.0))
    def by_bytes(self, x: list[NDArray[np.float64]]) -> list[int]:
        """Note the length of the batch."""
        self.batches.append([len(x)])
        return [len(each) for each in x]

    @method(idempotent=True)
    def batched(self) -> list[list[int]]:
        """Return the batches that this rank has run."""
        return self.batches

    @method
    def forget(self) -> None:
        """Forget what was noted."""
        self.log, self.batches = [], []


class Overlapping(Worldly):
    """The same for another world, over some of the same devices."""


class Beside(Actor):
    """Belongs to no world."""

    @method(idempotent=True, thread=True)
    def rest(self) -> None:
        """Take a moment, in which something else may run beside it."""
        time.sleep(0.002)
