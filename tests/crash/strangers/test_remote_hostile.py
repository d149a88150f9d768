"""Remote clients that break the rules of bulk connections, or do not read: it costs their own session and no other."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Any, Final, TypeVar

import msgspec
import numpy as np
import psutil
import pytest
import zmq

from atomr_mp.operator.doctor import examine
from atomr_mp.operator.pool_status import RemoteClientStatus
from atomr_mp.protocol.codec import VERSION
from atomr_mp.protocol.messages import remote
from atomr_mp.protocol.zmtp.framing import pack, unpack
from atomr_mp.remote import keys, wire
from atomr_mp.remote.client import RemoteClient
from atomr_mp.supervision.audit.findings import Supervision
from tests import remote as served
from tests.support import ACTORS, DEADLINE_S, PROBE, Ledger, settled

LIMIT_BYTES: Final = 4 * 2**20
"""What mallory's key may have in the gateway."""

ARGUMENT: Final = msgspec.msgpack.encode([bytes(60_000)])
CALLS: Final = 200
CALL_US: Final = int(DEADLINE_S * 1e6)

T = TypeVar("T")


@pytest.fixture
def serving(ledger: Ledger) -> Iterator[served.Served]:
    """A pool that admits alice and mallory."""
    directory = served.make_keys(ledger.path)
    served.admit(directory)
    served.admit(directory, "mallory", max_bytes=LIMIT_BYTES)
    streamer = f"{ACTORS}/streaming.py:Streamer"
    with ledger.start(PROBE, streamer, listen=served.LISTEN, keys_dir=str(directory)) as pool:
        yield served.Served(pool, served.listening(pool), directory)


class Raw:
    """A bare connection with mallory's key.

    Args:
        dealer: Its socket.
        decode: Makes messages of what comes.
    """

    def __init__(self, dealer: zmq.Socket[bytes], decode: Callable[[memoryview], object]) -> None:
        self.dealer = dealer
        self._decode = decode

    def wait(self, kind: type[T]) -> T:
        """Read until a message of a kind has come, and return it."""
        while True:
            assert self.dealer.poll(int(DEADLINE_S * 1000)), f"no {kind.__name__} came"
            message = self._decode(unpack(memoryview(self.dealer.recv()))[0])
            if isinstance(message, kind):
                return message


@contextlib.contextmanager
def connected(serving: served.Served, port: int | None = None, *, slow: bool = False) -> Iterator[Raw]:
    """Give a connection to the gateway, or to its bulk port; a slow one takes hardly anything before it reads."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
        wire.configure(dealer, keys.read_client(served.key_file(serving.keys_dir, "mallory")))
        dealer.setsockopt(zmq.SNDTIMEO, int(DEADLINE_S * 1000))
        if slow:
            dealer.setsockopt(zmq.RCVHWM, 1)
            dealer.setsockopt(zmq.RCVBUF, 4096)
        dealer.connect(serving.address if port is None else f"{serving.address.rpartition(':')[0]}:{port}")
        yield Raw(dealer, (remote.TO_REMOTE if port is None else remote.TO_REMOTE_BULK).decode)


def begin(raw: Raw) -> remote.RemoteWelcome:
    """Open a session."""
    raw.dealer.send(remote.FROM_REMOTE.encode(remote.RemoteHello(VERSION, "mallory")))
    welcome = raw.wait(remote.RemoteWelcome)
    raw.dealer.send(remote.FROM_REMOTE.encode(remote.Resume(welcome.epoch, [], 1)))
    raw.wait(remote.Resumed)
    return welcome


def sessions(serving: served.Served) -> dict[str, RemoteClientStatus]:
    """Return the remote sessions by their keys' names; the gateway has never ended."""
    status = serving.pool.status().remote
    assert status is not None
    assert status.restarts == 0
    return {each.key: each for each in status.sessions}


def test_a_hello_may_be_repeated_and_is_for_one_session(serving: served.Served) -> None:
    """A client may take a connection for the next one; then it resumes anew. Another session is not to be had there."""
    with connected(serving) as raw:
        welcome = begin(raw)
        for number in (None, welcome.session):
            raw.dealer.send(remote.FROM_REMOTE.encode(remote.RemoteHello(VERSION, "mallory", number)))
            assert raw.wait(remote.RemoteWelcome).session == welcome.session
            raw.dealer.send(remote.FROM_REMOTE.encode(remote.Resume(welcome.epoch, [], 1)))
            raw.wait(remote.Resumed)
        assert settled(lambda: list(sessions(serving)) == ["mallory"])
        raw.dealer.send(remote.FROM_REMOTE.encode(remote.RemoteHello(VERSION, "mallory", os.urandom(16))))
        assert "one session" in raw.wait(remote.RemoteGoodbye).error.message


