"""`--world [NAME=]0,1`: all of the pool's actors form one world, and what is ambiguous is refused in words."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from atomr_mp import cli, errors
from atomr_mp.startup.world_settings import world_of_all
from tests.support import ACTORS

WORLDLY = f"{ACTORS}/worldly.py:Worldly"
SERVED = f"{ACTORS}/worldly_served.py:WorldlyServed"


@pytest.mark.parametrize(
    ("given", "name", "devices"),
    [
        ("0,1", "world", [0, 1]),
        ("tp=1, 0", "tp", [1, 0]),
        ("3", "world", [3]),
        ("2,", "world", [2]),
        ("a=b=0", "a=b", [0]),  # whose name is refused with all others
    ],
)
def test_it_is_one_world_of_all_actors(given: str, name: str, devices: list[int]) -> None:
    """The devices by rank; a name may stand in front."""
    assert world_of_all([given], ["A", "B"]) == {name: {"devices": devices, "actors": ["A", "B"]}}


@pytest.mark.parametrize("given", ["", "tp=", "tp", "0;1", "0,,1", "-1", "0,x", "0x1", "²"])
def test_what_names_no_devices_is_refused(given: str) -> None:
    """With the form that it has."""
    with pytest.raises(errors.ConfigurationError, match=r"write \[NAME=\]0,1 with the devices by rank"):
        world_of_all([given], ["A"])


def test_what_may_mean_several_worlds_is_refused() -> None:
    """Two worlds would have the same actors; without actors there is no world."""
    with pytest.raises(errors.ConfigurationError, match="say which actors are in which world"):
        world_of_all(["0,1", "tp=2,3"], ["A"])
    with pytest.raises(errors.ConfigurationError, match="has no actors"):
        world_of_all(["0,1"], [])


def shown(capsys: pytest.CaptureFixture[str], *options: str) -> tuple[int, str]:
    """Return the exit status of `config` with these options, and the worlds or what is wrong."""
    status = cli.main(["config", "--json", "--backend", "host", "--gpus", "2", *options])
    told = capsys.readouterr()
    return status, json.dumps(json.loads(told.out)["worlds"]["value"]) if status == 0 else told.err


def test_the_command_takes_it(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """The actors are those of all settings; a setting `worlds`, or an actor's own devices, are in its way."""
    status, worlds = shown(capsys, "--actor", WORLDLY, "--actor", f"Other={SERVED}", "--world", "tp=1,0")
    assert (status, json.loads(worlds)["tp"]["devices"]) == (0, [1, 0])
    assert json.loads(worlds)["tp"]["actors"] == ["Worldly", "Other"]
    file = tmp_path / "pool.toml"
    file.write_text(f"actors = [{WORLDLY!r}]\n", encoding="utf-8")
    status, worlds = shown(capsys, "--config", str(file), "--world", "0,1")
    assert (status, json.loads(worlds)["world"]["actors"]) == (0, ["Worldly"])
    file.write_text(f"actors = [{WORLDLY!r}]\n[worlds.tp]\ndevices = [0]\nactors = ['Worldly']\n", encoding="utf-8")
    for options, why in (
        (("--config", str(file), "--world", "0,1"), "the setting worlds has some already (tp)"),
        (("--world", "0,1"), "has no actors"),
        (("--actor", f"{WORLDLY}@0", "--world", "0,1"), "leave out the devices of the actor"),
        (("--actor", WORLDLY, "--world", "0,2"), "there is no device 2"),
        (("--actor", WORLDLY, "--world", ".=0,1"), "is no name for a world"),
        (("--actor", WORLDLY, "--world", "0,1", "--world", "0"), "--world is given 2 times"),
    ):
        status, told = shown(capsys, *options)
        assert status == 1
        assert why in " ".join(told.split())
