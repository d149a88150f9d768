"""The two ends of a channel, and a network between them that cuts at any byte: all bytes arrive once and in order.

The network is a fake: wires that carry packets in order, up to a cut. The client's channel is real, and so are the
relay's channels, but for what is behind them.
"""

from __future__ import annotations

import os
import random
import select
import time
from collections import deque
from pathlib import Path
from typing import Any, Final

import hypothesis
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from atomr_mp.protocol.messages.tunnel import ChannelKind
from atomr_mp.protocol.tunnel.flow import WINDOWS
from atomr_mp.protocol.values import Buffer
from atomr_mp.relay.channel import RelayChannel
from atomr_mp.relay.channels import RelayChannels
from atomr_mp.relay.router import Origin
from atomr_mp.remote.keys import AdmittedKey
from atomr_mp.tunnel.bell import Bells
from atomr_mp.tunnel.channel import ChannelCalls, ClientChannel, opening

ATTEMPT_NS: Final = 4 * 10**9
"""Longer than any attempt to connect may take."""
GRACE_S: Final = 1e6
KEY: Final = AdmittedKey(name="alice", public=["x"])
OF: Final = ChannelKind.LANE
STREAM: Final = random.Random(39).randbytes(65521) * 400
"""The bytes that both ends send: each differs from those around it."""


class Wire:
    """A connection of the fake network, with the face of the client's."""

    refused = forked = False
    changes = -1

    def __init__(self, number: int, bells: Bells) -> None:
        self.route = b"\x00" + number.to_bytes(4, "big")
        self.bells = bells
        self.up: deque[bytes] = deque()
        """Packets that the relay has not received."""
        self.down: deque[bytes] = deque()
        """Packets that the client has not received: they have left the relay."""
        self.here: deque[bytes] = deque()
        """Packets that have come to the client, which has not looked."""
        self.cut = False
        """It is cut, and the client may not have noticed."""
        self.gone = False
        """The relay has noticed."""
        self.ended = False

    def send(self, packet: Buffer) -> None:
        """Send a packet; it goes nowhere after a cut."""
        if not (self.cut or self.ended):
            self.up.append(bytes(packet))

    def receive(self) -> Buffer | None:
        """Return the next packet that has come."""
        if self.here:
            return self.here.popleft()
        if self.cut:
            self.ended = True
        else:
            self.bells.first.hush()
        return None

    def close(self, linger_ms: int = 500) -> None:
        """Close it; what was sent still arrives, if it is to linger."""
        self.ended = True
        if not linger_ms:
            self.up.clear()


class Echo(RelayChannel):
    """The relay's end of a byte stream; what is behind it takes and gives when the walk says so."""

    def __init__(self, route: bytes, send: Any, ended: Any) -> None:
        super().__init__(OF, route, send, ended)
        self.taken = bytearray()
        self.passed = 0

    def _receive(self, payload: memoryview) -> None:
        assert payload == stream(len(self.taken), len(payload))
        self.taken += payload

    def pass_on(self, count: int) -> None:
        """Let what is behind it take so many bytes."""
        self.passed += count
        self._passed_on(count)
        self._acknowledge()

    @property
    def room(self) -> int:
        """How many bytes may be said."""
        return self._outgoing.room

    def say(self, payload: bytes) -> None:
        """Give it bytes, for which it has room."""
        self._say(payload)

    def _has_room(self) -> None:
        pass

    def _close(self) -> None:
        pass


class Channels(RelayChannels):
    """The relay's channels, whose lanes have nothing of the kernel's behind them."""

    def _new(self, route: bytes, opened: Any, key: AdmittedKey, origin: Origin) -> RelayChannel:
        del opened, key, origin
        return Echo(route, self._send, self._ended)


def stream(start: int, count: int) -> bytes:
    """Return bytes of the one stream that both ends send."""
    return STREAM[start : start + count]


