from __future__ import annotations

import http.client
import ipaddress
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atomr_mp.protocol.hosts import is_local
from atomr_mp.serve.http.access import Access, Tokens
from atomr_mp.serve.problems import Problem
from tests.support import DEADLINE_S

pytest.importorskip("prometheus_client")

from prometheus_client import CollectorRegistry  # after the look whether it is there

from atomr_mp.helpers.metrics_server import MetricsServer

NAMES = st.from_regex(r"[a-z][a-z0-9-]{0,10}(\.[a-z][a-z0-9]{0,5}){0,2}", fullmatch=True)
ADDRESSES = st.ip_addresses().map(lambda each: f"[{each}]" if isinstance(each, ipaddress.IPv6Address) else f"{each}")
PORTS = st.just("") | st.integers(1, 65535).map(lambda port: f":{port}")


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """Where metrics are served, of nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        server: Any = MetricsServer(listening, CollectorRegistry())
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield listening.getsockname()[1]
        server.shutdown()
        thread.join(DEADLINE_S)


def _status(port: int, **headers: str) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=DEADLINE_S)
    try:
        connection.putrequest("GET", "/metrics", skip_host=True)
        for name, value in headers.items():
            connection.putheader(name, value)
        connection.endheaders()
        return connection.getresponse().status
    finally:
        connection.close()


@given(NAMES | ADDRESSES | st.just("localhost"), PORTS)
def test_both_servers_admit_the_same_names(name: str, port: str) -> None:
    """Any address, and this machine's own name, with any port; another name may be made to mean this machine."""
    try:
        Access(Tokens(), ["localhost", "127.0.0.1", "[::1]"]).check_origin({b"host": f"{name}{port}".encode()})
    except Problem:
        admitted = False
    else:
        admitted = True
    bare = name.strip("[]")
    try:
        ipaddress.ip_address(bare)
    except ValueError:
        wanted = bare == "localhost"
    else:
        wanted = True
    assert is_local(f"{name}{port}") == admitted == wanted


@settings(max_examples=30, deadline=None)
@given(name=NAMES | ADDRESSES, end=PORTS)
def test_metrics_are_refused_to_web_pages_with_other_names(port: int, name: str, end: str) -> None:
    """By their `Host`; a program that names none is served."""
    assert _status(port, Host=f"{name}{end}") == (200 if is_local(f"{name}{end}") else 403)
    assert _status(port) == 200
