"""The declared work of libraries' requests and its time, as a worker counts them."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from atomr_mp import errors
from atomr_mp.protocol.board import BOARD_BYTES, BoardReader, BoardWriter, WorkCounts
from atomr_mp.protocol.libraries import blas, memory, solver
from atomr_mp.protocol.timeline import RING_BYTES, GpuTime, RecordWriter
from atomr_mp_workers.device.host import HostDevice
from atomr_mp_workers.libraries import Libraries
from atomr_mp_workers.libraries.method import LibraryMethod
from atomr_mp_workers.memory.arrays import DeviceArray
from atomr_mp_workers.requests.request import Later, Next
from atomr_mp_workers.requests.work_count import MOST, WorkCount
from atomr_mp_workers.timeline import RecordedRequest, TimelineRecorder
from tests.actor_libraries import context_on

M, N, K = 3, 5, 7


class Board:
    """A worker's board, and libraries whose requests it counts."""

    def __init__(self) -> None:
        view = memoryview(bytearray(BOARD_BYTES))
        self.writer, self._reader = BoardWriter(view), BoardReader(view)
        self._context = context_on(HostDevice(), "host")
        self._libraries = Libraries(self._context)
        self.methods: dict[str, LibraryMethod] = {}

    def array(self, *shape: int, dtype: str = "float64") -> DeviceArray:
        """Return an array of ones."""
        made = self._context.store.buffers.allocate(self._context.holder(), dtype, shape)
        made.array[...] = 1
        return made

    def do(self, library: str, request: Any) -> Any:
        """Have a request done as the loop does it, and return its result."""
        name = f"{library}.{request.name}"
        if name not in self.methods:
            method = self._libraries.find_here(name)
            assert method is not None
            method.work_count = WorkCount(self.writer.work(name))
            self.methods[name] = method
        method = self.methods[name]
        arguments, event = method.prepared((request, method._checked(request)))
        assert event is None
        result = method.function(*arguments)
        while isinstance(result, Later | Next):
            result = result.read() if isinstance(result, Later) else result.enqueue()
        return result

    def work(self) -> dict[str, WorkCounts]:
        """Return what is on the board."""
        return self._reader.work()


@pytest.fixture
def board() -> Board:
    """A board."""
    return Board()


def test_a_product_counts_the_operations_and_bytes_of_its_sizes(board: Board) -> None:
    """Those of a new output too."""
    a, b = board.array(M, K), board.array(K, N)
    for out in (None, board.array(M, N)):
        board.do("blas", blas.Gemm(a=a, b=b, c=out, beta=0.0) if out is not None else blas.Gemm(a=a, b=b))
    counts = board.work()["blas.gemm"]
    assert (counts.requests, counts.flops) == (2, 2 * 2 * M * N * K)
    assert counts.moved_bytes == 2 * 8 * (M * K + K * N + M * N)
    assert counts.ns > 0


def test_a_request_that_has_less_to_do_than_it_declares_is_left_out(board: Board) -> None:
    """Such as a product with alpha 0."""
    board.do("blas", blas.Gemm(a=board.array(M, K), b=board.array(K, N), c=board.array(M, N), alpha=0.0, beta=2.0))
    assert board.work() == {}


def test_a_request_that_fails_is_left_out(board: Board) -> None:
    """Also if that is known only once its work is done."""
    with pytest.raises(errors.NumericalError):
        board.do("solver", solver.Cholesky(a=board.array(4, 4)))
    assert board.work() == {}


def test_a_request_that_moves_nothing_is_left_out(board: Board) -> None:
    """To accept a buffer's content copies none of it; to fill it, or to get it, does."""
    array = board.array(1000)
    board.do("memory", memory.Accept(array=array))
    board.do("memory", memory.Fill(array=array, value=2.0))
    assert board.do("memory", memory.Get(array=array))[0] == 2.0
    found = {name: (each.requests, each.moved_bytes) for name, each in board.work().items()}
    assert found == {"memory.fill": (1, 8000), "memory.get": (1, 8000)}


