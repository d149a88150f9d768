"""The documentation is true and complete: its examples run, and its commands work."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import itertools
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from atomr_mp import cli, errors
from atomr_mp.device import DEFAULT_DEADLINE_S
from atomr_mp.process.files.rundir import PoolState, RunDirectory
from atomr_mp.protocol.libraries import DECLARED, requests_of
from atomr_mp.startup.config import Config
from tests.support import free_port

ROOT: Final = Path(__file__).parents[3]
LIBRARY_PAGES: Final = sorted((ROOT / "docs" / "libraries").glob("*.md"))
PAGES: Final = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md")), *LIBRARY_PAGES]
LINKED: Final = [
    *PAGES,
    ROOT / "CONTRIBUTING.md",
    *(ROOT / "docs" / "notes").glob("*.md"),
    ROOT / "docs/measurements/README.md",
]
COMMAND_PAGES: Final = [
    ROOT / "docs" / f"{name}.md"
    for name in ("operating", "settings", "watching", "runbook", "getting-started", "http-server", "remote")
]
DEADLINE_S: Final = 50.0
MAX_PAGE_WORDS: Final = 4_100
MAX_WORDS: Final = 60_000
PYTHON: Final = Path(os.environ.get("ATOMR_MP_DOCS_PYTHON", sys.executable))
"""Runs the examples; `scripts/test-install` names one that has the package and nothing else."""

ACTOR_FILE: Final = re.compile(r"# file: (?P<name>\w+\.py)")
BESIDE: Final = re.compile(r"# runs beside: (?P<command>atomr-mp start .*)")
FENCE: Final = re.compile(r"^```(?P<language>\w*)\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)
LINK: Final = re.compile(r"(?<!!)\[[^\]\n]*\]\((?P<target>[^)\s]+)\)")
PLACE: Final = re.compile(r"\bdocs/(?P<page>[\w/-]+\.md)(?:#(?P<anchor>[\w-]+))?")
OUTPUT: Final = re.compile(r"<!-- output of (scripts/.+?) -->\n(.*?)\n<!-- end of output -->", re.DOTALL)
HEADING: Final = re.compile(r"^#+ (?P<text>.+)$", re.MULTILINE)

RUN_BLOCKS: Final = """
import json, sys
namespace = {"__name__": "__main__"}
for name, line, code in json.load(sys.stdin):
    # With as many lines in front as the page has, so that a traceback names the page's own.
    exec(compile("\\n" * line + code, name, "exec"), namespace)
"""


class Block(NamedTuple):
    """A fenced block of a page."""

    language: str
    code: str
    line: int
    """Lines of the page before its first."""

    @property
    def file(self) -> str:
        """The file that the block is to be saved as, empty if none."""
        found = ACTOR_FILE.match(self.code)
        return found["name"] if found else ""

    @property
    def beside(self) -> str:
        """The command that has to run meanwhile, empty if none."""
        found = BESIDE.match(self.code)
        return found["command"] if found else ""


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


def blocks(path: Path) -> list[Block]:
    """Return a page's fenced blocks."""
    text = path.read_text(encoding="utf-8")
    return [
        Block(found["language"], found["code"], text.count("\n", 0, found.start("code")))
        for found in FENCE.finditer(text)
    ]


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


def subcommands() -> dict[str, argparse.ArgumentParser]:
    """Return the parsers of the commands, by name."""
    for action in parser()._actions:
        if isinstance(action, argparse._SubParsersAction):
            return dict(action.choices)
    raise AssertionError("the command line has no commands")


