"""What refs and their memory know of each other. No content."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from atomr_mp.client.memory.leases import Lease
from atomr_mp.protocol.declaration.factors import Scalar
from atomr_mp.protocol.libraries.base import LibraryRequest
from atomr_mp.protocol.views import ArrayViews

if TYPE_CHECKING:
    import numpy as np


class BufferRef(ArrayViews):
    """A ref, as its operators and its memory see it."""

    _buffers: RefMemory

    @property
    def device(self) -> int:
        """Index of the device in the pool."""
        raise NotImplementedError

    def is_of(self, buffers: RefMemory) -> bool:
        """Whether it belongs to this client."""
        raise NotImplementedError

    def item(self, *index: int) -> bool | complex:
        """Return one element."""
        raise NotImplementedError


class RefMemory(Protocol):
    """A client's memory, as a ref sees it: its refs are `GpuRef`."""

    def check(self, lease: Lease) -> None:
        """Raise an error if the ref has become unusable."""

    def state_of(self, lease: Lease) -> str:
        """Return a word that says whether a buffer can be used."""

    def free(self, lease: Lease) -> None:
        """Give a buffer back, and tell the worker at once if possible."""

    def view(self, ref: Any, *, write: bool) -> Any:
        """Return a ref's elements in place."""

    def copy(self, ref: Any, out: np.ndarray[Any, Any] | None) -> np.ndarray[Any, Any]:
        """Return a copy of a ref's elements."""

    def put(self, array: np.ndarray[Any, Any], dtype: str, device: int) -> Any:
        """Return a new buffer with a copy of an array."""

    def on_gpu(self, device: int) -> bool:
        """Return whether a device's memory is a GPU's."""

    def uuid_of(self, device: int) -> str:
        """Return the UUID of a device's GPU, "" if it has none."""

    def fill(self, ref: Any, value: Scalar) -> None:
        """Write a value into all elements."""

    def accept(self, ref: Any) -> None:
        """Accept a buffer's content although it may be undefined."""

    def copy_on_device(self, source: Any, target: Any) -> None:
        """Copy elements on the target's device."""

    def share(self, ref: Any, for_s: float) -> bytes:
        """Keep a buffer for another client."""

    def request(self, request: LibraryRequest, device: int, *, library: str = "memory") -> Any:
        """Make a request of a library, and return its result. Blocks."""
