from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

import pytest

import atomr_mp
from atomr_mp import errors
from atomr_mp.cli import main
from atomr_mp.startup.config import gather
from atomr_mp.startup.launch import become_supervisor, launch
from atomr_mp.startup.planning import make_plan
from atomr_mp.supervisor.plan import Plan


def unplanned() -> Plan:
    """Fail: nothing was started that would need a plan."""
    raise AssertionError


def begins(tmp_path: Path) -> list[Callable[[], object]]:
    """Return all that starts an interpreter from the application's process."""
    return [
        lambda: launch(unplanned, bound=True),
        lambda: atomr_mp.start(backend="host", gpus=1, run_dir=tmp_path / "run"),
        lambda: become_supervisor(make_plan(gather(None, {"backend": "host", "gpus": "1"}).settings)),
    ]


@pytest.mark.parametrize("executable", ["plain", "missing", "", None])
def test_an_interpreter_that_cannot_be_started_is_a_typed_error(
    tmp_path: Path, executable: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    """It names the interpreter and what to do, whoever starts it; the command says it in one line."""
    (tmp_path / "plain").write_text("no program")
    found = str(tmp_path / executable) if executable else executable
    with patch.object(sys, "executable", found):
        for begin in begins(tmp_path):
            with pytest.raises(errors.ConfigurationError, match=r"sys\.executable"):
                begin()
        assert main(["libraries"]) == 1
    assert capsys.readouterr().err.startswith(f"atomr-mp: the Python interpreter {found or '(unknown)'} ")
