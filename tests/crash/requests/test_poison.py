"""Requests lost with a worker are sent again; requests that end workers are found and stopped."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import signal
import threading
import time
from collections import Counter
from contextlib import ExitStack
from typing import Any, Final

import numpy as np
import pytest

import atomr_mp
from atomr_mp import errors
from atomr_mp.client.handshake import greet
from atomr_mp.mapping.run import Failure
from atomr_mp.operator.session import OperatorSession
from atomr_mp.process.files.events import read_events
from atomr_mp.protocol.messages.devices import DeviceState
from atomr_mp.protocol.messages.suspects import RequestKey, Suspect
from atomr_mp.transport.session import SessionConnection
from tests.contract.command.test_cli import cli, refusal
from tests.support import (
    ACTORS,
    DEADLINE_S,
    Ledger,
    Watched,
    local_client,
    settled,
    standby_pid,
    wait_generation,
    wait_sent,
    wait_state,
    wait_until,
)

POISONOUS: Final = f"{ACTORS}/poisonous.py:Poisonous"
STANDING: Final = f"{ACTORS}/standing.py:Standing"
SUSPECTING: Final[dict[str, Any]] = {"max_suspicions": 2, "max_restarts": 100, "backoff_initial_s": 0.01}


def start(ledger: Ledger, **settings: Any) -> atomr_mp.Pool:
    """Start a pool that tells poison from what runs beside it."""
    return ledger.start(POISONOUS, **{**SUSPECTING, **settings})


def innocent(tag: object) -> list[str]:
    """Return an item that does nothing."""
    return [f"{tag}", "", ""]


def unsuspecting(pool: atomr_mp.Pool) -> bool:
    """Whether nothing is held of anything, but what is in quarantine."""
    found = [each for held in local_client(pool).suspicions.methods.values() for each in held.values()]
    return all(each.verdict == "quarantined" for each in found)


def kill(pool: atomr_mp.Pool, device: int = 0) -> None:
    """Kill a worker from outside."""
    os.kill(pool.devices[device].pid, signal.SIGKILL)


@pytest.mark.parametrize("standby", ["none", "hot"])
def test_idempotent_calls_survive_their_worker(ledger: Ledger, standby: str) -> None:
    """Running, queued and large calls: the next worker answers all, and no caller notices."""
    with start(ledger, standby=standby) as pool, ledger.gate("gate") as gate:
        if standby == "hot":
            wait_until(pool, lambda: pool._client.devices[0].standby is not None)
        large, shared = np.ones(10**6), pool.host_array(10**6, "float64")
        shared[:] = 2
        held = pool.call("Poisonous.on_thread", ["held", gate.path, ""], device=0)
        totals = [pool.call("Poisonous.total", ["total", gate.path, ""], each, device=0) for each in (large, shared)]
        gate.wait(2)
        waiting = [pool.call("Poisonous.on_loop", innocent(n), device=0) for n in range(100)]
        kill(pool)
        wait_generation(pool, 2)
        gate.open(5)
        assert held.result() == "held"
        assert [reply.result() for reply in totals] == [1e6, 2e6]
        assert [reply.result() for reply in waiting] == [f"{n}" for n in range(100)]
        runs = Counter(ledger.runs())
        assert runs == {"held": 2, "total": 3, **{f"{n}": 1 for n in range(100)}}
        assert {held.generation, *(reply.generation for reply in waiting)} == {2}
        wait_until(pool, lambda: unsuspecting(pool))


def test_calls_of_an_event_loop_survive_too(ledger: Ledger) -> None:
    """Awaited in one, with its own connections."""

    async def main(pool: atomr_mp.Pool, gate: Any) -> list[str]:
        held = pool.call("Poisonous.on_thread", ["held", gate.path, ""])
        waiting = [pool.call("Poisonous.on_loop", innocent(n)) for n in range(20)]
        await asyncio.to_thread(gate.wait)
        kill(pool)
        await asyncio.to_thread(wait_generation, pool, 2)
        gate.open(2)
        return [await held, *[await reply for reply in waiting]]

    with start(ledger) as pool, ledger.gate("gate") as gate:
        assert asyncio.run(main(pool, gate)) == ["held", *(f"{n}" for n in range(20))]


def test_what_cannot_be_sent_again_fails(ledger: Ledger) -> None:
    """Methods that are not idempotent, refs, cancelled calls, and clients with `max_replays=0`: as the error says."""
    with (
        start(ledger) as pool,
        atomr_mp.connect(run_dir=pool.run_dir, max_replays=0) as reluctant,
        ledger.gate("gate") as gate,
    ):
        wait_generation(reluctant, 1)
        reluctant.call("Poisonous.on_thread", innocent("before")).result()  # it is connected from here on
        ref = pool.call("Poisonous.keep").result()
        held = pool.call("Poisonous.once_on_thread", ["held", gate.path, ""])
        gate.wait()
        cancelled = pool.call("Poisonous.on_loop", ["cancelled", gate.path, ""])
        gate.wait()
        others = [
            pool.call("Poisonous.once_on_thread", innocent("once")),
            pool.call("Poisonous.total", innocent("total"), ref),
            reluctant.call("Poisonous.on_thread", innocent("reluctant")),
        ]
        wait_sent(*others)
        cancelled.cancel()
        kill(pool)
        assert isinstance(held.exception(), errors.WorkerLost)
        for reply in others:
            error = reply.exception()
            assert isinstance(error, errors.WorkerLost)
            assert not error.maybe_executed
        error = cancelled.exception()
        assert isinstance(error, errors.Cancelled)
        assert error.maybe_executed
        assert Counter(ledger.runs()) == {"before": 1, "held": 1, "cancelled": 1}


def test_calls_without_a_device_go_elsewhere_and_others_wait(ledger: Ledger) -> None:
    """A present device does a call of the pool; a call of a device waits for that device."""
    with (
        ledger.gate("gate") as gate,
        ledger.gate("later") as later,  # `Standing` lets nobody take over before it opens
        ledger.start(POISONOUS, STANDING, **{**SUSPECTING, "gpus": 2, "backoff_initial_s": 0}) as pool,
    ):
        held = pool.call("Poisonous.once", ["held", gate.path, ""], device=0)
        gate.wait()
        named = pool.call("Poisonous.where", device=0)
        busy = [pool.call("Poisonous.on_thread", ["busy", gate.path, ""], device=1) for _ in range(9)]
        free = [pool.call("Poisonous.where") for _ in range(8)]  # device 0 has the fewer
        assert {reply.device for reply in free} == {0}
        kill(pool)
        assert {tuple(reply.result()[1:]) for reply in free} == {(1, 1)}
        later.open()
        assert named.result()[1:] == [0, 2]
        assert isinstance(held.exception(), errors.WorkerLost)
        gate.open(20)
        assert [reply.result() for reply in busy] == ["busy"] * 9


@pytest.mark.parametrize("comes_back", [True, False])
def test_calls_that_had_not_left_go_elsewhere_too(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, *, comes_back: bool
) -> None:
    """They waited for company when their device ended, whether or not that will take calls again."""
    settings = {**SUSPECTING, "gpus": 2, **({} if comes_back else {"max_restarts": 0, "give_up": True})}
    with (
        ledger.gate("gate") as gate,
        ledger.gate("later"),  # `Standing` lets nobody take over before it opens
        ledger.start(POISONOUS, STANDING, **settings) as pool,
    ):
        held = pool.call("Poisonous.once", ["held", gate.path, ""], device=0)
        busy = [pool.call("Poisonous.on_thread", ["busy", gate.path, ""], device=1) for _ in range(9)]
        gate.wait(2)
        monkeypatch.setattr(local_client(pool)._blocking, "_queued", lambda _link: None)  # nobody sends them
        free = [pool.call("Poisonous.where") for _ in range(8)]
        named = pool.call("Poisonous.where", device=0)
        assert {reply.device for reply in free} == {0}
        kill(pool)
        wait_until(pool, lambda: held.done and (named.done or comes_back))
        assert {tuple(reply.result()[1:]) for reply in free} == {(1, 1)}
        assert named.done is not comes_back
        gate.open(20)
        assert [reply.result() for reply in busy] == ["busy"] * 9


def test_a_deadline_holds_across_attempts(ledger: Ledger) -> None:
    """It holds for the call, not for an attempt; the error says that an attempt may have run."""
    with start(ledger) as pool, ledger.gate("gate") as gate:
        begun = time.monotonic()
        reply = pool.call("Poisonous.on_loop", ["held", gate.path, ""], deadline_s=4)
        gate.wait()
        kill(pool)
        error = reply.exception()
        assert isinstance(error, errors.DeadlineExceeded)
        assert error.maybe_executed
        assert 3.5 < time.monotonic() - begun < 20
        gate.open(3)


HOWS: Final = "exit", "segv", "kill", "poison"
METHODS: Final = "on_loop", "on_thread", "in_batch", "in_batch_on_thread"


@pytest.mark.parametrize(
    ("method", "how", "standby"),
    [
        # Each method by two of the ways and each way by two of the methods, with and without a standby: which thread
        # was in it and what ended the process are judged apart.
        (method, HOWS[(at + more) % len(HOWS)], ("none", "hot")[more])
        for at, method in enumerate(METHODS)
        for more in range(2)
    ],
)
def test_poison_ends_two_workers_and_nobody_else_is_harmed(ledger: Ledger, method: str, how: str, standby: str) -> None:
    """It is run beside others, then alone; all others succeed, it is refused from then on, and nothing is counted."""
    with start(ledger, standby=standby, max_restarts=1) as pool:
        if standby == "hot":
            wait_until(pool, lambda: pool._client.devices[0].standby is not None)
        poison = ["poison", "", how]
        items = [*map(innocent, range(6)), poison, *map(innocent, range(6, 15))]
        replies = [pool.call(f"Poisonous.{method}", item) for item in items]
        guilty = replies.pop(6)
        error = guilty.exception()
        assert isinstance(error, errors.PoisonRequest), error
        assert (error.ends, error.method, error.maybe_executed) == (2, f"Poisonous.{method}", True)
        assert [reply.result() for reply in replies] == [f"{n}" for n in range(15)]
        runs = Counter(ledger.runs())
        assert runs.pop("poison") == 2
        assert max(runs.values()) <= 3
        with pytest.raises(errors.PoisonRequest) as refused:
            pool.call(f"Poisonous.{method}", poison)
        assert not refused.value.maybe_executed
        assert refused.value.fingerprint == error.fingerprint
        wait_until(pool, lambda: pool.devices[0].restarts == 2)  # the supervisor tells of the end before the restart
        # One more is allowed: those two were not the device's fault.
        wait_state(pool, DeviceState.READY)
        last = wait_generation(pool, 3)
        kill(pool)
        assert wait_generation(pool, last.generation + 1).restarts == 3
        told = [event for event in read_events(pool.run_dir / "events.jsonl") if event["event"] == "poison_request"]
        assert [event["generation"] for event in told] == [1, 2]
        assert error.fingerprint in str(told[0]["text"])


@pytest.mark.parametrize("standby", ["none", "hot"])
def test_what_ran_without_a_device_outlives_its_device(ledger: Ledger, standby: str) -> None:
    """It runs alone on another device once its own takes no work; so does what finds no room there at first."""
    settings = {"gpus": 2, "max_restarts": 0, "give_up": True, "window_requests": 3}
    with start(ledger, standby=standby, **settings) as pool, ledger.gate("gate") as gate:
        here = [pool.call("Poisonous.on_thread", [f"{n}", gate.path, ""], device=1) for n in range(2)]
        moved = [pool.call(f"Poisonous.on_{place}", [place, gate.path, ""]) for place in ("thread", "loop")]
        named = pool.call("Poisonous.total", ["named", "", ""], 1.0, device=0)
        assert {reply.device for reply in moved} == {0}
        gate.wait(3)
        wait_sent(named)
        kill(pool)
        wait_state(pool, DeviceState.STOPPED)
        gate.open(10)
        assert [reply.result() for reply in (*moved, *here)] == ["thread", "loop", "0", "1"]
        assert {reply.device for reply in moved} == {1}
        assert isinstance(named.exception(), errors.DeviceUnavailable)
        wait_until(pool, lambda: unsuspecting(pool))
        assert pool.devices[1].restarts == 0


@pytest.mark.parametrize("how", ["exit", "poison", "hang"])
def test_poison_without_a_device_ends_no_more_workers_on_several_devices(ledger: Ledger, how: str) -> None:
    """Its ends are counted together wherever they were, and forgiven: both devices come back."""
    with start(ledger, gpus=2, max_restarts=0, give_up=True) as pool:
        error = pool.call("Poisonous.in_time", ["poison", "", how]).exception()
        assert isinstance(error, errors.PoisonRequest), error
        assert error.ends == 2
        assert ledger.runs() == ["poison"] * 2
        for device in range(2):
            wait_generation(pool, 2, device)
            assert pool.call("Poisonous.in_time", innocent("next"), device=device).result() == "next"


def fate_of(reply: atomr_mp.Reply, gate: Any, kills: int = 3) -> errors.AtomrError | None:
    """Kill the worker from outside whenever a request has arrived there; return the request's outcome."""
    reply.add_done_callback(lambda _: None)  # so that somebody looks
    for _ in range(kills):
        (pid,) = gate.wait()
        os.kill(pid, signal.SIGKILL)
    return reply.exception()


