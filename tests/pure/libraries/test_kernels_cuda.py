"""The CUDA actor of kernels on a stand-in for the driver: what it loads and launches, and what it refuses before."""

from __future__ import annotations

import gc
import struct
from types import SimpleNamespace
from typing import Any, Final
from unittest import mock

import msgspec
import numpy as np
import pytest
from cuda.bindings import driver as real

from atomr_mp import errors
from atomr_mp.protocol.layout import Layout
from atomr_mp.protocol.libraries.kernels import KernelLaunch, KernelOf
from atomr_mp.protocol.libraries.tensor_maps import TensorMapOf
from atomr_mp_workers.libraries.kernels.images import KernelImage
from atomr_mp_workers.libraries.kernels.modules import LoadedModule
from atomr_mp_workers.libraries.kernels.service import ReadCode
from tests.direct import on_stand_ins
from tests.fakes.fake_cublas import AddressedArray
from tests.fakes.fake_kernel_driver import DriverError, FakeKernelDriver, stand_ins
from tests.pure.libraries.test_sparse import ACTOR
from tests.support import settled

STREAM: Final = 0x77
SIZES: Final = {"axpy": ((0, 8), (8, 4), (16, 8)), "bare": (), "mapped": ((0, 128), (128, 8), (192, 128))}
CODE: Final = ReadCode(
    b"code", bytes(32), {name: KernelImage(name, sizes, 0) for name, sizes in SIZES.items()}, {}, "", ""
)


class FakeStream:
    """A stream of CuPy's."""

    def __init__(self) -> None:
        self.waited = 0
        self.stream = SimpleNamespace(ptr=STREAM, synchronize=self._wait)

    def _wait(self) -> None:
        self.waited += 1


class Actor:
    """The CUDA actor."""

    def __init__(self, capability: int = 90) -> None:
        self.driver: Final = FakeKernelDriver(dict(SIZES), capability)
        self.stream: Final = FakeStream()
        module = on_stand_ins(mock.patch.dict("sys.modules", stand_ins()), ("kernels.cuda",))
        vars(module)["driver"] = self.driver
        self.module: Final = module
        self.kernels: Final = module.Implementation(ACTOR.context, self.stream)

    def load(self, read: ReadCode = CODE) -> LoadedModule:
        """Load code."""
        found: LoadedModule = self.kernels._loaded(read)
        return found

    def launch(self, module: LoadedModule, name: str = "axpy", **changes: Any) -> Any:
        """Launch a kernel of a module."""
        naming = AddressedArray(Layout.contiguous("uint8", (1,)))
        naming.__dict__["attached"] = module
        x, y = (AddressedArray(Layout.contiguous("float32", (4,))) for _ in range(2))
        request = KernelLaunch(
            KernelOf(naming, name, module.digest, SIZES[name], name),
            [x] if name == "axpy" else [],
            [],
            [y] if name == "axpy" else [],
            bytes(8) + struct.pack("<f", 2.5) + bytes(12) if name == "axpy" else b"",
            (("address", 1), ("float32", -1), ("address", 0)) if name == "axpy" else (),
            (4, 2, 1),
            (32, 1, 1),
        )
        request = msgspec.structs.replace(request, **changes)
        request.check()
        self.kernels.launch(request)
        return x, y


@pytest.fixture
def actor() -> Actor:
    """An actor on a device with clusters."""
    return Actor()


def test_a_launch_has_the_addresses_in_its_parameters(actor: Actor) -> None:
    """At the places that the code tells; grid, block, shared memory and stream are the request's."""
    x, y = actor.launch(actor.load(), shared=512)
    (launch,) = actor.driver.launches
    assert launch.name == "axpy"
    addresses = [struct.pack("<Q", each.address) for each in (y, x)]
    assert launch.parameters == [addresses[0], struct.pack("<f", 2.5), addresses[1]]
    config = launch.config
    assert (config.gridDimX, config.gridDimY, config.gridDimZ) == (4, 2, 1)
    assert (config.blockDimX, config.blockDimY, config.blockDimZ) == (32, 1, 1)
    assert (config.sharedMemBytes, int(config.hStream), config.numAttrs) == (512, STREAM, 0)
    assert actor.driver.set == []


def test_a_kernel_without_parameters_is_launched(actor: Actor) -> None:
    """Its array of pointers is empty."""
    actor.launch(actor.load(), "bare")
    assert actor.driver.launches[0].parameters == []


