"""Programs of worlds: all ranks run the same steps, collectives among them, or none does. Against a model in NumPy."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest

import atomr_mp
from atomr_mp import errors
from atomr_mp.made_world import MadeWorld
from atomr_mp.protocol.libraries import program as messages
from atomr_mp.protocol.libraries.blocks import StepBlock
from tests import made_worlds
from tests.made_worlds import arrays_of, put, same
from tests.support import ACTORS, DEADLINE_S, Gate, Ledger
from tests.worlds import start

RECORDED = f"{ACTORS}/recorded.py:Recorded"
DRAWS = 30
Model = list[np.ndarray[Any, Any]]


books, pool, gate, world, pair = (
    made_worlds.books,
    made_worlds.pool,
    made_worlds.gate,
    made_worlds.world,
    made_worlds.pair,
)


COLLECTIVES: dict[str, tuple[Callable[[Any, Any, int], Any], Callable[[Model, int], Model]]] = {
    "sum": (lambda p, x, _n: p.all_reduce(x), lambda x, n: [np.add.reduce(x)] * n),
    "max": (lambda p, x, _n: p.all_reduce(x, "max"), lambda x, n: [np.maximum.reduce(x)] * n),
    "factors": (
        lambda p, x, n: p.all_reduce(x, factor=list(range(n))),
        lambda x, n: [np.add.reduce([each * rank for rank, each in enumerate(x)])] * n,
    ),
    "reduce": (
        lambda p, x, n: p.reduce(x, n - 1),
        lambda x, n: [np.zeros_like(x[0])] * (n - 1) + [np.add.reduce(x)],
    ),
    "reduce_scatter": (lambda p, x, _n: p.reduce_scatter(x), lambda x, n: np.split(np.add.reduce(x), n)),
    "all_gather": (lambda p, x, _n: p.all_gather(x), lambda x, n: [np.stack(x)] * n),
    "broadcast": (lambda p, x, n: p.broadcast(x, n - 1), lambda x, n: [x[-1]] * n),
    "all_to_all": (
        lambda p, x, _n: p.all_to_all(x),
        lambda x, n: [np.concatenate([np.split(each, n)[rank] for each in x]) for rank in range(n)],
    ),
    "ring": (
        lambda p, x, n: p.sendrecv(x, [(rank, (rank + 1) % n) for rank in range(n)]),
        lambda x, n: [x[rank - 1] for rank in range(n)],
    ),
    "to nobody": (lambda p, x, _n: p.sendrecv(x, []), lambda x, _n: [np.zeros_like(each) for each in x]),
    "to one": (
        lambda p, x, n: p.sendrecv(x, [(n - 1, 0)]),
        lambda x, n: [x[-1], *[np.zeros_like(x[0])] * (n - 1)],
    ),
}


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "float16", "complex64"])
@pytest.mark.parametrize("name", COLLECTIVES)
def test_a_collective_as_a_step(pool: atomr_mp.Pool, world: MadeWorld, name: str, dtype: str) -> None:
    """Of an input, a ref and a temporary; of few elements, many and none."""
    if name == "max" and dtype == "complex64":
        pytest.skip("complex numbers have no order")
    record, expected = COLLECTIVES[name]
    for rows in (0, 3, 2000):
        arrays = arrays_of(world, (world.size * rows, 5), dtype)
        refs = put(pool, world, arrays)
        with world.program() as p:
            x = p.input("x", arrays[0].shape, dtype)
            of_input, of_ref = record(p.world, x, world.size), record(p.world, p.refs(refs), world.size)
            p.returns(of_input, of_ref, record(p.world, p.elementwise.add(x, p.refs(refs)), world.size))
        wanted = expected(arrays, world.size)
        doubled = expected([each + each for each in arrays], world.size)
        for _ in range(2):
            found = p.run(x=refs).result(DEADLINE_S)
            for at, model in enumerate((wanted, wanted, doubled)):
                same([each[at] for each in found], model)
        same(refs, arrays)


Step = Callable[[dict[str, Model]], None]
"""Does a step of a program to a model's arrays, by name and rank."""


def subtracted(p: Any, slots: dict[str, Any], one: str, other: str, to: str) -> Step:
    """Record a difference."""
    p.elementwise.subtract(slots[one], slots[other], slots[to])

    def step(model: dict[str, Model]) -> None:
        model[to] = [x - y for x, y in zip(model[one], model[other], strict=True)]

    return step


