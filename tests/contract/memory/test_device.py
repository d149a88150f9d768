"""The host device's promises about memory and streams. For the GPU, see `tests/gpu/test_cuda_device.py`."""

from __future__ import annotations

import errno
import fcntl
import gc
import os
import socket
import threading
import types
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
import pytest

from atomr_mp import errors
from atomr_mp.interop.sealed import SEALS
from atomr_mp.protocol import dtypes
from atomr_mp.protocol.layout import Layout
from atomr_mp.protocol.messages import data
from atomr_mp_workers.device import open_device
from atomr_mp_workers.device.base import Event, Export, SlabMemory, Stream, WorkerDevice
from atomr_mp_workers.device.host_memory import HostMemory
from atomr_mp_workers.device.streams import POOLED, StreamAllocator
from atomr_mp_workers.memory.arrays import DeviceArray
from atomr_mp_workers.requests import raised_log
from atomr_mp_workers.requests.method import Method
from atomr_mp_workers.requests.off_loop.completions import STRATEGIES, Completions
from atomr_mp_workers.requests.off_loop.in_progress import InProgress
from atomr_mp_workers.requests.request import Request
from atomr_mp_workers.timeline import WorkTimes
from tests.in_turn import in_turn
from tests.support import DEADLINE_S, Edges, Ledger, open_descriptors

SLAB_BYTES: Final = 2**21
NEVER_INLINE: Final = -1
ALWAYS_INLINE: Final = 2**63


class Backend:
    """A backend under test.

    Args:
        name: The name that a pool is given.
    """

    def __init__(self, name: str) -> None:
        self.name: Final = name
        self.device: Final[WorkerDevice] = open_device(name)

    def held(self) -> tuple[list[str], list[str]]:
        """Return the descriptors and the mappings of this process that are memory of slabs."""
        gc.collect()
        maps = Path("/proc/self/maps").read_text().splitlines()
        return [each for each in open_descriptors().values() if MARK in each], [each for each in maps if MARK in each]


MARK: Final = "memfd:atomr-mp"
"""Part of the names of slabs, and of memory that the tests make."""

BACKENDS: Final = ("host",)


@pytest.fixture(autouse=True)
def _without_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write no log of what work raises here: it counts repeats for a minute, in a thread of its own."""
    monkeypatch.setattr(raised_log.log, "shows", "off")


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest, ledger: Ledger) -> Iterator[Backend]:
    """Provide each backend; nothing may be left of its memory, its threads and its descriptors."""
    del ledger  # it only counts
    found = Backend(request.param)
    before = found.held()
    yield found
    assert found.held() == before


class Opener:
    """Another process, which opens what it is sent."""

    def __init__(self, backend: Backend, ledger: Ledger) -> None:
        path = ledger.path / "opener"
        with socket.socket(socket.AF_UNIX) as listener:
            listener.settimeout(DEADLINE_S)
            listener.bind(str(path))
            listener.listen()
            self._program: Final = ledger.program("opener", backend.name, path)
            self._link, _ = listener.accept()
        path.unlink()

    def __enter__(self) -> Self:
        assert self._program.hear() == ["ready"]
        return self

    def __exit__(self, *_exc: object) -> None:
        self._link.close()
        with self._program:
            self._program.kill()

    def ask(self, line: str, descriptor: int | None = None) -> list[str]:
        """Tell it something; return what it answers."""
        if line.startswith(("open", "client")):
            socket.send_fds(self._link, [b"."], [] if descriptor is None else [descriptor])
        self._program.tell(line)
        return self._program.hear()

    def open(self, export: Export) -> list[str]:
        """Have it open a slab."""
        return self.ask(f"open {export.nbytes} {export.handle.hex()}", export.descriptor)


def memfd(nbytes: int, seals: int = SEALS) -> int:
    """Return a memfd of this size."""
    descriptor = os.memfd_create("atomr-mp-test", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, nbytes)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
    return descriptor


# --- memory --------------------------------------------------------------------------------------------------


def test_two_processes_see_the_same_memory(backend: Backend, ledger: Ledger) -> None:
    """Each sees the other's writes, anywhere in the slab."""
    slab = backend.device.make_slab(SLAB_BYTES)
    part = slab.bytes(None, SLAB_BYTES - 5, 5)
    part[...] = np.frombuffer(b"hello", np.uint8)
    with Opener(backend, ledger) as other:
        assert other.open(slab.export()) == ["opened", str(SLAB_BYTES)]
        assert other.ask(f"read {SLAB_BYTES - 5} 5") == ["read", b"hello".hex()]
        assert other.ask("write 7 abc") == ["written"]
        assert bytes(slab.bytes(None, 6, 5)) == b"\0abc\0"
        assert other.ask("close") == ["closed"]
        assert other.open(slab.export()) == ["opened", str(SLAB_BYTES)]
        assert other.ask("read 7 3") == ["read", b"abc".hex()]


