"""Admitted clients that break all rules of the tunnel: it costs their own channels, and no worker or relay."""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np
import psutil
import pytest
import zmq

import atomr_mp
from atomr_mp import errors
from atomr_mp.protocol.codec import VERSION
from atomr_mp.protocol.messages import data, operators, session
from atomr_mp.protocol.messages.tunnel import (
    CONTROL,
    ChannelEnded,
    ChannelKind,
    ChannelOpened,
    ChannelResumed,
    OpenChannel,
    ResumeChannel,
)
from atomr_mp.protocol.tunnel import packets
from atomr_mp.protocol.tunnel.budget import MOST
from atomr_mp.protocol.tunnel.flow import WINDOWS
from atomr_mp.protocol.tunnel.ranges import ANSWER, MAX_RANGE, RangeOp, RangeRequest, SlabKey
from atomr_mp.protocol.zmtp import stream
from atomr_mp.relay.channels import MOST_WAYS
from atomr_mp.remote import curve, keys
from tests import remote as served
from tests.support import BACKEND, DEADLINE_S, PROBE, Ledger, settled

LIMIT_BYTES: Final = 4 * 2**20
"""What mallory's key may have."""

SESSIONS: Final = 32
"""The same in sessions: more than end within their time of grace in any test."""

GROWTH_BYTES: Final = 48 * 2**20
"""Most memory that an attack may cost a process for a while."""

FUZZED: Final = 15
"""Sessions, each with five lanes."""

T = TypeVar("T")


@pytest.fixture(scope="module")
def serving() -> Iterator[served.Served]:
    """A pool behind a relay, which admits alice and mallory."""
    with Ledger() as ledger:
        directory = served.make_keys(ledger.path)
        served.admit(directory)
        served.admit(directory, "mallory", max_bytes=LIMIT_BYTES, sessions=SESSIONS)
        with ledger.start(PROBE, listen=served.LISTEN, keys_dir=str(directory), remote_grace_s=0.2) as pool:
            yield served.Served(pool, served.listening(pool), directory)


@pytest.fixture
def unharmed(serving: served.Served) -> Iterator[atomr_mp.Pool]:
    """Alice's client; afterwards she, the worker and the relay are as before."""
    content = np.arange(200_000, dtype="float64")
    with serving.connect() as alice:
        alice.wait_ready()
        np.testing.assert_array_equal(alice.call("Probe.echo", content).result(), content)
        relay, worker = serving.pid, alice.devices[0].pid
        watched = (relay, worker) if BACKEND == "host" else (relay,)  # CUDA takes memory at each first use
        before = [psutil.Process(pid).memory_info().rss for pid in watched]
        yield alice
        np.testing.assert_array_equal(alice.call("Probe.echo", content).result(), content)
        assert list(alice.map("Probe.echo", range(100))) == list(range(100))
        status = serving.pool.status().remote
        assert status is not None
        assert (status.pid, status.restarts) == (relay, 0)
        assert alice.devices[0].pid == worker
        assert alice.devices[0].restarts == 0
        assert settled(
            lambda: all(
                psutil.Process(pid).memory_info().rss - rss < GROWTH_BYTES
                for pid, rss in zip(watched, before, strict=True)
            ),
            DEADLINE_S,
        )
        assert settled(lambda: [each.key for each in serving.sessions] == ["alice"], DEADLINE_S)


def _refused(serving: served.Served) -> int:
    status = serving.pool.status().remote
    assert status is not None
    return status.refused


class RefusedError(Exception):
    """A channel was refused, or has ended."""


