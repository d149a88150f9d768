"""Makes the arguments of a call with an example, in the forms in which a client's arrive. Only with the loop's turn."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from atomr_mp import errors
from atomr_mp.protocol import dtypes, foreign, values
from atomr_mp.protocol.allocation import Space, aligned, slab_bytes_for
from atomr_mp.protocol.exceptions import describe, traceback_of
from atomr_mp.protocol.flow.limits import CLIENT_SLAB_BYTES, MAX_PAYLOAD_BYTES
from atomr_mp.protocol.layout import Layout
from atomr_mp.protocol.refs import ClientArray
from atomr_mp_workers import own_process
from atomr_mp_workers.loaded_method import LoadedMethod
from atomr_mp_workers.memory.arrays import DeviceArray
from atomr_mp_workers.memory.blocks import Holder
from atomr_mp_workers.memory.store import Store

if TYPE_CHECKING:
    from atomr_mp_workers.device.host_memory import HostSlab


class ExampleArguments:
    """Makes the arguments of one call after the other; those of the last keep their memory until the next.

    A large array lies in a memfd that is opened as a client's is, so that methods get all arguments as from a client.

    Args:
        holder: Holds their memory.
        store: The device's memory.
    """

    def __init__(self, holder: Holder, store: Store) -> None:
        self._holder = holder
        self._store = store
        self._leases: list[int] = []
        self._slabs: list[_Slab] = []
        self._uses = itertools.count(1)

    def make(self, method: LoadedMethod) -> tuple[bytes, Sequence[bytes], int]:
        """Return a call's arguments as they are sent: body, frames, and how many refs there are among them.

        Raises:
            SetupFailed: The example raises.
            ActorLoadFailed: It returns no arguments.
            AtomrError: What it returns cannot be sent.
        """
        self._give_back()
        arguments = self._returned(method)
        given: list[Any] = []
        self._run(method, lambda: given.append(self._with_refs(method, arguments)))
        body, frames, placed = values.encode(given[0], self._place)
        refs = [each for each in placed if isinstance(each, DeviceArray)]
        self._leases = [self._store.lease(self._holder, each) for each in refs]
        self._slabs.clear()  # unmaps them where they could be written
        return body, frames, len(refs)

    def _give_back(self) -> None:
        """Give back the memory of the last call's arguments."""
        self._store.release(self._holder, self._leases, (), ())
        for number in list(self._holder.client_slabs):
            self._store.forget_client_slab(self._holder.number, number)

    def _returned(self, method: LoadedMethod) -> tuple[Any, ...] | Mapping[str, Any]:
        """Call the example of a method, and return the arguments."""
        assert method.example is not None
        example = method.example
        returned: list[Any] = []
        try:
            self._run(method, lambda: returned.append(example()))
            own_process.check()
        except BaseException as raised:
            own_process.check()
            text = f"the example of {method.name} raised {describe(raised)}"
            raise errors.SetupFailed(text, traceback_text=traceback_of(raised)) from raised
        arguments = returned[0]
        if not isinstance(arguments, tuple | Mapping):
            raise errors.ActorLoadFailed(
                f"the example of {method.name} returned a value of type {type(arguments).__name__}; it returns a tuple "
                "of arguments, as `(x,)`, or a map with their names"
            )
        return arguments

    def _run(self, method: LoadedMethod, function: Callable[[], None]) -> None:
        """Call a function and wait for its work on the device, which the method's stream would not wait for."""
        if method.stream is None:
            self._store.device.on_thread(function)
        else:
            method.stream.run(function)

    def _with_refs(
        self, method: LoadedMethod, arguments: tuple[Any, ...] | Mapping[str, Any]
    ) -> tuple[Any, ...] | dict[str, Any]:
        """Return arguments with refs in the place of arrays, for the parameters that take only refs."""
        if isinstance(arguments, Mapping):
            return {name: self._ref(each) if name in method.by_ref else each for name, each in arguments.items()}
        names = itertools.chain(method.info.parameters, itertools.repeat(""))
        return tuple(
            self._ref(each) if name in method.by_ref else each for name, each in zip(names, arguments, strict=False)
        )

    def _ref(self, value: Any) -> Any:
        """Return a copy of an array on this device, as from `Device.put`; anything else as it is."""
        if isinstance(value, DeviceArray):
            return value
        ours = self._store.device.to_array(value)
        array = foreign.plain(value) if ours is None else ours[0]
        is_array = ours is not None or (hasattr(array, "__array_interface__") and not hasattr(array, "mask"))
        return self._store.buffers.keep(self._holder, array) if is_array else value

    def _place(self, array: Any) -> _Placed | None:
        """Copy an array of the host into memory that is opened as a client's; None if it has to travel otherwise.

        Raises:
            InvalidRequest: The arrays take more than those of calls may.
            OutOfMemory: There is no such memory.
        """
        if hasattr(array, "__cuda_array_interface__"):
            return None
        layout = Layout.contiguous(dtypes.name_of(array.dtype), array.shape)
        found = self._room(layout.nbytes)
        if found is None:
            return None
        slab, offset = found
        target = slab.memory.array(slab.memory.bytes(None, offset, layout.nbytes), layout, writable=True)
        target[...] = array
        return _Placed(ClientArray(next(self._uses), slab.number, layout.dtype, layout.shape, offset))

    def _room(self, nbytes: int) -> tuple[_Slab, int] | None:
        """Return room for an array, None if it fits into a message and a client would have no room for it."""
        for slab in self._slabs:
            offset = slab.space.take(nbytes)
            if offset is not None:
                return slab, offset
        size, taken = slab_bytes_for(aligned(nbytes)), sum(each.memory.nbytes for each in self._slabs)
        if taken + size <= CLIENT_SLAB_BYTES:
            slab = self._make_slab(len(self._slabs) + 1, size)
            self._slabs.append(slab)
            offset = slab.space.take(nbytes)
            assert offset is not None
            return slab, offset
        if nbytes <= MAX_PAYLOAD_BYTES:
            return None
        raise errors.InvalidRequest(
            f"an array of {nbytes} bytes, beside others of {taken} bytes; the arrays of a client's calls may take "
            f"{CLIENT_SLAB_BYTES} in all"
        )

    def _make_slab(self, number: int, nbytes: int) -> _Slab:
        """Make a slab, and open it as one of the client."""
        from atomr_mp_workers.device.host_memory import HostSlab  # needs NumPy, which this array has imported

        device = self._store.device
        memory = HostSlab(nbytes, device.host.slab_name)
        descriptor = memory.export().descriptor
        assert descriptor is not None
        opened = device.open_client_slab(nbytes, os.dup(descriptor))
        self._store.add_client_slab(self._holder.number, number, opened)
        return _Slab(number, memory, Space(nbytes))


class _Slab(NamedTuple):
    """Memory for arguments, where they are written."""

    number: int
    memory: HostSlab
    space: Space


class _Placed(NamedTuple):
    """An array in such memory."""

    array: ClientArray

    def to_wire(self) -> ClientArray:
        """Return its wire form."""
        return self.array