@pytest.mark.parametrize("method", ["on_loop", "on_thread"])
def test_kills_from_outside_condemn_nobody(ledger: Ledger, method: str) -> None:
    """A request whose every attempt was killed is lost, and not refused; the next one is answered."""
    with start(ledger) as pool, ledger.gate("gate") as gate:
        kill(pool)  # while nothing runs there
        wait_generation(pool, 2)
        item = ["innocent", gate.path, ""]
        unlucky = pool.call(f"Poisonous.{method}", item)
        error = fate_of(unlucky, gate)
        assert type(error) is errors.WorkerLost, error
        assert error.maybe_executed
        assert pool.status().quarantined == []
        gate.open()
        assert pool.call(f"Poisonous.{method}", item).result() == "innocent"
        wait_until(pool, lambda: unsuspecting(pool))
        assert Counter(ledger.runs())["innocent"] == 4


def test_a_killed_standby_speaks_for_what_its_worker_ran(ledger: Ledger) -> None:
    """The killer of a standby kills workers too."""
    with start(ledger, standby="hot") as pool, ledger.gate("gate") as gate:
        wait_until(pool, lambda: pool._client.devices[0].standby is not None)
        os.kill(standby_pid(pool), signal.SIGKILL)
        assert settled(lambda: any(event["event"] == "standby_end" for event in events(pool)))
        unlucky = pool.call("Poisonous.on_loop", ["innocent", gate.path, ""])
        assert type(fate_of(unlucky, gate)) is errors.WorkerLost


