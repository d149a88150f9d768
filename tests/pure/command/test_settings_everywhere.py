"""Each setting means the same to every command that takes `--config`: none ignores what another one takes."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

from atomr_mp.cli import _parser, config, keys, serve, start
from atomr_mp.cli.common import leaves
from atomr_mp.remote import keys as key_files
from atomr_mp.startup import launch as launching
from atomr_mp.startup import start as starting
from atomr_mp.supervision.settings import PoolSettings
from atomr_mp.supervisor.plan import Plan

ACTOR: Final = """
from atomr_mp_workers import Actor, method


class W(Actor):
    @method
    def f(self) -> int:
        return 1
"""

OTHER: Final[dict[str, Any]] = {
    "pool": "night",
    "run_dir": "/nowhere/night",
    "backend": "host",
    "gpus": "3",
    "workers_per_gpu": 2,
    "actors": ["W"],
    "worlds": {"tp": {"devices": [0, 1], "actors": ["W"], "begin_timeout_s": 11.0}},
    "window_requests": 255,
    "window_bytes": 2**20,
    "max_streams": 255,
    "stall_s": 299.0,
    "max_restarts": 4,
    "within_s": 61.0,
    "backoff_initial_s": 0.6,
    "backoff_factor": 2.5,
    "backoff_max_s": 31.0,
    "give_up": True,
    "start_timeout_s": 301.0,
    "drain_timeout_s": 31.0,
    "hang_timeout_s": 601.0,
    "kill_timeout_s": 31.0,
    "max_requests": 1,
    "max_age_s": 1.0,
    "max_memory_bytes": 1,
    "max_device_bytes": 1,
    "log_max_bytes": 4097,
    "log_errors": "type",
    "memory_bytes": 2**30,
    "streams": "single",
    "completion": "polled",
    "inline_bytes": 1,
    "metrics": "127.0.0.1:9464",
    "listen": "tcp://127.0.0.1:0",
    "keys_dir": "/nowhere/keys",
    "insecure": True,
    "remote_grace_s": 31.0,
    "remote_sessions": 255,
    "remote_bytes": 1,
    "max_queue": 1,
    "max_weight": 11.0,
    "standby": "warm",
    "standby_starts": 2,
    "preload": ["json"],
    "resident_max_bytes": 1,
    "max_replays": 3,
    "max_suspicions": 3,
    "kernels": "off",
    "threads_per_worker": 1,
    "core_dumps": True,
    "cgroups": True,
}
"""A value of each setting that is not the default."""


class PlannedError(Exception):
    """Ends a command where it would start the pool.

    Args:
        plan: What it would start.
    """

    def __init__(self, plan: Plan) -> None:
        super().__init__("planned")
        self.plan = plan


def _planned(plan: Plan, *_: object, **__: object) -> Any:
    raise PlannedError(plan)


def options_of(command: Any, *arguments: str) -> argparse.Namespace:
    """Parse a command's arguments."""
    parser = argparse.ArgumentParser()
    found: argparse.Namespace = command.add(parser.add_subparsers()).parse_args(arguments)
    return found


def of_start(*arguments: str) -> PoolSettings:
    """Return the settings of the pool that `start` would start."""
    with pytest.raises(PlannedError) as ended:
        start.run(options_of(start, "--detach", *arguments))
    return ended.value.plan.settings


def of_serve(*arguments: str) -> PoolSettings:
    """Return the settings of the pool that `serve` would start; what it tells of errors is the pool's."""
    options = options_of(serve, *arguments)
    settings = serve._settings(options)
    assert settings is not None
    begin = serve._starter(options, settings, 2)
    assert begin is not None
    with pytest.raises(PlannedError) as ended:
        begin()
    found = ended.value.plan.settings
    assert serve._log_errors(options, settings) == found.log_errors
    assert not ended.value.plan.temporary
    return found


def of_config(*arguments: str, capsys: pytest.CaptureFixture[str]) -> PoolSettings:
    """Return the settings that `config` shows."""
    capsys.readouterr()
    config.run(options_of(config, "--json", *arguments))
    shown = json.loads(capsys.readouterr().out)
    return msgspec.convert({name: each["value"] for name, each in shown.items()}, PoolSettings)


COMMANDS: Final[Mapping[str, Callable[..., PoolSettings]]] = {"start": of_start, "serve": of_serve, "config": of_config}
"""The commands that take `--config`, and what each makes of its arguments."""


