"""A pool's processes hear changed messages, and users that behave as they like: a neighbour must not notice."""

from __future__ import annotations

import contextlib
import os
import random
import select
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Final, Self

import msgspec
import zmq

from atomr_mp import errors
from atomr_mp.client.handshake import greet
from atomr_mp.protocol import token
from atomr_mp.protocol.codec import MAX_U64, VERSION
from atomr_mp.protocol.messages import control, data, operators, session, tunnel
from atomr_mp.protocol.tunnel import packets
from atomr_mp.transport.data import DataConnection, Login
from atomr_mp.transport.session import SessionConnection
from fuzzing.neighbourhood import DEADLINE_S, Neighbourhood
from fuzzing.target import Target
from fuzzing.targets.annotations import NAMES, arguments
from fuzzing.user import ACTIONS
from fuzzing.valid import value_of

TOKEN: Final = b"T" * token.TOKEN_BYTES
"""Stands for the worker's token."""

HEARD_S: Final = 0.5
"""How long an answer to a changed message is waited for: there may be none."""

LISTEN: Final = "tcp://127.0.0.1:0"


class LiveTarget(Target):
    """A target with a pool."""

    is_live = True
    settings: dict[str, Any] = {}  # noqa: RUF012 - a class's constant

    def __enter__(self) -> Self:
        self.neighbourhood = Neighbourhood(**self.settings)
        return self

    def __exit__(self, *_exc: object) -> None:
        """End the pool."""
        self.neighbourhood.__exit__()

    def check(self, data: bytes) -> None:
        """Say it, and ask the neighbour; after a find, go on with another pool."""
        try:
            self.say(data)
            self.ask()
        except BaseException:
            self.__exit__()
            self.__enter__()
            raise

    def say(self, data: bytes) -> None:
        """Have the pool hear it."""
        raise NotImplementedError

    def ask(self) -> None:
        """Ask the neighbour."""
        self.neighbourhood.check()


class Client(LiveTarget):
    """A message to a worker, of a client that is admitted."""

    name = "client"

    def make(self, rng: random.Random) -> bytes:
        """Return calls, streams, or another message of the channel."""
        if rng.random() < 0.3:
            message = value_of(rng, _FROM_CLIENT)
            return data.FROM_CLIENT.encode(msgspec.structs.replace(message, token=TOKEN))
        calls: list[Any] = []
        for number in range(1, rng.randint(2, 4)):
            name = rng.choice(NAMES)
            call = number, f"Annotated_.{name}", MAX_U64, 0, arguments(rng, name)
            calls.append((*call, 2, 2**20, 10**9, MAX_U64) if name == "streamed" else call)
        tag = 6 if len(calls[0]) > 5 else rng.choice((1, 1, 4))
        return msgspec.msgpack.encode([tag, TOKEN, [call for call in calls if len(call) == len(calls[0])]])

    def say(self, data: bytes) -> None:
        """Log in, send it, and read what is answered."""
        with contextlib.closing(SessionConnection.connect(self.neighbourhood.run_dir / "session.sock")) as connected:
            welcome = greet(connected, "fuzzer", observer=False)
            device = welcome.devices[0]
            while not device.admitted:
                message = connected.receive(DEADLINE_S)
                device = message.device if isinstance(message, session.DeviceChanged) else device
            current = token.pack(welcome.epoch, 0, device.generation)
            login = Login(welcome.session, welcome.secret, welcome.window)
            with contextlib.closing(DataConnection(device.endpoint, login, 0)) as worker:
                heard = select.poll()
                heard.register(worker, select.POLLIN)
                until_s = time.monotonic() + DEADLINE_S
                while not (worker.ready or worker.ended) and time.monotonic() < until_s:
                    heard.poll(HEARD_S * 1000)
                    worker.advance()
                worker.send(data.replace(TOKEN, current), [])
                if not worker.ended and worker.receive() is None and heard.poll(HEARD_S * 1000):
                    worker.receive()


class Session(LiveTarget):
    """Two messages to the supervisor: the hello, and another."""

    name = "session"

    def make(self, rng: random.Random) -> bytes:
        """Return them."""
        hello = session.Hello(VERSION, "fuzzer", observer=rng.random() < 0.3)
        message = value_of(rng, _TO_SUPERVISOR)
        return msgspec.msgpack.encode([session.FROM_CLIENT.encode(each) for each in (hello, message)])

    def say(self, data: bytes) -> None:
        """Send them, and read until the supervisor ends the session or says nothing more."""
        try:
            messages = msgspec.msgpack.decode(data, type=list[bytes])
        except (msgspec.DecodeError, RecursionError):
            messages = [data]
        if any(map(_is_order, messages)):
            return
        with socket.socket(socket.AF_UNIX) as connected, contextlib.suppress(ConnectionError, TimeoutError):
            connected.connect(str(self.neighbourhood.run_dir / "session.sock"))
            connected.settimeout(HEARD_S)
            for message in messages:
                connected.sendall(session.frame(message))
            connected.shutdown(socket.SHUT_WR)
            while connected.recv(65536):
                pass


