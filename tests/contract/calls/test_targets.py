"""Actors given as classes, by programs as users write them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from tests.support import DEADLINE_S, Ledger

ACTOR: Final = """
import atomr_mp
from atomr_mp_workers import Actor, method

class Words(Actor):
    @method
    def length(self, word: str) -> int:
        return len(word)
"""

CALL: Final = """
with atomr_mp.start(actors=ACTORS, gpus=1, backend="host") as pool:
    pool.restart(0)
    print(pool.actor("Words").length("four", ).result(), pool.devices[0].name)
"""

GUARDED: Final = 'if __name__ == "__main__":' + CALL.replace("\n", "\n    ")


def run(*arguments: str, directory: Path, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """Run a program in a directory to its end."""
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=directory,
        input=stdin,
        capture_output=True,
        text=True,
        timeout=2 * DEADLINE_S,
        check=False,
    )


@pytest.mark.parametrize(
    ("files", "arguments"),
    [
        ({"app/main.py": ACTOR + GUARDED.replace("ACTORS", "[Words]")}, ["app/main.py"]),
        ({"app/main.py": ACTOR + GUARDED.replace("ACTORS", "Words")}, ["-m", "app.main"]),
        (
            {"app/words.py": ACTOR, "app/main.py": "import atomr_mp, words" + CALL.replace("ACTORS", "[words.Words]")},
            ["app/main.py"],
        ),
        (
            {
                "src/lib/__init__.py": "from lib.words import Words",
                "src/lib/words.py": "from . import other\n" + ACTOR,
                "src/lib/other.py": "",
                "src/main.py": "import atomr_mp, lib" + CALL.replace("ACTORS", "[lib.Words]"),
            },
            ["src/main.py"],
        ),
        ({"words.py": ACTOR, "main.py": "import atomr_mp" + CALL.replace("ACTORS", '"words.py:Words"')}, ["main.py"]),
    ],
    ids=["of the program", "of a program run as a module", "of a module beside", "of a package beside", "as a text"],
)
def test_a_class_is_an_actor(ledger: Ledger, files: dict[str, str], arguments: list[str]) -> None:
    """Wherever the program has it from; the program's directory need not be the working directory."""
    for name, text in files.items():
        path = ledger.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    done = run(*arguments, directory=ledger.path)
    assert (done.returncode, done.stdout) == (0, "4 host:0\n"), done


def test_a_program_without_the_guard_is_told_of_it(ledger: Ledger) -> None:
    """Workers import it, and must not start pools in turn."""
    (ledger.path / "main.py").write_text(ACTOR + CALL.replace("ACTORS", "[Words]"))
    done = run("main.py", directory=ledger.path)
    last = done.stderr.splitlines()[-1]
    assert done.returncode == 1
    assert last.startswith("atomr_mp.errors.ActorLoadFailed: device 0 did not start"), done.stderr
    assert 'put what starts the pool under `if __name__ == "__main__":`' in last


@pytest.mark.parametrize("arguments", [["-c", ACTOR + CALL.replace("ACTORS", "[Words]")], ["-"]], ids=["-c", "stdin"])
def test_a_class_that_nobody_can_import_is_refused(ledger: Ledger, arguments: list[str]) -> None:
    """With what to do, in one line, before anything is started."""
    done = run(*arguments, directory=ledger.path, stdin=ACTOR + CALL.replace("ACTORS", "[Words]"))
    last = done.stderr.splitlines()[-1]
    assert last.startswith("atomr_mp.errors.ConfigurationError: the actor Words is defined in a notebook"), done.stderr
    assert "put it into a file" in last