def test_clusters_and_cooperation_are_attributes_of_the_launch(actor: Actor) -> None:
    """Both at a time."""
    actor.launch(actor.load(), cluster=(2, 2, 1), cooperative=True)
    config = actor.driver.launches[0].config
    found = {each.id: each.value for each in config.attrs}
    ids = real.CUlaunchAttributeID
    cluster = found[ids.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION].clusterDim
    assert (cluster.x, cluster.y, cluster.z) == (2, 2, 1)
    assert found[ids.CU_LAUNCH_ATTRIBUTE_COOPERATIVE].cooperative == 1
    assert config.numAttrs == 2


def test_much_shared_memory_is_allowed_once(actor: Actor) -> None:
    """Above 48 KiB with the kernel's own, and again only for more."""
    module = actor.load()
    for shared in (48 * 1024 - 1000, 60_000, 60_000, 50_000, 70_000):
        actor.launch(module, shared=shared)
    attribute = real.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    assert actor.driver.set == [(attribute, 60_000), (attribute, 70_000)]


@pytest.mark.parametrize(
    ("words", "changes"),
    [
        ("1024 threads; axpy can have at most 512 here", {"block": (1024, 1, 1)}),
        ("shared is 199500 bytes, and axpy has 1000 of its own", {"shared": 199_500}),
        (
            r"grid is \(161, 1, 1\), 161 blocks; of axpy with such blocks 160 run",
            {"grid": (161, 1, 1), "cooperative": True},
        ),
    ],
)
def test_what_the_device_cannot_do_is_refused_before(actor: Actor, words: str, changes: dict[str, Any]) -> None:
    """In the caller's words; nothing is launched."""
    with pytest.raises(errors.InvalidRequest, match=words):
        actor.launch(actor.load(), **changes)
    assert actor.driver.launches == []


def test_a_device_without_clusters_has_none() -> None:
    """An Ampere GPU."""
    actor = Actor(80)
    assert (actor.kernels._architecture(), actor.kernels._major()) == ("sm_80", 12)
    with pytest.raises(errors.Unsupported, match=r"compute capability 8\.0, has none"):
        actor.launch(actor.load(), cluster=(2, 1, 1))


def test_code_that_the_driver_does_not_take_is_the_callers_error(actor: Actor) -> None:
    """Other errors are the device's. Code whose kernels are not as its records say is unloaded."""
    for status, kind in (
        (200, errors.InvalidRequest),
        (209, errors.InvalidRequest),
        (2, DriverError),
        (700, DriverError),
    ):
        actor.driver.load_status = status
        with pytest.raises(kind):
            actor.load()
    actor.driver.load_status = 0
    other = {"axpy": KernelImage("axpy", ((0, 8), (8, 8), (16, 8)), 0)}
    with pytest.raises(errors.InvalidRequest, match=r"the driver says that axpy has parameters of \(8, 4, 8\) bytes"):
        actor.load(CODE._replace(kernels=other))
    assert actor.driver.loaded == []
    elsewhere = {"axpy": KernelImage("axpy", ((32, 8), (40, 4), (48, 8)), 0)}
    assert actor.load(CODE._replace(kernels=elsewhere)).kernels == elsewhere


def test_a_module_is_unloaded_when_its_launches_have_ended(actor: Actor) -> None:
    """Elsewhere, once the streams that it was launched on have done their work."""
    module = actor.load()
    actor.launch(module)
    assert actor.driver.loaded == [1]
    del module
    gc.collect()
    assert settled(lambda: actor.driver.loaded == [])
    assert actor.stream.waited == 1


def test_a_graph_keeps_the_modules_that_it_launches(actor: Actor) -> None:
    """Until it goes itself."""
    from atomr_mp_workers.libraries.holding import Holding

    holding = Holding()
    module = actor.load()
    with holding:
        actor.launch(module)
    assert holding.held == [module]


class Aligned(AddressedArray):
    """An array at a multiple of 64 bytes, or so many behind one."""

    def __init__(self, layout: Layout, behind: int = 0) -> None:
        super().__init__(layout._replace(offset=0))
        room = np.zeros(layout.nbytes + 128, np.uint8)
        self.slab = room[-room.ctypes.data % 64 + behind :]


def launch_maps(
    actor: Actor, behind: int = 0, kind: int | None = None, read: ReadCode = CODE
) -> tuple[Aligned, Aligned]:
    """Launch a kernel with a map that it reads, an address, and a map that it writes.

    Args:
        actor: The actor.
        behind: How many bytes behind a multiple of 64 the array of the first lies.
        kind: The kind of its memory, None for the device's.
        read: The code.
    """
    x = Aligned(Layout.contiguous("float32", (8, 64)), behind)
    y = Aligned(Layout.contiguous("bfloat16", (4, 8, 64)))
    if kind is not None:
        actor.driver.memory_kinds[x.address] = kind
    forms = (
        TensorMapOf(0, (4, 16), (2, 1), "tfloat32", swizzle="64B", oob_fill="nan_request_zero_fma"),
        TensorMapOf(1, (1, 4, 64), (1, 1, 1), "bfloat16", l2_promotion="128B"),
    )
    actor.launch(
        actor.load(read),
        "mapped",
        inputs=[x],
        out=[y],
        values=bytes(320),
        kinds=(("tensor map", 0), ("address", 1), ("tensor map", 1)),
        maps=forms,
    )
    return x, y


