"""What records programs as CUDA graphs, on stand-ins of CuPy's: memory of a recording that fails is given back."""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Callable, Iterator
from types import ModuleType, SimpleNamespace
from typing import Any, Final
from weakref import WeakSet

import pytest

from atomr_mp_workers.libraries.holding import hold
from atomr_mp_workers.libraries.program import replay
from atomr_mp_workers.requests.request import Later

MODULES: Final = ("atomr_mp_workers.libraries.program.cuda", "atomr_mp_workers.libraries.slots")


class FakeBlock:
    """Memory of a pool."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes: Final = nbytes


class FakePool:
    """CuPy's pool: what has gone out of use stays in it, also when it is dropped, unless it is emptied."""

    def __init__(self) -> None:
        self._blocks: WeakSet[FakeBlock] = WeakSet()
        self._reserved = 0

    def malloc(self, nbytes: int) -> FakeBlock:
        """Return memory."""
        block = FakeBlock(nbytes)
        self._blocks.add(block)
        self._reserved = max(self._reserved, self.used_bytes())
        return block

    def used_bytes(self) -> int:
        """Return how much is in use."""
        return sum(each.nbytes for each in self._blocks)

    def total_bytes(self) -> int:
        """Return how much the pool has taken."""
        return self._reserved

    def free_all_blocks(self) -> None:
        """Give back what is not in use."""
        self._reserved = self.used_bytes()


class FakeCuda:
    """The device, its stream, and CuPy's allocator."""

    def __init__(self) -> None:
        self.pools: Final[list[FakePool]] = []
        self.allocators: Final[list[Callable[[int], FakeBlock]]] = []
        self.capturing = False
        self.invalid = False
        self.stream: Final = SimpleNamespace(
            begin_capture=self._begin, end_capture=self._end, is_capturing=lambda: self.capturing
        )

    def make_pool(self) -> FakePool:
        """Return a pool."""
        self.pools.append(FakePool())
        return self.pools[-1]

    @contextlib.contextmanager
    def using_allocator(self, allocator: Callable[[int], FakeBlock]) -> Iterator[None]:
        """Allocate with another allocator."""
        self.allocators.append(allocator)
        try:
            yield
        finally:
            self.allocators.pop()

    def alloc(self, nbytes: int) -> FakeBlock:
        """Allocate."""
        return self.allocators[-1](nbytes)

    def _begin(self, _mode: int) -> None:
        self.capturing = True

    def _end(self) -> Any:
        assert self.capturing
        self.capturing = False
        if self.invalid:
            raise RuntimeError("the capture is invalid")
        return SimpleNamespace(launch=lambda _stream: None)


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    """CUDA without a GPU."""
    fake, cupy, of_cuda = FakeCuda(), ModuleType("cupy"), ModuleType("cupy.cuda")
    runtime = SimpleNamespace(CUDARuntimeError=RuntimeError, streamCaptureModeThreadLocal=1)
    vars(of_cuda).update(using_allocator=fake.using_allocator, alloc=fake.alloc, runtime=runtime)
    vars(cupy).update(cuda=of_cuda)
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    monkeypatch.setitem(sys.modules, "cupy.cuda", of_cuda)
    for name in MODULES:
        monkeypatch.delitem(sys.modules, name, raising=False)
    return fake


@pytest.fixture
def recorder(cuda: FakeCuda) -> Any:
    """What records."""
    module: Any = importlib.import_module(MODULES[0])
    return module.CudaRecorder(cuda, cuda)


class Steps:
    """Steps of a program; the last one may fail."""

    def __init__(self, cuda: FakeCuda, fails: str = "") -> None:
        self._cuda: Final = cuda
        self._fails: Final = fails

    def __call__(self) -> Any:
        """Allocate, and keep some of it where an error finds it."""
        temporary, verdict = self._cuda.alloc(100), self._cuda.alloc(28)
        hold(self._cuda.alloc(1000))
        if self._fails:
            try:
                self._last(self._cuda.alloc(5))
            except ValueError as error:
                raise RuntimeError("step 1 cannot be recorded") from error
        del temporary
        return Later(lambda: verdict)

    def _last(self, inner: FakeBlock) -> None:
        raise ValueError(self._fails, inner.nbytes)


def test_a_recording_that_fails_gives_its_memory_back(cuda: FakeCuda, recorder: Any) -> None:
    """While the error is looked at, which refers to all that the steps have allocated; so does what was held."""
    for _ in range(3):
        with pytest.raises(RuntimeError, match="step 1 cannot be recorded") as told:
            recorder.record(Steps(cuda, "an illegal call"), 4096)
        assert isinstance(told.value.__cause__, ValueError)
        assert [pool.total_bytes() for pool in cuda.pools] == [0] * len(cuda.pools)
        assert not cuda.capturing
        assert not cuda.allocators


def test_a_capture_that_cuda_finds_invalid_gives_its_memory_back(cuda: FakeCuda, recorder: Any) -> None:
    """That is reported at its end only; what the steps have returned is not kept."""
    cuda.invalid = True
    with pytest.raises(RuntimeError, match="invalid"):
        recorder.record(Steps(cuda), 4096)
    assert cuda.pools[0].total_bytes() == 0


def test_a_first_run_that_fails_gives_its_memory_back(cuda: FakeCuda, recorder: Any) -> None:
    """As one does that succeeds, but for what its verdict holds."""
    with pytest.raises(RuntimeError, match="step 1"):
        recorder.measured(Steps(cuda, "an illegal call"))
    assert cuda.pools[0].total_bytes() == 0
    result, nbytes = recorder.measured(Steps(cuda))
    assert nbytes >= 1128
    assert cuda.pools[1].total_bytes() == 28
    del result


def test_a_graph_keeps_its_memory_until_it_is_dropped(cuda: FakeCuda, recorder: Any) -> None:
    """Its whole reserve, though nothing refers to that."""
    plan: Any = SimpleNamespace(copied={}, apart=(), first=0)
    graph = replay.Graph(plan, *_recorded(recorder, Steps(cuda)))
    (pool,) = cuda.pools
    assert pool.total_bytes() >= 4096
    del graph
    assert pool.total_bytes() == 0


def _recorded(recorder: Any, steps: Steps) -> tuple[Any, dict[int, Any], list[tuple[int, Later]]]:
    launchable, verdict = recorder.record(steps, 4096)
    return launchable, {}, [(0, verdict)]
