"""Who fills resident memory, who waits for it, who has it, and when it goes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from atomr_mp import errors
from atomr_mp.supervision.reclaim import Worker
from atomr_mp.supervision.residents import (
    MAX_BLOBS,
    Action,
    Adopt,
    BlobState,
    Drop,
    FillOrder,
    Key,
    Refuse,
    Registry,
    Shape,
)

A, B, C = (0, 1), (0, 2), (1, 1)
V1, V2 = Key(None, "weights", "1"), Key(None, "weights", "2")
SMALL, OTHER = Shape(b"s", 1, 10), Shape(b"o", 2, 10)


def refusal(actions: list[Action]) -> errors.AtomrError:
    """Return why a process was refused."""
    (action,) = actions
    assert isinstance(action, Refuse)
    return action.error


def sealed(*keys: Key, by: Worker = A) -> Registry:
    """Return a registry with blobs that a process has filled and uses."""
    registry = Registry(0)
    for key in keys:
        assert registry.wanted(by, key, SMALL) == [FillOrder(by, key)]
        registry.sealed(by, key)
    return registry


def test_one_fills_and_the_others_wait() -> None:
    """They get it when it is sealed, and who comes later at once."""
    registry = Registry(0)
    assert registry.wanted(A, V1, SMALL) == [FillOrder(A, V1)]
    assert registry.wanted(B, V1, SMALL) == []
    assert registry.sealed(A, V1) == [Adopt(B, V1)]
    assert registry.wanted(C, V1, SMALL) == [Adopt(C, V1)]
    (blob,) = registry.blobs
    assert (blob.state, blob.users) == (BlobState.SEALED, {A, B, C})


def test_who_has_waited_longest_takes_over() -> None:
    """When the filler has ended, or has given up."""
    registry = Registry(0)
    registry.wanted(A, V1, SMALL)
    registry.wanted(B, V1, SMALL)
    registry.wanted(C, V1, SMALL)
    assert registry.ended(A) == [FillOrder(B, V1)]
    assert registry.abandoned(B, V1) == [FillOrder(C, V1)]
    assert registry.ended(C) == []
    assert registry.blobs == []


def test_who_ends_while_it_waits_is_not_elected() -> None:
    """Nor given anything."""
    registry = Registry(0)
    registry.wanted(A, V1, SMALL)
    registry.wanted(B, V1, SMALL)
    assert registry.ended(B) == []
    assert registry.sealed(A, V1) == []


def test_what_is_sealed_outlives_all_that_use_it() -> None:
    """It waits for the next."""
    registry = sealed(V1)
    assert registry.ended(A) == []
    assert registry.wanted(B, V1, SMALL) == [Adopt(B, V1)]


def test_who_is_stuck_is_not_waited_for_and_keeps_what_it_has() -> None:
    """Until it ends after all."""
    registry = sealed(V1)
    registry.wanted(A, V2, SMALL)
    registry.wanted(B, V2, SMALL)
    assert registry.ended(A, stuck=True) == [FillOrder(B, V2)]
    assert registry.sealed(B, V2) == []
    assert registry.ended(A) == [Drop(V1)]


def test_each_device_has_its_own() -> None:
    """On one it is sealed, on the other to be filled."""
    registry = sealed(Key(0, "weights", "1"))
    assert registry.wanted(C, Key(1, "weights", "1"), SMALL) == [FillOrder(C, Key(1, "weights", "1"))]


def test_an_old_version_goes_with_its_last_user() -> None:
    """Not before a later one is sealed."""
    registry = sealed(V1)
    assert registry.wanted(B, V2, SMALL) == [FillOrder(B, V2)]
    assert registry.sealed(B, V2) == []
    assert registry.ended(A) == [Drop(V1)]
    assert registry.wanted(C, V2, SMALL) == [Adopt(C, V2)]


def test_an_unused_version_stays_until_the_next_is_sealed() -> None:
    """The next may fail to be filled."""
    registry = sealed(V1)
    registry.ended(A)
    registry.wanted(B, V2, SMALL)
    assert registry.ended(B) == []
    assert registry.wanted(C, V1, SMALL) == [Adopt(C, V1)]
    registry.ended(C)
    registry.wanted(A, V2, SMALL)
    assert registry.sealed(A, V2) == [Drop(V1)]


def test_another_layout_of_the_same_version_is_refused() -> None:
    """Whether it is sealed or being filled; nothing becomes of what there is."""
    registry = Registry(0)
    registry.wanted(A, V1, SMALL)
    assert isinstance(refusal(registry.wanted(B, V1, OTHER)), errors.ResidentMismatch)
    registry.sealed(A, V1)
    assert "2 in 10" in refusal(registry.wanted(B, V1, OTHER)).message
    alike = SMALL._replace(layout=OTHER.layout)
    assert "as many arrays and bytes" in refusal(registry.wanted(B, V1, alike)).message
    assert "with other names, shapes or element types" in refusal(registry.wanted(B, V1, alike)).message
    assert registry.wanted(B, V1, SMALL) == [Adopt(B, V1)]


def test_the_quota_holds_before_anything_is_made() -> None:
    """What is being filled counts, and what is freed and still in use."""
    registry = Registry(25)
    assert registry.wanted(A, V1, SMALL) == [FillOrder(A, V1)]
    assert registry.wanted(A, V2, SMALL) == [FillOrder(A, V2)]
    third = Key(None, "more", "1")
    refused = refusal(registry.wanted(A, third, SMALL))
    assert isinstance(refused, errors.OutOfMemory)
    assert refused.requested_bytes == 10
    registry.sealed(A, V1)
    registry.free("weights", None, "1", force=True)
    assert isinstance(refusal(registry.wanted(B, third, SMALL)), errors.OutOfMemory)
    registry.ended(A)
    assert registry.nbytes == 0
    assert registry.wanted(B, third, SMALL) == [FillOrder(B, third)]


def test_blobs_are_counted() -> None:
    """Each costs a descriptor."""
    registry = sealed(*(Key(None, str(n), "1") for n in range(MAX_BLOBS)))
    assert isinstance(refusal(registry.wanted(A, V1, SMALL)), errors.OutOfMemory)


def test_what_is_in_use_is_freed_by_force_only() -> None:
    """Its users keep it; the next one fills it anew."""
    registry = sealed(V1, Key(None, "other", "1"))
    with pytest.raises(errors.InvalidRequest, match="in use by device 0 generation 1"):
        registry.free("weights", None, None, force=False)
    freed, actions = registry.free("weights", None, None, force=True)
    assert actions == [Drop(V1)]
    assert [blob.state for blob in freed] == [BlobState.FREED]
    assert registry.wanted(B, V1, SMALL) == [FillOrder(B, V1)]
    assert [blob.state for blob in registry.blobs] == [BlobState.SEALED, BlobState.FILLING, BlobState.FREED]
    registry.ended(A)
    assert [blob.state for blob in registry.blobs] == [BlobState.SEALED, BlobState.FILLING]


def test_what_is_not_in_use_is_freed() -> None:
    """All versions, or the one that is named; on all devices, or the one that is named."""
    keys = [Key(device, "weights", version) for device in (0, 1) for version in ("1", "2")]
    registry = Registry(0)
    for key in keys:
        registry.wanted(A, key, SMALL)
    for key in keys:
        registry.sealed(A, key)
    registry.free("weights", 1, "1", force=True)
    registry.ended(A)
    assert [blob.key for blob in registry.blobs] == [Key(0, "weights", "2"), Key(1, "weights", "2")]
    assert registry.free("weights", 0, None, force=False)[1] == [Drop(Key(0, "weights", "2"))]
    with pytest.raises(errors.InvalidRequest, match="there is: 'weights' version '2' of GPU 1"):
        registry.free("weights", 0, None, force=False)
    with pytest.raises(errors.InvalidRequest, match="no such resident memory as 'heights'"):
        registry.free("heights", None, None, force=False)


def test_what_is_being_filled_is_not_freed() -> None:
    """It is its filler's, and who waits for it would wait for ever."""
    registry = Registry(0)
    registry.wanted(A, V1, SMALL)
    with pytest.raises(errors.InvalidRequest, match="being filled by device 0 generation 1"):
        registry.free("weights", None, None, force=True)


