"""Hosts: addresses of this machine alone, and names in the header `Host` that no foreign web page can make. Pure."""

from __future__ import annotations

import ipaddress
from typing import Final

LOCAL_HOSTS: Final = frozenset({"localhost", "127.0.0.1", "[::1]"})


def is_address(name: str) -> bool:
    """Return whether a name in `Host` is an IP address, an IPv6 one in brackets.

    A page's name can be made to resolve to this machine, but a page of an address was loaded from that address.
    """
    try:
        ipaddress.ip_address(name[1:-1] if name.startswith("[") and name.endswith("]") else name)
    except ValueError:
        return False
    return ":" not in name or name.startswith("[")


def is_local(host: str) -> bool:
    """Return whether a `Host` is an address or this machine's own name, with or without a port."""
    name = without_port(host.lower())
    return name in LOCAL_HOSTS or is_address(name)


def is_loopback(host: str) -> bool:
    """Return whether an address can be reached from this machine only."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def without_port(host: str) -> str:
    """Return the name in a `Host` header."""
    name, separator, port = host.rpartition(":")
    return name if separator and port.isdigit() else host