def test_a_bulk_connection_belongs_to_its_key_s_session(serving: served.Served) -> None:
    """Another's session cannot be used, and unasked chunks end the session that sent them."""
    content = np.arange(200_000, dtype="float64")
    encode = remote.FROM_REMOTE_BULK.encode
    with serving.connect() as alice, connected(serving) as raw:
        np.testing.assert_array_equal(alice.call("Probe.echo", content).result(), content)
        assert isinstance(alice._client, RemoteClient)
        hers = alice._client._session._session
        assert hers is not None
        welcome = begin(raw)
        with connected(serving, welcome.bulk_port) as bulk:
            for forged in (
                remote.BulkHello(welcome.epoch, hers),
                remote.BulkHello(welcome.epoch, os.urandom(16)),
                remote.BulkHello(os.urandom(16), welcome.session),
                remote.BulkWant(welcome.epoch, 1, 0, 1000),
            ):
                bulk.dealer.send(encode(forged))
                bulk.wait(remote.HelloWanted)
            for nonsense in (b"", b"\x00" * 1000, encode(remote.BulkHello(welcome.epoch, welcome.session))[:-1]):
                bulk.dealer.send(nonsense)
                bulk.wait(remote.RemoteGoodbye)
            bulk.dealer.send(encode(remote.BulkHello(welcome.epoch, welcome.session)))
            bulk.wait(remote.BulkWelcome)
            call = remote.RemoteCall(1, "Probe.echo", CALL_US, 0, b"", upload=2**20)
            raw.dealer.send(remote.FROM_REMOTE.encode(remote.RemoteCalls(welcome.epoch, [], [call])))
            want = bulk.wait(remote.BulkWant)
            np.testing.assert_array_equal(alice.call("Probe.echo", content).result(), content)
            chunk = encode(remote.BulkData(welcome.epoch, want.id, want.offset + 1))
            bulk.dealer.send(b"".join(pack(chunk, [bytes(want.nbytes)])))
            raw.wait(remote.RemoteGoodbye)
        np.testing.assert_array_equal(alice.call("Probe.echo", content).result(), content)
        assert settled(lambda: list(sessions(serving)) == ["alice"], DEADLINE_S)


def opened(number: int, parts: int = 16, nbytes: int = 2**24, *arguments: object, **more: Any) -> remote.RemoteStream:
    """Return the request of a stream."""
    method = more.pop("method", "Streamer.count")
    call = remote.RemoteCall(number, method, CALL_US, 0, msgspec.msgpack.encode(arguments or (1000,)))
    return remote.RemoteStream(call, parts, nbytes, CALL_US, CALL_US, **more)


def test_forged_streams_cost_their_own_session(serving: served.Served) -> None:
    """Ids, credit, acknowledgements and resumptions that cannot be end it; and no other stream."""
    encode = remote.FROM_REMOTE.encode

    def grant(number: int, parts: int, received: int) -> list[remote.RemoteGrant]:
        return [remote.RemoteGrant(number, parts, 2**24, received)]

    with serving.connect() as alice:
        hers = alice.stream("Streamer.count", 100, ahead=2)
        assert next(hers) == 0
        forgeries: list[Callable[[bytes], remote.FromRemote]] = [
            lambda epoch: remote.RemoteCredit(epoch, grant(7, 20, 0)),  # never opened
            lambda epoch: remote.RemoteCredit(epoch, grant(1, 10**6, 0)),  # beyond what may be ahead
            lambda epoch: remote.RemoteCredit(epoch, grant(1, 16, 17)),  # more than was sent
            lambda epoch: remote.Resume(epoch, [remote.Unanswered(1, 1)], 2, grant(1, 16, 900)),
            lambda epoch: remote.Resume(epoch, [remote.Unanswered(1, 1)], 2, []),
            lambda epoch: remote.RemoteStreams(epoch, [], [msgspec.structs.replace(opened(2), parts=10**6)]),
            lambda epoch: remote.RemoteStreams(
                epoch, [], [msgspec.structs.replace(opened(2), call=remote.RemoteCall(2, "Streamer.count", 1, 9, b""))]
            ),
        ]
        for forged in forgeries:
            with connected(serving) as raw:
                welcome = begin(raw)
                raw.dealer.send(encode(remote.RemoteStreams(welcome.epoch, [], [opened(1)])))
                parts = raw.wait(remote.RemoteParts)
                assert parts.parts[0].number == 0
                for harmless in (grant(1, 3, 0), grant(1, 16, 1), grant(1, 16, 1), grant(1, 2, 0)):
                    raw.dealer.send(encode(remote.RemoteCredit(welcome.epoch, harmless)))
                raw.dealer.send(encode(forged(welcome.epoch)))
                raw.wait(remote.RemoteGoodbye)
        for request, code in (
            (opened(1, method="Probe.echo"), "invalid_request"),
            (opened(1, method="Streamer.missing"), "invalid_request"),
            (opened(1, start=3, parts=19), "invalid_request"),
            (opened(1, sent=True), "invalid_request"),
        ):
            with connected(serving) as raw:
                welcome = begin(raw)
                raw.dealer.send(encode(remote.RemoteStreams(welcome.epoch, [], [request])))
                (answer,) = raw.wait(remote.RemoteAnswers).answers
                assert answer.error is not None
                assert answer.error.code == code, answer
                raw.dealer.send(encode(remote.RemoteBye(welcome.epoch)))
                raw.wait(remote.RemoteGoodbye)
        assert list(hers) == list(range(1, 100))
        assert settled(lambda: list(sessions(serving)) == ["alice"], DEADLINE_S)


