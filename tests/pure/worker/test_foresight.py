"""What a worker tells of its use, and what is opened for its sessions elsewhere than on the loop."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any, Final

import pytest

from atomr_mp import errors
from atomr_mp.protocol.messages import control
from atomr_mp_workers.memory.foreign_slabs import ForeignSlabs
from atomr_mp_workers.supervised import foresight
from atomr_mp_workers.supervised.foresight import ACTIVE_NS, EVERY_NS, Readiness, Usage
from tests.pure.worker.test_dispatch import Worker


class Device:
    """A device with memory of its own, or the host."""

    def __init__(self, host: Device | None = None) -> None:
        self.host: Final = host or self


HOST: Final[Any] = Device()
GPU: Final[Any] = Device(HOST)


def session(number: int, sent: int, *devices: Any) -> Any:
    """Return a session that has got so many messages, and has slabs of these devices."""
    slabs = [SimpleNamespace(device=device, handed_in=device is HOST) for device in devices]
    return SimpleNamespace(number=number, sent=sent, holder=SimpleNamespace(slabs=slabs))


class TestUsage:
    """The reports to the supervisor."""

    def test_what_is_used_is_told_when_it_changes(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Sessions that had an answer within a minute count, for each kind of memory that they have; not too often."""
        clock, told = [EVERY_NS], list[control.Used]()
        monkeypatch.setattr(foresight.time, "monotonic_ns", lambda: clock[0])  # type: ignore[attr-defined]
        usage = Usage(GPU, told.append)
        sessions = [session(1, 5, GPU, GPU, HOST), session(2, 3, HOST), session(3, 0, GPU), session(4, 1)]
        usage.look(sessions, ["blas.gemm"])
        assert told == []  # nothing was noticed
        usage.notice()
        usage.look(sessions, ["blas.gemm"])
        assert told == [control.Used(["blas.gemm"], 1, 2, [1, 2])]
        usage.notice()
        usage.look([], [])
        assert usage.due_ns == clock[0] + EVERY_NS  # it is too soon
        clock[0] += EVERY_NS
        usage.look(sessions, ["blas.gemm"])
        assert len(told) == 1
        clock[0] += ACTIVE_NS
        usage.notice()
        usage.look([session(1, 5, GPU, GPU, HOST), session(2, 4, HOST)], ["blas.gemm"])
        assert told[1:] == [control.Used(["blas.gemm"], 0, 1, [2])]

    def test_where_all_memory_is_the_host_s_it_counts_once(self) -> None:
        """And there are limits to what is reported."""
        told = list[control.Used]()
        sessions = [session(number, 1, HOST) for number in range(2000)]
        usage = Usage(HOST, told.append)
        usage.notice()
        usage.look(sessions, [f"blas.m{n}" for n in range(1000)])
        (used,) = told
        assert (len(used.methods), used.slabs, used.results) == (control.MAX_USED, 1024, 0)
        assert used.readers == list(range(control.MAX_READERS))
        assert control.FROM_WORKER.decode(control.FROM_WORKER.encode(used)) == used


class TestReadiness:
    """What a standby does with it."""

    def test_it_has_ready_what_is_used(self) -> None:
        """Each method once; what cannot be imported or made is left to its first call."""
        kept, made, woken = list[dict[Any, int]](), list[str](), threading.Semaphore(0)

        def warm_up(method: str) -> None:
            if method == "b":
                raise errors.Unsupported("not here")
            made.append(method)

        store: Any = SimpleNamespace(device=GPU, slabs=SimpleNamespace(keep_spares=kept.append))
        modules = {"a": "json", "b": None, "c": "no.such.module", "d": "colorsys"}
        readiness = Readiness(store, modules.__getitem__, warm_up, woken.release)
        readiness.make_ready(control.MakeReady(["a", "b", "c"], 2, 1), at_once=True)
        assert made == ["a"]
        assert kept[-1] == {GPU: 2, HOST: 1}
        for _ in range(2):
            assert woken.acquire(timeout=30)
        readiness.make_ready(control.MakeReady(["a", "b", "c", "d"], 0, 0), at_once=False)
        assert woken.acquire(timeout=30)
        assert made == ["a"]
        readiness.go_on()
        assert made == ["a", "d"]
        assert kept[-1] == {GPU: 1}
        readiness.go_on()
        assert made == ["a", "d"]

    def test_it_makes_slabs_for_those_who_read_large_results(self) -> None:
        """Each once; for one that it has not admitted yet, later. There are no spares beside."""
        ready, asked, kept = {1}, list[int](), list[dict[Any, int]]()

        def prepare(number: int) -> bool:
            asked.append(number)
            return number in ready

        store: Any = SimpleNamespace(
            device=GPU, prepare_results=prepare, slabs=SimpleNamespace(keep_spares=kept.append)
        )
        readiness = Readiness(store, lambda _: None, lambda _: None, lambda: None)
        readiness.make_ready(control.MakeReady([], 1, 3, [1, 2]), at_once=True)
        assert (asked, kept[-1]) == ([1, 2], {GPU: 1, HOST: 1})
        ready.add(2)
        readiness.prepare_results()
        readiness.prepare_results()
        assert asked == [1, 2, 2]


class TestForeignSlabs:
    """Slabs of other devices."""

    @pytest.mark.parametrize("fails", [False, True])
    def test_where_the_driver_is_to_be_left_alone_the_loop_does_not_wait_for_it(self, *, fails: bool) -> None:
        """It is opened elsewhere and taken in when it is there, and so is why it cannot be."""
        go_on, woken, added = threading.Event(), threading.Event(), list[tuple[object, ...]]()
        lacking: list[object] = []

        def open_slab(nbytes: int, _handle: bytes, _descriptor: int | None) -> str:
            if store.slabs.quiet:
                assert go_on.wait(30)
            if fails:
                raise errors.InvalidRequest("it is none")
            return f"{nbytes} bytes"

        store: Any = SimpleNamespace(
            slabs=SimpleNamespace(quiet=True),
            device=SimpleNamespace(open_slab=open_slab),
            add_foreign_slab=lambda *slab: added.append(slab),
            not_mapped=lambda _number, slab, _reason: lacking.append(slab),
        )
        slabs = ForeignSlabs(store, woken.set)
        assert not slabs.open(control.ForeignSlab(7, 1, 3, 5, 100, b"?"), None)
        assert list(slabs.take()) == []
        go_on.set()
        assert woken.wait(30)
        assert list(slabs.take()) == [7]
        expected = [] if fails else [(7, 1, 3, 5, "100 bytes")]
        assert added == expected
        store.slabs.quiet = False
        assert slabs.open(control.ForeignSlab(7, 1, 3, 6, 100, b"?"), None)
        assert len(added) == 2 * len(expected)
        assert lacking == ([(1, 3, 5), (1, 3, 6)] if fails else [])


def test_what_a_library_tries_before_its_first_call_leaves_no_memory() -> None:
    """A standby has no more slabs for it: those of this process itself would stay for ever."""
    worker = Worker()
    assert worker.libraries.find("blas.gemm") is not None
    worker.libraries.warm_up("blas.gemm")
    assert worker.store.statistics()["allocations"] > 0
    assert worker.store.statistics()["slabs"] == 0