def test_memory_lives_on_where_it_is_open(backend: Backend, ledger: Ledger) -> None:
    """The end of its maker does not concern a process that has opened it."""
    slab = backend.device.make_slab(SLAB_BYTES)
    slab.bytes(None, 0, 4)[...] = 7
    with Opener(backend, ledger) as other:
        assert other.open(slab.export())[0] == "opened"
        del slab
        gc.collect()
        assert other.ask("read 0 4") == ["read", "07070707"]


def test_a_clients_memory_is_read_only(backend: Backend, ledger: Ledger) -> None:
    """No bug of an actor writes memory that the client still uses."""
    with Opener(backend, ledger) as other:
        descriptor = memfd(4096)
        os.pwrite(descriptor, b"mine", 100)
        assert other.ask("client 4096", descriptor) == ["opened", "4096"]
        os.close(descriptor)
        assert other.ask("read 100 4") == ["read", b"mine".hex()]
        assert other.ask("write 100 yours") == ["ValueError"]


def test_a_new_slab_is_zero(backend: Backend) -> None:
    """No content of other owners shows."""
    assert not backend.device.make_slab(SLAB_BYTES).bytes(None, 0, SLAB_BYTES).any()


def test_a_slab_keeps_its_size(backend: Backend) -> None:
    """No process can cause an access beyond its end, or seal it against that."""
    slab = backend.device.make_slab(SLAB_BYTES)
    descriptor = slab.export().descriptor
    assert descriptor is not None
    assert not os.get_inheritable(descriptor)
    for nbytes in (0, SLAB_BYTES - 1, SLAB_BYTES + 1):
        with pytest.raises(PermissionError):
            os.ftruncate(descriptor, nbytes)
    with pytest.raises(PermissionError):
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)


@in_turn(
    "make",
    [
        pytest.param(lambda: memfd(SLAB_BYTES, 0), id="not sealed"),
        pytest.param(lambda: memfd(SLAB_BYTES, fcntl.F_SEAL_SHRINK), id="may grow"),
        pytest.param(lambda: memfd(SLAB_BYTES, fcntl.F_SEAL_GROW), id="may shrink"),
        pytest.param(lambda: memfd(SLAB_BYTES - 4096), id="too small"),
        pytest.param(lambda: memfd(SLAB_BYTES + 1), id="too large"),
        pytest.param(lambda: memfd(0), id="empty"),
        pytest.param(lambda: os.open("/dev/zero", os.O_RDWR | os.O_CLOEXEC), id="a device"),
        pytest.param(lambda: os.open("/tmp", os.O_RDONLY | os.O_CLOEXEC), id="a directory"),
        pytest.param(lambda: os.eventfd(0, os.EFD_CLOEXEC), id="no memory at all"),
    ],
)
@in_turn("client", [False, True])
def test_what_is_no_slab_is_refused_and_closed(
    backend: Backend,
    make: Callable[[], int],
    client: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    """It is not mapped, since it could be truncated while it is read."""
    device, descriptor = backend.device, make()
    open_slab = device.open_client_slab if client else lambda nbytes, fd: device.open_slab(nbytes, b"", fd)
    with pytest.raises(errors.InvalidRequest, match=f"{SLAB_BYTES} bytes"):
        open_slab(SLAB_BYTES, descriptor)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)


