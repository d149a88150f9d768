"""Streams that go on in the next worker, after the parts that their reader has."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Any

import pytest

import atomr_mp
from atomr_mp import errors
from tests.support import ACTORS, DEADLINE_S, Ledger, local_client, parts_of, settled, wait_generation

RESUMER = f"{ACTORS}/streaming.py:Resumer"
ENGINE = f"{ACTORS}/streaming.py:Engine"
TEXT = "a text that is spelled in the end"


def spelled(text: str) -> list[str]:
    """Return what an undisturbed stream yields."""
    said: list[str] = []
    for character in text:
        said.append(f"{character}{len(''.join(said)) % 7}")
    return said


@pytest.mark.parametrize(
    ("standby", "how", "at"), [("none", "kill", 0), ("none", "segv", 7), ("hot", "exit", 1), ("hot", "kill", 19)]
)
def test_a_resumed_stream_equals_an_undisturbed_one(ledger: Ledger, standby: str, how: str, at: int) -> None:
    """It resumes by a number or by the sent parts, on the standby or the next process. None is lost or doubled."""
    with ledger.start(RESUMER, standby=standby, max_restarts=10) as pool, ledger.gate("gate") as gate:
        if standby == "hot":
            assert settled(lambda: pool.devices[0].standby is not None)
        stream = pool.actor("Resumer").count(upto=20, at=at, how=how, gate=gate.path)
        assert [next(stream) for _ in range(at)] == list(range(at))
        gate.wait()
        gate.open()
        assert parts_of(stream) == (list(range(at, 20)), None)
        assert stream.result() == 20
        assert stream.generation == 2
    assert ledger.runs() == ["from-0", f"from-{at}"]


def test_what_was_sent_is_given_to_the_next_worker(ledger: Ledger) -> None:
    """A sampler cannot continue from a number."""
    with ledger.start(RESUMER) as pool, ledger.gate("gate") as gate:
        stream = pool.stream("Resumer.spell", TEXT, 9, "kill", gate.path)
        read = [next(stream) for _ in range(9)]
        gate.open()
        parts, error = parts_of(stream)
        assert (read + parts, error) == (spelled(TEXT), None)
    assert ledger.runs() == ["with-0", "with-9"]


def test_a_stream_goes_on_in_an_event_loop_too(ledger: Ledger) -> None:
    """Many at a time, with a slow reader: credit that they are due is not lost."""

    async def one(pool: atomr_mp.Pool, number: int) -> list[int]:
        parts = []
        async for part in pool.stream("Resumer.count", 30, 11, "kill" if number == 3 else "", ahead=1 + number % 4):
            parts.append(part)
            await asyncio.sleep(0)
        return parts

    async def use() -> None:
        found = await asyncio.wait_for(asyncio.gather(*(one(pool, number) for number in range(20))), DEADLINE_S)
        assert found == [list(range(30))] * 20

    with ledger.start(RESUMER) as pool:
        asyncio.run(use())
        assert pool.devices[0].generation == 2


def test_a_stream_that_stands_still_goes_on_when_it_is_read(ledger: Ledger) -> None:
    """It had no credit when its worker was killed, and has none in the next one until then."""
    with ledger.start(RESUMER) as pool:
        stream = pool.stream("Resumer.count", 10, -1, "", ahead=3)
        assert next(stream) == 0
        os.kill(pool.devices[0].pid, signal.SIGKILL)
        wait_generation(pool, 2)
        assert parts_of(stream) == (list(range(1, 10)), None)


def test_who_dies_at_each_part_but_gets_on_is_not_condemned(ledger: Ledger) -> None:
    """Each part is progress; only ends without any between them count."""
    with ledger.start(RESUMER, max_suspicions=2, max_restarts=20) as pool, ledger.gate("gate") as gate:
        stream = pool.stream("Resumer.each_time", 8, gate.path)
        for at in range(0, 8, 2):
            assert [next(stream), next(stream)] == [at, at + 1]
            gate.open()
        assert parts_of(stream) == ([], None)


def test_who_dies_at_the_same_part_again_is_poison(ledger: Ledger) -> None:
    """The parts that it had sent come first, once."""
    with ledger.start(RESUMER, max_suspicions=2, max_restarts=20) as pool:
        parts, error = parts_of(pool.stream("Resumer.always", 4))
        assert parts == list(range(len(parts)))
        assert len(parts) <= 4
        assert type(error) is errors.PoisonRequest
        assert error.parts == len(parts)


def test_more_than_is_kept_is_not_resumed(ledger: Ledger) -> None:
    """The stream ends as one that cannot be resumed; before that it goes on."""
    with ledger.start(RESUMER) as pool:
        parts, error = parts_of(pool.stream("Resumer.large", 8, 100_000, 5))
        assert (len(parts), error) == (8, None)
    with ledger.start(RESUMER, run_dir="again") as pool:
        parts, error = parts_of(pool.stream("Resumer.large", 60, 100_000, 50, ahead=4))
        assert isinstance(error, errors.WorkerLost)
        assert 41 < len(parts) <= 50  # it is at most four parts ahead of those that have come
        assert local_client(pool).sent_room._bytes == 0


def test_a_planned_end_moves_it_at_once(ledger: Ledger) -> None:
    """It moves to another device, even if it could go on for long."""
    with ledger.start(RESUMER, gpus=2, drain_timeout_s=20.0) as pool:
        stream = pool.stream("Resumer.count", 100_000, -1, "", ahead=4)
        assert next(stream) == 0
        device = stream.device
        pool.restart(device)
        found = []
        for part in stream:
            found.append(part)
            if stream.device != device:
                break
        assert found == list(range(1, 1 + len(found)))
        assert [next(stream) for _ in range(10)] == list(range(1 + len(found), 11 + len(found)))
        stream.close()


def test_streams_that_run_together_go_on_together(ledger: Ledger) -> None:
    """They are new in the next worker's steps, with what they had sent."""
    with ledger.start(ENGINE) as pool, ledger.gate("gate") as gate:
        lines: list[dict[str, Any]] = [{"text": f"{n}", "parts": 20} for n in range(4)]
        lines[1] |= {"at": 9, "gate": gate.path}
        streams = [pool.stream("Engine.resumed", line) for line in lines]
        read = [[next(stream) for _ in range(9 * (n == 1))] for n, stream in enumerate(streams)]
        gate.open()
        for n, stream in enumerate(streams):
            parts, error = parts_of(stream)
            assert (read[n] + parts, error) == ([f"{n}-{at}" for at in range(20)], None)
            assert stream.result() == 20