class Cuts(RuleBasedStateMachine):
    """A client's channel, the relay, and connections between them that are cut."""

    def __init__(self) -> None:
        super().__init__()
        self.wires: dict[bytes, Wire] = {}
        self.down_for_now = False
        """The relay cannot be dialled."""
        self.now_ns = time.monotonic_ns()
        self.wanted = 0
        self.relay = Channels(
            None,  # type: ignore[arg-type]  # no lane of the kernel's is opened
            self._to_client,
            lambda _: KEY,
            Path(),
            1,
            2**20,
            GRACE_S,
            lambda *_: None,
        )
        self.name = os.urandom(16)
        opens, calls = opening(OF, self.name, self.name, 1, 1), ChannelCalls(self._dial, self._cut)
        self.channel = ClientChannel(opens, calls, GRACE_S)
        self.sent = self.said = 0
        self.came = bytearray()
        self.echo: Echo | None = None
        self.ends = False
        """The relay's end has ended."""

    def _dial(self, bells: Bells) -> Any:
        if self.down_for_now:
            raise OSError("nobody is there")
        wire = Wire(len(self.wires), bells)
        self.wires[wire.route] = wire
        return wire

    def _readable(self) -> bool:
        poll = select.poll()
        poll.register(self.channel.fileno(), select.POLLIN)
        return bool(poll.poll(0))

    def _cut(self, _channel: ClientChannel) -> None:
        self.wanted += 1

    def _to_client(self, route: bytes, packet: bytes) -> bool:
        wire = self.wires[route]
        if wire.gone:
            return False
        if not wire.cut and not wire.ended:
            wire.down.append(bytes(packet))
        elif wire.ended:
            wire.gone = True  # libzmq finds out at a send, at the latest
            return False
        return True

    def _to_relay(self, wire: Wire) -> None:
        packet = wire.up.popleft()
        if not self.relay.take(wire.route, packet):
            self.relay.take_first(wire.route, packet, Origin("alice", "here"))
        named = self.relay._by_name.get(self.name)
        if named is not None:
            assert isinstance(named.channel, Echo)
            assert self.echo is None or self.echo is named.channel, "it was opened twice"
            self.echo = named.channel

    # --- the ends ----------------------------------------------------------------------------------------------------

    @rule(count=st.integers(1, 300_000) | st.integers(1, 50))
    def send(self, count: int) -> None:
        """The client sends."""
        self.sent += self.channel.send(stream(self.sent, count))

    @rule(most=st.integers(1, 20))
    def receive(self, most: int) -> None:
        """Receive at the client, if its descriptor is readable."""
        if not self._readable():
            return
        for _ in range(most):
            payload = self.channel.receive()
            if payload is None:
                return
            assert payload == stream(len(self.came), len(payload))
            self.came += payload

    @rule()
    def look(self) -> None:
        """The keeper looks, as it does all the time."""
        self.channel.keep(self.now_ns)

    @rule(data=st.data())
    @precondition(lambda self: self.echo is not None and not self.ends and self.echo.room > 0)
    def say(self, data: st.DataObject) -> None:
        """What is behind the relay gives it bytes."""
        assert self.echo is not None
        count = data.draw(st.integers(1, self.echo.room) | st.integers(1, min(50, self.echo.room)))
        self.echo.say(stream(self.said, count))
        self.said += count

    @rule(data=st.data())
    @precondition(lambda self: self.echo is not None and not self.ends and len(self.echo.taken) > self.echo.passed)
    def pass_on(self, data: st.DataObject) -> None:
        """What is behind the relay takes bytes."""
        assert self.echo is not None
        self.echo.pass_on(data.draw(st.integers(1, len(self.echo.taken) - self.echo.passed)))

    @rule()
    @precondition(lambda self: self.echo is not None and not self.ends)
    def end(self) -> None:
        """What is behind the relay ends, perhaps while the client is cut."""
        assert self.echo is not None
        self.echo.end()
        self.ends = True

    # --- the network -------------------------------------------------------------------------------------------------

    @rule(data=st.data())
    def carry(self, data: st.DataObject) -> None:
        """A connection carries packets, in either direction."""
        moving = [wire for wire in self.wires.values() if not wire.cut and (wire.up or wire.down)]
        if moving:
            wire = data.draw(st.sampled_from(moving))
            for _ in range(data.draw(st.integers(1, 8))):
                self._carry(wire)

    def _carry(self, wire: Wire) -> None:
        if wire.up:
            self._to_relay(wire)
        if wire.down:
            wire.here.append(wire.down.popleft())
            wire.bells.first.ring()

    @rule(data=st.data())
    def cut(self, data: st.DataObject) -> None:
        """The network cuts: packets that had passed it arrive, each end hears of it some time later."""
        living = [wire for wire in self.wires.values() if not wire.cut]
        if not living:
            return
        wire = data.draw(st.sampled_from(living))
        passed_up, passed_down = data.draw(st.integers(0, len(wire.up))), data.draw(st.integers(0, len(wire.down)))
        for _ in range(passed_up):
            self._to_relay(wire)
        for _ in range(min(passed_down, len(wire.down))):
            wire.here.append(wire.down.popleft())
        wire.up.clear()
        wire.down.clear()
        wire.cut = True
        wire.gone = data.draw(st.booleans())
        wire.bells.first.ring()

    @rule()
    def relay_looks(self) -> None:
        """The relay looks which connections have ended."""
        for wire in self.wires.values():
            wire.gone = wire.gone or wire.cut
        self.relay.look(self.now_ns / 1e9)

    @rule()
    def time_passes(self) -> None:
        """An attempt that has not come about is given up."""
        self.now_ns += ATTEMPT_NS

    @rule(down=st.booleans())
    def reach(self, *, down: bool) -> None:
        """The relay's machine is away, or back."""
        self.down_for_now = down

    # --- the law -----------------------------------------------------------------------------------------------------

    @invariant()
    def once_and_in_order(self) -> None:
        """All bytes are compared as they come; there are never more than were sent."""
        if self.echo is not None:
            assert len(self.echo.taken) <= self.sent
        assert len(self.came) <= self.said

    @invariant()
    def bounded(self) -> None:
        """Neither end keeps more than a window, and a packet that is acknowledged in part."""
        most = WINDOWS[OF] + 300_000
        assert sum(map(len, self.channel._outgoing._kept)) <= most
        assert sum(map(len, self.channel._early)) <= WINDOWS[OF]
        if self.echo is not None:
            assert sum(map(len, self.echo._outgoing._kept)) <= most

    def teardown(self) -> None:
        """Once the network is whole, all arrives, and the end behind it; then the relay keeps nothing."""
        try:
            self.down_for_now = False
            for _ in range(200):
                self._settle()
                done = self.echo is not None and len(self.echo.taken) == self.sent and len(self.came) == self.said
                if (done or self.ends) and (self.channel.ended or (done and not self.ends)):
                    break
            assert len(self.came) == self.said
            assert self.channel.ended is self.ends, (self.channel._state, self.channel.error)
            assert self.channel.error is None
            if not self.ends:
                assert self.echo is not None
                assert len(self.echo.taken) == self.sent
            self.channel.close()
            self._settle(receives=False)
            named = self.relay._by_name.get(self.name)
            if named is not None:  # the client's word that it has everything was cut off
                assert named.channel.over
                assert not named.channel.connected
                self.relay.grace_s = -1.0
                self.relay.look(self.now_ns / 1e9)
            assert not self.relay._by_name
        finally:
            self.channel.close()

    def _settle(self, *, receives: bool = True) -> None:
        self.now_ns += ATTEMPT_NS
        self.relay_looks()
        self.look()
        if receives:
            self.receive(10_000)
        for wire in list(self.wires.values()):
            while not wire.cut and (wire.up or wire.down):
                self._carry(wire)
        if self.echo is not None and not self.ends:
            self.echo.pass_on(len(self.echo.taken) - self.echo.passed)


TestCuts = Cuts.TestCase
TestCuts.settings = hypothesis.settings(max_examples=80, stateful_step_count=40, deadline=None)
