"""Views of refs, and of arrays of programs, actors and worlds: equal arguments give equal views, or equal errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atomr_mp import errors
from atomr_mp.client.memory.leases import Lease, Releases
from atomr_mp.client.memory.refs import GpuRef
from atomr_mp.libraries.program import Program
from atomr_mp.libraries.recording import ProgramArray
from atomr_mp.libraries.world_program import RankRefs
from atomr_mp.protocol import token
from atomr_mp.protocol.layout import Layout
from atomr_mp_workers.device.host import HostDevice
from atomr_mp_workers.memory.arrays import DeviceArray
from tests.actor_libraries import libraries_on
from tests.direct import DirectDevice
from tests.pure.client.test_refs import FakeClient

SHAPE = (2, 3, 4)

number = st.one_of(
    st.integers(-4, 24),
    st.integers(-4, 24).map(np.int64),
    st.integers(0, 24).map(np.uint8),
    st.sampled_from([8, 32, 96, np.int32(32), np.uint64(8)]),
    st.sampled_from([True, np.True_, 2.0, np.float32(8), "2", None, 2**70, -(2**70)]),
)
numbers = st.lists(number, max_size=4)
sequences = numbers.flatmap(lambda found: st.sampled_from([found, tuple(found)]))
slices = st.builds(slice, st.none() | st.integers(-4, 4).map(np.int64), st.none() | st.integers(-4, 4))
ways = st.one_of(
    st.tuples(st.sampled_from(["reshape", "transpose"]), numbers.map(tuple) | st.tuples(sequences)),
    st.tuples(st.just("transpose"), st.permutations([0, 1, np.int8(2)]).map(tuple)),
    st.tuples(st.just("reshape"), st.sampled_from([((2, 12),), (np.int64(6), -1), ([np.int64(4), 6],), (24.0,)])),
    st.tuples(st.just("as_strided"), st.tuples(sequences | number, sequences | number, number)),
    st.tuples(st.just("__getitem__"), st.tuples(number | slices | st.tuples(number, slices))),
)


def outcome(array: Any, way: str, arguments: tuple[Any, ...]) -> Any:
    """Return the layout of a view, counted from the array's place; or the type and the text of the error."""
    try:
        view = getattr(array, way)(*arguments)
    except (errors.InvalidRequest, errors.GpuRefNoIndex, errors.GpuRefOutOfExtent, ValueError, IndexError) as error:
        return type(error), str(error)
    assert type(view) is type(array)
    assert {type(each) for each in (*view.shape, *view.strides, view.layout.offset)} <= {int}
    return view.layout.at(view.layout.offset - array.layout.offset)


def ref(offset: int) -> GpuRef:
    """Return a ref at an offset of its slab."""
    client = FakeClient()
    lease = Lease(Releases(token.pack(client.epoch, 0, 2)), 0x5EED)
    return GpuRef(client.memory, lease, 4, Layout.contiguous("float64", SHAPE, offset))


def in_worker() -> DeviceArray:
    """Return an array as an actor has it."""
    store = libraries_on(HostDevice(), "host")._context.store
    return store.buffers.allocate(store.buffers.ours, "float64", SHAPE)


@given(ways)
def test_all_arrays_have_the_views_of_refs(way: tuple[str, tuple[Any, ...]]) -> None:
    """With tuples, lists, and NumPy's integers too; what is no whole number is refused where it is given."""
    of_ref = outcome(ref(0), *way)
    assert outcome(ProgramArray(object(), 0, Layout.contiguous("float64", SHAPE)), *way) == of_ref
    assert outcome(in_worker(), *way) == of_ref
    ranks = RankRefs([ref(512), ref(2048)])
    assert outcome(ranks, *way) == outcome(ref(512), *way)
    if isinstance(of_ref, Layout):
        first, second = getattr(ranks, way[0])(*way[1]).refs
        assert second.layout == first.layout.at(first.layout.offset + 1536)


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x.reshape((2, 2)),
        lambda x: x.reshape(np.int64(2), 2),
        lambda x: x.reshape([2, 2]).transpose((1, 0)),
        lambda x: x.as_strided((np.int64(2), 2), (np.int64(16), 8)),
    ],
)
def test_a_program_runs_with_views_of_any_whole_numbers(view: Callable[[Any], Any]) -> None:
    """They are sent as Python's."""
    device = libraries_on(HostDevice(), "host")
    with device.program() as p:
        x = p.input("x", (4,), "int64")
        p.returns(p.elementwise.add(view(x), view(x)))
    np.testing.assert_array_equal(np.sort(p.run(x=np.arange(4)).array, axis=None), [0, 2, 4, 6])


def test_a_truth_value_and_a_float_are_no_length() -> None:
    """They are refused as they are recorded."""
    with Program(DirectDevice()) as p:
        x: Any = p.input("x", (4,), "int64")
        cases: list[Callable[[], Any]] = [
            lambda: x.reshape(True, 4),
            lambda: x.as_strided((1,), (8.0,)),
            lambda: x.transpose(0.0),
        ]
        for refused in cases:
            with pytest.raises(errors.InvalidRequest, match="must be a whole number"):
                refused()