class Control(LiveTarget):
    """A packet of a worker to the supervisor: it may cost that worker, and nothing else."""

    name = "control"

    def make(self, rng: random.Random) -> bytes:
        """Return one."""
        return control.FROM_WORKER.encode(value_of(rng, _FROM_WORKER))

    def say(self, data: bytes) -> None:
        """Have the worker say it."""
        with contextlib.suppress(errors.RequestError):
            self.neighbourhood.pool.call("Annotated_.tell_supervisor", data).result()

    def ask(self) -> None:
        """Ask for the pool's life only."""
        self.neighbourhood.check_supervisor()


def _is_order(message: bytes) -> bool:
    """Return whether a message orders what a neighbour does notice: the pool's end, or another worker."""
    with contextlib.suppress(errors.ProtocolError):
        return isinstance(session.FROM_CLIENT.decode(message), _ORDERS)
    return False


class Remote(LiveTarget):
    """Bytes of a session's or a lane's channel to the relay, after the beginning of a session."""

    name = "remote"
    settings = {"listen": LISTEN, "insecure": True}  # noqa: RUF012 - as above

    def __enter__(self) -> Self:
        super().__enter__()
        found = self.neighbourhood.pool.status().remote
        until_s = time.monotonic() + DEADLINE_S
        while found is None or not found.listening:
            assert time.monotonic() < until_s, "the relay does not listen"
            time.sleep(0.01)
            found = self.neighbourhood.pool.status().remote
        self._address = found.address
        self._context = zmq.Context()
        return self

    def __exit__(self, *_exc: object) -> None:
        """End everything."""
        self._context.destroy(0)
        super().__exit__()

    def make(self, rng: random.Random) -> bytes:
        """Return a message to the supervisor, or packets, after a byte that says which."""
        if rng.random() < 0.7:
            message = session.FROM_CLIENT.encode(value_of(rng, _TO_SUPERVISOR))
            return b"\0" + session.frame(message)
        control = tunnel.CONTROL.encode(value_of(rng, _CONTROL))
        return b"\1" + packets.HEAD.pack(packets.PacketKind.CONTROL, len(control), 0) + control

    def say(self, data: bytes) -> None:
        """Begin a session, send it, and end the session."""
        if _is_order(data[5:]):
            return
        name = os.urandom(16)
        with self._context.socket(zmq.DEALER) as dealer:
            dealer.linger = 200
            dealer.connect(self._address)
            dealer.send(packets.pack_control(tunnel.OpenChannel(VERSION, name, tunnel.ChannelKind.SESSION, name), 0))
            hello = session.FROM_CLIENT.encode(session.Hello(VERSION, "fuzzer"))
            dealer.send(packets.pack(session.frame(hello), 0))
            dealer.send(packets.pack(data[1:], 0) if data[:1] == b"\0" else data[1:])
            dealer.send(packets.pack_control(tunnel.ChannelEnded(), 0))
            assert dealer.poll(int(DEADLINE_S * 1000)), "the relay says nothing"


class Users(LiveTarget):
    """A user's behaviour, in a process of its own: each byte is an action."""

    name = "users"

    def make(self, rng: random.Random) -> bytes:
        """Return some actions."""
        return bytes(rng.randrange(len(ACTIONS)) for _ in range(rng.randint(1, 8)))

    def mutate(self, rng: random.Random, _data: bytes) -> bytes:
        """Return others."""
        return self.make(rng)

    def say(self, data: bytes) -> None:
        """Let the user act, and wait for its end."""
        names = [list(ACTIONS)[each % len(ACTIONS)] for each in data]
        program = str(Path(__file__).parents[1] / "user.py")
        command = [sys.executable, program, str(self.neighbourhood.run_dir), *names]
        done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
        assert done.returncode in {0, -9}, f"{names}: status {done.returncode}\n{done.stderr}"


_ORDERS: Final = operators.StopRequest | operators.RestartRequest | operators.ReloadRequest

_FROM_CLIENT: Final = msgspec.inspect.type_info(data.FromClient)
_FROM_WORKER: Final = msgspec.inspect.type_info(control.FromWorker)
_TO_SUPERVISOR: Final = msgspec.inspect.type_info(session.FromClient)
_CONTROL: Final = msgspec.inspect.type_info(tunnel.Control)
