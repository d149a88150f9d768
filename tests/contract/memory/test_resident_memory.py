"""Resident memory by itself: how it is laid out, sealed and opened, and what a process and its supervisor say of it."""

from __future__ import annotations

import fcntl
import gc
import mmap
import os
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atomr_mp import errors
from atomr_mp.protocol import dtypes
from atomr_mp.protocol.codec import MAX_SESSION_MESSAGE_BYTES, ErrorInfo
from atomr_mp.protocol.messages import control
from atomr_mp.transport import descriptors
from atomr_mp_workers.device import open_device
from atomr_mp_workers.device.base import Resident
from atomr_mp_workers.device.host_resident import SEALED, HostResident
from atomr_mp_workers.memory.resident.blobs import ALIGNMENT, BLOB_BYTES, ResidentBlobs, lay_out
from atomr_mp_workers.wire.control import ControlChannel
from tests.support import Ledger, open_descriptors

LAYOUT: Final = {"a": ((3, 4), "float32"), "b": ((5,), np.int64)}


def memory_of(kind: str) -> list[str]:
    """Return this process's descriptors ("fd") or mappings ("maps") of resident memory."""
    gc.collect()
    found = open_descriptors().values() if kind == "fd" else Path("/proc/self/maps").read_text().splitlines()
    return [each for each in found if "memfd:atomr-mp-resident" in each]


@pytest.fixture(autouse=True)
def nothing_is_left(ledger: Ledger) -> Iterator[None]:
    """Neither a descriptor nor a mapping."""
    del ledger  # it only counts
    yield
    assert memory_of("fd") == memory_of("maps") == []


# --- where arrays lie ----------------------------------------------------------------------------------------------

SHAPES = st.lists(st.integers(0, 7), max_size=4)
LAYOUTS = st.dictionaries(
    st.text(min_size=1, max_size=5), st.tuples(SHAPES, st.sampled_from(sorted(dtypes.ITEM_BYTES))), min_size=1
)


@given(LAYOUTS, st.randoms())
def test_arrays_lie_beside_each_other(layout: dict[str, Any], random: Any) -> None:
    """Aligned, within the blob, and where they lie does not depend on the order in which they were named."""
    laid = lay_out(layout)
    ends = [0]
    for name, (shape, dtype) in layout.items():
        place = laid.places[name]
        assert (place.shape, place.dtype, place.offset % ALIGNMENT) == (tuple(shape), dtype, 0)
    for place in sorted(laid.places.values(), key=lambda place: (place.offset, place.nbytes)):
        assert place.offset >= ends[-1]
        ends.append(place.offset + place.nbytes)
    assert ends[-1] <= laid.nbytes
    assert laid.nbytes % BLOB_BYTES == 0
    items = list(layout.items())
    random.shuffle(items)
    assert lay_out(dict(items)) == laid


@given(LAYOUTS, LAYOUTS)
def test_other_arrays_have_another_digest(one: dict[str, Any], other: dict[str, Any]) -> None:
    """Equal arrays have the same digest."""
    assert (lay_out(one).digest == lay_out(other).digest) == (one == other)


@pytest.mark.parametrize(
    "layout",
    [
        {},
        {1: ((2,), "float32")},
        {"a": (2, 3)},
        {"a": ((2,),)},
        {"a": ((2,), "float33")},
        {"a": ((2,), object)},
        {"a": ((-1,), "float32")},
        {"a": ((1.5,), "float32")},
        {"a": ((2**60,), "float32")},
        {"a": ((2**46,), "uint8"), "b": ((2**46,), "uint8"), "c": ((1,), "uint8")},
    ],
)
def test_what_is_no_layout_is_refused(layout: Any) -> None:
    """No process was asked for anything."""
    with pytest.raises(errors.InvalidRequest, match="layout of resident memory"):
        lay_out(layout)


# --- memory of the host --------------------------------------------------------------------------------------------


def filled(value: int = 7) -> tuple[Resident, int]:
    """Return sealed memory, and what opens it."""
    made = open_device("host").make_resident(BLOB_BYTES)
    made.bytes(None, 0, BLOB_BYTES)[...] = value
    return made, made.seal()


def test_what_is_sealed_is_read_elsewhere() -> None:
    """It has any size; its descriptor is for reading only."""
    made, descriptor = filled()
    assert fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY
    assert not os.get_inheritable(descriptor)
    opened = open_device("host").open_resident(BLOB_BYTES, descriptor)
    for memory in (made, opened):
        assert (memory.bytes(None, 0, BLOB_BYTES) == 7).all()
        assert bytes(memory.content(5, 3)) == b"\7\7\7"


