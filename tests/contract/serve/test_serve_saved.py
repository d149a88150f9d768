from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.serving import CLI, Server
from tests.support import DEADLINE_S, Ledger, settled

pytest.importorskip("httptools")
pytest.importorskip("uvloop")

ACTOR = """
from atomr_mp_workers import Actor, method
import beside_the_saved


class Saved(Actor):
    @method(idempotent=True)
    def version(self) -> int:
        return beside_the_saved.VERSION + 0
"""


def save(file: Path, text: str) -> None:
    """Write a file as editors do: beside it, and then in its place."""
    new = file.with_suffix(".new")
    new.write_text(text)
    new.replace(file)


def test_saved_code_runs_and_broken_code_does_not(ledger: Ledger, tmp_path: Path) -> None:
    """The actor's own file counts, and its imports; standard error has the traceback of a broken one."""
    actor, beside = tmp_path / "saved_actor.py", tmp_path / "beside_the_saved.py"
    beside.write_text("VERSION = 1\n")
    actor.write_text(ACTOR)
    with Server(ledger, "--watch", actor=f"{actor}:Saved") as server:

        def version() -> int:
            found: int = server.call("Saved.version").json()
            return found

        assert version() == 1
        save(beside, "VERSION = 2\n")
        assert settled(lambda: version() == 2), server.log()
        save(actor, ACTOR.replace("import beside", "import no_such_module_here\nimport beside"))
        assert settled(lambda: "nothing was reloaded" in server.log()), server.log()
        assert settled(lambda: "Traceback" in server.log() and "line 3, in <module>" in server.log()), server.log()
        assert version() == 2
        save(actor, ACTOR.replace("+ 0", "+ 10"))
        assert settled(lambda: version() == 12), server.log()
        assert server.log().count("the reload of the pool begins") == 3


def test_only_files_of_a_pool_that_is_started_can_be_watched(ledger: Ledger) -> None:
    """Another's pool has files that may be anywhere."""
    options = ("--watch", "--run-dir", ledger.run_dir())
    done = subprocess.run(
        [*CLI, "serve", *map(str, options)], capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )
    assert (done.returncode, "--actor or --config" in done.stderr) == (1, True), done
