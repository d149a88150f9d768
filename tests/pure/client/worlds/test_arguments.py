"""The arguments of a gang call: a large array is copied once, and each part names it by a number of its own."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from atomr_mp import errors
from atomr_mp.client.memory.argument_slabs import ClientSlabs
from atomr_mp.client.memory.leases import Releases
from atomr_mp.client.worlds.arguments import encoded
from atomr_mp.protocol import token, values
from atomr_mp.protocol.refs import ClientArray, WireRef
from tests.pure.client.test_client_slabs import FakeWorkers

RELEASES = Releases(token.pack(bytes(16), 0, 1))


@pytest.fixture
def slabs() -> ClientSlabs:
    """Memory that fake workers map."""
    return ClientSlabs(FakeWorkers().register, lambda _number: None)


def test_small_arguments_are_encoded_once_for_all_parts(slabs: ClientSlabs) -> None:
    """Their bytes are the same object in each."""
    arguments = encoded("Mlp.forward", [1, np.ones(3)], slabs.place)
    parts = [arguments.for_part(slabs.place) for _ in range(2)]
    assert all(body is arguments.body and frames is arguments.payload for body, frames, _ in parts)
    assert values.Decoder[Any]().decode(parts[0][0], parts[0][1])[0] == 1


def test_a_large_array_lies_in_shared_memory_once(slabs: ClientSlabs) -> None:
    """It may be written to at once, and its memory is free when the call and all parts have let it go."""
    array = np.arange(100_000.0)
    arguments = encoded("Mlp.forward", {"x": array, "n": [5]}, slabs.place)
    array[:] = 0
    parts = [arguments.for_part(slabs.place) for _ in range(3)]
    (first,) = slabs._slabs
    numbers = set()
    for body, frames, placed in parts:
        (placement,) = placed
        wire = placement.to_wire()
        assert isinstance(wire, ClientArray)
        numbers.add(wire.id)
        assert len(body) + sum(map(len, frames)) <= arguments.window_bytes

        def resolve(found: WireRef | ClientArray, wire: ClientArray = wire, placement: Any = placement) -> object:
            assert isinstance(found, ClientArray)
            assert found.id == wire.id
            return placement.array

        seen = values.Decoder[Any]().decode(body, frames, resolve)
        assert seen["n"] == [5]
        assert (seen["x"] == np.arange(100_000.0)).all()
        del seen, resolve
    assert len(numbers) == 3
    assert arguments.nbytes >= array.nbytes
    assert len(slabs._uses) == 4, "one for the call, and one for each part"
    for _, _, placed in parts:
        for each in placed:
            slabs.answered(each, RELEASES, executed=True)  # type: ignore[arg-type]
    slabs.returned(numbers)
    del arguments, parts, placed, placement, each
    assert not slabs._uses
    assert not slabs._kept
    slabs.place(np.zeros(1))  # takes back what is out of use
    assert len(slabs._slabs) == 1
    assert slabs._slabs[0] is first


def test_a_ref_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """It lives on one device; the message names the way out."""
    ref = SimpleNamespace(to_wire=lambda: SimpleNamespace(buffer=1))
    monkeypatch.setattr(values, "encode", lambda _arguments, _place: (b"\x90", (), [ref]))
    with pytest.raises(errors.InvalidRequest, match="a ref lives on one device"):
        encoded("Mlp.forward", [], lambda _array: None)
