"""Programs: many requests recorded once, and run as one."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any, Final, cast

import msgspec
import numpy as np
import pytest

import atomr_mp
from atomr_mp import errors
from atomr_mp.cli import main
from atomr_mp.client.lanes import sending
from atomr_mp.libraries.program import Program
from atomr_mp.operator.pool_status import PlanFigures
from atomr_mp.protocol.libraries import program as messages
from atomr_mp.protocol.libraries.program import RunProgram
from tests.support import DEADLINE_S, Ledger, pretend_told, wait_generation
from tests.tolerances import assert_close

N: Final = 24


@pytest.fixture(scope="module", params=[0, 2**40], ids=["by the stream's thread", "by the loop"])
def device(request: pytest.FixtureRequest, backend: str) -> Iterator[atomr_mp.Device]:
    """A device whose requests are forced onto streams, or on the host onto the loop."""
    with Ledger() as ledger, ledger.start(backend=backend, inline_bytes=request.param) as pool:
        yield pool.device(0)


def sums(device: atomr_mp.Device, steps: int, n: int = N) -> Program:
    """Return a program without refs that returns x, and x again for each step."""
    with device.program() as p:
        x = p.input("x", (n,), "float64")
        total = x
        for _ in range(steps):
            total = p.elementwise.add(total, x)
        p.returns(total)
    return p


def test_a_program_gives_what_its_steps_give_one_by_one(device: atomr_mp.Device, random: np.random.Generator) -> None:
    """Bit for bit, run after run, with inputs by value and by ref, views, and unseen temporaries."""
    weights = device.put(random.uniform(-1, 1, (N, N)))
    bias, zero = device.put(random.uniform(-1, 1, N)), device.full((), 0.0, "float64")
    with device.program() as p:
        x = p.input("x", (4, N), "float64")
        hidden = p.elementwise.add(p.blas.gemm(x, weights.T), bias)
        active = p.elementwise.maximum(hidden, zero)
        spectrum = p.fft.rfft(active)
        p.returns(p.blas.gemm(active[1:3], weights), spectrum)
    for turn in range(3):
        value = random.uniform(-1, 1, (4, N))
        given = device.put(value) if turn % 2 else value
        product, transformed = p.run(x=given).result()
        ref = device.put(value)
        single = device.elementwise.add(device.blas.gemm(ref, weights.T).result(), bias).result()
        device.elementwise.maximum(single, zero, single).result()
        np.testing.assert_array_equal(product.numpy(), device.blas.gemm(single[1:3], weights).result().numpy())
        np.testing.assert_array_equal(transformed.numpy(), device.fft.rfft(single).result().numpy())


def test_an_iteration_fits_into_a_program(device: atomr_mp.Device, random: np.random.Generator) -> None:
    """Conjugate gradients: the numbers of an iteration are arrays of one element and stay on the device."""
    matrix = random.uniform(-1, 1, (N, N))
    a = device.put(matrix @ matrix.T + N * np.eye(N))
    right = random.uniform(-1, 1, N)
    x, r, d = device.zeros(N, "float64"), device.put(right), device.put(right)
    with device.program() as step:
        e, b = step.elementwise, step.blas
        q = b.gemv(a, d)
        before = b.inner(r, r)
        alpha = e.divide(before, b.inner(d, q))
        b.axpy(d, x, alpha=alpha)
        b.axpy(q, r, alpha=e.negative(alpha))
        b.scal(d, alpha=e.divide(b.inner(r, r), before))
        b.axpy(r, d)
    replies = [step.run() for _ in range(N + 5)]
    assert [reply.result() for reply in replies] == [None] * len(replies)
    assert_close(a.numpy() @ x.numpy(), right, "float64", 1000 * N)


def test_a_factor_is_an_array_that_an_earlier_step_has_computed(
    device: atomr_mp.Device, random: np.random.Generator
) -> None:
    """It is read when the step runs, by any request that does not say otherwise; by itself too, from a ref."""
    values = random.uniform(1, 2, (3, N))
    x, y, z = (device.put(value) for value in values)
    with device.program() as p:
        numerator, scale = p.input("numerator", (1, 1), "float64"), p.input("scale", (), "float64")
        alpha = p.elementwise.divide(numerator, p.blas.inner(x, x))
        p.blas.axpy(x, y, alpha=alpha)
        p.blas.scal(z, alpha=scale)
        p.returns(p.blas.gemv(x.reshape(1, N), y, alpha=scale), p.elementwise.negative(scale))
    for given, factor in ((2.5, -1.0), (-0.5, 3.0)):
        expected = values[1] + given / (values[0] @ values[0]) * values[0]
        product, _ = p.run(numerator=np.array([[given]]), scale=np.array(factor)).result()
        values[1], values[2] = expected, values[2] * factor
        assert_close(y.numpy(), values[1], "float64", 2 * N, 8.0)
        assert_close(z.numpy(), values[2], "float64", 2, 8.0)
        assert_close(product.numpy(), [factor * (values[0] @ values[1])], "float64", 4 * N, 16.0)
    two = device.full((1,), 2.0, "float64")
    device.blas.axpy(x, y, alpha=two).result()
    assert_close(y.numpy(), values[1] + 2 * values[0], "float64", 2 * N, 8.0)


def test_what_is_no_factor_is_refused_in_words(device: atomr_mp.Device) -> None:
    """Where it is recorded, or before a request is sent."""
    x, matrix = device.zeros(4), device.zeros((4, 4))
    with device.program() as p:
        y, double = p.empty((4,), "float32"), p.input("double", (1,), "float64")
        p.blas.copy(x, y)
        for alpha, words in (
            (double, "alpha is float64; it must be float32"),
            (y, r"alpha has the shape \(4,\); an array in place of a factor has one element"),
            ("1", "alpha is '1'; it must be a number"),
        ):
            with pytest.raises(errors.InvalidRequest, match=words):
                p.blas.axpy(x, y, alpha=alpha)
        with pytest.raises(errors.BorrowConflict, match="y is written and overlaps alpha"):
            p.blas.axpy(x, y, alpha=y[2:3])
        with pytest.raises(errors.InvalidRequest, match="c must be given: beta multiplies its content"):
            p.blas.gemm(matrix, matrix, beta=y[:1])
        with pytest.raises(errors.InvalidRequest, match=r"reads it on the host, .* and takes no array for it"):
            p.tensor.permutation(matrix, modes_a="ij", modes_b="ji", alpha=y[:1])
        p.returns(y)
    half = device.zeros(4, "float16")
    with pytest.raises(errors.InvalidRequest, match="alpha is float16; it must be float32"):
        device.blas.scal(half, alpha=half[:1])


def test_runs_come_from_several_threads(device: atomr_mp.Device) -> None:
    """Each with inputs and temporaries of its own."""
    with device.program() as p:
        x = p.input("x", (N,), "float64")
        total = p.elementwise.add(x, x)
        for _ in range(20):
            total = p.elementwise.add(total, x)
        p.returns(total)
    wrong: list[float] = []

    def run(number: float) -> None:
        for _ in range(10):
            result = p.run(x=np.full(N, number)).result().numpy()
            if not (result == 22 * number).all():
                wrong.append(number)

    threads = [threading.Thread(target=run, args=(float(number),)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_requests_and_runs_that_share_memory_come_in_order(device: atomr_mp.Device) -> None:
    """A run borrows what it reads and writes, as any request."""
    ref, one = device.zeros((N,), "float64"), device.full((N,), 1.0, "float64")
    with device.program() as p:
        p.elementwise.add(ref, one, ref)
    for _ in range(10):
        p.run()
        device.blas.scal(ref, alpha=2.0)
    assert (ref.numpy() == 2**11 - 2).all()


def test_a_mistake_is_an_error_where_it_is_made(device: atomr_mp.Device) -> None:
    """While it is recorded, or when it is run; nothing is sent."""
    ref = device.zeros((N, N), "float64")
    with device.program() as p:
        x = p.input("x", (N,), "float64")
        with pytest.raises(errors.InvalidRequest, match="k must be the same"):
            p.blas.gemm(ref, ref[:3])
        with pytest.raises(errors.InvalidRequest, match="which no step can"):
            p.blas.nrm2(x)
        with pytest.raises(errors.InvalidRequest, match="no deadline of its own"):
            p.blas.copy(x, deadline_s=1.0)
        with pytest.raises(errors.InvalidRequest, match="is no output"):
            p.returns(ref)
        with pytest.raises(errors.InvalidRequest, match="has an input 'x' already"):
            p.input("x", (1,), "float64")
        with pytest.raises(errors.InvalidRequest, match="not recorded yet"):
            p.run(x=1)
        with pytest.raises(AttributeError, match="a program has no 'memory'"):
            p.memory.fill(x, 1.0)
        p.returns(p.blas.copy(x))
    with pytest.raises(errors.InvalidRequest, match="recorded already"):
        p.blas.copy(x)
    for inputs, message in (
        ({}, "inputs are x; given were none"),
        ({"y": np.zeros(N)}, "inputs are x; given were y"),
        ({"x": np.zeros(N + 1)}, r"input x is float64 of shape \(25,\); the program takes float64 of shape \(24,\)"),
        ({"x": np.zeros(N, "float32")}, "input x is float32"),
        ({"x": ref[:, 0]}, "has strides"),
    ):
        with pytest.raises(errors.InvalidRequest, match=message):
            p.run(**inputs)
    with device.program() as other, pytest.raises(errors.InvalidRequest, match="is no output"):
        other.returns(x)
    np.testing.assert_array_equal(p.run(x=np.arange(N, dtype=float)).result().numpy(), np.arange(N))


def test_a_program_has_limits(device: atomr_mp.Device) -> None:
    """Steps, arrays and bytes where it is recorded; temporaries where they do not fit: the next run is well."""
    with device.program() as p:
        x = p.input("x", (1,), "float64")
        for _ in range(messages.MAX_STEPS):
            p.elementwise.negative(x, x)
        with pytest.raises(errors.InvalidRequest, match=f"at most {messages.MAX_STEPS} steps"):
            p.elementwise.negative(x, x)
    place = device.put(np.ones(1))
    assert p.run(x=place).result() is None
    assert place.numpy() == 1
    p = device.program()
    for _ in range(messages.MAX_SLOTS + 1):
        p.empty((1,), "float64")
    with pytest.raises(errors.InvalidRequest, match=f"arrays; the limit is {messages.MAX_SLOTS}"), p:
        pass
    with device.program() as p:
        small, large = p.input("x", (N,), "float64"), p.empty((2**41,), "float64")
        p.blas.copy(small, large[:N])
        p.returns(p.blas.copy(large[:N]))
    for _ in range(2):
        with pytest.raises(errors.OutOfMemory):
            p.run(x=np.ones(N)).result()
    assert (sums(device, 2).run(x=np.ones(N)).result().numpy() == 3).all()


def test_what_is_sent_past_the_clients_checks_is_refused_by_step(device: atomr_mp.Device) -> None:
    """A slot that is not there, a write that was not declared, views beyond their slot, bytes that are no program."""
    ref = device.zeros((N,), "float64")
    with device.program() as p:
        x = p.input("x", (N,), "float64")
        p.elementwise.add(ref, x, ref)
        p.returns(p.blas.copy(x))
    recorded = p._recorded
    assert recorded is not None
    definition = messages.DEFINITIONS.decode(recorded.program)

    def sent(changed: Any, refs: Any = (ref,), writes: Any = (1,), **more: Any) -> None:
        program = changed if isinstance(changed, bytes) else messages.DEFINITIONS.encode(changed)
        request = messages.RunProgram(program, [np.zeros(N)], list(refs), list(writes), **more)
        device.request("program", request).result()

    replace = msgspec.structs.replace
    sent(definition)
    with pytest.raises(errors.InvalidRequest, match="cannot be decoded"):
        sent(b"\xc1 no program")
    with pytest.raises(
        errors.InvalidRequest, match=r"step 0 \(elementwise.add\): it writes slot 1, which is not among"
    ):
        sent(definition, writes=())
    beyond: list[dict[str, Any]] = [{"writes": (5,)}, {"needs": [5]}, {"fills": (5,)}]
    for more in beyond:
        with pytest.raises(errors.InvalidRequest, match="of 2 slots"):
            sent(definition, **more)
    with pytest.raises(errors.InvalidRequest, match=r"step 0 \(elementwise.add\) reads slot 1, which the program"):
        sent(definition, needs=[0])
    with pytest.raises(errors.InvalidRequest, match="slot 0 is not written as a whole"):
        sent(definition, fills=(0,))
    with pytest.raises(errors.InvalidRequest, match="1 inputs and 1 refs; given were 1 and 0"):
        sent(definition, refs=(), writes=())
    with pytest.raises(errors.InvalidRequest, match="slot 1 does not lie as"):
        sent(definition, refs=(ref[: N // 2],))
    with pytest.raises(errors.InvalidRequest, match="there is no slot 2"):
        sent(replace(definition, temporaries=[]))
    smaller = replace(definition.temporaries[0], shape=(N // 2,))
    with pytest.raises(errors.RequestError, match="step 1"):
        sent(replace(definition, temporaries=[smaller]))
    with pytest.raises(errors.InvalidRequest, match="memory has no requests that can be steps"):
        sent(replace(definition, steps=[replace(definition.steps[0], library="memory", request="statistics")]))
    with pytest.raises(errors.InvalidRequest, match="no request 'nothing'"):
        sent(replace(definition, steps=[replace(definition.steps[0], request="nothing")]))
    with pytest.raises(errors.InvalidRequest, match="only temporaries are returned"):
        sent(replace(definition, returns=[messages.slot(1, messages.anywhere(ref.layout))]))
    sent(definition)


def test_a_known_program_goes_by_its_digest(device: atomr_mp.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the second run on, from threads and from an event loop, which tell the worker once."""
    sent: list[tuple[bytes, bytes, int]] = []
    encode = sending._encode_calls

    def noted(message: Any) -> bytes:
        runs = [msgspec.msgpack.decode(call.body) for call in message.calls if call.method == "program.run"]
        sent.extend((program, digest, place) for program, _, _, _, digest, place, *_ in runs)
        return encode(message)

    monkeypatch.setattr(sending, "_encode_calls", noted)
    p = sums(device, 30)

    async def from_a_loop() -> Any:
        return await p.run(x=np.ones(N))

    for _ in range(2):
        assert (p.run(x=np.ones(N)).result().numpy() == 31).all()
        assert (asyncio.run(from_a_loop()).numpy() == 31).all()
    program, digest, place = sent[0]
    assert (len(program) > 1000, digest) == (True, b"")
    assert sent[1:] == [(b"", messages.digest(program), place)] * 3


