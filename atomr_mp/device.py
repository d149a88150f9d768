"""A device of a pool: buffers in its memory, and its libraries."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, SupportsIndex, cast

from atomr_mp import errors
from atomr_mp.client import interrupts
from atomr_mp.libraries import base as libraries
from atomr_mp.protocol import amounts, dtypes
from atomr_mp.protocol.keywords import checks_names
from atomr_mp.protocol.layout import MAX_BYTES
from atomr_mp.protocol.libraries import LIBRARIES, memory
from atomr_mp.protocol.libraries.base import to_scalar
from atomr_mp.protocol.pickling import CONNECT, refusal
from atomr_mp.protocol.words import did_you_mean

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import DTypeLike

    from atomr_mp.client.client import Client
    from atomr_mp.client.memory.refs import GpuRef
    from atomr_mp.client.programs import KnownPrograms
    from atomr_mp.client.reply import Reply
    from atomr_mp.libraries.program import Program
    from atomr_mp.protocol.libraries.base import LibraryRequest
    from atomr_mp.protocol.libraries.program import RunProgram
    from atomr_mp.protocol.messages.devices import DeviceInfo

DEFAULT_DEADLINE_S: Final = 60.0
"""Deadline of requests for which neither the caller nor the actor's author has said anything."""


@checks_names
class Device:
    """A device of a pool, through all its incarnations. Made by `Pool.device`. Thread-safe.

    Its libraries are attributes: `device.blas.gemm(...)` makes a request and returns a `Reply`, as `Pool.call` does.
    The other methods block, in an event loop too; there, use `asyncio.to_thread` if that matters.

    Args:
        client: The session.
        index: The device's index in the pool.
    """

    _programs: KnownPrograms | None = None
    """The programs that its worker knows."""

    def __init__(self, client: Client, index: int) -> None:
        self._client: Final = client
        self.index: Final = index

    __reduce__ = refusal(CONNECT, "its `index`")

    def __repr__(self) -> str:
        info = self._info
        return (
            f"<Device {self.index} ({info.name}) of pool {self._client.pool}: {info.state.value}, "
            f"generation {info.generation}>"
        )

    @property
    def uuid(self) -> str:
        """The GPU's UUID, as `nvidia-smi -L` shows it; empty on the host backend."""
        return self._info.uuid

    @property
    def _info(self) -> DeviceInfo:
        """The device, as the supervisor last reported it."""
        self._client.read_session()
        return self._client.devices[self.index]

    def put(self, array: Any) -> GpuRef:
        """Copy an array to the device.

        Args:
            array: A NumPy array of any strides, or a value that NumPy converts to one. The copy is row-major and
                without gaps.

        Raises:
            InvalidRequest: Its element type cannot be on a device.
            OutOfMemory: There is no room.
        """
        content = _as_array(array)
        return self._client.memory.put(content, dtypes.name_for(content.dtype), self.index)

    def empty(self, shape: int | Sequence[int], dtype: DTypeLike = "float32") -> GpuRef:
        """Make a buffer of undefined content.

        Args:
            shape: Lengths of the dimensions.
            dtype: Name of the element type, or NumPy's or ml_dtypes' type.

        Raises:
            InvalidRequest: The shape or the element type is impossible.
            OutOfMemory: There is no room.
        """
        request = memory.Empty(lengths(shape), dtypes.name_for(dtype))
        return self._client.memory.request(request, self.index)  # type: ignore[no-any-return]

    def zeros(self, shape: int | Sequence[int], dtype: DTypeLike = "float32") -> GpuRef:
        """Make a buffer of zeros; see `empty`."""
        return self.full(shape, 0, dtype)

    def ones(self, shape: int | Sequence[int], dtype: DTypeLike = "float32") -> GpuRef:
        """Make a buffer of ones; see `empty`."""
        return self.full(shape, 1, dtype)

    def full(self, shape: int | Sequence[int], value: complex, dtype: DTypeLike = "float32") -> GpuRef:
        """Make a buffer filled with a value, of bool with True for all but 0, as in NumPy; see `empty`."""
        name = dtypes.name_for(dtype)
        request = memory.Full(lengths(shape), name, dtypes.sendable(name, to_scalar(value)))
        return self._client.memory.request(request, self.index)  # type: ignore[no-any-return]

    def arange(
        self, start: float, stop: float | None = None, step: float = 1, dtype: DTypeLike | None = None
    ) -> GpuRef:
        """Make a buffer of numbers at equal distances, as `numpy.arange` does: this process makes and copies them.

        Args:
            start: The first number; the end, if it stands alone, and then the first number is 0.
            stop: The end, which is not among them.
            step: The distance.
            dtype: The element type; NumPy's choice if left out: int64, or float64 for numbers with a point.

        Raises:
            InvalidRequest: It is no such sequence, or the element type cannot be on a device.
            OutOfMemory: There is no room.
        """
        import numpy as np

        wanted: Any = None if dtype is None else dtypes.to_numpy(dtypes.name_for(dtype))
        first, end = (0, start) if stop is None else (start, stop)
        for name, value in (("start", first), ("stop", end), ("step", step)):
            if amounts.is_truth(value):
                raise errors.InvalidRequest(f"{name} is {value!r}; it must be a number, and a truth value is none")
            to_scalar(value, name)
        try:
            numbers = np.arange(first, end, step, dtype=wanted)
        except (TypeError, ValueError, ZeroDivisionError, OverflowError, MemoryError) as error:
            raise errors.InvalidRequest(
                f"no sequence from {first!r} to {end!r} in steps of {step!r}: {error}"
            ) from error
        return self.put(numbers)

    def statistics(self) -> dict[str, int]:
        """Return figures of the device's memory; bytes where a name ends in `_bytes`."""
        return self._client.memory.request(memory.Statistics(), self.index)  # type: ignore[no-any-return]

    def request(
        self, library: str, request: LibraryRequest, deadline_s: float | None = None, *, blocking: bool = False
    ) -> Reply:
        """Send a checked request of a library; `device.blas` and the like are made of it.

        Without room in the window of unanswered requests it waits in this process, in threads as in event loops, and
        this method returns at once. As many wait as `max_waiting` says, see `atomr_mp.connect`.

        Args:
            library: The library's name.
            request: The request.
            deadline_s: As for `Pool.call`.
            blocking: Allow waiting for its result in an event loop's thread too.
        """
        program = None
        if library == "program":
            programs = self._programs or self._make_programs()
            request, program = programs.shortened(cast("RunProgram", request), self._generation)
        return self._client.submit(
            f"{library}.{request.name}",
            request,
            device=self.index,
            deadline_s=amounts.deadline(deadline_s, DEFAULT_DEADLINE_S),
            blocking=blocking,
            program=program,
            backlog=True,
        )

    @property
    def _generation(self) -> int:
        return self._client.devices[self.index].generation

    @interrupts.defer_interrupts
    def _make_programs(self) -> KnownPrograms:
        from atomr_mp.client.programs import KnownPrograms  # late: few devices run programs

        made: KnownPrograms = self.__dict__.setdefault("_programs", KnownPrograms())  # for all threads the same
        return made

    def program(self) -> Program:
        """Return a program to record: many requests that are sent and run as one, see `atomr_mp.libraries.program`."""
        from atomr_mp.libraries.program import Program

        return Program(self)

    def __getattr__(self, name: str) -> Any:
        if name not in LIBRARIES:
            hint = did_you_mean(name, LIBRARIES)
            raise AttributeError(f"a device has no {name!r}{hint}; its libraries are: {', '.join(LIBRARIES)}")
        module = importlib.import_module(f"atomr_mp.libraries.{name}")
        library = module.Reference(self)
        # Found here from now on, without this function.
        self.__dict__[name] = library
        return library


def _as_array(value: Any) -> np.ndarray[Any, Any]:
    """Return a value as an array of numbers.

    Raises:
        InvalidRequest: The value is not one.
    """
    import numpy as np

    if hasattr(value, "mask") and isinstance(value, np.ndarray):
        raise errors.InvalidRequest("a masked array cannot be put: its mask would be lost; put `filled()`, or both")
    try:
        only_dlpack = hasattr(value, "__dlpack__") and not hasattr(value, "__array__")
        return np.from_dlpack(value) if only_dlpack else np.asarray(value)
    except (TypeError, ValueError, BufferError, RuntimeError) as error:
        raise errors.InvalidRequest(f"no array of numbers can be made of a {type(value).__name__}: {error}") from error


def lengths(shape: SupportsIndex | Sequence[SupportsIndex]) -> list[int]:
    """Return a shape as the lengths of its dimensions.

    Raises:
        InvalidRequest: It is neither a whole number nor a sequence of them.
    """
    return [amounts.whole("shape", n, 0, MAX_BYTES) for n in libraries.lengths("shape", shape)]
