"""Every number on the command line is checked where it is given, before anything is started or asked."""

from __future__ import annotations

import argparse
import math
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atomr_mp import cli, errors
from atomr_mp.cli.common import leaves
from atomr_mp.serve.http.limits import Limits
from tests.in_turn import in_turn

NAMES: Final = {
    *("--timeout", "--deadline", "--interval", "--drain-delay", "--drain-timeout"),
    *("--port", "--workers", "--device", "--in-flight", "--batch-size", "--attempts", "--priority", "--lines"),
    *("--weight", "--sessions", "--max-bytes", "device"),
}
"""Numbers that commands are known to take: the search below finds them all, and may find others."""

ODD: Final = ("nan", "inf", "-inf", "1e400", "-1e400", "-1", "1e12", "9" * 30, "9" * 5000, "", "one", "0x10", "1;2")


def numbers() -> list[tuple[argparse.ArgumentParser, argparse.Action]]:
    """Return the arguments of all commands that are numbers: those whose type takes some number."""
    found = []
    for parser in leaves(cli._parser()):
        found += [(parser, action) for action in parser._actions if is_number(action)]
    return found


def is_number(action: argparse.Action) -> bool:
    """Return whether an argument is a number: 1 and 2097152 are in the bounds of one or the other."""
    return action.type is not None and any(type(parsed(action, text)[0]) in {int, float} for text in ("1", "2097152"))


def parsed(action: argparse.Action, text: str) -> tuple[Any, str]:
    """Return what an argument's type makes of a text, or None and why it refuses it."""
    assert callable(action.type)
    try:
        return action.type(text), ""
    except argparse.ArgumentTypeError as refused:
        return None, str(refused)


def name_of(action: argparse.Action) -> str:
    """Return an argument's name on the command line."""
    return action.option_strings[0] if action.option_strings else action.dest


NUMBERS: Final = numbers()
SENSELESS: Final = ("nan", "inf", "-5e300", "1e300", "one")


def test_all_numbers_are_found() -> None:
    """What is tested below is what commands take; none of it is Python's own `int` or `float`."""
    assert {name_of(action) for _, action in NUMBERS} >= NAMES
    assert not [name_of(action) for _, action in NUMBERS if action.type in {int, float}]


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(NUMBERS), st.sampled_from(ODD) | st.floats().map(repr) | st.integers().map(str))
def test_a_number_is_sound_or_refused_with_its_bounds(
    number: tuple[argparse.ArgumentParser, argparse.Action], text: str
) -> None:
    """Whatever is given: finite, and within what the option allows. A refusal says what is allowed."""
    _, action = number
    value, refusal = parsed(action, text)
    if value is None:
        assert "it must be" in refusal
        assert "; got" in refusal
        return
    assert math.isfinite(value)
    assert value >= 0 or name_of(action) == "--priority"
    assert value <= 2**63 - 1


@in_turn("parser, action, text", [(*number, text) for number in NUMBERS for text in SENSELESS])
def test_odd_numbers_are_wrong_usage(
    parser: argparse.ArgumentParser, action: argparse.Action, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Status 2, with the option's name and what is allowed; never a traceback, and nothing is begun."""
    given_text = [f"{name_of(action)}={text}"] if action.option_strings else ["--", text]
    with pytest.raises(SystemExit) as ended:
        cli.main([*parser.prog.split()[1:], *given_text])
    said = capsys.readouterr().err
    assert ended.value.code == 2
    assert name_of(action).strip("-") in said.lower()
    assert "it must be" in said


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(Limits.__struct_fields__), st.sampled_from(ODD) | st.floats().map(repr) | st.integers().map(str))
def test_a_limit_is_sound_or_refused_with_its_bounds(name: str, text: str) -> None:
    """The limits that `serve` takes as NAME=N, and those that a program makes."""
    (action,) = [
        action for parser in leaves(cli._parser()) for action in parser._actions if "--limit" in action.option_strings
    ]
    limit, refusal = parsed(action, f"{name}={text}")
    if limit is None:
        assert f"{name} must be" in refusal
        return
    found, value = limit
    assert found == name
    assert 0 < getattr(Limits(**{name: value}), name) <= 2**63 - 1


@pytest.mark.parametrize(
    ("given_text", "said"), [("json_byts=3", "did you mean json_bytes"), ("stall_s=nan", "--limit: stall_s must be")]
)
def test_a_limit_that_does_not_exist_is_wrong_usage(
    given_text: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the names of those that do, or what the one may be."""
    with pytest.raises(SystemExit) as ended:
        cli.main(["serve", "--limit", given_text])
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("value", [math.nan, math.inf, -1, 0, "3", None])
@pytest.mark.parametrize("name", ["stall_s", "streams"])
def test_a_program_s_limits_are_checked(name: str, value: Any) -> None:
    """By the same rule."""
    with pytest.raises(errors.ConfigurationError, match=f"{name} must be"):
        Limits(**{name: value})
