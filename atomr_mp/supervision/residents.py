"""Memory that outlives the processes that use it: who fills it, who waits, who has it, when it goes. Pure.

A blob is filled by one process and sealed; from then on it is handed to everybody who asks. The one that is asked
first is elected. If it ends before it has sealed the blob, or gives up, what it has filled is discarded and who has
waited longest is elected. That a process *has ended* is said here only when its pidfd has fired; or
that it is stuck, and will not for now. What it was to fill is nobody else's: others fill memory of their own.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum, auto
from typing import Final, NamedTuple

from atomr_mp import errors
from atomr_mp.protocol.words import counted
from atomr_mp.supervision.reclaim import Worker

MAX_BLOBS: Final = 256
"""Blobs in a pool: each costs the supervisor a descriptor. One blob has any number of arrays."""


class BlobState(StrEnum):
    """The state of a blob."""

    FILLING = auto()
    SEALED = auto()
    FREED = auto()
    """It is not handed out again; its memory goes with the last process that uses it."""


class Key(NamedTuple):
    """The identity of a blob."""

    gpu: int | None
    """Position of the GPU whose memory it lies in; None for that of the host. All devices there have it in common."""
    name: str
    version: str


class Shape(NamedTuple):
    """The content of a blob."""

    layout: bytes
    """A digest of the names, shapes and element types of its arrays."""
    arrays: int
    nbytes: int


class FillOrder(NamedTuple):
    """Tell a process to fill a blob."""

    worker: Worker
    key: Key


class Adopt(NamedTuple):
    """Give a process a sealed blob."""

    worker: Worker
    key: Key


class Refuse(NamedTuple):
    """Tell a process that it gets none."""

    worker: Worker
    key: Key
    error: errors.AtomrError


class Drop(NamedTuple):
    """Close the descriptor of a sealed blob."""

    key: Key


Action = FillOrder | Adopt | Refuse | Drop


@dataclass
class ResidentBlob:
    """A piece of resident memory."""

    key: Key
    shape: Shape
    filler: Worker | None
    """None once it is sealed."""
    waiters: list[Worker] = field(default_factory=list)
    users: set[Worker] = field(default_factory=set)
    """Processes that have it mapped for reading."""
    sealed: int = 0
    """A number that grows from one that is sealed to the next."""
    freed: bool = False

    @property
    def state(self) -> BlobState:
        """Its state."""
        return BlobState.FREED if self.freed else BlobState.SEALED if self.filler is None else BlobState.FILLING


class Registry:
    """All blobs of a pool.

    Args:
        max_bytes: Most that they may take together; 0 for no limit.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._blobs: dict[Key, ResidentBlob] = {}
        self._freed: list[ResidentBlob] = []
        self._seals = 0

    @property
    def blobs(self) -> list[ResidentBlob]:
        """All there are, those too that are freed and still in use."""
        return [*self._blobs.values(), *self._freed]

    @property
    def nbytes(self) -> int:
        """Their size together, once they are filled."""
        return sum(blob.shape.nbytes for blob in self.blobs)

    def filled_by(self, worker: Worker, key: Key) -> ResidentBlob:
        """Return a blob for a process to fill.

        Raises:
            ProtocolError: It is not.
        """
        blob = self._blobs.get(key)
        if blob is None or blob.filler != worker:
            raise errors.ProtocolError(f"resident memory {_named(key)} was not this process's to fill")
        return blob

    # --- what processes say ----------------------------------------------------------------------------------------

    def wanted(self, worker: Worker, key: Key, shape: Shape) -> list[Action]:
        """A process asks for a blob; it waits for `FillOrder`, `Adopt` or `Refuse`.

        Raises:
            ProtocolError: It has asked before and was not answered.
        """
        blob = self._blobs.get(key)
        if blob is None:
            refused = self._no_room(key, shape)
            if refused is not None:
                return [Refuse(worker, key, refused)]
            self._blobs[key] = ResidentBlob(key, shape, worker)
            return [FillOrder(worker, key)]
        if worker == blob.filler or worker in blob.waiters:
            raise errors.ProtocolError(f"resident memory {_named(key)} was asked for twice")
        if blob.shape != shape:
            return [Refuse(worker, key, _mismatch(blob, shape))]
        if blob.filler is not None:
            blob.waiters.append(worker)
            return []
        blob.users.add(worker)
        return [Adopt(worker, key)]

    def sealed(self, worker: Worker, key: Key) -> list[Action]:
        """A process has filled a blob, and sealed it.

        Raises:
            ProtocolError: It was not to fill it.
        """
        blob = self.filled_by(worker, key)
        self._seals += 1
        blob.filler, blob.sealed = None, self._seals
        blob.users = {worker, *blob.waiters}
        adopting: list[Action] = [Adopt(waiter, key) for waiter in blob.waiters]
        blob.waiters = []
        return adopting + self._drop_outdated()

    def abandoned(self, worker: Worker, key: Key) -> list[Action]:
        """A process does not fill a blob after all; what it had of it is discarded.

        Raises:
            ProtocolError: It was not to fill it.
        """
        return self._elect_next(self.filled_by(worker, key))

    def rejected(self, worker: Worker, key: Key) -> list[Action]:
        """A process was given a blob whose content is not what was sealed: no other process may get it."""
        blob = self._blobs.get(key)
        if blob is None or worker not in blob.users:  # it was freed meanwhile
            return []
        blob.users.discard(worker)
        return self._free([blob])

    def ended(self, worker: Worker, *, stuck: bool = False) -> list[Action]:
        """A process has ended: it has stopped writing, and its mappings are gone.

        Args:
            worker: Which.
            stuck: It was killed and does not end: what it has mapped, it keeps until it does.
        """
        actions: list[Action] = []
        for blob in self.blobs:
            if not stuck:
                blob.users.discard(worker)
            if worker in blob.waiters:
                blob.waiters.remove(worker)
            if blob.filler == worker:
                actions += self._elect_next(blob)
        self._freed = [blob for blob in self._freed if blob.users]
        return actions + self._drop_outdated()

    # --- what operators ask ----------------------------------------------------------------------------------------

    def free(
        self, name: str, gpu: int | None, version: str | None, *, force: bool
    ) -> tuple[list[ResidentBlob], list[Action]]:
        """Free blobs, all or none; one that is in use keeps its memory until its users have ended.

        Args:
            name: Of the blobs.
            gpu: In whose memory; None for any.
            version: Which; None for any.
            force: Free blobs in use too.

        Raises:
            InvalidRequest: There is no such blob, or one is in use or being filled.
        """
        named = [blob for blob in self._blobs.values() if blob.key.name == name]
        found = [blob for blob in named if gpu in {None, blob.key.gpu} and version in {None, blob.key.version}]
        if not found:
            known = sorted({_named(blob.key) for blob in named or self._blobs.values()})
            raise errors.InvalidRequest(
                f"there is no such resident memory as {name!r}; there is: {', '.join(known) or 'none'}"
            )
        for blob in found:
            if blob.filler is not None:
                raise errors.InvalidRequest(
                    f"resident memory {_named(blob.key)} is being filled by {_workers([blob.filler])}; "
                    f"`atomr-mp restart {blob.filler[0]}` ends that"
                )
            if blob.users and not force:
                raise errors.InvalidRequest(
                    f"resident memory {_named(blob.key)} is in use by {_workers(blob.users)}; with --force it is "
                    "handed to nobody any more, and its memory goes when they have ended"
                )
        return found, self._free(found)

    # --- what follows ----------------------------------------------------------------------------------------------

    def _no_room(self, key: Key, shape: Shape) -> errors.AtomrError | None:
        """Return why there is no room for a new blob."""
        if len(self._blobs) + len(self._freed) >= MAX_BLOBS:
            return errors.OutOfMemory(
                f"no resident memory {_named(key)}: a pool has at most {MAX_BLOBS} pieces, of any number of arrays",
                maybe_executed=False,
                requested_bytes=shape.nbytes,
            )
        if self.max_bytes and self.nbytes + shape.nbytes > self.max_bytes:
            return errors.OutOfMemory(
                f"no {shape.nbytes:,} bytes of resident memory for {_named(key)}: {self.nbytes:,} of "
                f"{self.max_bytes:,} are taken (resident_max_bytes); `atomr-mp resident list` shows by what",
                maybe_executed=False,
                requested_bytes=shape.nbytes,
            )
        return None

    def _elect_next(self, blob: ResidentBlob) -> list[Action]:
        """Elect the process that has waited longest to fill it; forget it if none waits."""
        if not blob.waiters:
            del self._blobs[blob.key]
            return []
        blob.filler = blob.waiters.pop(0)
        return [FillOrder(blob.filler, blob.key)]

    def _drop_outdated(self) -> list[Action]:
        """Free unused memory that has a later, sealed version."""
        latest: dict[tuple[int | None, str], int] = {}
        for key, blob in self._blobs.items():
            latest[key[:2]] = max(latest.get(key[:2], 0), blob.sealed)
        return self._free(
            [blob for key, blob in self._blobs.items() if 0 < blob.sealed < latest[key[:2]] and not blob.users]
        )

    def _free(self, blobs: list[ResidentBlob]) -> list[Action]:
        for blob in blobs:
            del self._blobs[blob.key]
            blob.freed = True
            if blob.users:
                self._freed.append(blob)
        return [Drop(blob.key) for blob in blobs]


def _mismatch(blob: ResidentBlob, shape: Shape) -> errors.ResidentMismatch:
    has = f"{counted(blob.shape.arrays, 'array')} in {blob.shape.nbytes:,} bytes"
    if (blob.shape.arrays, blob.shape.nbytes) == (shape.arrays, shape.nbytes):
        what = f"of as many arrays and bytes ({has}), with other names, shapes or element types than were asked for"
    else:
        what = f"of {has}; asked for were {shape.arrays} in {shape.nbytes:,}"
    return errors.ResidentMismatch(
        f"resident memory {_named(blob.key)} has another layout, {what}. Give the new layout a new version, or free "
        f"the old one: `atomr-mp resident free {blob.key.name}`"
    )


def _named(key: Key) -> str:
    where = "" if key.gpu is None else f" of GPU {key.gpu}"
    return f"{key.name!r} version {key.version!r}{where}"


def _workers(workers: Iterable[Worker]) -> str:
    return ", ".join(f"device {device} generation {generation}" for device, generation in sorted(workers))
