from __future__ import annotations

import json
import shutil
import signal
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest

from tests.contract.serve.test_serve_security import make_certificate
from tests.serving import Server
from tests.support import DEADLINE_S, Ledger, settled

pytest.importorskip("httptools")
pytest.importorskip("uvloop")

OLD: Final = "the-token-of-last-week"
NEW: Final = "the-token-of-this-week"

needs_curl: Final = pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")


@pytest.fixture(scope="module")
def ledger() -> Iterator[Ledger]:
    """Of all tests here."""
    with Ledger() as counting:
        yield counting


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate for this machine, and its key."""
    return make_certificate(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def server(ledger: Ledger, certificate: tuple[Path, Path]) -> Iterator[Server]:
    """A server behind TLS, with two tokens in its environment, that writes each request down."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ATOMR_MP_SERVE_TOKEN", f"{OLD}, {NEW}")
        own = Server(ledger, "--tls-cert", certificate[0], "--tls-key", certificate[1], "--access-log")
    with own:
        assert OLD not in own.told
        assert NEW not in own.told
        yield own


def curl(server: Server, certificate: tuple[Path, Path], method: str, *options: str | Path) -> list[str]:
    """Return the command line that calls a method, as a user writes it."""
    trust = ("curl", "-sS", "-N", "--max-time", str(DEADLINE_S), "--cacert", certificate[0])
    return [*map(str, (*trust, *options, f"https://127.0.0.1:{server.port}/call/{method}"))]


def said(command: list[str]) -> str:
    """Return what a command has written."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def as_json(arguments: Any, token: str = NEW) -> tuple[str, ...]:
    """Return curl's options for arguments."""
    return ("-H", f"Authorization: Bearer {token}", "-H", "Content-Type: application/json", "-d", json.dumps(arguments))


@needs_curl
def test_curl_calls_and_reads_streams_by_tls(server: Server, certificate: tuple[Path, Path]) -> None:
    """Either of two tokens works, as while they are rotated, and no other."""
    for token in (OLD, NEW):
        assert said(curl(server, certificate, "Served.length", *as_json({"word": "four"}, token))) == "4"
    refused = curl(server, certificate, "Served.length", *as_json(["four"], "x" * 20), "-w", "%{http_code}", "-o", "-")
    assert said(refused).endswith("401")
    events = said(curl(server, certificate, "Served.count", *as_json({"upto": 2})))
    assert events == 'data: 0\n\ndata: 1\n\nevent: end\ndata: {"parts":2,"result":"counted"}\n\n'
    lines = said(curl(server, certificate, "Served.count", *as_json({"upto": 2}), "-H", "Accept: application/jsonl"))
    assert [json.loads(line) for line in lines.splitlines()][:2] == [{"part": 0}, {"part": 1}]


@needs_curl
def test_curl_sends_and_saves_arrays_as_files(server: Server, certificate: tuple[Path, Path], tmp_path: Path) -> None:
    """NumPy has written the sent file, and reads the saved one."""
    array = np.linspace(0, 1, 1000, dtype=np.float32).reshape(10, 100)
    np.save(tmp_path / "in.npy", array)
    options: tuple[str | Path, ...] = ("-H", f"Authorization: Bearer {NEW}", "-H", "Content-Type: application/x-npy")
    options = (*options, "-H", "Accept: application/x-npy", "--data-binary", f"@{tmp_path / 'in.npy'}")
    said(curl(server, certificate, "Served.double", *options, "-o", tmp_path / "out.npy"))
    np.testing.assert_array_equal(np.load(tmp_path / "out.npy", allow_pickle=False), array * 2)


@needs_curl
def test_a_consumer_that_is_killed_closes_the_generator(
    server: Server, certificate: tuple[Path, Path], ledger: Ledger
) -> None:
    """By SIGKILL: the kernel closes its connection, and its stream ends at the next step."""
    with ledger.gate("consumer") as gate:
        arguments = {"upto": 991, "gate": gate.path, "at": 2}
        with subprocess.Popen(
            curl(server, certificate, "Served.count", *as_json(arguments), "-H", "Accept: application/jsonl"),
            stdout=subprocess.PIPE,
        ) as consumer:
            assert consumer.stdout is not None
            assert consumer.stdout.readline() == b'{"part":0}\n'
            gate.wait()
            consumer.send_signal(signal.SIGKILL)
            gate.open()
            assert settled(lambda: "closed-991" in ledger.runs())


def test_httpx_calls_reads_errors_and_streams(server: Server, certificate: tuple[Path, Path]) -> None:
    """All go on one connection that is kept; each answer has the request's id."""
    httpx: Any = pytest.importorskip("httpx")
    context = ssl.create_default_context(cafile=certificate[0])
    headers = {"authorization": f"Bearer {NEW}"}
    with httpx.Client(
        base_url=f"https://127.0.0.1:{server.port}",
        verify=context,
        headers=headers,
        timeout=DEADLINE_S,
        trust_env=False,
    ) as client:
        answer = client.post("/call/Served.length", json={"word": "four"}, headers={"x-request-id": "mine"})
        assert (answer.status_code, answer.json(), answer.headers["x-request-id"]) == (200, 4, "mine")
        wrong = client.post("/call/Served.length", json={"word": 4})
        assert (wrong.status_code, wrong.json()["error"]["code"]) == (422, "invalid_request")
        with client.stream("POST", "/call/Served.count", json={"upto": 3}) as stream:
            lines = [line for line in stream.iter_lines() if line]
        assert lines == ["data: 0", "data: 1", "data: 2", "event: end", 'data: {"parts":3,"result":"counted"}']
        assert client.get("/health/ready", headers={"authorization": ""}).status_code == 200
    log = server.log()
    assert "POST /call/Served.length 422" in log
    assert NEW not in log
