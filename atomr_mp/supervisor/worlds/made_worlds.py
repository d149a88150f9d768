"""Worlds that sessions make for collectives on refs: who has made which, how many there may be, and their ends."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Final

from atomr_mp import checks, errors
from atomr_mp.protocol.messages.devices import WorldInfo
from atomr_mp.protocol.words import counted, these_devices
from atomr_mp.supervision.settings import WorldSettings
from atomr_mp.supervisor.plan import MOST_ON_GPU, WorldPlan
from atomr_mp.supervisor.worlds.keeper import WorldKeeper
from atomr_mp.supervisor.worlds.worlds import Worlds

MOST_OF_SESSION: Final = 16
"""Most worlds of one session that are not closed."""

MOST_OF_POOL: Final = 64
"""Most worlds of all sessions. A closed world counts until all members have left it."""


@checks.owned(by_maker=True)
class MadeWorlds:
    """The worlds of all sessions.

    Args:
        worlds: All worlds of the pool.
        planned: How many of these the pool's plan has; the numbers behind them are free.
        devices: How many devices the pool has.
        backend: The pool's backend.
        tell: Tells a session, by its number, of a world of its own.
    """

    def __init__(
        self, worlds: Worlds, planned: int, devices: int, backend: str, tell: Callable[[int, WorldInfo], None]
    ) -> None:
        self._worlds: Final = worlds
        self._devices: Final = devices
        self._backend: Final = backend
        self._tell: Final = tell
        self._last: int = planned - 1
        self._made: Final[dict[int, tuple[int, WorldKeeper]]] = {}
        """The makers' sessions and the worlds, by number, until all members have left."""
        self._open: Final[set[int]] = set()
        """Numbers of the worlds that are not closed."""

    def make(self, session: int, devices: Sequence[int]) -> int:
        """Make a world of a session; return its number.

        Raises:
            InvalidRequest: A device does not exist, or is named twice.
            Overloaded: There are as many worlds as may be, or no descriptors are left.
        """
        self._check(session, devices)
        self._last = number = self._last + 1
        timeout_s = WorldSettings(devices=list(devices), actors=[]).begin_timeout_s  # its default
        plan = WorldPlan(number, f"made-{number}", list(devices), [], timeout_s, session, self._backend == "cuda")
        try:
            keeper = self._worlds.add(
                plan, functools.partial(self._tell, session), functools.partial(self._freed, number)
            )
        except OSError as error:
            raise errors.Overloaded(
                f"the supervisor has no descriptors for one more world: {error.strerror}"
            ) from error
        self._made[number] = session, keeper
        self._open.add(number)
        keeper.look()
        return number

    def close(self, session: int, number: int) -> None:
        """End a world of a session; do nothing if it has none of this number."""
        made = self._made.get(number)
        if made is not None and made[0] == session:
            self._close(number, made[1], "it was closed")

    def session_ended(self, session: int) -> None:
        """End all worlds of a session."""
        for number, (maker, keeper) in list(self._made.items()):
            if maker == session:
                self._close(number, keeper, "its session has ended")

    def _close(self, number: int, keeper: WorldKeeper, reason: str) -> None:
        if number in self._open:
            self._open.discard(number)
            keeper.close(reason)

    def _freed(self, number: int) -> None:
        """Forget a world that all members have left."""
        self._open.discard(number)
        _, keeper = self._made.pop(number)
        self._worlds.remove(keeper)

    def _check(self, session: int, devices: Sequence[int]) -> None:
        missing = [device for device in devices if device >= self._devices]
        if missing:
            raise errors.InvalidRequest(
                f"there is no device {missing[0]}: this pool has {counted(self._devices, 'device')}, "
                f"from 0 to {self._devices - 1}"
            )
        if not devices or len(set(devices)) < len(devices):
            raise errors.InvalidRequest(
                f"a world has at least one device, and each of them once; got {these_devices(list(devices))}"
            )
        if sum(1 for number in self._open if self._made[number][0] == session) >= MOST_OF_SESSION:
            raise errors.Overloaded(
                f"this session has made {MOST_OF_SESSION} worlds, as many as may be; close some of them", window=0
            )
        if len(self._made) >= MOST_OF_POOL:
            raise errors.Overloaded(f"the sessions of this pool have {MOST_OF_POOL} worlds, as many as may be")
        full = [device for device in devices if self._worlds.count_of(device) >= MOST_ON_GPU]
        if self._backend == "cuda" and full:
            raise errors.Overloaded(
                f"device {full[0]} is in {MOST_ON_GPU} worlds, as many as may be on the cuda backend", device=full[0]
            )
