"""A relay's end of a session, over a real socket to a supervisor that reads when it likes."""

from __future__ import annotations

import socket
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from atomr_mp.protocol.messages import session
from atomr_mp.protocol.messages.tunnel import ChannelKind
from atomr_mp.protocol.tunnel import packets
from atomr_mp.relay.memory import SessionMemory, SlabRoom
from atomr_mp.relay.rights import SessionRights
from atomr_mp.relay.session import SessionChannel
from atomr_mp.remote.keys import AdmittedKey
from atomr_mp.supervisor.loop import Loop

FULL = 400_000
"""More bytes than the kernel queues for a socket without a reader."""


def turn(loop: Loop) -> None:
    """Run the relay's loop once."""
    loop._stopped = False
    loop.call_later(0, loop.stop)
    loop.run()


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, FULL), st.integers(1, 60_000))
def test_a_goodbye_comes_whole_behind_what_the_supervisor_has_not_read(tmp_path: Path, said: int, read: int) -> None:
    """Also if the socket is full, and the beginning of another message was sent; then the connection ends."""
    path, loop = tmp_path / "session.sock", Loop()
    path.unlink(missing_ok=True)
    key = AdmittedKey(name="alice", public=["x" * 40])
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
        listening.bind(str(path))
        listening.listen()
        channel = SessionChannel(
            ChannelKind.SESSION,
            b"route",
            lambda *_: True,
            lambda _: None,
            loop,
            path,
            SessionRights(key, ChannelKind.SESSION),
            SessionMemory(2**20, SlabRoom(2**20)),
        )
        channel.limit(2 * FULL)
        supervisor, _ = listening.accept()
    with supervisor:
        supervisor.setblocking(False)
        words = session.frame(session.FROM_CLIENT.encode(session.Hello(2, "far")))
        lend = session.frame(session.FROM_CLIENT.encode(session.LendSlab(1, 0, 1, 5, 1)))
        words += lend * (said // len(lend))
        for at in range(0, len(words), 60_000):
            channel.take(packets.pack(words[at : at + 60_000], 0))
        channel.end()
        heard, framing = [], session.Framing()
        while True:
            try:
                some = supervisor.recv(read)
            except BlockingIOError:
                turn(loop)
                continue
            if not some:
                break
            heard += [session.from_client(framed) for framed in framing.feed(some)]
        assert isinstance(heard[0], session.Hello)
        assert heard[-1] == session.Bye(mapped=False)
    loop.close()
