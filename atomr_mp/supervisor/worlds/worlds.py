"""All worlds of a pool: which of them a device's processes belong to, and the ways to these processes."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from atomr_mp import checks, errors
from atomr_mp.process.files.events import Scalar
from atomr_mp.protocol.messages import control, operators
from atomr_mp.protocol.messages.devices import WorldInfo, WorldState
from atomr_mp.supervision.lifecycle import State
from atomr_mp.supervision.reclaim import Worker
from atomr_mp.supervision.wait_circles import WaitCircles
from atomr_mp.supervisor.device.device import SupervisedDevice
from atomr_mp.supervisor.device.listener import WorldMessage
from atomr_mp.supervisor.loop import Loop
from atomr_mp.supervisor.plan import WorldPlan
from atomr_mp.supervisor.worlds.keeper import LOOK_S, Offer, WorldKeeper
from atomr_mp.supervisor.worlds.processes import DeviceProcesses
from atomr_mp.transport.descriptors import Descriptor

MOST_REMOVED: Final = 1024
"""How many removed worlds are remembered."""


@checks.owned(by_maker=True)
class Worlds:
    """The worlds of a pool.

    Args:
        plans: The worlds, by number.
        devices: The pool's devices, by index; complete before the first of them starts.
        loop: The supervisor's loop.
        tell: Tells the clients of a world that has changed.
        note: Writes an event: its name, its text and its facts.
        client_of: Returns words for the client of a session.

    Raises:
        OSError: No descriptor is left.
    """

    def __init__(
        self,
        plans: Sequence[WorldPlan],
        devices: Sequence[SupervisedDevice],
        loop: Loop,
        *,
        tell: Callable[[WorldInfo], None],
        note: Callable[[str, str, Mapping[str, Scalar]], None],
        client_of: Callable[[int], str] = "session {}".format,
    ) -> None:
        self._devices: Final = devices
        self._loop: Final = loop
        self._note: Final = note
        self._client_of: Final = client_of
        self._processes: Final = DeviceProcesses(devices)
        self._circles: Final = WaitCircles()
        self._keepers = [
            WorldKeeper(plan, self._processes, loop, tell=tell, note=note, client_of=client_of) for plan in plans
        ]
        self._removed: Final[dict[int, None]] = {}
        """Numbers of the worlds that were removed last. Their processes may still say something of them."""
        self._of: Final[dict[int, list[tuple[int, WorldKeeper]]]] = {}
        """The worlds of each device, with its rank there."""
        for keeper in self._keepers:
            for rank, device in enumerate(keeper.plan.devices):
                self._of.setdefault(device, []).append((rank, keeper))
        self._noted: Final[dict[str, str]] = {}
        """The reason that was noted last, of each world that waits."""
        self._watches = False
        self._watch()

    def add(self, plan: WorldPlan, tell: Callable[[WorldInfo], None], freed: Callable[[], object]) -> WorldKeeper:
        """Add a world while the pool runs: all processes of its devices that were started get a place in it.

        Args:
            plan: The world.
            tell: Tells its clients of it.
            freed: Called once it is closed and all members have left.

        Raises:
            OSError: No descriptor is left; nothing was made.
        """
        keeper = WorldKeeper(
            plan, self._processes, self._loop, tell=tell, note=self._note, freed=freed, client_of=self._client_of
        )
        offers = self._offers(keeper)
        self._keepers.append(keeper)
        if not self._watches:
            self._watch()
        for device, generation, (message, descriptor) in offers:
            self._processes.tell(device, generation, message, descriptor)
        for rank, device in enumerate(plan.devices):
            self._of.setdefault(device, []).append((rank, keeper))
        for rank, device in enumerate(plan.devices):
            found = self._devices[device]
            if found.life.state is State.READY and found.roles.active is not None:
                keeper.ready(rank, found.roles.active.generation, "")
        return keeper

    def _offers(self, keeper: WorldKeeper) -> list[tuple[int, int, Offer]]:
        """Return the messages by which all running processes get a place in a new world: device, generation, message.

        Raises:
            OSError: No descriptor is left; the world is freed.
        """
        offers: list[tuple[int, int, Offer]] = []
        try:
            for rank, device in enumerate(keeper.plan.devices):
                for worker in self._devices[device].roles.all:
                    made = keeper.starting(rank, worker.generation)
                    offers += [(device, worker.generation, each) for each in made]
        except OSError:
            for _, _, (_, descriptor) in offers:
                if descriptor is not None:
                    descriptor.close()
            keeper.free()
            raise
        return offers

    def remove(self, keeper: WorldKeeper) -> None:
        """Remove a world that was added and is over: no process keeps its files."""
        keeper.free()
        self._keepers.remove(keeper)
        self._removed[keeper.plan.number] = None
        if len(self._removed) > MOST_REMOVED:
            del self._removed[next(iter(self._removed))]
        for rank, device in enumerate(keeper.plan.devices):
            self._of[device].remove((rank, keeper))
            for worker in self._devices[device].roles.all:
                worker.tell(control.WithdrawWorld(keeper.plan.number))

    @property
    def infos(self) -> list[WorldInfo]:
        """All worlds, as clients are shown them."""
        return [keeper.info for keeper in self._keepers]

    def progress(self) -> list[operators.WorldProgress]:
        """Return where the members of each world are."""
        now_s = time.monotonic()
        return [keeper.progress(now_s) for keeper in self._keepers]

    def of_session(self, session: int) -> list[WorldInfo]:
        """Return the worlds that a session may use: those of the pool's plan, and those that it has made."""
        return [keeper.info for keeper in self._keepers if keeper.plan.session in {0, session}]

    @property
    def descriptors(self) -> list[int]:
        """The descriptors of memory that are kept open here."""
        return [each for keeper in self._keepers for each in keeper.descriptors]

    def starting(self, worker: Worker) -> list[Offer]:
        """Return the first messages to a process that is about to start; the descriptors are the receiver's.

        Raises:
            OSError: No descriptor is left; nothing was made.
        """
        device, generation = worker
        offers: list[Offer] = []
        try:
            for rank, keeper in self._of.get(device, ()):
                offers += keeper.starting(rank, generation)
        except OSError:
            self.withdraw(worker, offers)
            raise
        return offers

    def withdraw(self, worker: Worker, offers: Sequence[Offer]) -> None:
        """Take these messages back, since the process could not be made."""
        for _, descriptor in offers:
            if descriptor is not None:
                descriptor.close()
        self.ended(worker)

    def loaded(self, worker: Worker, codes: Sequence[control.WorldCode]) -> None:
        """Take in digests of the code that a process has loaded for the actors of its worlds."""
        for rank, keeper in tuple(self._of.get(worker[0], ())):
            for each in codes:
                if each.world == keeper.plan.number:
                    keeper.loaded(rank, worker[1], each.code)

    def ready(self, worker: Worker, code: str) -> None:
        """Take in that a process is active from now on, and what names the code that it was set up with."""
        for rank, keeper in tuple(self._of.get(worker[0], ())):
            keeper.ready(rank, worker[1], "" if keeper.plan.session else code)

    def strays(self, plan: str) -> set[int]:
        """Return the devices whose processes keep worlds from forming, since a reload that was given up made them.

        Args:
            plan: Names the plan that holds.
        """
        return {device for keeper in list(self._keepers) for device in keeper.strays(plan)}

    def leaves(self, worker: Worker, reason: str, *, answers: bool) -> None:
        """Take in that the active process takes no more calls, and why; whether it carries orders out until its end."""
        for rank, keeper in tuple(self._of.get(worker[0], ())):
            keeper.leaves(rank, worker[1], reason, answers=answers)

    def stopped(self, worker: Worker) -> None:
        """Take in that all threads of a process have stopped."""
        for rank, keeper in tuple(self._of.get(worker[0], ())):
            keeper.stopped(rank, worker[1])

    def ended(self, worker: Worker) -> None:
        """Take in that a process has ended, or never will."""
        self._circles.ended(worker)
        for rank, keeper in tuple(self._of.get(worker[0], ())):
            keeper.ended(rank, worker[1])

    def mailbox(self, worker: Worker, message: control.WorldMailbox, descriptor: Descriptor | None) -> None:
        """Take in the mailbox of a process; the descriptor is the caller's.

        Raises:
            ProtocolError: It is no member of this world, or has no mailbox to hand over there.
        """
        found = self._place(worker[0], message.world)
        if found is not None:
            rank, keeper = found
            keeper.mailbox(rank, worker[1], descriptor)

    def refused(self, worker: Worker, message: control.WorldRefused) -> None:
        """Take in why a process has no mailbox to hand over.

        Raises:
            ProtocolError: It is no member of this world.
        """
        found = self._place(worker[0], message.world)
        if found is not None:
            rank, keeper = found
            keeper.refused(rank, worker[1], message.reason)

    def heard(self, worker: Worker, message: WorldMessage) -> None:
        """Take in what a process says of an epoch.

        Raises:
            ProtocolError: It is no member of this world, or cannot know of this epoch.
        """
        found = self._place(worker[0], message.world)
        if found is not None:
            rank, keeper = found
            keeper.heard(rank, worker[1], message)

    def parts_wait(self, worker: Worker, message: control.PartsWait) -> None:
        """Take in which parts of a process wait for which; have those refused that would wait for ever."""
        for (device, generation), part in self._circles.heard(worker, message.blocked):
            self._processes.tell(device, generation, control.RefusePart(part), None)

    def count_of(self, device: int) -> int:
        """Return how many worlds a device is in, those included that are closed and that members have not left yet."""
        return len(self._of.get(device, ()))

    def _place(self, device: int, number: int) -> tuple[int, WorldKeeper] | None:
        """Return a device's rank in a world, and the world; None if that was removed.

        Raises:
            ProtocolError: It is no member of such a world.
        """
        for rank, keeper in self._of.get(device, ()):
            if keeper.plan.number == number:
                return rank, keeper
        if number in self._removed:
            return None
        raise errors.ProtocolError(f"device {device} is in no world with the number {number}")

    def look(self) -> None:
        """Tell the clients of worlds that have changed because a device has."""
        for keeper in tuple(self._keepers):
            keeper.look()

    def close(self, reason: str) -> None:
        """End all worlds: the pool stops."""
        for keeper in tuple(self._keepers):
            keeper.close(reason)

    def free(self) -> None:
        """Close all files, at the end of the pool; may be called twice."""
        keepers, self._keepers = self._keepers, []
        for keeper in keepers:
            keeper.free()

    def _watch(self) -> None:
        """Look where all members are, from now on, so that it is known since when they are there."""
        self._watches = bool(self._keepers)
        if self._watches:
            self.progress()
            for keeper in list(self._keepers):
                keeper.look_for_stopped()
            self._loop.call_later(LOOK_S, self._look_again)

    def _look_again(self) -> None:
        self._note_waits()
        for keeper in self._keepers:
            keeper.note_held(time.monotonic())
        self._watch()

    def _note_waits(self) -> None:
        """Write an event of each world that waits for another reason than at the last look."""
        waiting = {each.name: each for each in self.infos if each.state is WorldState.WAITING}
        for name in self._noted.keys() - waiting.keys():
            del self._noted[name]
        for name, info in waiting.items():
            if info.reason != self._noted.get(name):
                self._noted[name] = info.reason
                facts: dict[str, Scalar] = {"world": name, "rank": info.rank, "reason": info.reason}
                self._note("world_waits", f"world {name} waits: {info.reason}", facts)
