"""Where gRPC listens, before any process is started."""

from __future__ import annotations

import argparse
import importlib.util
import socket

import pytest

from atomr_mp import errors
from atomr_mp.cli import serve
from atomr_mp.serve.parent import listening


def given(*options: str) -> argparse.Namespace:
    """Return the options of a command line."""
    commands = argparse.ArgumentParser().add_subparsers()
    return serve.add(commands).parse_args(["--actor", "a.py:A", *options])


@pytest.mark.parametrize("absent", ["grpc", "google.protobuf"])
@pytest.mark.parametrize("is_package_absent", [False, True])
def test_a_package_that_is_missing_is_named_with_its_extra(
    monkeypatch: pytest.MonkeyPatch, absent: str, *, is_package_absent: bool
) -> None:
    """Only where gRPC is asked for, and before anything starts."""
    found = importlib.util.find_spec

    def find(name: str, package: str | None = None) -> object:
        if name != absent:
            return found(name, package)
        if is_package_absent:
            raise ModuleNotFoundError(name)
        return None

    monkeypatch.setattr(importlib.util, "find_spec", find)
    serve._check(given())
    for options in (("--grpc-port", "0"), ("--grpc-uds", "/nowhere/grpc")):
        with pytest.raises(errors.ConfigurationError, match=rf"{absent} is not installed.*atomr-mp\[serve-grpc\]"):
            serve._check(given(*options))


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_a_port_is_kept_for_processes_that_share_it(host: str) -> None:
    """Who keeps it takes no connection; those that share it do, and no other server may have it."""
    with listening.reserve(host, 0) as reserved:
        family, address = reserved.family, reserved.getsockname()
        assert listening.shown(address) == (f"[::1]:{address[1]}" if ":" in host else f"127.0.0.1:{address[1]}")
        with socket.socket(family) as refused:
            assert refused.connect_ex(address) != 0
        shares = [socket.socket(family) for _ in range(2)]
        for each in shares:
            each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            each.bind(address)
            each.listen()
        with socket.create_connection(address[:2]):
            pass
        with pytest.raises(errors.ConfigurationError, match="cannot be listened on"):
            listening.reserve(host, address[1])
        for each in shares:
            each.close()
