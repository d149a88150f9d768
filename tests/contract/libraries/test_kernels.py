"""Kernels of the caller's own through a pool: compiled by NVRTC, launched, in programs, stale, refused."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import msgspec
import numpy as np
import pytest

import atomr_mp
from atomr_mp import errors
from atomr_mp.libraries.kernel_module import DeviceKernel, KernelModule
from atomr_mp.protocol.libraries.kernels import KernelOf
from tests.actors.kerneled import NAMES, SOURCE
from tests.support import ACTORS, BACKEND, DEADLINE_S, Ledger, settled, shared_devices, wait_generation

KERNELED: Final = f"{ACTORS}/kerneled.py:Kerneled"
EMPTY: Final = 'extern "C" __global__ void k() {}'


@pytest.fixture(scope="module")
def pool(backend: str) -> Iterator[atomr_mp.Pool]:
    """A pool whose actor has functions for the kernels."""
    with Ledger() as ledger, ledger.start(KERNELED, backend=backend) as pool:
        yield pool


@pytest.fixture(scope="module")
def device(pool: atomr_mp.Pool) -> atomr_mp.Device:
    """Its device."""
    return pool.device(0)


@pytest.fixture(scope="module")
def module(device: atomr_mp.Device) -> KernelModule:
    """The kernels, compiled."""
    return compiled(device)


def compiled(device: atomr_mp.Device) -> KernelModule:
    """Return the kernels, compiled for a device."""
    found: KernelModule = device.kernels.compile(SOURCE, names=NAMES).result(DEADLINE_S)
    return found


def ones(device: atomr_mp.Device, n: int = 8) -> Any:
    """Return a ref to ones."""
    return device.put(np.ones(n, np.float32))


def test_a_source_is_compiled_and_its_kernels_launched(device: atomr_mp.Device, module: KernelModule) -> None:
    """By name expressions, which instantiate templates, and by plain names; with numbers and structures."""
    assert set(NAMES) | {"add", "unpack", "bounded"} <= set(module)
    x, out, three = ones(device), device.zeros(8), device.zeros(3, "float64")
    module["scale<float>"](x, 3.0, 5, grid=1, block=8, inout=x).result(DEADLINE_S)
    np.testing.assert_array_equal(x.numpy(), [3, 3, 3, 3, 3, 1, 1, 1])
    module["add"](x, x, out, np.int32(8), grid=1, block=8, out=out)
    np.testing.assert_array_equal(out.numpy(), x.numpy() * 2)
    pair = np.array([(-7, 2.5)], np.dtype([("first", "<i4"), ("second", "<f8")], align=True)).tobytes()
    module["unpack"](three, pair, 65, grid=1, block=1, out=[three])
    assert three.numpy().tolist() == [-7.0, 2.5, 65.0]


def test_a_module_is_loaded_from_code_too(device: atomr_mp.Device) -> None:
    """PTX is made machine code before; garbage is refused, and the worker goes on."""
    ptx = """.version 7.8
.target sm_80
.address_size 64
.visible .entry bounded(.param .u64 bounded_param_0) { ret; }
"""
    module = device.kernels.load(ptx).result(DEADLINE_S)
    x = ones(device)
    module["bounded"](x, grid=2, block=8, inout=x).result(DEADLINE_S)
    with pytest.raises(errors.CompilationFailed, match="not linked"):
        device.kernels.load(ptx.replace("ret;", "rot;")).result(DEADLINE_S)
    with pytest.raises(errors.InvalidRequest, match="no CUBIN, or is damaged"):
        device.kernels.load(b"\x7fELF" + os.urandom(200)).result(DEADLINE_S)
    with pytest.raises(errors.InvalidRequest, match="name it as kind"):
        device.kernels.load(b"what is this")


def test_a_launch_is_ordered_with_all_other_uses(device: atomr_mp.Device, module: KernelModule) -> None:
    """What others read is what launches before have written, as large as they may be."""
    n = 2**18
    x = device.put(np.zeros(n, np.float32))
    with device.program() as p:
        y = p.input("y", (n,), "float32")
        twice = p.empty((n,), "float32")
        p.kernels.launch(module["add"], y, y, twice, n, grid=n // 256, block=256, out=twice)
        p.returns(twice)
    for number in range(1, 9):
        device.memory.fill(x, number)
        module["scale<float>"](x, 2.0, n, grid=n // 256, block=256, inout=x)
        summed = device.blas.asum(x)
        result = p.run(y=x)
        device.memory.fill(x, 0)
        assert summed.result(DEADLINE_S) == 2 * number * n
        assert result.result(DEADLINE_S).numpy()[[0, -1]].tolist() == [4 * number] * 2


def test_launches_are_steps_of_programs(device: atomr_mp.Device, module: KernelModule) -> None:
    """Alone and between other libraries' steps, run after run; a module that has gone is refused."""
    x = ones(device)
    with device.program() as p:
        y = p.input("y", (8,), "float32")
        out = p.empty((8,), "float32")
        p.kernels.launch(module["add"], y, x, out, 8, grid=1, block=8, out=out)
        p.kernels.launch(module["scale<float>"], out, 2.0, 8, grid=1, block=8, inout=out)
        p.returns(p.elementwise.add(out, x))
    for number in range(4):
        found = p.run(y=np.full(8, number, np.float32)).result(DEADLINE_S)
        assert found.numpy().tolist() == [2 * (number + 1) + 1] * 8
    p = device.program()
    unwritten = p.empty((8,), "float32")
    with pytest.raises(errors.InvalidRequest, match=r"reads inout\[0\]"):
        p.kernels.launch(module["scale<float>"], unwritten, 2.0, 8, grid=1, block=8, inout=unwritten)
    with pytest.raises(errors.InvalidRequest, match="before the program"):
        p.kernels.compile(EMPTY)


