"""A client's reactions to the supervisor's messages, one at a time."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from atomr_mp import errors
from atomr_mp.client.client import MAX_LANE, Client
from atomr_mp.client.handshake import greet
from atomr_mp.client.reply import Reply
from atomr_mp.protocol.codec import VERSION, ErrorInfo
from atomr_mp.protocol.flow import flight
from atomr_mp.protocol.messages import devices, session
from atomr_mp.transport.session import SessionConnection

LOST: Final = ErrorInfo("worker_lost", "killed", {})


class Told:
    """A client, and the supervisor's end of its session."""

    def __init__(self, directory: Path) -> None:
        ours, self._theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        self._endpoint = f"ipc://{directory}/nobody"
        method = devices.MethodInfo("run", [], idempotent=False, deadline_s=None, doc="")
        self.tell(
            session.Welcome(
                version=VERSION,
                pool="told",
                epoch=bytes(16),
                supervisor_pid=1,
                session=b"1" * 16,
                secret=b"2" * 16,
                window=flight.Window(16, 2**20),
                devices=[self.device(devices.DeviceState.READY, 1, admitted=True)],
                actors=[devices.ActorInfo("Actor", [method])],
            )
        )
        self.client = Client(SessionConnection(ours))

    def device(self, state: devices.DeviceState, generation: int, *, admitted: bool = False) -> devices.DeviceInfo:
        """Describe the one device."""
        endpoint = f"{self._endpoint}-{generation}" if admitted else ""
        return devices.DeviceInfo(0, "host", state, generation, endpoint, admitted, 1, 0, "")

    def tell(self, *messages: session.FromSupervisor) -> None:
        """Send a message to the client."""
        self._theirs.sendall(b"".join(session.frame(session.FROM_SUPERVISOR.encode(each)) for each in messages))

    def end(self, last_words: bytes) -> None:
        """End the session as the supervisor does."""
        self._theirs.sendall(last_words)
        self._theirs.shutdown(socket.SHUT_RDWR)

    def call(self) -> Reply:
        """Make a call that will not be answered."""
        return self.client.submit("Actor.run", [], device=0, deadline_s=60)

    def close(self) -> None:
        """Close both ends."""
        self.client.close()
        self._theirs.close()


@pytest.fixture
def told(tmp_path: Path) -> Iterator[Told]:
    """Make a client that gets messages."""
    made = Told(tmp_path)
    yield made
    made.close()


@pytest.mark.parametrize("where", ["thread", "loop"])
def test_nothing_is_sent_to_an_incarnation_that_has_ended(told: Told, where: str) -> None:
    """Its end may be heard some time before the device's next state; a loop that begins meanwhile sends nothing."""

    async def in_loop() -> None:
        await asyncio.to_thread(told.client.read_session)
        reply = told.call()
        assert reply.generation == 0
        told.tell(session.DeviceChanged(told.device(devices.DeviceState.STARTING, 2)))
        told.client.read_session()
        assert reply.generation == 0
        told.tell(session.DeviceChanged(told.device(devices.DeviceState.READY, 2, admitted=True)))
        told.client.read_session()
        assert reply.generation == 2
        assert not reply.done

    told.tell(session.IncarnationEnded(0, 1, planned=False, error=LOST, started=[], known_since_ns=0))
    if where == "loop":
        asyncio.run(in_loop())
        return
    reply = told.call()
    assert reply.generation == 0
    told.tell(session.DeviceChanged(told.device(devices.DeviceState.READY, 2, admitted=True)))
    told.client.read_session()
    assert reply.generation == 2


def test_a_loop_takes_events_in_their_order(told: Told) -> None:
    """One that another thread has received waits for the loop's turn; the loop may receive the next before that."""

    async def in_loop() -> None:
        first = told.call()
        told.tell(session.IncarnationEnded(0, 1, planned=False, error=LOST, started=[], known_since_ns=0))
        told.tell(session.DeviceChanged(told.device(devices.DeviceState.STARTING, 2)))
        other = threading.Thread(target=told.client.read_session)
        other.start()
        other.join()
        told.tell(session.DeviceChanged(told.device(devices.DeviceState.READY, 2, admitted=True)))
        told.client.read_session()
        await asyncio.sleep(0)  # the loop's next turn, in which all is taken in
        with pytest.raises(errors.WorkerLost):
            await first
        assert told.call().generation == 2

    asyncio.run(in_loop())


def test_no_two_living_loops_have_the_same_connection(told: Told) -> None:
    """A worker ignores a second connection of the same name. Names recur after 255 loops, but never a living loop's."""

    async def number_of_this_loop() -> int:
        told.call()
        return told.client._loops[asyncio.get_running_loop()].number

    async def in_loop() -> None:
        ours = await number_of_this_loop()
        for _ in range(MAX_LANE + 1):
            assert await asyncio.to_thread(asyncio.run, number_of_this_loop()) != ours

    told.tell(session.IncarnationEnded(0, 1, planned=False, error=LOST, started=[], known_since_ns=0))
    asyncio.run(in_loop())


def farewell(error: errors.AtomrError) -> bytes:
    """Return the last messages of a supervisor in a session."""
    return session.frame(session.FROM_SUPERVISOR.encode(session.Goodbye(ErrorInfo.of(error))))


@pytest.mark.parametrize(
    "refused", [errors.NotAuthorized("another user's"), errors.Overloaded("no descriptor left")], ids=lambda e: e.code
)
def test_a_client_that_is_refused_before_its_hello_is_told_why(refused: errors.AtomrError) -> None:
    """Its hello is not read, but the reason is there to be read."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    theirs.sendall(farewell(refused))
    theirs.close()
    connection = SessionConnection(ours)
    try:
        with pytest.raises(type(refused), match=refused.message):
            greet(connection, "refused", observer=True)
    finally:
        connection.close()


def test_who_asks_in_a_session_that_was_ended_is_told_why(told: Told) -> None:
    """The question was certainly not taken."""
    told.end(farewell(errors.ProtocolError("it sent nonsense")))
    with pytest.raises(errors.PoolLost, match="it sent nonsense") as lost:
        told.client._session.ask(lambda number: session.OpenSlab(number, 0, 1, 1), 10)
    assert not lost.value.maybe_executed
