from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atomr_mp import errors
from atomr_mp.cli import config
from atomr_mp.startup.config import gather
from atomr_mp.startup.planning import make_plan
from atomr_mp.startup.rehearsal import _check_address
from tests.support import BACKEND

SETTINGS = st.fixed_dictionaries(
    {},
    optional={
        "gpus": st.sampled_from(["1", "2", "64", "65", "99", "0", "all", "0,0", "-1", "GPU-none", "x"]),
        "max_streams": st.sampled_from(["0", "256", "1024", "1025", "9999"]),
        "streams": st.sampled_from(["single", "pooled:3", "pooled:0", "odd"]),
        "metrics": st.sampled_from(["off", "127.0.0.1:0", "1.2.3.4:80", "unix:x"]),
        "listen": st.sampled_from(["off", "tcp://127.0.0.1:7000", "tcp://x"]),
        "insecure": st.sampled_from(["true", "false"]),
        "standby": st.sampled_from(["hot", "warm", "none"]),
        "max_restarts": st.sampled_from(["3", "-1"]),
    },
)


def _run(*arguments: str) -> str:
    """Return what `atomr-mp config` refuses, empty if it accepts the settings."""
    parser = argparse.ArgumentParser()
    config.add(parser.add_subparsers())
    try:
        options = parser.parse_args(["config", *arguments])
        options.run(options)
    except errors.ConfigurationError as error:
        return error.message
    return ""


@settings(max_examples=60, deadline=None)
@given(SETTINGS)
def test_config_refuses_what_start_would_refuse_here(given_settings: dict[str, Any]) -> None:
    """In the same words; what it accepts can be planned, and so started, on this machine."""
    pairs = {"backend": BACKEND, **given_settings}
    arguments = [part for name, value in pairs.items() for part in ("--set", f"{name}={value}")]
    told = _run(*arguments)
    parser = argparse.ArgumentParser()
    from atomr_mp.cli.start import add_settings
    from atomr_mp.cli.start import given_settings as of_options

    add_settings(parser)
    refused = ""
    try:
        make_plan(gather(None, of_options(parser.parse_args(arguments))).settings)
    except errors.ConfigurationError as error:
        refused = error.message
    assert told == refused


def test_config_can_leave_this_machine_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """With `--portable`, for settings of a machine with other devices."""
    monkeypatch.delenv("ATOMR_MP_BACKEND", raising=False)
    wanted = ("--set", "backend=cuda", "--set", "gpus=7,8")
    assert _run("--portable", *wanted) == ""
    assert _run(*wanted)
    assert _run("--portable", "--set", "streams=odd")


def test_config_finds_what_else_a_start_would_find(tmp_path: Path) -> None:
    """A class that the file does not have, a path too long for sockets, an address of another machine."""
    file = tmp_path / "actor.py"
    file.write_text("class Other: pass\nfrom elsewhere import Given as Taken\nLate = type('Late', (), {})\n")
    host = ("--set", "backend=host", "--set", f"run_dir={tmp_path}/pool")
    assert _run(*host, "--actor", f"{file}:Missing") == f"{file} has no 'Missing'; its classes are: Other"
    for name in ("Other", "Taken", "Late"):
        assert _run(*host, "--actor", f"{file}:{name}") == ""
    file.write_text("globals()['A' + 'B'] = object\n")  # what its text does not name may be there all the same
    assert _run(*host, "--actor", f"{file}:AB") == ""
    assert "a socket in it would have a path of" in _run("--set", "backend=host", "--set", f"run_dir=/tmp/{'p' * 110}")
    with pytest.raises(errors.ConfigurationError, match=r"192\.0\.2\.1:5570': nothing can listen there: Cannot assign"):
        _check_address("tcp://192.0.2.1:5570")
    _check_address("tcp://127.0.0.1:5570")
