"""The gateway's sessions and its socket are used on its event loop's thread alone, whoever reads the news."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atomr_mp.checks import BrokenRuleError
from atomr_mp.gateway.admission import ANYBODY, AdmittedKeys
from atomr_mp.gateway.handover import Inbox
from atomr_mp.gateway.loop import GatewayLoop
from atomr_mp.gateway.peers import RemotePeer
from atomr_mp.gateway.sockets import RouterSocket
from atomr_mp.protocol.codec import ErrorInfo
from atomr_mp.protocol.flow.flight import Window
from atomr_mp.protocol.messages import remote, session
from atomr_mp.remote.resumption import Tally


def run(main: Any) -> Any:
    """Run a coroutine function in a loop as the gateway's."""
    with asyncio.Runner(loop_factory=GatewayLoop) as runner:
        return runner.run(asyncio.wait_for(main(), 60))


def event(generation: int) -> session.IncarnationEnded:
    """Return news of an incarnation's end."""
    return session.IncarnationEnded(
        0, generation, planned=False, error=ErrorInfo("worker_lost", "", {}), started=[], known_since_ns=0
    )


class Host:
    """Stands in for the gateway; notes which thread sends."""

    epoch = bytes(16)
    has_room = True

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.tally = Tally()
        self.sent: list[tuple[int, int]] = []

    def send(self, _peer: RemotePeer, parts: list[bytes]) -> None:
        """Note the thread, and the generation in the message."""
        message = remote.TO_REMOTE.decode(parts[0])
        assert isinstance(message, session.IncarnationEnded)
        self.sent.append((threading.get_ident(), message.generation))


@given(by_thread=st.lists(st.booleans(), min_size=1, max_size=30))
@settings(max_examples=30)
def test_what_a_session_hears_it_does_on_the_loop_in_order(by_thread: list[bool]) -> None:
    """The local client calls its listeners on whichever thread reads; the remote client hears of it on the loop's."""

    async def main() -> list[tuple[int, int]]:
        host = Host()
        client = SimpleNamespace(listeners=[], loop_lane=lambda _loop: None, read_session=lambda: None)
        peer = RemotePeer(cast("Any", host), b"", None, ANYBODY, cast("Any", client), Window(8, 8, 8), "someone")
        peer.greeted = True
        (listener,) = client.listeners
        for generation, off_loop in enumerate(by_thread):
            if off_loop:
                await asyncio.to_thread(listener, event(generation))
            else:
                listener(event(generation))
        await asyncio.sleep(0)  # a turn of the loop
        return host.sent

    here = threading.get_ident()
    assert run(main) == [(here, generation) for generation in range(len(by_thread))]


@given(by_thread=st.lists(st.booleans(), min_size=1, max_size=30))
@settings(max_examples=30)
def test_an_inbox_keeps_the_order_of_threads_that_take_turns(by_thread: list[bool]) -> None:
    """What the loop puts while a thread's message waits comes behind it."""

    async def main() -> list[int]:
        taken: list[int] = []
        inbox = Inbox(asyncio.get_running_loop(), taken.append)
        for number, off_loop in enumerate(by_thread):
            if off_loop:  # joined, so that the loop has no turn between
                thread = threading.Thread(target=inbox.put, args=(number,))
                thread.start()
                thread.join()
            else:
                inbox.put(number)
        await asyncio.sleep(0)  # a turn of the loop
        return taken

    assert run(main) == [*range(len(by_thread))]


def test_another_thread_is_refused_before_it_touches_anything() -> None:
    """ZeroMQ's library would abort, or mix up sessions: the socket, readers and sessions refuse it instead."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        socket = RouterSocket(loop, AdmittedKeys(None), None, lambda _received: None)
        host = Host()
        client = SimpleNamespace(listeners=[], loop_lane=lambda _loop: None, read_session=lambda: None)
        peer = RemotePeer(cast("Any", host), b"", None, ANYBODY, cast("Any", client), Window(8, 8, 8), "someone")
        try:
            for use in (
                lambda: socket.send(b"id", [b"content"]),
                socket.close,
                lambda: loop.add_reader(0, print),
                lambda: loop.remove_reader(0),
                lambda: peer.take_requests([], [], []),
                peer.close,
            ):
                with pytest.raises((RuntimeError, BrokenRuleError), match="thread"):
                    await asyncio.to_thread(use)
        finally:
            socket.close()

    run(main)
