"""Libraries in the process of a test: a backend's actor without its worker, and a device that has it do requests."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from atomr_mp import errors
from atomr_mp_workers.device.host import HostDevice
from atomr_mp_workers.libraries import implementation
from atomr_mp_workers.requests.request import Elsewhere, Later, Next
from tests.actor_libraries import context_on
from tests.declared import breakages, check

Run = Callable[[Any], Any]
"""Does a request, and returns its result."""


def assert_all_agree(drawn: st.SearchStrategy[Any], count: int, assert_agrees: Callable[..., None], run: Run) -> None:
    """Draw requests, and compare what each gives with its expected results.

    Args:
        drawn: Draws them.
        count: How many.
        assert_agrees: Compares, given a request, random numbers for its arrays, and `run`.
        run: Does a request.
    """

    @given(drawn, st.integers(0, 2**32 - 1))
    @settings(max_examples=count, deadline=None, suppress_health_check=list(HealthCheck))
    def agrees(request: Any, seed: int) -> None:
        assert_agrees(request, np.random.default_rng(seed), run)

    agrees()


def refused(drawn: st.SearchStrategy[Any], count: int) -> int:
    """Break drawn requests in every way; return how many were refused. That is all of them, with a typed error.

    Args:
        drawn: Draws them.
        count: How many.
    """
    found = 0

    @given(drawn)
    @settings(max_examples=count, deadline=None, suppress_health_check=list(HealthCheck))
    def refuse(request: Any) -> None:
        nonlocal found
        for _, broken in breakages(request, every=True):
            with pytest.raises((errors.InvalidRequest, errors.BorrowConflict)):
                check(broken)
            found += 1

    refuse()
    return found


class DirectDevice:
    """A device for a library's reference that does requests at once.

    Args:
        run: Does one; its result stands for the reply. By default the request itself is the reply.
    """

    def __init__(self, run: Run = lambda request: request) -> None:
        self._run: Final = run

    def request(self, _library: str, request: Any, _deadline_s: float | None) -> Any:
        """Do a request, or return it if outputs are to be allocated."""
        return request if request.results() else self._run(request)


def host_actor(library: str) -> Any:
    """Return a library's actor on the host, with memory of its own."""
    cls, context = implementation(library, "host"), context_on(HostDevice(), "host")
    assert cls is not None
    return cls(context, context.streams.acquire(library))


def run_by(actor: Any) -> Run:
    """Return the function that has an actor do requests, each with a plan of its own, to their end."""

    def run(request: Any) -> Any:
        return ended(started(actor, request))

    return run


def started(actor: Any, request: Any) -> Any:
    """Have an actor start a request with a plan of its own, and return what its method returns."""
    if request.is_idle():
        return actor.rest(request)
    prepare = getattr(actor, f"prepare_{request.name}", None)
    plan = () if prepare is None else (prepare(request),)
    return getattr(actor, request.name)(request, *plan)


def ended(result: Any) -> Any:
    """Return the result of a request whose method has returned this; what is enqueued has been done at once."""
    if isinstance(result, Elsewhere):
        result = result.then(result.work())
    while isinstance(result, Next):
        result = result.enqueue()
    return result.read() if isinstance(result, Later) else result


def on_stand_ins(stand_ins: AbstractContextManager[Any], modules: Sequence[str]) -> Any:
    """Return a library's module that has imported stand-ins for a GPU's packages.

    Args:
        stand_ins: Where they are imported.
        modules: Modules of `atomr_mp_workers.libraries` to import anew; that of the library is first.
    """
    names = [f"atomr_mp_workers.libraries.{module}" for module in modules]
    with stand_ins:
        for name in names:
            sys.modules.pop(name, None)
        return importlib.import_module(names[0])
