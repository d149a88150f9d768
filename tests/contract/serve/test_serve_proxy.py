from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path

import pytest

from tests import serving
from tests.serving import Server
from tests.support import DEADLINE_S, Ledger, free_port, running, settled

pytest.importorskip("httptools")

NGINX = shutil.which("nginx")
EXAMPLE = Path(__file__).parents[3] / "docs" / "examples" / "nginx.conf"

pytestmark = pytest.mark.skipif(NGINX is None, reason="needs nginx: apt-get install nginx-light")


@pytest.fixture(scope="module")
def ledger() -> Iterator[Ledger]:
    """Of all tests here."""
    with Ledger() as counting:
        yield counting


@pytest.fixture(scope="module")
def server(ledger: Ledger) -> Iterator[Server]:
    """A server that the tests share."""
    with Server(ledger, "--allowed-host", "models.example.com") as own:
        yield own


@pytest.fixture(scope="module")
def proxy(ledger: Ledger, server: Server) -> Iterator[int]:
    """The proxy of the page before the server, without its certificate; returns its port."""
    port = free_port()
    text = re.sub(r"^\s*ssl_.*\n", "", EXAMPLE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    text = text.replace("listen 443 ssl", f"listen 127.0.0.1:{port}")
    text = text.replace("127.0.0.1:8000", f"127.0.0.1:{server.port}")
    paths = "".join(
        f"{name}_temp_path {ledger.path}/{name};\n" for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    configuration = ledger.path / "nginx.conf"
    configuration.write_text(
        f"daemon off;\npid {ledger.path}/nginx.pid;\nevents {{}}\nhttp {{\naccess_log off;\n{paths}{text}\n}}\n",
        encoding="utf-8",
    )
    errors = f"{ledger.path}/nginx.log"
    command = [str(NGINX), "-p", str(ledger.path), "-c", str(configuration), "-e", errors]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    with running(process):
        assert settled(lambda: listens(port)), Path(errors).read_text(encoding="utf-8")
        yield port
        process.terminate()
        assert process.wait(DEADLINE_S) == 0


def listens(port: int) -> bool:
    """Whether somebody listens on a port."""
    try:
        socket.create_connection(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True


def headers(server: Server) -> dict[str, str]:
    """Return what clients of the proxy send."""
    return {
        "host": "models.example.com",
        "authorization": f"Bearer {server.token}",
        "content-type": "application/json",
        "accept": "application/jsonl, application/json",
    }


def test_calls_and_errors_pass_the_proxy(server: Server, proxy: int) -> None:
    """They pass unchanged, with the proxy's own id of the request."""
    connection = HTTPConnection("127.0.0.1", proxy, timeout=DEADLINE_S)
    answer = serving.ask(connection, "POST", "/call/Served.length", b'["word"]', headers(server))
    assert (answer.status, answer.json()) == (200, 4)
    assert re.fullmatch(r"[0-9a-f]{32}", answer.headers["x-request-id"])
    wrong = serving.ask(connection, "POST", "/call/Served.length", b"[4]", headers(server))
    assert (wrong.status, wrong.error["request_id"]) == (422, wrong.headers["x-request-id"])
    connection.close()


def test_streams_pass_the_proxy_part_by_part_and_its_clients_leaving_does(
    server: Server, proxy: int, ledger: Ledger
) -> None:
    """Nothing is collected on the way, and a generator is closed whose reader has left the proxy."""
    with ledger.gate("proxied") as gate:
        connection = HTTPConnection("127.0.0.1", proxy, timeout=DEADLINE_S)
        body = json.dumps({"upto": 888, "gate": gate.path, "at": 1}).encode()
        connection.request("POST", "/call/Served.count", body, headers(server))
        response = connection.getresponse()
        assert response.readline() == b'{"part":0}\n'
        gate.wait()
        response.close()
        connection.close()
        gate.open()
        assert settled(lambda: "closed-888" in ledger.runs())
