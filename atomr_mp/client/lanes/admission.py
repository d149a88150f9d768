"""Admits waiting calls as soon as the window has room."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from atomr_mp import checks
from atomr_mp.client.lanes.backlog import Backlog
from atomr_mp.client.lanes.device_link import DeviceLink, unavailable
from atomr_mp.client.lanes.homes import Home
from atomr_mp.client.lanes.link_life import REFUSING
from atomr_mp.client.lanes.outcomes import Outcomes
from atomr_mp.client.lanes.sending import Sender
from atomr_mp.client.reply_life import ReplyEvent


@checks.owned()
class BacklogAdmission:
    """A part of a lane. Call it with the lane's lock held.

    Args:
        links: The lane's links, by device.
        backlog: The waiting calls.
        outcomes: Ends replies.
        sender: Sends requests.
        settle_gangs: Sends calls of worlds that wait, if they can be sent now, or ends them.
    """

    def __init__(
        self,
        links: Sequence[DeviceLink],
        backlog: Backlog,
        outcomes: Outcomes,
        sender: Sender,
        settle_gangs: Callable[[], None],
    ) -> None:
        self._links = links
        self._backlog = backlog
        self._outcomes = outcomes
        self._sender = sender
        self._settle_gangs = settle_gangs
        self._admitting = False

    def settle(self) -> None:
        """Send requests that were put back into queues, and waiting calls that have room, to any device.

        Those that were put back for a device that takes no work now are refused, as if they were called now.
        """
        for link in self._links:
            if link.held and link.state in REFUSING:
                for reply in [*link.held]:
                    self._outcomes.feed(reply, ReplyEvent.FAIL, unavailable(link))
        if self._backlog.count:
            self.admit()
        self._sender.flush_ready()

    def admit(self) -> None:
        """Send waiting calls while there is room; end those that wait for a device that takes no work."""
        if self._admitting:  # sending may show that a connection is lost
            return
        self._admitting = True
        try:
            refusing = set()
            for link in self._links:
                if link.state in REFUSING:
                    refusing.add(link.device)
                else:
                    self._admit_to(link, sends=link.sending)
            if refusing:
                for devices in self._backlog.homes():
                    if refusing.issuperset(devices):
                        self._refuse(devices)
            self._settle_gangs()
        finally:
            self._admitting = False

    def _admit_to(self, link: DeviceLink, *, sends: bool) -> None:
        """Send the calls for which a device has room; if it holds them, leave those that another device would send."""
        links, backlog, let_in = self._links, self._backlog, False

        def may_take(devices: Home) -> bool:
            return not any(links[device].sending for device in devices)

        while backlog.count and (reply := backlog.admit(link.device, None if sends else may_take)) is not None:
            let_in = True
            reply.device = link.device
            self._outcomes.feed(reply, ReplyEvent.ADMIT)
            self._sender.put(link, reply)
            self._outcomes.tell_news(reply)
        if let_in and link.sending:
            self._sender.flush(link)

    def _refuse(self, devices: Home) -> None:
        for reply in self._backlog.replies(devices):
            self._outcomes.feed(reply, ReplyEvent.FAIL, unavailable(self._links[devices[0]]))
