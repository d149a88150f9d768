"""The files for containers, run as far as that goes without an engine: read-only, as another user, without /dev/shm."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
import yaml

from atomr_mp import cli
from atomr_mp.supervision.settings import PoolSettings
from tests import serving
from tests.container import ROOT, USER, Box, needs_boxes
from tests.serving import Answer
from tests.support import DEADLINE_S, Ledger, free_port, running, settled

pytest.importorskip("httptools")

CONTAINERFILE: Final = ROOT / "docs" / "examples" / "Containerfile"
MANIFEST: Final = ROOT / "docs" / "examples" / "kubernetes.yaml"
TOKEN: Final = "a-token-of-the-tests"
PAGE_BYTES: Final = 4096
HERE: Final = (sys.executable, "-m", "atomr_mp.cli")
ACTOR: Final = """
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from atomr_mp_workers import Actor, method


class Words(Actor):
    @method(idempotent=True)
    def length(self, word: str) -> int:
        return len(word)

    @method(idempotent=True)
    def keeps(self) -> str:
        cache = Path.home() / ".cupy" / "kernel_cache"
        cache.mkdir(parents=True, exist_ok=True)
        return str(cache)

    @method(idempotent=True)
    def double(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        return values * 2
"""


def instructions(name: str) -> list[str]:
    """Return the arguments of each instruction of a name in the container file."""
    return re.findall(rf"^{name} (.+)$", CONTAINERFILE.read_text(encoding="utf-8"), re.MULTILINE)


def command(name: str) -> list[str]:
    """Return an instruction's command."""
    (found,) = (json.loads(each[each.index("[") :]) for each in instructions(name))
    assert isinstance(found, list)
    return found


def manifest(kind: str) -> dict[str, Any]:
    """Return the object of a kind in the manifest."""
    (found,) = (each for each in yaml.safe_load_all(MANIFEST.read_text(encoding="utf-8")) if each["kind"] == kind)
    assert isinstance(found, dict)
    return found


def pod() -> dict[str, Any]:
    """Return what the deployment says of a pod."""
    found: dict[str, Any] = manifest("Deployment")["spec"]["template"]["spec"]
    return found


def secret(ledger: Ledger) -> Path:
    """Make the file of tokens: root's, and not for everybody."""
    file = ledger.path / "tokens"
    file.write_text(f"{TOKEN}\n", encoding="utf-8")
    file.chmod(0o440)
    os.chown(file, 0, USER)
    return file


def code(ledger: Ledger, text: str = ACTOR) -> Path:
    """Make the folder of the actor."""
    folder = ledger.path / "app"
    folder.mkdir()
    (folder / "words.py").write_text(text, encoding="utf-8")
    return folder


def ask(port: int, method: str, path: str, body: bytes | None = None, **headers: str) -> Answer:
    """Ask the server, as a client with the token."""
    connection = HTTPConnection("127.0.0.1", port, timeout=DEADLINE_S)
    given = {"authorization": f"Bearer {TOKEN}", "content-type": "application/json"}
    try:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return serving.ask(connection, method, path, body, {**given, **named})
    finally:
        connection.close()


def is_ready(port: int, host: str = "localhost") -> bool:
    """Whether the server takes calls."""
    try:
        return ask(port, "GET", "/health/ready", host=host).status == 200
    except OSError:
        return False


@contextlib.contextmanager
def contained(ledger: Ledger, line: list[str], port: int, environment: dict[str, str]) -> Iterator[int]:
    """Run a container's command until it is ready; end it by SIGTERM, with status 0; gives the server's pid."""
    log = ledger.path / "output"
    given = {name: os.environ[name] for name in ("PATH", "ATOMR_MP_TEST")}
    options = ("--port", str(port), "--backend", "host", "--gpus", "1")
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*line, *options],
            cwd="/",
            env={**given, **environment},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
    with running(process):
        assert settled(lambda: is_ready(port) or process.poll() is not None, 3 * DEADLINE_S)
        assert process.poll() is None, log.read_text(encoding="utf-8")
        yield process.pid
        process.send_signal(signal.SIGTERM)
        assert process.wait(2 * DEADLINE_S) == 0, log.read_text(encoding="utf-8")


