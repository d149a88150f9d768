"""The unit of the page, as far as it can be run without systemd: its command line, and what it says to a manager."""

from __future__ import annotations

import configparser
import os
import shlex
import shutil
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Final

import pytest

from tests import serving
from tests.serving import Answer
from tests.support import DEADLINE_S, Ledger, free_port, running, settled

pytest.importorskip("httptools")

EXAMPLES: Final = Path(__file__).parents[3] / "docs" / "examples"
UNIT: Final = EXAMPLES / "atomr-mp-serve.service"
ANALYZE: Final = shutil.which("systemd-analyze")
TOKEN: Final = "a-token-of-the-tests"
ACTOR: Final = """
import os
from pathlib import Path

from atomr_mp_workers import Actor, method


class Pids(Actor):
    @method(idempotent=True)
    def pid(self) -> int:
        return os.getpid()

    @method(idempotent=True)
    def keeps(self) -> None:
        (Path.home() / ".cupy").mkdir(exist_ok=True)
"""


class Manager:
    """A service manager's socket, which learns from the kernel who sends.

    Args:
        path: Of the socket.
    """

    def __init__(self, path: Path) -> None:
        self.path: Final = path
        self.socket: Final = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self.socket.bind(str(path))
        self.socket.settimeout(2 * DEADLINE_S)

    def hear(self) -> tuple[int, list[str]]:
        """Return the next message's sender and lines."""
        data, control, _, _ = self.socket.recvmsg(65536, socket.CMSG_SPACE(12))
        ((_, _, credentials),) = control
        return struct.unpack("3i", credentials)[0], data.decode().splitlines()

    def hear_until(self, line: str) -> tuple[int, list[str]]:
        """Return the next message that has this line, and its sender."""
        while True:
            sender, lines = self.hear()
            if line in lines:
                return sender, lines


def unit(path: Path = UNIT) -> configparser.SectionProxy:
    """Return a unit's section of the service."""
    found = configparser.ConfigParser(interpolation=None, strict=False)
    found.optionxform = str  # type: ignore[assignment, method-assign]
    found.read(path, encoding="utf-8")
    return found["Service"]


def placed(ledger: Ledger, text: str, port: int) -> str:
    """Return a line of the unit for a prefix instead of the file system's root."""
    places = {
        "/opt/inference/bin/atomr-mp": f"{sys.executable} -m atomr_mp.cli",
        "/etc/inference": f"{ledger.path}/etc",
        "%d": f"{ledger.path}/credentials",
        "%t": f"{ledger.path}/t",
        "%C": f"{ledger.path}/cache",
        "--port 8000": f"--port {port}",
    }
    for place, own in places.items():
        text = text.replace(place, own)
    return text


@pytest.fixture
def manager(ledger: Ledger) -> Iterator[Manager]:
    """A service manager that has made the service's directories."""
    for name, mode in (("etc", 0o755), ("credentials", 0o700), ("t", 0o755), ("cache", 0o755)):
        (ledger.path / name).mkdir(mode=mode)
    # As systemd makes them.
    service = unit()
    (ledger.path / "t" / service["RuntimeDirectory"]).mkdir(mode=int(service["RuntimeDirectoryMode"], 8))
    (ledger.path / "cache" / service["CacheDirectory"]).mkdir(mode=int(service["CacheDirectoryMode"], 8))
    credential = ledger.path / "credentials" / service["LoadCredential"].partition(":")[0]
    credential.write_text(f"{TOKEN}\n", encoding="utf-8")
    credential.chmod(0o440)
    (ledger.path / "etc" / "pids.py").write_text(ACTOR, encoding="utf-8")
    config = "actors = ['pids.py:Pids']\ngpus = '1'\nbackend = 'host'\n"
    (ledger.path / "etc" / "pool.toml").write_text(config, encoding="utf-8")
    made = Manager(ledger.path / "notify")
    yield made
    made.socket.close()


