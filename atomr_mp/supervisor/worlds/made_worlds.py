"""Worlds that sessions make for collectives on refs: who has made which, how many there may be, and their ends."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from atomr_mp import checks, errors
from atomr_mp.protocol.messages.devices import WorldInfo
from atomr_mp.protocol.words import counted, these_devices
from atomr_mp.supervision.settings import MADE_PREFIX, WorldSettings
from atomr_mp.supervisor.loop import Loop, Timer
from atomr_mp.supervisor.plan import MOST_ON_GPU, WorldPlan
from atomr_mp.supervisor.worlds.keeper import WorldKeeper
from atomr_mp.supervisor.worlds.worlds import Worlds

MOST_OF_SESSION: Final = 16
"""Most worlds of one session that are not closed."""

MOST_OF_POOL: Final = 64
"""Most worlds of all sessions. A closed world counts until all members have left it."""

PLACE_S: Final = 10.0
"""How long a session waits for the place of a closed world at most."""


class _Asked(NamedTuple):
    """A world that waits for the place of a closed one."""

    session: int
    devices: Sequence[int]
    answer: Callable[[int | errors.AtomrError], None]
    timer: Timer


@checks.owned(by_maker=True)
class MadeWorlds:
    """The worlds of all sessions.

    Args:
        worlds: All worlds of the pool.
        planned: How many of these the pool's plan has; the numbers behind them are free.
        devices: How many devices the pool has.
        backend: The pool's backend.
        loop: Calls what is due later.
        tell: Tells a session, by its number, of a world of its own.
    """

    def __init__(
        self,
        worlds: Worlds,
        planned: int,
        devices: int,
        backend: str,
        loop: Loop,
        tell: Callable[[int, WorldInfo], None],
    ) -> None:
        self._worlds: Final = worlds
        self._devices: Final = devices
        self._backend: Final = backend
        self._loop: Final = loop
        self._tell: Final = tell
        self._last: int = planned - 1
        self._made: Final[dict[int, tuple[int, WorldKeeper]]] = {}
        """The makers' sessions and the worlds, by number, until all members have left."""
        self._open: Final[set[int]] = set()
        """Numbers of the worlds that are not closed."""
        self._asked: Final[list[_Asked]] = []
        """The worlds that wait for a place, by age."""

    def make(self, session: int, devices: Sequence[int], answer: Callable[[int | errors.AtomrError], None]) -> None:
        """Make a world of a session; wait for the place of a closed one if there is no other.

        Args:
            session: The session.
            devices: The devices.
            answer: Called with the world's number, or with the error: `InvalidRequest` if a device does not exist or is
                named twice, `Overloaded` if there are as many worlds as may be, or no descriptors are left.
        """
        try:
            self._check(session, devices)
        except errors.AtomrError as error:
            answer(error)
            return
        lack = self._lack(devices)
        if lack is None:
            answer(self._make(session, devices))
        elif not self._frees(devices):
            answer(lack)
        else:
            timer = self._loop.call_later(PLACE_S, lambda: self._give_up(asked))
            asked = _Asked(session, devices, answer, timer)
            self._asked.append(asked)

    def _give_up(self, asked: _Asked) -> None:
        """Answer one for which no place has come."""
        self._asked.remove(asked)
        asked.answer(self._lack(asked.devices) or errors.Overloaded("there was no place for a world in time"))

    def _make(self, session: int, devices: Sequence[int]) -> int | errors.Overloaded:
        """Make a world; return its number, or the error if no descriptors are left."""
        self._last = number = self._last + 1
        timeout_s = WorldSettings(devices=list(devices), actors=[]).begin_timeout_s  # its default
        name = f"{MADE_PREFIX}{number}"
        plan = WorldPlan(number, name, list(devices), [], timeout_s, session, self._backend == "cuda")
        try:
            keeper = self._worlds.add(
                plan, functools.partial(self._tell, session), functools.partial(self._freed, number)
            )
        except OSError as error:
            return errors.Overloaded(f"the supervisor has no descriptors for one more world: {error.strerror}")
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
        for asked in [each for each in self._asked if each.session == session]:
            asked.timer.cancel()
            self._asked.remove(asked)

    def _close(self, number: int, keeper: WorldKeeper, reason: str) -> None:
        if number in self._open:
            self._open.discard(number)
            keeper.close(reason)

    def _freed(self, number: int) -> None:
        """Forget a world that all members have left."""
        self._open.discard(number)
        _, keeper = self._made.pop(number)
        self._worlds.remove(keeper)
        for asked in list(self._asked):
            if self._lack(asked.devices) is None:
                asked.timer.cancel()
                self._asked.remove(asked)
                asked.answer(self._make(asked.session, asked.devices))

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
        own = sum(1 for number in self._open if self._made[number][0] == session)
        if own + sum(1 for asked in self._asked if asked.session == session) >= MOST_OF_SESSION:
            raise errors.Overloaded(
                f"this session has made {MOST_OF_SESSION} worlds, as many as may be; close some of them", window=0
            )

    def _lack(self, devices: Sequence[int]) -> errors.Overloaded | None:
        """Return the error of a world for which there is no place now; None if there is one."""
        if len(self._made) >= MOST_OF_POOL:
            return errors.Overloaded(f"the sessions of this pool have {MOST_OF_POOL} worlds, as many as may be")
        full = self._full(devices)
        if full:
            return errors.Overloaded(
                f"device {full[0]} is in {MOST_ON_GPU} worlds, as many as may be on the cuda backend", device=full[0]
            )
        return None

    def _full(self, devices: Sequence[int]) -> list[int]:
        """Return those of these devices that are in as many worlds as may be."""
        if self._backend != "cuda":
            return []
        return [device for device in devices if self._worlds.count_of(device) >= MOST_ON_GPU]

    def _frees(self, devices: Sequence[int]) -> bool:
        """Return whether places for a world come once members have left closed worlds."""
        closed = [keeper.plan.devices for number, (_, keeper) in self._made.items() if number not in self._open]
        if len(self._made) >= MOST_OF_POOL and not closed:
            return False
        return all(any(device in each for each in closed) for device in self._full(devices))
