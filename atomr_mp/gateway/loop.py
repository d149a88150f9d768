"""The gateway's event loop: it calls readers as soon as epoll tells of them.

asyncio puts each ready descriptor's callback on a list, and runs the list afterwards. A call passes through the gateway
four times in that way, twice with somebody waiting, which took a tenth of its time. Readers that are added with
`add_reader` are called from `select` here instead; all else is asyncio's.
"""

from __future__ import annotations

import asyncio
import math
import select
import selectors
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVarTuple

from atomr_mp.gateway.handover import OwnerThread

Ts = TypeVarTuple("Ts")

MOST_EVENTS: Final = 64
"""Most descriptors that are looked at before asyncio's own callbacks have a turn."""


class GatewayLoop(asyncio.SelectorEventLoop):
    """An asyncio event loop with direct readers. A reader's exception is reported as that of any callback."""

    def __init__(self) -> None:
        self._readers: Final = DirectSelector(self._reader_failed)
        super().__init__(self._readers)

    def add_reader(self, fd: Any, callback: Callable[[*Ts], Any], *args: *Ts) -> None:
        """Call `callback(*args)` whenever a descriptor is readable, instead of an earlier callback of it."""
        self._readers.watch(fd, callback, args)

    def remove_reader(self, fd: Any) -> bool:
        """Watch a descriptor no more; return whether it was watched."""
        return self._readers.forget(fd)

    def _reader_failed(self, callback: Callable[..., Any], error: BaseException) -> None:
        self.call_exception_handler({"message": f"Exception in reader {callback!r}", "exception": error})


class DirectSelector(selectors.BaseSelector):
    """A selector that calls some descriptors' readers itself, beside asyncio's own descriptors.

    Args:
        failed: Called with a reader and the exception that it has raised.
    """

    def __init__(self, failed: Callable[[Callable[..., Any], BaseException], object]) -> None:
        self._failed = failed
        self._owner: Final = OwnerThread("an event loop's table of readers")
        self._others: Final = selectors.EpollSelector()
        """asyncio's own descriptors, such as the one by which threads wake it."""
        self._epoll: Final = select.epoll()
        self._epoll.register(self._others.fileno(), select.EPOLLIN)
        self._direct: Final[dict[int, tuple[Callable[..., Any], tuple[Any, ...]]]] = {}

    def watch(self, fd: int, callback: Callable[..., Any], args: tuple[Any, ...]) -> None:
        """Call `callback(*args)` from `select` whenever a descriptor is readable."""
        self._owner.check()
        if fd not in self._direct:
            self._epoll.register(fd, select.EPOLLIN)
        self._direct[fd] = callback, args

    def forget(self, fd: int) -> bool:
        """Watch a descriptor no more; return whether it was watched."""
        self._owner.check()
        if self._direct.pop(fd, None) is None:
            return False
        self._epoll.unregister(fd)
        return True

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Wait for descriptors, call direct readers, and return what is ready of the others.

        Args:
            timeout: In seconds; None for no limit, 0 or less for no wait.
        """
        # epoll counts milliseconds: rounded up, or a loop with a timer due in less would spin.
        wait_s = -1.0 if timeout is None else math.ceil(timeout * 1e3) * 1e-3 if timeout > 0 else 0.0
        others: list[tuple[selectors.SelectorKey, int]] = []
        direct = self._direct
        for fd, _ in self._epoll.poll(wait_s, MOST_EVENTS):
            reader = direct.get(fd)  # an earlier one may have removed it
            if reader is None:
                others = self._others.select(0)
                continue
            callback, args = reader
            try:
                callback(*args)
            except (SystemExit, KeyboardInterrupt):
                raise
            except BaseException as error:  # noqa: BLE001 - as asyncio does with callbacks; other readers go on
                self._failed(callback, error)
        return others

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        """Register one of asyncio's descriptors."""
        return self._others.register(fileobj, events, data)

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        """Unregister one of asyncio's descriptors."""
        return self._others.unregister(fileobj)

    def modify(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        """Change what one of asyncio's descriptors is watched for."""
        return self._others.modify(fileobj, events, data)

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        """Return asyncio's descriptors."""
        return self._others.get_map()

    def get_key(self, fileobj: Any) -> selectors.SelectorKey:
        """Return one of asyncio's descriptors."""
        return self._others.get_key(fileobj)

    def close(self) -> None:
        """Close it."""
        self._direct.clear()
        self._epoll.close()
        self._others.close()