def test_a_signal_that_nobody_can_explain_is_held_against_who_is_struck_alone(ledger: Ledger) -> None:
    """C code that kills its process is found when no other process was struck, one end later than a visible cause."""
    with start(ledger) as pool:
        error = pool.call("Poisonous.on_loop", ["poison", "", "kill_in_c"]).exception()
        assert isinstance(error, errors.PoisonRequest), error
        assert error.ends == 3
        (held,) = pool.status().quarantined
        assert held.ends == 3
        generation = wait_generation(pool, 4).generation
        wait_state(pool, DeviceState.READY)
        kill(pool)  # whoever does that may have done the rest
        wait_generation(pool, generation + 1)
        wait_until(pool, lambda: not local_client(pool).suspicions.refuses(held.request))
        assert pool.status().quarantined == []
        assert [event["text"] for event in events(pool) if event["event"] == "request_admitted"]


def test_a_child_that_kills_itself_is_not_held_against_what_runs(ledger: Ledger) -> None:
    """Its end is not the worker's; a kill from outside after it is as unexplained as any."""
    with start(ledger) as pool, ledger.gate("gate") as gate:
        for _ in range(3):
            assert pool.call("Poisonous.on_loop", ["parent", "", "child"]).result() == "parent"
        kill(pool)
        wait_generation(pool, 2)
        unlucky = pool.call("Poisonous.on_loop", ["innocent", gate.path, "child"])
        assert type(fate_of(unlucky, gate)) is errors.WorkerLost


