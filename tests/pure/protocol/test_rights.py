"""The rights of remote clients."""

from __future__ import annotations

import dataclasses
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import inspect

from atomr_mp import errors
from atomr_mp.protocol.codec import TRACEBACKS, ErrorInfo
from atomr_mp.protocol.messages import operators, session
from atomr_mp.protocol.messages.rights import refusal_of, without_tracebacks
from tests.pure.protocol.test_errors import CLASSES
from tests.pure.protocol.test_protocol import values_of

SECRET: Final = "File secret.py"
TELLING: Final = ErrorInfo("failed", "it failed", {"traceback_text": SECRET, "stack": SECRET, "device": 3})

told = values_of(inspect.type_info(session.FromSupervisor), {ErrorInfo: st.just(TELLING)})


@given(told)
def test_a_client_without_the_right_sees_no_traceback_in_any_message(message: Any) -> None:
    """Wherever in a message of the supervisor an error is; its other facts stay, and so does the rest."""
    shown = without_tracebacks(message)
    sent, bare = session.FROM_SUPERVISOR.encode(message), session.FROM_SUPERVISOR.encode(shown)
    assert SECRET.encode() not in bare
    assert type(shown) is type(message)
    assert len(sent) - len(bare) == sent.count(SECRET.encode()) * len(SECRET)
    if SECRET.encode() not in sent:
        assert shown is message


@pytest.mark.parametrize("cls", CLASSES)
def test_every_fact_that_shows_an_actor_s_inside_is_known_as_one(cls: type[errors.AtomrError]) -> None:
    """A fact with a traceback of another name would be shown to everybody."""
    facts = {field.name for field in dataclasses.fields(cls)}
    assert {name for name in facts if "trace" in name or "stack" in name} <= TRACEBACKS


@pytest.mark.parametrize("operate", [True, False])
@pytest.mark.parametrize("kind", session.FromClient.__args__)
def test_what_refuses_an_order_says_which_and_why(kind: type[Any], *, operate: bool) -> None:
    """Orders for the pool's own machine are refused to every remote client, others to those who may not give them."""
    fields = {each.name: each for each in inspect.type_info(kind).fields}  # type: ignore[attr-defined]
    message = kind(**dict.fromkeys(fields, 7))
    answer = refusal_of(message, session.RemoteOrigin("bob", operate))
    here = kind in {operators.StopRequest, operators.ReadKeys, operators.TraceRequest}
    orders = {operators.RestartRequest, operators.ReloadRequest, operators.AdmitRequest, operators.FreeResident}
    assert (answer is not None) is (here or (not operate and kind in orders))
    if answer is not None:
        assert answer.id == 7
        assert answer.error is not None
        assert ("own machine" if here else "bob may not give orders") in answer.error.message
