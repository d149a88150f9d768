"""A worker's side of resident memory: blobs that actors ask for in `setup` are made and filled here, or adopted.

The supervisor decides which process fills a blob, and keeps the descriptor of a sealed one. A blob is one piece of
memory. The places of its arrays follow from their names, shapes and element types, so they are never sent.
"""

from __future__ import annotations

import hashlib
import logging
import operator
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

import msgspec

from atomr_mp import errors
from atomr_mp.protocol import dtypes
from atomr_mp.protocol.layout import MAX_BYTES, Layout
from atomr_mp.protocol.messages import control
from atomr_mp_workers.device.base import Resident, WorkerDevice
from atomr_mp_workers.fault_points import hooks
from atomr_mp_workers.wire.control import ControlChannel

_LOG: Final = logging.getLogger("atomr_mp.worker")

ALIGNMENT: Final = 256
"""Alignment of each array in bytes, as CUDA's own allocations have."""

BLOB_BYTES: Final = 2 * 2**20
"""Unit of a blob's size: a page of a GPU's memory."""

CHUNK_BYTES: Final = 64 * 2**20
"""Bytes that are copied to host memory at a time, for a checksum."""

NAME_CHARS: Final = 200

Arrays = Mapping[str, Any]
"""Arrays by their names."""

Fill = Callable[[Arrays], object]


class ResidentBlobs:
    """The blobs that this process uses.

    Args:
        device: Makes and maps the memory.
        channel: The control channel; no other thread waits on it during `setup`.
    """

    def __init__(self, device: WorkerDevice, channel: ControlChannel) -> None:
        self._device = device
        self._channel = channel
        self._blobs: dict[tuple[str, str], tuple[BlobLayout, Resident, Arrays]] = {}
        """Blobs stay mapped: captured graphs have their addresses, and hold no reference."""
        self._threads: set[int | None] = {threading.get_ident()}
        self._closed = False
        self._filling = ""

    def admit(self, thread: int | None) -> None:
        """Let another thread ask while this one waits for it: the thread of an asynchronous `setup`."""
        self._threads.add(thread)

    def close(self) -> None:
        """Stop handing out memory; arrays handed out before stay."""
        self._closed = True

    def get(
        self,
        name: str,
        layout: Mapping[str, tuple[Sequence[int], Any]],
        version: str,
        fill: Fill,
        *,
        checksum: bool,
    ) -> Arrays:
        """Return the arrays of a blob, see `Context.resident`."""
        self._check(name, version)
        wanted = lay_out(layout)
        known = self._blobs.get((name, version))
        if known is not None:
            if known[0].digest != wanted.digest:
                raise errors.ResidentMismatch(
                    f"resident memory {name!r} version {version!r} was asked for in this process with another layout"
                )
            return known[2]
        self._channel.send(control.ResidentWanted(name, version, wanted.digest, len(wanted.places), wanted.nbytes))
        answer: control.ResidentAnswer = self._channel.answer(control.ResidentAnswer)
        if isinstance(answer, control.ResidentRefused):
            raise answer.error.error()
        if isinstance(answer, control.ResidentAdopt):
            memory = self._adopt(answer, wanted, checksum=checksum)
        else:
            memory = self._fill(name, version, wanted, fill, checksum=checksum)
        arrays = MappingProxyType(wanted.arrays(memory, writable=False))
        self._blobs[name, version] = (wanted, memory, arrays)
        return arrays

    def _check(self, name: str, version: str) -> None:
        _check_text("name", name)
        _check_text("version", version)
        if self._closed or threading.get_ident() not in self._threads:
            raise errors.InvalidRequest(f"resident memory {name!r}: it is asked for in `setup`, and on its thread")
        if self._filling:
            raise errors.InvalidRequest(
                f"resident memory {name!r} is asked for while {self._filling!r} is being filled; ask for it before"
            )

    def _fill(
        self,
        name: str,
        version: str,
        wanted: BlobLayout,
        fill: Fill,
        *,
        checksum: bool,
    ) -> Resident:
        """Make a blob, have it filled, and send the supervisor its descriptor."""
        self._filling = name
        descriptor = -1
        try:
            memory = self._device.make_resident(wanted.nbytes)
            arrays = wanted.arrays(memory, writable=True)
            hooks.point("fill", name)
            fill(MappingProxyType(arrays))
            descriptor = memory.seal()
            import numpy as np

            for array in arrays.values():
                if isinstance(array, np.ndarray):  # a later write to a kept array raises instead of ending the process
                    array.setflags(write=False)
            content = wanted.checksum(memory) if checksum else b""
            self._channel.send(control.ResidentSealed(name, version, content), descriptor)
        except BaseException:
            self._channel.send(control.ResidentAbandoned(name, version))
            raise
        finally:
            self._filling = ""
            if descriptor >= 0:
                os.close(descriptor)
        return memory

    def _adopt(self, answer: control.ResidentAdopt, wanted: BlobLayout, *, checksum: bool) -> Resident:
        """Map a blob that another process has filled."""
        descriptor = self._channel.take_descriptor()
        if descriptor is None:
            raise errors.SetupFailed(
                f"resident memory {answer.name!r} came without its file descriptor: too many are under way or open"
            )
        memory = self._device.open_resident(wanted.nbytes, descriptor)
        if checksum and not answer.checksum:
            _LOG.warning("resident memory %r was sealed without a checksum, and is not compared", answer.name)
        elif checksum and wanted.checksum(memory) != answer.checksum:
            self._channel.send(control.ResidentRejected(answer.name, answer.version))
            raise errors.ResidentCorrupt(
                f"resident memory {answer.name!r} version {answer.version!r} has another checksum than when it was "
                "sealed; the next start fills it anew"
            )
        return memory


