"""A fault of ours in the supervisor: a message's costs its session; one in the middle of an action ends the pool."""

from __future__ import annotations

import select
from types import SimpleNamespace
from typing import Any

import pytest

from atomr_mp import errors
from atomr_mp.protocol.messages import session
from atomr_mp.supervision.lifecycle import TRANSITIONS, State
from atomr_mp.supervisor.device.life import DeviceLife, HalfDoneActionError
from atomr_mp.supervisor.sessions.sessions import ClientSession, Sessions


def fail(*_: object) -> Any:
    """Fail as a mistake of ours does."""
    raise IndexError("list index out of range")


class Peer:
    """A client's connection that has said something."""

    def __init__(self) -> None:
        self.sent: list[Any] = []
        self.is_open, self.wants_to_write = True, False

    def receive(self) -> list[Any]:
        """Return what it has said."""
        return [session.Bye(mapped=False)]

    def send(self, message: Any, _descriptor: object = None) -> bool:
        """Take a message for it."""
        self.sent.append(message)
        return True

    def fileno(self) -> int:
        """Return a number."""
        return -1

    def close(self) -> None:
        """Close it."""
        self.is_open = False


def test_a_fault_with_a_message_ends_its_session_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The client gets a reference, and the log has the stack under it."""
    sessions = Sessions.__new__(Sessions)
    peers = [Peer(), Peer()]
    clients = [ClientSession(number, peer, owner=False) for number, peer in enumerate(peers)]  # type: ignore[arg-type]
    ignore = SimpleNamespace(forget=lambda _fd: None, session_ended=lambda _number: None)
    sessions.__dict__.update(_sessions=dict(enumerate(clients)), _loop=ignore, _slabs=ignore, _snapshots={}, refused=0)
    sessions.__dict__.update(_made_worlds=lambda: ignore, _traces=ignore)
    monkeypatch.setattr(sessions, "_hear", fail)
    sessions._on_ready(clients[0], select.EPOLLIN)
    assert (peers[0].is_open, peers[1].is_open) == (False, True)
    assert list(sessions._sessions) == [1]
    (goodbye,) = peers[0].sent
    error = goodbye.error.error()
    assert type(error) is errors.InternalError
    assert error.reference in caplog.text
    assert "IndexError" in caplog.text


def test_an_action_that_fails_in_its_middle_passes_by_what_contains_faults() -> None:
    """How much of it is done is unknown; an event without a meaning is one message's fault."""
    event, actions = next(
        (event, row[1]) for (state, event), row in TRANSITIONS.items() if state is State.STOPPED and row[1]
    )
    life = DeviceLife(0, tell=lambda: None, changed=lambda: None)
    life.carry_out(dict.fromkeys(actions, fail))
    with pytest.raises(HalfDoneActionError) as raised:
        life.feed(event)
    assert not isinstance(raised.value, Exception)
    assert isinstance(raised.value.__cause__, IndexError)
