"""Memory that one process writes while another reads it, both at full speed."""

from __future__ import annotations

import mmap
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import connection

from atomr_mp.protocol.world import (
    EntryKind,
    MemberReader,
    MemberWriter,
    RingEntry,
    RingReader,
    RingWriter,
    line_bytes,
    ring_bytes,
    ring_epoch,
)
from atomr_mp.serve.watch.shared_sample import SharedSample
from tests.support import DEADLINE_S, settled

FOUND = 3000
"""Samples that are looked at."""

LONG_S = 3 * DEADLINE_S
"""What many entries may take on a busy machine."""

FORKS = multiprocessing.get_context("fork")


@contextmanager
def written_by(write: Callable[[], object]) -> Iterator[None]:
    """Have another process write until the block ends."""
    process = FORKS.Process(target=write, daemon=True)
    process.start()
    try:
        yield
    finally:
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)
        process.join(DEADLINE_S)
        assert process.exitcode == -signal.SIGKILL


def samples(descriptor: int) -> None:
    """Publish samples that say their own number, for ever."""
    shared = SharedSample(descriptor)
    number = 1
    shared.publish_history(b"kept")
    while True:
        number += 1
        shared.publish(b"%d" % number * (1 + number % 50))
        sum(range(number % 500))  # so that readers meet each moment of a write, and the time after it


def test_samples_of_another_process_are_whole_and_come_once() -> None:
    """Each has the number that it was published with, numbers only rise, and what lies beside the samples is kept."""
    descriptor = os.memfd_create("look")
    try:
        shared, seen, found = SharedSample(descriptor), 0, 0
        with written_by(lambda: samples(descriptor)):
            until_s = time.monotonic() + DEADLINE_S
            while found < FOUND:
                assert time.monotonic() < until_s, f"only {found} samples were found"
                latest = shared.latest(seen)
                assert not seen or shared.history() == b"kept"
                if latest is not None:
                    number, sample = latest
                    assert number > seen
                    assert sample == b"%d" % number * (1 + number % 50)
                    seen, found = number, found + 1
        latest = shared.latest()  # the writer was killed, mostly while it wrote
        assert latest is not None
        assert latest[0] >= seen
        assert shared.history() == b"kept"
    finally:
        os.close(descriptor)


LOOKS = 100_000
EPOCH = 3
STEP = 0x1_0001_0001


def begin_all(descriptor: int) -> None:
    """Begin entries with ever larger numbers, for ever."""
    member = MemberWriter(words_of(descriptor), EPOCH)
    number = 0
    while True:
        number += STEP
        member.begin(number)


def test_the_words_of_a_member_are_never_torn() -> None:
    """Numbers that another process reads meanwhile are those that were written, and only rise."""
    descriptor = os.memfd_create("lines")
    try:
        os.ftruncate(descriptor, line_bytes())
        reader, latest = MemberReader(words_of(descriptor), EPOCH), 0
        with written_by(lambda: begin_all(descriptor)):
            assert settled(lambda: reader.begun() > 0)
            for _ in range(LOOKS):
                begun = reader.begun()
                assert begun >= latest
                assert begun % STEP == 0
                latest = begun
    finally:
        os.close(descriptor)


ENTRIES = 100_000


def words_of(descriptor: int) -> memoryview:
    """Map memory as words."""
    return memoryview(mmap.mmap(descriptor, 0)).cast("Q")


def entry_of(sequence: int) -> RingEntry:
    """Return the entry that has a number, of a size of its own."""
    requests = tuple((sequence, sequence * 2**30 + each) for each in range(1 + sequence % 3))
    data = sequence.to_bytes(8, "little") * (sequence % 7)
    return RingEntry(sequence, EntryKind.BATCH, requests, sequence % 5, sequence, data)


def publish(descriptors: list[int]) -> None:
    """Publish all entries, as fast as the slowest follower has ended them."""
    ring, *lines = map(words_of, descriptors)
    writer, members = RingWriter(ring, EPOCH), [MemberReader(words, EPOCH) for words in lines]
    ended = 0
    for sequence in range(1, ENTRIES + 1):
        _, kind, requests, argument, now_ns, data = entry_of(sequence)
        while not writer.publish(kind, requests, now_ns, ended, argument, data):
            ended = min(member.ended() if member.is_open else 0 for member in members)


def follow(descriptors: list[int], rank: int) -> None:
    """Begin and end all entries in their order."""
    ring, lines = words_of(descriptors[0]), words_of(descriptors[1 + rank])
    while ring_epoch(ring)[0] != EPOCH:
        os.sched_yield()
    reader, member = RingReader(ring, EPOCH), MemberWriter(lines, EPOCH)
    for sequence in range(1, ENTRIES + 1):
        while (entry := reader.read()) is None:
            os.sched_yield()
        assert entry == entry_of(sequence)
        member.begin(sequence)
        member.end(sequence)


def test_all_members_of_a_world_read_its_ring_whole_and_in_order() -> None:
    """One process publishes while two follow; each waits for the others only by the pages."""
    descriptors = [os.memfd_create("ring"), os.memfd_create("lines"), os.memfd_create("lines")]
    processes = [FORKS.Process(target=publish, args=(descriptors,), daemon=True)]
    processes += [FORKS.Process(target=follow, args=(descriptors, rank), daemon=True) for rank in range(2)]
    for descriptor, nbytes in zip(descriptors, (ring_bytes(512), line_bytes(), line_bytes()), strict=True):
        os.ftruncate(descriptor, nbytes)
    try:
        for process in processes:
            process.start()
        running, until_s = {process.sentinel: process for process in processes}, time.monotonic() + LONG_S
        while running:
            ended = connection.wait(list(running), until_s - time.monotonic())
            assert ended, "they do not end"
            for process in [running.pop(sentinel) for sentinel in ended if isinstance(sentinel, int)]:
                process.join(DEADLINE_S)
                assert process.exitcode == 0
        lines = map(words_of, descriptors[1:])
        assert [MemberReader(words, EPOCH).ended() for words in lines] == [ENTRIES, ENTRIES]
    finally:
        for process in processes:
            process.kill()
            process.join(DEADLINE_S)
        for descriptor in descriptors:
            os.close(descriptor)
