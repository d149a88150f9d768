"""Globals of loaded code: by name and size, read and written in order with launches."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from typing import Any, Final

import msgspec
import numpy as np
import psutil
import pytest

import atomr_mp
from atomr_mp import errors
from atomr_mp.libraries.kernel_module import KernelModule
from atomr_mp.protocol.libraries import kernels
from tests.actors.globalled import NAMES, SOURCE
from tests.support import ACTORS, BACKEND, DEADLINE_S, Ledger, settled, wait_generation

GLOBALLED: Final = f"{ACTORS}/globalled.py:Globalled"


@pytest.fixture(scope="module")
def pool(backend: str) -> Iterator[atomr_mp.Pool]:
    """A pool whose actor has arrays for the globals."""
    with Ledger() as ledger, ledger.start(GLOBALLED, backend=backend, max_restarts=100, backoff_initial_s=0.0) as pool:
        yield pool


@pytest.fixture
def device(pool: atomr_mp.Pool) -> atomr_mp.Device:
    """Its device."""
    pool.wait_ready()
    return pool.device(0)


@pytest.fixture
def module(device: atomr_mp.Device) -> KernelModule:
    """The kernels, with known values of their globals."""
    found: KernelModule = device.kernels.compile(SOURCE, names=NAMES).result(DEADLINE_S)
    found.write("table", np.arange(1, 7, dtype=np.float32)).result(DEADLINE_S)
    found.write("factor", np.float64(0)).result(DEADLINE_S)
    found.write("n::unlike", np.int32(0)).result(DEADLINE_S)
    return found


def test_globals_are_named_with_their_sizes(module: KernelModule) -> None:
    """In the caller's words where it has some; also of constants, whose layout only the caller knows."""
    assert module.globals == {"table": 24, "factor": 8, "n::unlike": 4, "nobody_s": 4}
    assert module.read("table", "float32", (2, 3)).result(DEADLINE_S).numpy().tolist() == [[1, 2, 3], [4, 5, 6]]
    assert module.read("table", np.int64, 3).result(DEADLINE_S).shape == (3,)
    assert module.read("factor", float).result(DEADLINE_S).numpy() == 0.0


def test_what_is_written_is_seen_by_launches(device: atomr_mp.Device, module: KernelModule) -> None:
    """From numbers, arrays and refs; what they write is read."""
    x = device.zeros(6)
    module.write("factor", np.float64(2))
    module["add_table"](x, 0, grid=1, block=6, inout=x)
    assert x.numpy().tolist() == [2, 4, 6, 8, 10, 12]
    module.write("n::unlike", np.int32(-1))
    module.write("table", device.put(np.ones((3, 2), np.float32)))
    module["add_table"](x, 0, grid=1, block=6, inout=x)
    assert x.numpy().tolist() == [3, 5, 7, 9, 11, 13]
    one = device.put(np.ones(1, np.float32))
    module["count"](one, 0, grid=1, block=1)
    assert module.read("table", "float32", 6).result(DEADLINE_S).numpy().tolist() == [2, 1, 1, 1, 1, 1]


def test_they_are_in_order_with_slow_launches(device: atomr_mp.Device, module: KernelModule) -> None:
    """Of another array, in programs, and of another client: each read has all launches before it and none after."""
    one = device.put(np.ones(1, np.float32))
    with device.program() as p:
        x = p.input("x", (1,), "float32")
        p.kernels.launch(module["count"], x, 20, grid=1, block=1)
        p.returns(p.elementwise.add(x, x))
    reads = []
    for number in range(6):
        if number % 2:
            p.run(x=one)
        else:
            module["count"](one, 20, grid=1, block=1)
        reads.append(module.read("table", "float32", 6))
    module["count"](one, 0, grid=1, block=1)
    assert [each.result(DEADLINE_S).numpy()[0] for each in reads] == [2, 3, 4, 5, 6, 7]
    module["count"](one, 20, grid=1, block=1)
    module.write("table", np.zeros(6, np.float32))
    module["count"](one, 0, grid=1, block=1)
    assert module.read("table", "float32", 6).result(DEADLINE_S).numpy()[0] == 1