def image() -> dict[str, str]:
    """Return the variables that the image sets, but for the path."""
    pairs = [each.split("=", 1) for line in instructions("ENV") for each in shlex.split(line)]
    return {name: value for name, value in pairs if name != "PATH"}


def checkout() -> dict[str, str]:
    """Return the environment in which the checkout's package is found, as the image's."""
    return {**image(), "PYTHONPATH": os.pathsep.join(each for each in sys.path if each)}


def test_the_commands_of_the_files_are_ours() -> None:
    """Their options exist, and the user is the same in both."""
    assert command("ENTRYPOINT") == ["atomr-mp"]
    assert cli._parser().parse_args(command("CMD")).actor == ["/app/words.py:Words"]
    (container,) = pod()["containers"]
    assert cli._parser().parse_args(container["args"]).actor == ["/app/words.py:Words"]
    for line in (
        command("CMD"),
        container["args"],
    ):
        assert cli._parser().parse_args(line).gpus == "1"
    assert instructions("USER") == [f"{USER}:{USER}"]
    context = pod()["securityContext"]
    assert {context["runAsUser"], context["runAsGroup"], context["fsGroup"]} == {USER}


def test_a_pod_has_the_time_that_its_end_takes_and_its_parts_fit() -> None:
    """The grace period is longer than delay, calls and workers together; names that others refer to are there."""
    (container,) = pod()["containers"]
    options = cli._parser().parse_args(container["args"])
    longest_end_s = options.drain_delay + options.drain_timeout + PoolSettings().drain_timeout_s
    assert pod()["terminationGracePeriodSeconds"] > longest_end_s
    probe = container["readinessProbe"]
    assert options.drain_delay >= probe["periodSeconds"]  # so that it is seen that it is not ready
    assert {container[name]["httpGet"]["path"] for name in ("livenessProbe", "readinessProbe")} == {
        "/health/live",
        "/health/ready",
    }
    (port,) = container["ports"]
    assert port["containerPort"] == options.port
    (outer,) = manifest("Service")["spec"]["ports"]
    assert outer["targetPort"] == port["name"]
    assert manifest("Service")["metadata"]["name"] in options.allowed_host
    labels = manifest("Deployment")["spec"]["template"]["metadata"]["labels"]
    assert manifest("Service")["spec"]["selector"] == labels
    volumes = {volume["name"] for volume in pod()["volumes"]}
    mounted = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert mounted.keys() == volumes
    assert str(options.token_file).startswith(f"{mounted['tokens']}/")


@needs_boxes()
def test_a_container_needs_nothing_of_dev_shm_and_writes_only_below_tmp(ledger: Ledger) -> None:
    """One page of /dev/shm is enough for arrays of 32 MiB, and stays empty: they go through memory without a name."""
    port = free_port()
    inside = {"/app": code(ledger), "/run/secrets/tokens": secret(ledger)}
    box = Box(ledger.path, inside, shm_bytes=PAGE_BYTES)
    with contained(ledger, box.command(*HERE, *command("CMD")), port, checkout()) as pid:
        values = np.arange(1 << 22, dtype=np.float64)
        sent = io.BytesIO()
        np.save(sent, values)
        raw = "application/x-npy"
        answer = ask(port, "POST", "/call/Words.double", sent.getvalue(), content_type=raw, accept=raw)
        assert answer.status == 200, answer.body[:200]
        np.testing.assert_array_equal(np.load(io.BytesIO(answer.body)), values * 2)
        kept = ask(port, "POST", "/call/Words.keeps", b"{}")  # as CuPy does, which fails otherwise
        assert (kept.status, kept.json()) == (200, "/tmp/.cupy/kernel_cache"), kept.body
        assert list(Path(f"/proc/{pid}/root/dev/shm").iterdir()) == []
        assert Path(f"/proc/{pid}/root/tmp/atomr-mp-{USER}/default/session.sock").exists()
        assert f"Uid:\t{USER}\t{USER}\t{USER}\t{USER}\n" in Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
        mounts = [line.split() for line in Path(f"/proc/{pid}/mountinfo").read_text(encoding="utf-8").splitlines()]
        writable = {place for _, _, _, _, place, how, *_ in mounts if "rw" in how.split(",")}
        assert "/" not in writable
        assert writable >= {"/tmp", "/dev/shm"}
        health = [part.replace(":8000", f":{port}") for part in command("HEALTHCHECK")]
        assert subprocess.run([sys.executable, *health[1:]], check=False, timeout=DEADLINE_S).returncode == 0
    over = subprocess.run([sys.executable, *health[1:]], stderr=subprocess.DEVNULL, check=False, timeout=DEADLINE_S)
    assert over.returncode == 1