def test_a_worker_that_does_not_know_a_program_is_told_it(device: atomr_mp.Device) -> None:
    """No thread or loop notices; large inputs by value are there for the second attempt too."""
    p, large = sums(device, 3), sums(device, 3, n=2**17)

    async def together() -> list[Any]:
        return await asyncio.gather(*[p.run(x=np.full(N, float(number))) for number in range(8)])

    for turn in range(3):
        pretend_told(device, p)
        assert (p.run(x=np.ones(N)).result().numpy() == 4).all()
        pretend_told(device, p)
        results = [each.numpy() for each in asyncio.run(together())]
        np.testing.assert_array_equal(np.array(results), 4.0 * np.arange(8)[:, None] * np.ones(N))
        pretend_told(device, large)
        assert (large.run(x=np.full(2**17, float(turn))).result().numpy() == 4 * turn).all()
    known = pretend_told(device, p)._incarnation
    assert known is not None
    assert len(known.told) < messages.PLACES


def test_what_a_worker_keeps_of_programs_is_bounded(device: atomr_mp.Device, random: np.random.Generator) -> None:
    """Any message of a client names what was sent to that place of its session, or is refused; then nothing has run."""
    programs = [sums(device, steps) for steps in (1, 2, 3)]
    recorded = [cast("RunProgram", each._recorded) for each in programs]
    told = [(each.program, each.writes, each.digest) for each in recorded]
    model: dict[int, int] = {}
    outcomes = set()
    for _ in range(150):
        number, place = int(random.integers(len(told))), int(random.integers(-1, 3))
        kind = random.choice(["whole", "digest", "both", "other", "noise", "cut"])
        definition, digest = told[number][0], told[number][2]
        request = {
            "whole": RunProgram(definition, [np.ones(N)], [], [], b"", place),
            "digest": RunProgram(b"", [np.ones(N)], [], [], digest, place),
            "both": RunProgram(definition, [np.ones(N)], [], [], digest, place),
            "other": RunProgram(definition, [np.ones(N)], [], [], told[number - 1][2], place),
            "noise": RunProgram(b"", [np.ones(N)], [], [], random.bytes(int(random.integers(0, 33))), place),
            "cut": RunProgram(definition[:-1], [np.ones(N)], [], [], b"", place),
        }[kind]
        reply = device._client.submit("program.run", request, device=0, deadline_s=DEADLINE_S)
        error = reply.exception()
        outcomes.add((str(kind), type(error).__name__))
        if kind == "cut" and place >= 0:
            model[place] = -1
        if kind in {"whole", "both"} and place >= 0:
            model[place] = number
        if kind in {"whole", "both"} or (kind == "digest" and model.get(place, -1) == number):
            assert (reply.result().numpy() == number + 2).all()
        else:
            assert isinstance(error, errors.ProgramUnseen | errors.InvalidRequest)
            assert isinstance(error, errors.ProgramUnseen) == (not request.program)
            assert kind == "cut" or not error.maybe_executed
    assert {kind for kind, name in outcomes if name == "NoneType"} == {"whole", "digest", "both"}
    long = RunProgram(bytes(messages.KEPT_BYTES + 1), [], [], [], b"", 0)
    for bad in (long, RunProgram(b"", [], [], [], bytes(33), 0), RunProgram(b"", [], [], [], b"x", messages.PLACES)):
        with pytest.raises(errors.InvalidRequest):
            device._client.submit("program.run", bad, device=0, deadline_s=DEADLINE_S).result()