def test_there_is_another_value_of_each_setting() -> None:
    """A new one fails here, and then in the walk below, wherever it is ignored."""
    assert OTHER.keys() == set(PoolSettings.__struct_fields__)
    defaults = msgspec.to_builtins(PoolSettings())
    assert [name for name, value in OTHER.items() if defaults[name] == value] == []


def test_all_commands_that_take_a_configuration_are_walked() -> None:
    """A new one fails here."""
    assert {
        each.prog.split()[-1]
        for each in leaves(_parser())
        if any("--config" in action.option_strings for action in each._actions)
    } == COMMANDS.keys()


@pytest.fixture
def other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Return the settings, with an actor that is there; commands end where they would start a pool."""
    (tmp_path / "w.py").write_text(ACTOR)
    for variable in ("POOL", "RUN_DIR"):
        monkeypatch.delenv(f"ATOMR_MP_{variable}", raising=False)
    monkeypatch.setattr(launching, "launch", lambda planned, **_: _planned(planned()))
    monkeypatch.setattr(starting, "launch", lambda planned, **_: _planned(planned()))
    return {**OTHER, "actors": [f"{tmp_path / 'w.py'}:W"]}


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("given", ["file", "environment", "set"])
def test_no_command_ignores_a_setting(
    command: str,
    given: str,
    other: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Wherever it is given: in the file, in the environment, or by `--set`."""
    file = tmp_path / "pool.toml"
    texts = {name: _text(name, value) for name, value in other.items()}
    arguments = ["--config", str(file)]
    file.write_text("")
    if given == "file":
        file.write_text("".join(f"{name} = {_toml(value)}\n" for name, value in other.items()))
    elif given == "environment":
        for name, text in texts.items():
            monkeypatch.setenv(f"ATOMR_MP_{name.upper()}", text)
    else:
        arguments += [part for name, text in texts.items() for part in ("--set", f"{name}={text}")]
    more = {"capsys": capsys} if command == "config" else {}
    assert COMMANDS[command](*arguments, **more) == msgspec.convert(other, PoolSettings)


@pytest.mark.parametrize("command", COMMANDS)
def test_an_option_comes_before_the_environment_and_that_before_the_file(
    command: str,
    other: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Whichever command it is; `--world` is of the actors of all three."""
    file = tmp_path / "pool.toml"
    file.write_text(f'pool = "of_file"\nbackend = "host"\ngpus = "1"\nmax_restarts = 7\nactors = {other["actors"]}\n')
    monkeypatch.setenv("ATOMR_MP_GPUS", "2")
    monkeypatch.setenv("ATOMR_MP_MAX_RESTARTS", "8")
    more = {"capsys": capsys} if command == "config" else {}
    found = COMMANDS[command]("--config", str(file), "--gpus", "3", "--world", "1,2", **more)
    assert (found.pool, found.gpus, found.max_restarts) == ("of_file", "3", 8)
    assert {name: (each.devices, each.actors) for name, each in found.worlds.items()} == {"world": ([1, 2], ["W"])}


@pytest.mark.parametrize("command", ["start", "serve"])
def test_a_pool_without_a_name_is_the_one_that_other_commands_find(command: str, other: dict[str, Any]) -> None:
    """It is called "default"."""
    assert COMMANDS[command]("--actor", other["actors"][0], "--backend", "host", "--gpus", "1").pool == "default"


def test_serve_tells_of_errors_what_its_option_says(other: dict[str, Any], tmp_path: Path) -> None:
    """It comes before the pool's setting, which it changes; a pool that is joined has its own."""
    file = tmp_path / "pool.toml"
    file.write_text(f'backend = "host"\nlog_errors = "off"\nactors = {other["actors"]}\n')
    assert of_serve("--config", str(file)).log_errors == "off"
    assert of_serve("--config", str(file), "--log-errors", "full").log_errors == "full"
    joined = options_of(serve)
    assert serve._settings(joined) is None
    assert serve._log_errors(joined, None) == "full"


def test_keys_are_where_start_looks_for_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The variable of `keys_dir` names them for both."""
    monkeypatch.setenv("ATOMR_MP_KEYS_DIR", str(tmp_path / "keys"))
    options = options_of(keys, "new")
    options.run(options)
    assert (tmp_path / "keys" / key_files.SERVER_FILE).exists()


def _toml(value: Any) -> str:
    """Return a value as TOML."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name} = {_toml(each)}" for name, each in value.items()) + "}"
    return json.dumps(value)


def _text(name: str, value: Any) -> str:
    """Return a value as the environment and `--set` take it."""
    if name == "worlds":
        return json.dumps(value)
    if isinstance(value, list):
        return ",".join(value)
    return str(value).lower() if isinstance(value, bool) else str(value)
