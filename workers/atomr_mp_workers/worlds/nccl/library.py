"""EDGE: the functions of NCCL's library that worlds use, by ctypes.

Addresses, streams and communicators are numbers. All functions return a status; none raises but for a missing library.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import os
from collections.abc import Sequence
from enum import IntEnum
from pathlib import Path
from typing import Any, Final, Protocol

from atomr_mp import errors

ID_BYTES: Final = 128
"""Length of a unique id."""

SUCCESS: Final = 0
IN_PROGRESS: Final = 7
"""The status of a call that goes on; `Nccl.state` says when it has ended."""

TYPES: Final = {
    "int8": 0,
    "uint8": 1,
    "int32": 2,
    "uint32": 3,
    "int64": 4,
    "uint64": 5,
    "float16": 6,
    "float32": 7,
    "float64": 8,
    "bfloat16": 9,
}
"""NCCL's numbers of the element types that it computes (`ncclDataType_t`)."""

BYTES: Final = TYPES["int8"]
"""The type of elements that are only moved."""

NCCL_OPERATORS: Final = {"sum": 0, "prod": 1, "max": 2, "min": 3}
"""NCCL's numbers of operators (`ncclRedOp_t`)."""

ENVIRONMENT: Final = {"NCCL_SOCKET_IFNAME": "=lo", "NCCL_RUNTIME_CONNECT": "0", "NCCL_NVLS_ENABLE": "0"}
"""Variables that are set before the library is loaded, where the user has not: all ranks are on this machine, ranks
connect while a communicator forms and not with its first use, and no multicast of the switch's is held that a killed
rank could leave there."""

_UNDEFINED: Final = -(2**31)
_MAGIC: Final = 0xCAFEBEEF
_CONFIG_VERSION: Final = 22809
"""The version of NCCL whose configuration `_Config` is. Newer ones take it; older ones take its first fields."""

Piece = tuple[int, int, int]
"""Another rank, an address, and a number of bytes that go there or come from there."""


class NcclStatus(IntEnum):
    """NCCL's statuses (`ncclResult_t`)."""

    NCCL_SUCCESS = SUCCESS
    NCCL_UNHANDLED_CUDA_ERROR = 1
    NCCL_SYSTEM_ERROR = 2
    NCCL_INTERNAL_ERROR = 3
    NCCL_INVALID_ARGUMENT = 4
    NCCL_INVALID_USAGE = 5
    NCCL_REMOTE_ERROR = 6
    NCCL_IN_PROGRESS = IN_PROGRESS


class Nccl(Protocol):
    """The library, or what stands for it in tests."""

    def unique_id(self) -> tuple[int, bytes]:
        """Return a status, and the id by which the ranks of a new communicator find each other."""

    def init(self, identity: bytes, size: int, rank: int, /) -> tuple[int, int]:
        """Begin to form a communicator; return a status, and its handle, 0 if there is none. Does not wait."""

    def state(self, comm: int, /) -> int:
        """Return the status of the latest call."""

    def abort(self, comm: int, /) -> int:
        """End all that runs there, and the communicator. Takes half a second; other ranks have no part in it."""

    def all_reduce(self, x: int, y: int, count: int, dtype: int, operator: int, comm: int, stream: int, /) -> int:
        """Reduce elements to all ranks."""

    def reduce(
        self, x: int, y: int, count: int, dtype: int, operator: int, root: int, comm: int, stream: int, /
    ) -> int:
        """Reduce elements to one rank."""

    def reduce_scatter(self, x: int, y: int, count: int, dtype: int, operator: int, comm: int, stream: int, /) -> int:
        """Reduce, and give each rank so many elements."""

    def all_gather(self, x: int, y: int, nbytes: int, comm: int, stream: int, /) -> int:
        """Give all ranks' bytes to all, so many of each."""

    def broadcast(self, x: int, y: int, nbytes: int, root: int, comm: int, stream: int, /) -> int:
        """Give one rank's bytes to all."""

    def exchange(self, sent: Sequence[Piece], received: Sequence[Piece], comm: int, stream: int, /) -> int:
        """Send bytes to ranks and receive bytes from ranks, all at once."""