@pytest.mark.parametrize("standby", ["none", "warm"])
def test_what_kept_a_function_before_it_was_called_is_noted_too(ledger: Ledger, standby: str) -> None:
    """An actor's module keeps it by `from os import kill`. The worker is a fresh interpreter, or a forked one."""
    with start(ledger, standby=standby) as pool:
        error = pool.call("Poisonous.on_loop", ["poison", "", "kept_kill"]).exception()
        assert isinstance(error, errors.PoisonRequest), error
        assert error.ends == 2


def test_a_map_under_kills_from_outside_condemns_only_what_is_deadly(ledger: Ledger) -> None:
    """Workers are killed at random, while some items end them by themselves."""
    with start(ledger, gpus=2, backoff_initial_s=0) as pool:
        items = [innocent(n) for n in range(3000)]
        deadly = {1000: "exit", 1500: "segv", 2000: "kill"}
        for at, how in deadly.items():
            items[at] = [f"{at}", "", how]
        kills = itertools.count()
        done = 0
        found = []
        for outcome in pool.map("Poisonous.on_thread", items, return_failures=True, attempts=10):
            done += 1
            if isinstance(outcome, Failure):
                found.append(outcome)
            if done % 200 == 0:
                with contextlib.suppress(ProcessLookupError):
                    pid = pool.devices[next(kills) % 2].worker_pid
                    if pid is not None:
                        os.kill(pid, signal.SIGKILL)
        assert {failure.index: type(failure.error) for failure in found} == dict.fromkeys(deadly, errors.PoisonRequest)
        assert done == len(items)
        assert {each.ends >= 2 for each in pool.status().quarantined} == {True}
        assert len(pool.status().quarantined) == len(deadly)


