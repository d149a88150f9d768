"""Clients that are closed in the middle of mixed work, here and on other machines: nothing of them is left."""

from __future__ import annotations

import contextlib
import gc
import threading
from collections.abc import Callable, Iterator
from typing import Final

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import atomr_mp
from atomr_mp import errors, testing
from atomr_mp.operator.doctor import examine
from atomr_mp.supervision.audit.findings import Finding, State
from tests import remote as served
from tests.support import DEADLINE_S, KEEPER, PROBE, Ledger, local_client, open_descriptors, settled, stopped

NOTHING: Final = dict.fromkeys(
    ("used_bytes", "leases", "views", "open_elsewhere", "shared", "client_slabs", "foreign_slabs"), 0
)

ARRAY: Final = np.zeros(2**16)
"""It is large enough for shared memory."""

USES: Final = ("put", "copy", "echo", "large", "abroad", "stream")

WALKS: Final = st.lists(st.lists(st.sampled_from(USES), min_size=1, max_size=6), min_size=1, max_size=3)
"""What each thread does, again and again."""


WHEN_HEARD: Final = st.sampled_from(["at once", "late"])


@pytest.fixture(scope="module")
def serving() -> Iterator[served.Served]:
    """A pool of two devices, which admits alice."""
    with Ledger() as ledger:
        found = served.serve(ledger, PROBE, KEEPER, gpus=2, remote_grace_s=1.0)
        with found.pool:
            found.pool.wait_ready()
            yield found


def connect(serving: served.Served, where: str) -> atomr_mp.Pool:
    """Open a client."""
    return serving.connect() if where == "far" else atomr_mp.connect(run_dir=serving.pool.run_dir)


def held(pool: atomr_mp.Pool) -> list[dict[str, int]]:
    """Return what each device holds for clients."""
    figures = [pool.device(index).statistics() for index in range(2)]
    return [{name: each[name] for name in NOTHING} for each in figures]


def expect_nothing(pool: atomr_mp.Pool) -> None:
    """See that the devices come to hold nothing."""
    gc.collect()
    settled(lambda: held(pool) == [NOTHING, NOTHING])
    assert held(pool) == [NOTHING, NOTHING]


class Worker:
    """A thread that uses arrays until its client is closed.

    Args:
        client: The client.
        ref: An array of it on the first device.
        walk: What it does.
        begun: Counts what it has begun.
    """

    def __init__(
        self, client: atomr_mp.Pool, ref: atomr_mp.GpuRef, walk: list[str], begun: threading.Semaphore
    ) -> None:
        self.faults: list[BaseException] = []
        self._uses: Final[dict[str, Callable[[], object]]] = {
            "put": lambda: client.device(0).put(ARRAY),
            "copy": ref.numpy,
            "echo": lambda: client.call("Probe.echo", ARRAY, device=1).result(),
            "large": lambda: client.call("Keeper.large", len(ARRAY), device=0).result(),
            "abroad": lambda: client.call("Keeper.total", ref, device=1).result(),
            "stream": lambda: list(client.stream("Keeper.large_parts", len(ARRAY), 2)),
        }
        self._walk = walk
        self._begun = begun
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def join(self) -> None:
        """Wait for its end."""
        self._thread.join(DEADLINE_S)
        assert not self._thread.is_alive()
        assert not self.faults
        self._uses.clear()

    def _run(self) -> None:
        try:
            while True:
                for use in self._walk:
                    self._begun.release()
                    self._uses[use]()
        except (errors.PoolLost, errors.ResultUnread):
            pass
        except BaseException as fault:  # noqa: BLE001 - the test looks at it
            self.faults.append(fault)


@settings(max_examples=25, deadline=None)
@given(st.sampled_from(["here", "far"]), WALKS, st.integers(1, 25), WHEN_HEARD, st.integers(0, 3))
def test_a_client_that_is_closed_amid_its_work_leaves_nothing(
    serving: served.Served, where: str, walks: list[list[str]], uses: int, when_heard: str, unread: int
) -> None:
    """Wherever its threads are, and however late the supervisor hears of it, between what workers tell of it."""
    pool = serving.pool
    client = connect(serving, where)
    client.wait_ready()
    ref = client.device(0).put(ARRAY)
    replies = [client.call("Keeper.large", len(ARRAY), device=1) for _ in range(unread)]
    begun = threading.Semaphore(0)
    workers = [Worker(client, ref, walk, begun) for walk in walks]
    with stopped(pool.supervisor_pid) if when_heard == "late" else contextlib.nullcontext():
        if when_heard == "late":  # as soon as a thread waits for the supervisor, if any does
            session = local_client(client)._session
            settled(lambda: bool(session._answers), 0.1)
        else:
            for _ in range(uses):
                assert begun.acquire(timeout=DEADLINE_S)
        client.close()
        for worker in workers:
            worker.join()
    del ref, replies, worker, workers, client
    expect_nothing(pool)


@pytest.mark.parametrize("where", ["here", "far"])
def test_what_a_worker_gives_as_its_client_leaves_is_given_back(ledger: Ledger, where: str) -> None:
    """The supervisor reads the answer before the goodbye, and cannot deliver it."""
    serving = served.serve(ledger, PROBE, KEEPER, gpus=2, faults=())
    pool = serving.pool
    with pool:
        client = connect(serving, where)
        client.wait_ready()
        ref = client.device(0).zeros(len(ARRAY))
        relay = serving.pid
        open_before = len(open_descriptors(relay))
        with testing.inject(pool, at="export", fault=testing.Hang(seconds=1.0), device=0) as export:
            copying = Worker(client, ref, ["put"], threading.Semaphore(0))
            export.wait()
            with stopped(pool.supervisor_pid):
                pool.call("Probe.echo", 1, device=0).result()  # comes after the answer
                client.close()
                copying.join()
                if where == "far":  # the relay leaves in the client's place
                    assert settled(lambda: len(open_descriptors(relay)) < open_before)
        del copying, ref, client
        expect_nothing(pool)
        testing.assert_nothing_left(pool)


def test_what_a_closed_client_has_mapped_is_held_for_so_long(ledger: Ledger) -> None:
    """An array that lives keeps its memory; the last one's end gives back everything."""
    with ledger.start(PROBE, KEEPER, gpus=2) as pool:
        client = atomr_mp.connect(run_dir=pool.run_dir)
        client.wait_ready()
        views = [client.device(0).put(ARRAY).view() for _ in range(2)]
        client.close()
        assert settled(lambda: any("arrays that lie there" in each.what for each in told(pool, State.HELD)))
        while views:
            assert held(pool)[0]["leases"]
            testing.assert_nothing_left(pool)
            views.pop()
            gc.collect()
        expect_nothing(pool)
        assert settled(lambda: not told(pool, State.HELD))


def told(pool: atomr_mp.Pool, state: State) -> list[Finding]:
    """Return a pool's findings of a state about sessions."""
    return [each for each in examine(pool.run_dir, 0)[1] if each.state is state and each.kind == "session"]
