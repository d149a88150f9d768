"""An example's arguments reach its method as a client's do, whatever they are, and leave no memory behind."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from atomr_mp import errors
from atomr_mp.client.memory import argument_slabs
from atomr_mp.client.memory.argument_slabs import ClientSlabs
from atomr_mp.interop.host import kept_by
from atomr_mp.protocol import values
from atomr_mp.protocol.allocation import aligned
from atomr_mp.protocol.messages.control import ActorSpec
from atomr_mp_workers import Actor, DeviceArray, example_arguments, method
from atomr_mp_workers.example_arguments import ExampleArguments
from atomr_mp_workers.loading import load
from atomr_mp_workers.requests.peers import AdmittedSession
from tests.pure.worker.test_dispatch import Worker

LIMIT: Final = 2**16


class Taking(Actor):
    """Has a method that takes anything, and refs."""

    @method(writes=["written"])
    def take(self, first: Any, second: Any, handle: DeviceArray | None, written: Any) -> None:
        """Do nothing."""


@pytest.fixture
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have what decides how an array travels come at a thousandth of its size."""
    monkeypatch.setattr(values, "INLINE_BYTES", 64)
    monkeypatch.setattr(values, "SHARED_BYTES", 512)
    monkeypatch.setattr(values, "MAX_PAYLOAD_BYTES", 2048)
    monkeypatch.setattr(example_arguments, "CLIENT_SLAB_BYTES", LIMIT)
    for module in (argument_slabs, example_arguments):
        monkeypatch.setattr(module, "MAX_PAYLOAD_BYTES", 2048)
        monkeypatch.setattr(module, "slab_bytes_for", lambda nbytes: max(aligned(nbytes), 2**12))


sizes = st.sampled_from([0, 3, 9, 63, 64, 65, 200, 511, 512, 513, 2049, 5000, LIMIT // 8, LIMIT // 8 + 1])
steps = st.sampled_from([1, 2, -1])
types = st.sampled_from(["|u1", "<f4", ">f8", "<i2", "|b1", "<c16", ">u4"])


def made(size: int, step: int, dtype: str) -> np.ndarray[Any, Any]:
    """Return an array of any element type, byte order and stride."""
    return (np.arange(2 * size) % 100).astype(dtype)[::step][:size]


arrays = st.builds(made, sizes, steps, types)
anything = st.recursive(
    st.one_of(arrays, st.none(), st.integers(-9, 9), st.text(max_size=3)),
    lambda inner: st.one_of(st.lists(inner, max_size=12), st.dictionaries(st.text(max_size=3), inner, max_size=3)),
    max_leaves=20,
)


def seen(value: Any) -> Any:
    """Return all that a method can tell of an argument."""
    if isinstance(value, list | tuple):
        return [seen(each) for each in value]
    if isinstance(value, dict):
        return {name: seen(each) for name, each in value.items()}
    if isinstance(value, DeviceArray):
        return "ref", value.dtype, value.shape, value.array.tobytes()
    if isinstance(value, np.ndarray):
        flags = value.flags.writeable, value.flags.c_contiguous
        return "array", value.dtype.str, value.shape, value.tobytes(), flags, type(kept_by(value))
    return value


@pytest.mark.usefixtures("_small")
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    plain=st.lists(anything, min_size=2, max_size=2),
    handle=st.none() | arrays,
    written=arrays,
    by_name=st.booleans(),
)
def test_an_example_s_arguments_arrive_as_a_client_s(
    *, plain: list[Any], handle: Any, written: Any, by_name: bool
) -> None:
    """What a client can send an example can, what a client cannot is refused; then all memory is given back."""
    worker = Worker()
    store, client, own = worker.store, worker.client(1).session, worker.client(2).session
    (take,) = load(ActorSpec("Taking", f"{__name__}:Taking")).methods
    numbers = itertools.count(1)

    def given_as(items: list[Any]) -> Any:
        return dict(zip(take.info.parameters, items, strict=True)) if by_name else tuple(items)

    def register(nbytes: int, descriptor: int) -> int:
        number = next(numbers)
        store.add_client_slab(1, number, worker.device.open_client_slab(nbytes, os.dup(descriptor)))
        return number

    def arrived(session: AdmittedSession, body: bytes, frames: Sequence[bytes]) -> Any:
        arguments = take.arguments(body, [memoryview(each) for each in frames], session.resolve)
        session.holder.resolved.clear()
        return seen(arguments)

    refs = [None if each is None else store.buffers.keep(client.holder, each) for each in (handle, written)]
    for ref in filter(None, refs):
        store.lease(client.holder, ref)
    slabs = ClientSlabs(register, lambda _slab: None, LIMIT)
    expected = None
    with contextlib.suppress(errors.InvalidRequest, errors.Overloaded):
        expected = arrived(client, *values.encode(given_as([*plain, *refs]), slabs.place)[:2])

    arguments = ExampleArguments(own.holder, store)
    take.example = lambda: given_as([*plain, handle, written])
    if expected is None:
        event("refused")
        with pytest.raises(errors.InvalidRequest):
            arguments.make(take)
        return
    body, frames, count = arguments.make(take)
    event(f"{min(len(own.holder.client_slabs), 2)} slabs, {min(len(frames), 2)} frames")
    assert count == len(list(filter(None, refs)))
    assert arrived(own, body, frames) == expected
    take.example = lambda: given_as([None] * 4)
    arguments.make(take)
    assert (own.holder.client_slabs, own.holder.leases) == ({}, {})
    store.tidy()
    assert not any(slab.space for slab in own.holder.slabs)
