"""The advice to an actor whose call would wait for itself."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from atomr_mp_workers.requests import own_calls
from atomr_mp_workers.requests.own_calls import OwnCalls


def told(monkeypatch: pytest.MonkeyPatch, runner: Any, *, on_loop: bool) -> str:
    """Return the refusal of `A.m`, called by `A.caller` with the same runner."""
    calls = OwnCalls(b"e", 0, 1, {"A.caller": runner, "A.m": runner})
    monkeypatch.setattr(own_calls, "current_run", lambda: SimpleNamespace(method=SimpleNamespace(name="A.caller")))
    if on_loop:
        return calls.refusal("A.m")
    found: list[str] = []
    thread = threading.Thread(target=lambda: found.append(calls.refusal("A.m")))
    thread.start()
    thread.join()
    return found[0]


@pytest.mark.parametrize("on_loop", [True, False])
def test_a_call_of_a_world_gets_advice_that_helps_there(monkeypatch: pytest.MonkeyPatch, *, on_loop: bool) -> None:
    """Its actors have one thread, and its calls need all devices."""
    of_world = told(monkeypatch, SimpleNamespace(count=1, in_step=True), on_loop=on_loop)
    assert "world" in of_world
    assert "more threads" not in of_world
    assert "another device" not in of_world
    single = told(monkeypatch, SimpleNamespace(count=1, in_step=False), on_loop=on_loop)
    assert "world" not in single
    assert "another device" in single
