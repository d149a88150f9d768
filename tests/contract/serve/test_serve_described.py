"""The OpenAPI document against the server that it describes, by Schemathesis."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.serving import Server
from tests.support import ACTORS, DEADLINE_S, Ledger

pytest.importorskip("httptools")
pytest.importorskip("pydantic")
pytest.importorskip("uvloop")
pytest.importorskip("schemathesis")

ROOT: Final = ACTORS.parents[1]
HOOKS: Final = ROOT / "tests" / "programs" / "schemathesis_hooks.py"
FUZZED: Final = ROOT / "scripts" / "fuzzing" / "annotated.py"

LEFT_OUT: Final = {
    "written": "takes a ref, which has no form in JSON",
    "tell_supervisor": "says anything to the supervisor, and may end the pool",
    "records": "has code of its own that refuses values, which no schema shows",
    "times": "has times with or without a zone, which are texts for msgspec's schemas",
    "nested": "has a dictionary by numbers, whose keys are texts for msgspec's schemas",
}
"""Methods of the fuzzer's actor that are not called, with the reasons."""


@pytest.fixture(scope="module")
def ledger() -> Iterator[Ledger]:
    """Of all tests here."""
    with Ledger() as counting:
        yield counting


@pytest.fixture(scope="module")
def server(ledger: Ledger) -> Iterator[Server]:
    """A server with methods for all kinds of annotations."""
    with Server(ledger, "--actor", f"{FUZZED}:Annotated_", actor=f"{ACTORS}/described.py:Described") as own:
        yield own


def run(server: Server, directory: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Have Schemathesis ask a server for all that its document describes."""
    document, config = directory / "openapi.json", directory / "schemathesis.toml"
    document.write_bytes(server.ask("GET", "/openapi.json").body)
    config.write_text(f'hooks = "{HOOKS}"\n[auth.openapi.token]\nbearer = "{server.token}"\n', encoding="utf-8")
    left_out = ("--exclude-name-regex", rf"Annotated_\.({'|'.join(LEFT_OUT)})$")
    url, phases = ("--url", f"http://127.0.0.1:{server.port}"), ("--phases", "coverage,fuzzing")
    return subprocess.run(
        [
            *(sys.executable, "-m", "schemathesis.cli", "--config-file", config, "run", document),
            *(*url, *left_out, *phases, "--no-color", "--continue-on-failure", *options),
        ],
        cwd=directory,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=15 * DEADLINE_S,
        check=False,
    )


@pytest.mark.parametrize(
    "options",
    [
        pytest.param(("--max-examples", "5", "--generation-deterministic"), id="same-each-time"),
        pytest.param(("--max-examples", "300"), id="many", marks=[pytest.mark.at_random, pytest.mark.timeout(900)]),
    ],
)
def test_what_the_document_allows_is_taken_and_nothing_else(
    server: Server, tmp_path: Path, options: tuple[str, ...]
) -> None:
    """A valid call succeeds with a result of its schema; any other is refused, by an error of the documented form."""
    done = run(server, tmp_path, *options)
    assert done.returncode == 0, done.stdout + done.stderr
    count, tested = (int(re.findall(pattern, done.stdout)[-1]) for pattern in (r"(\d+) generated", r"Tested: (\d+)"))
    assert tested > 25
    assert count > 1000