class _Config(ctypes.Structure):
    _fields_ = (
        ("size", ctypes.c_size_t),
        ("magic", ctypes.c_uint),
        ("version", ctypes.c_uint),
        ("blocking", ctypes.c_int),
        ("cgaClusterSize", ctypes.c_int),
        ("minCTAs", ctypes.c_int),
        ("maxCTAs", ctypes.c_int),
        ("netName", ctypes.c_char_p),
        ("splitShare", ctypes.c_int),
        ("trafficClass", ctypes.c_int),
        ("commName", ctypes.c_char_p),
        ("collnetEnable", ctypes.c_int),
        ("CTAPolicy", ctypes.c_int),
        ("shrinkShare", ctypes.c_int),
        ("nvlsCTAs", ctypes.c_int),
        ("nChannelsPerNetPeer", ctypes.c_int),
        ("nvlinkCentricSched", ctypes.c_int),
    )


class _UniqueId(ctypes.Structure):
    _fields_ = (("bytes", ctypes.c_ubyte * ID_BYTES),)


_SIZE = ctypes.c_size_t
_INT = ctypes.c_int
_PLACE = ctypes.c_void_p

_ARGUMENTS: Final[dict[str, tuple[Any, ...]]] = {
    "ncclGetVersion": (ctypes.POINTER(_INT),),
    "ncclGetUniqueId": (ctypes.POINTER(_UniqueId),),
    "ncclCommInitRankConfig": (ctypes.POINTER(_PLACE), _INT, _UniqueId, _INT, ctypes.POINTER(_Config)),
    "ncclCommGetAsyncError": (_PLACE, ctypes.POINTER(_INT)),
    "ncclCommAbort": (_PLACE,),
    "ncclAllReduce": (_PLACE, _PLACE, _SIZE, _INT, _INT, _PLACE, _PLACE),
    "ncclReduce": (_PLACE, _PLACE, _SIZE, _INT, _INT, _INT, _PLACE, _PLACE),
    "ncclReduceScatter": (_PLACE, _PLACE, _SIZE, _INT, _INT, _PLACE, _PLACE),
    "ncclAllGather": (_PLACE, _PLACE, _SIZE, _INT, _PLACE, _PLACE),
    "ncclBroadcast": (_PLACE, _PLACE, _SIZE, _INT, _INT, _PLACE, _PLACE),
    "ncclSend": (_PLACE, _SIZE, _INT, _INT, _PLACE, _PLACE),
    "ncclRecv": (_PLACE, _SIZE, _INT, _INT, _PLACE, _PLACE),
    "ncclGroupStart": (),
    "ncclGroupEnd": (),
}
"""The functions, each of which returns a status, with the types of their arguments."""