class Attacker:
    """A bare channel with mallory's key.

    Args:
        dealer: Its socket.
    """

    def __init__(self, dealer: zmq.Socket[bytes]) -> None:
        self.dealer = dealer
        self.sent = self.received = 0
        self.came = bytearray()
        """Bytes of the stream."""

    def open(self, kind: ChannelKind, channel: bytes, of: bytes, device: int = 0, generation: int = 0) -> None:
        """Open a channel, and wait for the relay's word."""
        self.control(OpenChannel(VERSION, channel, kind, of, device, generation))
        answer = self.wait_control()
        if not isinstance(answer, ChannelOpened):
            raise RefusedError(answer)

    def control(
        self, message: OpenChannel | ChannelOpened | ChannelEnded | ResumeChannel, acknowledged: int = 0
    ) -> None:
        """Send a control packet."""
        self.dealer.send(packets.pack_control(message, acknowledged))

    def say(self, content: bytes) -> None:
        """Send bytes of the stream, whatever the window."""
        for at in range(0, len(content), packets.MAX_PAYLOAD):
            self.dealer.send(packets.pack(content[at : at + packets.MAX_PAYLOAD], self.received))

    def wait_control(self) -> object:
        """Read until a control packet has come, and return its message."""
        while True:
            assert self.dealer.poll(int(DEADLINE_S * 1000)), "no control packet came"
            packet = packets.unpack(self.dealer.recv())
            if packet.kind is packets.PacketKind.CONTROL:
                return CONTROL.decode(packet.payload)
            self.received += len(packet.payload)
            self.came += packet.payload

    def wait_bytes(self, count: int) -> bytes:
        """Read so many bytes of the stream, acknowledge them, and return them."""
        while len(self.came) < count:
            assert self.dealer.poll(int(DEADLINE_S * 1000)), "no bytes came"
            packet = packets.unpack(self.dealer.recv())
            if packet.kind is packets.PacketKind.CONTROL:
                raise RefusedError(CONTROL.decode(packet.payload))
            self.received += len(packet.payload)
            self.came += packet.payload
            self.dealer.send(packets.pack(b"", self.received))  # the window may be small
        found = bytes(self.came[:count])
        del self.came[:count]
        return found

    def wait_refused(self) -> str:
        """Wait until the channel ends, and return the error's code."""
        ended = self.wait_control()
        assert isinstance(ended, ChannelEnded), ended
        return "" if ended.error is None else ended.error.code


class AttackingSession(Attacker):
    """A session of mallory's."""

    def begin(self) -> None:
        """Open it."""
        self.name = os.urandom(16)
        """The name of its channel."""
        self.open(ChannelKind.SESSION, self.name, self.name)
        self.tell(session.Hello(VERSION, "mallory", shared_memory=True, weight=100.0))
        self.welcome = self.hear(session.Welcome)
        while not self.welcome.devices[0].admitted:
            self.welcome.devices[0] = self.hear(session.DeviceChanged).device

    def tell(self, message: session.FromClient) -> None:
        """Send a message."""
        self.say(session.frame(session.FROM_CLIENT.encode(message)))

    def hear(self, kind: type[T]) -> T:
        """Read until a message of a kind has come, and return it."""
        while True:
            message = session.FROM_SUPERVISOR.decode(self.wait_bytes(int.from_bytes(self.wait_bytes(4), "big")))
            if isinstance(message, kind):
                return message


@contextlib.contextmanager
def attacking(serving: served.Served) -> Iterator[Attacker]:
    """Give a connection with mallory's key, on which nothing was opened."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
        dealer.setsockopt(zmq.LINGER, 0)
        curve.set_heartbeats(dealer)
        curve.set_keys(dealer, keys.read_client(served.key_file(serving.keys_dir, "mallory")))
        dealer.setsockopt(zmq.MAXMSGSIZE, packets.MAX_FRAME)
        dealer.setsockopt(zmq.SNDTIMEO, int(DEADLINE_S * 1000))
        dealer.connect(serving.address)
        yield Attacker(dealer)


@contextlib.contextmanager
def session_of_mallory(serving: served.Served) -> Iterator[AttackingSession]:
    """Give an open session of mallory's."""
    with attacking(serving) as raw:
        own = AttackingSession(raw.dealer)
        own.begin()
        yield own
        own.control(ChannelEnded())  # else it counts until its end is noticed


def _lane(serving: served.Served, own: AttackingSession, raw: Attacker, number: int) -> stream.Dealer:
    """Open a lane, and return the protocol that logs in on it."""
    assert serving.pool.devices[0].generation == own.welcome.devices[0].generation
    raw.open(ChannelKind.LANE, os.urandom(16), own.name, 0, own.welcome.devices[0].generation)
    user, secret = own.welcome.session.hex().encode(), own.welcome.secret.hex().encode()
    return stream.Dealer(data.routing_id(own.welcome.session, number), user, secret)