@needs_boxes()
def test_a_pod_runs_as_its_manifest_says_once_its_directory_is_sticky(ledger: Ledger) -> None:
    """An emptyDir that everybody may write is refused with what to do, and the first container does that."""
    (container,), (before,) = pod()["containers"], pod()["initContainers"]
    port = free_port()
    words = manifest("ConfigMap")["data"]["words.py"]
    inside = {"/app": code(ledger, words), "/run/secrets/words/tokens": secret(ledger)}
    box = Box(ledger.path, inside, tmp_mode="0777")
    line = (*HERE, *container["args"])
    environment = {**os.environ, **checkout(), "XDG_RUNTIME_DIR": ""}
    refused = subprocess.run(
        box.command(*line, "--port", str(port), "--backend", "host"),
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=DEADLINE_S,
    )
    assert refused.returncode == 1, refused
    assert "it has no sticky bit" in refused.stderr
    with contained(ledger, box.command(*line, first=tuple(before["command"])), port, checkout()):
        assert is_ready(port, host=f"10.1.2.3:{port}")  # as a probe asks
        answer = ask(port, "POST", "/call/Words.length", b'["word"]', host="words")
        assert (answer.status, answer.json()) == (200, 4), answer.body


@needs_boxes()
@pytest.mark.timeout(600)
@pytest.mark.parametrize("source", ["checkout", "wheel"])
def test_the_image_builds_as_written_and_serves(ledger: Ledger, source: str) -> None:
    """The steps of the file, from what a build gets of the checkout, or from a wheel; then its command."""
    context, built = ledger.path / "context", ledger.path / "inference"
    context.mkdir()
    built.mkdir()
    for name in re.findall(r"^!(.+)$", (ROOT / ".dockerignore").read_text(encoding="utf-8"), re.MULTILINE):
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, context / name)
    package = "."
    if source == "wheel":
        pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", ".", str(context)]
        wheels = ledger.path / "wheels"
        wheels.mkdir()
        subprocess.run(pip, cwd=wheels, check=True, timeout=5 * DEADLINE_S)
        ((wheel,), context) = wheels.glob("*.whl"), wheels
        package = f"./{wheel.name}"
    steps = [step for step in instructions("RUN") if "useradd" not in step]
    arguments = dict(each.split("=", 1) for each in instructions("ARG"))
    assert arguments == {"PACKAGE": ".", "EXTRAS": "serve"}
    environment = {**os.environ, **arguments, "PACKAGE": package}
    building = Box(ledger.path, {"/opt/inference": built, "/source": context})
    python = Path(sys.executable).resolve().parent
    environment["PATH"] = f"{python}:{environment['PATH']}"
    for step in steps:
        done = subprocess.run(
            building.as_root("sh", "-ec", f"cd /source; {step}"),
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=10 * DEADLINE_S,
        )
        assert done.returncode == 0, f"{step}\n{done.stdout}{done.stderr}"
    (ledger.path / "box").rmdir()
    inside = {"/opt/inference": built, "/app": code(ledger), "/run/secrets/tokens": secret(ledger)}
    box = Box(ledger.path, inside)
    port = free_port()
    line = box.command("/opt/inference/bin/atomr-mp", *command("CMD"))
    with contained(ledger, line, port, image()) as pid:
        answer = ask(port, "POST", "/call/Words.length", b'["word"]', host="models.example.com")
        assert (answer.status, answer.json()) == (200, 4), answer.body
        assert str(ROOT).encode() not in Path(f"/proc/{pid}/maps").read_bytes()
