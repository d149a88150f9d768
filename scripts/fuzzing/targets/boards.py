"""A board: memory that a worker's own code may have written over."""

from __future__ import annotations

import random
import struct
from typing import Final

from atomr_mp.protocol.board import BOARD_BYTES, BoardReader, BoardWriter, Counter, Gauge, check, page
from atomr_mp.protocol.codec import ErrorInfo
from atomr_mp.protocol.messages import session
from fuzzing.target import Target
from fuzzing.trees import INTEGERS

NOW_NS: Final = 10**12

HEAD_BYTES: Final = 8 * (page.FIRST_SLOT + 16 * page.SLOT_WORDS)
"""Bytes of an input, the beginning of a board; the rest is as at its start."""


class Boards(Target):
    """The first bytes of a board."""

    name = "board"

    def make(self, rng: random.Random) -> bytes:
        """Return a board on which some requests have started, and some ended."""
        memory = memoryview(bytearray(BOARD_BYTES))
        writer, running = BoardWriter(memory), list[int]()
        for number in range(1, rng.randint(1, 12)):
            writer.receive(1)
            running.append(writer.start(1, number, NOW_NS - 1000 + number, NOW_NS + 10**9, items=rng.choice((1, 1, 3))))
            if rng.random() < 0.5:
                writer.end(running.pop(), NOW_NS - 500, NOW_NS - 2000)
            if rng.random() < 0.2:
                writer.close_stream(writer.open_stream(1, number + 100, NOW_NS - 900, NOW_NS - 900))
        return bytes(memory[:HEAD_BYTES])

    def mutate(self, rng: random.Random, data: bytes) -> bytes:
        """Return a board with other words: bits, edges, another word, or an entry whose sum is right."""
        words = list(struct.unpack(f"={len(data) // 8}Q", data[: len(data) // 8 * 8]))
        for _ in range(rng.choice((1, 1, 2, 5))):
            at = rng.randrange(len(words))
            match rng.randrange(5):
                case 0:
                    words[at] ^= 1 << rng.randrange(64)
                case 1:
                    words[at] = rng.choice(INTEGERS) % 2**64
                case 2:
                    words[at] = rng.choice(words)
                case 3:
                    words[at] = (words[at] + rng.choice((-1, 1))) % 2**64
                case _:
                    self._change_entry(rng, words)
        return struct.pack(f"={len(words)}Q", *words)

    @staticmethod
    def _change_entry(rng: random.Random, words: list[int]) -> None:
        """Change a used entry, and its sum with it."""
        at = page.FIRST_SLOT + page.SLOT_WORDS * rng.randrange(4)
        if at + page.SLOT_WORDS > len(words) or not words[at]:
            return
        words[at + rng.choice((1, 2, 3))] = rng.choice((rng.choice(INTEGERS) % 2**64, rng.choice(words)))
        words[at + 7] = page.entry_sum(*words[at : at + 4]) % 2**64

    def check(self, data: bytes) -> None:
        """Read all of it. What is believed must make a message that a client understands."""
        memory = memoryview(bytearray(data[:BOARD_BYTES].ljust(8, b"\0")))
        whole = memoryview(bytearray(BOARD_BYTES))
        BoardWriter(whole)  # as it is at first
        whole[: len(memory)] = memory
        reader = BoardReader(whole)
        reader.entries(), reader.running(), reader.look(NOW_NS), reader.stack(), reader.latencies()
        reader.batches(0), reader.graphs(), reader.plans(0)
        _, doubt = check.look(reader.words, lambda: NOW_NS)
        if bool(doubt) != bool(check.defect(reader.words, NOW_NS)):
            raise AssertionError("a board that nobody writes is judged in two ways")
        if doubt:
            return
        figures = [reader.read(each) for each in (*Counter, *Gauge)]
        if not all(figure < 2**63 for figure in figures):
            raise AssertionError(f"a board is believed that shows {max(figures)}")
        left = reader.left()
        ids = [request_id for _, _, request_id, _ in left][: page.SLOTS]
        told = session.IncarnationEnded(
            0,
            1,
            planned=False,
            error=ErrorInfo("worker_lost", "", {}),
            started=ids,
            known_since_ns=reader.known_since_ns(),
        )
        session.FROM_SUPERVISOR.decode(session.FROM_SUPERVISOR.encode(told))
