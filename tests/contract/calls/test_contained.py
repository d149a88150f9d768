"""A fault of the client's own code while it takes an answer in costs that reply, and not the lane."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import atomr_mp
from atomr_mp import errors
from atomr_mp.client.lanes.receiving import Receiver
from atomr_mp.client.memory.leases import Releases
from tests.support import DEADLINE_S, Ledger, in_loop


@pytest.fixture(scope="module")
def pool() -> Iterator[atomr_mp.Pool]:
    """One pool for all."""
    with Ledger() as ledger, ledger.start() as started:
        yield started


def break_once(monkeypatch: pytest.MonkeyPatch, owner: type, name: str) -> None:
    """Have a method raise at its next call."""
    original = getattr(owner, name)

    def broken(*_: Any, **__: Any) -> Any:
        monkeypatch.setattr(owner, name, original)
        raise IndexError("list index out of range")

    monkeypatch.setattr(owner, name, broken)


def test_a_fault_with_a_result_costs_its_reply(pool: atomr_mp.Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends with `InternalError`, and may have been executed; later calls are answered."""
    break_once(monkeypatch, Releases, "leases")
    with pytest.raises(errors.InternalError) as raised:
        pool.device(0).put(np.ones(3))
    assert raised.value.maybe_executed
    assert pool.device(0).put(np.ones(3)).shape == (3,)


@pytest.mark.parametrize("how", ["thread", "loop"])
def test_a_fault_with_an_error_costs_its_reply(
    pool: atomr_mp.Pool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    """In threads and event loops; the log has the stack under the error's reference."""
    break_once(monkeypatch, Receiver, "_on_error")

    async def use() -> errors.AtomrError:
        with pytest.raises(errors.InternalError) as raised:
            await pool.call("Probe.echo", 1, "too many")
        assert await pool.call("Probe.echo", 2) == 2
        return raised.value

    error = in_loop(use) if how == "loop" else pool.call("Probe.echo", 1, "too many").exception(DEADLINE_S)
    assert type(error) is errors.InternalError
    assert error.reference in caplog.text
    assert pool.call("Probe.echo", 2).result(DEADLINE_S) == 2
