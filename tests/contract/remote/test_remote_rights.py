"""What the supervisor itself lets sessions of remote clients say, whatever relays them."""

from __future__ import annotations

from typing import Final
from unittest.mock import Mock

import msgspec
import pytest

from atomr_mp import errors
from atomr_mp.protocol.codec import ErrorInfo
from atomr_mp.protocol.messages import control, devices, operators, session, suspects
from tests.contract.memory.test_slab_relay import Supervisor
from tests.contract.memory.test_slab_relay import supervisor as _supervisor

supervisor = _supervisor

BOB: Final = session.RemoteOrigin("bob", operate=False)
ALICE: Final = session.RemoteOrigin("alice", operate=True)

ORDERS: Final = [
    operators.RestartRequest(3, 0),
    operators.ReloadRequest(3),
    operators.FreeResident(3, "weights"),
    operators.AdmitRequest(3, suspects.RequestKey("Probe.echo", bytes(16))),
]
ELSEWHERE: Final = [operators.StopRequest(3), operators.ReadKeys(3)]


@pytest.fixture
def carried_out(supervisor: Supervisor) -> list[session.FromClient]:
    """Return the orders that were carried out."""
    made: list[session.FromClient] = []
    supervisor.sessions._carry_out = Mock(side_effect=lambda _client, order, _answer: made.append(order))
    return made


@pytest.mark.parametrize("observer", [True, False])
@pytest.mark.parametrize("order", [*ORDERS, *ELSEWHERE], ids=lambda order: type(order).__name__)
def test_orders_of_a_key_without_the_right_are_not_carried_out(
    supervisor: Supervisor, carried_out: list[session.FromClient], order: session.FromClient, *, observer: bool
) -> None:
    """They are answered, and the session goes on."""
    client = supervisor.connect(observer=observer, origin=BOB)
    for _ in range(2):
        client.send(order)
        assert isinstance(supervisor.refused(client), errors.NotAuthorized | errors.Unsupported)
    assert carried_out == []
    client.close()


@pytest.mark.parametrize("order", [*ORDERS, *ELSEWHERE], ids=lambda order: type(order).__name__)
def test_a_key_that_operates_gives_all_orders_but_those_for_the_pool_s_own_machine(
    supervisor: Supervisor, carried_out: list[session.FromClient], order: session.FromClient
) -> None:
    """A client of this machine gives these as well."""
    client, here = supervisor.connect(observer=True, origin=ALICE), supervisor.connect(observer=True)
    client.send(order)
    if order in ELSEWHERE:
        assert isinstance(supervisor.refused(client), errors.NotAuthorized | errors.Unsupported)
        here.send(order)
    supervisor.until(lambda: carried_out == [order])
    client.close()
    here.close()


@pytest.mark.parametrize("origin", [None, ALICE, BOB], ids=["here", "operates", "does not"])
def test_tracebacks_are_for_those_who_operate(supervisor: Supervisor, origin: session.RemoteOrigin | None) -> None:
    """The supervisor leaves them out of what it tells, and has the workers leave them out of answers."""
    client = supervisor.connect(origin=origin)
    (opened,) = supervisor.workers[0].heard(control.SessionOpened)
    assert opened.tracebacks is (origin is not BOB)
    failed = ErrorInfo.of(errors.SetupFailed("setup failed", traceback_text="File secret.py"))
    ended = session.IncarnationEnded(0, 1, planned=False, error=failed, started=[], known_since_ns=0)
    supervisor.sessions.incarnation_stopped(lambda _number: ended, sends=False)
    heard = supervisor.hear(client)
    assert isinstance(heard, session.IncarnationStopped)
    info = supervisor.workers[0].info(1)
    supervisor.workers[0].info = lambda _number: msgspec.structs.replace(info, error=failed)  # type: ignore[method-assign]
    supervisor.sessions.device_changed(0)
    changed = supervisor.hear(client)
    assert isinstance(changed, session.DeviceChanged)
    assert changed.device.error is not None
    for told in (heard.ended.error, changed.device.error):
        assert told.fields["traceback_text"] == ("" if origin is BOB else "File secret.py")
        assert told.message == "setup failed"
    assert isinstance(changed.device, devices.DeviceInfo)
    client.close()
