"""The base class of the libraries' actors, and what they are given."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, Final

from atomr_mp_workers.device.base import Stream, WorkerDevice
from atomr_mp_workers.memory.blocks import Holder
from atomr_mp_workers.memory.store import Store
from atomr_mp_workers.requests.streams import StreamAllocator


@dataclass(frozen=True)
class LibraryContext:
    """What a library may use."""

    backend: str
    device: WorkerDevice
    store: Store
    streams: StreamAllocator
    holder: Callable[[], Holder]
    """Returns whose request is being done, on the thread that does it."""


@dataclass(frozen=True)
class Later:
    """A result that is there only when the device has done the work, where that is not when the method returns."""

    read: Callable[[], object]
    """Returns it; called on the loop's thread, once, after the work has ended."""


class Library:
    """Base of the libraries' actors: a method for each request does its work, and nothing else.

    What comes before and after is the envelope's: the request has been checked, its arrays are borrowed, and what it
    has to wait for has ended. A method returns what the caller gets: None, a plain value or arrays, or `Later` one of
    these.

    Args:
        context: What it may use.
        stream: Where its requests run, in order.
    """

    unsupported: ClassVar[Mapping[str, tuple[str, ...]]] = MappingProxyType({})
    """Element types that this backend does not have, by request."""

    def __init__(self, context: LibraryContext, stream: Stream) -> None:
        self.context: Final = context
        self.stream: Final = stream

    @property
    def admit(self) -> Mapping[str, Callable[[Any, Holder], None]]:
        """What is to be done in the order of arrival, before a request waits for anything, by request."""
        return {}