def halving(device: atomr_mp.Device, module: KernelModule, x: Any, *, other: str = "scale<float>") -> Any:
    """Return a program of rounds in which x is halved while its first element is above 1, else multiplied by 3.

    It runs n rounds, and returns how many of them have halved.

    Args:
        device: The device.
        module: The kernels.
        x: A ref to 8 numbers.
        other: The kernel that multiplies.
    """
    one = device.full((), 1, "int64")
    limit = device.full((1,), 1.0)
    with device.program() as p:
        n = p.input("n", (), "int64")
        left, halved, large = p.elementwise.maximum(n, n), p.elementwise.subtract(n, n), p.empty((1,), "bool")
        with p.while_(left, most=100):
            p.elementwise.greater(x[:1], limit, large)
            with p.if_(large):
                p.kernels.launch(module["scale<float>"], x, 0.5, 8, grid=1, block=8, inout=x)
                p.elementwise.add(halved, one, halved)
            with p.else_():
                arguments = (x, 3.0, 8) if other == "scale<float>" else (x,)
                p.kernels.launch(module[other], *arguments, grid=1, block=8, inout=x)
            p.elementwise.subtract(left, one, left)
        p.returns(halved)
    return p


def test_launches_are_steps_of_branches_and_loops(device: atomr_mp.Device, module: KernelModule) -> None:
    """Each does its part as often as its body is done, in order with all other uses of what it writes."""
    x = device.put(np.full(8, 5, np.float32))
    p, value = halving(device, module, x), np.float32(5)
    for rounds in (0, 1, 7, 30):
        found = p.run(n=np.int64(rounds))
        largest = device.elementwise.maximum(x, x)
        expected = 0
        for _ in range(rounds):
            expected += bool(value > 1)
            value *= np.float32(0.5 if value > 1 else 3.0)
        assert largest.result(DEADLINE_S).numpy().tolist() == [value] * 8
        assert int(found.result(DEADLINE_S).numpy()) == expected


def test_a_launch_in_a_body_is_checked_as_elsewhere(device: atomr_mp.Device, module: KernelModule) -> None:
    """By the client when it is recorded, by the worker when its body is done: the step is named."""
    x = ones(device)
    middle = x[2:6]
    with device.program() as p:
        flag = p.input("flag", (), "bool")
        with p.if_(flag):
            p.elementwise.add(x, x, x)
        with p.else_():
            with pytest.raises(errors.InvalidRequest, match="add has 4 parameters; 1 argument given"):
                p.kernels.launch(module["add"], x, grid=1, block=1)
            with pytest.raises(errors.BorrowConflict, match=r"out\[0\] is written and overlaps inputs\[0\]"):
                p.kernels.launch(module["add"], x[:4], x[4:], middle, 4, grid=1, block=4, out=middle)
            with pytest.raises(errors.InvalidRequest, match="2048 threads; at most 1024"):
                p.kernels.launch(module["bounded"], x, grid=1, block=(1024, 2), inout=x)
            p.kernels.launch(module["bounded"], x, grid=1, block=256, inout=x)
    assert p.run(flag=np.True_).result(DEADLINE_S) is None
    assert x.numpy().tolist() == [2.0] * 8
    with pytest.raises(errors.InvalidRequest, match=r"step 1 \(kernels.launch\): .*compiled for at most 128"):
        p.run(flag=np.False_).result(DEADLINE_S)
    with pytest.raises(errors.GpuRefUndefined):
        x.numpy()
    if BACKEND == "host":
        x = device.put(np.full(8, 0.25, np.float32))
        with pytest.raises(errors.Unsupported, match=r"step 5 \(kernels.launch\): .*an actor may register"):
            halving(device, module, x, other="nobodys").run(n=np.int64(1)).result(DEADLINE_S)


