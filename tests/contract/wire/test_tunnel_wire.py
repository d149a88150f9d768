"""A wire of the tunnel: no signal of a packet is lost, whoever uses the socket; an end of a connection is an event."""

from __future__ import annotations

import contextlib
import os
import select
import threading
import weakref
from collections.abc import Iterator
from typing import Final

import pytest
import zmq

from atomr_mp import errors
from atomr_mp.protocol.tunnel.packets import MAX_FRAME, MAX_PACKET
from atomr_mp.protocol.tunnel.ranges import RangeOp, RangeRequest, SlabKey
from atomr_mp.relay.memory import SessionMemory, SlabRoom
from atomr_mp.remote.keys import ClientKeys, new_pair
from atomr_mp.tunnel.bell import Bells
from atomr_mp.tunnel.dialler import Dialler, resolved
from atomr_mp.tunnel.wire import Wire

DEADLINE_MS = 10_000
ROUNDS = 200

_BELLS: Final[weakref.WeakKeyDictionary[Wire, Bells]] = weakref.WeakKeyDictionary()


class Far:
    """The other end of a wire."""

    def __init__(self, address: str = "127.0.0.1") -> None:
        self.context = zmq.Context()
        self.router = self.context.socket(zmq.ROUTER)
        server, client = new_pair(), new_pair()
        self.router.setsockopt(zmq.IPV6, int(":" in address))
        self.router.setsockopt(zmq.CURVE_SERVER, 1)
        self.router.setsockopt(zmq.CURVE_SECRETKEY, server.secret.encode())
        self.router.setsockopt(zmq.MAXMSGSIZE, MAX_FRAME)
        self.router.setsockopt(zmq.RCVTIMEO, DEADLINE_MS)
        self.port = self.router.bind_to_random_port(f"tcp://[{address}]" if ":" in address else f"tcp://{address}")
        self.keys = ClientKeys(name="test", public=client.public, secret=client.secret, server=server.public)

    def close(self) -> None:
        """Close it; may be called twice."""
        self.router.close(0)
        self.context.term()


@pytest.fixture
def far() -> Iterator[Far]:
    """Give an end to dial."""
    found = Far()
    yield found
    found.close()


@contextlib.contextmanager
def connected(far: Far, address: str = "127.0.0.1") -> Iterator[tuple[Wire, bytes]]:
    """Give a wire, and the name that the other end has for it."""
    dialler = Dialler(f"tcp://[{address}]:{far.port}" if ":" in address else f"tcp://{address}:{far.port}", far.keys)
    bells = Bells()
    wire = dialler.dial(bells)
    _BELLS[wire] = bells
    try:
        wire.send(b"hello")
        route, _ = far.router.recv_multipart()
        yield wire, route
    finally:
        wire.close()
        bells.close()
        dialler.close()


def _is_readable(wire: Wire, timeout_ms: int) -> bool:
    poll = select.poll()
    poll.register(_BELLS[wire].first.fileno(), select.POLLIN)
    return bool(poll.poll(timeout_ms))


def test_a_packet_is_signalled_until_it_is_received_whatever_is_sent_meanwhile(far: Far) -> None:
    """The descriptor of libzmq speaks once, and any use of the socket takes its word."""
    with connected(far) as (wire, route):
        for _ in range(ROUNDS):
            far.router.send_multipart([route, b"first"])
            assert _is_readable(wire, DEADLINE_MS)
            wire.send(b"uses the socket")
            wire.send(b"and again")
            assert _is_readable(wire, 0)
            assert wire.receive() == b"first"
            assert wire.receive() is None
            assert not _is_readable(wire, 0)


def test_who_waits_in_one_thread_hears_of_what_comes_while_another_sends(far: Far) -> None:
    """One thread polls while another one sends and receives, with a lock, as the threads of a client do."""
    with connected(far) as (wire, _):
        lock, received, over = threading.Lock(), threading.Semaphore(0), threading.Event()

        def wait() -> None:
            while not over.is_set():
                if _is_readable(wire, 50):
                    with lock:
                        while not wire.ended and wire.receive() is not None:
                            received.release()

        waiting = threading.Thread(target=wait)
        waiting.start()

        def answer() -> None:
            for _ in range(ROUNDS):
                route, packet = far.router.recv_multipart()
                far.router.send_multipart([route, packet])

        answering = threading.Thread(target=answer)
        answering.start()
        for _ in range(ROUNDS):
            with lock:
                wire.send(b"x")
            assert received.acquire(timeout=DEADLINE_MS / 1000)
        over.set()
        waiting.join()
        answering.join()


@pytest.mark.parametrize("pending", [0, 40])
@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_the_end_of_a_connection_is_an_event(address: str, pending: int) -> None:
    """Also while packets wait to be sent."""
    try:
        far = Far(address)
    except zmq.ZMQError:
        pytest.skip(f"nothing can listen at {address}")
    with connected(far, address) as (wire, _):
        for _ in range(pending):
            wire.send(bytes(MAX_PACKET))
        assert wire.receive() is None
        far.close()
        if pending:
            assert _is_readable(wire, DEADLINE_MS)
            wire.send(b"takes the signal of the end")
        while not wire.ended:
            assert _is_readable(wire, DEADLINE_MS)
            wire.receive()


def test_a_packet_that_is_too_long_ends_the_connection(far: Far) -> None:
    """The largest packet passes, with what CURVE adds to it; a longer one ends its connection, and no other."""
    with connected(far) as (wire, _):
        wire.send(bytes(MAX_PACKET))
        assert len(far.router.recv_multipart()[1]) == MAX_PACKET
        wire.send(bytes(MAX_FRAME + 1))
        while not wire.ended:
            assert _is_readable(wire, DEADLINE_MS)
            wire.receive()


def test_endpoints_are_dialled_by_their_address(far: Far) -> None:
    """By a name, libzmq would lose the end of the connection; and what is not an endpoint is refused."""
    assert resolved("tcp://127.0.0.1:5570") == "tcp://127.0.0.1:5570"
    assert resolved("tcp://[::1]:5570") == "tcp://[::1]:5570"
    assert resolved(f"tcp://localhost:{far.port}") == f"tcp://127.0.0.1:{far.port}"
    for text in ("tcp://:5570", "tcp://host:", "tcp://host:0", "tcp://host:99999", "nonsense"):
        with pytest.raises(errors.ConfigurationError):
            resolved(text)


def test_a_slab_stays_mapped_until_it_is_closed_as_often_as_opened() -> None:
    """Threads of a client may open a slab at the same time, and one of them closes it again at once."""
    memory, key = SessionMemory(2**20, SlabRoom(2**30)), SlabKey(3, 1, 7)
    descriptor = memory.make(1, 4096)
    for _ in range(2):
        memory.take(key, descriptor, 4096)
    os.close(descriptor)
    request = RangeRequest(RangeOp.READ, key, 0, 4096)
    memory.close(key)
    assert len(memory.range(request)) == 4096
    memory.close(key)
    with pytest.raises(errors.GpuRefReleased):
        memory.range(request)
    with pytest.raises(errors.Overloaded):
        memory.make(2, 2**20)
    memory.close(SlabKey(1))
    os.close(memory.make(2, 2**20))