def exchanged(p: Any, slots: dict[str, Any], one: str, to: str, root: int) -> Step:
    """Record one of three collectives."""
    kind = root % 3
    if kind == 0:
        p.world.all_reduce(slots[one], "max", out=slots[to])
    elif kind == 1:
        p.world.broadcast(slots[one], root, out=slots[to])
    else:
        p.world.all_to_all(slots[one], out=slots[to])

    def step(model: dict[str, Model]) -> None:
        x = model[one]
        ranks = range(len(x))
        found = [np.maximum.reduce(x), x[root], None][kind]
        model[to] = [np.stack([each[rank] for each in x]) if found is None else found for rank in ranks]

    return step


def test_drawn_programs_agree_with_a_model(pool: atomr_mp.Pool, world: MadeWorld) -> None:
    """Steps in any order write refs and temporaries; several runs are under way at once."""
    size, choices = world.size, random.Random(world.size)
    for _ in range(DRAWS):
        model = {name: arrays_of(world, (size, 3)) for name in "ab"}
        refs = {name: put(pool, world, arrays) for name, arrays in model.items()}
        given = np.arange(size * 3.0).reshape(size, 3)
        with world.program() as p:
            slots = {name: p.refs(each) for name, each in refs.items()} | {"x": p.input("x", (size, 3), "float64")}
            slots["t"] = p.empty((size, 3), "float64")
            steps = [subtracted(p, slots, "x", "a", "t")]
            for _ in range(choices.randrange(1, 12)):
                one, to = choices.choice("abxt"), choices.choice("abt")
                if choices.random() < 0.4:
                    steps.append(subtracted(p, slots, one, choices.choice("abxt"), to))
                else:
                    steps.append(exchanged(p, slots, one, to, choices.randrange(size)))
            p.returns(slots["t"])
        replies = [p.run(x=given) for _ in range(3)]
        for reply in replies:
            model["x"] = [given] * size
            for step in steps:
                step(model)
            same(reply.result(DEADLINE_S), model["t"])
        for name in "ab":
            same(refs[name], model[name])


def test_what_a_client_can_know_is_refused_while_it_is_recorded(pool: atomr_mp.Pool, pair: MadeWorld) -> None:
    """At the caller's line; nothing is sent."""
    refs, other = put(pool, pair, arrays_of(pair, (4, 3))), put(pool, pair, arrays_of(pair, (3, 4)))
    numbers = put(pool, pair, arrays_of(pair, (4, 3), "int32"))
    complexes = put(pool, pair, arrays_of(pair, (4, 3), "complex64"))
    flags = put(pool, pair, arrays_of(pair, (4, 3), "bool"))

    def recorded(step: Callable[[Any], object]) -> None:
        with pair.program() as p:
            p.returns(p.world.all_reduce(p.refs(refs)))
            step(p)

    cases: list[tuple[type[Exception], str, Callable[[Any], object]]] = [
        (errors.GpuRefWrongDevice, "rank 0 of the world is device 0", lambda p: p.refs(refs[::-1])),
        (errors.InvalidRequest, "2 ranks, and got 1", lambda p: p.refs(refs[:1])),
        (errors.InvalidRequest, "lie in the same way", lambda p: p.refs([refs[0], other[1]])),
        (errors.InvalidRequest, "lie in the same way", lambda p: p.refs([refs[0].T, refs[1].reshape(3, 4)])),
        (errors.InvalidRequest, "memory of one rank", lambda p: p.world.all_reduce(refs[0])),
        (errors.InvalidRequest, "must be a ref", lambda p: p.world.all_reduce(np.zeros(3))),
        (errors.InvalidRequest, "op is 'sun'", lambda p: p.world.all_reduce(p.refs(refs), "sun")),
        (errors.InvalidRequest, "no integers", lambda p: p.world.all_reduce(p.refs(numbers), "avg")),
        (errors.InvalidRequest, "not complex", lambda p: p.world.all_reduce(p.refs(complexes), "max")),
        (errors.InvalidRequest, "not defined for bool", lambda p: p.world.all_reduce(p.refs(flags))),
        (errors.InvalidRequest, "a factor for each", lambda p: p.world.all_reduce(p.refs(refs), factor=[1.0])),
        (errors.InvalidRequest, '"sum" and "avg" have', lambda p: p.world.all_reduce(p.refs(refs), "max", factor=2)),
        (errors.InvalidRequest, "elements can hold", lambda p: p.world.all_reduce(p.refs(numbers), factor=0.5)),
        (errors.InvalidRequest, "elements can hold", lambda p: p.world.reduce(p.refs(numbers), factor=[1, 2**31])),
        (errors.InvalidRequest, "elements can hold", lambda p: p.world.all_reduce(p.refs(refs), factor=1j)),
        (errors.InvalidRequest, "a truth value is none", lambda p: p.world.all_reduce(p.refs(refs), factor=True)),
        (errors.InvalidRequest, "a truth value is none", lambda p: p.world.all_reduce(p.refs(refs), factor=[1, False])),
        (errors.InvalidRequest, "root is True", lambda p: p.world.broadcast(p.refs(refs), root=True)),
        (errors.InvalidRequest, "a receiver of pairs is", lambda p: p.world.sendrecv(p.refs(refs), [(0, True)])),
        (errors.InvalidRequest, "factor is 'a'", lambda p: p.world.all_reduce(p.refs(refs), factor="a")),
        (errors.InvalidRequest, "not divisible by 2", lambda p: p.world.reduce_scatter(p.refs(refs)[:3])),
        (errors.InvalidRequest, "divisible by the number", lambda p: p.world.all_to_all(p.refs(other))),
        (errors.InvalidRequest, "root must be a rank", lambda p: p.world.broadcast(p.refs(refs), 2)),
        (errors.InvalidRequest, "root is", lambda p: p.world.reduce(p.refs(refs), -1)),
        (errors.InvalidRequest, "sends to one at most", lambda p: p.world.sendrecv(p.refs(refs), [(0, 1), (0, 0)])),
        (errors.InvalidRequest, "pairs of ranks", lambda p: p.world.sendrecv(p.refs(refs), [0])),
        (errors.InvalidRequest, "has the shape", lambda p: p.world.all_gather(p.refs(refs), out=p.refs(refs))),
        (errors.BorrowConflict, "overlaps", lambda p: p.world.all_reduce(p.refs(refs)[1:], out=p.refs(refs)[:-1])),
        (errors.InvalidRequest, "no earlier step has written", lambda p: p.world.all_reduce(p.empty(3, "float64"))),
    ]
    for kind, text, step in cases:
        with pytest.raises(kind) as raised:
            recorded(step)
        assert text in str(raised.value)
    with pytest.raises(AttributeError, match="a program has no 'world'"), pool.device(0).program() as p:
        _ = p.world


