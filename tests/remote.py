"""Shared by tests of remote clients: keys, and a pool that listens."""

from __future__ import annotations

import contextlib
import inspect
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, Final, NamedTuple

import pytest

import atomr_mp
from atomr_mp.operator.pool_status import RemoteClientStatus
from atomr_mp.remote import keys
from tests.support import DEADLINE_S, Ledger, settled


class Served(NamedTuple):
    """A pool that admits remote clients, and where."""

    pool: atomr_mp.Pool
    address: str
    keys_dir: Path

    @property
    def pid(self) -> int:
        """The relay's."""
        remote = self.pool.status().remote
        assert remote is not None
        return remote.pid

    @property
    def sessions(self) -> list[RemoteClientStatus]:
        """The sessions of remote clients, as of the relay's last report: new ones come up to half a second late.

        See that a session is there before its end is waited for.
        """
        remote = self.pool.status().remote
        assert remote is not None
        return remote.sessions

    def connect(self, name: str = "alice", **options: Any) -> atomr_mp.Pool:
        """Connect as one of the admitted clients."""
        return atomr_mp.connect(self.address, keys=key_file(self.keys_dir, name), **options)

    @contextlib.contextmanager
    def client(self) -> Iterator[atomr_mp.Pool]:
        """Connect to a pool that tests share; afterwards its workers have nothing to do."""
        with self.connect() as own:
            own.wait_ready()
            yield own
        assert settled(lambda: all(worker.queue_depth == 0 for worker in self.pool.status().devices))


@contextlib.contextmanager
def client_process(found: Served, code: str, first_line: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a client of alice's in a process of its own, whose arguments are the address and the key; end it.

    Args:
        found: The pool.
        code: The client's program.
        first_line: What it prints when it is where it is to be.
    """
    key = key_file(found.keys_dir, "alice")
    client = subprocess.Popen([sys.executable, "-c", code, found.address, key], stdout=subprocess.PIPE)
    try:
        assert client.stdout is not None
        assert client.stdout.readline() == f"{first_line}\n".encode()
        yield client
    finally:
        client.kill()
        client.communicate()


def key_file(directory: Path, name: str) -> Path:
    """Return the path of a client's key file."""
    return directory.parent / f"{name}.key"


def make_keys(directory: Path) -> Path:
    """Make a server's keys below a directory; return where they are."""
    path = directory / "keys"
    pair = keys.new_pair()
    keys.write_new(path / keys.SERVER_FILE, keys.ServerKeys(public=pair.public, secret=pair.secret))
    return path


def admit(directory: Path, name: str = "alice", **rights: Any) -> str:
    """Make a client's key file beside the server's keys, and admit it; return its public key."""
    pair = keys.new_pair()
    server = keys.read_server(directory).public
    keys.write_new(
        key_file(directory, name), keys.ClientKeys(name=name, public=pair.public, secret=pair.secret, server=server)
    )
    new = keys.AdmittedKey(name=name, public=[pair.public], **rights)
    keys.change_admitted(directory, lambda before: before.admitting(new))
    return pair.public


def serve(ledger: Ledger, *actors: str, **settings: Any) -> Served:
    """Start a pool that admits "alice", and wait until its relay listens."""
    directory = make_keys(ledger.path)
    admit(directory, operate=True)
    settings |= {"listen": LISTEN, "keys_dir": str(directory)}
    pool = ledger.start(*actors, **settings)
    return Served(pool, listening(pool), directory)


def listening(pool: atomr_mp.Pool) -> str:
    """Wait until a pool's relay listens, and return where."""

    def address() -> str:
        remote = pool.status().remote
        return remote.address if remote is not None and remote.listening else ""

    assert settled(lambda: bool(address()), DEADLINE_S)
    return address()


def repeated(module: ModuleType, local: Mapping[str, str]) -> dict[str, Callable[..., Any]]:
    """Return a module's tests that are given a pool or a device, to be run with a remote client's.

    Args:
        module: The module.
        local: Tests that are not for remote clients, each with the reason: these are skipped.
    """
    found: dict[str, Callable[..., Any]] = {}
    for name, test in vars(module).items():
        if name.startswith("test_") and inspect.signature(test).parameters.keys() & {
            "pool",
            "fresh",
            "two",
            "device",
            "world",
        }:
            reason = local.get(name)
            found[name] = test if reason is None else pytest.mark.skip(reason=reason)(_skipped(test))
    return found


def _skipped(test: Callable[..., Any]) -> Callable[..., Any]:
    def skipped() -> None: ...

    skipped.__name__, skipped.__doc__ = test.__name__, test.__doc__
    return skipped


LISTEN: Final = "tcp://127.0.0.1:0"
