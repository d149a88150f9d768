"""What a client knows of requests: what no device will tell is not waited for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from atomr_mp import errors
from atomr_mp.client.known_methods import KnownMethods
from atomr_mp.protocol.messages.devices import DeviceState


class Starting:
    """A session of a pool none of whose devices has been ready."""

    lost = None
    methods: dict[str, Any] = {}  # noqa: RUF012 - none for all
    homes = {"Placed": (1,)}  # noqa: RUF012

    def __init__(self, *states: DeviceState) -> None:
        self.devices = [SimpleNamespace(admitted=False, state=state, reason="no such GPU") for state in states]

    def read_session(self) -> None:
        """Tell nothing new."""

    def wait_until(self, condition: Callable[[], bool], _timeout_s: float) -> bool:
        """Wait for no time."""
        return condition()

    async def until(self, condition: Callable[[], bool], _until_s: float) -> bool:
        """Wait for no time."""
        return condition()


@pytest.mark.parametrize("method", ["Any.one", "Placed.one"])
def test_a_method_of_devices_that_start_no_more_is_not_waited_for(method: str) -> None:
    """In threads and in tasks: its devices are out of use, whatever the others do."""
    other = DeviceState.STARTING if method == "Placed.one" else DeviceState.STOPPED
    known = KnownMethods(Starting(other, DeviceState.STOPPED))  # type: ignore[arg-type]
    with pytest.raises(errors.DeviceUnavailable, match=r"in use.*no such GPU"):
        known.known(method, 60.0)
    with pytest.raises(errors.DeviceUnavailable, match=r"in use.*no such GPU"):
        asyncio.run(known.arrival(method, 60.0))


def test_a_method_that_is_not_told_in_time_is_no_wrong_method() -> None:
    """Its caller hears that the pool starts still."""
    known = KnownMethods(Starting(DeviceState.STARTING, DeviceState.STOPPED))  # type: ignore[arg-type]
    for ask in (known.known, known.has):
        with pytest.raises(errors.DeadlineExceeded, match="starting still after 2 s"):
            ask("Any.one", 2.0)
