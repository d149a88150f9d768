"""Where a client sends requests whose actor only some devices have."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atomr_mp import errors
from atomr_mp.client.lanes.homes import home_for, homes_of
from atomr_mp.protocol.messages.devices import ActorInfo

homes = st.dictionaries(st.sampled_from("ABC"), st.lists(st.integers(0, 5), unique=True).map(sorted))


@given(homes, st.sampled_from("ABCD"), st.none() | st.integers(0, 5))
def test_a_request_goes_to_a_device_of_its_actor_or_is_refused(
    placed: dict[str, list[int]], actor: str, device: int | None
) -> None:
    """No devices stand for all of them. The refusal names those that have it."""
    found = homes_of([ActorInfo(name, [], devices) for name, devices in placed.items()])
    own = placed.get(actor)
    if own and device is not None and device not in own:
        with pytest.raises(errors.InvalidRequest, match=rf"^{actor}\.run cannot run on device {device}: ") as refused:
            home_for(found, f"{actor}.run", device)
        assert all(str(each) in refused.value.message for each in own)
        assert refused.value.maybe_executed is False
        return
    assert home_for(found, f"{actor}.run", device) == (tuple(own) if own else None)