def test_operands_of_programs_belong_nowhere_else(pool: atomr_mp.Pool, pair: MadeWorld) -> None:
    """Refs of all ranks, and arrays of a program, are refused in words wherever one ref belongs."""
    refs = put(pool, pair, arrays_of(pair, 4))
    with pair.program() as p:
        of_ranks = p.refs(refs)
        of_steps = p.world.all_reduce(of_ranks)
        x = p.input("x", 4, "float64")
        p.returns(p.elementwise.add(of_steps, x))

    def run_with(operand: Any) -> atomr_mp.Reply:
        with device.program() as q:
            q.returns(q.elementwise.add(operand, operand))
        return q.run()

    device = pool.device(0)
    for operand in (of_ranks, of_steps):
        for use in (
            lambda operand: device.elementwise.add(operand, operand),
            lambda operand: device.memory.fill(operand, 1.0),
            lambda operand: pool.call("Exchanging.read", operand),
            lambda operand: pair.all_reduce([operand, operand]),
            run_with,
            lambda operand: p.run(x=[operand, refs[1]]),
        ):
            with pytest.raises(errors.InvalidRequest):
                use(operand).result(DEADLINE_S)
    with pytest.raises(errors.InvalidRequest, match="exists only while the program runs"):
        p.run(x=of_steps)
    for devices, kind in (([1, 0], errors.GpuRefWrongDevice), ([0, 1, 2], errors.InvalidRequest)):
        with pool.world(devices) as other, pytest.raises(kind), other.program() as q:
            q.world.all_reduce(of_ranks)
    same(p.run(x=of_ranks).result(DEADLINE_S), [sum(arrays_of(pair, 4)) + each for each in arrays_of(pair, 4)])


