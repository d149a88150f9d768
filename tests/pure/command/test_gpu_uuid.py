"""GPUs known again by their UUIDs, as CuPy gives them."""

from __future__ import annotations

import uuid

from hypothesis import given
from hypothesis import strategies as st

from atomr_mp.interop.cuda import is_uuid

raws = st.binary(min_size=16, max_size=16) | st.lists(st.sampled_from([0, 1, 255]), min_size=16, max_size=16).map(bytes)


@given(raws)
def test_a_uuid_is_known_though_it_is_cut_at_a_zero(raw: bytes) -> None:
    """Whole, or as text that ends there."""
    name = f"GPU-{uuid.UUID(bytes=raw)}"
    assert is_uuid(name, raw)
    assert is_uuid(name, raw.split(b"\0")[0])


@given(raws, raws)
def test_another_uuid_is_another(one: bytes, other: bytes) -> None:
    """Unless they are the same up to a zero."""
    cut = other.split(b"\0")[0]
    same = one == other or (len(cut) < 16 and one.split(b"\0")[0] == cut)
    assert is_uuid(f"GPU-{uuid.UUID(bytes=one)}", cut) == same