def ask(port: int, method: str = "pid") -> Answer:
    """Ask for the pid of the worker, or call another method, as a client behind the proxy."""
    connection = HTTPConnection("127.0.0.1", port, timeout=DEADLINE_S)
    headers = {"host": "models.example.com", "authorization": f"Bearer {TOKEN}", "content-type": "application/json"}
    try:
        return serving.ask(connection, "POST", f"/call/Pids.{method}", b"{}", headers)
    finally:
        connection.close()


def test_the_service_is_up_reloads_and_ends_as_the_unit_says(ledger: Ledger, manager: Manager) -> None:
    """READY=1 comes from the main process once a call is answered; SIGHUP brings new workers, SIGTERM status 0."""
    service, port = unit(), free_port()
    command = shlex.split(placed(ledger, service["ExecStart"], port))
    variables = dict(each.split("=", 1) for each in shlex.split(placed(ledger, service["Environment"], port)))
    environment = {
        **{kept: os.environ[kept] for kept in ("PATH", "PYTHONPATH", "ATOMR_MP_TEST") if kept in os.environ},
        "NOTIFY_SOCKET": str(manager.path),
        "WATCHDOG_USEC": f"{int(service['WatchdogSec']) * 1_000_000}",
        **variables,
    }
    log = ledger.path / "journal"
    with log.open("wb") as journal:
        process = subprocess.Popen(
            command, cwd="/", env=environment, stdin=subprocess.DEVNULL, stdout=journal, stderr=journal
        )
    with running(process):
        sender, lines = manager.hear_until("READY=1")
        assert "READY=1" in lines, log.read_text(encoding="utf-8")
        assert sender == process.pid  # NotifyAccess=main
        first = ask(port)
        assert first.status == 200, first.body
        assert Path(variables["XDG_RUNTIME_DIR"], "atomr-mp", "default").is_dir()
        assert ask(port, "keeps").status == 200  # a kernel, as CuPy does
        assert (ledger.path / "cache" / service["CacheDirectory"] / ".cupy").is_dir()
        reload = shlex.split(service["ExecReload"].replace("$MAINPID", str(process.pid)))
        subprocess.run(reload, check=True, timeout=DEADLINE_S)
        assert settled(lambda: (now := ask(port)).status == 200 and now.json() != first.json())
        assert manager.hear_until("WATCHDOG=1")[0] == process.pid
        process.send_signal(signal.SIGTERM)  # KillMode=mixed: to the main process alone
        assert manager.hear_until("STOPPING=1")[0] == process.pid
        assert process.wait(2 * DEADLINE_S) == 0, log.read_text(encoding="utf-8")
    assert TOKEN not in log.read_text(encoding="utf-8")


def test_systemd_has_more_patience_than_the_service_needs() -> None:
    """It kills nothing that ends in order, or that still starts."""
    from atomr_mp.cli import _parser
    from atomr_mp.supervision.settings import PoolSettings

    service = unit()
    options = _parser().parse_args(shlex.split(service["ExecStart"])[1:])
    longest_end_s = options.drain_delay + options.drain_timeout + PoolSettings().drain_timeout_s
    assert float(service["TimeoutStopSec"]) > longest_end_s
    assert float(service["TimeoutStartSec"]) > PoolSettings().start_timeout_s


@pytest.mark.skipif(ANALYZE is None, reason="needs systemd-analyze: apt-get install systemd")
@pytest.mark.parametrize("name", ["atomr-mp.service", "atomr-mp-serve.service"])
def test_systemd_finds_nothing_wrong_with_the_units(name: str, tmp_path: Path) -> None:
    """No key is unknown, no value is refused, and the commands are there."""
    text = (EXAMPLES / name).read_text(encoding="utf-8").replace("/opt/inference/bin/atomr-mp", sys.executable)
    (tmp_path / name).write_text(text, encoding="utf-8")
    done = subprocess.run(
        [str(ANALYZE), "verify", str(tmp_path / name)], capture_output=True, text=True, check=False, timeout=DEADLINE_S
    )
    assert (done.returncode, done.stderr) == (0, "")
