"""The rings of a trace: what is written is read, in order and whole; what finds no room is counted."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from atomr_mp.protocol.timeline import (
    RING_BYTES,
    Begun,
    Ended,
    GpuTime,
    Record,
    RecordReader,
    RecordWriter,
    SpanKind,
    Spanned,
)
from atomr_mp.protocol.timeline.ring import MAGIC

LONG = "Actor." + "m" * 190


def record(number: int, name: str = "Probe.note") -> Begun:
    """Return a record that tells its number."""
    return Begun(1, number, name, 0, 0, 0, number, number, "scale")


def ring() -> tuple[memoryview, RecordWriter, RecordReader]:
    """Return a new ring, and both of its ends."""
    memory = memoryview(bytearray(RING_BYTES))
    return memory, RecordWriter(memory, 3, 44), RecordReader(memory)


def test_every_record_is_read_once_and_in_order_however_often_the_ring_turns() -> None:
    """Records of all kinds, of different lengths, over several turns of the ring."""
    _, writer, reader = ring()
    number = 0
    for turn in range(40):
        written: list[Record] = []
        for _ in range(1500):
            number += 1
            gpu = [GpuTime(2, 5, 7)] * (number % 9)
            written += [
                record(number, LONG[: 7 + number % 190]),
                Ended(1, number, LONG, 2, 3, number, number, number, 0, number, 1, 0, 0, "poison", 2**40, 9, gpu),
                Spanned(SpanKind.COPY, "copy", 1, number, 0, 0, 1, 2, 3, 4, ""),
            ]
        for each in written:
            writer.write(each)
        read = list(reader.read())
        assert read == written, turn
    assert not reader.dropped
    assert not reader.garbled
    assert (reader.generation, reader.pid) == (3, 44)


def test_what_finds_no_room_is_counted_and_the_ring_goes_on() -> None:
    """A tracer that stops reading costs the worker nothing but records."""
    _, writer, reader = ring()
    for number in range(100_000):
        writer.write(record(number))
    kept = [each.request for each in reader.read() if isinstance(each, Begun)]
    assert kept == list(range(len(kept)))
    assert reader.dropped == 100_000 - len(kept) > 0
    writer.write(record(7))
    assert list(reader.read()) == [record(7)]


def test_a_reader_that_takes_some_gets_the_others_later() -> None:
    """The room of the taken ones is free again."""
    _, writer, reader = ring()
    for number in range(10):
        writer.write(record(number))
    some = reader.read()
    assert [next(some) for _ in range(3)] == [record(n) for n in range(3)]
    del some  # which has not come to its end
    assert list(reader.read()) == [record(n) for n in range(3, 10)]


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.integers(0, 2**64 - 1), min_size=8, max_size=8),
    st.lists(st.integers(0, 2**64 - 1), max_size=64),
    st.integers(0, 40),
)
def test_any_memory_is_records_or_ends_the_ring(words: list[int], content: list[int], taken: int) -> None:
    """Whatever a worker, or a stray write, has put there: bounded, and never an exception."""
    memory, writer, reader = ring()
    for number in range(40):
        writer.write(record(number))
    for count, _ in enumerate(reader.read(), 1):
        if count > taken:
            break
    view = memory.cast("Q")
    view[0 : len(words)] = memoryview(b"".join(each.to_bytes(8, "little") for each in words)).cast("Q")
    view[0] = MAGIC
    for at, word in enumerate(content):
        view[512 + at] = word
    assert len(list(reader.read())) <= RING_BYTES // 16
    assert not list(reader.read()) or not reader.garbled


def test_a_torn_record_is_not_believed() -> None:
    """Its checksum tells."""
    memory, writer, reader = ring()
    writer.write(record(1))
    writer.write(record(2))
    memory[8 * 512 + 20] ^= 1
    assert list(reader.read()) == []
    assert "checksum" in reader.garbled
