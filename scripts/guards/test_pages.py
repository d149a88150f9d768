"""What the pages show and name is there, and is what the files and the code have."""

from __future__ import annotations

import functools
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Final

import pytest

from atomr_mp import errors
from atomr_mp.device import DEFAULT_DEADLINE_S
from atomr_mp.protocol.libraries import DECLARED, requests_of
from atomr_mp.supervision.lifecycle import State
from guards.pages import FENCE, LIBRARY_PAGES, PAGES, ROOT, blocks

LINKED: Final = [
    *PAGES,
    ROOT / "CONTRIBUTING.md",
    *(ROOT / "docs" / "notes").glob("*.md"),
    ROOT / "docs/measurements/README.md",
]
LINK: Final = re.compile(r"(?<!!)\[[^\]\n]*\]\((?P<target>[^)\s]+)\)")
PLACE: Final = re.compile(r"\bdocs/(?P<page>[\w/-]+\.md)(?:#(?P<anchor>[\w-]+))?")
OUTPUT: Final = re.compile(r"<!-- output of (scripts/.+?) -->\n(.*?)\n<!-- end of output -->", re.DOTALL)
HEADING: Final = re.compile(r"^#+ (?P<text>.+)$", re.MULTILINE)

DEADLINE_S: Final = 50.0
MAX_PAGE_WORDS: Final = 4_100
MAX_WORDS: Final = 54_874


def slug(heading: str) -> str:
    """Return the anchor that a heading gets where the pages are shown."""
    plain = re.sub(r"[^\w\- ]", "", heading.lower())
    return plain.replace(" ", "-")


def test_every_page_with_commands_shows_only_ours_or_is_run() -> None:
    """No block shows a prompt and is left out because of its language."""
    for path in PAGES:
        for block in blocks(path):
            assert block.language == "console" or not re.search(r"^\$ ", block.code, re.MULTILINE), (path, block)


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
    """Else it gives a call up in the moment in which the server would have reported its outcome."""
    site = (ROOT / "docs" / "examples" / "nginx.conf").read_text(encoding="utf-8")
    (waits_s,) = re.findall(r"proxy_read_timeout (\d+)s;", site)
    assert int(waits_s) > DEFAULT_DEADLINE_S


def printed(script: str, *arguments: str) -> str:
    """Return the output of a script."""
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
        "scripts/reference-tables model-config",
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


def test_the_pages_stay_short_enough_to_be_read() -> None:
    """A page that has grown is cut, or split by its readers; what code can print is left to the site."""
    words = {path: len(path.read_text(encoding="utf-8").split()) for path in LINKED}
    assert not {path.name: count for path, count in words.items() if count > MAX_PAGE_WORDS}
    assert sum(words.values()) <= MAX_WORDS


def test_the_measurements_are_those_that_their_list_and_a_page_name() -> None:
    """A file on which no figure rests goes."""
    folder = ROOT / "docs" / "measurements"
    files = {path.name for path in folder.glob("*.json")}
    named = re.findall(r"`([\w-]+\.json)`", (folder / "README.md").read_text(encoding="utf-8"))
    linked = "".join(path.read_text(encoding="utf-8") for path in LINKED)
    assert sorted(named) == sorted(files)
    assert not {name for name in files if f"measurements/{name}" not in linked}


@functools.cache
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


def test_the_tests_and_files_that_pages_name_exist() -> None:
    """A law's proof is named as `file::test`; a place as a path."""
    text = "".join(page.read_text(encoding="utf-8") for page in LINKED)
    proofs = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", text)
    assert proofs
    for file, test in proofs:
        assert f"def {test}(" in (ROOT / file).read_text(encoding="utf-8"), f"{file}::{test}"
    for place in re.findall(r"`((?:atomr_mp|workers|tests|scripts|examples)/[a-z\d_./-]*)`", text):
        assert (ROOT / place).exists(), place


def test_what_the_guide_to_ray_shows_is_in_a_program() -> None:
    """Tests run the example and the program, so the guide's code works."""
    programs = [ROOT / "examples" / "digits_ray.py", ROOT / "tests" / "programs" / "clustering.py"]
    lines = [line.strip() for program in programs for line in program.read_text(encoding="utf-8").splitlines()]
    shown = [block.code for block in blocks(ROOT / "docs" / "ray.md") if block.language == "py"]
    assert len(shown) == 4
    for code in shown:
        wanted = [line.strip() for line in textwrap.dedent(code).splitlines()]
        assert any(lines[at : at + len(wanted)] == wanted for at in range(len(lines))), code


def test_every_state_of_a_device_is_described() -> None:
    """Each has its row in docs/failure-model.md."""
    page = (ROOT / "docs" / "failure-model.md").read_text("utf-8")
    assert sorted(re.findall(r"^\| `(\w+)` \|", page, flags=re.MULTILINE)) == sorted(State)
