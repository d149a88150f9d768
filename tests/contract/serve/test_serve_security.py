from __future__ import annotations

import http.client
import os
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import atomr_mp
from tests import serving
from tests.serving import CLI, Answer, Server
from tests.support import DEADLINE_S, Ledger

pytest.importorskip("httptools")
pytest.importorskip("uvloop")

TOKEN = "a-token-for-these-tests"


@pytest.fixture(scope="module")
def pool() -> Iterator[tuple[Ledger, atomr_mp.Pool]]:
    """A pool that the servers here join."""
    with Ledger() as ledger, ledger.start(serving.SERVED) as shared:
        yield ledger, shared


def over(connection: socket.socket, token: str = "") -> Answer:
    """Ask for the metrics on a connection that is there."""
    client = http.client.HTTPConnection("localhost")
    client.sock = connection
    return serving.ask(client, "GET", "/openapi.json", None, {"authorization": f"Bearer {token}"} if token else {})


def test_a_unix_socket_is_for_this_user_only(pool: tuple[Ledger, atomr_mp.Pool]) -> None:
    """Its mode says so, and the kernel's word on who is at the other end. It needs no token, and goes at the end."""
    ledger, _ = pool
    path = ledger.path / "http.sock"
    with Server(ledger, "--uds", path, actor=None):
        assert path.stat().st_mode & 0o777 == 0o600
        with socket.socket(socket.AF_UNIX) as own:
            own.connect(str(path))
            assert over(own).status == 200
        if os.geteuid() == 0:  # root may become somebody else
            path.chmod(0o666)
            ledger.path.chmod(0o755)
            program = (
                "import os, socket, sys; os.setuid(65534); s = socket.socket(socket.AF_UNIX); "
                "s.connect(sys.argv[1]); "  # it is answered at once, whatever it would have asked
                "sys.stdout.write(s.recv(99).decode())"
            )
            done = subprocess.run(
                [sys.executable, "-c", program, path], capture_output=True, text=True, timeout=DEADLINE_S, check=False
            )
            assert done.stdout.startswith("HTTP/1.1 403 "), done
        # A second server does not take the socket away from this one.
        refused = subprocess.run(
            [*CLI, "serve", "--uds", path, "--run-dir", ledger.run_dir()],
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )
        assert (refused.returncode, f"listens on {path}" in refused.stderr) == (1, True), refused
        with socket.socket(socket.AF_UNIX) as own:
            own.connect(str(path))
            assert over(own).status == 200
    assert not path.exists()


def test_tls_and_a_file_of_tokens(pool: tuple[Ledger, atomr_mp.Pool], tmp_path: Path) -> None:
    """Beyond loopback too; the token that is shown nowhere is that of the file."""
    ledger, _ = pool
    certificate, key = make_certificate(tmp_path)
    tokens = tmp_path / "tokens"
    tokens.write_text(f"{TOKEN}\n")
    options = ("--host", "0.0.0.0", "--tls-cert", certificate, "--tls-key", key, "--token-file", tokens)
    with Server(ledger, *options, actor=None) as server:
        assert TOKEN not in server.told
        context = ssl.create_default_context(cafile=certificate)
        with context.wrap_socket(server.connect(), server_hostname="localhost") as connection:
            assert over(connection, TOKEN).status == 200
        with context.wrap_socket(server.connect(), server_hostname="localhost") as connection:
            assert over(connection, TOKEN + "x").status == 401
        assert b"HTTP/1.1 200" not in server.raw(b"GET /health/live HTTP/1.1\r\nhost: localhost\r\n\r\n", shut=True)


def test_insecure_asks_for_nothing(pool: tuple[Ledger, atomr_mp.Pool]) -> None:
    """The host must still be a name that the server has."""
    ledger, _ = pool
    with Server(ledger, "--insecure", "--host", "0.0.0.0", "--allowed-host", "models.example", actor=None) as server:
        assert "Bearer" not in server.told
        assert server.ask("GET", "/openapi.json", headers={"host": "models.example"}).status == 200
        assert server.ask("GET", "/openapi.json", headers={"host": "other.example"}).status == 403


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--host", "0.0.0.0"), "--tls-cert"),
        (("--tls-cert", "cert.pem"), "go together"),
        (("--tls-cert", "/dev/null", "--tls-key", "/dev/null"), "not a usable certificate"),
        (("--token-file", "/nonexistent"), "cannot be read"),
        (("--gpus", "2"), "--actor"),
        (("--host", "192.0.2.1", "--insecure"), "cannot be listened on"),
    ],
)
def test_what_cannot_be_served_is_refused_in_a_line(
    pool: tuple[Ledger, atomr_mp.Pool], options: tuple[str, ...], said: str
) -> None:
    """Nothing listens, and nothing was started."""
    ledger, _ = pool
    done = subprocess.run(
        [*CLI, "serve", "--port", "0", "--run-dir", ledger.run_dir(), *options],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    assert re.search(re.escape(said), done.stderr), done.stderr


def test_a_short_token_in_the_environment_is_refused(pool: tuple[Ledger, atomr_mp.Pool]) -> None:
    """It could be guessed."""
    ledger, _ = pool
    done = subprocess.run(
        [*CLI, "serve", "--port", "0", "--run-dir", ledger.run_dir()],
        env={**os.environ, "ATOMR_MP_SERVE_TOKEN": "short"},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert (done.returncode, "16 characters" in done.stderr) == (1, True)


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_a_token_of_the_environment_is_shown_nowhere(
    pool: tuple[Ledger, atomr_mp.Pool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Printed lines may be kept in a log. The shown line can be run all the same."""
    ledger, _ = pool
    monkeypatch.setenv("ATOMR_MP_SERVE_TOKEN", TOKEN)
    with Server(ledger, actor=None) as server:
        assert TOKEN not in server.told
        (line,) = (line for line in server.told.splitlines() if line.startswith("curl"))
        done = subprocess.run(["sh", "-c", f"{line} -sSf"], capture_output=True, timeout=DEADLINE_S, check=False)
        assert done.returncode == 0, done.stderr


def test_ctrl_c_ends_the_server_and_not_a_pool_that_it_has_joined(pool: tuple[Ledger, atomr_mp.Pool]) -> None:
    """It ends in order, and with the usual status."""
    ledger, shared = pool
    with Server(ledger, actor=None) as server:
        server.process.send_signal(signal.SIGINT)
        assert server.process.wait(DEADLINE_S) == 0
    assert shared.call("Served.length", "word").result() == 4


def make_certificate(directory: Path) -> tuple[Path, Path]:
    """Return a certificate for localhost and its key."""
    certificate, key = directory / "cert.pem", directory / "key.pem"
    made = subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
            *("-keyout", key, "-out", certificate, "-days", "2", "-subj", "/CN=localhost"),
            *("-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"),
        ],
        capture_output=True,
        check=False,
        timeout=DEADLINE_S,
    )
    if made.returncode != 0:
        pytest.skip("needs openssl")
    return certificate, key
