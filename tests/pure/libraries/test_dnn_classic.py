from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final

import msgspec
import numpy as np
import pytest

from atomr_mp import errors
from atomr_mp.protocol.declaration.arguments import with_arrays
from atomr_mp.protocol.libraries import dnn
from atomr_mp_workers.device import faults
from atomr_mp_workers.device.host import HostDevice
from atomr_mp_workers.libraries.base import Library
from tests.actor_libraries import context_on
from tests.cases.dnn_cases import CLASSIC, GATES, REQUESTS, assert_agrees, packed_requests, requests
from tests.direct import assert_all_agree, ended, host_actor, on_stand_ins, run_by
from tests.fakes.fake_arrays import FakeArray
from tests.fakes.fake_classic_cudnn import HANDLE, FakeCudnn, GpuArray, installed
from tests.fakes.fake_cublas import FakeStream

MODULES: Final = (
    "dnn.cudnn.classic_plans",
    "dnn.cudnn",
    "dnn.cudnn.recurrent_plans",
    "dnn.verdicts",
    "dnn.kernels",
    "slots",
)
by_host: Final = run_by(host_actor("dnn"))


class OnGpu(FakeArray):
    """An array as the actor meets it."""

    @property
    def address(self) -> int:
        """Where the element of index zero lies."""
        return int(self.slab.ctypes.data) + self.layout.offset

    @property
    def array(self) -> Any:
        """The array itself, zero-copy."""
        return super().array.view(GpuArray)


class Engine:
    """The engine on a stand-in; the host does what it leaves."""

    def __init__(self, *, library: bool = True) -> None:
        self.module: Final = on_stand_ins(installed(), MODULES)
        self.cudnn: Final = FakeCudnn(self.module.loaded.__globals__["SIGNATURES"])
        self.module.loaded = self._loaded if library else _missing
        context = context_on(HostDevice(), "cuda")
        self.engine: Final = self.module.ClassicEngine(Library(context, FakeStream()))  # type: ignore[arg-type]
        self.served = 0

    def _loaded(self) -> FakeCudnn:
        return self.cudnn

    def run(self, request: Any) -> Any:
        """Do a request, with a plan of its own, on memory that begins at multiples of 256."""
        found: list[Any] = [array for _, _, array in request.arrays() if array is not None]
        slabs = {array.number: aligned(array.slab) for array in found}
        there = with_arrays(request, lambda each: OnGpu(each.layout, slabs[each.number]))  # type: ignore[attr-defined]
        with np.errstate(all="ignore"):
            plan = self.engine.planned(there)
            if plan is None:
                return by_host(request)
            self.served += 1
            try:
                result = ended(plan(there))
            finally:
                assert self.cudnn.wrong == [], self.cudnn.wrong[0]
                del plan
                for array in found:
                    array.slab[:] = slabs[array.number]
        return result

    def has_plan(self, request: Any) -> bool:
        """Return whether it would serve a request."""
        there = with_arrays(request, lambda each: OnGpu(each.layout, aligned(each.slab)))  # type: ignore[attr-defined]
        return self.engine.planned(there) is not None

    def serves(self, request: Any) -> bool:
        """Return whether it serves a request."""
        made = {name: FakeArray(layout) for name, layout in request.results().items()}
        before = self.served
        self.run(msgspec.structs.replace(request, **made))
        return self.served > before


def _missing() -> Any:
    raise OSError("libcudnn.so.9: cannot open shared object file")


def aligned(slab: Any) -> Any:
    """Return a copy of some bytes that begins at a multiple of 256."""
    memory = np.zeros(slab.nbytes + 256, np.uint8)
    at = -memory.ctypes.data % 256
    memory[at : at + slab.nbytes] = slab
    return memory[at : at + slab.nbytes]


@pytest.mark.parametrize("name", CLASSIC)
def test_what_it_serves_is_what_the_request_means(name: str) -> None:
    """Whatever lies how, in place or not, and nothing else is written; the host does the rest."""
    engine = Engine()
    assert_all_agree(packed_requests(REQUESTS[name]).filter(engine.has_plan), 40, assert_agrees, engine.run)
    assert engine.served > 15
    assert_all_agree(requests(REQUESTS[name]), 30, assert_agrees, engine.run)


