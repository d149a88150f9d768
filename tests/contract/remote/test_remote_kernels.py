"""Kernels of remote clients: the worker goes by what the supervisor says of a session, not by what a client says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import pytest

import atomr_mp
from atomr_mp import errors
from atomr_mp.cli import main
from atomr_mp.libraries.kernel_module import DeviceKernel
from atomr_mp.remote import keys
from tests import remote as served
from tests.actors.kerneled import NAMES, SOURCE
from tests.support import ACTORS, DEADLINE_S, Ledger

KERNELED: Final = f"{ACTORS}/kerneled.py:Kerneled"


def kernel(device: atomr_mp.Device, module: Any) -> Any:
    """Return what says to be the kernel `bounded` of a module."""
    made = DeviceKernel(module, "bounded", bytes(32), ((0, 8),), "bounded")
    made.__dict__["launch"] = device.kernels.launch
    return made


def launch(device: atomr_mp.Device) -> Any:
    """Launch a kernel."""
    x = device.zeros(4)
    return kernel(device, device.zeros(1, "uint8"))(x, grid=1, block=1, inout=x)


def run(device: atomr_mp.Device) -> Any:
    """Run a program with a launch, as its second step."""
    x, module = device.zeros(4), device.zeros(1, "uint8")
    with device.program() as p:
        y = p.elementwise.add(x, x)
        p.kernels.launch(kernel(device, module), y, grid=1, block=1, inout=y)
        p.returns(y)
    return p.run()


def run_branch(device: atomr_mp.Device) -> Any:
    """Run a program with a launch in the second body of a branch in a loop, which is not done."""
    x, module, flag = device.zeros(4), device.zeros(1, "uint8"), device.full((), 1, "int64")
    with device.program() as p, p.while_(flag, most=1):
        with p.if_(flag):
            p.elementwise.subtract(flag, flag, flag)
        with p.else_():
            p.kernels.launch(kernel(device, module), x, grid=1, block=1, inout=x)
    return p.run()


WAYS: Final[dict[str, Callable[[atomr_mp.Device], Any]]] = {
    "compile": lambda device: device.kernels.compile(SOURCE),
    "load": lambda device: device.kernels.load(b"\x7fELF"),
    "launch": launch,
    "program": run,
    "branch": run_branch,
}


def test_a_remote_client_has_no_kernels_by_default(ledger: Ledger) -> None:
    """Whichever way it asks, though its connection comes from this machine. Local clients have."""
    found = served.serve(ledger, KERNELED)
    with found.pool, found.connect() as remote:
        device = remote.device(0)
        for ask in WAYS.values():
            for _ in range(2):
                with pytest.raises(errors.KernelsForbidden, match="kernels = 'local'") as told:
                    ask(device).result(DEADLINE_S)
                assert not told.value.maybe_executed
        with remote.world([0]) as world:
            with world.program() as p:
                x = p.input("x", (4,), "float32")
                out = p.empty((4,), "float32")
                module = p.refs([device.zeros(1, "uint8")])
                p.kernels.launch(kernel(device, module), out, grid=1, block=1, out=out)
                p.returns(p.world.all_reduce(x))
            with pytest.raises(errors.KernelsForbidden, match=r"step 0 is kernels\.launch"):
                p.run(x=np.ones(4, np.float32)).result(DEADLINE_S)
            with world.program() as other:
                other.returns(other.world.all_reduce(other.input("x", (4,), "float32")))
            other.run(x=np.ones(4, np.float32)).result(DEADLINE_S)
        ones = device.put(np.ones(4, np.float32))
        with device.program() as plain:
            plain.returns(plain.elementwise.add(ones, ones))
        for _ in range(3):
            assert plain.run().result(DEADLINE_S).numpy().tolist() == [2.0] * 4
        local = found.pool.device(0)
        module = local.kernels.compile(SOURCE, names=NAMES).result(DEADLINE_S)
        y = local.put(np.ones(4, np.float32))
        module["scale<float>"](y, 2.0, 4, grid=1, block=4, inout=y)
        assert y.numpy().tolist() == [2.0] * 4
        assert found.pool.status().devices[0].generation == 1


def test_a_remote_client_has_kernels_if_the_pool_says_so(ledger: Ledger) -> None:
    """With kernels = "all"; errors have the lines of its source, which it adds itself."""
    found = served.serve(ledger, KERNELED, kernels="all")
    with found.pool, found.connect() as remote:
        device = remote.device(0)
        module = device.kernels.compile(SOURCE, names=NAMES).result(DEADLINE_S)
        x = device.put(np.ones(4, np.float32))
        module["scale<float>"](x, 3.0, 4, grid=1, block=4, inout=x)
        assert x.numpy().tolist() == [3.0] * 4
        with device.program() as p:
            out = p.empty((4,), "float32")
            p.kernels.launch(module["add"], x, x, out, 4, grid=1, block=4, out=out)
            p.returns(out)
        assert p.run().result(DEADLINE_S).numpy().tolist() == [6.0] * 4
        with device.program() as q:
            flag = q.input("flag", (), "int64")
            with q.if_(flag):
                q.kernels.launch(module["scale<float>"], x, 2.0, 4, grid=1, block=4, inout=x)
            with q.else_():
                q.kernels.launch(module["scale<float>"], x, 5.0, 4, grid=1, block=4, inout=x)
        for given, expected in ((1, 6.0), (0, 30.0)):
            q.run(flag=np.int64(given)).result(DEADLINE_S)
            assert x.numpy().tolist() == [expected] * 4
        with pytest.raises(errors.CompilationFailed) as told:
            device.kernels.compile("int f() { return nothing; }").result(DEADLINE_S)
        assert "int f() { return nothing; }" in told.value.log
        assert found.pool.status().kernels == "all"


def test_a_key_has_kernels_by_name(ledger: Ledger, capsys: pytest.CaptureFixture[str]) -> None:
    """It is admitted so, and shown; other keys, and those of earlier files, have none."""
    found = served.serve(ledger, KERNELED)
    with found.pool:
        pair = keys.new_pair()
        server = keys.read_server(found.keys_dir).public
        content = keys.ClientKeys(name="bob", public=pair.public, secret=pair.secret, server=server)
        keys.write_new(served.key_file(found.keys_dir, "bob"), content)
        where = ["--run-dir", str(found.pool.run_dir), "--keys-dir", str(found.keys_dir)]
        assert main(["keys", "admit", "bob", pair.public, "--kernels", *where]) == 0
        assert main(["keys", "list", *where]) == 0
        shown = capsys.readouterr().out
        assert "bob: call, kernels, weight 1" in shown
        assert "alice: operate, weight 1" in shown
        with found.connect("bob") as bob, found.connect() as alice:
            device = bob.device(0)
            module = device.kernels.compile(SOURCE, names=NAMES).result(DEADLINE_S)
            x = device.put(np.ones(4, np.float32))
            module["scale<float>"](x, 3.0, 4, grid=1, block=4, inout=x)
            assert x.numpy().tolist() == [3.0] * 4
            with pytest.raises(errors.NotAuthorized, match="bob may not give orders"):
                bob.restart(0)
            with pytest.raises(errors.KernelsForbidden, match="keys admit NAME KEY --kernels`; alice was admitted"):
                launch(alice.device(0)).result(DEADLINE_S)


def test_a_key_that_is_named_has_no_kernels_where_nobody_has(ledger: Ledger) -> None:
    """With kernels = "off"; the message says so."""
    directory = served.make_keys(ledger.path)
    served.admit(directory, kernels=True)
    with ledger.start(KERNELED, kernels="off", listen=served.LISTEN, keys_dir=str(directory)) as pool:
        found = served.Served(pool, served.listening(pool), directory)
        with found.connect() as remote, pytest.raises(errors.KernelsForbidden, match="kernels = 'off'"):
            launch(remote.device(0)).result(DEADLINE_S)