@dataclass(frozen=True)
class BlobLayout:
    """The places of a blob's arrays."""

    places: dict[str, Layout]
    """Layouts of the arrays by their names."""
    nbytes: int
    """Size of the blob."""
    digest: bytes
    """A digest that only the same arrays have."""

    def arrays(self, memory: Resident, *, writable: bool) -> dict[str, Any]:
        """Return the arrays, over a blob."""
        whole = memory.bytes(None, 0, self.nbytes)
        return {name: memory.array(whole, layout, writable=writable) for name, layout in self.places.items()}

    def checksum(self, memory: Resident) -> bytes:
        """Return a checksum of a blob's content, gaps between its arrays included."""
        found = hashlib.blake2b(digest_size=16)
        for offset in range(0, self.nbytes, CHUNK_BYTES):
            found.update(memory.content(offset, min(CHUNK_BYTES, self.nbytes - offset)))
        return found.digest()


def lay_out(layout: Mapping[str, tuple[Sequence[int], Any]]) -> BlobLayout:
    """Return the places of arrays in a blob; they do not depend on the order of the arrays.

    Args:
        layout: Shape and element type of each array, by its name.

    Raises:
        InvalidRequest: There are no arrays, or one is impossible.
    """
    if not layout or not all(isinstance(name, str) for name in layout):
        raise errors.InvalidRequest("the layout of resident memory has an array's shape and element type by its name")
    import numpy as np

    places: dict[str, Layout] = {}
    end = 0
    for name, entry in sorted(layout.items()):
        try:
            shape, dtype = entry
            wanted = dtype if isinstance(dtype, str) else dtypes.name_of(np.dtype(dtype))
            place = places[name] = Layout.contiguous(wanted, [operator.index(n) for n in shape], end)
        except (TypeError, ValueError, errors.InvalidRequest) as error:
            raise errors.InvalidRequest(
                f"{name!r} in the layout of resident memory is no pair of a shape and an element type: {error}"
            ) from error
        end = _rounded(end + place.nbytes, ALIGNMENT)
    if end > MAX_BYTES:
        raise errors.InvalidRequest(f"the layout of resident memory has {end} bytes; there can be {MAX_BYTES}")
    described = msgspec.msgpack.encode([(name, place.shape, place.dtype) for name, place in places.items()])
    return BlobLayout(places, _rounded(max(end, 1), BLOB_BYTES), hashlib.blake2b(described, digest_size=16).digest())


def _check_text(what: str, text: object) -> None:
    if not (isinstance(text, str) and 0 < len(text) <= NAME_CHARS):
        raise errors.InvalidRequest(
            f"the {what} of resident memory is a text of 1 to {NAME_CHARS} characters, got {text!r:.300}"
        )


def _rounded(nbytes: int, to: int) -> int:
    return -(-nbytes // to) * to
