"""Registrations of shared memory: what clients say, the table that front ends share, and the files."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import struct
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from atomr_mp import errors
from atomr_mp.serve.http.exchange import Budget
from atomr_mp.serve.http.limits import Limits
from atomr_mp.serve.oip.region import Region, RegionPart, Wish, file_name, resolved, wish_of
from atomr_mp.serve.oip.requests import AskedOutput, InferRequest, SharedInput, extent_of, told_extent
from atomr_mp.serve.oip.shared_memory import files, table
from atomr_mp.serve.oip.shared_memory.files import SharedFiles
from atomr_mp.serve.oip.shared_memory.table import RegionTable
from atomr_mp.serve.oip.shared_memory.transfers import SharedMemory
from atomr_mp.serve.problems import Problem

if TYPE_CHECKING:
    from atomr_mp.pool import Pool

ANYTHING: Final = (
    some.none() | some.booleans() | some.integers() | some.floats() | some.text() | some.lists(some.integers())
)

SIZES: Final = some.integers(-2, 2**66) | some.sampled_from([2**31, 2**32, 2**63 - 1, 2**63, 2**64 - 1]) | ANYTHING

KEYS: Final = some.text(alphabet="/.ab\0\ud800\u00e9", max_size=6) | some.text(max_size=300) | ANYTHING

MOST: Final = 3


@given(KEYS, KEYS, SIZES, SIZES)
def test_any_registration_is_one_within_a_file_or_refused(name: Any, key: Any, offset: Any, nbytes: Any) -> None:
    """Its key is one name in the folder itself, and no sum of its numbers goes beyond those of files."""
    try:
        wish = wish_of(name, key, offset, nbytes)
    except errors.InvalidRequest:
        return
    assert (wish.name, wish.key) == (name, key)
    assert 0 <= wish.offset < wish.offset + wish.byte_size < 2**63
    found = file_name(wish.key)
    assert os.path.normpath(f"/dev/shm/{found}") == f"/dev/shm/{found}"
    assert Path("/dev/shm", found).parent == Path("/dev/shm")
    assert 0 < len(found.encode()) <= 255


NAMES: Final = ["shared_memory_region", "shared_memory_byte_size", "shared_memory_offset", "other"]


@given(some.dictionaries(some.sampled_from(NAMES), some.integers() | some.text(max_size=3) | some.booleans()))
def test_any_parameters_are_an_extent_or_refused(parameters: dict[str, Any]) -> None:
    """Or say nothing of shared memory; an answer tells an extent by parameters that are the same extent."""
    try:
        extent = extent_of("x", parameters)
    except errors.InvalidRequest:
        assert parameters.keys() & set(NAMES[:3])
        return
    if extent is None:
        assert not parameters.keys() & set(NAMES[:3])
    else:
        assert extent_of("x", told_extent(extent)) == extent


@given(some.integers(0, 2**63 - 1), some.integers(0, 2**63 - 1), some.integers(1, 2**63 - 1))
def test_an_extent_is_within_its_region_or_refused(offset: int, nbytes: int, of_region: int) -> None:
    """Without overflow."""
    region = Region("r", "/k", 0, of_region, 1, 2, 0)
    try:
        found = resolved(RegionPart("r", offset, nbytes), region)
    except errors.InvalidRequest:
        assert offset + nbytes > of_region
        return
    assert found.region is region
    assert offset + nbytes <= of_region


class Clock:
    """Nanoseconds that a test sets."""

    def __init__(self) -> None:
        self.now_ns = 10**18

    def __call__(self) -> int:
        """Return them."""
        return self.now_ns


@contextlib.contextmanager
def tables(count: int = 2, idle_s: float = 100.0) -> Iterator[tuple[list[RegionTable], Clock, int]]:
    """Return several front ends' views of one memory, their clock, and a descriptor of the memory."""
    memory, clock = os.memfd_create("test"), Clock()
    made = [RegionTable(os.dup(memory), Limits(regions=MOST, region_idle_s=idle_s), clock) for _ in range(count)]
    try:
        yield made, clock, memory
    finally:
        for each in made:
            each.close()
        os.close(memory)


def wish(name: str, nbytes: int = 4) -> Wish:
    """Return a registration that is asked for."""
    return Wish(name, f"/{name}", 8, nbytes)


