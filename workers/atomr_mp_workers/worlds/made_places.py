"""Makes this process's places in worlds that sessions make: a thread, and the requests that it runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from atomr_mp import errors
from atomr_mp.protocol.messages import control
from atomr_mp.protocol.ref_collectives import program_of, request_of
from atomr_mp_workers.device.base import WorkerDevice
from atomr_mp_workers.memory.actor_memory import ActorMemory
from atomr_mp_workers.requests.method import Method
from atomr_mp_workers.worlds.engines import Engine
from atomr_mp_workers.worlds.exchange.ref_collectives import CollectiveMethod, RefCollectives
from atomr_mp_workers.worlds.membership import Membership
from atomr_mp_workers.worlds.order.files import WorldFiles
from atomr_mp_workers.worlds.running.gang_queue import GangQueue
from atomr_mp_workers.worlds.running.world_thread import WorldThread

if TYPE_CHECKING:
    from atomr_mp_workers.worlds.exchange.world import OwnWorld


REASON_CHARS: Final = 2000


class MadePlace(NamedTuple):
    """This process's place in one world that a session has made."""

    member: Membership
    thread: WorldThread
    methods: Sequence[Method]
    """Runs collectives on refs; runs programs."""
    bell: int
    """Wakes the loop."""
    close: Callable[[], object]
    """Gives the device's memory back, once the thread runs nothing."""


class MadePlaces:
    """Makes places.

    Args:
        device: The device.
        memory: Makes results.
        programs: Makes the request that runs programs, of its name, and the world's number and view.
        engine: Makes what carries out collectives.
        watch: Sets how the board shows that a request in a slot is watched.
        send: Tells the supervisor.
        wake: Has the loop look; any thread.
        look: Has a place's thread look what the ring says, or the loop if that is awake.
    """

    def __init__(
        self,
        device: WorkerDevice,
        memory: ActorMemory,
        programs: Callable[[str, int, OwnWorld], Method],
        engine: Callable[[control.WorldOffered, WorldFiles], Engine],
        watch: Callable[[int, int], object],
        send: Callable[[control.FromWorker], None],
        wake: Callable[[], object],
        look: Callable[[], object],
    ) -> None:
        self._device: Final = device
        self._memory: Final = memory
        self._programs: Final = programs
        self._engine: Final = engine
        self._watch: Final = watch
        self._send: Final = send
        self._wake: Final = wake
        self._look: Final = look

    def make(self, offered: control.WorldOffered, files: WorldFiles) -> MadePlace | None:
        """Make a place, and its thread; None if its device has no room for it.

        Raises:
            ProtocolError: A file of this process has not come.
        """
        bell = files.loop_bell(offered.rank, offered.generation)
        try:
            engine, queue = self._engine(offered, files), GangQueue()
        except errors.SetupFailed as error:
            self._send(control.WorldRefused(offered.world, str(error)[:REASON_CHARS]))
            return None
        view = engine.view
        thread_bell = files.thread_bell(offered.rank, offered.generation)
        thread = WorldThread(offered.name, queue, self._device, self._watch, self._watch, thread_bell, self._look)
        member = Membership(
            offered,
            files,
            view,
            thread,
            queue,
            engine.make_meeting,
            self._send,
            self._wake,
            engine.mailboxes,
        )
        member.serve()
        collectives = RefCollectives(view, self._memory)
        method = CollectiveMethod(request_of(offered.name), offered.world, offered.rank, collectives)
        programs = self._programs(program_of(offered.name), offered.world, view)
        return MadePlace(member, thread, (method, programs), bell, engine.close)
