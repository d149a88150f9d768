"""Whatever passes between a client and its supervisor as a session ends, its memory comes back, and not too early."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atomr_mp import errors
from atomr_mp.protocol.messages import control, session
from tests.contract.memory.test_slab_relay import Supervisor, register
from tests.support import open_descriptors

FAR: Final = session.RemoteOrigin("alice")

STEPS: Final = st.lists(st.sampled_from(["ask", "register", "answer", "news", "turn", "expel"]), max_size=8)
"""What may happen to a session, also while its client leaves."""


class Ending:
    """A session of a client in this process, and all that may happen to it."""

    def __init__(self, origin: session.RemoteOrigin | None) -> None:
        self.supervisor: Final = Supervisor(remote_grace_s=3600)
        self._connection: Final = self.supervisor.connect(origin=origin)
        self._asked = self._answered = self._registered = 0
        self._silent = False
        """Whether the client has said its last word."""

    def step(self, step: str) -> None:
        """Have something happen; the client says nothing after its last word."""
        match step:
            case "ask":
                self._asked += 1
                self._say(lambda: self._connection.send(session.OpenSlab(self._asked, 0, 1, 5)))
            case "register":
                self._registered += 1
                self._say(lambda: register(self._connection, self._registered))
            case "answer":
                asks = self.supervisor.workers[0].heard(control.ExportSlab)[self._answered :]
                self._answered += len(asks)
                for ask in asks:
                    self.supervisor.export(control.SlabExported(ask.id, 4))
            case "news":
                self.supervisor.sessions.device_changed(0)
            case "turn":
                self.turn()
            case "expel":
                self.supervisor.sessions.violated(1, "the test ends it")

    def turn(self) -> None:
        """Let the supervisor take in what has come."""
        loop = self.supervisor.loop
        for _ in range(4):  # each reads once from each connection
            loop._stopped = False
            loop.call_later(0, loop.stop)
            loop.run()

    def say_bye(self, *, mapped: bool) -> None:
        """Say the client's last word; without slabs it hangs up, too."""
        self._say(lambda: self._connection.send(session.Bye(mapped=mapped)))
        self._silent = True
        if not mapped:
            self.hang_up()

    def hang_up(self) -> None:
        """End the connection."""
        self._connection.hang_up()

    def close(self) -> None:
        """End all."""
        self._connection.close()
        self.supervisor.sessions.close(errors.PoolLost("the test ends"))
        self.supervisor.loop.close()

    def _say(self, say: Callable[[], object]) -> None:
        if not self._silent:
            with contextlib.suppress(errors.PoolLost):  # the supervisor need not hear any more
                say()


@contextlib.contextmanager
def ending(origin: session.RemoteOrigin | None) -> Iterator[Ending]:
    """Make a session, and see that no descriptor is left of it."""
    gc.collect()
    before = open_descriptors()
    made = Ending(origin)
    try:
        yield made
    finally:
        made.close()
    assert open_descriptors() == before


@settings(max_examples=60, deadline=None)
@given(st.sampled_from([None, FAR]), STEPS, st.sampled_from(["mapped", "unmapped"]), STEPS, STEPS)
def test_a_goodbye_is_heard_whatever_is_said_to_the_client_meanwhile(
    origin: session.RemoteOrigin | None, before: list[str], leaves: str, between: list[str], after: list[str]
) -> None:
    """The client's process lives on. Its memory is its workers' again once it has no slab mapped, and then for all."""
    with ending(origin) as made:
        for step in before:
            made.step(step)
        mapped = leaves == "mapped"
        made.say_bye(mapped=mapped)
        for step in between:
            made.step(step)
        made.turn()
        asked_for_slabs = any(made.supervisor.workers[0].heard(control.ExportSlab))
        if mapped and asked_for_slabs:
            made.supervisor.acknowledge(0, 1)
            assert made.supervisor.reclaimed() == [0, 0]
        if mapped:
            made.hang_up()
        for step in after:
            made.step(step)
        made.turn()
        made.supervisor.acknowledge(0, 1)
        made.turn()
        assert made.supervisor.reclaimed() == [1, 1]
        assert made.supervisor.sessions.held() == []


@pytest.mark.parametrize("late", [[], [session.OpenSlab(9, 0, 1, 5), session.ForgetSlab(3)]])
def test_who_is_expelled_gives_memory_back_by_closing(late: list[Any]) -> None:
    """Until then it may have slabs mapped; what it says before it has heard of the end is passed over."""
    with ending(None) as made:
        made.step("ask")
        made.supervisor.asked()
        made.step("expel")
        made.supervisor.acknowledge(0, 1)
        for message in late:
            made._connection.send(message)
        made.step("register")
        made.turn()
        assert made.supervisor.reclaimed() == [0, 0]
        assert [each.state for each in made.supervisor.sessions.held()] == ["parts"]
        made.say_bye(mapped=True)
        made.turn()
        assert [each.state for each in made.supervisor.sessions.held()] == ["maps"]
        made.hang_up()
        made.supervisor.until(lambda: made.supervisor.reclaimed() == [1, 1])