STEPS: Final = some.lists(
    some.tuples(
        some.integers(0, 1),
        some.sampled_from(["register", "unregister", "use", "wait"]),
        some.sampled_from(["a", "b", "c", "d", ""]),
        some.integers(0, 60),
    ),
    max_size=25,
)


class Walk:
    """Two front ends' views of one table beside a model of it.

    Args:
        views: They.
        clock: Their clock.
    """

    def __init__(self, views: list[RegionTable], clock: Clock) -> None:
        self._views: Final = views
        self._clock: Final = clock
        self._model: dict[str, tuple[int, int]] = {}
        """Sizes by name, and when each was used last."""

    async def step(self, which: int, what: str, name: str, number: int) -> None:
        """Do something with one of the views."""
        if what == "wait":
            self._clock.now_ns += number * 10**9
        idle_ns = 100 * 10**9
        self._model = {key: each for key, each in self._model.items() if self._clock.now_ns - each[1] <= idle_ns}
        view = self._views[which]
        match what:
            case "register" if name:
                await self._register(view, name, number + 1)
            case "unregister":
                await view.unregister(name)
                self._model = {key: each for key, each in self._model.items() if name not in {"", key}}
            case "use":
                self._use(view, name)
        assert [each.name for each in view.all()] == sorted(self._model)
        assert len({each.slot for each in view.all()}) == len(self._model)

    async def _register(self, view: RegionTable, name: str, nbytes: int) -> None:
        if name in self._model:
            with pytest.raises(Problem, match="already in manager"):
                await view.register(wish(name, nbytes), (1, 2))
        elif len(self._model) == MOST:
            with pytest.raises(errors.Overloaded, match=f"the most are {MOST}"):
                await view.register(wish(name, nbytes), (1, 2))
        else:
            await view.register(wish(name, nbytes), (1, 2))
            self._model[name] = nbytes, self._clock.now_ns

    def _use(self, view: RegionTable, name: str) -> None:
        found = view.use(name)
        assert (found is not None) == (name in self._model)
        if found is not None:
            nbytes, used_ns = self._model[name]
            assert found.byte_size == nbytes
            is_noted = self._clock.now_ns - used_ns > 10**9
            self._model[name] = nbytes, self._clock.now_ns if is_noted else used_ns


@given(STEPS)
@settings(deadline=None)
def test_all_front_ends_see_one_table_on_any_walk(steps: list[tuple[int, str, str, int]]) -> None:
    """Names are taken once, there are so many, and what is unused for long is forgotten."""

    async def walk() -> None:
        with tables() as (views, clock, _):
            walked = Walk(views, clock)
            for each in steps:
                await walked.step(*each)

    asyncio.run(walk())


@given(some.binary(max_size=600), some.integers(0, 400), some.none() | some.tuples(*[some.integers(0, 2**40)] * 3))
@settings(deadline=None)
def test_what_a_killed_writer_has_left_is_not_read(data: bytes, at: int, head: tuple[int, int, int] | None) -> None:
    """It wrote where the older table was, and perhaps a part of its head; the next writer goes on from the newer."""

    async def use() -> None:
        with tables() as ((one, other), _, memory):
            await one.register(wish("a"), (1, 2))
            await one.register(wish("b"), (1, 3))
            (newer, older) = sorted(other._places(), reverse=True)
            os.pwrite(memory, data, other._begin(older.at) + at)
            if head is not None:
                number, nbytes, checksum = head
                os.pwrite(memory, struct.pack("<QQQ", newer.number + number, nbytes, checksum + 2**33), 24 * older.at)
            for each in (one, other):
                assert [found.name for found in each.all()] == ["a", "b"]
            await other.register(wish("c"), (1, 4))
            await one.unregister("a")
            assert [each.name for each in other.all()] == ["b", "c"]

    asyncio.run(use())


def test_writers_that_read_each_other_lose_nothing() -> None:
    """Each on a thread with a loop of its own, while others read."""
    with tables(3) as ((one, other, third), _, _):

        async def come_and_go(view: RegionTable, name: str) -> None:
            for turn in range(200):
                await view.register(wish(name, turn + 1), (1, turn))
                found = view.find(name)
                assert found is not None
                assert found.byte_size == turn + 1
                await view.unregister(name)
                assert view.find(name) is None

        failed: list[BaseException] = []

        def run(view: RegionTable, name: str) -> None:
            try:
                asyncio.run(come_and_go(view, name))
            except BaseException as error:
                failed.append(error)
                raise

        # Views of one process share the kernel's lock, so they take turns by one that they share here.
        other._ours = one._ours  # type: ignore[misc]
        threads = [threading.Thread(target=run, args=pair) for pair in ((one, "a"), (other, "b"))]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            assert {each.name for each in third.all()} <= {"a", "b"}
        assert not failed
        assert third.all() == []