def test_an_empty_slab_is_refused(backend: Backend) -> None:
    """It cannot be mapped."""
    with pytest.raises(errors.InvalidRequest):
        backend.device.open_client_slab(0, memfd(0))


def test_a_slab_without_what_opens_it_is_refused(backend: Backend) -> None:
    """A message may arrive without its descriptor."""
    with pytest.raises(errors.InvalidRequest):
        backend.device.open_slab(SLAB_BYTES, b"", None)


def test_memory_that_is_not_there_is_out_of_memory(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever resource is short; nothing is left of the attempt."""
    with pytest.raises(errors.OutOfMemory) as caught:
        backend.device.make_slab(2**62)
    assert caught.value.requested_bytes == 2**62
    del caught

    def none_left(*_: object) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(os, "memfd_create", none_left)
    with pytest.raises(errors.OutOfMemory, match="Too many open files"):
        backend.device.make_slab(SLAB_BYTES)


@pytest.mark.parametrize("kind", ["own", "opened", "client's"])
def test_memory_stays_while_an_array_lives_and_goes_with_the_last(backend: Backend, kind: str) -> None:
    """Views of arrays count too; their owner is kept as long."""
    device, before = backend.device, backend.held()
    match kind:
        case "own":
            memory: SlabMemory = device.make_slab(SLAB_BYTES)
        case "opened":
            export = (maker := device.make_slab(SLAB_BYTES)).export()
            assert export.descriptor is not None
            memory = device.open_slab(SLAB_BYTES, export.handle, os.dup(export.descriptor))
            del maker
        case _:
            memory = device.open_client_slab(SLAB_BYTES, memfd(SLAB_BYTES))

    class Owner:
        """An object that must not go before its arrays."""

    owner = Owner()
    gone = weakref.ref(owner)
    part = memory.bytes(owner, 0, 4096)
    array = memory.array(part, Layout.contiguous("int32", (2, 8), 64), writable=False)
    last = [array[1:].T[::-1]]
    del memory, part, array, owner
    descriptors, mappings = backend.held()
    assert len(mappings) == len(before[1]) + 1
    assert len(descriptors) > len(before[0])
    assert gone() is not None
    assert last[0].tolist() == [[0]] * 8
    last.clear()
    assert backend.held() == before
    assert gone() is None


def test_memory_is_unmapped_in_the_background(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop must not wait: the kernel takes a millisecond for each MiB that it frees."""
    device, before = backend.device, backend.held()
    queue: deque[Callable[[], object]] = deque()
    monkeypatch.setattr(device, "background", types.SimpleNamespace(submit=queue.append))
    memories: list[SlabMemory] = [
        device.make_slab(SLAB_BYTES),
        device.open_slab(SLAB_BYTES, b"", memfd(SLAB_BYTES)),
        device.open_client_slab(SLAB_BYTES, memfd(SLAB_BYTES)),
    ]
    while_used = backend.held()
    memories.clear()
    assert backend.held() == while_used
    while queue:
        queue.popleft()()
    assert backend.held() == before


def test_memory_is_unpinned_before_it_is_unmapped(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver knows the address while memory is pinned."""
    device, queue = backend.device, deque[Callable[[], object]]()
    monkeypatch.setattr(device, "background", types.SimpleNamespace(submit=queue.append))
    memory, unpinned = device.make_slab(SLAB_BYTES), list[bool]()
    assert isinstance(memory, HostMemory)
    memory.before_unmap(lambda mapping, _: device.later(lambda: unpinned.append(mapping.closed)))  # type: ignore[attr-defined]
    del memory
    while queue:
        queue.popleft()()
    assert unpinned == [False]


@in_turn("dtype", sorted(dtypes.ITEM_BYTES))
def test_arrays_are_of_every_element_type(backend: Backend, dtype: str) -> None:
    """Any layout is possible; writes through one array are read through others."""
    slab = backend.device.make_slab(SLAB_BYTES)
    part = slab.bytes(None, 512, 4096)
    layout = Layout.contiguous(dtype, (3, 4), 128)
    array = slab.array(part, layout, writable=True)
    assert (array.dtype, array.shape, array.strides) == (dtypes.to_numpy(dtype), layout.shape, layout.strides)
    array[...] = np.arange(12).reshape(3, 4) % 2
    view = slab.array(part, layout.indexed((slice(None, None, -2), 1)), writable=False)
    assert (view == array[::-2, 1]).all()
    for index in ((), (slice(None, None, -2), slice(1, 3)), (slice(0),), (2, 1)):
        read = slab.read(part, layout.indexed(index))
        assert (read.dtype, read.flags.owndata, read.flags.writeable) == (array.dtype, True, True)
        assert (read.shape, read.tobytes()) == (array[index].shape, array[index].tobytes())
    assert bytes(slab.bytes(None, 512 + 128, layout.nbytes)) == array.tobytes()
    for shape in ((), (0,), (2, 0, 3)):
        assert slab.array(part, Layout.contiguous(dtype, shape, 4096 - 16), writable=False).shape == shape


def test_an_array_is_read_only_unless_it_may_be_written(backend: Backend) -> None:
    """Memory that is only borrowed for reading cannot be written by mistake, not even through a view."""
    slab = backend.device.make_slab(SLAB_BYTES)
    part, layout = slab.bytes(None, 0, 64), Layout.contiguous("uint8", (64,))
    array = slab.array(part, layout, writable=False)
    for each in (array, array[3:]):
        with pytest.raises(ValueError, match="read-only"):
            each[0] = 1
    slab.array(part, layout, writable=True)[0] = 1
    assert array[0] == 1


def test_a_backend_that_does_not_exist_is_a_mistake_in_the_configuration() -> None:
    """It is named."""
    with pytest.raises(errors.ConfigurationError, match="abacus"):
        open_device("abacus")


# --- streams -------------------------------------------------------------------------------------------------


class Job:
    """A piece of work that notes when it is done, and may wait at a gate."""

    raised: BaseException | None = None
    times: WorkTimes | None = None
    goes_on = False

    def __init__(self, device: WorkerDevice, log: list[str], name: str = "job", *, waits: bool = False) -> None:
        self.event: Event = device.make_event()
        self.name: Final = name
        self._log: Final = log
        self.begun: Final = threading.Event()
        self.go: Final = threading.Event()
        if not waits:
            self.go.set()
        self.thread = ""
        self.over: Final = threading.Event()

    def call(self) -> None:
        """Do it."""
        self.thread = threading.current_thread().name
        self.begun.set()
        assert self.go.wait(DEADLINE_S)
        self._log.append(self.name)

    def finished(self) -> None:
        """Say that it has been done."""
        self.event.end()
        self.over.set()


class Streams:
    """Makes streams and jobs; ends them all."""

    def __init__(self, device: WorkerDevice) -> None:
        self.device: Final = device
        self.log: Final[list[str]] = []
        """What has been done, in order."""
        self._streams: list[Stream] = []
        self._jobs: list[Job] = []

    def stream(self, name: str = "stream", *, inline_bytes: int = NEVER_INLINE) -> Stream:
        """Make a stream."""
        self._streams.append(self.device.make_stream(name, inline_bytes=inline_bytes))
        return self._streams[-1]

    def job(self, name: str = "job", *, waits: bool = False) -> Job:
        """Make a job."""
        self._jobs.append(Job(self.device, self.log, name, waits=waits))
        return self._jobs[-1]

    def close(self) -> None:
        """Let all go, and end the streams."""
        for job in self._jobs:
            job.go.set()
        for stream in self._streams:
            stream.close()


@pytest.fixture
def streams(backend: Backend) -> Iterator[Streams]:
    """Provide streams that are closed at the end."""
    made = Streams(backend.device)
    yield made
    made.close()


def wait(*jobs: Job) -> None:
    """Wait until jobs are over."""
    for job in jobs:
        assert job.over.wait(DEADLINE_S), f"{job.name} was not done"
        assert job.event.done


def test_a_stream_works_in_order(streams: Streams) -> None:
    """Work begins only after all earlier work has ended, and the submitting thread does not wait."""
    stream = streams.stream()
    first = streams.job("0", waits=True)
    jobs = [first, *(streams.job(str(number)) for number in range(1, 50))]
    assert not any(stream.submit(job, (), 10**9) for job in jobs)
    assert first.begun.wait(DEADLINE_S)
    assert streams.log == []
    assert not any(job.begun.is_set() or job.event.done for job in jobs[1:])
    first.go.set()
    wait(*jobs)
    assert streams.log == [str(number) for number in range(50)]
    assert {job.thread for job in jobs} == {"stream"}


def test_small_work_is_done_at_once_by_whoever_submits_it(streams: Streams) -> None:
    """It does not report its end then, since the caller knows."""
    stream = streams.stream(inline_bytes=100)
    small, large, after = streams.job("small"), streams.job("large"), streams.job("after")
    assert stream.submit(small, (), 100)
    assert small.thread == threading.current_thread().name
    assert not small.over.is_set()
    assert not stream.submit(large, (), 101)
    wait(large)
    assert large.thread == "stream"
    assert stream.submit(after, (), 0)
    assert streams.log == ["small", "large", "after"]


def test_small_work_waits_behind_what_is_not_done(streams: Streams) -> None:
    """Order matters more than speed."""
    stream = streams.stream(inline_bytes=100)
    large, small = streams.job("large", waits=True), streams.job("small")
    assert not stream.submit(large, (), 101)
    assert not stream.submit(small, (), 0)
    assert not small.begun.is_set()
    large.go.set()
    wait(large, small)
    assert streams.log == ["large", "small"]


@pytest.mark.parametrize("inline_bytes", [NEVER_INLINE, ALWAYS_INLINE])
def test_work_waits_for_other_streams(streams: Streams, inline_bytes: int) -> None:
    """It waits for each given event, even if it could be done at once; the submitting thread waits for none."""
    one, two, three = (streams.stream(str(number), inline_bytes=inline_bytes) for number in range(3))
    event = streams.device.make_event()
    first, second, third = streams.job("first"), streams.job("second"), streams.job("third")
    assert not one.submit(first, (event,), 0)
    assert not two.submit(second, (first.event,), 0)
    assert not three.submit(third, (event, first.event, second.event), 0)
    assert streams.log == []
    event.end()
    wait(first, second, third)
    assert streams.log == ["first", "second", "third"]
    done = streams.job("done")
    assert one.submit(done, (event, third.event), 0) == (inline_bytes == ALWAYS_INLINE)


@pytest.mark.parametrize("inline_bytes", [NEVER_INLINE, 50, ALWAYS_INLINE])
@pytest.mark.parametrize("seed", range(5))
def test_any_net_of_streams_keeps_its_order(streams: Streams, inline_bytes: int, seed: int) -> None:
    """Work has any size, and follows any events of earlier work."""
    random = np.random.default_rng(seed)
    several = [streams.stream(f"stream {number}", inline_bytes=inline_bytes) for number in range(4)]
    gate = streams.device.make_event()
    jobs: list[Job] = []
    edges: list[tuple[str, str]] = []
    last: dict[int, Job] = {}
    queued: list[Job] = []
    for number in range(200):
        job, at = streams.job(str(number)), int(random.integers(4))
        before = [jobs[each] for each in random.integers(0, number, 3)] if number else []
        edges += [(each.name, job.name) for each in before]
        if at in last:
            edges.append((last[at].name, job.name))
        last[at] = job
        after = [each.event for each in before] + [gate] * (number % 50 == 7)
        if several[at].submit(job, after, int(random.integers(100))):
            job.finished()
        else:
            queued.append(job)
        jobs.append(job)
    gate.end()
    wait(*queued)
    place = {name: at for at, name in enumerate(streams.log)}
    assert len(place) == len(jobs)
    assert all(place[one] < place[other] for one, other in edges)


@pytest.mark.parametrize("inline_bytes", [NEVER_INLINE, ALWAYS_INLINE])
@pytest.mark.parametrize(
    "raised",
    [
        pytest.param(errors.LibraryError("failed", library="scipy"), id="a library's"),
        pytest.param(errors.ContextPoisoned("gone"), id="the end of the worker"),
        pytest.param(MemoryError(), id="no memory"),
        pytest.param(ZeroDivisionError(), id="any other"),
        pytest.param(SystemExit(3), id="one that would end a thread"),
        pytest.param(KeyboardInterrupt(), id="one that would end a process"),
    ],
)
def test_no_error_is_lost_on_a_stream(streams: Streams, inline_bytes: int, raised: BaseException) -> None:
    """The error comes back with the request, whatever thread has run it, and the stream goes on."""
    completions = Completions("adaptive", streams.device, InProgress())
    nobody: Any = None

    def fail() -> None:
        raise raised

    request = Request(nobody, data.Call(1, "a.b", 0, 0, b"\x90"), Plain("a.b", fail))
    request.event = streams.device.make_event()
    completions.begin(request)
    stream = streams.stream(inline_bytes=inline_bytes)
    after = streams.job()
    if not stream.submit(request, (), 0):
        with Edges(completions.descriptor) as edges:
            assert edges.wait(DEADLINE_S), "it did not come back"
        assert completions.take() == [request]
        assert request.event.done
    os.close(completions.descriptor)
    assert request.error is not None
    if isinstance(raised, errors.AtomrError):
        assert type(request.error) is type(raised)
    assert str(raised) in request.error.message
    assert request.encoded is None
    if stream.submit(after, (), 0):
        after.finished()
    wait(after)


class Plain(Method):
    """A method without arguments."""

    def arguments(self, _body: bytes, _frames: Sequence[memoryview], _resolve: object) -> tuple[Any, ...]:
        """Return none."""
        return ()

    def written(self, _arguments: tuple[Any, ...]) -> list[DeviceArray]:
        """Return none."""
        return []


def test_a_stream_that_is_closed_has_done_all_it_had(streams: Streams) -> None:
    """Closing twice is allowed, and a stream that has never worked has no thread."""
    threads = threading.active_count()
    stream = streams.stream()
    stream.close()
    assert threading.active_count() == threads
    jobs = [streams.job(str(number)) for number in range(20)]
    for job in jobs:
        stream.submit(job, (), 0)
    stream.close()
    assert all(job.event.done for job in jobs)
    assert threading.active_count() == threads
    stream.close()


def test_a_stream_holds_nothing_of_what_is_done(backend: Backend) -> None:
    """Arguments hold memory, which has to be free once the request has ended."""
    stream = backend.device.make_stream("stream", inline_bytes=NEVER_INLINE)
    job = Job(backend.device, [])
    gone, over = weakref.ref(job), job.over
    stream.submit(job, (), 0)
    del job
    assert over.wait(DEADLINE_S)
    stream.close()
    assert gone() is None


def test_an_event_ends_once_and_for_all(backend: Backend) -> None:
    """Ending it again changes nothing."""
    event = backend.device.make_event()
    assert not event.done
    event.end()
    event.end()
    assert event.done


# --- which stream --------------------------------------------------------------------------------------------


def names(strategy: str, actors: Sequence[str]) -> list[str]:
    """Return the names of the streams that actors get."""
    device = open_device("host")
    allocator = StreamAllocator(strategy, lambda name, _priority: device.make_stream(name, inline_bytes=0))
    found = [allocator.acquire(actor) for actor in actors]
    by_name = {stream.name: stream for stream in found}
    assert all(by_name[stream.name] is stream for stream in found), "two streams of one name"
    return [stream.name for stream in found]


def test_streams_are_handed_out_as_the_strategy_says() -> None:
    """One for each actor, a new one each time, a few in turn, or one for all."""
    actors = ["a", "b", "a", "c", "b"]
    one, two, three, four, five = names("per_actor", actors)
    assert (one, two) == (three, five)
    assert len({one, two, four}) == 3
    assert len(set(names("fresh", actors))) == 5
    assert len(set(names("single", actors))) == 1
    one, two, three, four, five = names("pooled:2", actors)
    assert (one, two) == (three, four)
    assert one == five != two
    assert len(set(names("pooled", ["a"] * 3 * POOLED))) == POOLED


def test_a_shared_stream_has_one_priority() -> None:
    """Actors of another have another."""
    made: list[tuple[str, str]] = []

    def make(name: str, priority: str) -> Stream:
        made.append((name, priority))
        return open_device("host").make_stream(name, inline_bytes=0, priority=priority)

    allocator = StreamAllocator("single", make)
    high, low = allocator.acquire("a", "high"), allocator.acquire("b", "low")
    assert allocator.acquire("c", "high") is high is not low
    assert made == [("stream", "high"), ("stream", "low")]


@pytest.mark.parametrize(
    "strategy",
    ["", "any", "pooled:", "pooled:0", "pooled:-1", "pooled:x", "pooled:1.5", "single:1", "per_actor:", "fresh:2"],
)
def test_another_strategy_is_a_mistake_in_the_configuration(strategy: str) -> None:
    """The message names those that exist."""
    with pytest.raises(errors.ConfigurationError, match="per_actor, fresh, pooled, single, or pooled:N"):
        StreamAllocator(strategy, lambda name, _priority: open_device("host").make_stream(name, inline_bytes=0))


# --- what comes back -----------------------------------------------------------------------------------------


class Returning:
    """A request that comes back, from a stream."""

    method = types.SimpleNamespace(stream=object(), thread=False)
    number = 0
    completions: Completions | None = None


@pytest.fixture(params=STRATEGIES)
def completions(request: pytest.FixtureRequest, ledger: Ledger) -> Iterator[Completions]:
    """Provide each strategy."""
    del ledger  # it only counts
    found = Completions(request.param, open_device("host"), InProgress())
    yield found
    os.close(found.descriptor)


def begun(completions: Completions, count: int) -> list[Any]:
    """Return requests that are to come back."""
    requests: list[Any] = [Returning() for _ in range(count)]
    for request in requests:
        completions.begin(request)
    return requests


def add(completions: Completions, requests: Sequence[Any]) -> None:
    """Hand requests back one by one."""
    for request in requests:
        completions.add(request)


def test_what_has_finished_comes_back_once_and_in_order(completions: Completions) -> None:
    """Any thread may finish it. The descriptor signals it, unless the strategy polls."""
    requests = begun(completions, 100)
    assert completions.take() == []
    with Edges(completions.descriptor) as edges:
        assert not edges.wait(0)
        thread = threading.Thread(target=add, args=(completions, requests))
        thread.start()
        thread.join(DEADLINE_S)
        assert edges.wait(0) == (completions.strategy != "polled")
        assert completions.look()
        assert completions.take() == requests
        assert not edges.wait(0)
    assert completions.take() == []
    assert not completions.look()
    assert completions.patience_s() is None


def test_nothing_is_lost_between_a_look_and_the_next(completions: Completions) -> None:
    """Threads that add and the loop that takes may interleave in any way."""
    requests = begun(completions, 2000)
    threads = [threading.Thread(target=add, args=(completions, requests[at::4])) for at in range(4)]
    taken: list[Any] = []
    with Edges(completions.descriptor) as edges:
        for thread in threads:
            thread.start()
        while completions.in_progress.requests:
            if not completions.look() and completions.patience_s() is None:
                assert edges.wait(DEADLINE_S), "a request was lost"
            taken += completions.take()
    for thread in threads:
        thread.join(DEADLINE_S)
    assert sorted(map(id, taken)) == sorted(map(id, requests))


class ReturningFromThread(Returning):
    """A request that comes back from an actor's thread."""

    method = types.SimpleNamespace(stream=None, thread=True)


@pytest.mark.parametrize("sleeps_on", [True, False])
def test_a_thread_settles_what_it_has_done_while_the_loop_sleeps(completions: Completions, *, sleeps_on: bool) -> None:
    """The loop is woken only if it has to look too."""
    taken: list[Any] = []

    def settle() -> bool:
        assert completions.turn.locked()
        taken.extend(completions.take())
        return sleeps_on

    completions.take_turn = settle
    request: Any = ReturningFromThread()
    completions.begin(request)
    with Edges(completions.descriptor) as edges:
        completions.add(request)
        assert edges.wait(0) == (not sleeps_on and completions.strategy != "polled")
    assert taken == [request]
    assert not completions.turn.locked()


@pytest.mark.parametrize("sleeps_on", [True, False])
def test_a_thread_that_was_rung_looks_while_the_loop_sleeps(completions: Completions, *, sleeps_on: bool) -> None:
    """Once, though nothing has ended; the loop is woken if it has to look too, or has the turn."""
    turns = 0

    def settle() -> bool:
        nonlocal turns
        assert completions.turn.locked()
        turns += 1
        return sleeps_on

    completions.take_turn = settle
    with Edges(completions.descriptor) as edges:
        completions.look_here()
        assert edges.wait(0) == (not sleeps_on)
        assert turns == 1
        with completions.turn:
            completions.look_here()
        assert edges.wait(0)
    assert turns == 1


def test_what_a_thread_has_done_waits_for_who_has_the_turn(completions: Completions) -> None:
    """The holder looks once more after releasing the turn; no thread is woken or waits."""
    completions.take_turn = lambda: pytest.fail("the turn is taken")
    request: Any = ReturningFromThread()
    completions.begin(request)
    with Edges(completions.descriptor) as edges:
        with completions.turn:
            completions.add(request)
        assert completions.waiting
        assert not edges.wait(0)
    assert completions.take() == [request]


def test_threads_that_end_at_once_leave_nothing_behind(completions: Completions) -> None:
    """Each thread settles the requests that it finds, or leaves them to another that does."""
    taken: list[Any] = []

    def settle() -> bool:
        taken.extend(completions.take())
        return True

    completions.take_turn = settle
    requests: list[Any] = [ReturningFromThread() for _ in range(2000)]
    for request in requests:
        completions.begin(request)
    threads = [threading.Thread(target=add, args=(completions, requests[at::4])) for at in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_S)
    assert sorted(map(id, taken)) == sorted(map(id, requests))
    with Edges(completions.descriptor) as edges:
        assert not edges.wait(0), "the loop was woken"


def test_another_strategy_of_completion_is_a_mistake_in_the_configuration() -> None:
    """The message names those that exist."""
    with pytest.raises(errors.ConfigurationError, match="adaptive, host_function, polled, synchronous"):
        Completions("telepathic", open_device("host"), InProgress())
