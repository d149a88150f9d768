"""Arguments that a function does not take are refused in words, by everything that users call."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterator
from typing import Any, Final
from unittest.mock import MagicMock

import pytest

import atomr_mp
import atomr_mp_workers
from atomr_mp import errors, testing
from atomr_mp.client.actor_ref import ActorRef
from atomr_mp.libraries.base import LibraryReference
from atomr_mp.libraries.program import Program
from atomr_mp.protocol.keywords import checked_names
from atomr_mp.protocol.libraries import DECLARED
from atomr_mp.protocol.messages.devices import MethodInfo
from atomr_mp.protocol.words import did_you_mean
from tests.in_turn import in_turn

NAMED: Final = [(module, name) for module in (atomr_mp, atomr_mp_workers, testing) for name in module.__all__]

MADE_BY_US: Final = {"Context", "Device", "GpuRef", "Injection", "Pool", "Reply", "ReplyStream", "World"}
"""Classes whose constructors are not for users."""

WITHOUT_OPTIONS: Final = {"Actor", "DeviceArray", "Live", "LiveStream"}
"""Classes whose methods take one argument, by position; one of them is called for each part of a stream."""

WITHIN: Final = {"Reply.learn", "Reply.wake"}
"""Methods that this package alone calls."""

MESSAGES: Final = {"Exit", "Fail", "FullDisk", "Hang", "HangInKernel", "Kill", "NoMemory", "Poison"}
"""Classes of msgspec, which says itself which argument it does not know."""


def functions() -> Iterator[Any]:
    """Yield every function and public method, as parameters."""
    for library in DECLARED:
        importlib.import_module(f"atomr_mp.libraries.{library}")
    public = [getattr(module, name) for module, name in NAMED]
    known: list[Any] = [*public, Program, *_below(LibraryReference)]
    for each in known:
        if inspect.isclass(each) and each.__name__ not in MESSAGES | WITHOUT_OPTIONS:
            for name, found in vars(each).items():
                checked = not name.startswith("_") or (name == "__init__" and each.__name__ not in MADE_BY_US)
                checked = checked and f"{each.__name__}.{name}" not in WITHIN
                if inspect.isfunction(found) and checked and _names(found):
                    yield pytest.param(found, id=f"{each.__module__}.{each.__name__}.{name}")
        elif inspect.isfunction(each) and _names(each):
            yield pytest.param(each, id=f"{each.__module__}.{each.__name__}")


def _below(cls: type) -> Iterator[Any]:
    below: list[Any] = cls.__subclasses__()
    for each in below:
        if each.__module__.startswith("atomr_mp."):
            yield each
            yield from _below(each)


def _names(function: Callable[..., Any]) -> list[str]:
    """Return the names that arguments may be given by."""
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    of = inspect.signature(function).parameters.values()
    takes_any = [each for each in of if each.kind is inspect.Parameter.VAR_KEYWORD and each.annotation != "Never"]
    return [] if takes_any else [each.name for each in of if each.kind in kinds and each.name != "self"]


def _required(function: Callable[..., Any]) -> list[MagicMock]:
    """Return something for each argument that has to be given by position."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    of = inspect.signature(function).parameters.values()
    return [MagicMock() for each in of if each.kind in kinds and each.default is inspect.Parameter.empty]


@in_turn("function", functions())
def test_a_misspelt_argument_is_refused_with_the_right_one(function: Callable[..., Any]) -> None:
    """Before anything is done; whichever argument it is."""
    for name in _names(function):
        misspelt = f"{name[:-1]}_{name[-1]}"
        with pytest.raises(errors.WrongArgument) as refused:
            function(*_required(function), **{misspelt: 1})
        assert misspelt in refused.value.message
        assert name in refused.value.message.partition(misspelt)[2]
        assert isinstance(refused.value, TypeError)


@pytest.mark.parametrize("function", [*functions(), pytest.param(atomr_mp.start, id="atomr_mp.start")])
def test_a_wrong_number_of_arguments_is_refused_in_words(function: Callable[..., Any]) -> None:
    """Too many by position, with a name for one if there is one; or too few. Hot functions leave it to Python."""
    of = inspect.signature(function).parameters.values()
    if any(each.annotation == "Never" for each in of):
        return
    wrong = [] if any(each.kind is inspect.Parameter.VAR_POSITIONAL for each in of) else [[MagicMock()] * 99]
    if required := _required(function):
        wrong.append(required[1:])
    for arguments in wrong:
        with pytest.raises(errors.WrongArgument, match="argument") as refused:
            function(*arguments)
        by_name = [each.name for each in of if each.kind is inspect.Parameter.KEYWORD_ONLY]
        assert not by_name or len(arguments) < 99 or f"such as {by_name[0]}=" in refused.value.message


def test_a_type_error_of_the_function_itself_stays_what_it_is() -> None:
    """Its arguments were those that the function takes."""

    @checked_names
    def add(one: Any, other: Any = 1) -> Any:
        return one + other

    with pytest.raises(TypeError, match="concatenate") as raised:
        add("x")
    assert not isinstance(raised.value, errors.WrongArgument)


WORDS: Final = MethodInfo("length", ["word"], idempotent=True, deadline_s=None, doc="")


@pytest.fixture
def pool() -> atomr_mp.Pool:
    """A pool that knows one method, and sends nothing."""
    client = MagicMock(methods={"Words.length": WORDS}, lost=None, devices=[])
    client.submit.side_effect = AssertionError("it was sent")
    return atomr_mp.Pool(client, None, None)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"timeout": 1}, "did you mean deadline_s"),
        ({"timeout_s": 1}, "did you mean deadline_s"),
        ({"word": "x"}, r"kwargs=\{'word': \.\.\.\}.*pool\.actor\('Words'\)\.length\(word="),
        ({"devise": 1}, "did you mean device"),
    ],
)
def test_a_call_s_options_are_told_from_its_arguments(pool: atomr_mp.Pool, given: dict[str, Any], said: str) -> None:
    """An argument of the method by name has its place, and what others call the options is known."""
    with pytest.raises(errors.WrongArgument, match=said):
        pool.call("Words.length", **given)
    if "word" not in given:
        with pytest.raises(errors.InvalidRequest, match=r"length.* has no argument"):
            ActorRef(pool, "Words", None, None).length(**given)


@pytest.mark.parametrize(
    ("word", "known", "meant"),
    [
        ("cpu", ["auto", "cuda", "host"], "host"),
        ("GPU", ["auto", "cuda", "host"], "cuda"),
        ("workers", ["gpus", "backend"], "gpus"),
        ("timeout", ["timeout_s"], "timeout_s"),
        ("--num-gpus", ["gpus"], "gpus"),
    ],
)
def test_the_words_of_others_are_known(word: str, known: list[str], meant: str) -> None:
    """A word that is not like the right one at all."""
    assert did_you_mean(word, known) == f"; did you mean {meant}?"
