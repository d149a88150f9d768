"""The table of a link's life, walked in a model of one device, its connection and its calls.

The model is small enough to be explored completely, so what holds in it holds on every walk.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace

import pytest

from atomr_mp.client.lanes.link_life import (
    LAST_RETRY_S,
    MOST_FAILURES,
    REFUSING,
    TRANSITIONS,
    LinkAction,
    LinkEvent,
    LinkState,
    UnexpectedLinkEventError,
    failed,
    heard,
    retry_s,
    step,
)
from atomr_mp.protocol.messages.devices import DeviceInfo, DeviceState

E, S, A = LinkEvent, LinkState, LinkAction


@dataclass(frozen=True)
class Link:
    """A link: what is true in the world, beside the table's state."""

    state: LinkState = S.HOLDING
    known: bool = False
    """There is a current incarnation, which has not ended for this lane."""
    connected: bool = False
    alive: bool = False
    """The connection has not ended."""
    admitted: bool = False
    """The worker has let it in."""
    ending: bool = False
    """The incarnation has answered that it ends."""
    former: bool = False
    """The one before it has not ended for this lane."""
    held: bool = False
    """A call waits for the device."""
    sent: bool = False
    """A call is on the connection, or was on one that is lost."""
    sent_before: bool = False
    """A call is on the former incarnation."""
    timer: bool = False
    untold: bool = False
    """The worker does not know that a connection was lost."""
    asked: bool = False
    """CONNECT was done: its result is the next event."""

    def possible(self) -> list[LinkEvent]:
        """Return what can happen now."""
        if self.asked:
            return [E.CONNECTED, E.REFUSED]
        if self.state is S.OVER:
            return [E.FATAL, E.CUT]
        events = [E.OFFERED, E.SERVES, E.HOLDS, E.CLOSES, E.FORMER_ENDED, E.ENDED, E.POOL_LOST]
        if self.state in {S.TRYING, S.PROBING}:
            return [*events, E.ADMITTED, E.REFUSED, E.GIVEN_UP]
        if self.connected:
            events += [E.CUT, E.FATAL]
            if self.state is S.SERVING:
                events.append(E.ADMITTED)
        elif self.state is S.HOLDING or self.state is S.CLOSED:
            events += [E.CUT, E.FATAL]  # found out while the last answers were taken in
        if self.state is S.CUT:
            events += [E.CUT, E.FATAL]
        if self.timer:
            events.append(E.RETRY)
        return events

    def called(self) -> Link:
        """Return the link after a call."""
        if self.state is S.SERVING:
            assert self.connected
            return replace(self, sent=True)
        return self if self.state in REFUSING or self.state is S.OVER else replace(self, held=True)

    def after(self, event: LinkEvent) -> Link:
        """Return the link after an event, having checked every promise that the step could break."""
        to = step(self.state, event)
        link = replace(self, state=to.state, asked=False)
        if event is E.RETRY or self.state is not to.state:
            link = replace(link, timer=False)
        if event is E.CUT or (event in {E.REFUSED, E.GIVEN_UP} and self.connected):
            link = replace(link, alive=False, untold=self.known)
        if event is E.CONNECTED:
            link = replace(link, connected=True, alive=True, admitted=False)
        if event is E.ADMITTED:
            link = replace(link, admitted=True)
        if event is E.FATAL:
            link = replace(link, ending=True)
        taken = self.state in {S.TRYING, S.PROBING}  # nothing was sent there
        for action in to.actions:
            link = link.act(action, event, taken=taken)
            taken |= action is A.TAKE_LAST
        if event is E.ENDED:
            link = replace(link, known=False)
        link.check()
        return link

    def act(self, action: LinkAction, event: LinkEvent, *, taken: bool) -> Link:  # noqa: C901, PLR0911, PLR0912 - one case for each
        """Return the link after an action."""
        match action:
            case A.SEND_HELD:
                assert self.connected, "sent to nobody"
                assert self.alive, "sent on a connection that is lost"
                assert self.known, "sent to what was let go"
                assert not self.ending, "sent to what ends"
                assert not self.untold, "it may wait for what was lost"
                return replace(self, held=False, sent=self.sent or self.held)
            case A.REFUSE_HELD:
                assert self.state in REFUSING
                return replace(self, held=False)
            case A.RETIRE:
                kept = self.known or self.sent
                return replace(
                    self, connected=False, former=kept, sent_before=self.sent_before or self.sent, sent=False
                )
            case A.CONNECT:
                assert not self.connected, "two connections to one incarnation"
                new = event is E.OFFERED
                # Calls lost with a connection to the former relay are settled with its end.
                before = self.sent_before or (new and self.sent)
                link = replace(self, asked=True, known=True, sent_before=before, former=self.former or before)
                return replace(link, ending=False, sent=False, untold=False) if new else link
            case A.CLOSE:
                assert taken or not self.alive or not self.sent, "answers are thrown away"
                return replace(self, connected=False, alive=False)
            case A.TAKE_FORMER:
                return replace(self, former=False)
            case A.RESOLVE:
                return replace(self, sent=False) if event is E.ENDED else replace(self, sent_before=False)
            case A.UNSEND:
                return self if self.admitted else replace(self, sent=False, held=self.held or self.sent)
            case A.LOSE:
                assert event in {E.ADMITTED, E.GIVEN_UP}, "lost, though its worker may have died"
                return replace(self, sent=False)
            case A.ARM:
                return replace(self, timer=True)
            case A.DRAIN:
                return replace(self, connected=False, alive=False)
            case A.FAIL_ALL:
                return replace(self, held=False, sent=False, sent_before=False)
            case A.REPEAT:
                assert self.connected
                assert self.admitted
                return replace(self, untold=False)
            case A.TELL:
                assert event in {E.REFUSED, E.GIVEN_UP, E.ADMITTED}
                return self
            case A.HOLD | A.CONDEMN | A.TAKE_LAST:
                return self

    def check(self) -> None:
        """Check what holds in every state."""
        if self.state is S.SERVING:
            assert self.connected
            assert not self.untold, "calls may wait for what was lost"
            assert not self.held, "a call waits though it could be sent"
        if self.state in {S.CUT, S.UNREACHABLE}:
            assert self.timer, "nothing leads to the next attempt"
        if self.state in REFUSING:
            assert not self.held, "a call waits for a device that takes none"
        if self.state in {S.UNREACHABLE, S.PROBING}:
            assert not self.sent, "a call waits for an answer that does not come"
        if self.state is S.OVER:
            assert not any((self.held, self.sent, self.sent_before))
        assert self.asked or self.state is not S.CONNECTING