def test_a_program_outlives_its_worker_but_not_its_refs(backend: str) -> None:
    """After a restart it is prepared anew; refs that it was recorded with are stale."""
    with Ledger() as ledger, ledger.start(backend=backend) as pool:
        device = pool.device(0)
        constant = device.full((N,), 2.0, "float64")
        with device.program() as free:
            x = free.input("x", (N,), "float64")
            free.returns(free.elementwise.add(x, x))
        with device.program() as bound:
            bound.returns(bound.elementwise.add(constant, constant))
        for _ in range(2):  # prepared, and used again
            assert (free.run(x=np.ones(N)).result().numpy() == 2).all()
            assert (bound.run().result().numpy() == 4).all()
        pool.restart(0)
        wait_generation(pool, 2)
        assert (free.run(x=np.ones(N)).result().numpy() == 2).all()
        with pytest.raises((errors.GpuRefStale, errors.GpuRefReleased)):
            bound.run().result()


def test_data_without_a_result_fail_the_run_and_name_the_step(device: atomr_mp.Device) -> None:
    """Also where only the device finds out, when the steps have long been put on the stream; the next run is well."""
    out, seen = device.zeros(4, "int64"), device.zeros(4, "int64")
    with device.program() as p:
        weights = p.input("weights", (2,), "float64")
        p.elementwise.copy(out, seen)
        p.rng.generator(seed=3).choice(weights, out)
    for _ in range(2):
        with pytest.raises(errors.NumericalError, match=r"step 1 \(rng\.choice\): p has a weight") as told:
            p.run(weights=np.array([1.0, -1.0])).result()
        assert (told.value.library, told.value.undefined) == ("rng", "")
        with pytest.raises(errors.GpuRefUndefined, match=r"program\.run"):
            out.numpy()
        with pytest.raises(errors.GpuRefUndefined, match="write all of it, or take it as it is"):
            p.run(weights=np.array([0.0, 1.0])).result()  # its first step reads it
        out.accept()
        assert p.run(weights=np.array([0.0, 1.0])).result() is None
        assert out.numpy().tolist() == [1] * 4


