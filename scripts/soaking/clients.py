"""The soak's side of its clients: starts them, reads their reports, passes on their shares, kills some."""

from __future__ import annotations

import contextlib
import os
import random
import selectors
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from soaking import words

HAND_ON: Final = 0.8
"""Largest number of shared arrays that are reported."""


class Client:
    """A client's process.

    Args:
        run_dir: The pool's run directory.
        seed: Of its random choices.
        survives: Whether it is never killed.
    """

    def __init__(self, run_dir: Path, seed: int, *, survives: bool) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "soaking.client", str(run_dir), str(seed)],
            cwd=Path(__file__).parent.parent,  # where this package is found
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
        )
        assert self._process.stdout is not None
        os.set_blocking(self._process.stdout.fileno(), False)
        self._heard = b""
        self.pid: Final = self._process.pid
        self.fileno: Final = self._process.stdout.fileno
        self.survives: Final = survives
        self.ended: int | None = None
        """Its exit status, once it has ended."""

    def tell(self, message: words.ToClient) -> None:
        """Send it a message, if it lives."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(words.line(message))

    def hear(self) -> Iterator[words.FromClient]:
        """Yield its messages."""
        assert self._process.stdout is not None
        data = self._process.stdout.read(2**20)
        if data == b"":
            self.ended = self._process.wait()
            return
        *lines, self._heard = (self._heard + (data or b"")).split(b"\n")
        for line in lines:
            yield words.FROM_CLIENT.decode(line)

    def kill(self) -> None:
        """End it with SIGKILL."""
        self._process.kill()

    def close(self) -> int:
        """Let it leave by itself, and return its exit status."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self.ended = self._process.wait()
        self._process.stdout.close()
        return self.ended


class Clients:
    """All of them.

    Args:
        run_dir: The pool's run directory.
        chance: For what is random.
        count: Takes their counts.
    """

    def __init__(self, run_dir: Path, chance: random.Random, count: Callable[[words.Count], None]) -> None:
        self._run_dir = run_dir
        self._chance = chance
        self._count = count
        self._selector = selectors.DefaultSelector()
        self._said: dict[Client, words.FromClient] = {}
        """The last progress report of each client."""
        self.living: Final[list[Client]] = []

    def start(self, *, survives: bool) -> Client:
        """Start one."""
        client = Client(self._run_dir, self._chance.randrange(2**32), survives=survives)
        self.living.append(client)
        self._selector.register(client.fileno(), selectors.EVENT_READ, client)
        return client

    def hear(self, timeout_s: float) -> None:
        """Take in their messages for some time."""
        until_s = time.monotonic() + timeout_s
        while (left_s := until_s - time.monotonic()) > 0:
            for key, _ in self._selector.select(left_s):
                self._hear(key.data)

    def wait(self, kind: type[words.FromClient], timeout_s: float) -> list[Client]:
        """Wait for a message of a kind from all clients; return the clients without one."""
        until_s = time.monotonic() + timeout_s
        while late := [client for client in self.living if type(self._said.get(client)) is not kind]:
            if time.monotonic() > until_s:
                return late
            self.hear(0.05)
        self._said.clear()
        return []

    def kill(self, client: Client) -> None:
        """Kill one, and wait for its end."""
        client.kill()
        self._remove(client)

    def close(self) -> list[int]:
        """Let all leave; return their exit statuses."""
        statuses = []
        for client in list(self.living):
            self._selector.unregister(client.fileno())
            statuses.append(client.close())
        self.living.clear()
        self._selector.close()
        return statuses

    def _hear(self, client: Client) -> None:
        for message in client.hear():
            match message:
                case words.Count():
                    self._count(message)
                case words.Share():
                    if self._chance.random() < HAND_ON:
                        self._chance.choice(self.living).tell(message)
                case _:
                    self._said[client] = message
        if client.ended is not None:
            self._count(words.Count({}, [f"a client ended with status {client.ended}"]))
            self._remove(client)

    def _remove(self, client: Client) -> None:
        self._selector.unregister(client.fileno())
        client.close()
        self.living.remove(client)
        self._said.pop(client, None)