def walked() -> tuple[set[Link], set[tuple[LinkState, LinkEvent]]]:
    """Return every link that can be, and every pair of the table that was met."""
    found, met, left = {Link()}, set(), deque([Link()])
    while left:
        link = left.popleft()
        afters = [] if link.asked else [link.called()]
        for event in link.possible():
            met.add((link.state, event))
            afters.append(link.after(event))
        for after in afters:
            if after not in found:
                found.add(after)
                left.append(after)
    return found, met


def test_every_walk_keeps_the_promises() -> None:
    """Nothing is sent to what was closed, nothing waits where nothing comes, and an attempt follows a lost one."""
    found, _ = walked()
    assert {link.state for link in found} == set(S)


def test_the_table_has_a_row_for_what_can_happen_and_no_other() -> None:
    """A pair that cannot be met is refused."""
    _, met = walked()
    assert met == set(TRANSITIONS)
    with pytest.raises(UnexpectedLinkEventError, match="retry has no meaning while a link is serving"):
        step(S.SERVING, E.RETRY)


def test_attempts_become_rarer_and_then_the_device_is_unreachable() -> None:
    """They never end, and never come in a hurry."""
    delays = [retry_s(failures) for failures in range(1000)]
    assert delays == sorted(delays)
    assert delays[0] < delays[-1] == LAST_RETRY_S
    assert [failed(failures) for failures in (1, MOST_FAILURES - 1, MOST_FAILURES)] == [
        E.REFUSED,
        E.REFUSED,
        E.GIVEN_UP,
    ]


@pytest.mark.parametrize(
    ("state", "generation", "admitted", "event"),
    [
        (DeviceState.READY, 2, True, E.OFFERED),
        (DeviceState.READY, 1, True, E.SERVES),
        (DeviceState.READY, 2, False, E.HOLDS),
        (DeviceState.LOST, 1, True, E.HOLDS),
        (DeviceState.STOPPING, 1, True, E.CLOSES),
        (DeviceState.QUARANTINED, 1, False, E.CLOSES),
        (DeviceState.TRIPPED, 1, False, E.CLOSES),
    ],
)
def test_news_of_a_device_are_one_event(
    state: DeviceState, generation: int, *, admitted: bool, event: LinkEvent
) -> None:
    """The event depends on the device's state, and on whether its incarnation is known."""
    assert heard(1, DeviceInfo(0, "host:0", state, generation, "", admitted, 1, 0, "")) is event