def test_what_one_rank_refuses_no_rank_begins(pool: atomr_mp.Pool, pair: MadeWorld) -> None:
    """The error is that of the rank that refuses; what steps were to write stays as it was, and the world works on."""
    arrays = arrays_of(pair, 4)
    refs, spoilt, target = (put(pool, pair, arrays) for _ in range(3))
    with pair.program() as p:
        p.elementwise.add(p.refs(refs), p.refs(refs), p.refs(target))
        p.world.all_reduce(p.refs(spoilt), out=p.refs(spoilt))
    p.run().result(DEADLINE_S)
    same(target, [each + each for each in arrays])
    with pytest.raises(errors.RequestError):
        pool.call("Exchanging.fail", spoilt[1]).result(DEADLINE_S)
    for device, ref in zip(pair.devices, target, strict=True):
        pool.device(device).memory.fill(ref, 7.0).result(DEADLINE_S)
    with pytest.raises(errors.GpuRefUndefined) as undefined:
        p.run().result(DEADLINE_S)
    assert undefined.value.rank == 1
    assert not undefined.value.maybe_executed
    same(target, [np.full(4, 7.0)] * 2)
    view = refs[0].view(write=True)
    with pytest.raises(errors.BorrowConflict) as conflict:
        p.run().result(DEADLINE_S)
    assert not conflict.value.maybe_executed
    del view
    assert pair.barrier().result(DEADLINE_S) == [None, None]
    assert pair.epoch == 1


@pytest.mark.parametrize("ends_with", ["a collective", "no collective", "the failing step"])
def test_a_step_that_fails_on_one_rank_ends_all(pool: atomr_mp.Pool, pair: MadeWorld, ends_with: str) -> None:
    """Its error is that of the run. What steps were to write is undefined, and the epoch goes on."""
    matrices = put(pool, pair, [np.eye(3), -np.eye(3)])
    sums = put(pool, pair, [np.ones(3)] * 2)
    with pair.program() as p:
        a, s = p.refs(matrices), p.refs(sums)
        p.world.all_reduce(s, out=s)
        p.solver.potrf(a)
        if ends_with != "the failing step":
            p.elementwise.add(s, s, s)
        if ends_with == "a collective":
            p.world.all_reduce(s, out=s)
            p.world.all_gather(s)
    with pytest.raises(errors.NumericalError) as failed:
        p.run().result(DEADLINE_S)
    assert failed.value.rank == 1
    assert failed.value.maybe_executed
    for ref in (*matrices, *sums):  # those of the rank that has done all of its steps, too
        with pytest.raises(errors.GpuRefUndefined):
            ref.numpy()
    assert pair.barrier().result(DEADLINE_S) == [None, None]
    assert pair.epoch == 1


def test_programs_take_their_turns_with_other_requests(pool: atomr_mp.Pool, pair: MadeWorld, gate: Gate) -> None:
    """A run waits for an earlier writer of its refs on any rank, and a later reader for it."""
    refs = put(pool, pair, [np.ones(2)] * 2)
    with pair.program() as p:
        p.world.all_reduce(p.refs(refs), out=p.refs(refs))
    held = pool.call("Exchanging.hold", refs[1], gate.path, 10.0)
    gate.wait()
    ran = p.run()
    read = pool.call("Exchanging.read", refs[0])
    assert pair.barrier().result(DEADLINE_S) == [None] * 2
    assert not ran.done
    assert not read.done
    gate.open()
    held.result(DEADLINE_S)
    ran.result(DEADLINE_S)
    assert read.result(DEADLINE_S) == 12.0


@pytest.mark.parametrize("kind", ["program", "collective"])
def test_a_cancel_refuses_nobody(pool: atomr_mp.Pool, pair: MadeWorld, gate: Gate, kind: str) -> None:
    """A reader that was sent behind a run gets what was there before it."""
    refs = put(pool, pair, [np.ones(2)] * 2)
    with pair.program() as p:
        p.world.all_reduce(p.refs(refs), out=p.refs(refs))
    held = pool.call("Exchanging.hold", refs[1], gate.path, 10.0)
    gate.wait()
    ran = p.run() if kind == "program" else pair.all_reduce(refs, out=refs)
    reads = [pool.call("Exchanging.read", ref) for ref in refs]
    ran.cancel()
    assert reads[0].result(DEADLINE_S) == 1.0
    gate.open()
    held.result(DEADLINE_S)
    assert reads[1].result(DEADLINE_S) == 11.0
    assert pair.epoch == 1


