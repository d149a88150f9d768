"""Messages for a person: numbers with nouns, misspelt names, wrong arguments."""

from __future__ import annotations

import pytest

from atomr_mp.protocol.signatures import wrong_count, wrong_names
from atomr_mp.protocol.words import counted, did_you_mean
from atomr_mp.supervision.intensity import History, Refused, ask
from atomr_mp.supervision.settings import PoolSettings


@pytest.mark.parametrize(
    ("count", "noun", "several", "text"),
    [
        (1, "end", "", "1 end"),
        (0, "end", "", "0 ends"),
        (2000, "end", "", "2,000 ends"),
        (1, "index", "indices", "1 index"),
        (2, "index", "indices", "2 indices"),
    ],
)
def test_a_number_has_its_noun(count: int, noun: str, several: str, text: str) -> None:
    """The noun is singular for one."""
    assert counted(count, noun, several) == text


def test_the_only_end_of_a_device_is_told_as_one() -> None:
    """With no restart allowed, the first end stops the device."""
    _, verdict = ask(PoolSettings(max_restarts=0, give_up=True), History(), 0.0)
    assert isinstance(verdict, Refused)
    assert verdict.reason.startswith("1 unplanned end within 60 s")


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("max_restart", "max_restarts"),
        ("MAX_RESTARTS", "max_restarts"),
        ("gpu", "gpus"),
        ("stat", "status"),
        ("zzz", ""),
    ],
)
def test_a_misspelt_name_says_what_it_may_mean(name: str, meant: str) -> None:
    """Nothing if it is like none."""
    said = did_you_mean(name, ["start", "max_restarts", "gpus", "status"])
    assert said == (f"; did you mean {meant}?" if meant else "")


@pytest.mark.parametrize(
    ("parameters", "required", "count", "text"),
    [
        (["word"], 1, 2, "length(word) takes 1 argument, got 2"),
        (["word"], 1, 1, ""),
        (["word", "n"], 1, 0, "length(word, n) takes from 1 to 2 arguments, got 0"),
        (["word", "n"], 2, 1, "length(word, n) takes 2 arguments, got 1"),
        (["word"], 0, 2, "length(word) takes at most 1 argument, got 2"),
        ([], 0, 1, "length() takes no arguments, got 1"),
    ],
)
def test_a_wrong_number_of_arguments_is_told_as_the_caller_writes_it(
    parameters: list[str], required: int, count: int, text: str
) -> None:
    """The error has the method's parameters."""
    assert wrong_count("Words.length", parameters, required, count) == text


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"wrd": 1}, "length(word, n) has no argument wrd; did you mean word?"),
        ({"zzz": 1}, "length(word, n) has no argument zzz"),
        ({"n": 1}, "length(word, n) needs word"),
        ({"word": 1}, ""),
        (
            {"word": 1, "device": 0},
            "length(word, n) has no argument device; use pool.actor(name, device=) or pool.call(method, device=)",
        ),
    ],
)
def test_a_wrong_name_of_an_argument_is_told_as_the_caller_writes_it(given: dict[str, int], text: str) -> None:
    """For a parameter of `call`, the error says where it goes."""
    assert wrong_names("Words.length", ["word", "n"], ["word"], given) == text