def test_the_status_counts_plans(ledger: Ledger, capsys: pytest.CaptureFixture[str]) -> None:
    """By library: those of other requests, and whether one was there already."""
    with ledger.start(backend="host") as pool:
        device = pool.device(0)
        assert pool.status().devices[0].plans == []
        with device.program() as p:
            p.returns(p.elementwise.negative(p.input("x", (2,), "float32")))
        for _ in range(4):
            p.run(x=np.ones(2, "float32")).result()
        device.rng.poisson(lam=3.0, size=2).result()
        told = {each.library: each for each in pool.status().devices[0].plans}
        assert told == {
            "program": PlanFigures(library="program", misses=1, hits=3, dropped=0, kept=1, engine=None),
            "rng": PlanFigures(library="rng", misses=1, hits=0, dropped=0, kept=1, engine=None),
        }
        assert main(["status", "--run-dir", str(pool.run_dir)]) == 0
        assert "device 0, program: 1 plan, there for 75.0% of 4 requests\n" in capsys.readouterr().out


def test_a_program_without_temporaries_runs_where_one_slab_is_all(ledger: Ledger) -> None:
    """The worker takes none for itself: the caller's has room for the result."""
    with ledger.start(backend="host", memory_bytes=2**26) as pool:
        device = pool.device(0)
        one = device.put(np.ones(4))
        with device.program() as p:
            p.returns(p.elementwise.add(one, one))
        for _ in range(3):
            assert p.run().result(DEADLINE_S).numpy().tolist() == [2.0] * 4
