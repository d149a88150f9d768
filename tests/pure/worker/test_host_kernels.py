"""Functions that stand for kernels on the host: what may be registered, and under which names it is found."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from atomr_mp import errors
from atomr_mp_workers import host_kernels
from atomr_mp_workers.host_kernels import host_kernel


@pytest.fixture(autouse=True)
def functions(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The registered functions: none at first."""
    registered: dict[str, Any] = {}
    monkeypatch.setattr(host_kernels, "_functions", registered)
    return registered


async def waits(*_: Any) -> None:
    """Do nothing when called."""


def yields(*_: Any) -> Iterator[None]:
    """Do nothing when called."""
    yield


async def waits_and_yields(*_: Any) -> AsyncIterator[None]:
    """Do nothing when called."""
    yield


@functools.wraps(waits)
def wraps(*arguments: Any, **sizes: Any) -> Any:
    """Do nothing when called."""
    return waits(*arguments, **sizes)


def plain(*_: Any) -> None:
    """Write nothing."""


@pytest.mark.parametrize("function", [waits, yields, waits_and_yields, wraps])
def test_a_function_that_does_nothing_when_called_is_refused(
    functions: dict[str, Any], function: Callable[..., Any]
) -> None:
    """Each of its launches would succeed and change nothing."""
    with pytest.raises(errors.InvalidRequest, match=rf"{function.__name__} of .*'k', is .* plain function"):
        host_kernel("k")(function)
    assert not functions


@pytest.mark.parametrize("wrong", [3, None, dict, functools.partial(plain, 1)])
def test_what_is_no_function_is_refused(functions: dict[str, Any], wrong: Any) -> None:
    """And a decorator without a name, which would register nothing."""
    with pytest.raises(errors.InvalidRequest, match="is no function"):
        host_kernel("k")(wrong)
    with pytest.raises(errors.InvalidRequest, match=r"the name is a text; this is of type function"):
        host_kernel(plain)  # type: ignore[arg-type]
    assert not functions


@pytest.mark.parametrize(
    ("registered", "asked"),
    [
        ("scale< float >", "scale<float>"),
        ("scale<float>", " scale < float > "),
        ("pair<unsigned  int,4>", "pair<unsigned int, 4>"),
        ("n :: f<A<int> >", "n::f<A<int>>"),
    ],
)
def test_blanks_that_mean_nothing_do_not_matter(registered: str, asked: str) -> None:
    """As in the names that a source is compiled with."""
    host_kernel(registered)(plain)
    assert host_kernels.find("other", asked) is plain


def test_blanks_between_words_matter() -> None:
    """They end words."""
    host_kernel("pair<unsigned int>")(plain)
    assert host_kernels.find("pair<unsignedint>") is None
    assert host_kernels.find("pa ir<unsigned int>") is None


def test_who_has_a_name_already_is_told() -> None:
    """With both modules, which are two actors' files; a function of one module that is imported again takes over."""
    host_kernel("k")(plain)

    def other() -> None:
        """Write nothing."""

    other.__module__ = "second"
    with pytest.raises(
        errors.InvalidRequest, match=r"other of second cannot stand for .*, since plain of .*host_kernels"
    ):
        host_kernel(" k")(other)
    assert host_kernels.find("k") is plain

    def again() -> None:
        """Write nothing."""

    again.__module__, again.__qualname__ = plain.__module__, plain.__qualname__
    host_kernel("k")(again)
    assert host_kernels.find("k") is again