def events(pool: atomr_mp.Pool) -> list[dict[str, Any]]:
    """Return what the supervisor has written down."""
    return list(read_events(pool.run_dir / "events.jsonl"))


def test_what_runs_once_is_quarantined_when_it_comes_again(ledger: Ledger) -> None:
    """The runtime sends it once; its callers may send it again, and end two workers in all, however many they are."""
    with (
        start(ledger) as pool,
        atomr_mp.connect(run_dir=pool.run_dir) as other,
        ledger.gate("gate") as gate,
    ):
        poison = ["poison", "", "exit"]
        beside = pool.call("Poisonous.on_thread", ["beside", gate.path, ""])
        gate.wait()
        first = pool.call("Poisonous.once", poison).exception()
        gate.open(5)
        assert isinstance(first, errors.WorkerLost)
        assert beside.result() == "beside"
        wait_until(other, lambda: bool(local_client(other).suspicions.methods))
        second = other.call("Poisonous.once", poison).exception()
        assert isinstance(second, errors.PoisonRequest)
        assert second.maybe_executed
        for client in (pool, other):
            wait_until(client, lambda client=client: unsuspecting(client))  # type: ignore[misc]
            with pytest.raises(errors.PoisonRequest):
                client.call("Poisonous.once", poison)
        with atomr_mp.connect(run_dir=pool.run_dir) as late, pytest.raises(errors.PoisonRequest):
            late.call("Poisonous.once", poison)
        assert Counter(ledger.runs())["poison"] == 2
        assert pool.devices[0].restarts == 2
        pool.reload()
        wait_until(pool, lambda: not local_client(pool).suspicions.methods)
        assert isinstance(pool.call("Poisonous.once", poison).exception(), errors.WorkerLost)


