"""The scripts that a newcomer runs first: quiet, and clear about what they do."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[3]
DEADLINE_S: Final = 100.0

PYTHON: Final = """#!/bin/sh
# Stands for an environment's Python: is new enough, has a pip that talks much, and shows what pytest is given.
case "$*" in
    *"-m pip"*) echo 'Collecting everything'; echo 'a warning' >&2; exit ${PIP_STATUS:-0} ;;
    *"-m pytest"*) printf '%s\\n' "$@" ;;
esac
"""


def run(script: str, venv: Path, *arguments: str, pip_status: int = 0) -> subprocess.CompletedProcess[str]:
    """Run a script with an environment that only seems to be one."""
    python = venv / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(PYTHON, encoding="utf-8")
    python.chmod(0o700)
    return subprocess.run(
        [str(ROOT / "scripts" / script), *arguments],
        env={**os.environ, "ATOMR_MP_VENV": str(venv), "PIP_STATUS": str(pip_status)},
        capture_output=True,
        text=True,
        check=False,
        timeout=DEADLINE_S,
    )


def test_what_pip_prints_is_not_shown_if_it_succeeds(tmp_path: Path) -> None:
    """Two lines say what is done."""
    done = run("setup", tmp_path / "venv")
    assert done.returncode == 0
    assert not done.stderr
    assert [line.partition(":")[0] for line in done.stdout.splitlines()] == ["setup", "setup"]


def test_what_pip_prints_is_shown_if_it_fails(tmp_path: Path) -> None:
    """The status and the command are shown too; the next attempt begins anew."""
    done = run("setup", tmp_path / "venv", pip_status=7)
    assert done.returncode == 7
    assert "Collecting everything\na warning\nsetup: failed: " in done.stderr
    assert not (tmp_path / "venv" / ".atomr-mp-setup").exists()


@pytest.mark.parametrize("arguments", [[], ["--all"], ["--quick"]])
def test_the_tests_say_first_how_long_they_take(tmp_path: Path, arguments: list[str]) -> None:
    """The files that --quick names exist."""
    done = run("test", tmp_path / "venv", *arguments)
    said = [line for line in done.stdout.splitlines() if not line.startswith("setup:")]
    assert re.match(r"test: .* minutes on 2 cores", said[0])
    given = [line.removeprefix("--ignore=") for line in said if "tests/" in line]
    assert bool(given) == ("--quick" in arguments)
    assert ("--all" in said) == ("--all" in arguments)
    assert all((ROOT / path).exists() for path in given)


@pytest.mark.skipif(Path("/dev/nvidiactl").exists(), reason="would run the tests of a GPU")
def test_skipped_tests_are_counted_by_reason() -> None:
    """The last line has the counts, instead of a line for each of hundreds."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "tests/gpu"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=DEADLINE_S,
    )
    lines = done.stdout.splitlines()
    counts = [found for line in lines if (found := re.match(r"skipped (\d+): (.+)", line))]
    assert any("NVIDIA GPU" in found[2] for found in counts)
    last = re.search(r"(\d+) skipped in ", lines[-1])
    assert last
    assert sum(int(found[1]) for found in counts) == int(last[1])
    assert not any(line.startswith("SKIPPED") for line in lines)


def test_a_check_of_what_has_changed_runs_no_other(tmp_path: Path) -> None:
    """A page has no types; a module has, and checks of single files read it alone. Without a change nothing is run."""
    tools = tmp_path / ".venv" / "bin"
    tools.mkdir(parents=True)
    (tmp_path / "scripts").mkdir()
    for name in ("ruff", "mypy", "lint-imports", "python", "pytest"):
        (tools / name).write_text('#!/bin/sh\necho "ran ${0##*/} $*"\n', encoding="utf-8")
        (tools / name).chmod(0o700)
    (tmp_path / "scripts" / "setup").symlink_to("/bin/true")
    shutil.copy(ROOT / "scripts" / "check", tmp_path / "scripts")
    git = ["git", "-C", str(tmp_path), "-c", "user.name=A", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
    for command in (["init", "-q"], ["add", "."], ["commit", "-qm", "first"]):
        subprocess.run([*git, *command], check=True)

    def ran(*files: str) -> set[str]:
        for file in files:
            (tmp_path / file).write_text("", encoding="utf-8")
        done = subprocess.run(
            [str(tmp_path / "scripts" / "check"), "--changed"],
            env={**os.environ, "ATOMR_MP_VENV": ".venv"},
            capture_output=True,
            text=True,
            check=True,
            timeout=DEADLINE_S,
        )
        return set(re.findall(r"^ran (.+?) *$", done.stdout, re.MULTILINE))

    always = {"ruff check", "ruff format --check", "pytest scripts/guards -q -p no:cacheprovider"}
    assert ran() == set()
    assert ran("README.md") == {*always, "python scripts/english README.md"}
    both = {"python scripts/english README.md a.py", "python scripts/docstrings a.py"}
    assert ran("a.py") == {*always, *both, "mypy"}
