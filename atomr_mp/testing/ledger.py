"""Resources of this process and a pool, before and after: nothing may be left over."""

from __future__ import annotations

import gc
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Final, NamedTuple, Self

import psutil

import atomr_mp
from atomr_mp.operator.doctor import examine
from atomr_mp.process.census import look
from atomr_mp.protocol.keywords import checked_names, checks_names
from atomr_mp.supervision.audit.findings import State

PROMISE_S: Final = 2.0
"""Within this time nothing of the dead remains."""

AGAIN_S: Final = 0.02
"""Between looks at what no event tells of: other processes' descriptors and memory."""


@checked_names
def assert_nothing_left(pool: atomr_mp.Pool | str | Path, within_s: float = PROMISE_S) -> None:
    """Assert that a pool, which may run or have ended, has nothing that is unaccounted for. Blocks.

    That is: no process, descriptor, memory, socket or note that its supervisor does not know of; and where it runs no
    more, none at all.

    Args:
        pool: The pool, or its run directory.
        within_s: How long something may be there that has no business to be.

    Raises:
        AssertionError: Something is left; the message says what, and what to do.
    """
    run_dir = pool.run_dir if isinstance(pool, atomr_mp.Pool) else Path(pool)
    _, findings = examine(run_dir, within_s)
    left = [f"{each.kind}: {each.what}; {each.remedy}" for each in findings if each.state is State.UNACCOUNTED]
    assert not left, "unaccounted for:\n" + "\n".join(left)


@checks_names
class Ledger:
    """Counts the resources of this process and a pool at the beginning of a `with`, and compares at its end.

    Of this process: descriptors, threads, child processes, and slabs that are mapped. Of the pool: its processes and
    sessions, what its supervisor has open, and the memory of its workers. What is held less is no matter; what is
    garbage is collected first. Warm up before: what a process starts or opens once for all, as the first large array,
    is not given back.

    Args:
        pool: A pool that runs before and after, if one is to be counted too.
        within_s: How long it may take until everything is back.
    """

    def __init__(self, pool: atomr_mp.Pool | None = None, within_s: float = PROMISE_S) -> None:
        self._pool = pool
        self._within_s = within_s
        self._before: _Count | None = None

    def __enter__(self) -> Self:
        self._before = _count(self._pool)
        return self

    def __exit__(
        self, _type: type[BaseException] | None, failed: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        if failed is None:
            self.check()

    def check(self) -> None:
        """Wait until everything is back, within the time. Blocks.

        Raises:
            AssertionError: It is not; the message names the leftovers.
        """
        before = self._before
        assert before is not None, "a ledger counts from the beginning of its `with`"
        gc.collect()
        assert _within(self._within_s, lambda: not self._more(before)), "held more than before: " + "; ".join(
            self._more(before)
        )
        if self._pool is not None:
            assert_nothing_left(self._pool, self._within_s)

    def _more(self, before: _Count) -> list[str]:
        now = _count(self._pool)
        more = [
            f"{count} {what}, {getattr(before, what)} before"
            for what, count in now._asdict().items()
            if isinstance(count, int) and count > getattr(before, what)
        ]
        opened = now.descriptors - before.descriptors
        return more + [f"{count} more of {link} open" for link, count in opened.items()]


class _Count(NamedTuple):
    """The counts at one time."""

    descriptors: Counter[str]
    """By what they are links to, of this process."""
    threads: int
    children: int
    slabs_mapped: int
    pool_processes: int = 0
    pool_sessions: int = 0
    supervisor_descriptors: int = 0
    """But for sockets: to count asks, and the session of that may still be open."""
    worker_slab_bytes: int = 0


def _count(pool: atomr_mp.Pool | None) -> _Count:
    this = psutil.Process()
    descriptors: Counter[str] = Counter()
    for path in Path("/proc/self/fd").iterdir():
        try:
            descriptors[_named(str(path.readlink()))] += 1
        except FileNotFoundError:  # the one by which the directory was read
            continue
    maps = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")
    mine = _Count(descriptors, this.num_threads(), len(this.children()), maps.count("/memfd:atomr-mp-"))
    if pool is None:
        return mine
    found = look(pool.run_dir, gpus=False).processes
    supervisor = found.get(pool.supervisor_pid)
    status = pool.status()
    return mine._replace(
        pool_processes=sum(each.marked for each in found.values()),
        pool_sessions=status.sessions,
        supervisor_descriptors=sum(
            count for kind, count in (supervisor.descriptors if supervisor else {}).items() if kind != "socket"
        ),
        worker_slab_bytes=sum(each.slab_bytes for each in status.devices),
    )


def _named(link: str) -> str:
    """Return the target of a descriptor's link, without unique numbers."""
    return link if link.startswith("/") else link.partition(":")[0]


def _within(within_s: float, condition: Callable[[], bool]) -> bool:
    until_s = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > until_s:
            return False
        time.sleep(AGAIN_S)
    return True