def _log_in(raw: Attacker, talk: stream.Dealer) -> None:
    raw.say(talk.opening)
    while not talk.ready:
        chunk = raw.wait_bytes(max(1, len(raw.came)))
        if talk.room is not None:
            talk.room[: len(chunk)] = chunk
            answer = talk.filled(len(chunk))
        else:
            answer = talk.feed(chunk)
        if answer:
            raw.say(answer)


def test_a_channel_that_is_opened_wrongly_is_refused(serving: served.Served, unharmed: atomr_mp.Pool) -> None:
    """Nothing is opened for anything but a whole, right, first packet; and no worker is reached but by its session."""
    client: Any = unharmed._client
    hers = client._tunnel._session
    name, generation = os.urandom(16), unharmed.devices[0].generation
    whole = packets.pack_control(OpenChannel(VERSION, name, ChannelKind.SESSION, name), 0)
    for first in (
        b"",
        b"\x00",
        os.urandom(40),
        whole[:-1],
        whole + b"\x00",
        packets.pack(b"hello", 0),
        packets.pack_control(ChannelOpened(1), 0),
        packets.pack_control(OpenChannel(VERSION + 1, name, ChannelKind.SESSION, name), 0),
        packets.pack_control(OpenChannel(VERSION, name, ChannelKind.LANE, hers, 0, generation), 0),
        packets.pack_control(OpenChannel(VERSION, name, ChannelKind.MEMORY, hers), 0),
        packets.pack_control(OpenChannel(VERSION, name, ChannelKind.LANE, os.urandom(16), 0, generation), 0),
    ):
        with attacking(serving) as raw:
            raw.dealer.send(first)
            assert raw.wait_refused()
    with attacking(serving) as raw:
        raw.dealer.send_multipart([whole, whole])
        assert raw.wait_refused()
    with attacking(serving) as raw:  # libzmq ends the connection of a message that is too long
        raw.dealer.send(bytes(2 * packets.MAX_FRAME))
    with session_of_mallory(serving) as own:
        for device, of in ((0, generation + 1), (9, generation), (0, 0)):
            with attacking(serving) as raw:
                raw.control(OpenChannel(VERSION, os.urandom(16), ChannelKind.LANE, own.name, device, of))
                assert raw.wait_refused() == "device_unavailable"


def test_a_channel_is_taken_up_by_its_own_client_only(serving: served.Served, unharmed: atomr_mp.Pool) -> None:
    """Neither by another key's, which knows its name; nor at a place where its client cannot be."""
    client: Any = unharmed._client
    hers = client._tunnel._session
    with attacking(serving) as raw:
        raw.control(ResumeChannel(VERSION, hers, hers, 0))
        ended = raw.wait_control()
        assert isinstance(ended, ChannelEnded)
        assert ended.unknown
    with attacking(serving) as raw:  # nor is it opened again
        raw.control(OpenChannel(VERSION, hers, ChannelKind.SESSION, hers))
        assert raw.wait_refused() == "protocol_error"
    with session_of_mallory(serving) as own, attacking(serving) as raw:
        raw.control(ResumeChannel(VERSION, own.name, own.name, 2**40))
        assert raw.wait_refused() == "protocol_error"
    with session_of_mallory(serving) as own, attacking(serving) as raw:
        raw.control(OpenChannel(VERSION, own.name, ChannelKind.LANE, own.name))
        assert raw.wait_refused() == "protocol_error"
    with session_of_mallory(serving) as own:  # a flood of connections that take it from each other
        for _ in range(20):
            with attacking(serving) as raw:
                raw.control(ResumeChannel(VERSION, own.name, own.name, own.received), own.received)
                assert isinstance(raw.wait_control(), ChannelResumed)
    with session_of_mallory(serving) as own, contextlib.ExitStack() as ways:  # one that leaves all of them open
        raws = [ways.enter_context(attacking(serving)) for _ in range(3 * MOST_WAYS)]
        before = _refused(serving)
        for raw in raws:
            raw.control(ResumeChannel(VERSION, own.name, own.name, own.received), own.received)
        assert settled(lambda: _refused(serving) - before >= 2 * MOST_WAYS - 1, DEADLINE_S)
        answered = sum(raw.dealer.poll(0) > 0 for raw in raws)
        assert 0 < answered <= MOST_WAYS + 1


