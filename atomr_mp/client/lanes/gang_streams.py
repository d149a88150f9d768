"""What streams of worlds need besides what their calls do: room, parts from rank 0, and an end that rank 0 hears of."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import cast

from atomr_mp import checks, errors
from atomr_mp.client.lanes.device_link import DeviceLink
from atomr_mp.client.lanes.outcomes import Outcomes
from atomr_mp.client.reply import StreamReply
from atomr_mp.client.worlds.gang_stream import GangStream, GangStreamPart, part_of
from atomr_mp.protocol.messages import data
from atomr_mp.protocol.messages.devices import WorldInfo


@checks.owned()
class GangStreams:
    """A part of a lane. Call it with the lane's lock held.

    Args:
        links: The lane's links, by device.
        outcomes: Keeps parts.
    """

    def __init__(self, links: Sequence[DeviceLink], outcomes: Outcomes) -> None:
        self._links = links
        self._outcomes = outcomes

    def room(self, world: WorldInfo) -> errors.Overloaded | None:
        """Return why no further stream can be open on some member, None if it can on all."""
        try:
            for device in world.devices:
                self._links[device].flight.check_streams()
        except errors.Overloaded as full:
            full.message = f"the stream was opened on no rank of the world {world.name}: {full.message}"
            return full
        return None

    def parts(
        self, stream: GangStream, world: WorldInfo, name: data.Gang, ids: Iterator[int]
    ) -> Iterator[GangStreamPart]:
        """Yield a stream's parts by rank. There is room for all."""
        for rank, device in enumerate(world.devices):
            part = part_of(stream, name, next(ids), rank)
            self._links[device].flight.let_in_stream(part.id, part)
            if not rank:
                part.on_part = self._pass_on
            yield part

    def _pass_on(self, part: StreamReply) -> None:
        """Give the whole stream what rank 0 has sent."""
        part = cast("GangStreamPart", part)
        whole = part.of
        if whole is None or whole.is_over:
            part.arrived.clear()
            return
        while part.arrived:
            self._outcomes.keep_part(whole, part.arrived.popleft())
        self._outcomes.tell_parts(whole)
