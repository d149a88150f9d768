"""The registrations, in memory that all front ends share.

The memory has two places. A process that changes the table holds a lock of the kernel's, which ends with the process,
writes the whole table into the place of the older one, and then its head. So readers find a whole table at any moment,
also after a writer that was killed while it wrote. Behind the heads are the times at which regions were used last.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import struct
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import Final, NamedTuple

import msgspec

from atomr_mp import errors
from atomr_mp.protocol.decoders import known
from atomr_mp.serve.http.limits import Limits
from atomr_mp.serve.oip.region import Region, Wish, shown
from atomr_mp.serve.problems import Problem

REGION_BYTES: Final = 1024
"""More than a region takes in the table."""

NOTED_EVERY_S: Final = 1.0
"""How often the use of a region is noted."""

ATTEMPTS: Final = 100
"""How often one reads what writers overtake."""

_HEAD: Final = struct.Struct("<QQQ")
"""Of a place: the table's number, its bytes, and a checksum of both and of the table."""

_TIME: Final = struct.Struct("<Q")
"""Nanoseconds of CLOCK_MONOTONIC, which all processes have in common."""

Regions = Mapping[str, Region]

Identity = tuple[int, int]
"""A file's device and inode."""


class _Place(NamedTuple):
    """The head of a place."""

    number: int
    nbytes: int
    checksum: int
    at: int
    """0 or 1."""


class RegionTable:
    """Registers regions. For the event loop's thread.

    Args:
        descriptor: Descriptor of the shared memory; owned from here on. No other one of this process may be closed:
            that would end the kernel's lock.
        limits: How many regions there may be, and for how long they may be unused; the same in all front ends.
        clock: Returns nanoseconds.
    """

    def __init__(self, descriptor: int, limits: Limits, clock: Callable[[], int] = time.monotonic_ns) -> None:
        self._descriptor: Final = descriptor
        self._most: Final = limits.regions
        self._idle_ns: Final = round(limits.region_idle_s * 1e9)
        self._clock: Final = clock
        self._heads = b""
        """The heads of the table that was read last."""
        self._regions: Regions = {}
        self._turn: Final = asyncio.Lock()
        """Lets one thread wait at a time."""
        self._ours: Final = threading.Lock()
        """The kernel's lock belongs to the process; this one is for its threads."""

    def close(self) -> None:
        """Close the descriptor; may not be called twice."""
        os.close(self._descriptor)

    def all(self) -> list[Region]:
        """Return all regions, by name."""
        return [each for _, each in sorted(self._live(self._read()).items())]

    def find(self, name: str) -> Region | None:
        """Return a region, None if there is none by this name."""
        found = self._read().get(name)
        return found if found is not None and self._is_live(found) else None

    def use(self, name: str) -> Region | None:
        """Return a region like `find`, and note that it is used."""
        found = self._read().get(name)
        if found is None or (idle_ns := self._clock() - self._used_ns(found)) > self._idle_ns:
            return None
        if idle_ns > NOTED_EVERY_S * 1e9:
            self._note(found)
        return found

    async def register(self, wish: Wish, identity: Identity) -> None:
        """Register a region.

        Args:
            wish: What is asked for.
            identity: Of the file.

        Raises:
            Problem: 409, there is one by this name.
            Overloaded: There are too many.
        """

        def add(regions: Regions) -> Regions:
            if wish.name in regions:
                raise Problem(
                    409, "region_exists", f"shared memory region {shown(wish.name)} already in manager; unregister it"
                )
            if len(regions) >= self._most:
                raise errors.Overloaded(
                    f"{len(regions)} shared memory regions are registered, and the most are {self._most} (limit "
                    "regions): unregister some",
                    maybe_executed=False,
                )
            slot = min(set(range(self._most)) - {each.slot for each in regions.values()})
            region = Region(*wish, *identity, slot)
            self._note(region)
            return {**regions, wish.name: region}

        await self._change(add)

    async def unregister(self, name: str) -> None:
        """Forget a region, or do nothing if there is none by this name; forget all if it is empty."""
        await self._change(lambda regions: {key: each for key, each in regions.items() if name not in {"", key}})

    async def _change(self, change: Callable[[Regions], Regions]) -> None:
        async with self._turn:
            await asyncio.to_thread(self._write, change)  # another front end may have been stopped with the lock

    def _write(self, change: Callable[[Regions], Regions]) -> None:
        with self._locked():
            found = self._whole()
            changed = change(self._live(found[1]))
            data = msgspec.msgpack.encode(list(changed.values()))
            number = max(each.number for each in self._places()) + 1
            at = 1 - found[0].at
            os.pwrite(self._descriptor, data, self._begin(at))
            os.pwrite(self._descriptor, _HEAD.pack(number, len(data), _checksum(number, data)), at * _HEAD.size)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        with self._ours:
            fcntl.lockf(self._descriptor, fcntl.LOCK_EX)
            try:
                yield
            finally:
                fcntl.lockf(self._descriptor, fcntl.LOCK_UN)

    def _read(self) -> Regions:
        """Return the newest table."""
        heads = os.pread(self._descriptor, 2 * _HEAD.size, 0)
        if heads != self._heads:
            _, self._regions = self._whole()
            self._heads = heads  # perhaps of a table that is older than the one that was read: it is read once more
        return self._regions

    def _whole(self) -> tuple[_Place, Regions]:
        """Return the newest table that is whole, and its place.

        Raises:
            Overloaded: Writers overtake all attempts.
        """
        for _ in range(ATTEMPTS):
            for place in sorted(self._places(), reverse=True):
                if not place.number:
                    return place, {}
                data = os.pread(self._descriptor, min(place.nbytes, self._place_bytes), self._begin(place.at))
                if _checksum(place.number, data) != place.checksum:
                    continue
                with contextlib.suppress(msgspec.DecodeError, RecursionError):
                    found = msgspec.msgpack.decode(data, type=known(list[Region]))
                    return place, {each.name: each for each in found}
        raise errors.Overloaded("the shared memory regions change too fast to be read; try again", maybe_executed=False)

    def _places(self) -> list[_Place]:
        heads = os.pread(self._descriptor, 2 * _HEAD.size, 0).ljust(2 * _HEAD.size, b"\0")
        found = [_HEAD.unpack_from(heads, at * _HEAD.size) for at in range(2)]
        return [_Place(number, nbytes, checksum, at) for at, (number, nbytes, checksum) in enumerate(found)]

    @property
    def _place_bytes(self) -> int:
        return self._most * REGION_BYTES

    def _begin(self, at: int) -> int:
        return 2 * _HEAD.size + self._most * _TIME.size + at * self._place_bytes

    # --- uses ------------------------------------------------------------------------------------------------------

    def _live(self, regions: Regions) -> Regions:
        """Return those that were used in time."""
        return {name: each for name, each in regions.items() if self._is_live(each)}

    def _is_live(self, region: Region) -> bool:
        return self._clock() - self._used_ns(region) <= self._idle_ns

    def _used_ns(self, region: Region) -> int:
        data = os.pread(self._descriptor, _TIME.size, self._time_at(region))
        return int(_TIME.unpack(data)[0])

    def _note(self, region: Region) -> None:
        os.pwrite(self._descriptor, _TIME.pack(self._clock()), self._time_at(region))

    @staticmethod
    def _time_at(region: Region) -> int:
        return 2 * _HEAD.size + region.slot * _TIME.size


def _checksum(number: int, data: bytes) -> int:
    return zlib.crc32(data, zlib.crc32(_TIME.pack(number)))
