"""Branches and loops of programs in a worker: who waits for whom, what ends them, and what a worker refuses."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any, Final

import msgspec
import numpy as np
import pytest

import atomr_mp
from atomr_mp import errors
from atomr_mp.libraries.program import Program
from atomr_mp.protocol.layout import Layout
from atomr_mp.protocol.libraries import program as messages
from tests.support import DEADLINE_S, Ledger, settled, wait_generation

ENDLESS: Final = 2**62


@pytest.fixture(scope="module", params=[0, 2**40], ids=["by the stream's thread", "by the loop"])
def pool(request: pytest.FixtureRequest, backend: str) -> Iterator[atomr_mp.Pool]:
    """A pool whose requests are forced onto streams, or on the host onto the loop."""
    with Ledger() as ledger, ledger.start(backend=backend, inline_bytes=request.param) as pool:
        yield pool


@pytest.fixture
def device(pool: atomr_mp.Pool) -> atomr_mp.Device:
    """Its device."""
    return pool.device(0)


def counting(device: atomr_mp.Device, most: int, place: Any = None) -> Program:
    """Return a program that counts n down to 0, adding 1 to a number in each round.

    Args:
        device: The device.
        most: How many rounds are done at most.
        place: The number; by default one of the program, which begins with 0.
    """
    one, zero = device.full((), 1, "int64"), device.full((), 0, "int64")
    with device.program() as p:
        n, left = p.input("n", (), "int64"), p.empty((), "int64")
        p.elementwise.add(n, zero, left)
        total = p.empty((), "int64") if place is None else place
        if place is None:
            p.elementwise.add(zero, zero, total)
        with p.while_(left, most=most) as loop:
            p.elementwise.add(total, one, total)
            p.elementwise.subtract(left, one, left)
        p.returns(*(() if place is not None else (total,)), loop.rounds, loop.reached_most)
    return p


def numbers(reply: atomr_mp.Reply) -> list[int]:
    """Return the numbers that a run returns."""
    return [int(ref.numpy()) for ref in reply.result(DEADLINE_S)]


def endless(device: atomr_mp.Device, place: Any = None) -> atomr_mp.Reply:
    """Start a run that ends after centuries."""
    return counting(device, ENDLESS, place).run(n=np.int64(-1), deadline_s=None)


def begun(pool: atomr_mp.Pool) -> bool:
    """Return whether something runs in the worker."""
    return settled(lambda: pool.status().devices[0].running > 0, DEADLINE_S)


def test_a_loop_ends_by_its_condition_or_by_its_bound(device: atomr_mp.Device) -> None:
    """And tells its rounds, and which of the two it was."""
    p = counting(device, 7)
    for n, told in ((0, [0, 0, 0]), (1, [1, 1, 0]), (6, [6, 6, 0]), (7, [7, 7, 0]), (8, [7, 7, 1]), (-1, [7, 7, 1])):
        assert numbers(p.run(n=np.int64(n))) == told


def test_a_long_run_lets_others_have_their_turn(pool: atomr_mp.Pool, device: atomr_mp.Device) -> None:
    """Also programs, which are on its stream; and it goes on until it is cancelled."""
    p = counting(device, 10)
    long = endless(device)
    assert begun(pool)
    for n in range(5):
        assert numbers(p.run(n=np.int64(n))) == [n, n, 0]
        assert device.blas.inner(device.full(2, 1.0), device.full(2, 2.0)).result(DEADLINE_S).numpy() == 4.0
    assert not long.done
    long.cancel()
    error = long.exception(DEADLINE_S)
    assert isinstance(error, errors.Cancelled)
    assert error.maybe_executed
    assert settled(lambda: pool.status().devices[0].running == 0, DEADLINE_S)


def test_a_deadline_ends_a_run_between_two_rounds(pool: atomr_mp.Pool, device: atomr_mp.Device) -> None:
    """What it was to write is undefined, and its worker lives."""
    place = device.full((), 0, "int64")
    generation = pool.devices[0].generation
    late = counting(device, ENDLESS, place).run(n=np.int64(-1), deadline_s=0.3)
    error = late.exception(DEADLINE_S)
    assert isinstance(error, errors.DeadlineExceeded)
    with pytest.raises(errors.GpuRefUndefined):
        place.numpy()
    assert settled(lambda: pool.status().devices[0].running == 0, DEADLINE_S)
    assert pool.devices[0].generation == generation


def test_a_client_that_goes_leaves_no_run_behind(pool: atomr_mp.Pool) -> None:
    """Its client was the only one that could cancel it."""
    with atomr_mp.connect(run_dir=pool.run_dir) as other:
        wait_generation(other, 1)
        endless(other.device(0))
        assert begun(pool)
    assert settled(lambda: pool.status().devices[0].running == 0, DEADLINE_S)


def test_whoever_needs_the_memory_of_a_loop_waits_for_its_end(device: atomr_mp.Device) -> None:
    """On its own stream, on another and for a read; then each gets what a sequence gives."""
    place, other = device.full((), 0, "int64"), device.full((), 0, "int64")
    again, beside = counting(device, 10, place), counting(device, 10, other)
    first = counting(device, 20_000, place).run(n=np.int64(-1))
    second = again.run(n=np.int64(5))
    third = device.elementwise.add(place, place, place)
    free = beside.run(n=np.int64(3))
    assert numbers(free) == [3, 0]
    assert int(place.numpy()) == 2 * 20_005
    assert numbers(first) == [20_000, 1]
    assert numbers(second) == [5, 0]
    assert third.result(DEADLINE_S) is None
    assert int(other.numpy()) == 3


def test_runs_from_several_threads_have_arrays_of_their_own(device: atomr_mp.Device) -> None:
    """Though they take turns amid their loops."""
    p, wrong = counting(device, 3000), list[Any]()

    def run(n: int) -> None:
        for each in range(5):
            if (found := numbers(p.run(n=np.int64(200 * n + each)))) != [200 * n + each] * 2 + [0]:
                wrong.append((n, each, found))

    threads = [threading.Thread(target=run, args=(n,)) for n in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_S)
    assert wrong == []


def test_what_a_branch_may_write_is_well_again_by_no_later_run(device: atomr_mp.Device) -> None:
    """A run whose branch writes a ref may leave it out: it cures nothing that a failed run has left undefined."""
    place, one = device.full(2, 0.0), device.full(2, 1.0)
    with device.program() as p:
        taken, goes_on = p.input("taken", (), "int64"), p.input("goes_on", (), "int64")
        with p.if_(taken):
            p.elementwise.add(one, one, place)
        with p.while_(goes_on, most=ENDLESS):
            p.elementwise.maximum(goes_on, goes_on, goes_on)
    yes, no = np.int64(1), np.int64(0)
    late = p.run(taken=yes, goes_on=yes, deadline_s=0.2)
    assert isinstance(late.exception(DEADLINE_S), errors.DeadlineExceeded)
    for each in (no, yes):
        assert p.run(taken=each, goes_on=no).result(DEADLINE_S) is None
        with pytest.raises(errors.GpuRefUndefined):
            place.numpy()
    device.memory.fill(place, 3.0).result(DEADLINE_S)
    assert place.numpy().tolist() == [3.0, 3.0]


def test_what_is_sent_past_the_clients_checks_is_refused_in_words(device: atomr_mp.Device) -> None:
    """Blocks that cannot be, conditions that cannot be one, and requests that hide their blocks."""
    p = counting(device, 5)
    recorded = p._recorded
    assert recorded is not None
    definition, replace = messages.DEFINITIONS.decode(recorded.program), msgspec.structs.replace
    (block,) = definition.blocks
    temporary = definition.first_temporary
    floating = replace(definition.temporaries[1], dtype="float64")

    def sent(blocks: Any, **more: Any) -> list[int]:
        fields = {name: more.pop(name) for name in ("temporaries", "steps") if name in more}
        changed = messages.DEFINITIONS.encode(replace(definition, blocks=blocks, **fields))
        request = replace(recorded, program=changed, digest=b"", inputs=[np.array(3)], **more)
        return numbers(device.request("program", request))

    assert sent([block]) == [3, 3, 0]
    inputs = messages.slot(0, Layout.contiguous("int64", ()))
    wrong: list[tuple[list[Any], dict[str, Any], str]] = [
        ([replace(block, end=block.begin)], {}, r"block 0 \(while\) has no steps"),
        ([replace(block, end=99)], {}, "ends with step 98 of 4 steps"),
        ([block, replace(block, begin=0)], {}, "begins before the block that is listed before it"),
        ([replace(block, kind="if", most=1), replace(block, begin=1)] * 2, {}, "begins before|has rounds|no rounds"),
        ([block] * 9, {}, "at most 8 may lie in each other"),
        ([replace(block, condition=inputs)], {}, "no step in its body writes its condition"),
        ([replace(block, condition=messages.slot(999, Layout.contiguous("int64", ())))], {}, "there is no slot 999"),
        ([replace(block, condition=messages.slot(temporary, Layout.contiguous("int64", (2,))))], {}, "to 16 of a slab"),
        (
            [replace(block, condition=messages.slot(temporary, Layout.contiguous("float64", ())))],
            {},
            "bool or an integer",
        ),
        ([replace(block, condition=messages.slot(temporary + 3, Layout.contiguous("bool", ())))], {}, "no step in its"),
        (
            [
                replace(
                    block,
                    kind="if",
                    most=1,
                    rounds=-1,
                    reached=-1,
                    condition=messages.slot(temporary + 3, Layout.contiguous("bool", ())),
                )
            ],
            {},
            "no earlier step has written",
        ),
        ([replace(block, rounds=0)], {}, "slot 0, in which block 0 tells of its rounds, is no temporary"),
        ([replace(block, rounds=temporary + 3)], {}, "is no temporary of type int64"),
        ([replace(block, reached=-1)], {}, "tells only one of"),
        ([block], {"varies": False}, "does not say so"),
        (
            [block],
            {"temporaries": [*definition.temporaries[:2], floating, definition.temporaries[3]]},
            "is no temporary",
        ),
        ([block], {"fills": (0,)}, "slot 0 is not written as a whole"),
    ]
    for blocks, more, words in wrong:
        with pytest.raises(errors.RequestError, match=words):
            sent(blocks, **more)
    collective = replace(definition.steps[-1], library="world", request="all_reduce")
    with pytest.raises(errors.InvalidRequest, match="world has no requests that can be steps here"):
        sent([block], steps=[*definition.steps[:-1], collective])
    assert sent([block]) == [3, 3, 0]
