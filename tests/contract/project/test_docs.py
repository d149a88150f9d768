"""The documentation is true: its examples run, and its commands work."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import itertools
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from atomr_mp import cli
from atomr_mp.process.files.rundir import PoolState, RunDirectory
from guards.pages import PAGES, ROOT, Block, blocks
from tests.support import free_port

DEADLINE_S: Final = 50.0
PYTHON: Final = Path(os.environ.get("ATOMR_MP_DOCS_PYTHON", sys.executable))
"""Runs the examples; `scripts/test-install` names one that has the package and nothing else."""

RUN_BLOCKS: Final = """
import json, sys
namespace = {"__name__": "__main__"}
for name, line, code in json.load(sys.stdin):
    # With as many lines in front as the page has, so that a traceback names the page's own.
    exec(compile("\\n" * line + code, name, "exec"), namespace)
"""


class Page:
    """A page, and a directory in which its examples run with a home for pools of their own."""

    def __init__(self, path: Path, directory: Path) -> None:
        self.blocks: Final = blocks(path)
        self._name = path.name
        self._directory = directory
        self._environment = {
            **os.environ,
            "PATH": f"{PYTHON.parent}{os.pathsep}{os.environ.get('PATH', '')}",
            "XDG_RUNTIME_DIR": str(directory),
            "TMPDIR": str(directory),
        }
        for block in self.blocks:
            if block.file:
                (directory / block.file).write_text(block.code, encoding="utf-8")

    def python(self, blocks: list[Block]) -> subprocess.CompletedProcess[str]:
        """Run blocks, one after the other in one namespace."""
        given = json.dumps([(self._name, block.line, block.code) for block in blocks])
        return self.run([str(PYTHON), "-c", RUN_BLOCKS], given)

    def run(self, command: list[str], given: str = "") -> subprocess.CompletedProcess[str]:
        """Run a command where the page's files are."""
        return subprocess.run(
            command,
            input=given,
            cwd=self._directory,
            env=self._environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=DEADLINE_S,
        )

    @contextlib.contextmanager
    def running(self, lines: str) -> Iterator[None]:
        """Run lines of a shell meanwhile; they end by SIGTERM, and their last one is the process that gets it."""
        *before, last = lines.splitlines()
        process = subprocess.Popen(
            ["sh", "-c", "\n".join([*before, f"exec {last}"])],
            cwd=self._directory,
            env=self._environment,
            stderr=subprocess.DEVNULL,
        )
        try:
            yield
        finally:
            process.terminate()
            try:
                process.wait(DEADLINE_S)
            finally:
                process.kill()

    def shell(self, line: str) -> subprocess.CompletedProcess[str]:
        """Run a line of a shell."""
        return self.run(["sh", "-c", line])


@pytest.fixture
def directory(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory for a page's files and pools, short enough for sockets; what runs there is ended afterwards."""
    path = Path(tempfile.mkdtemp(prefix="ad-", dir="/tmp"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(path))
    try:
        yield path
        running = [entry for entry in RunDirectory.list_pools() if entry.state is PoolState.RUNNING]
        for entry in running:
            os.kill(entry.supervisor_pid, signal.SIGKILL)  # its workers are killed with it
        assert not running, "a page's examples leave a pool running"
    finally:
        shutil.rmtree(path)


def with_blocks(language: str) -> list[Any]:
    """Return the pages that have blocks of a language, as parameters."""
    return [
        pytest.param(path, id=path.stem)
        for path in PAGES
        if any(block.language == language and not block.file for block in blocks(path))
    ]


def commands(code: str) -> list[tuple[str, list[str]]]:
    """Return the command lines of a console block, each with the output that the page shows."""
    found: list[tuple[str, list[str]]] = []
    for line in code.splitlines():
        if line.startswith("$ "):
            found.append((line.removeprefix("$ "), []))
        elif found:
            found[-1][1].append(line)
    return found


def parser() -> argparse.ArgumentParser:
    """Return the command line's own parser."""
    return cli._parser()


@pytest.mark.parametrize("path", with_blocks("python"))
def test_examples_run_as_they_are(path: Path, directory: Path) -> None:
    """A reader who saves the files and pastes the blocks, in order, gets no error and leaves no pool behind."""
    page = Page(path, directory)
    program = [block for block in page.blocks if block.language == "python" and not block.file]
    together = [block for block in program if not block.beside]
    result = page.python(together)
    assert result.returncode == 0, result.stderr
    for block in program:
        if block.beside:
            started = page.shell(f"{block.beside} --detach")
            assert started.returncode == 0, started.stderr
            result = page.python([block])
            stopped = page.shell("atomr-mp stop")
            assert result.returncode == 0, result.stderr
            assert stopped.returncode == 0, stopped.stderr


@pytest.mark.parametrize("path", with_blocks("console"))
def test_commands_work_in_the_order_of_the_page(path: Path, directory: Path) -> None:
    """Each exits with 0 and prints what the page shows; one that goes on for ever is only parsed."""
    page = Page(path, directory)
    shown = itertools.chain.from_iterable(commands(block.code) for block in page.blocks if block.language == "console")
    for line, output in shown:
        if "--follow" in line:
            parser().parse_args(shlex.split(line)[1:])
            continue
        result = page.shell(line)
        assert result.returncode == 0, f"{line}: {result.stderr}"
        if output:
            assert result.stdout.splitlines() == [each for each in output if each], line


@pytest.mark.skipif(not all(map(importlib.util.find_spec, ("httptools", "uvloop"))), reason="needs the extra serve")
def test_the_model_of_the_readme_answers_the_call_whose_worker_is_killed(directory: Path) -> None:
    """The README's two terminals: a server, and calls by curl with a `kill -9` in the middle."""
    port = free_port()
    page = Page(ROOT / "README.md", directory)
    serve, calls = (block.code.replace(":8000", f":{port}") for block in page.blocks if "a-secret" in block.code)
    assert serve.rstrip().splitlines()[-1].startswith("atomr-mp serve ")
    with page.running(f"{serve.rstrip()} --port {port}"):
        deadline_s = time.monotonic() + DEADLINE_S
        while page.shell(f"curl -sf http://127.0.0.1:{port}/health/ready").returncode != 0:
            assert time.monotonic() < deadline_s, "the README's server is not ready"
        result = page.shell(calls)
        assert result.returncode == 0, result.stderr
        answer, after = result.stdout.splitlines()
        assert json.loads(answer) == [4.0, 7.0]
        assert int(after) > 0
        events = page.shell("atomr-mp events --json").stdout.splitlines()
        assert any("SIGKILL" in event for event in events), "no worker was killed"