def test_a_stream_that_is_not_acknowledged_is_bounded(serving: served.Served) -> None:
    """However much its client grants: the gateway keeps a share of what the key may have, and the worker waits."""
    with serving.connect() as alice, connected(serving) as raw:
        welcome = begin(raw)
        before = psutil.Process(serving.pid).memory_info().rss
        requests = [opened(number, 4096, 2**40, "m", 50_000, method="Streamer.endless") for number in (1, 2, 3, 4)]
        raw.dealer.send(remote.FROM_REMOTE.encode(remote.RemoteStreams(welcome.epoch, [], requests)))
        assert settled(lambda: sessions(serving)["mallory"].kept_bytes > LIMIT_BYTES / 8, DEADLINE_S)
        assert list(alice.stream("Streamer.count", 300)) == list(range(300))
        assert sessions(serving)["mallory"].kept_bytes <= LIMIT_BYTES / 2
        assert psutil.Process(serving.pid).memory_info().rss - before < 8 * LIMIT_BYTES
        received = dict.fromkeys((1, 2, 3, 4), 0)
        while min(received.values()) < 100:  # who acknowledges gets more, in order
            for part in raw.wait(remote.RemoteParts).parts:
                assert part.number == received[part.id]
                received[part.id] += 1
            grants = [remote.RemoteGrant(number, 4096, 2**40, parts) for number, parts in received.items()]
            raw.dealer.send(remote.FROM_REMOTE.encode(remote.RemoteCredit(welcome.epoch, grants)))
        raw.dealer.send(remote.FROM_REMOTE.encode(remote.RemoteBye(welcome.epoch)))
        raw.wait(remote.RemoteGoodbye)


def test_a_client_that_does_not_read_is_bounded(serving: served.Served) -> None:
    """The gateway keeps what its key may have, and serves others meanwhile; `doctor` accounts for all of it."""
    with serving.connect() as alice, connected(serving, slow=True) as raw:
        alice.wait_ready()
        welcome = begin(raw)
        before = psutil.Process(serving.pid).memory_info().rss
        for number in range(1, CALLS + 1):
            call = remote.RemoteCall(number, "Probe.echo", CALL_US, 0, ARGUMENT)
            raw.dealer.send(remote.FROM_REMOTE.encode(remote.RemoteCalls(welcome.epoch, [], [call])))
        assert settled(lambda: sessions(serving)["mallory"].open_calls == CALLS, DEADLINE_S)
        assert list(alice.map("Probe.echo", range(300))) == list(range(300))
        assert settled(lambda: sessions(serving)["mallory"].kept_bytes > LIMIT_BYTES / 2)
        # The call that reaches the limit is still taken, with arguments and answer.
        assert sessions(serving)["mallory"].kept_bytes <= LIMIT_BYTES + 2 * len(ARGUMENT)
        assert psutil.Process(serving.pid).memory_info().rss - before < 8 * LIMIT_BYTES
        supervision, findings = examine(serving.pool.run_dir)
        assert supervision is Supervision.ANSWERS
        assert not [found for found in findings if found.state == "unaccounted"]
        assert any(str(serving.pid) in found.what for found in findings), findings
    assert settled(lambda: not sessions(serving) or not sessions(serving)["mallory"].connected, DEADLINE_S)