def test_what_both_bodies_launch_is_written_behind_them(device: atomr_mp.Device, module: KernelModule) -> None:
    """So a ref that was undefined is well again, and an output need not be cleared."""
    x, place = ones(device), ones(device)
    with device.program() as bad:
        bad.kernels.launch(module["bounded"], place, grid=1, block=256, inout=place)
    with pytest.raises(errors.InvalidRequest):
        bad.run().result(DEADLINE_S)
    with pytest.raises(errors.GpuRefUndefined):
        place.numpy()
    with device.program() as p:
        flag = p.input("flag", (), "int64")
        with p.if_(flag):
            p.kernels.launch(module["add"], x, x, place, 8, grid=1, block=8, out=place)
        with p.else_():
            p.elementwise.add(x[:4], x[4:], place[:4])
            p.elementwise.subtract(x[:4], x[4:], place[4:])
    for number, expected in ((0, [2.0] * 4 + [0.0] * 4), (1, [2.0] * 8)):
        p.run(flag=np.int64(number)).result(DEADLINE_S)
        assert place.numpy().tolist() == expected


def flipped(launches: Any, flip: Any, x: Any, out: Any) -> Any:
    """Launch a kernel with maps of an array that it reads and one that it writes; `launches` are a library's."""
    from_ = launches.tensor_map(x, box=(4, 16), swizzle="64B")
    to = launches.tensor_map(out, box=(4, 16))
    return launches.launch(flip, from_, to, 2, grid=1, block=1, inout=to)


@pytest.mark.skipif(BACKEND != "host", reason="the kernel itself does nothing")
def test_tensor_maps_are_arguments(device: atomr_mp.Device, module: KernelModule) -> None:
    """Of refs, views, and arrays of programs, also in a branch; in order with all other uses of their arrays."""
    value = np.arange(8 * 64, dtype=np.float32).reshape(8, 64)
    expected = np.zeros_like(value)
    expected[:4, :32] = value[3::-1, :32]
    x, out = device.put(value), device.zeros((8, 64))
    flipped(device.kernels, module["flip"], x, out)
    device.memory.fill(x, 0)
    np.testing.assert_array_equal(out.numpy(), expected)
    x = device.put(value)
    wide = device.zeros((8, 128))
    flipped(device.kernels, module["flip"], x, wide[:, 64:])
    np.testing.assert_array_equal(wide.numpy(), np.hstack([np.zeros_like(value), expected]))
    with device.program() as p:
        given, flag = p.input("x", (8, 64), "float32"), p.input("flag", (), "bool")
        made = p.elementwise.subtract(given, given)
        with p.if_(flag):
            flipped(p.kernels, module["flip"], given, made)
        with p.else_():
            flipped(p.kernels, module["flip"], x, made)
        p.returns(made)
    zeros = device.zeros((9, 64))
    for taken, of_x in ((True, zeros[1:]), (False, zeros[:8]), (True, value)):
        found = p.run(x=of_x, flag=np.array(taken)).result(DEADLINE_S).numpy()
        np.testing.assert_array_equal(found, expected * (of_x is value or not taken))


@pytest.mark.skipif(BACKEND != "host", reason="the kernel itself does nothing")
def test_an_actor_and_a_world_have_tensor_maps_too(ledger: Ledger) -> None:
    """Of the actor's own arrays, and of a ref for each rank."""
    value = np.arange(8 * 64, dtype=np.float32).reshape(8, 64)
    with ledger.start(KERNELED, **shared_devices(2)) as pool, pool.world([0, 1]) as world:
        once, twice = pool.call("Kerneled.flip_here", value).result(DEADLINE_S)
        np.testing.assert_array_equal(np.asarray(once)[:4, :16], value[3::-1, :16])
        np.testing.assert_array_equal(np.asarray(twice)[:4, :16], value[:4, :16])
        devices = [pool.device(number) for number in range(2)]
        modules = [compiled(each) for each in devices]
        with world.program() as p:
            x, naming = p.input("x", (8, 64), "float32"), p.refs([each["flip"].module for each in modules])
            out = p.refs(outs := [each.zeros((8, 64)) for each in devices])
            flip = modules[0]["flip"]
            flipped(p.kernels, KernelOf(naming, flip.name, flip.code, flip.parameters), x, out)
            p.world.all_reduce(out, out=out)
        p.run(x=value).result(DEADLINE_S)
        for each in outs:
            np.testing.assert_array_equal(each.numpy()[:4, :32], 2 * value[3::-1, :32])