def test_nobody_can_write_what_is_sealed() -> None:
    """Neither through it nor past it, and it cannot be made writable."""
    _, descriptor = filled()
    assert [line.split()[1] for line in memory_of("maps")] == ["r--s"]
    opened = open_device("host").open_resident(BLOB_BYTES, os.dup(descriptor))
    array = opened.bytes(None, 0, BLOB_BYTES)
    with pytest.raises(ValueError, match="read-only"):
        array[0] = 1
    with pytest.raises(ValueError, match="cannot set WRITEABLE"):
        array.setflags(write=True)
    writing = os.open(f"/proc/self/fd/{descriptor}", os.O_RDWR)
    for try_it in (lambda: os.pwrite(writing, b"x", 0), lambda: os.ftruncate(writing, 0)):
        with pytest.raises(PermissionError):
            try_it()
    os.close(writing)
    os.close(descriptor)
    assert array[0] == 7


def test_what_somebody_can_write_is_not_sealed() -> None:
    """A child that `fill` has forked and left behind keeps it writable; it is sealed once that has gone."""
    made = HostResident.make(BLOB_BYTES)
    with mmap.mmap(made._writing, BLOB_BYTES), pytest.raises(errors.SetupFailed, match="cannot be sealed"):
        made.seal()
    os.close(made.seal())


def unsealed(nbytes: int, seals: int) -> int:
    """Return a memfd."""
    descriptor = os.memfd_create("atomr-mp-test", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, nbytes)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
    return descriptor


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda: unsealed(BLOB_BYTES, 0), id="not sealed"),
        pytest.param(lambda: unsealed(BLOB_BYTES, SEALED & ~fcntl.F_SEAL_WRITE), id="may be written"),
        pytest.param(lambda: unsealed(BLOB_BYTES, SEALED & ~fcntl.F_SEAL_SHRINK), id="may shrink"),
        pytest.param(lambda: unsealed(BLOB_BYTES - 1, SEALED), id="too small"),
        pytest.param(lambda: os.open("/dev/zero", os.O_RDONLY), id="a device"),
    ],
)
def test_what_is_not_sealed_is_refused_and_closed(make: Callable[[], int]) -> None:
    """It is not mapped."""
    descriptor = make()
    with pytest.raises(errors.InvalidRequest, match=f"{BLOB_BYTES} bytes"):
        open_device("host").open_resident(BLOB_BYTES, descriptor)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)


def test_there_is_not_any_amount_of_it() -> None:
    """It is lack of memory, typed."""
    with pytest.raises(errors.OutOfMemory) as raised:
        open_device("host").make_resident(2**62)
    assert raised.value.requested_bytes == 2**62


# --- a process and its supervisor ----------------------------------------------------------------------------------