def test_a_read_that_is_not_done_spoils_nothing(device: atomr_mp.Device, module: KernelModule) -> None:
    """Launches behind it run; those behind a write that is not done do not."""
    one = device.put(np.ones(1, np.float32))
    module["count"](one, 200, grid=1, block=1)
    read = module.read("table", "float32", 6)
    after = module["count"](one, 0, grid=1, block=1)
    read.cancel()
    after.result(DEADLINE_S)
    assert read.exception(DEADLINE_S) is None or isinstance(read.exception(), errors.Cancelled)
    assert module.read("table", "float32", 6).result(DEADLINE_S).numpy()[0] == 3


WRONG: Final[dict[str, tuple[str, Callable[[KernelModule, Any], Any]]]] = {
    "unknown": ("no global 'tabel'.*its globals are: ", lambda m, _: m.read("tabel", "float32")),
    "short": (r"table has 24 bytes; float32 of shape \(5,\) has 20", lambda m, _: m.read("table", "float32", 5)),
    "long": ("the global factor has 8 bytes; 24 bytes are given, as float32", lambda m, x: m.write("factor", x)),
    "a number": ("n::unlike has 4 bytes; 8 bytes are given, as int64", lambda m, _: m.write("n::unlike", 3)),
    "gaps": ("has gaps, or is not row-major", lambda m, x: m.write("table", x.reshape(2, 3).T)),
    "a shape": ("[Ss]hape|length|dimension", lambda m, _: m.read("table", "float32", (2, 3, -1))),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_does_not_fit_is_told_at_once(device: atomr_mp.Device, module: KernelModule, name: str) -> None:
    """In the caller's words."""
    words, ask = WRONG[name]
    with pytest.raises(errors.InvalidRequest, match=words):
        ask(module, device.zeros(6))


def undefined(device: atomr_mp.Device) -> atomr_mp.GpuRef:
    """Return six numbers that a run which was late has left undefined."""
    ref = device.zeros(6, "float32")
    with device.program() as late:
        on = late.input("on", (), "int64")
        with late.while_(on, most=2**40):
            late.elementwise.maximum(on, on, on)
            late.elementwise.add(ref, ref, ref)
    assert isinstance(late.run(on=np.int64(1), deadline_s=0.1).exception(DEADLINE_S), errors.DeadlineExceeded)
    return ref


@contextlib.contextmanager
def standing_still(pool: atomr_mp.Pool) -> Iterator[None]:
    """Stop the worker in the `with` block."""
    pid = pool.devices[0].pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    try:
        assert settled(lambda: psutil.Process(pid).status() == psutil.STATUS_STOPPED)
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def test_a_program_names_the_global_that_a_failed_write_has_left_undefined(
    pool: atomr_mp.Pool, device: atomr_mp.Device, module: KernelModule
) -> None:
    """As a launch does; the caller knows of no buffer that holds it."""
    one = device.put(np.ones(1, np.float32))
    with device.program() as p:
        x = p.input("x", (1,), "float32")
        p.kernels.launch(module["count"], x, 0, grid=1, block=1)
        p.returns(p.elementwise.add(x, x))
    assert p.run(x=one).result(DEADLINE_S).numpy().tolist() == [2.0]  # the worker knows the program
    failed = undefined(device)
    with pytest.raises(errors.GpuRefUndefined):
        failed.numpy()  # by now the worker knows it, too
    with standing_still(pool):  # else the write may be refused before the run is sent, which then goes on
        write = module.write("table", failed)
        run = p.run(x=one)
        with pytest.raises(TimeoutError):
            run.result(0.1)  # it has been sent once somebody waits for it
    with pytest.raises(errors.GpuRefUndefined, match=r"a global of the module of kernel count is undefined, since req"):
        run.result(DEADLINE_S)
    assert isinstance(write.exception(DEADLINE_S), errors.GpuRefUndefined)
    module.write("table", np.zeros(6, np.float32)).result(DEADLINE_S)
    assert p.run(x=one).result(DEADLINE_S).numpy().tolist() == [2.0]


def test_the_worker_checks_them_too(device: atomr_mp.Device, module: KernelModule) -> None:
    """Whatever a client says of them; nothing is undefined by it."""
    ref, x = module._ref, device.zeros(6)
    reads = kernels.ReadGlobal(ref[:0], "table", module.digest, "float32", (6,))  # type: ignore[index]
    writes = kernels.WriteGlobal(ref, "table", module.digest, x)
    for request in (reads, writes):
        for words, changes in (
            ("no global 'sum'", {"variable": "sum"}),
            ("module is not loaded", {"code": bytes(32)}),
            ("module is not loaded", {"module": x[:0] if request is reads else device.zeros(1)}),
        ):
            wrong = msgspec.structs.replace(request, **changes)
            with pytest.raises(errors.InvalidRequest, match=words):
                device.request("kernels", wrong, None).result(DEADLINE_S)
    for wrong in (
        msgspec.structs.replace(reads, shape=(7,)),
        msgspec.structs.replace(writes, source=device.zeros(7)),
    ):
        with pytest.raises(errors.InvalidRequest, match="the global table has 24 bytes, not 28"):
            device.request("kernels", wrong, None).result(DEADLINE_S)
    assert module.read("table", "float32", 6).result(DEADLINE_S).numpy()[0] == 1


def test_what_has_no_array_in_its_place_is_told(module: KernelModule) -> None:
    """The host has no memory of GPUs; nothing is undefined by it."""
    if BACKEND != "host":
        pytest.skip("a GPU has all globals")
    with pytest.raises(errors.Unsupported, match="may have a NumPy array of this name, row-major and of 4 bytes"):
        module.read("nobody_s", "int32").result(DEADLINE_S)
    assert module.read("table", "float32", 6).result(DEADLINE_S).numpy()[0] == 1


def test_programs_have_no_globals_as_steps(device: atomr_mp.Device, module: KernelModule) -> None:
    """They run between reads and writes."""
    p = device.program()
    with pytest.raises(errors.InvalidRequest, match="outside of programs"):
        p.kernels.read_global(module._ref, module.digest, "table", "float32", (6,), None)


def test_an_actor_reads_and_writes_globals(pool: atomr_mp.Pool) -> None:
    """Of code that it has compiled itself."""
    assert pool.call("Globalled.own", SOURCE).result(DEADLINE_S) == [7.0] * 6


def test_a_written_module_is_not_loaded_again_by_itself(pool: atomr_mp.Pool, module: KernelModule) -> None:
    """Its globals have other values in the next worker: the caller hears of that, and renews it."""
    generation = pool.devices[0].generation
    os.kill(pool.devices[0].pid, signal.SIGKILL)
    wait_generation(pool, generation + 1)
    x = pool.device(0).zeros(6)
    with pytest.raises(
        errors.GpuRefStale,
        match=r"module of kernel add_table .* globals were written \(factor, n::unlike, table\).*renew",
    ):
        module["add_table"](x, 0, grid=1, block=6, inout=x).result(DEADLINE_S)
    with pytest.raises(errors.GpuRefStale, match=r"the module was loaded in generation .* has ended.* `renew\(\)`"):
        module.read("table", "float32", 6).result(DEADLINE_S)
    module.renew()
    module["add_table"](x, 0, grid=1, block=6, inout=x).result(DEADLINE_S)
    assert module.read("table", "float32", 6).result(DEADLINE_S).numpy()[0] == 1


def test_each_module_has_globals_of_its_own(pool: atomr_mp.Pool, device: atomr_mp.Device, module: KernelModule) -> None:
    """Of equal code too, and after `renew`: so what another has written is not missed when the worker has ended."""
    one = device.put(np.ones(1, np.float32))

    def table(of: KernelModule) -> Any:
        return of.read("table", "float32", 6).result(DEADLINE_S).numpy().tolist()

    other: KernelModule = device.kernels.compile(SOURCE, names=NAMES).result(DEADLINE_S)
    assert table(other) == [1, 2, 3, 4, 5, 6]
    module.write("table", np.full(6, 8, np.float32)).result(DEADLINE_S)
    other["count"](one, 0, grid=1, block=1)
    assert table(other) == [2, 2, 3, 4, 5, 6]
    module["count"](one, 0, grid=1, block=1)
    assert table(module) == [9, 8, 8, 8, 8, 8]
    assert table(module.renew()) == [1, 2, 3, 4, 5, 6]
    assert table(other) == [2, 2, 3, 4, 5, 6]
    generation = pool.devices[0].generation
    os.kill(pool.devices[0].pid, signal.SIGKILL)
    wait_generation(pool, generation + 1)
    one = device.put(np.ones(1, np.float32))
    other["count"](one, 0, grid=1, block=1).result(DEADLINE_S)
    assert table(other) == [2, 2, 3, 4, 5, 6], "what a kernel has stored is lost"