@pytest.mark.skipif(BACKEND != "host", reason="the kernel itself does nothing")
def test_a_map_of_an_input_that_lies_oddly_is_refused_by_its_run(device: atomr_mp.Device, module: KernelModule) -> None:
    """Only a run knows where it lies; the step is named, and another run is well."""
    out = device.zeros((8, 64))
    room = device.zeros(8 * 64 + 1)
    with device.program() as p:
        x = p.input("x", (8, 64), "float32")
        flipped(p.kernels, module["flip"], x, out)
    with pytest.raises(
        errors.InvalidRequest, match=r"step 0 \(kernels.launch\): argument 0 of flip, a tensor map: .*4 bytes"
    ):
        p.run(x=room[1:].reshape(8, 64)).result(DEADLINE_S)
    p.run(x=room[:-1].reshape(8, 64)).result(DEADLINE_S)
    with pytest.raises(errors.InvalidRequest, match="argument 0 of flip is an array, whose address has 8 bytes"):
        module["flip"](out, out, 1, grid=1, block=1)
    of_out = device.kernels.tensor_map(out, box=(4, 16))
    with pytest.raises(errors.InvalidRequest, match=r"argument 0 of bounded is a tensor map, .*__grid_constant__"):
        module["bounded"](of_out, grid=1, block=1, inout=of_out)
    with pytest.raises(errors.BorrowConflict, match=r"inout\[0\] is written and overlaps inputs\[0\]"):
        flipped(device.kernels, module["flip"], out[:7], out)


def test_each_rank_of_a_world_launches_in_its_own_branch(ledger: Ledger) -> None:
    """With kernels that each device has loaded; between collectives, by each rank's own condition."""
    with ledger.start(KERNELED, **shared_devices(2)) as pool, pool.world([0, 1]) as world:
        devices = [pool.device(number) for number in range(2)]
        modules = [compiled(each) for each in devices]
        flags = [each.full((), value, "int64") for each, value in zip(devices, (0, 1), strict=True)]
        refs = [each.put(np.full(8, 2, np.float32)) for each in devices]
        first = modules[0]["scale<float>"]
        with world.program() as p:
            naming = p.refs([each["scale<float>"].module for each in modules])
            flag, x = p.refs(flags), p.refs(refs)
            kernel = KernelOf(naming, first.name, first.code, first.parameters)
            with p.if_(flag):
                p.kernels.launch(kernel, x, 5.0, 8, grid=1, block=8, inout=x)
            with p.else_():
                p.kernels.launch(kernel, x, 3.0, 4, grid=1, block=8, inout=x)
                with pytest.raises(errors.InvalidRequest, match="is in the body of an else_: ranks whose conditions"):
                    p.world.all_reduce(x)
            p.returns(p.world.all_reduce(x))
        for factor in (1, 2):
            expected = [2 * (3.0**factor + 5.0**factor)] * 4 + [2 * (1 + 5.0**factor)] * 4
            for each in p.run().result(DEADLINE_S):
                assert each.numpy().tolist() == expected