class NcclLibrary:
    """NCCL's library, loaded.

    Args:
        path: Its file.

    Raises:
        OSError: It cannot be loaded.
        AttributeError: It lacks a function.
    """

    def __init__(self, path: str) -> None:
        loaded = ctypes.CDLL(path)
        for name, arguments in _ARGUMENTS.items():
            function = getattr(loaded, name)
            function.argtypes, function.restype = arguments, _INT
        self._all: Final[Any] = loaded
        version = _INT(0)
        loaded.ncclGetVersion(ctypes.byref(version))
        self.version: Final = version.value
        """2.28.9 is 22809."""

    def unique_id(self) -> tuple[int, bytes]:
        """Return a status, and a new unique id."""
        made = _UniqueId()
        status = self._all.ncclGetUniqueId(ctypes.byref(made))
        return status, bytes(made.bytes)

    def init(self, identity: bytes, size: int, rank: int) -> tuple[int, int]:
        """Begin to form a communicator."""
        config, comm = _Config(), _PLACE(None)
        for name, kind in _Config._fields_[3:]:
            setattr(config, name, None if kind is ctypes.c_char_p else _UNDEFINED)
        config.size, config.magic = ctypes.sizeof(_Config), _MAGIC
        config.version, config.blocking = min(self.version, _CONFIG_VERSION), 0
        given = _UniqueId.from_buffer_copy(identity)
        status = self._all.ncclCommInitRankConfig(ctypes.byref(comm), size, given, rank, ctypes.byref(config))
        return status, comm.value or 0

    def state(self, comm: int) -> int:
        """Return the status of the latest call."""
        found = _INT(SUCCESS)
        status: int = self._all.ncclCommGetAsyncError(comm, ctypes.byref(found))
        return status or found.value

    def abort(self, comm: int) -> int:
        """End a communicator."""
        return int(self._all.ncclCommAbort(comm))

    def all_reduce(self, x: int, y: int, count: int, dtype: int, operator: int, comm: int, stream: int) -> int:
        """Reduce elements to all ranks."""
        return int(self._all.ncclAllReduce(x, y, count, dtype, operator, comm, stream))

    def reduce(self, x: int, y: int, count: int, dtype: int, operator: int, root: int, comm: int, stream: int) -> int:
        """Reduce elements to one rank."""
        return int(self._all.ncclReduce(x, y, count, dtype, operator, root, comm, stream))

    def reduce_scatter(self, x: int, y: int, count: int, dtype: int, operator: int, comm: int, stream: int) -> int:
        """Reduce, and give each rank so many elements."""
        return int(self._all.ncclReduceScatter(x, y, count, dtype, operator, comm, stream))

    def all_gather(self, x: int, y: int, nbytes: int, comm: int, stream: int) -> int:
        """Give all ranks' bytes to all."""
        return int(self._all.ncclAllGather(x, y, nbytes, BYTES, comm, stream))

    def broadcast(self, x: int, y: int, nbytes: int, root: int, comm: int, stream: int) -> int:
        """Give one rank's bytes to all."""
        return int(self._all.ncclBroadcast(x, y, nbytes, BYTES, root, comm, stream))

    def exchange(self, sent: Sequence[Piece], received: Sequence[Piece], comm: int, stream: int) -> int:
        """Send and receive bytes, all at once."""
        found = self._all.ncclGroupStart()
        if found:
            return int(found)
        statuses = [self._all.ncclSend(at, nbytes, BYTES, rank, comm, stream) for rank, at, nbytes in sent]
        statuses += [self._all.ncclRecv(at, nbytes, BYTES, rank, comm, stream) for rank, at, nbytes in received]
        statuses.append(self._all.ncclGroupEnd())  # in any case, else all further calls are of the group
        return next((each for each in statuses if each not in {SUCCESS, IN_PROGRESS}), int(statuses[-1]))


@functools.cache
def load() -> NcclLibrary:
    """Return the library of this process: that of NVIDIA's wheel, else the system's.

    Raises:
        Unsupported: There is none, or it is too old.
    """
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    found = next((each for place in _wheels() for each in sorted(Path(place, "lib").glob("libnccl.so*"))), None)
    try:
        return NcclLibrary(str(found or "libnccl.so.2"))
    except (OSError, AttributeError) as error:
        raise errors.Unsupported(
            f"the engine nccl of worlds needs NCCL's library, which cannot be loaded: {error}; install it with the "
            'extra of your CUDA version: pip install "atomr-mp[cuda13]" or "atomr-mp[cuda12]"'
        ) from error


def failed(status: int, what: str) -> errors.LibraryError:
    """Return the error of a call of NCCL that has failed.

    Args:
        status: What it has returned.
        what: What it was to do.
    """
    name = NcclStatus(status).name if status in set(NcclStatus) else str(status)
    text = f"NCCL could not {what}: {name} (NCCL_DEBUG=WARN in the environment has the worker's log say more)"
    return errors.LibraryError(text, library="nccl", status=status, name=name)


def _wheels() -> Sequence[str]:
    try:
        found = importlib.util.find_spec("nvidia.nccl")
    except ModuleNotFoundError:  # there is nothing of NVIDIA
        return ()
    return () if found is None else tuple(found.submodule_search_locations or ())