def test_the_time_of_all_parts_counts_and_no_wait_between_them(board: Board, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request may go on when the device's earlier work has ended; it may be read later."""
    clock = SimpleNamespace(ns=0)

    def after(ns: int, then: Callable[[], Any]) -> Any:
        clock.ns += ns
        return then()

    array = board.array(10)
    board.do("memory", memory.Fill(array=array, value=1.0))
    method = board.methods["memory.fill"]
    before = board.work()["memory.fill"]
    later = Later(lambda: after(300, lambda: None))
    following = Next(lambda: after(20, lambda: later), gives_way=True)
    monkeypatch.setattr("atomr_mp_workers.libraries.method.time", SimpleNamespace(monotonic_ns=lambda: clock.ns))
    monkeypatch.setattr(method, "_call", lambda *_: after(1, lambda: following))
    request = memory.Fill(array=array, value=1.0)
    part = method.function(request, method._checked(request))
    assert part.gives_way
    clock.ns += 10_000
    last = part.enqueue()
    clock.ns += 10_000
    assert board.work()["memory.fill"] == before
    last.read()
    assert board.work()["memory.fill"].ns - before.ns == 321


def test_a_device_that_works_by_itself_is_timed_by_traces_alone() -> None:
    """The time of a call, which only gives it work, is not that of the work."""
    view = memoryview(bytearray(BOARD_BYTES))
    count = WorkCount(BoardWriter(view).work("blas.gemm"))
    method = SimpleNamespace(
        name="blas.gemm", watched=0, kernel=lambda _: "", work=lambda _: (600, 80), work_count=count
    )
    peer = SimpleNamespace(session=SimpleNamespace(number=1))
    took: list[list[int]] = [[40], [], [50], [7], [9]]
    taken = [[GpuTime(1, 10, ns) for ns in each] for each in took]
    times = (SimpleNamespace(measured=lambda found=found: found) for found in taken)
    ring = RecordWriter(memoryview(bytearray(RING_BYTES)), 1, 1)
    recorder = TimelineRecorder(ring, lambda: cast("Any", next(times)))
    wrong = errors.InvalidRequest("wrong")
    for begun_ns, error in ((0, None), (0, None), (0, wrong), (0, None), (1, None)):
        request: Any = SimpleNamespace(
            id=1,
            method=method,
            peer=peer,
            received_ns=1,
            submitted_ns=1,
            started_ns=1,
            items=1,
            arguments=(0,),
            has_stepped=False,
        )
        recorder.begin(request, begun_ns)
        assert isinstance(request.recorded, RecordedRequest)
        request.recorded.add(10**9, 10**9)  # a run of a program has done what its steps declare
        recorder.end(request, request.recorded, error, 10**6)
    assert BoardReader(view).work() == {"blas.gemm": WorkCounts(2, 47, 2 * (10**9 + 600), 2 * (10**9 + 80))}


def test_of_what_users_have_made_the_time_counts_alone() -> None:
    """Where it declares no work; of other requests that says nothing, and they stay out."""
    view = memoryview(bytearray(BOARD_BYTES))
    writer = BoardWriter(view)
    for name, always in (("kernels.launch", True), ("memory.empty", False)):
        WorkCount(writer.work(name), always=always).add(5, 0, 0)
    assert BoardReader(view).work() == {"kernels.launch": WorkCounts(1, 5)}


def test_sums_begin_anew_before_one_gets_too_large() -> None:
    """So that rates stay right; and what is too large by itself is left out."""
    view = memoryview(bytearray(BOARD_BYTES))
    reader, count = BoardReader(view), WorkCount(BoardWriter(view).work("blas.gemm"))
    count.add(1, MOST, 1)
    assert reader.work() == {}
    count.add(3, MOST - 1, 8)
    count.add(1, 0, 8)
    assert reader.work()["blas.gemm"] == WorkCounts(2, 4, MOST - 1, 16)
    count.add(5, 1, 8)
    assert reader.work()["blas.gemm"] == WorkCounts(1, 5, 1, 8)
    count.add(5, 0, 0)
    assert reader.work()["blas.gemm"].requests == 1