class Conversation:
    """A process's end, and a supervisor that has its answers ready."""

    def __init__(self) -> None:
        self._ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.channel: Final = ControlChannel(theirs.detach())
        self.residents: Final = ResidentBlobs(open_device("host"), self.channel)
        self.filled: list[Mapping[str, Any]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.channel.close()
        self._ours.close()

    def tell(self, message: control.FromSupervisor, descriptor: int | None = None) -> None:
        """Send an answer; the descriptor is owned from here on."""
        descriptors.send(self._ours, control.FROM_SUPERVISOR.encode(message), descriptor)
        if descriptor is not None:
            os.close(descriptor)

    def hear(self) -> tuple[control.FromWorker, int | None]:
        """Return what was said, and the descriptor that came with it."""
        packet, descriptor = descriptors.receive(self._ours, MAX_SESSION_MESSAGE_BYTES, socket.MSG_DONTWAIT)
        return control.FROM_WORKER.decode(packet), None if descriptor is None else descriptor.detach()

    def get(self, layout: Any = LAYOUT, fill: Any = None, *, checksum: bool = False) -> Mapping[str, Any]:
        """Ask for the arrays."""
        return self.residents.get("weights", layout, "1", fill or self.fill, checksum=checksum)

    def fill(self, arrays: Mapping[str, Any]) -> None:
        """Fill them."""
        self.filled.append(arrays)
        arrays["a"][...] = 1.5
        arrays["b"][...] = range(5)


def test_who_is_to_fill_fills_seals_and_hands_it_over() -> None:
    """Afterwards it has the same as the others, and cannot write the arrays that it was given to fill."""
    laid = lay_out(LAYOUT)
    with Conversation() as there:
        there.tell(control.ResidentFill("weights", "1"))
        arrays = there.get(checksum=True)
        assert there.hear()[0] == control.ResidentWanted("weights", "1", laid.digest, 2, laid.nbytes)
        sealed, descriptor = there.hear()
        assert isinstance(sealed, control.ResidentSealed)
        assert descriptor is not None
        assert arrays["b"].tolist() == [0, 1, 2, 3, 4]
        for each in (arrays["a"], there.filled[0]["a"]):
            assert (each == 1.5).all()
            with pytest.raises(ValueError, match="read-only"):
                each[0] = 0
        with Conversation() as other:
            other.tell(control.ResidentAdopt("weights", "1", sealed.checksum), descriptor)
            adopted = other.get(checksum=True)
            assert {name: array.tolist() for name, array in adopted.items()} == {
                name: array.tolist() for name, array in arrays.items()
            }
            assert not other.filled
            del adopted
        del arrays, each


def test_what_was_asked_for_is_not_asked_for_again() -> None:
    """Actors of one process have it in common, and cannot have it in two layouts."""
    with Conversation() as there:
        there.tell(control.ResidentFill("weights", "1"))
        assert there.get() is there.get()
        with pytest.raises(errors.ResidentMismatch):
            there.get({"a": ((1,), "float32")})
        assert len(there.filled) == 1


def test_another_content_is_refused_and_reported() -> None:
    """The sealed memory had another checksum."""
    _, descriptor = filled()
    with Conversation() as there:
        there.tell(control.ResidentAdopt("weights", "1", b"another"), descriptor)
        with pytest.raises(errors.ResidentCorrupt):
            there.get(checksum=True)
        there.hear()
        assert there.hear() == (control.ResidentRejected("weights", "1"), None)


def test_what_has_no_checksum_is_taken_as_it_is() -> None:
    """A process that asks for no checksum takes memory with one, too."""
    for had, asked in ((b"", True), (b"another", False)):
        _, descriptor = filled()
        with Conversation() as there:
            there.tell(control.ResidentAdopt("weights", "1", had), descriptor)
            assert there.get(checksum=asked)["b"].tolist() == [0x0707070707070707] * 5


@pytest.mark.parametrize("error", [ValueError("no such file"), SystemExit(3)])
def test_who_cannot_fill_says_so(error: BaseException) -> None:
    """It may be asked again: nothing is kept."""

    def fail(_arrays: Mapping[str, Any]) -> None:
        raise error

    with Conversation() as there:
        there.tell(control.ResidentFill("weights", "1"))
        with pytest.raises(type(error)):
            there.get(fill=fail)
        there.hear()
        assert there.hear() == (control.ResidentAbandoned("weights", "1"), None)
        there.tell(control.ResidentFill("weights", "1"))
        assert there.get()["a"].shape == (3, 4)
    error.__traceback__ = None


def test_an_entry_is_written_and_not_replaced() -> None:
    """`arrays["a"] = ...` would fill nothing, so it is an error."""

    def replace(arrays: Any) -> None:
        arrays["a"] = np.zeros((3, 4))

    with Conversation() as there:
        there.tell(control.ResidentFill("weights", "1"))
        with pytest.raises(TypeError, match="does not support item assignment"):
            there.get(fill=replace)


def test_a_refusal_is_raised_as_it_was_meant() -> None:
    """Its class is that of the answer."""
    with Conversation() as there:
        there.tell(control.ResidentRefused("weights", "1", ErrorInfo.of(errors.ResidentMismatch("another layout"))))
        with pytest.raises(errors.ResidentMismatch, match="another layout"):
            there.get()


def test_an_answer_without_its_descriptor_is_an_error() -> None:
    """The kernel had no room for it."""
    with Conversation() as there:
        there.tell(control.ResidentAdopt("weights", "1", b""))
        with pytest.raises(errors.SetupFailed, match="without its file descriptor"):
            there.get()


def test_it_is_asked_for_by_setup_alone() -> None:
    """Fillers, other threads and later calls may not ask; names must be ones that can be sent."""
    with Conversation() as there:
        there.tell(control.ResidentFill("weights", "1"))
        with pytest.raises(errors.InvalidRequest, match="while 'weights' is being filled"):
            there.get(fill=lambda _arrays: there.residents.get("more", LAYOUT, "1", there.fill, checksum=False))
        raised: list[BaseException] = []

        def ask() -> None:
            try:
                there.get()
            except errors.InvalidRequest as error:
                raised.append(error)

        thread = threading.Thread(target=ask)
        thread.start()
        thread.join()
        assert "in `setup`, and on its thread" in str(raised.pop())
        names: list[Any] = ["", "x" * 201, None]
        for name in names:
            with pytest.raises(errors.InvalidRequest, match="a text of 1 to 200 characters"):
                there.residents.get(name, LAYOUT, "1", there.fill, checksum=False)
            with pytest.raises(errors.InvalidRequest, match="a text of 1 to 200 characters"):
                there.residents.get("weights", LAYOUT, name, there.fill, checksum=False)
        there.residents.close()
        with pytest.raises(errors.InvalidRequest, match="in `setup`"):
            there.get()