def test_steps_of_a_world_are_refused_elsewhere(pool: atomr_mp.Pool, pair: MadeWorld) -> None:
    """A hand-made program of a device has none, nor one of a world with another number of ranks."""
    with pair.program() as p:
        p.returns(p.world.all_reduce(p.input("x", 3, "float64")))
    recorded = p._recorded
    assert recorded is not None
    run = msgspec.structs.replace(recorded, inputs=[np.ones(3)])
    with pytest.raises(errors.InvalidRequest, match="world has no requests that can be steps here"):
        pool.device(0).request("program", run, DEADLINE_S).result(DEADLINE_S)
    with pool.world([0, 1, 2]) as three, pytest.raises(errors.InvalidRequest, match="for 2 ranks, and the world has 3"):
        three._run_program([run] * 3, DEADLINE_S).result(DEADLINE_S)
    with three, pytest.raises(errors.DeviceUnavailable):
        three._run_program([run] * 3, DEADLINE_S)
    empty = msgspec.structs.replace(run, program=b"", digest=messages.digest(run.program), place=0)
    for part in (empty, msgspec.structs.replace(run, program=b"\xc1"), msgspec.structs.replace(run, digest=bytes(32))):
        with pytest.raises(errors.InvalidRequest) as refused:
            pair._run_program([run, part], DEADLINE_S).result(DEADLINE_S)
        assert refused.value.rank == 1
    with pair.program() as q:
        q.returns(q.world.all_reduce(q.input("x", 3, "float64"), "max"))
    assert q._recorded is not None
    other = msgspec.structs.replace(q._recorded, inputs=[np.ones(3)])
    with pytest.raises(errors.WorldMismatch, match="program") as mismatch:
        pair._run_program([run, other], DEADLINE_S).result(DEADLINE_S)
    assert not mismatch.value.maybe_executed
    same(p.run(x=np.ones(3)).result(DEADLINE_S), [np.full(3, 2.0)] * 2)
    assert pair.epoch == 1


def test_ranks_have_loops_of_their_own_and_no_collective_in_them(pool: atomr_mp.Pool, pair: MadeWorld) -> None:
    """Each rank does its own rounds between collectives; one in a body is refused, by client and worker."""
    lefts = put(pool, pair, [np.array(2), np.array(5)])
    ones, totals = put(pool, pair, [np.array(1)] * 2), put(pool, pair, [np.array(0)] * 2)
    with pair.program() as p:
        left, one, total = p.refs(lefts), p.refs(ones), p.refs(totals)
        with p.while_(left, most=4) as loop:
            with pytest.raises(
                errors.InvalidRequest, match=r"world.all_reduce is in the body of a while_: ranks whose"
            ):
                p.world.all_reduce(one)
            p.elementwise.add(total, one, total)
            p.elementwise.subtract(left, one, left)
        with p.if_(left):
            p.elementwise.add(total, total, total)
        with p.else_():
            with pytest.raises(errors.InvalidRequest, match=r"world.all_reduce is in the body of an else_: ranks"):
                p.world.all_reduce(one)
            p.elementwise.subtract(total, one, total)
        p.returns(p.world.all_reduce(loop.rounds), p.world.all_reduce(total))
    for rounds, total in p.run().result(DEADLINE_S):
        assert (int(rounds.numpy()), int(total.numpy())) == (2 + 4, (2 - 1) + 2 * 4)
    with pair.program() as q:
        x = q.input("x", (), "int64")
        q.world.all_reduce(x, out=x)
    assert q._recorded is not None
    definition = messages.DEFINITIONS.decode(q._recorded.program)
    block = StepBlock("while", messages.slot(0, definition.inputs[0].layout), 0, 1, 3)
    changed = messages.DEFINITIONS.encode(msgspec.structs.replace(definition, blocks=[block]))
    run = msgspec.structs.replace(q._recorded, program=changed, digest=b"", varies=True, inputs=[np.array(1)])
    with pytest.raises(errors.InvalidRequest, match=r"block 0 \(while\) has a collective in its body"):
        pair._run_program([run] * 2, DEADLINE_S).result(DEADLINE_S)
    assert pair.epoch == 1


def test_an_actor_s_programs_have_collectives(ledger: Ledger) -> None:
    """They are recorded and rehearsed in `setup`, and run in the world's calls."""
    with start(ledger, RECORDED, 3) as pool:
        world = pool.world("tp")
        x = np.arange(6.0)
        for number in range(3):
            found = world.call("Recorded.run", x + number, each=True).result(DEADLINE_S)
            for each in found:
                np.testing.assert_array_equal(each, (1 + 2 + 3) * (x + number))
        assert world.call("Recorded.rehearsed", each=True).result(DEADLINE_S) == [3.0, 6.0, 9.0]
