"""A world's call that ends processes whenever it runs is found, as any other is, and costs two of them."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

import atomr_mp
from atomr_mp import errors
from atomr_mp.client.lanes.retry_policy import key_of
from atomr_mp.process.files.events import read_events
from atomr_mp.protocol.messages.suspects import Suspicion, Verdict
from tests.support import ACTORS, DEADLINE_S, Ledger, local_client, settled
from tests.worlds import on_host

WORLDLY = [f"{ACTORS}/worldly.py:{name}" for name in ("Worldly", "Overlapping", "Beside")]
pytestmark = on_host


def start(ledger: Ledger, **worlds: list[int]) -> atomr_mp.Pool:
    """Start a pool with a world of each of these devices, all restarts allowed."""
    actors = iter(("Worldly", "Overlapping"))
    plans = {
        name: {"devices": devices, "actors": [next(actors)], "begin_timeout_s": 1.0} for name, devices in worlds.items()
    }
    settings: dict[str, Any] = {"max_restarts": 100, "backoff_initial_s": 0.01, "max_suspicions": 2}
    return ledger.start(*WORLDLY[: len(worlds)], WORLDLY[2], gpus=3, worlds=plans, **settings)


def generations(pool: atomr_mp.Pool) -> list[int]:
    """Return the present incarnations."""
    return [device.generation for device in pool.devices]


@pytest.mark.parametrize("how", ["exits", "kills", "hangs"])
def test_a_deadly_call_costs_two_processes(ledger: Ledger, tmp_path: Path, how: str) -> None:
    """The third attempt is not made, nor a later one, by whomever; its world goes on."""
    with start(ledger, tp=[0, 1, 2]) as pool:
        world, runs = pool.world("tp"), tmp_path / "runs"
        arguments = ([1], how, str(runs))
        with pytest.raises(errors.PoisonRequest) as raised:
            world.call("Worldly.end_always", *arguments, deadline_s=DEADLINE_S).result(DEADLINE_S)
        assert (raised.value.rank, raised.value.ends, raised.value.maybe_executed) == (1, 2, True)
        assert sorted(runs.read_bytes()) == sorted(b"001122"), "each rank has run it twice"
        assert world.call("Worldly.add", 1.0, deadline_s=DEADLINE_S).result(DEADLINE_S) == 6.0
        assert generations(pool) == [1, 3, 1]
        with atomr_mp.connect(run_dir=pool.run_dir) as other:
            for each in (world, other.world("tp")):
                with pytest.raises(errors.PoisonRequest) as raised:
                    each.call("Worldly.end_always", *arguments).result(DEADLINE_S)
                assert not raised.value.maybe_executed
        assert world.call("Worldly.end_always", [], how, str(runs), deadline_s=DEADLINE_S).result(DEADLINE_S) == 3.0
        assert generations(pool) == [1, 3, 1]


@pytest.mark.parametrize("second", [[0, 1], [1, 0], [1, 2]])
def test_innocent_calls_of_overlapping_worlds_are_acquitted(ledger: Ledger, second: list[int]) -> None:
    """Whatever is killed beneath them: each runs alone, with all else waiting, and all are answered."""
    with start(ledger, one=[0, 1], two=second) as pool:
        one, two = pool.world("one"), pool.world("two")
        for number in range(8):
            calls: list[Any] = []
            for at in range(10):
                calls.append(one.call("Worldly.add_slowly", float(at), number, deadline_s=DEADLINE_S))
                calls.append(two.call("Overlapping.add_slowly", float(at), number, deadline_s=DEADLINE_S))
                calls += [pool.call("Beside.rest", device=device, deadline_s=DEADLINE_S) for device in range(3)]
            calls[0].result(DEADLINE_S)
            os.kill(pool.devices[1].pid or 0, signal.SIGKILL)
            errors_of = [each.exception(DEADLINE_S) for each in calls]
            assert errors_of == [None] * len(calls)
        assert not [each for each in local_client(pool).suspicions.methods if "add" in each]


def test_suspects_that_each_hold_a_device_of_the_other_s_get_out_of_it(ledger: Ledger, tmp_path: Path) -> None:
    """One world's epoch is given up after a time, which costs no call, and no process."""
    with start(ledger, one=[0, 1], two=[1, 0]) as pool:
        suspicions = local_client(pool).suspicions
        for method in ("Worldly.add_slowly", "Overlapping.add_slowly"):
            key = key_of(method, [1.0, 0])
            assert key is not None
            suspicions.take([Suspicion(key, Verdict.SUSPECTED, 1)])
        gates = [tmp_path / f"rank {rank}" for rank in range(2)]
        calls = [
            pool.world(world).call(f"{actor}.{name}", *arguments, deadline_s=DEADLINE_S)
            for name, arguments in (
                ("pass_gate", [[str(gate) for gate in gates]]),
                ("add_slowly", [1.0, 0]),
                ("add", [1.0]),
            )
            for world, actor in (("one", "Worldly"), ("two", "Overlapping"))
        ]
        assert [call.alone is not None for call in calls] == [False, False, True, True, False, False]
        beside = [pool.call("Beside.rest", device=device, deadline_s=DEADLINE_S) for device in range(3)]
        # Both suspects are published before one is taken: behind that the other would not be published.
        assert settled(lambda: [world.published for world in pool.status().worlds] == [2, 2])
        gates[0].touch()
        # Rank 1 of each is behind, so that its device is taken by the other's suspect.
        assert settled(
            lambda: [each.members[0].doing for each in pool.status().worlds] == ["waits to run call 2 alone"] * 2
        )
        gates[1].touch()
        assert [call.result(DEADLINE_S) for call in calls] == [None, None, 2.0, 2.0, 3.0, 3.0]
        assert [each.exception(DEADLINE_S) for each in beside] == [None] * 3
        assert generations(pool) == [1, 1, 1]
        broken = [each for each in read_events(pool.run_dir / "events.jsonl") if each["event"] == "world_broken"]
        assert [(each["world"], each["rank"]) for each in broken] == [("one", 1)]