@given(some.binary(max_size=100))
@settings(deadline=None)
def test_any_bytes_in_the_table_are_regions_or_not_read(data: bytes) -> None:
    """Also with the right checksum: the table of before counts."""

    async def use() -> None:
        with tables() as ((one, other), _, memory):
            await one.register(wish("a"), (1, 2))
            (newer, older) = sorted(other._places(), reverse=True)
            os.pwrite(memory, data, other._begin(older.at))
            number = newer.number + 1
            head = struct.pack("<QQQ", number, len(data), table._checksum(number, data))
            os.pwrite(memory, head, 24 * older.at)
            assert other.find("a") is not None or other._read() == {}

    asyncio.run(use())


# --- files -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def shared(tmp_path: Path) -> Iterator[SharedFiles]:
    """The files of a folder."""
    found = SharedFiles(tmp_path)
    yield found
    found.close()


def region_of(shared: SharedFiles, key: str, offset: int, nbytes: int) -> Region:
    """Return a region that is registered so."""
    return Region("r", key, offset, nbytes, *shared.identity(Wish("r", key, offset, nbytes)), 0)


@given(some.integers(0, 40), some.integers(1, 40), some.integers(0, 40), some.binary(max_size=40))
@settings(deadline=None)
def test_nothing_beyond_an_extent_is_written(begin: int, nbytes: int, offset: int, data: bytes) -> None:
    """And what is written is read again."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "k")
        path.write_bytes(b"\x07" * 100)
        shared = SharedFiles(Path(folder))
        region = region_of(shared, "/k", begin, nbytes)
        try:
            extent = resolved(RegionPart("r", offset, len(data)), region)
        except errors.InvalidRequest:
            shared.close()
            return
        with shared.writing(region) as descriptor:
            files.write(descriptor, extent, memoryview(data))
        at = begin + offset
        assert path.read_bytes() == b"\x07" * at + data + b"\x07" * (100 - at - len(data))
        memory = bytearray(len(data))
        with shared.reading(region) as descriptor:
            files.read(descriptor, extent, memoryview(memory))
        assert memory == data
        shared.close()


def test_a_file_that_shrinks_after_it_was_opened_is_a_short_read(shared: SharedFiles, tmp_path: Path) -> None:
    """An error in words, and no signal."""
    path = tmp_path / "k"
    path.write_bytes(bytes(8192))
    region = region_of(shared, "k", 0, 8192)
    with shared.reading(region) as descriptor:
        os.truncate(path, 4100)
        with pytest.raises(errors.InvalidRequest, match="ends at 4100, and the region at 8192"):
            files.read(descriptor, RegionPart("r", 4096, 4096, region), memoryview(bytearray(4096)))


def test_a_full_file_system_is_told(shared: SharedFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once a part may have been written, and also if the server itself has no room for another file."""
    (tmp_path / "k").write_bytes(bytes(8))
    region = region_of(shared, "k", 0, 8)

    def full(*_arguments: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def too_many(*_arguments: object, **_options: object) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with shared.writing(region) as descriptor, monkeypatch.context() as patched:
        patched.setattr(os, "pwritev", full)
        with pytest.raises(errors.InvalidRequest, match="No space left") as found:
            files.write(descriptor, RegionPart("r", 0, 8, region), memoryview(bytes(8)))
        assert found.value.maybe_executed
    opened: list[Callable[[], Any]] = [
        lambda: shared.identity(Wish("r", "k", 0, 8)),
        lambda: shared.reading(region).__enter__(),
    ]
    for each in opened:
        with monkeypatch.context() as patched:
            patched.setattr(os, "open", too_many)
            with pytest.raises(errors.Overloaded, match="cannot open files now"):
                each()


def test_each_part_of_a_partial_read_or_write_is_moved(
    shared: SharedFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel may move fewer bytes than it was asked for."""
    data = bytes(range(200))
    (tmp_path / "k").write_bytes(data)
    region = region_of(shared, "k", 3, 190)
    read, write = os.preadv, os.pwritev
    monkeypatch.setattr(os, "preadv", lambda to, parts, at: read(to, [parts[0][:7]], at))
    monkeypatch.setattr(os, "pwritev", lambda to, parts, at: write(to, [parts[0][:7]], at))
    memory = bytearray(100)
    with shared.reading(region) as descriptor:
        files.read(descriptor, RegionPart("r", 50, 100, region), memoryview(memory))
    assert memory == data[53:153]
    with shared.writing(region) as descriptor:
        files.write(descriptor, RegionPart("r", 0, 100, region), memoryview(memory))
    assert (tmp_path / "k").read_bytes() == data[:3] + data[53:153] + data[103:]


# --- requests --------------------------------------------------------------------------------------------------------

LARGE: Final = 2**20 + 1


class Memory:
    """Stands for the pool: makes arrays, and knows by which threads."""

    def __init__(self) -> None:
        self.made: Final[list[tuple[int, bool]]] = []
        """Sizes, and whether it was the thread of the event loop."""

    def host_array(self, nbytes: int, dtype: str) -> np.ndarray[Any, Any]:
        """Return an array."""
        self.made.append((nbytes, threading.current_thread() is threading.main_thread()))
        return np.empty(nbytes, dtype)


def asked(*inputs: SharedInput, outputs: Sequence[AskedOutput] = ()) -> InferRequest:
    """Return a request with inputs in shared memory."""
    return InferRequest("m", "", "", {}, (), outputs, inputs)


@contextlib.contextmanager
def sharing(folder: Path, most_held: int, most_bytes: int) -> Iterator[tuple[SharedMemory, Budget]]:
    """Return shared memory with the files of a folder, and its budget."""
    budget, memory = Budget(most_held), os.memfd_create("test")
    found = SharedMemory(RegionTable(memory, Limits()), SharedFiles(folder), budget, most_bytes)
    yield found, budget
    found.close()


def test_inputs_hold_room_as_long_as_their_request_runs(tmp_path: Path) -> None:
    """Large ones are read on a thread, into memory that the call does not copy again."""
    data = np.arange(LARGE, dtype=np.uint8)
    (tmp_path / "k").write_bytes(data.tobytes())

    async def use() -> None:
        pool = Memory()
        with sharing(tmp_path, LARGE + 100, LARGE + 100) as (shared, budget):
            await shared.register("r", "/k", 0, LARGE)
            large = SharedInput("x", "UINT8", (LARGE,), RegionPart("r", 0, LARGE))
            small = SharedInput("y", "UINT8", (90,), RegionPart("r", 10, 90))
            async with shared.filled(asked(large, small), cast("Pool", pool)) as request:
                assert budget.held == LARGE + 90
                assert not request.shared
                read = {each.name: each.values for each in request.inputs}
                assert np.array_equal(read["x"], data)
                assert np.array_equal(read["y"], data[10:100])
                with pytest.raises(Problem, match="try again") as refused:
                    async with shared.filled(asked(small), cast("Pool", pool)):
                        pass
                assert refused.value.status == 429
            assert budget.held == 0
            assert pool.made == [(LARGE, False)]
            with pytest.raises(Problem, match=f"may have {LARGE + 100}") as refused:
                async with shared.filled(asked(large, small, small), cast("Pool", pool)):
                    pass
            assert refused.value.status == 413
            assert budget.held == 0

    asyncio.run(use())


def test_room_is_given_back_whatever_happens(tmp_path: Path) -> None:
    """A file that is spoilt, a request that fails, or a client that leaves."""
    (tmp_path / "k").write_bytes(bytes(64))

    async def use() -> None:
        with sharing(tmp_path, 1000, 1000) as (shared, budget):
            await shared.register("r", "/k", 0, 64)
            request = asked(SharedInput("x", "UINT8", (64,), RegionPart("r", 0, 64)))
            with pytest.raises(asyncio.CancelledError):
                async with shared.filled(request, cast("Pool", Memory())):
                    raise asyncio.CancelledError
            assert budget.held == 0
            (tmp_path / "k").unlink()
            with pytest.raises(errors.InvalidRequest, match="register it again"):
                async with shared.filled(request, cast("Pool", Memory())):
                    pass
            assert budget.held == 0

    asyncio.run(use())
