"""Callers whose state is hard to recover: large results read late, failing writers, cut connections."""

from __future__ import annotations

import os
import random
import re
import socket
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np

import atomr_mp
from atomr_mp import errors
from soaking.caller import DEADLINE_S, Caller, Links
from soaking.contents import Array

IN_FLIGHT: Final = 24
LARGE_EVERY: Final = 6
COUNT: Final = 40_960
"""Elements of a large array, of eight bytes each: 320 KiB."""

CUT_EVERY_S: Final = 1.0
"""How often a client's data connections are cut, on average."""

DATA_SOCKET: Final = re.compile(r".*/d(\d+)-g\d+\.sock")

LATEST_S: Final = 0.5
"""How long a large result is left unread at most: often its worker has ended by then."""


class Loaded(Caller):
    """Keeps many calls in flight, one in six large in both directions."""

    def __init__(self, links: Links, chance: random.Random) -> None:
        super().__init__(links, chance)
        self._array: Final = np.arange(COUNT)

    def act(self) -> None:
        """Call for a while, then take in all answers."""
        flight: deque[tuple[int, atomr_mp.Reply]] = deque()
        begun_s = time.monotonic()
        for number in range(self.chance.randint(1, 10) * IN_FLIGHT):
            if len(flight) == IN_FLIGHT:
                self._settle(*flight.popleft())
            large = number % LARGE_EVERY == 0
            reply = self.call("Echo.on_loop", self._array) if large else self.call("Echo.number", number)
            if reply is not None:
                flight.append((number, reply))
        while flight:
            self._settle(*flight.popleft())
        self.in_time(begun_s)

    def _settle(self, number: int, reply: atomr_mp.Reply) -> None:
        try:
            found = reply.result()
        except errors.AtomrError as error:
            self.tally.error(error)
        else:
            self.compare("answer under load", number if number % LARGE_EVERY else self._array, found)


class LateReader(Caller):
    """Reads large results some time after they were answered: an answer outlives its worker."""

    def act(self) -> None:
        """Have some results answered, wait, and read them in any order."""
        chance = self.chance
        made: list[tuple[int, atomr_mp.Reply]] = []
        for _ in range(chance.randint(1, 6)):
            seed = chance.randrange(10**6)
            reply = self.call(f"Maker.array_{chance.choice(['on_loop', 'on_thread'])}", seed, COUNT)
            if reply is not None:
                made.append((seed, reply))
        answered = []
        for seed, reply in made:
            error = reply.exception()
            if error is None:
                answered.append((seed, reply))
            else:
                self.tally.error(error)
        time.sleep(chance.random() * LATEST_S)  # the delay is this caller's purpose
        chance.shuffle(answered)
        for seed, reply in answered:
            over = self.pool.devices[reply.device].generation != reply.generation
            expected = np.arange(seed, seed + COUNT, dtype=np.int64) * 7 % 251
            try:
                found = reply.result()
            except errors.AtomrError as error:
                self.tally.wrong(f"a result that was answered cannot be read: {error!r}")
            else:
                self.compare("result read after its worker's end" if over else "result read late", expected, found)


class FailedWriter(Caller):
    """Has writers fail half way, and checks that no reader takes their content for a result."""

    holds_buffers = True

    def act(self) -> None:
        """Let a writer fail, with a reader behind it; then define the content again."""
        try:
            ref = self.pool.device().put(np.zeros(COUNT))
        except errors.AtomrError as error:
            self.tally.error(error)
            return
        spoiling = self.call("Maker.spoil", ref, deadline_s=DEADLINE_S)
        reading = self.call("Maker.sum_on_loop", ref)
        failed = None if spoiling is None else spoiling.exception()
        if not isinstance(failed, errors.ActorFailed):  # it was lost, or not sent
            if failed is not None:
                self.tally.error(failed, refs=[ref])
            return
        self.tally.note("writer that failed")
        for read in (None if reading is None else reading.result, ref.numpy):
            try:
                if read is not None:
                    self.tally.wrong(f"what a failed writer has left was read: {read()!r}")
            except errors.AtomrError as error:
                self.tally.error(error, errors.GpuRefUndefined, refs=[ref])
        try:
            if self.chance.random() < 0.5:
                ref.fill(3.0)
                expected: Array = np.full(COUNT, 3.0)
            else:
                ref.accept()
                expected = np.concatenate([np.ones(COUNT // 2), np.zeros(COUNT - COUNT // 2)])
            self.compare("content after a writer that failed", expected, ref.numpy())
        except errors.AtomrError as error:
            self.tally.error(error, refs=[ref])


class Cutter(Caller):
    """Shuts its process's data connections, as foreign code may, except those to the spared device."""

    def act(self) -> None:
        """Cut once."""
        time.sleep(2 * CUT_EVERY_S * self.chance.random())  # at any time
        for device, connection in _data_connections():
            if device != self.tally.spared:
                connection.shutdown(socket.SHUT_RDWR)
                self.tally.note("cut of a data connection")


def _data_connections() -> Iterator[tuple[int, socket.socket]]:
    """Yield this process's connections to workers, as duplicates, each with its device."""
    for entry in list(Path("/proc/self/fd").iterdir()):
        try:
            name = entry.readlink().name
            duplicate = os.dup(int(entry.name)) if name.startswith("socket:") else None
        except OSError:  # it was closed meanwhile
            continue
        if duplicate is None:
            continue
        with socket.socket(fileno=duplicate) as found:
            try:
                peer = found.getpeername()
            except OSError:  # it listens, or is connected no more
                continue
            data = DATA_SOCKET.fullmatch(peer) if isinstance(peer, str) else None
            if data is not None:
                yield int(data[1]), found
