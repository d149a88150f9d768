"""The parts of a client that its lanes share."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from atomr_mp import errors
from atomr_mp.client import interrupts
from atomr_mp.client.lanes.session import PoolSession
from atomr_mp.client.memory.leases import Releases
from atomr_mp.client.sent_room import SentRoom
from atomr_mp.transport.data import DataConnection, Login
from atomr_mp.wire.courier import Courier
from atomr_mp.wire.ends import ClientEnd

if TYPE_CHECKING:
    from atomr_mp.client.memory.argument_slabs import Placement
    from atomr_mp.client.memory.memory import ClientMemory


class LazyMemory:
    """A client's shared memory, made when it is first used, since that takes NumPy.

    Args:
        make: Makes the memory.
    """

    def __init__(self, make: Callable[[], ClientMemory]) -> None:
        self._make = make
        self.made: ClientMemory | None = None
        """The memory, if it was ever used."""
        self._making = threading.Lock()

    def get(self) -> ClientMemory:
        """Return the memory.

        Raises:
            OSError: This process may open no more files, and it has not been made yet.
        """
        return self.made or self._get_made()

    @interrupts.defer_interrupts  # a half-imported package cannot be imported again
    def _get_made(self) -> ClientMemory:
        with self._making:
            if self.made is None:
                self.made = self._make()
        return self.made

    def place(self, array: Any) -> Placement | None:
        """Copy an argument into memory that workers can read; None if it has to travel otherwise.

        Raises:
            OutOfMemory: This process may open no more files, and has not used such memory yet.
        """
        try:
            memory = self.get()
        except OSError as error:
            if error.errno not in {errno.EMFILE, errno.ENFILE}:
                raise
            why = f"shared memory cannot be used: {error} (ulimit -n)"
            raise errors.OutOfMemory(why, maybe_executed=False) from error
        return memory.place(array)

    def place_again(self, array: Any) -> Placement | None:
        """Name an argument that lies in such memory once more, without a copy; None if it does not lie there."""
        return self.get().place_again(array)

    def out_of_memory(self, releases: Releases) -> None:
        """Record that an incarnation has run out of memory; called with a lane's lock held."""
        if self.made is not None:
            self.made.out_of_memory(releases)

    def over(self, ended: Releases) -> None:
        """Record that an incarnation has ended."""
        if self.made is not None:
            self.made.over(ended)

    def forget_in_child(self) -> None:
        """Use no lock that a thread of the parent may hold."""
        self._making = threading.Lock()


Connect = Callable[[str, Login, int, Callable[[Any], object]], ClientEnd]
"""Connects to an incarnation's endpoint, with the session's proof and the connection's number; takes a function to call
when the connection has something to `advance`. Raises `OSError` if no descriptor is left."""


class LaneServices(NamedTuple):
    """What a client's lanes share."""

    session: PoolSession
    memory: LazyMemory
    courier: Courier
    """Sends the bytes that connections could not send at once."""
    sent_room: SentRoom
    """Parts of streams that are kept."""
    max_waiting: int
    """Most calls that may wait for room in a lane."""
    give_back: Callable[[Releases], None]
    """Sends due releases to an incarnation, if possible."""
    new_number: Callable[[], int]
    """Returns a number that no other connection of the session has."""
    connect: Connect = DataConnection
    """Makes connections."""
