"""Whatever exception a method raises, its own caller gets an error, and the worker goes on."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import atomr_mp
from atomr_mp import errors
from atomr_mp.protocol import exceptions
from atomr_mp_workers.requests.raised import wire_form
from tests.actors.odd_exceptions import BASES, OF_ITS_CLASS, OF_THE_EXCEPTION, RAISED, odd
from tests.support import ACTORS, DEADLINE_S, Ledger, parts_of

ODD = f"{ACTORS}/odd_exceptions.py:Odd"
CALLS = ("loop", "thread", "chained", "awaits", "batch", "keyed")
STREAMS = ("stream", "async_stream")

specs = st.tuples(
    st.sampled_from(sorted(BASES)),
    st.lists(st.sampled_from(OF_THE_EXCEPTION), unique=True, max_size=4),
    st.lists(st.sampled_from(OF_ITS_CLASS), unique=True, max_size=2),
    st.sampled_from(sorted(RAISED)),
    st.sampled_from(["odd", "cupy", "torch", "numpy", "atomr_mp.errors"]),
).map(list)


@pytest.fixture(scope="module")
def pool() -> Iterator[atomr_mp.Pool]:
    """One pool, whose worker has to live through all of it."""
    with Ledger() as ledger, ledger.start(ODD) as started:
        yield started


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(specs, st.sampled_from([*CALLS, *STREAMS]))
def test_any_exception_is_its_own_caller_s_error(pool: atomr_mp.Pool, spec: list[object], way: str) -> None:
    """On the loop, on a thread, in a task, a batch, a key or a stream; the same worker answers the next call."""
    pid = pool.devices[0].pid
    if way in STREAMS:
        parts, error = parts_of(pool.stream(f"Odd.{way}", spec, deadline_s=DEADLINE_S))
        assert parts == [1]
    else:
        error = pool.call(f"Odd.{way}", spec, deadline_s=DEADLINE_S).exception(DEADLINE_S)
    assert isinstance(error, errors.RequestError)
    assert not isinstance(error, errors.WorkerLost | errors.DeadlineExceeded | errors.ConnectionLost)
    assert pool.call("Odd.pid").result(DEADLINE_S) == pid


@settings(max_examples=200, deadline=None)
@given(specs.filter(lambda spec: "__del__" not in spec[1]))
def test_any_exception_is_described(spec: list[object]) -> None:
    """Its description, its traceback and its wire form are made without running into what its class defines."""
    try:
        raise odd(*spec)  # type: ignore[arg-type]
    except BaseException as error:  # noqa: BLE001 - any
        raised = error
    described = exceptions.describe(raised), exceptions.full_name_of(raised), exceptions.traceback_of(raised)
    assert all(type(each) is str and each for each in described)
    if exceptions.is_a(raised, errors.AtomrError):
        assert isinstance(wire_form(raised).error(), errors.AtomrError)
    exceptions.forget_frames(raised)
    assert BaseException.__dict__["__traceback__"].__get__(raised) is None