def test_what_is_corrupt_is_handed_to_nobody_any_more() -> None:
    """The next one who asks fills it anew."""
    registry = sealed(V1)
    registry.wanted(B, V1, SMALL)
    assert registry.rejected(B, V1) == [Drop(V1)]
    assert registry.rejected(B, V1) == []
    assert registry.wanted(B, V1, SMALL) == [FillOrder(B, V1)]


@pytest.mark.parametrize("said", ["sealed", "abandoned"])
def test_only_its_filler_may_seal_it(said: str) -> None:
    """A process that breaks the protocol gets an error."""
    registry = Registry(0)
    registry.wanted(A, V1, SMALL)
    registry.wanted(B, V1, SMALL)
    with pytest.raises(errors.ProtocolError):
        getattr(registry, said)(B, V1)
    with pytest.raises(errors.ProtocolError):
        getattr(registry, said)(A, V2)
    with pytest.raises(errors.ProtocolError):
        registry.wanted(A, V1, SMALL)
    with pytest.raises(errors.ProtocolError):
        registry.wanted(B, V1, SMALL)


KEYS = [Key(device, name, version) for device in (0, 1) for name in ("a", "b") for version in ("1", "2", "3")]
QUOTA = 45


class AnyWalk(RuleBasedStateMachine):
    """Processes that ask, fill, give up and die in any order, an operator who frees, and what each has heard."""

    def __init__(self) -> None:
        super().__init__()
        self.registry = Registry(QUOTA)
        self.generations = [0, 0, 0]
        self.living: set[Worker] = set()
        self.stuck: set[Worker] = set()
        self.waiting: dict[Worker, Key] = {}
        self.filling: dict[Worker, Key] = {}
        self.mapped: dict[Worker, set[Key]] = {}
        self.kept: set[Key] = set()
        """What the supervisor has descriptors of."""

    def carry_out(self, actions: Iterable[Action]) -> None:
        """Do as the supervisor does."""
        for action in actions:
            match action:
                case Drop(key):
                    self.kept.remove(key)
                case FillOrder(worker, key):
                    assert self.waiting.pop(worker) == key
                    assert key not in self.filling.values()
                    self.filling[worker] = key
                case Adopt(worker, key):
                    assert self.waiting.pop(worker) == key
                    assert key in self.kept
                    self.mapped[worker].add(key)
                case Refuse(worker, key):
                    assert self.waiting.pop(worker) == key

    @rule(device=st.integers(0, 2))
    def start(self, device: int) -> None:
        """A device has up to two processes."""
        if sum(worker[0] == device for worker in self.living) < 2:
            self.generations[device] += 1
            worker = (device, self.generations[device])
            self.living.add(worker)
            self.mapped[worker] = set()

    @precondition(lambda self: self.living)
    @rule(data=st.data(), key=st.sampled_from(KEYS), other=st.booleans())
    def ask(self, data: Any, key: Key, other: bool) -> None:  # noqa: FBT001 - drawn
        """One that does not wait asks."""
        worker = data.draw(st.sampled_from(sorted(self.living)))
        if worker not in self.waiting and worker not in self.filling and key not in self.mapped[worker]:
            self.waiting[worker] = key
            self.carry_out(self.registry.wanted(worker, key, OTHER if other else SMALL))

    @precondition(lambda self: self.filling)
    @rule(data=st.data(), gives_up=st.booleans())
    def fill(self, data: Any, gives_up: bool) -> None:  # noqa: FBT001 - drawn
        """A filler seals, or gives up."""
        worker = data.draw(st.sampled_from(sorted(self.filling)))
        key = self.filling.pop(worker)
        if gives_up:
            self.carry_out(self.registry.abandoned(worker, key))
        else:
            self.kept.add(key)
            self.mapped[worker].add(key)
            self.carry_out(self.registry.sealed(worker, key))

    @precondition(lambda self: self.living)
    @rule(data=st.data(), sticks=st.booleans())
    def end(self, data: Any, sticks: bool) -> None:  # noqa: FBT001 - drawn
        """Any process ends at any time, or is killed and does not."""
        worker = data.draw(st.sampled_from(sorted(self.living)))
        self.living.remove(worker)
        self.waiting.pop(worker, None)
        self.filling.pop(worker, None)
        if sticks:
            self.stuck.add(worker)
        else:
            del self.mapped[worker]
        self.carry_out(self.registry.ended(worker, stuck=sticks))

    @precondition(lambda self: self.stuck)
    @rule(data=st.data())
    def end_after_all(self, data: Any) -> None:
        """A stuck process ends."""
        worker = data.draw(st.sampled_from(sorted(self.stuck)))
        self.stuck.remove(worker)
        del self.mapped[worker]
        self.carry_out(self.registry.ended(worker))

    @rule(name=st.sampled_from("ab"), device=st.sampled_from([None, 0, 1]), force=st.booleans())
    def free(self, name: str, device: int | None, force: bool) -> None:  # noqa: FBT001 - drawn
        """An operator frees."""
        try:
            _, actions = self.registry.free(name, device, None, force=force)
        except errors.InvalidRequest:
            return
        for action in actions:
            assert isinstance(action, Drop)
            assert force or not any(action.key in keys for keys in self.mapped.values())
        self.carry_out(actions)

    @invariant()
    def nobody_waits_for_nothing(self) -> None:
        """Who waits, waits for a living filler."""
        assert set(self.waiting.values()) <= set(self.filling.values())
        assert set(self.filling) <= self.living

    @invariant()
    def what_is_kept_is_what_can_be_handed_out(self) -> None:
        """One descriptor for each sealed blob, and none for another."""
        sealed_now = [blob.key for blob in self.registry.blobs if blob.state is BlobState.SEALED]
        assert sorted(sealed_now) == sorted(self.kept)

    @invariant()
    def the_quota_holds(self) -> None:
        """Always."""
        assert self.registry.nbytes <= QUOTA

    @invariant()
    def no_version_outlives_its_use(self) -> None:
        """Only the latest version of unused memory is kept; nothing is held for the dead."""
        for blob in self.registry.blobs:
            assert blob.users <= self.living | self.stuck
            assert blob.state is not BlobState.FREED or blob.users
        unused = [blob for blob in self.registry.blobs if blob.state is BlobState.SEALED and not blob.users]
        for blob in unused:
            newer = [
                other
                for other in self.registry.blobs
                if other.key[:2] == blob.key[:2] and other.state is BlobState.SEALED and other.sealed > blob.sealed
            ]
            assert not newer


test_any_walk = AnyWalk.TestCase
