"""The CUDA device alone: memory that crosses processes, streams that wait for each other, and errors."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np
import pytest

from atomr_mp import errors
from atomr_mp.protocol import dtypes, token
from atomr_mp.protocol.layout import Layout
from atomr_mp_workers.device.base import Event
from atomr_mp_workers.memory.actor_memory import ActorMemory
from atomr_mp_workers.memory.store import Store
from atomr_mp_workers.requests.off_loop.in_progress import InProgress
from atomr_mp_workers.timeline import WorkTimes
from tests.gpu.on_device import device
from tests.support import DEADLINE_S, settled

pytestmark = pytest.mark.gpu

WAIT: Final = 'extern "C" __global__ void wait(volatile int* go) { while (*go == 0); }'


class Job:
    """A piece of work that puts something on its stream."""

    goes_on = False
    times: WorkTimes | None = None

    def __init__(self, work: Callable[[], object]) -> None:
        self.event: Event | None = device().make_event()
        self.raised: BaseException | None = None
        self.work = work

    def call(self) -> None:
        """Do it."""
        try:
            self.work()
        except BaseException as error:  # noqa: BLE001 - what is raised is looked at
            self.raised = error

    def finished(self) -> None:
        """Is not called: the device is asked."""


class Held:
    """A kernel that the device works on until the test ends it: it looks at memory of the host."""

    def __init__(self) -> None:
        import cupy

        self._memory = cupy.cuda.alloc_pinned_memory(4)
        self._go = np.frombuffer(self._memory, np.int32, 1)
        self._kernel = cupy.RawKernel(WAIT, "wait")
        self.let_go()
        self.hold()  # loads the kernel
        synchronize()
        self._go[0] = 0

    def hold(self) -> None:
        """Put the kernel on the current stream."""
        self._kernel((1,), (1,), (self._memory.ptr,))

    def let_go(self) -> None:
        """Let the kernel end."""
        self._go[0] = 1


@pytest.fixture
def held() -> Iterator[Held]:
    """Provide what keeps a stream busy."""
    found = Held()
    yield found
    found.let_go()
    synchronize()


def ended(job: Job) -> bool:
    """Return whether the device says that a job has ended."""
    return any(each is job for each in device().poll())


@pytest.mark.parametrize("dtype", sorted(dtypes.ITEM_BYTES))
def test_arrays_of_every_element_type_hold_what_is_copied_there(dtype: str) -> None:
    """And give it back, in any order of elements."""
    content = (np.arange(35).reshape(5, 7) % 2).astype(dtypes.to_numpy(dtype))
    slab = device().make_slab(2**21)
    array = slab.array(slab.bytes(None, 512, content.nbytes), Layout.contiguous(dtype, (5, 7)), writable=True)
    back = np.empty_like(content)
    device().copy(content, array)
    device().copy(array, back)
    synchronize()
    assert back.tobytes() == content.tobytes()
    turned = np.empty((7, 5), content.dtype)
    device().copy(array.T, turned)
    synchronize()
    assert turned.tobytes() == content.T.tobytes()
    for index in ((), (slice(None, None, -2), slice(1, 5)), (slice(0),), (3, 4)):
        read = slab.read(slab.bytes(None, 512, content.nbytes), Layout.contiguous(dtype, (5, 7)).indexed(index))
        assert (type(read), read.dtype) == (np.ndarray, content.dtype)
        assert (read.shape, read.tobytes()) == (content[index].shape, content[index].tobytes())


def test_a_slab_is_freed_with_the_last_array_in_it() -> None:
    """And not before."""
    import cupy

    gc.collect()
    free = cupy.cuda.runtime.memGetInfo()[0]
    slab: Any = device().make_slab(2**30)
    array: Any = slab.array(slab.bytes(None, 0, 4096), Layout.contiguous("uint8", (4096,)), writable=True)
    part = array[17:]
    del slab, array
    part[:] = 7
    assert cupy.cuda.runtime.memGetInfo()[0] <= free - 2**30
    del part
    assert settled(lambda: cupy.cuda.runtime.memGetInfo()[0] > free - 2**29, DEADLINE_S)


def test_memory_that_is_not_there_is_out_of_memory() -> None:
    """Typed, with what was asked for."""
    with pytest.raises(errors.OutOfMemory) as refused:
        device().make_slab(2**50)
    assert refused.value.requested_bytes == 2**50


@pytest.mark.parametrize("handle", [b"", b"x" * 63, b"x" * 64, b"x" * 65])
def test_what_is_no_handle_is_refused(handle: bytes) -> None:
    """Typed, before or by CUDA."""
    with pytest.raises((errors.InvalidRequest, errors.LibraryError)):
        device().open_slab(2**21, handle, None)


def test_work_waits_for_that_of_other_streams(held: Held) -> None:
    """On the device: the host does not wait."""
    import cupy

    first, second = (device().make_stream(name, inline_bytes=0) for name in ("first", "second"))
    x = cupy.zeros(1000)
    y = cupy.zeros(1000)
    x.fill(1)  # loads the kernels: to load one waits for what runs
    cupy.add(x, 1, out=y)
    synchronize()

    def slowly() -> None:
        held.hold()
        x.fill(3)

    writing, reading = Job(slowly), Job(lambda: cupy.add(x, 1, out=y))
    assert writing.event is not None
    assert not second.takes([device().make_event()]), "an event that stands for nothing yet"
    assert not first.submit(writing, (), 0)
    assert second.takes([writing.event])
    assert not second.submit(reading, [writing.event], 0)
    held.let_go()
    assert settled(lambda: ended(reading), DEADLINE_S)
    assert float(y.sum()) == 4000


def test_what_waits_for_work_of_several_parts_waits_for_the_last(held: Held) -> None:
    """The device reports the end of the first part, but no other stream can wait for it."""
    first, second = (device().make_stream(name, inline_bytes=0) for name in ("first", "second"))
    job = Job(held.hold)
    job.goes_on = True
    assert job.event is not None
    assert not first.submit(job, (), 0)
    assert not second.takes([job.event])
    held.let_go()
    assert settled(lambda: ended(job), DEADLINE_S)
    assert not job.event.done
    job.goes_on = False
    assert first.submit(job, (), 0) or second.takes([job.event])


def test_streams_have_the_priority_they_were_made_with() -> None:
    """As far as the GPU tells them apart."""
    streams: list[Any] = [
        device().make_stream(name, inline_bytes=0, priority=name) for name in ("low", "normal", "high")
    ]
    low, normal, high = (each.stream.priority for each in streams)
    assert low > normal >= high
    assert low == 0


def test_what_puts_nothing_on_the_stream_is_done_at_once() -> None:
    """So that calls without GPU work do not wait for it."""
    stream = device().make_stream("idle", inline_bytes=0)
    assert stream.submit(Job(lambda: None), (), 0)


def test_a_watched_stream_says_when_its_work_has_ended(held: Held) -> None:
    """Without polling."""
    stream = device().make_stream("watched", inline_bytes=0)
    job = Job(held.hold)
    assert not stream.submit(job, (), 0)
    woken = threading.Event()
    device().watch(woken.set)
    held.let_go()
    assert woken.wait(DEADLINE_S)
    assert ended(job)


def test_a_thread_has_a_stream_of_its_own(held: Held) -> None:
    """And waits for what it has put there."""
    import cupy

    found: list[float] = []
    x = cupy.zeros(10)
    synchronize()

    def work() -> None:
        held.hold()
        x.fill(2)

    def run() -> None:
        device().on_thread(work)
        found.append(float(x.get(stream=cupy.cuda.Stream(non_blocking=True)).sum()))

    thread = threading.Thread(target=run)
    thread.start()
    held.let_go()
    thread.join(DEADLINE_S)
    assert found == [20.0]


def test_errors_of_libraries_are_told_apart() -> None:
    """CuPy's, torch's, and errors that do not concern the device."""
    import cupy

    torch = pytest.importorskip("torch")

    cases: list[tuple[Callable[[], object], type[errors.AtomrError] | None]] = [
        (lambda: cupy.cuda.runtime.malloc(2**60), errors.OutOfMemory),
        (lambda: torch.empty(2**50, device="cuda"), errors.OutOfMemory),
        (lambda: cupy.cuda.runtime.memcpy(0, 0, 10, 77), errors.LibraryError),
        (lambda: cupy.RawKernel("nonsense", "nothing").compile(), errors.LibraryError),
        (lambda: dict[str, int]()["nothing"], None),
    ]
    for raise_it, expected in cases:
        with pytest.raises(Exception) as raised:  # noqa: PT011 - of whatever class; what it is told as counts
            raise_it()
        explained = device().explain(raised.value)
        assert (None if explained is None else type(explained)) is expected, raised.value
    device().check()


def synchronize() -> None:
    """Wait for the GPU."""
    import cupy

    cupy.cuda.Device().synchronize()


def test_what_is_kept_may_be_written_at_once() -> None:
    """Also pinned memory, which the device reads by itself, after the call that has it copied has returned."""
    import cupyx

    token_of_one = token.pack(bytes(16), 0, 1)
    store = Store(device(), token_of_one, 2**30, InProgress())
    memory = ActorMemory(store, lambda: store.buffers.ours)
    nbytes, tail = 2**28, 2**20
    for source in (cupyx.empty_pinned(nbytes, np.uint8), np.empty(nbytes, np.uint8)):
        source[:] = 1
        kept = memory.keep(source)
        source[-tail:] = 2
        synchronize()
        assert int((kept.array != 1).sum()) == 0
