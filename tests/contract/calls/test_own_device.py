"""An actor may be a client of its pool; a call that would wait for its own caller is refused at once."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

import atomr_mp
from tests.support import ACTORS, DEADLINE_S, Ledger, settled, wait_generation

ONE = f"{ACTORS}/introspective.py:Introspective"
TWO = f"{ACTORS}/introspective.py:Two"


@pytest.fixture(scope="module")
def pool() -> Iterator[atomr_mp.Pool]:
    """A pool of two devices."""
    with Ledger() as ledger, ledger.start(ONE, TWO, gpus=2) as started:
        yield started


def said(pool: atomr_mp.Pool, caller: str, called: str, device: int | None) -> str:
    """Return what a method of device 0 gets that calls another one."""
    result: str = pool.call(caller, called, device, device=0, deadline_s=DEADLINE_S).result(DEADLINE_S)
    return result


@pytest.mark.parametrize("called", ["where", "where_on_thread", "awaited"])
def test_who_has_the_loop_calls_other_devices_only(pool: atomr_mp.Pool, called: str) -> None:
    """Whatever the method: its own device reads nothing meanwhile. A call that names no device goes to another one."""
    assert said(pool, "Introspective.loop", f"Introspective.{called}", 1) == "1"
    assert said(pool, "Introspective.loop", f"Introspective.{called}", None) == "1"
    refused = said(pool, "Introspective.loop", f"Introspective.{called}", 0)
    assert refused.startswith(
        f"InvalidRequest: Introspective.loop has the loop of device 0 and calls Introspective.{called}"
    )


@pytest.mark.parametrize(
    ("caller", "called", "begins"),
    [
        ("Introspective.thread", "Introspective.where", True),
        ("Introspective.thread", "Introspective.awaited", True),
        ("Introspective.thread", "Two.where_on_thread", True),
        ("Introspective.thread", "Introspective.where_on_thread", False),
        ("Two.thread", "Two.where_on_thread", True),
        ("Introspective.task", "Introspective.where", True),
        ("Introspective.task", "Introspective.awaited", True),
        ("Introspective.task", "Introspective.where_on_thread", True),
    ],
)
def test_others_call_what_does_not_need_their_own_thread(
    pool: atomr_mp.Pool, caller: str, called: str, *, begins: bool
) -> None:
    """Their device's loop is free. An actor's only thread is not while one of its methods waits there."""
    if begins:
        assert said(pool, caller, called, 0) == "0"
    else:
        assert "runs on the one thread of its actor" in said(pool, caller, called, 0)
    assert said(pool, caller, called, None) in {"0", "1"}


def test_streams_maps_and_libraries_wait_for_nobody_that_waits_for_them(pool: atomr_mp.Pool) -> None:
    """A generator has its thread while it makes a part; what the loop spreads goes elsewhere."""
    first, second = pool.stream("Introspective.parts", device=0)
    assert first == "first"
    assert "runs on the one thread of its actor" in second
    mapped = pool.call("Introspective.mapped", 20, device=0, deadline_s=DEADLINE_S).result(DEADLINE_S)
    assert mapped == [1] * 20


def test_refs_of_the_own_device_are_not_used_by_who_has_its_loop(pool: atomr_mp.Pool) -> None:
    """Neither there nor elsewhere, since the device would have to lend them; those of other devices are."""
    pool.call("Introspective.make", device=0).result(DEADLINE_S)
    *others, sent, lent, read, made = pool.call("Introspective.use", device=0).result(DEADLINE_S)
    assert others == ["0.0", "0.0"]
    for refused in (sent, lent, read, made):
        assert "Introspective.use has the loop of device 0" in refused


def test_setup_calls_its_device_only_in_a_standby(ledger: Ledger) -> None:
    """There the worker answers. Otherwise no answer comes before setup has ended."""
    with ledger.start(ONE, gpus=1, standby="hot") as pool:
        assert "the actor has the loop of device 0" in pool.call("Introspective.in_setup").result(DEADLINE_S)
        assert settled(lambda: (standby := pool.status().devices[0].standby) is not None and standby.state == "ready")
        pid = pool.devices[0].worker_pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        wait_generation(pool, 2)
        assert pool.call("Introspective.in_setup").result(DEADLINE_S) == "0"


def test_where_there_is_no_other_device_a_call_that_names_none_is_refused(ledger: Ledger) -> None:
    """It could go nowhere else."""
    with ledger.start(ONE, gpus=1) as pool:
        assert "has the loop of device 0" in said(pool, "Introspective.loop", "Introspective.where", None)
        assert said(pool, "Introspective.thread", "Introspective.where", None) == "0"