def actions(command: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """Yield a command's arguments and options, those of its own commands among them."""
    for action in command._actions:
        if isinstance(action, argparse._SubParsersAction):
            for each in action.choices.values():
                yield from actions(each)
        else:
            yield action


def slug(heading: str) -> str:
    """Return the anchor that a heading gets where the pages are shown."""
    plain = re.sub(r"[^\w\- ]", "", heading.lower())
    return plain.replace(" ", "-")


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


def test_every_page_with_commands_shows_only_ours_or_is_run() -> None:
    """No block shows a prompt and is left out because of its language."""
    for path in PAGES:
        for block in blocks(path):
            assert block.language == "console" or not re.search(r"^\$ ", block.code, re.MULTILINE), (path, block)


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_every_command_and_option_is_described(name: str) -> None:
    """The page for operators or the one for beginners has it."""
    text = "\n".join(path.read_text(encoding="utf-8") for path in COMMAND_PAGES)
    assert re.search(rf"`{name}\b", text), f"the command {name} is not described"
    for action in actions(subcommands()[name]):
        options = [option for option in action.option_strings if option not in {"-h", "--help"}]
        assert not options or any(option in text for option in options), f"{name} {options[0]} is not described"


def test_every_option_that_the_pages_name_exists() -> None:
    """An option in code, of no other program, is one of ours."""
    ours = {option for action in actions(parser()) for option in action.option_strings}
    for path in COMMAND_PAGES:
        named = set(re.findall(r"`(?:[^`\n]* )?(--[a-z][a-z-]*)", path.read_text(encoding="utf-8")))
        assert named <= ours, path


def test_the_messages_of_the_runbook_are_ours() -> None:
    """Every text in its first columns is in the code, but for what stands for something else."""
    files = [path for root in ("atomr_mp", "workers") for path in (ROOT / root).rglob("*.py")]
    code = "".join(path.read_text(encoding="utf-8") for path in files)
    code = re.sub(r'"\n\s*f?"', "", code)  # texts that go on in the next line
    text = (ROOT / "docs" / "runbook.md").read_text(encoding="utf-8").partition("\n## Messages of a start\n")[2]
    shown = [
        text for cell in re.findall(r"^\| (`.+?) \|", text, re.MULTILINE) for text in re.findall(r"`([^`]+)`", cell)
    ]
    assert shown
    of_msgspec = {"Expected", "at $."}
    for message in shown:
        pieces = {piece.strip(" -(),:") for piece in re.split(r"\.{3}|\b[A-Z]+\b", message)}
        for piece in pieces - of_msgspec - {"", "at $"}:
            assert piece in code, message


def test_the_proxy_of_the_page_waits_longer_than_calls() -> None:
    """Else it gives a call up in the moment in which the server would have told what came of it."""
    site = (ROOT / "docs" / "examples" / "nginx.conf").read_text(encoding="utf-8")
    (waits_s,) = re.findall(r"proxy_read_timeout (\d+)s;", site)
    assert int(waits_s) > DEFAULT_DEADLINE_S


def test_example_configuration_is_one() -> None:
    """Every TOML block of the page of settings is a valid configuration."""
    for block in blocks(ROOT / "docs" / "settings.md"):
        if block.language == "toml":
            directory = Path(tempfile.mkdtemp(prefix="ad-", dir="/tmp"))
            try:
                file = directory / "pool.toml"
                file.write_text(block.code, encoding="utf-8")
                assert Config.load(file).actors == [f"{directory}/words.py:Words"]
            finally:
                shutil.rmtree(directory)


def printed(script: str, *arguments: str) -> str:
    """Return what a script prints."""
    command = [sys.executable, str(ROOT / "scripts" / script), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=DEADLINE_S).stdout


def test_the_table_of_errors_has_them_all() -> None:
    """Each public class but the two bases has one row."""
    rows = re.findall(r"^\| \*\*`(\w+)`\*\*", printed("error-table"), re.MULTILINE)
    names = {name for name in errors.__all__ if isinstance(getattr(errors, name), type)}
    assert sorted(rows) == sorted(names - {"AtomrError", "RequestError"})


def test_the_pages_name_the_scripts_whose_output_the_site_has() -> None:
    """The words in their place name the same command, which prints something."""
    found = {each for path in PAGES for each in OUTPUT.findall(path.read_text(encoding="utf-8"))}
    assert {command for command, _ in found} == {
        "scripts/diagram",
        "scripts/error-table",
        "scripts/reference-tables messages",
        *(f"scripts/library-methods {library}" for library in DECLARED),
    }
    for command, words in found:
        assert f"`{command}` prints" in " ".join(words.split())
    assert printed("library-methods", "blas").startswith("| Request | Arrays |")


def test_every_library_is_in_their_list() -> None:
    """With a link to its page."""
    text = (ROOT / "docs" / "libraries.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| \[`\w+`\]\(libraries/(\w+)\.md\)", text, re.MULTILINE) == list(DECLARED)


@pytest.mark.parametrize("library", DECLARED)
def test_every_library_has_a_page_with_an_example(library: str) -> None:
    """Tests run the example. Where the site has the table of its requests, the page has their names."""
    page = ROOT / "docs" / "libraries" / f"{library}.md"
    assert page in LIBRARY_PAGES
    ((_, words),) = OUTPUT.findall(page.read_text(encoding="utf-8"))
    assert re.findall(r"`(\w+)`[,.]", words) == list(requests_of(library))
    assert any(f".{library}" in block.code for block in blocks(page) if block.language == "python")


def anchors(path: Path) -> set[str]:
    """Return the anchors of a page's headings."""
    return {slug(heading["text"]) for heading in HEADING.finditer(FENCE.sub("", path.read_text(encoding="utf-8")))}


@pytest.mark.parametrize("path", [pytest.param(path, id=str(path.relative_to(ROOT))) for path in LINKED])
def test_links_lead_somewhere(path: Path) -> None:
    """Every relative link names a file that exists, and a heading that is in it."""
    text = FENCE.sub("", path.read_text(encoding="utf-8"))
    for found in LINK.finditer(text):
        target = found["target"]
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        file = (path.parent / name).resolve() if name else path
        assert file.exists(), f"{path.name}: {target}"
        if anchor:
            assert anchor in anchors(file), f"{path.name}: {target}"


def test_the_pages_stay_short_enough_to_be_read() -> None:
    """A page that has grown is cut, or split by its readers; what code can print is left to the site."""
    words = {path: len(path.read_text(encoding="utf-8").split()) for path in LINKED}
    assert not {path.name: count for path, count in words.items() if count > MAX_PAGE_WORDS}
    assert sum(words.values()) <= MAX_WORDS


def test_the_measurements_are_those_that_their_list_and_a_page_name() -> None:
    """A file on which no figure rests any more goes."""
    folder = ROOT / "docs" / "measurements"
    files = {path.name for path in folder.glob("*.json")}
    named = re.findall(r"`([\w-]+\.json)`", (folder / "README.md").read_text(encoding="utf-8"))
    linked = "".join(path.read_text(encoding="utf-8") for path in LINKED)
    assert sorted(named) == sorted(files)
    assert not {name for name in files if f"measurements/{name}" not in linked}


def test_the_pages_that_code_and_examples_name_exist() -> None:
    """A docstring, an error or a comment that names a page, or a heading of one, names one that exists."""
    folders = ("atomr_mp", "workers", "examples", "scripts", "tests")
    files = [file for folder in folders for file in (ROOT / folder).rglob("*") if file.suffix in {"", ".py"}]
    found = 0
    for file in files:
        for place in PLACE.finditer(file.read_text(encoding="utf-8", errors="replace") if file.is_file() else ""):
            page = ROOT / "docs" / place["page"]
            assert page.is_file(), f"{file.relative_to(ROOT)}: {place[0]}"
            assert not place["anchor"] or place["anchor"] in anchors(page), f"{file.relative_to(ROOT)}: {place[0]}"
            found += 1
    assert found


def test_the_tests_and_files_that_the_architecture_names_exist() -> None:
    """A law's proof is named as `file::test`; a place as a path."""
    pages = [ROOT / "docs" / f"{name}.md" for name in ("architecture", "memory", "laws")]
    text = "".join(page.read_text(encoding="utf-8") for page in pages)
    proofs = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", text)
    assert proofs
    for file, test in proofs:
        assert f"def {test}(" in (ROOT / file).read_text(encoding="utf-8"), f"{file}::{test}"
    for place in re.findall(r"`((?:atomr_mp|workers|tests|scripts)/[\w./-]*)`", text):
        assert (ROOT / place).exists(), place