def test_descriptors_are_destroyed_with_the_plan() -> None:
    """But the handle stays."""
    engine = Engine()
    engine.run(forward())
    assert engine.served == 1
    assert [kind for kind, _ in engine.cudnn.objects.values()] == [HANDLE]


def image(*shape: int, dtype: str = "float32", seed: int = 1) -> FakeArray:
    """Return an image of random numbers."""
    return FakeArray.of(np.random.default_rng(seed).uniform(-1, 1, shape), dtype)


def last(*shape: int) -> FakeArray:
    """Return an image whose channels come last."""
    n, c, *space = shape
    return image(n, *space, c).transpose(0, len(space) + 1, *range(1, len(space) + 1))


X: Final = (2, 6, 8, 8)


def response(**how: Any) -> dnn.ResponseNorm:
    """Return a normalisation by neighbouring channels."""
    return dnn.ResponseNorm(image(*X, dtype=how.pop("dtype", "float32")), **({"size": 5} | how))


def norm(x: FakeArray) -> dnn.BatchNorm:
    """Return a norm by given statistics."""
    return dnn.BatchNorm(x, image(x.shape[1]), FakeArray.of(np.ones(x.shape[1]), "float32"))


def pool(x: FakeArray, **how: Any) -> dnn.WindowPool:
    """Return an average of windows."""
    return dnn.WindowPool(x, mode="avg", **how)


@pytest.mark.parametrize(
    ("request_of", "serves"),
    [
        (lambda: dnn.Activation(image(*X), kind="silu"), True),
        (lambda: dnn.Activation(last(*X), out=last(*X), kind="relu"), True),
        (lambda: dnn.Activation(last(*X), out=image(*X), kind="relu"), False),
        (lambda: dnn.Activation(image(*X)[:, ::2], kind="relu"), False),
        (lambda: dnn.Activation(image(9)[1:], out=image(8), kind="relu"), False),
        (lambda: dnn.Activation(image(*X), kind="gelu"), False),
        (lambda: dnn.Activation(image(*X), kind="elu"), False),
        (lambda: dnn.Activation(image(*X), kind="relu", alpha=0.0), False),
        (lambda: dnn.Activation(image(0, 3), kind="relu"), False),
        (lambda: dnn.ActivationBackward(image(*X), image(*X), kind="tanh"), True),
        (lambda: dnn.ActivationBackward(image(*X, dtype="bfloat16"), image(*X, dtype="bfloat16"), kind="tanh"), False),
        (lambda: dnn.ActivationBackward(image(*X, dtype="bfloat16"), image(*X, dtype="bfloat16"), kind="relu"), False),
        (lambda: dnn.ActivationBackward(image(*X), image(*X), kind="relu"), False),
        (lambda: dnn.Softmax(image(*X), dim=(-1,)), True),
        (lambda: dnn.Softmax(image(*X), dim=(-1,), log=True), False),
        (lambda: dnn.SoftmaxBackward(image(*X), image(*X), dim=(-1,), log=True), True),
        (lambda: dnn.Softmax(image(*X), dim=(3, -2)), True),
        (lambda: dnn.Softmax(image(*X), dim=(0, 2)), False),
        (lambda: dnn.Softmax(image(2, 1, 3), dim=(0, 2)), True),
        (lambda: dnn.Softmax(last(*X), out=last(*X), dim=(1,)), True),
        (lambda: dnn.Softmax(last(*X), out=last(*X), dim=(1, 2)), False),
        (lambda: dnn.Softmax(image(2, 1, 3), dim=(1,)), False),
        (lambda: dnn.WindowPool(image(*X), kernel_size=(2,)), False),
        (lambda: pool(image(*X), kernel_size=(2,)), True),
        (lambda: pool(image(2, 6, 8), kernel_size=(2,)), True),
        (lambda: pool(image(2, 6, 8, 8, 8), kernel_size=(2,)), True),
        (lambda: pool(last(*X), out=last(2, 6, 4, 4), kernel_size=(2,)), True),
        (lambda: pool(last(2, 6, 8, 8, 8), out=last(2, 6, 4, 4, 4), kernel_size=(2,)), False),
        (lambda: pool(last(*X), out=image(2, 6, 4, 4), kernel_size=(2,)), False),
        (lambda: pool(image(*X), kernel_size=(3,), padding=(0, 1, 0, 1), stride=(2,)), False),
        (lambda: pool(image(*X), kernel_size=(3,), padding=(1, 0, 1, 0), stride=(2,)), True),
        (response, True),
        (lambda: response(size=4), False),
        (lambda: response(size=17), False),
        (lambda: response(dtype="bfloat16"), False),
        (lambda: response(dtype="float16"), True),
        (lambda: dnn.ResponseNormBackward(image(*X, dtype="float16"), image(*X, dtype="float16"), size=5), False),
        (lambda: dnn.ResponseNormBackward(image(*X), image(*X), size=5), True),
        (lambda: response(beta=0.0), False),
        (lambda: response(k=0.0), False),
        (lambda: norm(image(*X)), True),
        (lambda: norm(image(4, 3)), True),
        (lambda: norm(image(65536, 1)), False),
        (lambda: dnn.LayerNorm(image(*X), normalized_shape=(8,)), False),
    ],
)
def test_it_serves_what_cudnn_does_as_it_is_declared(request_of: Callable[[], Any], *, serves: bool) -> None:
    """And leaves the rest to others."""
    assert Engine().serves(request_of()) == serves