def test_a_session_says_only_what_its_key_may(serving: served.Served, unharmed: atomr_mp.Pool) -> None:
    """Orders need the right to give them, weight is the key's, and memory is counted; nonsense ends the session."""
    del unharmed
    with session_of_mallory(serving) as own:
        orders: list[session.FromClient] = [
            operators.RestartRequest(1, 0),
            operators.ReloadRequest(2),
            operators.StopRequest(3),
            operators.ReadKeys(4),
            session.RegisterSlab(5, 1, LIMIT_BYTES + 1),
            session.RegisterSlab(6, 1, 2**50),
        ]
        for number, order in enumerate(orders, 1):
            own.tell(order)
            answer = own.hear(session.Answer)
            assert answer.id == number
            assert answer.error is not None
    generation = serving.pool.devices[0].generation
    for nonsense in (
        b"\xff" * 100,
        session.frame(b"nonsense"),
        session.frame(session.FROM_CLIENT.encode(session.Hello(VERSION, "again"))),
        (2**20 + 1).to_bytes(4, "big"),
    ):
        with session_of_mallory(serving) as own:
            own.say(nonsense)
            assert own.wait_refused()
    with session_of_mallory(serving) as own:  # of a slab that is another session's, or nobody's
        own.tell(session.OpenSlab(7, 0, generation, 1))
        answer = own.hear(session.Answer)
        assert answer.error is not None


@pytest.mark.parametrize("logged_in", [False, True])
def test_nonsense_on_a_lane_costs_its_session_at_most(
    serving: served.Served, unharmed: atomr_mp.Pool, *, logged_in: bool
) -> None:
    """Whatever bytes reach a worker, before the login and after it: it lives, and others are served."""
    del unharmed
    chance = random.Random(39)
    for number in range(FUZZED):
        with session_of_mallory(serving) as own:
            for lane in range(5):
                with attacking(serving) as raw:
                    try:
                        talk = _lane(serving, own, raw, lane)
                        if logged_in:
                            _log_in(raw, talk)
                    except (RefusedError, errors.ProtocolError):  # a worker has complained of this session, which ended
                        break
                    good = stream.frame(
                        data.FROM_CLIENT.encode(
                            data.Calls(bytes(22), [data.Call(number + 1, "Probe.echo", 2**62, 0, b"\x91\x01")])
                        )
                    )
                    bad = bytearray(good if logged_in else talk.opening)
                    for _ in range(chance.randint(1, 4)):
                        bad[chance.randrange(len(bad))] = chance.randrange(256)
                    raw.say(bytes(bad[: chance.randint(1, len(bad))]) if lane % 2 else bytes(bad))
                    if lane == 3:
                        raw.say(chance.randbytes(5000))


