"""Libraries for actors' own code: `Context.libraries`.

The methods and their checks are the same as in `device.blas` and its like. No message is sent: the calling thread does
the request, on its own stream.
"""

from __future__ import annotations

import dataclasses
import importlib
import threading
from typing import TYPE_CHECKING, Any, Final

from atomr_mp import errors
from atomr_mp.protocol import dtypes
from atomr_mp.protocol.libraries import STEPS
from atomr_mp.protocol.refs import Operand
from atomr_mp.protocol.words import did_you_mean
from atomr_mp_workers.device.streams import OneStream
from atomr_mp_workers.libraries import Libraries
from atomr_mp_workers.libraries.method import LibraryMethod
from atomr_mp_workers.memory.arrays import Block, DeviceArray
from atomr_mp_workers.requests.request import Later, Next

if TYPE_CHECKING:
    from atomr_mp.protocol.libraries.base import LibraryRequest
    from atomr_mp_workers.device.base import Stream
    from atomr_mp_workers.libraries.base import LibraryContext


class InProcessLibraries:
    """The libraries for one actor: on its stream, and on the streams of its threads.

    Args:
        context: The context for libraries.
        stream: The stream of the making thread, the loop's; None for a stream of its own.
    """

    def __init__(self, context: LibraryContext, stream: Stream | None) -> None:
        self._context: Final = context
        self._threads: Final = threading.local()
        self._threads.libraries = ThreadLibraries(context, stream or context.device.make_stream("loop", inline_bytes=0))

    @property
    def ranks(self) -> int:
        """How many ranks the actor's world has, 0 outside of worlds: programs may have collectives as steps."""
        return 0 if self._context.world is None else self._context.world.size

    def __getattr__(self, name: str) -> Any:
        if name not in STEPS:
            hint = did_you_mean(name, STEPS)
            raise AttributeError(f"an actor has no library {name!r}{hint}; its libraries are: {', '.join(STEPS)}")
        library = importlib.import_module(f"atomr_mp.libraries.{name}").Reference(self)
        self.__dict__[name] = library
        return library

    def program(self) -> Any:
        """Return a program to record; the thread that calls `run` runs it, and gets the result."""
        from atomr_mp.libraries.program import Program

        return Program(self)

    def operand(self, value: Any) -> Any:
        """Return the operand of an array, by its address: arrays over the same memory share the address.

        Raises:
            InvalidRequest: It is not an array of this device.
        """
        device = self._context.device
        if isinstance(value, DeviceArray):
            found = value.by_address or self._by_address(value)
            found.writable = value.writable
            found.block.attached = value.block.attached
            return found
        if isinstance(value, Operand):  # an operand of a program that is being recorded
            return value
        local = device.to_local(value)
        if local is None:
            kind = "NumPy's, of numbers as this machine has them" if self._context.backend == "host" else "on the GPU"
            raise errors.InvalidRequest(
                f"a {type(value).__name__} is given for an array; here it must be a DeviceArray, or an array {kind}"
            )
        array, layout = local
        dtypes.item_bytes(layout.dtype)
        low, high = layout.span
        part = device.address_space.bytes(array, low, high - low)
        block = Block(
            device.address_space,
            part,
            token=b"",
            device=0,
            buffer=0,
            slab_number=0,
            offset=low,
            nbytes=high - low,
            foreign=False,
        )
        flags = getattr(array, "flags", None)
        plain = array if type(array).__name__ == "ndarray" else None  # views of NumPy's other kinds compute otherwise
        return DeviceArray(block, layout, writable=getattr(flags, "writeable", True), array=plain)

    def given(self, value: Any) -> Any:
        """Return the operand of an input of a program's run: of an array, or of a number as an array.

        Raises:
            InvalidRequest: It is neither.
        """
        import numpy as np

        if isinstance(value, complex | float | int | np.generic):
            value = self._context.device.number(value)
        return self.operand(value)

    def _by_address(self, value: DeviceArray) -> DeviceArray:
        """Return the same array in the address space; it is kept with the array."""
        block = value.block
        by_address = Block(
            self._context.device.address_space,
            block.bytes,
            token=b"",
            device=block.device,
            buffer=0,
            slab_number=0,
            offset=block.memory.address + block.offset,
            nbytes=block.nbytes,
            foreign=block.foreign,
        )
        value.by_address = DeviceArray(by_address, value.layout.at(value.address), writable=value.writable)
        return value.by_address

    def request(self, library: str, request: LibraryRequest, deadline_s: float | None) -> Any:
        """Do a checked request; return its result.

        Raises:
            AtomrError: The request has failed.
        """
        if deadline_s is not None:
            raise errors.InvalidRequest("a request in an actor has no deadline: it is done by the caller")
        return self._here().run(library, request)

    def _here(self) -> ThreadLibraries:
        """Return the libraries of the calling thread."""
        here: ThreadLibraries | None = getattr(self._threads, "libraries", None)
        if here is None:
            stream = self._context.device.thread_stream()
            if stream is None:
                raise errors.InvalidRequest(
                    "libraries can be used in setup and in methods; this thread runs no method, and has no stream: "
                    "make the method one with thread=True"
                )
            here = self._threads.libraries = ThreadLibraries(self._context, stream)
        return here


class ThreadLibraries:
    """The libraries of one thread, all on one stream.

    Args:
        context: The context for libraries.
        stream: The stream.
    """

    def __init__(self, context: LibraryContext, stream: Stream) -> None:
        self._stream: Final = stream
        self._libraries: Final = Libraries(dataclasses.replace(context, streams=OneStream(stream)))
        self._methods: Final[dict[str, LibraryMethod]] = {}

    def prepare(self, library: str, request: LibraryRequest) -> None:
        """Make the plan of a request, if it needs one and there is none yet.

        Raises:
            AtomrError: Making it has failed.
        """
        self._method(f"{library}.{request.name}").prepare_here(request)

    def run(self, library: str, request: LibraryRequest) -> Any:
        """Do a request; wait for the device only if the result, or an error, depends on it."""
        stream, name = self._stream, f"{library}.{request.name}"
        method = self._method(name)
        if not stream.is_current:
            raise errors.InvalidRequest(
                f"{name} would be done on the actor's stream, and another one is current: nothing would order them; "
                "call it outside of `with stream`"
            )
        _check_writable(name, request)
        try:
            result = method.run_here(request)
            while type(result) is Next:
                stream.synchronize()
                result = result.enqueue()
            if type(result) is Later:
                stream.synchronize()
                result = result.read()
        except errors.AtomrError as error:
            method.explained(error)
            raise
        return result

    def _method(self, name: str) -> LibraryMethod:
        method = self._methods.get(name)
        if method is None:
            found = self._libraries.find_here(name)
            assert found is not None
            method = self._methods[name] = found
        return method


def _check_writable(name: str, request: LibraryRequest) -> None:
    """Check that the arrays to write are writable.

    Raises:
        InvalidRequest: An array is an argument that the actor's method only reads.
    """
    for array in request.written():
        if not array.writable:
            argument = next((argument for argument, _, each in request.arrays() if each is array), "an input or a ref")
            raise errors.InvalidRequest(
                f"{name}: {argument} is written, and this array may only be read: name it in `writes` of the actor's "
                "method, or give a copy"
            )