# --- networks ---------------------------------------------------------------------------------------------------------


def weights_of(
    mode: str, inputs: int, hidden: int, layers: int = 1, ways: int = 1, dtype: str = "float32"
) -> FakeArray:
    """Return packed weights."""
    count = sum(
        ways * GATES[mode] * hidden * ((ways * hidden if layer else inputs) + hidden + 2) for layer in range(layers)
    )
    return FakeArray.of(np.random.default_rng(3).uniform(-0.5, 0.5, count), dtype)


def forward(mode: str = "lstm", dtype: str = "float32", t: int = 5, hidden: int = 4, **how: Any) -> dnn.RnnForward:
    """Return a network of two layers in both directions, with its outputs."""
    x = image(t, 3, 2, dtype=dtype)
    weights = weights_of(mode, 2, hidden, 2, 2, dtype)
    usual: dict[str, Any] = {
        "save_reserve": True,
        "mode": mode,
        "hidden_size": hidden,
        "num_layers": 2,
        "bidirectional": True,
    }
    made = dnn.RnnForward(x, weights, **(usual | how))
    return msgspec.structs.replace(made, **{name: FakeArray(layout) for name, layout in made.results().items()})


def many(sequences: int = 65535, layers: int = 1) -> dnn.RnnForward:
    """Return a network of many sequences."""
    weights = weights_of("relu", 1, 1, layers)
    return dnn.RnnForward(image(1, sequences, 1), weights, mode="relu", hidden_size=1, num_layers=layers)


def backward(before: dnn.RnnForward, **how: Any) -> dnn.RnnBackward:
    """Return its backward, with its outputs."""
    names = ("x", "weights", "reserve", "lengths", "mode", "hidden_size", "num_layers", "bidirectional")
    given = {name: getattr(before, name) for name in names} | {"dropout_p": before.dropout_p, "y": before.out} | how
    dy: Any = FakeArray.of(np.ones(before.out.shape), before.x.dtype)  # type: ignore[union-attr]
    made = dnn.RnnBackward(dy=dy, **given)
    return msgspec.structs.replace(made, **{name: FakeArray(layout) for name, layout in made.results().items()})


def test_a_reserve_serves_one_backward() -> None:
    """A second one is refused, as one is that another engine's forward has not filled."""
    engine, before = Engine(), forward()
    engine.run(before)
    engine.run(backward(before))
    assert engine.served == 2
    for _ in range(2):
        again = backward(before)
        with pytest.raises(errors.NumericalError, match="a backward has used it up"):
            engine.run(again)
        assert all(np.isnan(each.array).all() for each in again.written()[1:])
        by_host(before)
    assert engine.cudnn.ran.count("RNNBackwardData_v8") == 3


@pytest.mark.parametrize("step", [1, 8])
def test_a_reserve_may_begin_anywhere(step: int) -> None:
    """It is copied to where cuDNN may read it."""
    engine, before = Engine(), forward()
    whole = FakeArray.of(np.zeros(before.reserve.nbytes + step), "uint8")  # type: ignore[union-attr]
    before = msgspec.structs.replace(before, reserve=whole[step:])
    engine.run(before)
    engine.run(backward(before))
    assert engine.served == 2


