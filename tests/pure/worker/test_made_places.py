"""A process's places in worlds that sessions make, where its device has no room for one."""

from __future__ import annotations

import os
from typing import Any, cast

import pytest

from atomr_mp import errors
from atomr_mp.protocol.messages import control
from atomr_mp_workers.device.base import WorkerDevice
from atomr_mp_workers.memory.actor_memory import ActorMemory
from atomr_mp_workers.worlds.hosted import HostedWorlds
from atomr_mp_workers.worlds.made_places import MadePlaces
from tests.support import open_descriptors
from tests.world_files import WorldSupply

OFFERED = control.WorldOffered(1, "made-1", 0, 2, 1, [], 10.0, 3, [0, 1])


def places(error: errors.AtomrError, sent: list[control.FromWorker]) -> MadePlaces:
    """Return what makes places, and fails with an error."""

    def engine(_offered: object, _files: object) -> Any:
        raise error

    nothing: Any = None
    return MadePlaces(
        cast("WorkerDevice", nothing),
        cast("ActorMemory", nothing),
        nothing,
        engine,
        nothing,
        sent.append,
        nothing,
        nothing,
    )


def test_a_place_without_room_is_refused_and_the_process_serves_on() -> None:
    """The supervisor hears why; what it still says of the world is taken, and files are closed with it."""
    supply = WorldSupply()
    before = len(open_descriptors())
    sent: list[control.FromWorker] = []
    made = places(errors.SetupFailed("no place can be made: out of memory"), sent)
    worlds = HostedWorlds([], {}, [], made.make)
    descriptors = []
    for file, descriptor in supply.own_files(0, 1):
        descriptors.append(descriptor)
        assert worlds.obey(file, lambda descriptor=descriptor: descriptor)  # type: ignore[misc]
    assert worlds.obey(OFFERED, lambda: None)
    assert sent == [control.WorldRefused(1, "no place can be made: out of memory")]
    assert not worlds
    mailbox = control.WorldFile(1, 1, 1, control.WorldFileKind.MAILBOX)
    assert worlds.obey(mailbox, lambda: os.dup(descriptors[0]))
    worlds.incarnation_over(1, 1)
    assert worlds.obey(control.WithdrawWorld(1), lambda: None)
    assert len(open_descriptors()) - before == 3  # the supply's own
    supply.close()


def test_an_error_that_ends_the_process_is_no_refusal() -> None:
    """Its context is lost: nothing works any longer."""
    sent: list[control.FromWorker] = []
    with pytest.raises(errors.ContextPoisoned):
        places(errors.ContextPoisoned("lost"), sent).make(OFFERED, cast("Any", _Bells()))
    assert not sent


class _Bells:
    def loop_bell(self, _rank: int, _generation: int) -> int:
        """Return a bell."""
        return 0