def test_who_does_not_keep_to_its_window_loses_its_channel(serving: served.Served, unharmed: atomr_mp.Pool) -> None:
    """The relay never keeps more than a window of what a worker has not taken, nor believes what cannot be."""
    del unharmed
    with session_of_mallory(serving) as own:
        with attacking(serving) as raw:
            _log_in(raw, _lane(serving, own, raw, 1))
            head = bytes((2,)) + (2**24).to_bytes(8, "big")  # a large frame, which the worker takes in as it comes
            raw.say(head + bytes(2**22))
        with attacking(serving) as raw:
            _lane(serving, own, raw, 2)
            raw.dealer.send(packets.pack(b"", 2**30))
            assert raw.wait_refused() == "protocol_error"
        with attacking(serving) as raw:
            _lane(serving, own, raw, 3)
            raw.dealer.send(packets.HEAD.pack(0, 5, 0))
            assert raw.wait_refused() == "protocol_error"
    for _ in range(3):
        with session_of_mallory(serving) as own:
            question = session.frame(session.FROM_CLIENT.encode(operators.StatusRequest(1)))
            own.say(question * (2 * WINDOWS[ChannelKind.SESSION] // len(question)))  # answers that nobody reads


def test_memory_is_reached_within_its_bounds_only(serving: served.Served, unharmed: atomr_mp.Pool) -> None:
    """A range of a missing slab, or beyond its end, is refused; nonsense, and a flood, end the channel."""
    del unharmed
    with session_of_mallory(serving) as own:
        own.tell(session.RegisterSlab(1, 1, 2**20))
        answer = own.hear(session.Answer)
        assert answer.error is None
        with attacking(serving) as raw:
            raw.open(ChannelKind.MEMORY, os.urandom(16), own.name)
            for request, refused in (
                (RangeRequest(RangeOp.READ, SlabKey(1), 0, 2**20), False),
                (RangeRequest(RangeOp.READ, SlabKey(1), 1, 2**20), True),
                (RangeRequest(RangeOp.READ, SlabKey(1), 2**62, 1), True),
                (RangeRequest(RangeOp.READ, SlabKey(2), 0, 1), True),
                (RangeRequest(RangeOp.READ, SlabKey(1, 0, 1), 0, 1), True),
                (RangeRequest(RangeOp.WRITE, SlabKey(1), 2**20 - 1, 2), True),
                (RangeRequest(RangeOp.WRITE, SlabKey(1), 2**20 - 2, 2), False),
                (RangeRequest(RangeOp.CLOSE, SlabKey(9), 0, 0), False),
            ):
                raw.say(request.pack() + b"ab"[: request.brings])
                found, nbytes = ANSWER.unpack(raw.wait_bytes(ANSWER.size))
                assert bool(found) is refused, request
                raw.wait_bytes(nbytes)
        for nonsense in (
            bytes(100),
            RangeRequest(RangeOp.READ, SlabKey(1), 0, MAX_RANGE + 1).pack(),
            RangeRequest(RangeOp.READ, SlabKey(1), 0, 2**20).pack() * 1000,
        ):
            with attacking(serving) as raw:
                raw.open(ChannelKind.MEMORY, os.urandom(16), own.name)
                raw.say(nonsense)
                assert raw.wait_refused() == "protocol_error"


def test_a_session_has_few_channels_of_memory(serving: served.Served, unharmed: atomr_mp.Pool) -> None:
    """The oldest ends when there would be too many; it may be of a connection that is gone."""
    assert unharmed.lost is None
    with session_of_mallory(serving) as own, contextlib.ExitStack() as opened:
        raws = [opened.enter_context(attacking(serving)) for _ in range(MOST[ChannelKind.MEMORY] + 1)]
        for raw in raws[:-1]:
            raw.open(ChannelKind.MEMORY, os.urandom(16), own.name)
        for raw in raws[:-1]:
            raw.say(RangeRequest(RangeOp.CLOSE, SlabKey(9), 0, 0).pack())
            raw.wait_bytes(ANSWER.size)
        raws[-1].open(ChannelKind.MEMORY, os.urandom(16), own.name)
        assert raws[0].wait_refused() == ""
        for raw in raws[1:]:
            raw.say(RangeRequest(RangeOp.CLOSE, SlabKey(9), 0, 0).pack())
            raw.wait_bytes(ANSWER.size)


def test_a_flood_of_channels_is_bounded(serving: served.Served, unharmed: atomr_mp.Pool) -> None:
    """A key has as many sessions as it may, also while they are opening; the rest are refused."""
    del unharmed
    with contextlib.ExitStack() as stack:
        refused = 0
        for _ in range(SESSIONS + 4):
            raw = stack.enter_context(attacking(serving))
            name = os.urandom(16)
            raw.control(OpenChannel(VERSION, name, ChannelKind.SESSION, name))
            refused += isinstance(raw.wait_control(), ChannelEnded)
        assert 4 <= refused < SESSIONS + 4  # sessions of a test before may still be ending


def test_a_peer_that_floods_and_is_killed_does_not_end_the_relay(tmp_path: Path) -> None:
    """Libzmq aborts where it has to send a heartbeat on such a connection."""
    program = Path(__file__).parents[2] / "programs" / "flooded_router.py"
    command = [sys.executable, str(program), str(tmp_path / "router.sock")]
    done = subprocess.run(command, timeout=DEADLINE_S, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "it lives\n"), done.stderr