@pytest.mark.parametrize(
    ("dtype", "tf32", "told"),
    [
        ("float16", False, (0, 0, 3)),
        ("bfloat16", False, (0, 0, 3)),
        ("float32", False, (0, 0, 3)),
        ("float32", True, (0, 0, 0)),
        ("float64", False, (1, 1, 0)),
    ],
)
def test_half_precision_is_computed_in_float32_and_tensor_cores_are_used_where_they_may(
    dtype: str, told: tuple[int, int, int], *, tf32: bool
) -> None:
    """All else is exact but for rounding."""
    engine = Engine()
    engine.run(forward(dtype=dtype, allow_tf32=tf32))
    assert engine.cudnn.networks == [told]


@pytest.mark.parametrize(
    ("request_of", "serves"),
    [
        (forward, True),
        (lambda: forward(dropout_p=0.5), False),
        (lambda: forward("gru", dropout_p=0.5, save_reserve=False), False),
        (lambda: forward(lengths=FakeArray.of([5, 2, 0], "int32")), False),
        (lambda: forward(t=65536, hidden=1, save_reserve=False), False),
        (lambda: many(sequences=65536), False),
        (lambda: many(layers=65), False),
        (many, True),
    ],
)
def test_it_serves_networks_that_run_as_they_are_declared(
    request_of: Callable[[], dnn.RnnForward], *, serves: bool
) -> None:
    """Of sequences that have all steps, without dropout between layers. A backward is served if its forward is."""
    before = request_of()
    for request in [before, backward(before)] if before.save_reserve else [before]:
        engine = Engine()
        assert engine.has_plan(request) == serves


def test_another_layout_of_weights_is_left_to_others() -> None:
    """What weights mean is declared."""
    engine = Engine()
    engine.cudnn.biases_first = True
    assert not engine.has_plan(forward())


def test_a_backward_runs_the_network_again_whose_reserve_had_no_room() -> None:
    """The size of ours is declared; the mark is there, so that a second one is refused."""
    engine, before = Engine(), forward(hidden=2)
    engine.cudnn.more_reserve = 1000
    engine.run(before)
    found, again = backward(before), backward(before)
    engine.run(found)
    assert engine.cudnn.ran.count("RNNForward") == engine.served == 2
    theirs, by_theirs = forward(hidden=2), []
    for do in (by_host, Engine().run):
        do(theirs)
        by_theirs.append(backward(theirs))
        do(by_theirs[-1])
    for one, *others in zip(found.written()[1:], *(each.written()[1:] for each in by_theirs), strict=True):
        for other in others:
            np.testing.assert_allclose(one.array, other.array, rtol=1e-4, atol=1e-5)
    with pytest.raises(errors.NumericalError, match="a backward has used it up"):
        engine.run(again)


# --- errors -----------------------------------------------------------------------------------------------------------


def test_without_cudnn_nothing_is_served_and_that_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    """The library is looked for once."""
    engine = Engine(library=False)
    with caplog.at_level(logging.INFO, "atomr_mp.worker"):
        for _ in range(2):
            assert not engine.serves(dnn.Activation(image(*X), kind="relu"))
    assert caplog.messages == ["cuDNN serves no classic calls: libcudnn.so.9: cannot open shared object file"]


@pytest.mark.parametrize("status", [2000, 3007])
def test_what_cudnn_refuses_to_describe_is_left_to_others(status: int) -> None:
    """The request does not fail for it."""
    engine = Engine()
    engine.cudnn.statuses["SetActivationDescriptor"] = status
    assert not engine.serves(dnn.Activation(image(*X), kind="relu"))


@pytest.mark.parametrize("function", ["SetActivationDescriptor", "ActivationForward"])
def test_other_failures_are_errors_with_cudnns_words(function: str) -> None:
    """And with its status."""
    engine = Engine()
    engine.cudnn.statuses[function] = 5003
    with pytest.raises(engine.module.CudnnError, match=f"cudnn{function}: CUDNN_STATUS_5003") as caught:
        engine.serves(dnn.Activation(image(*X), kind="relu"))
    assert caught.value.status == 5003
    told = faults.translate(caught.value, lambda: 0)
    assert isinstance(told, errors.LibraryError)
    assert (told.library, told.status) == ("cudnn", 5003)
    assert isinstance(faults.translate(caught.value, lambda: 700), errors.ContextPoisoned)