@pytest.mark.parametrize("second", [[1, 0], [1, 2], [2, 0]])
def test_a_suspect_does_not_hold_up_another_world_s_calls(ledger: Ledger, second: list[int]) -> None:
    """Nor they it, though ranks that are ahead wait in them for a process in which the suspect waits."""
    with start(ledger, one=[0, 1], two=second) as pool:
        one, two, over = pool.world("one"), pool.world("two"), threading.Event()
        failed: list[BaseException | None] = []

        def load() -> None:
            while not over.is_set():
                behind = one.call("Worldly.wait_on", 1, 0.01, deadline_s=DEADLINE_S)
                failed.append(one.call("Worldly.add", 1.0, deadline_s=DEADLINE_S).exception(DEADLINE_S))
                failed.append(behind.exception(DEADLINE_S))

        loads = [threading.Thread(target=load) for _ in range(4)]
        for each in loads:
            each.start()
        try:
            for number in range(10):
                key = key_of("Overlapping.add_slowly", [1.0, number])
                assert key is not None
                local_client(pool).suspicions.take([Suspicion(key, Verdict.SUSPECTED, 1)])
                suspect = two.call("Overlapping.add_slowly", 1.0, number, deadline_s=DEADLINE_S)
                assert suspect.alone is not None
                assert suspect.result(DEADLINE_S) == 2.0
        finally:
            over.set()
            for each in loads:
                each.join()
        assert set(failed) == {None}, "there were some, and all were answered"
        assert (one.epoch, two.epoch) == (1, 1)
        assert generations(pool) == [1, 1, 1]


@pytest.mark.parametrize("second", [[0, 1], [1, 2]])
def test_deadly_calls_of_overlapping_worlds_end_each(ledger: Ledger, tmp_path: Path, second: list[int]) -> None:
    """Both run alone, one after the other, while calls of both worlds and of their devices go on."""
    with start(ledger, one=[0, 1], two=second) as pool:
        one, two = pool.world("one"), pool.world("two")
        deadly = [
            one.call("Worldly.end_always", [0], "exits", str(tmp_path / "one"), deadline_s=DEADLINE_S),
            two.call("Overlapping.end_always", [1], "exits", str(tmp_path / "two"), deadline_s=DEADLINE_S),
        ]
        others: list[Any] = []
        while not all(each.done for each in deadly):
            beside = [pool.call("Beside.rest", device=device, deadline_s=DEADLINE_S) for device in range(3)]
            beside += [one.call("Worldly.add", 1.0, deadline_s=DEADLINE_S)]
            beside += [two.call("Overlapping.add", 1.0, deadline_s=DEADLINE_S)]
            others += [each.exception(DEADLINE_S) for each in beside]
        assert [type(each.exception(DEADLINE_S)) for each in deadly] == [errors.PoisonRequest] * 2
        assert others == [None] * len(others)
