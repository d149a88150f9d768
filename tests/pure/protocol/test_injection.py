from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from atomr_mp.protocol.messages import injection
from atomr_mp.protocol.messages.injection import Exit, Fail, Hang, HangInKernel, Kill, NoMemory, Order, Poison

FAULTS = st.one_of(
    st.builds(Kill, st.integers(1, 64)),
    st.builds(Exit, st.integers(0, 255)),
    st.builds(Fail, st.text(max_size=20)),
    st.builds(Poison, st.sampled_from([700, 710, 716, 719])),
    st.builds(Hang, st.none() | st.floats(0, 10), st.booleans()),
    st.builds(HangInKernel, st.none() | st.floats(0, 10)),
    st.builds(NoMemory),
)
ORDERS = st.builds(
    Order,
    st.sampled_from(["setup", "decode"]),
    FAULTS,
    st.none() | st.integers(0, 2),
    st.none() | st.integers(1, 3),
    st.sampled_from(["", "A.b"]),
)
PLACES = st.tuples(
    st.sampled_from(["setup", "decode"]),
    st.none() | st.integers(0, 2),
    st.integers(0, 3),
    st.sampled_from(["", "A.b", "A.c"]),
)


@given(st.lists(st.tuples(ORDERS, st.none() | st.integers(0, 3)), max_size=5), st.lists(PLACES, max_size=30))
def test_each_order_is_carried_out_as_often_as_it_was_given(
    orders: list[tuple[Order, int | None]], places: list[tuple[str, int | None, int, str]]
) -> None:
    """Where it fits, the oldest first, and never elsewhere."""
    files: dict[str, bytes] = {}
    left = {}
    for number, (order, times) in enumerate(orders):
        left[number] = times
        files |= dict.fromkeys(injection.names(number, times), msgspec.json.encode(order))
        files[injection.fired(f"{number:06}-x")] = b"a pipe, of no interest to whoever looks for orders"
    for place in places:
        expected = next((n for n, (order, _) in enumerate(orders) if left[n] != 0 and order.fits(*place)), None)
        name, fault = next(injection.found(list(files), files.__getitem__, *place), ("", None))
        assert (fault is None) is (expected is None)
        if expected is not None:
            assert fault == orders[expected][0].fault
            assert injection.fired(name) == f"{expected:06}.fired"
            if not injection.lasts(name):
                del files[name]
                left[expected] = (left[expected] or 0) - 1


def test_what_another_has_taken_is_passed_over() -> None:
    """Between the look into the directory and that into the file."""

    def read(name: str) -> bytes:
        if name == "000001-000000":
            raise FileNotFoundError(name)
        return msgspec.json.encode(Order("setup", Kill()))

    found = list(injection.found(["000001-000000", "000002-000000"], read, "setup", 0, 1, ""))
    assert [name for name, _ in found] == ["000002-000000"]
