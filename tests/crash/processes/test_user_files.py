"""A user's own files, named like modules that ours import, in the folders where our processes run."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from tests.support import BACKEND, DEADLINE_S, Ledger, free_port, running

pytestmark = pytest.mark.skipif(BACKEND != "host", reason="looks at imports of the package as it is installed")

ROOT: Final = Path(__file__).parents[3]
INSTALLED: Final = (
    "msgspec",
    "numpy",
    "zmq",
    "uvicorn",
    "rich",
    "prometheus_client",
    "pynvml",
    "scipy",
    "sitecustomize",
)
OURS: Final = ("atomr_mp", "atomr_mp_workers")
STANDARD: Final = {name for name in sys.stdlib_module_names - {"__future__"} if importlib.util.find_spec(name)}
NAMES: Final = {*STANDARD, *INSTALLED, *OURS}
"""Every module that one of our processes could look up."""

FILE: Final = "raise SystemExit(f'{__file__} was imported instead')\n"

ACTOR: Final = """
import os, queue
from atomr_mp_workers import Actor, method
from beside import WHERE
{extra}
class Housed(Actor):
    @method(idempotent=True)
    def pid(self) -> int:
        import asyncio, random  # imported late
        return os.getpid()
"""

PROGRAM: Final = """
import sys
import atomr_mp
if __name__ == "__main__":
    with atomr_mp.start(
        actors=[sys.argv[1]], gpus=1, backend=sys.argv[3], run_dir=sys.argv[2], standby=sys.argv[4],
        metrics="unix:metrics.sock", listen="tcp://127.0.0.1:{port}", insecure=True, preload=["preloaded"],
    ) as pool:
        first = pool.call("Housed.pid").result(60)
        pool.reload(60)
        assert pool.call("Housed.pid").result(60) != first
        assert not pool.status().devices[0].restarts
        print("answered", flush=True)
"""


def hostile(folder: Path, *but: str) -> Path:
    """Make a folder with a file for each name."""
    folder.mkdir()
    for name in NAMES - set(but):
        (folder / f"{name}.py").write_text(FILE)
    return folder


@pytest.mark.parametrize("standby", ["none", "warm"])
def test_no_process_of_ours_imports_a_users_file(ledger: Ledger, standby: str) -> None:
    """The working directory has a file of each name; so has the actor's folder, for names of the standard library."""
    cwd = hostile(ledger.path / "cwd")
    (cwd / "preloaded.py").write_text("")
    (cwd / "of_the_cwd.py").write_text("")
    actors = hostile(ledger.path / "actors", *INSTALLED, *OURS)
    (actors / "beside.py").write_text("WHERE = __file__\n")
    (actors / "housed.py").write_text(ACTOR.format(extra="import of_the_cwd"))
    program = ledger.path / "program"
    program.mkdir()
    (program / "program.py").write_text(PROGRAM.replace("{port}", str(free_port())))
    command: list[str | Path] = [
        sys.executable,
        program / "program.py",
        f"{actors}/housed.py:Housed",
        ledger.run_dir(),
        BACKEND,
        standby,
    ]
    said = _run(command, cwd)
    assert said.stdout == "answered\n", said.stderr


def test_the_command_in_a_folder_with_such_files_works(ledger: Ledger) -> None:
    """`python -m atomr_mp` has imports of its own before it can look elsewhere; all others are safe."""
    before = subprocess.run(
        [sys.executable, "-c", "import sys, atomr_mp, runpy; print(*sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    cwd = hostile(ledger.path / "cwd", *OURS, *before)
    at = ["--run-dir", str(ledger.run_dir())]
    actor = cwd / "housed_here.py"
    actor.write_text(ACTOR.replace("from beside import WHERE", "").format(extra=""))
    started = _run(
        [
            *(sys.executable, "-m", "atomr_mp", "start", "--detach", "--gpus", "1", "--backend", BACKEND, *at),
            *("--actor", "housed_here:Housed"),
        ],
        cwd,
    )
    assert started.returncode == 0, started.stderr
    for order in (["status"], ["ready"], ["restart", "0"], ["reload"], ["doctor"], ["libraries"], ["stop"]):
        named = [] if order == ["libraries"] else at
        done = _run([sys.executable, "-m", "atomr_mp", *order, *named], cwd)
        assert done.returncode == 0, (order, done)


def _run(command: list[str | Path], cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    with (
        subprocess.Popen(
            list(map(str, command)), cwd=cwd, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process,
        running(process),
    ):
        out, err = process.communicate(timeout=2 * DEADLINE_S)
    return subprocess.CompletedProcess(command, process.returncode, out, err)