@pytest.mark.parametrize("standby", ["none", "hot"])
def test_many_clients_with_the_same_poison(ledger: Ledger, standby: str) -> None:
    """All innocents of all clients succeed, and the poison of each is found out."""
    with start(ledger, standby=standby) as pool, ExitStack() as stack:
        clients = [pool, *(stack.enter_context(atomr_mp.connect(run_dir=pool.run_dir)) for _ in range(3))]
        for client in clients:
            wait_generation(client, 1)
        outcomes: list[str] = []  # threads add to it safely, unlike to a counter's counts
        together = threading.Barrier(len(clients))

        def use(number: int, client: atomr_mp.Pool) -> None:
            together.wait()
            replies = {}
            for n in range(60):
                if n == 20:
                    try:
                        replies["poison"] = client.call("Poisonous.on_loop", ["poison", "", "segv"])
                    except errors.PoisonRequest:
                        outcomes.append("refused")
                tag = f"{number}-{n}"
                replies[tag] = client.call(f"Poisonous.{('on_loop', 'on_thread')[n % 2]}", innocent(tag))
            for tag, reply in replies.items():
                error = reply.exception()
                if tag == "poison":
                    outcomes.append("refused" if isinstance(error, errors.PoisonRequest) else repr(error))
                else:
                    outcomes.append("done" if error is None and reply.result() == tag else repr(error))

        threads = [threading.Thread(target=use, args=each) for each in enumerate(clients)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert Counter(outcomes) == {"refused": 4, "done": 240}
        # Once for each client that could not know of the others' yet, and once alone.
        assert 2 <= Counter(ledger.runs())["poison"] <= len(clients) + 1


def test_a_map_sets_poison_aside(ledger: Ledger) -> None:
    """Its item fails with that, all others succeed, and a further run refuses it without a worker's end."""
    with start(ledger, gpus=2) as pool:
        items = [innocent(n) for n in range(200)]
        items[70] = items[110] = ["poison", "", "exit"]
        for run in range(2):
            outcomes = list(pool.map("Poisonous.on_loop", items, return_failures=True))
            failures = [outcome for outcome in outcomes if isinstance(outcome, Failure)]
            assert [failure.index for failure in failures] == [70, 110]
            assert all(isinstance(failure.error, errors.PoisonRequest) for failure in failures)
            assert [outcome for outcome in outcomes if not isinstance(outcome, Failure)] == [
                f"{n}" for n in range(200) if n not in {70, 110}
            ]
            assert run == 0 or sum(device.restarts for device in pool.devices) <= 4


def test_a_map_that_tries_failed_items_again_admits_what_was_refused(ledger: Ledger) -> None:
    """Only its own items were refused; they have to end as many workers again."""
    with start(ledger) as pool:
        deadly, other = (["deadly", "", "exit"], ["other", "", "exit"])
        journal = ledger.path / "journal"

        def outcomes(**options: Any) -> list[type]:
            items = [innocent(0), deadly, innocent(1)]
            found = pool.map("Poisonous.on_loop", items, journal=journal, return_failures=True, **options)
            return [type(each.error) if isinstance(each, Failure) else type(each) for each in found]

        assert isinstance(pool.call("Poisonous.on_loop", other).exception(), errors.PoisonRequest)
        for again, runs in ((False, 2), (False, 2), (True, 4)):
            assert outcomes(retry_failed=again) == [str, errors.PoisonRequest, str]
            assert Counter(ledger.runs())["deadly"] == runs
        with pytest.raises(errors.PoisonRequest):
            pool.call("Poisonous.on_loop", other)
        assert Counter(ledger.runs())["other"] == 2
        admitted = [event for event in events(pool) if event["event"] == "request_admitted"]
        assert len(admitted) == 1


def test_a_client_that_dies_while_its_suspect_waits_harms_nobody(ledger: Ledger) -> None:
    """A suspect that waits to run alone is dropped with its session, and all others go on."""
    with start(ledger) as pool, ledger.gate("gate") as gate:
        with atomr_mp.connect(run_dir=pool.run_dir) as other:
            wait_generation(other, 1)
            suspect = other.call("Poisonous.on_thread", ["suspect", gate.path, ""])
            suspect.add_done_callback(lambda _: None)  # so that somebody looks
            gate.wait()
            kill(pool)
            wait_generation(pool, 2)
            wait_generation(other, 2)
            gate.wait()  # it runs, alone
            waiting = pool.call("Poisonous.on_loop", innocent("waiting"))
            assert not suspect.done
        gate.open(2)
        assert waiting.result() == "waiting"
        assert pool.call("Poisonous.on_loop", innocent("next")).result() == "next"
        assert settled(lambda: pool.status().devices[0].running == 0)


def test_without_suspicion_all_is_as_it_was(ledger: Ledger) -> None:
    """With `max_suspicions = 0` nothing runs alone; the restart intensity alone stops requests that end workers."""
    with start(ledger, max_suspicions=0, max_restarts=3, give_up=True) as pool:
        error = pool.call("Poisonous.on_loop", ["poison", "", "exit"]).exception()
        assert isinstance(error, errors.WorkerLost)
        assert Counter(ledger.runs()) == {"poison": 3}  # and two replays
        assert not local_client(pool).suspicions.methods
        assert isinstance(pool.call("Poisonous.on_loop", ["poison", "", "exit"]).exception(), errors.RequestError)
        wait_state(pool, DeviceState.STOPPED)


def test_an_operator_sees_what_is_refused_and_lets_it_back_in(ledger: Ledger) -> None:
    """`status` lists it for people and programs; a released request has to end two workers again to be refused."""
    with start(ledger) as pool:
        where = ("--run-dir", pool.run_dir)
        assert json.loads(cli("status", "--json", *where).stdout)["quarantined"] == []
        begun = time.time()
        poison = ["poison", "", "exit"]
        error = pool.call("Poisonous.on_loop", poison).exception()
        assert isinstance(error, errors.PoisonRequest)
        shown = json.loads(cli("status", "--json", *where).stdout)["quarantined"]
        assert begun <= shown[0].pop("since") <= time.time()
        assert shown == [
            {
                "method": "Poisonous.on_loop",
                "fingerprint": error.fingerprint,
                "ends": 2,
                "where": [{"device": 0, "generation": 1}, {"device": 0, "generation": 2}],
            }
        ]
        text = cli("status", *where).stdout
        assert f"Poisonous.on_loop, fingerprint {error.fingerprint}, has ended 2 workers (device 0 generation 1" in text

        assert "no request in quarantine with a fingerprint that begins with 'x'" in refusal("admit", "x", *where)
        admitted = cli("admit", error.fingerprint[:8], *where)
        assert f"fingerprint {error.fingerprint} is admitted again; it has ended 2 workers" in admitted.stdout
        assert json.loads(cli("status", "--json", *where).stdout)["quarantined"] == []
        wait_until(pool, lambda: not local_client(pool).suspicions.methods)
        again = pool.call("Poisonous.on_loop", poison).exception()
        assert isinstance(again, errors.PoisonRequest)
        assert again.ends == 2
        assert Counter(ledger.runs())["poison"] == 4
        assert cli("admit", "--all", *where).stdout.count("is admitted again") == 1
        assert "is not in quarantine" in str(not_in_quarantine(pool, error.fingerprint))
        told = [event for event in read_events(pool.run_dir / "events.jsonl") if event["event"] == "request_admitted"]
        assert len(told) == 2


def test_what_is_found_to_be_poison_while_the_pool_stops_starts_nothing(ledger: Ledger) -> None:
    """The ends that had stopped a device are forgiven by a client that looks late: the pool ends all the same."""
    with start(ledger, gpus=2, max_restarts=1, give_up=True) as pool, ledger.gate("gate") as gate:
        late = SessionConnection.connect(pool.run_dir / "session.sock")
        greet(late, "late", observer=False)
        generations = [pool.devices[0].generation]
        for again in (True, False):
            error = pool.call("Poisonous.once", [f"poison {generations}", "", "exit"], device=0).exception()
            assert isinstance(error, errors.WorkerLost)
            if again:
                generations.append(wait_generation(pool, generations[0] + 1).generation)
        wait_state(pool, DeviceState.STOPPED)
        busy = pool.call("Poisonous.on_thread", ["busy", gate.path, ""], device=1)
        gate.wait()
        with Watched([pool.supervisor_pid]) as supervisor:
            with OperatorSession(pool.run_dir / "session.sock") as observer:
                observer.stop()
                for number, generation in enumerate(generations):
                    late.send(Suspect(number, 0, generation, [RequestKey("Poisonous.once", bytes(16))]))
                assert settled(lambda: len(observer.status().quarantined) == 1)
                assert observer.status().workers[0].device.state is DeviceState.STOPPED
            gate.open(5)
            assert busy.result() == "busy"
            assert not supervisor.left(DEADLINE_S)
        late.close()


def not_in_quarantine(pool: atomr_mp.Pool, fingerprint: str) -> errors.InvalidRequest:
    """Return how the supervisor refuses to admit what it does not refuse."""
    with OperatorSession(pool.run_dir / "session.sock") as observer, pytest.raises(errors.InvalidRequest) as refused:
        observer.admit(RequestKey("Poisonous.on_loop", bytes.fromhex(fingerprint)))
    return refused.value


def test_suspects_and_others_of_one_thread_use_memory_in_their_order(ledger: Ledger) -> None:
    """A request whose like was lost with its worker runs alone, and yet neither before nor behind its time."""
    size = 4_000_000  # the copies take a while, in which their worker is killed
    with ledger.start(standby="hot", max_restarts=1000, backoff_initial_s=0.0, max_suspicions=100) as pool:
        device = pool.device(0)
        for _ in range(3):
            x, y = (device.put(np.full(size, value, np.int64)) for value in (1, 2))
            pid, running = pool.devices[0].pid or 0, list[Any]()
            while all(reply.done for reply in running):  # on a busy machine all may be done before it stands still
                os.kill(pid, signal.SIGCONT)
                running = [device.memory.copy(x, y) for _ in range(30)]
                assert settled(lambda: any(reply.done for reply in running))  # noqa: B023 - called at once
                os.kill(pid, signal.SIGSTOP)
            os.kill(pid, signal.SIGKILL)
            assert any(reply.exception(DEADLINE_S) for reply in running)
            x, y, end = (device.put(np.full(size, value, np.int64)) for value in (1, 2, 3))
            for reply in (device.memory.copy(x, y), device.memory.fill(y, 9), device.memory.copy(y, end)):
                reply.result(DEADLINE_S)
            assert (y.numpy()[0], end.numpy()[0]) == (9, 9)
