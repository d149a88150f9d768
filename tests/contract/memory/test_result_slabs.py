"""Slabs with results that the supervisor keeps: what it takes, for whom, and when each goes."""

from __future__ import annotations

import fcntl
import gc
import os
import time
from collections.abc import Callable, Iterator
from typing import Final

import pytest

from atomr_mp import errors
from atomr_mp.protocol.messages import control
from atomr_mp.supervisor.loop import Loop
from atomr_mp.supervisor.sessions import result_slabs
from atomr_mp.supervisor.sessions.result_slabs import KeptResultSlabs
from atomr_mp.transport.descriptors import Descriptor
from tests.support import DEADLINE_S, open_descriptors

NBYTES: Final = 4096
SEALS: Final = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
WORKER: Final = (0, 1)
OTHER: Final = (1, 1)


class Kept:
    """Result slabs on a loop of their own, of devices that may keep three slabs of ended incarnations."""

    def __init__(self) -> None:
        self.loop = Loop()
        self.slabs = KeptResultSlabs(self.loop, lambda _device: 3 * NBYTES)

    def hand_in(self, number: int, slab: int, worker: tuple[int, int] = WORKER, nbytes: int = NBYTES) -> None:
        """Hand a slab in, as a worker does."""
        with memory() as descriptor:
            self.slabs.hand_in(worker, control.ResultSlab(number, slab, nbytes), descriptor)

    def has(self, number: int, *expected: int, worker: tuple[int, int] = WORKER) -> bool:
        """Return whether a session can open just these slabs, of the first four."""
        return [slab for slab in range(4) if self.slabs.find(number, worker, slab) is not None] == list(expected)

    def until(self, condition: Callable[[], bool]) -> None:
        """Run the loop until something is so."""
        until_s = time.monotonic() + DEADLINE_S
        while not condition():
            assert time.monotonic() < until_s, "in vain"
            self.loop._stopped = False
            self.loop.call_later(0.001, self.loop.stop)
            self.loop.run()


def memory(seals: int = SEALS) -> Descriptor:
    """Make a slab."""
    made = os.memfd_create("atomr-mp-test", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.truncate(made, NBYTES)
    fcntl.fcntl(made, fcntl.F_ADD_SEALS, seals)
    return Descriptor(made)


@pytest.fixture
def kept() -> Iterator[Kept]:
    """Keep slabs, and see that no descriptor is left when their sessions have ended."""
    gc.collect()  # of what other tests have left, whose descriptors would be closed meanwhile
    before = open_descriptors()
    made = Kept()
    yield made
    for number in (1, 2, 3):
        made.slabs.session_ended(number)
    assert made.slabs.descriptors == []
    made.loop.close()
    assert open_descriptors() == before


def test_a_session_finds_its_own_slabs_and_no_others(kept: Kept) -> None:
    """Session, incarnation and number name a slab until the worker has freed it."""
    for number, slab, worker in ((1, 0, WORKER), (1, 1, WORKER), (2, 2, WORKER), (1, 3, OTHER)):
        kept.hand_in(number, slab, worker)
    assert kept.has(1, 0, 1)
    assert kept.has(2, 2)
    assert kept.has(1, 3, worker=OTHER)
    assert kept.has(3)
    kept.slabs.freed(WORKER, control.ResultSlabFreed(1, 0))
    kept.slabs.freed(WORKER, control.ResultSlabFreed(2, 0))  # which is not there
    assert kept.has(1, 1)
    assert kept.has(2, 2)
    assert len(kept.slabs.descriptors) == 3
    assert kept.slabs.unkept == 0


def test_slabs_of_an_ended_incarnation_go_with_the_last_of_three(kept: Kept) -> None:
    """The session gives them back, or ends; those of a living worker stay."""
    for number in (1, 2):
        kept.hand_in(number, 0)
        kept.hand_in(number, 0, OTHER)
    kept.slabs.incarnation_over(WORKER)
    kept.slabs.given_back(1, WORKER)
    assert kept.has(1)
    assert kept.has(2, 0)
    kept.slabs.session_ended(2)
    assert kept.has(2)
    assert kept.has(1, 0, worker=OTHER)
    assert len(kept.slabs.descriptors) == 1


def test_they_stay_for_as_long_as_they_are_asked_for(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    """They go soon after. A client that asks for one keeps all that it has of that incarnation."""
    for slab in (0, 1):
        kept.hand_in(1, slab)
        kept.hand_in(2, slab, OTHER)
    monkeypatch.setattr(result_slabs, "KEEP_S", 60.0)
    kept.slabs.incarnation_over(WORKER)
    monkeypatch.setattr(result_slabs, "KEEP_S", 0.01)
    kept.until(lambda: True)
    assert kept.has(1, 0, 1)  # and has asked, so its time begins anew
    kept.until(lambda: not kept.slabs._timers)
    assert kept.has(1)
    assert kept.has(2, 0, 1, worker=OTHER)  # whose worker lives


@pytest.mark.parametrize("trouble", ["lost", "size", "seals", "many", "limit"])
def test_what_cannot_be_kept_is_counted(kept: Kept, monkeypatch: pytest.MonkeyPatch, trouble: str) -> None:
    """It ends with its worker; nothing of it stays open."""
    if trouble == "many":
        monkeypatch.setattr(result_slabs, "MAX_RESULT_SLABS", 0)
    if trouble == "limit":

        def refuse(_descriptor: int) -> None:
            raise errors.Overloaded("no descriptor to spare")

        monkeypatch.setattr(result_slabs, "check_room", refuse)
    with memory(0 if trouble == "seals" else SEALS) as descriptor:
        message = control.ResultSlab(1, 0, NBYTES + (trouble == "size"))
        kept.slabs.hand_in(WORKER, message, None if trouble == "lost" else descriptor)
    assert kept.slabs.unkept == 1
    assert kept.has(1)
    kept.slabs.incarnation_over(WORKER)
    assert kept.slabs.descriptors == []


def test_ended_incarnations_of_a_device_stay_within_its_quota(kept: Kept) -> None:
    """The client that has not asked for longest gives way, and that is counted. Each device has a quota."""
    for generation in (1, 2, 3):
        kept.hand_in(generation, 0, (0, generation))
        kept.slabs.incarnation_over((0, generation))
    assert kept.has(1, 0)  # which was the next to go, and has asked
    for slab in (1, 2):
        kept.hand_in(1, slab, (0, 4))
    kept.hand_in(1, 0, OTHER)
    kept.slabs.incarnation_over((0, 4))
    kept.slabs.incarnation_over(OTHER)
    assert kept.slabs.unkept == 2
    assert kept.has(1, 0)
    assert kept.has(2, worker=(0, 2))
    assert kept.has(3, worker=(0, 3))
    assert kept.has(1, 1, 2, worker=(0, 4))
    assert kept.has(1, 0, worker=OTHER)
