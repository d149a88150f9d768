"""The target of a map's items: any device that has the method, or the world of the method's actor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from atomr_mp.client.lanes.homes import home_for
from atomr_mp.protocol.messages.devices import OUT_OF_USE

if TYPE_CHECKING:
    from atomr_mp.client.client import Client
    from atomr_mp.client.reply import ItemsReply, Reply


class ItemTarget:
    """Sends items to a method.

    Args:
        client: Through which the items go.
        method: "Actor.method".
        deadline_s: Deadline of each call.
        priority: Its priority; 0 for a method of a world's actor.
    """

    def __init__(self, client: Client, method: str, deadline_s: float, priority: int) -> None:
        self._client: Final = client
        self._method: Final = method
        self.deadline_s: Final = deadline_s
        self._priority: Final = priority
        self._world: Final = client.worlds.of(method)

    @property
    def takers(self) -> int:
        """How many take items beside each other: the devices in use that have the method, or one world."""
        if self._world is not None:
            return 1
        client = self._client
        home = home_for(client.homes, self._method, None)
        devices = client.devices if home is None else [client.devices[index] for index in home]
        return sum(device.state not in OUT_OF_USE for device in devices)

    @property
    def restarts(self) -> int:
        """Unplanned ends of workers so far."""
        return sum(device.restarts for device in self._client.devices)

    def send(self, item: Any, *, replays: int = 0, wait: bool | None = None) -> Reply:
        """Send an item.

        Args:
            item: The method's one argument.
            replays: How many ends of workers count for it already; see `Client.submit`.
            wait: Whether it may wait for room.

        Raises:
            AtomrError: It cannot be sent, or finds no room.
        """
        if self._world is not None:
            return self._client.submit_gang(
                self._world,
                self._method,
                (item,),
                each=False,
                deadline_s=self.deadline_s,
                wait=wait,
                replays=replays,
            )
        return self._client.submit(
            self._method,
            (item,),
            device=None,
            deadline_s=self.deadline_s,
            priority=self._priority,
            replays=replays,
            wait=wait,
        )

    def send_together(self, items: Sequence[Any]) -> ItemsReply:
        """Send items as one call to one device, from a running event loop.

        Raises:
            AtomrError: They cannot be sent, or not as one.
        """
        return self._client.submit_items(
            self._method, [(item,) for item in items], deadline_s=self.deadline_s, priority=self._priority
        )