WRONG: Final[dict[str, tuple[str, Callable[[Any, Any, Any], Any]]]] = {
    "too few": (r"add has 4 parameters; 1 argument given", lambda m, x, _: m["add"](x, grid=1, block=1)),
    "a wide number": (
        r"argument 1 of scale<float> is np.float64\(2.0\), a float64 of 8 bytes; its parameter has 4",
        lambda m, x, _: m["scale<float>"](x, np.float64(2), 1, grid=1, block=1, inout=x),
    ),
    "a large number": (
        "is 4294967296, and its parameter has 4 bytes, which hold whole numbers from -2147483648 to 4294967295",
        lambda m, x, _: m["scale<float>"](x, 2.0, 2**32, grid=1, block=1, inout=x),
    ),
    "a ref for a number": (
        "argument 2 of scale<float> is an array, whose address has 8 bytes; its parameter has 4 bytes",
        lambda m, x, _: m["scale<float>"](x, 2.0, x, grid=1, block=1, inout=x),
    ),
    "an array of the client's": (
        "`Device.put` makes a ref",
        lambda m, _, __: m["bounded"](np.ones(3), grid=1, block=1),
    ),
    "a text": ("is of type str", lambda m, _, __: m["bounded"]("x", grid=1, block=1)),
    "a short structure": (
        "argument 1 of unpack is bytes of 3 bytes; its parameter has 16 bytes",
        lambda m, x, _: m["unpack"](x, b"abc", 1, grid=1, block=1, out=x),
    ),
    "an output elsewhere": (
        "out of bounded names what is none of the arrays",
        lambda m, x, y: m["bounded"](x, grid=1, block=1, out=y),
    ),
    "both": ("named in out and in inout", lambda m, x, _: m["bounded"](x, grid=1, block=1, out=x, inout=x)),
    "a large grid": ("y may be at most 65535", lambda m, x, _: m["bounded"](x, grid=(1, 65536), block=1, out=x)),
    "a truth value for a length": (
        "grid is True; it must be a whole number",
        lambda m, x, _: m["bounded"](x, grid=True, block=1, out=x),
    ),
    "no grid": ("lengths of at least 1", lambda m, x, _: m["bounded"](x, grid=0, block=1, out=x)),
    "a large block": ("2048 threads; at most 1024", lambda m, x, _: m["bounded"](x, grid=1, block=(1024, 2), out=x)),
    "a deep block": ("z may be at most 64", lambda m, x, _: m["bounded"](x, grid=1, block=(1, 1, 65), out=x)),
    "an odd cluster": ("must be a multiple", lambda m, x, _: m["bounded"](x, grid=3, block=1, cluster=2, out=x)),
    "a large cluster": ("at most 8", lambda m, x, _: m["bounded"](x, grid=32, block=1, cluster=16, out=x)),
    "no truth value": (
        "cooperative is 'no'; it must be True or False",
        lambda m, x, _: m["bounded"](x, grid=1, block=1, cooperative="no", out=x),
    ),
    "a number for a truth value": (
        "cooperative is 1; it must be True or False",
        lambda m, x, _: m["bounded"](x, grid=1, block=1, cooperative=1, out=x),
    ),
    "shared": ("shared", lambda m, x, _: m["bounded"](x, grid=1, block=1, shared=2**30, out=x)),
    "no kernel": (
        "a str is given for a kernel",
        lambda m, x, _: m["add"].__dict__["launch"]("add", x, grid=1, block=1),
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_told_before_anything_is_sent(
    device: atomr_mp.Device, module: KernelModule, case: str
) -> None:
    """In the caller's words."""
    words, launch = WRONG[case]
    x = ones(device)
    with pytest.raises(errors.InvalidRequest, match=words):
        launch(module, x, ones(device))
    assert x.numpy().tolist() == [1.0] * 8


def test_what_overlaps_is_refused(device: atomr_mp.Device, module: KernelModule) -> None:
    """An output that is an input under another ref."""
    x = ones(device)
    left, other = x[:4], x[2:6]
    with pytest.raises(errors.BorrowConflict, match=r"out\[0\] is written and overlaps inputs\[\d\]"):
        module["add"](left, left, other, 4, grid=1, block=4, out=other)


def test_what_only_the_worker_knows_is_refused_there(device: atomr_mp.Device, module: KernelModule) -> None:
    """Its own knowledge of the code counts, not what a request says; what should be written stays as it is."""
    x = ones(device)

    def refused(words: str, kernel: Any, *arguments: Any, **sizes: Any) -> None:
        with pytest.raises(errors.InvalidRequest, match=words) as told:
            device.kernels.launch(kernel, *arguments, **({"grid": 1, "block": 1} | sizes), inout=x).result(DEADLINE_S)
        assert not told.value.maybe_executed
        assert x.numpy().tolist() == [1.0] * 8

    bounded: DeviceKernel = module["bounded"]
    refused("compiled for at most 128", bounded, x, block=256)
    replaced = msgspec.structs.replace
    refused("no kernel 'sum' of this code", replaced(bounded, name="sum", shown=""), x)
    refused("no kernel 'bounded' of this code", replaced(bounded, code=bytes(32)), x)
    refused("is said to have the parameters", replaced(bounded, parameters=((0, 8), (8, 4))), x, 1)
    refused("names no loaded module", replaced(bounded, module=ones(device)), x)
    if BACKEND == "host":
        with pytest.raises(errors.Unsupported, match="an actor may register a NumPy function") as told:
            module["nobodys"](x, grid=1, block=1, inout=x).result(DEADLINE_S)
        assert not told.value.maybe_executed
        assert x.numpy().tolist() == [1.0] * 8


def test_an_error_of_the_source_is_told_with_its_line(device: atomr_mp.Device) -> None:
    """In the source and in a header; by the reply, its exception, and `await`."""
    source = '#include "more.h"\nextern "C" __global__ void k(float* x) {\n    x[0] = wrong + more;\n}'
    reply = device.kernels.compile(source, headers={"more.h": "const int more = nothing;\n"})
    with pytest.raises(errors.CompilationFailed, match=r"kernel.cu\(3\): error|more.h\(1\): error") as told:
        reply.result(DEADLINE_S)
    for log in (told.value.log, getattr(reply.exception(), "log", "")):
        assert 'kernel.cu(3): error: identifier "wrong" is undefined\n    x[0] = wrong + more;' in log
        assert 'more.h(1): error: identifier "nothing" is undefined\n    const int more = nothing;' in log

    async def ask() -> str:
        try:
            await device.kernels.compile(source)
        except errors.CompilationFailed as error:
            return error.log
        return ""

    assert "more.h" in asyncio.run(ask())


def test_a_large_source_is_looked_at_elsewhere(device: atomr_mp.Device) -> None:
    """With the same outcomes."""
    large = EMPTY + "//" + "x" * 2**19
    assert "k" in device.kernels.compile(large).result(DEADLINE_S)
    with pytest.raises(errors.Unsupported, match="it is not one of those"):
        device.kernels.compile(large, options=["--run=rm"]).result(DEADLINE_S)
    with pytest.raises(errors.CompilationFailed):
        device.kernels.compile(f"{large}\nwrong").result(DEADLINE_S)
    with pytest.raises(errors.InvalidRequest, match="source"):
        device.kernels.compile("x" * (4 * 2**20 + 1))
    with pytest.raises(errors.CompilationFailed):
        device.kernels.load(b".version 7.8\n.target sm_80\n.address_size 64\n" + b"x" * 2**19).result(DEADLINE_S)


@pytest.mark.parametrize(
    ("words", "given"),
    [
        ("files are not read", {"options": ["--include-path=/etc"]}),
        ("it is not one of those", {"options": ["--run=rm"]}),
        ("is not a name such as", {"arch": "sm_x"}),
        ("name a real one", {"arch": "compute_90"}),
        ("is not a name of a file", {"headers": {"../x.h": ""}}),
        ("is not a name expression", {"names": ["a\nb"]}),
    ],
)
def test_what_cannot_be_asked_of_the_compiler_is_told(
    device: atomr_mp.Device, words: str, given: dict[str, Any]
) -> None:
    """Before a process is started for it."""
    with pytest.raises(errors.RequestError, match=words) as told:
        device.kernels.compile(EMPTY, **given).result(DEADLINE_S)
    assert not told.value.maybe_executed


def test_a_module_lives_as_long_as_something_of_it(ledger: Ledger, backend: str) -> None:
    """A kernel keeps it; after the last reference its buffer has gone; after the worker's end it is stale."""
    with ledger.start(KERNELED, backend=backend, max_restarts=100, backoff_initial_s=0.0) as pool:
        device = pool.device(0)
        add = compiled(device)["add"]
        x, out = ones(device), device.zeros(8)
        gc.collect()
        add(x, x, out, 8, grid=1, block=8, out=out).result(DEADLINE_S)
        del add
        gc.collect()
        module = compiled(device)
        os.kill(pool.call("Kerneled.pid").result(DEADLINE_S), signal.SIGKILL)
        wait_generation(pool, 2)
        with pytest.raises(errors.GpuRefStale):
            module["add"](x, x, out, 8, grid=1, block=8, out=out)


def test_a_module_is_unloaded_with_its_last_reference(ledger: Ledger, backend: str) -> None:
    """A kernel's, a program's that has been run, a running launch's; or with its client. A graph of it is one too."""
    with ledger.start(KERNELED, backend=backend) as pool:

        def loaded() -> int:
            found: int = pool.call("Kerneled.modules").result(DEADLINE_S)
            return found

        device = pool.device(0)
        kernels = compiled(device)["scale<float>"]
        assert loaded() == 1
        x = ones(device)
        with device.program() as p:
            p.kernels.launch(kernels, x, 2.0, 8, grid=1, block=8, inout=x)
        for _ in range(3):
            p.run().result(DEADLINE_S)
        del kernels
        gc.collect()
        assert loaded() == 1
        p.run().result(DEADLINE_S)
        assert x.numpy().tolist() == [16.0] * 8
        del p
        gc.collect()
        device.zeros(1)
        in_graphs = 0 if backend == "host" else 1
        assert settled(lambda: loaded() == in_graphs)
        wait = compiled(device)["wait"]
        launched = wait(x, 300, grid=1, block=1, inout=x)
        del wait
        gc.collect()
        launched.result(DEADLINE_S)
        assert x.numpy()[0] == 300 or backend == "cuda"
        assert settled(lambda: loaded() == in_graphs)
        with atomr_mp.connect(run_dir=pool.run_dir) as other:
            held = compiled(other.device(0))
            assert loaded() == in_graphs + 1
        assert settled(lambda: loaded() == in_graphs)
        del held


def test_a_kernel_loads_itself_into_the_next_worker(ledger: Ledger, backend: str) -> None:
    """From its own copy of the code, once however many threads launch it; a program is recorded anew."""
    with ledger.start(KERNELED, backend=backend, max_restarts=100, backoff_initial_s=0.0) as pool:
        device = pool.device(0)
        module = compiled(device)
        for generation in range(2, 5):
            os.kill(pool.call("Kerneled.pid").result(DEADLINE_S), signal.SIGKILL)
            wait_generation(pool, generation)
            x = ones(device)
            with ThreadPoolExecutor(8) as threads:
                launches = [
                    threads.submit(module["scale<float>"], x, 2.0, 8, grid=1, block=8, inout=x) for _ in range(8)
                ]
                for each in launches:
                    each.result(DEADLINE_S).result(DEADLINE_S)
            assert x.numpy().tolist() == [2.0**8] * 8
        with device.program() as doubled:
            y = doubled.input("y", (8,), "float32")
            z = doubled.elementwise.add(y, y)
            doubled.kernels.launch(module["scale<float>"], z, 2.0, 8, grid=1, block=8, inout=z)
            doubled.returns(z)
        os.kill(pool.call("Kerneled.pid").result(DEADLINE_S), signal.SIGKILL)
        wait_generation(pool, 5)
        with pytest.raises(errors.GpuRefStale, match=r"step 1 launches scale<float>, whose module .*renew.*record"):
            doubled.run(y=np.ones(8, np.float32)).result(DEADLINE_S)
        x, add = ones(device), module.renew()["add"]
        with device.program() as p:
            out = p.empty((8,), "float32")
            p.kernels.launch(add, x, x, out, 8, grid=1, block=8, out=out)
            p.returns(out)
        assert p.run().result(DEADLINE_S).numpy().tolist() == [2.0] * 8


def test_another_client_launches_a_module_that_it_is_given(pool: atomr_mp.Pool, module: KernelModule) -> None:
    """Each session is its own; what one has loaded another does not unload."""
    with atomr_mp.connect(run_dir=pool.run_dir) as other:
        device = other.device(0)
        theirs = compiled(device)
        x = ones(device)
        theirs["scale<float>"](x, 2.0, 8, grid=1, block=8, inout=x)
        assert x.numpy().tolist() == [2.0] * 8
    assert "add" in module
    x = ones(pool.device(0))
    module["scale<float>"](x, 2.0, 8, grid=1, block=8, inout=x)
    assert x.numpy().tolist() == [2.0] * 8


def test_an_actor_has_kernels_too(pool: atomr_mp.Pool) -> None:
    """It compiles, launches, and runs programs with launches."""
    found = pool.call("Kerneled.add_here", np.full(4, 2, np.float32), np.full(4, 3, np.float32)).result(DEADLINE_S)
    assert np.asarray(found).tolist() == [10.0] * 4
    if BACKEND == "host":
        for flag, factor in ((True, 2), (False, 3)):
            found = pool.call("Kerneled.scale_here", np.ones(4, np.float32), flag).result(DEADLINE_S)
            assert np.asarray(found).tolist() == [factor] * 4


def test_with_kernels_off_nobody_has_any(ledger: Ledger, backend: str) -> None:
    """But actors, which the pool's owner has chosen; the status says so."""
    with ledger.start(KERNELED, backend=backend, kernels="off") as pool:
        device = pool.device(0)
        for ask in (device.kernels.compile(EMPTY), device.kernels.load(b"\x7fELF")):
            with pytest.raises(errors.KernelsForbidden, match="kernels = 'off'") as told:
                ask.result(DEADLINE_S)
            assert not told.value.maybe_executed
        assert pool.status().kernels == "off"
        arrays = np.ones(4, np.float32), np.ones(4, np.float32)
        assert np.asarray(pool.call("Kerneled.add_here", *arrays).result(DEADLINE_S)).tolist() == [4.0] * 4


def test_one_kernel_may_have_several_names(device: atomr_mp.Device) -> None:
    """All of them are there, and after the worker's end too."""
    source = "template <class T> __global__ void g(T* x) { *x = 1; }\ntypedef int I; template __global__ void g(I*);"
    names = ["g<I>", "g<int>", "&g< int >"]
    module = device.kernels.compile(source, names=names).result(DEADLINE_S)
    assert [each in module for each in names] == [True] * 3
    assert len({module[each].name for each in names}) == 1
    assert [module[each].title for each in names] == names


def test_an_unknown_name_is_told_as_one_of_names(device: atomr_mp.Device) -> None:
    """The compiler's message names a file of its own."""
    with pytest.raises(errors.CompilationFailed, match="`names` has 'nothere < int >', which is no kernel's"):
        device.kernels.compile(EMPTY, names=["k", "nothere<int>"]).result(DEADLINE_S)


@pytest.mark.parametrize(
    ("words", "given"),
    [
        (r"names is of type str; it must be a list of texts, such as \['scale<float>'\]", {"names": "f<float>"}),
        ("names is of type NoneType", {"names": None}),
        ("names has a int", {"names": [7]}),
        ("options is of type str; it must be a list", {"options": "-G"}),
        ("headers is of type list; it must be a mapping", {"headers": ["a.h"]}),
    ],
)
def test_a_text_in_place_of_several_is_told(device: atomr_mp.Device, words: str, given: dict[str, Any]) -> None:
    """It is not taken letter by letter."""
    with pytest.raises(errors.InvalidRequest, match=words):
        device.kernels.compile(EMPTY, **given)
    if "options" in given:
        with pytest.raises(errors.InvalidRequest, match=words):
            device.kernels.load([b"\x7fELF"], **given)


def test_an_equal_view_names_what_is_written(device: atomr_mp.Device, module: KernelModule) -> None:
    """It need not be the object that is the argument."""
    x = ones(device)
    module["scale<float>"](x[2:], 3.0, 2, grid=1, block=2, inout=x[2:]).result(DEADLINE_S)
    assert x.numpy().tolist() == [1, 1, 3, 3, 1, 1, 1, 1]
    with pytest.raises(errors.InvalidRequest, match="nor an equal view"):
        module["scale<float>"](x[2:], 3.0, 2, grid=1, block=2, inout=x[3:])


def test_a_kernel_of_another_device_is_told(ledger: Ledger) -> None:
    """Alone and as a step, with that device."""
    with ledger.start(KERNELED, **shared_devices(2)) as pool:
        scale, here = compiled(pool.device(0))["scale<float>"], pool.device(1)
        x, y = ones(here), ones(here)
        with here.program() as p:
            p.kernels.launch(scale, x, 2.0, 8, grid=1, block=8, inout=x)
        for reply in (here.kernels.launch(scale, y, 2.0, 8, grid=1, block=8, inout=y), p.run()):
            with pytest.raises(
                errors.GpuRefWrongDevice, match="scale<float> is of device 0, and is launched on another"
            ):
                reply.result(DEADLINE_S)


@pytest.mark.skipif(BACKEND != "host", reason="a GPU runs the kernel")
def test_the_kernel_is_named_whose_function_raises(device: atomr_mp.Device) -> None:
    """Alone, and as a step with its number; the message about an array to be read says `inout`."""
    faulty = device.kernels.compile('extern "C" __global__ void faulty(float* x) {}').result(DEADLINE_S)["faulty"]
    x = ones(device)
    with pytest.raises(errors.ActorFailed, match=r"kernel faulty raised ValueError.*read-only.*`inout` names") as told:
        faulty(x, grid=1, block=1).result(DEADLINE_S)
    assert told.value.exception == "builtins.ValueError"
    assert "x[0] = 1" in told.value.traceback_text
    with device.program() as p:
        y = p.elementwise.add(x, x)
        p.kernels.launch(faulty, y, grid=1, block=1, inout=y)
    with pytest.raises(
        errors.ActorFailed, match=r"step 1 \(kernels.launch\): .* kernel faulty raised KeyError: 'mine'"
    ):
        p.run().result(DEADLINE_S)


@pytest.mark.skipif(BACKEND != "host", reason="a GPU runs the kernel")
def test_a_function_that_only_begins_fails_its_launch(device: atomr_mp.Device) -> None:
    """A generator that it returns is never run."""
    deferred = device.kernels.compile(EMPTY.replace("k()", "deferred(float* x)")).result(DEADLINE_S)["deferred"]
    x = ones(device)
    with pytest.raises(errors.ActorFailed, match="kernel deferred raised TypeError: it has returned a generator"):
        deferred(x, grid=1, block=1, inout=x).result(DEADLINE_S)


@pytest.mark.skipif(BACKEND != "host", reason="a GPU runs the kernel")
def test_a_function_for_a_kernel_never_holds_the_loop(device: atomr_mp.Device) -> None:
    """It may take long, however small its arrays are: alone, and in a program without branches and loops."""
    which = device.kernels.compile(EMPTY.replace("k()", "which(float* x)")).result(DEADLINE_S)["which"]
    x = ones(device)
    which(x, grid=1, block=1, inout=x)
    with device.program() as p:
        y = p.elementwise.negative(x)
        p.kernels.launch(which, y, grid=1, block=1, inout=y)
        p.returns(y)
    assert [x.numpy()[0], p.run().result(DEADLINE_S).numpy()[0]] == [0, 0]
