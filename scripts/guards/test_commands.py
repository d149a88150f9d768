"""The pages describe every command and option, and name no other."""

from __future__ import annotations

import argparse
import itertools
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import pytest

from atomr_mp import cli
from atomr_mp.startup.config import gather
from guards.pages import FENCE, ROOT, blocks

COMMAND_PAGES: Final = [
    ROOT / "docs" / f"{name}.md"
    for name in ("operating", "settings", "watching", "runbook", "getting-started", "http-server", "remote")
]
POOL_OPTIONS: Final = {"--pool", "--run-dir"}


def commands() -> dict[str, argparse.ArgumentParser]:
    """Return the parsers that have options, by the words of their commands: `status`, `keys admit`."""
    return dict(below(cli._parser(), ()))


def below(parser: argparse.ArgumentParser, words: tuple[str, ...]) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """Yield the commands below a parser; those that have commands of their own do nothing themselves."""
    choices = [action.choices for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    if not choices:
        yield " ".join(words), parser
    for name, each in choices[0].items() if choices else ():
        yield from below(each, (*words, name))


def options(parser: argparse.ArgumentParser) -> list[Sequence[str]]:
    """Return a parser's options, each in all of its forms."""
    return [action.option_strings for action in parser._actions if action.option_strings and action.dest != "help"]


NAMED: Final = re.compile(
    r"`(?:atomr-mp )?(?P<name>" + "|".join(sorted({*commands(), *cli.COMMANDS}, key=len, reverse=True)) + r")\b(?!\()"
)
OPTION: Final = re.compile(r"(?<![\w-])--?[a-z][a-z-]*")
LIKE: Final = re.compile(r"options of `(?:atomr-mp )?(?P<name>\w+)`")
"""Says that a command has the options of another one."""


def named(text: str) -> set[str]:
    """Return the commands that a text names in code; `keys` alone names all commands that begin so."""
    found = {each["name"] for each in NAMED.finditer(text)}
    return {name for name in commands() for each in found if name == each or name.startswith(f"{each} ")}


def described() -> set[tuple[str, str]]:
    """Return the pairs of a command and an option that the pages describe, beside their examples."""
    pages = [FENCE.sub("", path.read_text(encoding="utf-8")) for path in COMMAND_PAGES]
    return {pair for page in pages for pair in described_in(page)}


def described_in(page: str) -> Iterator[tuple[str, str]]:
    """Yield the pairs that a page describes.

    A row is about the commands in its first cell, else about those in its table's head. A sentence is about the
    commands that it names, else about those that the sentences before it in the paragraph have named, or the heading,
    or the page's title.
    """
    title = heading = named(page.partition("\n")[0])
    head: set[str] = set()
    for piece in re.split(r"\n\s*\n|\n(?=[|#-])", page):
        text = piece.strip()
        if text.startswith("#"):
            heading = named(text) or title
        elif text.startswith("|"):
            first = named(text.strip("|").split("|")[0])
            head = named(text) if "|---" in page.partition(f"{piece}\n")[2].partition("\n")[0] else head
            yield from pairs(text, first or head or heading)
        else:
            about = heading
            for sentence in re.split(r"(?<=[.:;])\s", text):
                about = named(sentence) - mentioned(sentence) or about
                yield from pairs(sentence, about)


def mentioned(sentence: str) -> set[str]:
    """Return the commands that a sentence names for their options alone."""
    return {each["name"] for each in LIKE.finditer(sentence)}


def pairs(text: str, about: set[str]) -> Iterator[tuple[str, str]]:
    """Yield a pair for each of the commands and each option in a text about them."""
    found = set(OPTION.findall(text))
    for other in mentioned(text):
        found |= {form for forms in options(commands()[other]) for form in forms}
    yield from itertools.product(about, found)


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_every_command_is_described(name: str) -> None:
    """A page for operators or for beginners has it."""
    assert any(re.search(rf"`(?:atomr-mp )?{name}\b", path.read_text(encoding="utf-8")) for path in COMMAND_PAGES)


def test_every_option_is_described_for_its_command() -> None:
    """The same option of another command is no description. How a pool is found is described once, for all."""
    found = described()
    missing = [
        f"{name} {forms[0]}"
        for name, parser in commands().items()
        for forms in options(parser)
        if not found & {(name, form) for form in forms} and not {*forms} & POOL_OPTIONS
    ]
    assert missing == []
    assert {("start", option) for option in POOL_OPTIONS} <= found


def test_every_option_that_the_pages_name_exists() -> None:
    """An option in code, of no other program, is one of ours."""
    ours = {form for parser in [cli._parser(), *commands().values()] for forms in options(parser) for form in forms}
    for path in COMMAND_PAGES:
        shown = set(re.findall(r"`(?:[^`\n]* )?(--[a-z][a-z-]*)", path.read_text(encoding="utf-8")))
        assert shown <= ours, path


def test_example_configuration_is_one(tmp_path: Path) -> None:
    """Every TOML block of the page of settings is a valid configuration."""
    file = tmp_path / "pool.toml"
    for block in blocks(ROOT / "docs" / "settings.md"):
        if block.language == "toml":
            file.write_text(block.code, encoding="utf-8")
            assert gather(file, {}).settings.actors == [f"{tmp_path}/words.py:Words"]
