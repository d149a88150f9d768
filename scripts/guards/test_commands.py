"""The pages describe every command and option, and name no other."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from atomr_mp import cli
from atomr_mp.startup.config import gather
from guards.pages import ROOT, blocks

COMMAND_PAGES: Final = [
    ROOT / "docs" / f"{name}.md"
    for name in ("operating", "settings", "watching", "runbook", "getting-started", "http-server", "remote")
]


def subcommands() -> dict[str, argparse.ArgumentParser]:
    """Return the parsers of the commands, by name."""
    for action in cli._parser()._actions:
        if isinstance(action, argparse._SubParsersAction):
            return dict(action.choices)
    raise AssertionError("the command line has no commands")


def actions(command: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """Yield a command's arguments and options, those of its own commands among them."""
    for action in command._actions:
        if isinstance(action, argparse._SubParsersAction):
            for each in action.choices.values():
                yield from actions(each)
        else:
            yield action


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_every_command_and_option_is_described(name: str) -> None:
    """The page for operators or the one for beginners has it."""
    text = "\n".join(path.read_text(encoding="utf-8") for path in COMMAND_PAGES)
    assert re.search(rf"`{name}\b", text), f"the command {name} is not described"
    for action in actions(subcommands()[name]):
        options = [option for option in action.option_strings if option not in {"-h", "--help"}]
        assert not options or any(option in text for option in options), f"{name} {options[0]} is not described"


def test_every_option_that_the_pages_name_exists() -> None:
    """An option in code, of no other program, is one of ours."""
    ours = {option for action in actions(cli._parser()) for option in action.option_strings}
    for path in COMMAND_PAGES:
        named = set(re.findall(r"`(?:[^`\n]* )?(--[a-z][a-z-]*)", path.read_text(encoding="utf-8")))
        assert named <= ours, path


def test_example_configuration_is_one(tmp_path: Path) -> None:
    """Every TOML block of the page of settings is a valid configuration."""
    file = tmp_path / "pool.toml"
    for block in blocks(ROOT / "docs" / "settings.md"):
        if block.language == "toml":
            file.write_text(block.code, encoding="utf-8")
            assert gather(file, {}).settings.actors == [f"{tmp_path}/words.py:Words"]
