"""A long suite is left out only while nothing that it depends on has changed."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from tests import suites

SUITE: Final = "tests/contract/project/test_demo.py"
FILES: Final = {
    SUITE: 'from tests.helping import (\n    one,  # as pools are\n)\n\nPROGRAM = "tests/programs/running.py"\n\n\n'
    'def test_one() -> None:\n    """It is."""\n    assert one == 1\n',
    "tests/helping.py": "from beside import helper as one\n",
    "examples/beside.py": "helper = 1\n",
    "examples/data/set.npy": "numbers",
    "tests/programs/running.py": 'import atomr_mp.start\n\nCOMMAND = ["python", "-m", "playing.client"]\n',
    "scripts/playing/__init__.py": "",
    "scripts/playing/client.py": "",
    "atomr_mp/__init__.py": "",
    "atomr_mp/start.py": 'COMMAND = ["-m", "atomr_mp_workers"]\n',
    "workers/atomr_mp_workers/__init__.py": 'ROOMS = ("loaded",)\n',
    "workers/atomr_mp_workers/__main__.py": "",
    "workers/atomr_mp_workers/loaded.py": "",
}
"""What a suite imports, names or runs, from one file to the next; and the data of its entry in the list."""

UNRELATED: Final = ("atomr_mp/unrelated.py", "notes/page.md", "workers/atomr_mp_workers/other.py", suites.NOTES)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A project with one suite."""
    for name, text in {**FILES, **dict.fromkeys(UNRELATED, "{}"), "tests/conftest.py": ""}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    shutil.copy(suites.ROOT / "pyproject.toml", tmp_path)
    try:
        subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    except OSError:
        pytest.skip("needs git")
    return tmp_path


def test_a_change_of_whatever_a_suite_depends_on_changes_its_digest(checkout: Path) -> None:
    """A changed import of an import, a program, what a process loads by name, data, and packages that are asked for."""
    before = suites.Sources(checkout).digest(SUITE)
    assert suites.Sources(checkout).behind(SUITE) == {*FILES, "tests/conftest.py"}
    for name in (*FILES, "tests/conftest.py", *UNRELATED):
        was = (checkout / name).read_text(encoding="utf-8")
        (checkout / name).write_text(f"{was}\n# changed\n", encoding="utf-8")
        assert (suites.Sources(checkout).digest(SUITE) == before) == (name in UNRELATED), name
        (checkout / name).write_text(was, encoding="utf-8")
    assert suites.Sources(checkout).digest(SUITE) == before
    project = checkout / "pyproject.toml"
    for section, counts in (("[project]", True), ("[tool.ruff]", False)):
        was = project.read_text(encoding="utf-8")
        project.write_text(was.replace(section, f"{section}\nadded = 1"), encoding="utf-8")
        assert (suites.Sources(checkout).digest(SUITE) != before) == counts, section
        project.write_text(was, encoding="utf-8")


def test_a_suite_that_passed_runs_again_once_an_import_has_changed(checkout: Path) -> None:
    """`--all` notes it, the next run leaves it out and says so, and its name or a changed import brings it back."""
    for name in ("tests/__init__.py", "tests/conftest.py", "tests/support.py", "tests/suites.py", "tests/waiting.py"):
        shutil.copy(suites.ROOT / name, checkout / name)
    for package in ("atomr_mp", "workers"):  # the tests' helpers use the installed ones
        shutil.rmtree(checkout / package)

    def ran(*arguments: str) -> tuple[int, int]:
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
        environment = {**os.environ, "PYTHONPATH": str(suites.ROOT / "scripts")}
        done = subprocess.run(command, cwd=checkout, env=environment, capture_output=True, text=True, check=False)
        counts = [re.search(pattern, done.stdout) for pattern in (r"(\d+) passed", r"left out (\d+): ")]
        return tuple(int(found[1]) if found else 0 for found in counts)  # type: ignore[return-value]

    (checkout / suites.NOTES).unlink()
    assert ran("--all", "-k", "another") == (0, 0)  # notes nothing
    assert not (checkout / suites.NOTES).exists()
    assert ran("--all") == (1, 0)
    assert list(json.loads((checkout / suites.NOTES).read_text(encoding="utf-8"))) == [SUITE]
    assert ran("tests") == (0, 1)
    assert ran(SUITE) == (1, 0)
    (checkout / "examples" / "beside.py").write_text("helper = 2 - 1\n", encoding="utf-8")
    assert ran("tests") == (1, 0)


def test_what_fails_is_noted_no_longer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A suite that was skipped keeps its note, with the digest that it had."""
    passed, skipped, failed = list(suites.SUITES)[:3]
    (tmp_path / "tests").mkdir()
    monkeypatch.setattr(suites, "ROOT", tmp_path)
    suites.note([skipped, failed], [], {skipped: "a", failed: "b"})
    suites.note([passed], [failed], {passed: "c", skipped: "d"})
    assert suites.noted() == {passed: "c", skipped: "a"}


def test_every_suite_of_the_list_exists_and_knows_its_processes() -> None:
    """All but those of the project's files start pools: a supervisor, and workers."""
    found = suites.Sources()
    processes = {"atomr_mp/supervisor/__main__.py", "workers/atomr_mp_workers/__main__.py"}
    for suite in suites.SUITES:
        assert (suites.ROOT / suite).is_file()
        assert processes <= found.behind(suite)