def test_a_launch_has_its_tensor_maps_by_value(actor: Actor) -> None:
    """Encoded at the addresses that the arrays have here, at the places that the code tells."""
    x, y = launch_maps(actor)
    (launch,) = actor.driver.launches
    assert launch.parameters == [b"\x01" * 128, struct.pack("<Q", y.address), b"\x02" * 128]
    assert actor.driver.maps.encoded == [
        (11, x.address, (64, 8), (256,), (16, 4), (1, 2), 0, 2, 0, 1),
        (9, y.address, (64, 8, 4), (128, 1024), (64, 4, 1), (1, 1, 1), 0, 0, 2, 0),
    ]
    launch_maps(actor)
    assert len(actor.driver.launches) == 2


def test_a_map_of_what_is_no_memory_of_the_device_is_refused(actor: Actor) -> None:
    """The driver would take it, and the kernel end the context; so would one at an odd address be refused."""
    for kind in (0, 1):
        with pytest.raises(
            errors.InvalidRequest, match=r"argument 0 of mapped, a tensor map: .*no memory of the device"
        ):
            launch_maps(actor, kind=kind)
    with pytest.raises(errors.InvalidRequest, match=r"argument 0 of mapped, a tensor map: .*no multiple of 16"):
        launch_maps(actor, behind=8)
    packed = {"mapped": KernelImage("mapped", SIZES["mapped"], 0, 528)}
    with pytest.raises(errors.InvalidRequest, match=r"argument 0 of mapped .* at no multiple of 64 bytes"):
        launch_maps(actor, read=CODE._replace(kernels=packed))
    assert actor.driver.launches == []
    actor.driver.maps.status = 801
    with pytest.raises(
        errors.InvalidRequest, match="argument 0 of mapped, a tensor map: the driver refuses it with status 801"
    ):
        launch_maps(actor)
    assert actor.driver.launches == []


def test_a_refused_map_leaves_what_was_to_be_written_as_it_is(actor: Actor, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing has run: the request is kept out."""
    request = SimpleNamespace(method=SimpleNamespace(name="kernels.launch"), kept_out=False)
    monkeypatch.setattr("atomr_mp_workers.libraries.kernels.base.current_request", lambda: request)
    launch_maps(actor)
    assert not request.kept_out
    actor.driver.maps.status = 1
    with pytest.raises(errors.InvalidRequest):
        launch_maps(actor)
    assert request.kept_out


def test_a_device_without_tensor_maps_has_none() -> None:
    """An Ampere GPU, or a driver before CUDA 12."""
    actor = Actor(80)
    with pytest.raises(
        errors.Unsupported, match=r"an argument of mapped is a tensor map; .* capability 8\.0, has none"
    ):
        launch_maps(actor)
    actor = Actor()
    vars(actor.driver)["maps"] = SimpleNamespace(address=0)
    with pytest.raises(errors.Unsupported, match="they came with CUDA 12"):
        launch_maps(actor)
    assert actor.driver.launches == []


def test_globals_are_where_the_driver_has_them(actor: Actor) -> None:
    """A copy is on the stream; one that the driver does not give out is left out; another size is refused."""
    actor.driver.globals.update(table=(real.CUdeviceptr(0x1000), 16), other=(real.CUdeviceptr(0x2000), 8))
    module = actor.load(CODE._replace(variables={"table": 16, "hidden": 4}, shown={"table": ("&n::table",)}))
    assert module.variables == {"table": 16}
    assert module.variable_facts() == [("n::table", "table", 16)]
    array = AddressedArray(Layout.contiguous("float32", (4,)))
    actor.kernels._copy_out(module, "table", array)
    actor.kernels._copy_in(module, "table", array)
    assert actor.driver.copies == [(array.address, 0x1000, 16, STREAM), (0x1000, array.address, 16, STREAM)]
    assert list(module.streams) == [STREAM]
    loaded = len(actor.driver.loaded)
    with pytest.raises(errors.InvalidRequest, match="the global other has 8 bytes; the code says 4"):
        actor.load(CODE._replace(variables={"other": 4}))
    assert len(actor.driver.loaded) == loaded
