"""Parts of calls whose client has closed a connection before it could send the others."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import pytest

from atomr_mp.client.lanes.sending import Sender
from tests.support import ACTORS, DEADLINE_S, Ledger, settled
from tests.worlds import start

STREAMING: Final = f"{ACTORS}/streaming_worldly.py:Streaming"


@pytest.mark.parametrize("kind", ["call", "stream"])
@pytest.mark.parametrize("unsent", [0, 1])
def test_parts_of_a_lane_that_was_closed_amid_its_login_do_not_stay(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, kind: str, unsent: int
) -> None:
    """On the ranks that have them: the call runs nowhere, and the session and the epoch go on."""
    with start(ledger, STREAMING, 2, 1.0, drain_timeout_s=2 * DEADLINE_S) as pool:
        world = pool.world("tp")
        put: Any = Sender.put

        def held(self: Sender, link: Any, reply: Any) -> None:
            if link.device != unsent:  # as if its login were not answered yet
                put(self, link, reply)

        def depths() -> list[int]:
            return [each.queue_depth for each in pool.status().devices]

        async def main() -> None:
            assert await world.call("Streaming.note", "before") == 3.0
            monkeypatch.setattr(Sender, "put", held)
            if kind == "call":
                world.call("Streaming.note", "never")
            else:
                world.stream("Streaming.count", "never", 3)
            while not any(depths()):  # noqa: ASYNC110 - another process has the event
                await asyncio.sleep(0.01)

        asyncio.run(main())
        monkeypatch.setattr(Sender, "put", put)
        assert settled(lambda: depths() == [0, 0], DEADLINE_S)
        assert world.call("Streaming.noted", each=True).result(DEADLINE_S) == [["before"], ["before"]]
        assert world.epoch == 1
