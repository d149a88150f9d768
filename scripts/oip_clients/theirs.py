"""Triton's own examples and tests against our server, with the models that they ask."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

from oip_clients import environments, servers
from oip_clients.tables import EXAMPLES, LARGE, NOT_RUN, TESTS

EXAMPLE_S = 60
MODULE_S = 600


def run_examples(client: Path) -> list[str]:
    """Run the examples of a checkout of Triton's clients; return what is wrong."""
    python, folder = environments.python_of("client"), client / "src" / "python" / "examples"
    found: dict[str, str] = {}
    with servers.ours("client_models.py:ClientModels", "client_models.toml"):
        for file in sorted(folder.glob("simple_*.py")):
            port = servers.GRPC if "grpc" in file.name else servers.HTTP
            command = [str(python), str(file), "-u", f"localhost:{port}"]
            try:
                done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=EXAMPLE_S)
                why = f"status {done.returncode}: {done.stdout}{done.stderr}"
                found[file.name] = "" if done.returncode == 0 else why[-500:]
            except subprocess.TimeoutExpired:
                found[file.name] = f"it has not ended within {EXAMPLE_S} s"
    return compared("the examples", EXAMPLES, found)


def run_tests(server: Path, *, large: bool) -> list[str]:
    """Run the tests of a checkout of Triton's server; return what is wrong."""
    python, wrong = environments.python_of("client"), []
    with servers.ours("client_models.py:ClientModels", "client_models.toml"), tempfile.TemporaryDirectory() as made:
        for name, expected in (TESTS | (LARGE if large else {})).items():
            path, *settings = name.split()
            folder, module = path.split("/")
            if not (server / "qa" / folder / f"{module}.py").exists():
                wrong.append(f"{name} is missing")
                continue
            # A copy, since the tests write into their folder.
            for each in ("common", folder):
                shutil.copytree(server / "qa" / each, Path(made) / each, dirs_exist_ok=True)
            output = Path(made) / "found.json"
            output.unlink(missing_ok=True)
            command = [str(python), str(Path(__file__).with_name("run_tests.py")), module, str(output), *NOT_RUN]
            more = {"TRITONSERVER_IPADDR": "localhost", **dict(each.split("=") for each in settings)}
            done = subprocess.run(
                command,
                cwd=Path(made) / folder,
                env={**os.environ, **more},
                capture_output=True,
                text=True,
                check=False,
                timeout=MODULE_S,
            )
            if not output.exists():
                wrong.append(f"{name} cannot be run: {done.stderr[-800:]}")
                continue
            wrong += compared(name, expected, json.loads(output.read_text()))
    return wrong


def compared(what: str, expected: Mapping[str, str], found: Mapping[str, str]) -> list[str]:
    """Return how outcomes differ from a table."""
    wrong = [f"{what}: {name} is in no table" for name in found.keys() - expected.keys()]
    for name, reason in expected.items():
        if name not in found:
            wrong.append(f"{what}: {name} is missing")
        elif found[name] and not reason:
            wrong.append(f"{what}: {name} fails: {found[name]}")
        elif reason and not found[name]:
            wrong.append(f"{what}: {name} passes, though it {reason}")
    passed = sum(not why for why in found.values())
    print(f"  {what}: {passed} of {len(found)} pass, {len(wrong)} otherwise than the table says", flush=True)
    return sorted(wrong)
