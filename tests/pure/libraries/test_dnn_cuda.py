from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import math
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any, Final
from unittest import mock

import msgspec
import numpy as np
import pytest

from atomr_mp import errors
from atomr_mp.libraries.dnn import Reference
from atomr_mp.protocol.board import PLAN_WORDS
from atomr_mp.protocol.declaration.arguments import with_arrays
from atomr_mp.protocol.layout import Layout
from atomr_mp.protocol.library_names import ENGINES
from atomr_mp_workers.device.host import HostDevice
from atomr_mp_workers.libraries.dnn.activations import ACTIVATIONS, DERIVATIVES
from atomr_mp_workers.libraries.rng import philox
from atomr_mp_workers.memory.blocks import OURS, Holder
from tests.actor_libraries import context_on
from tests.cases.dnn_cases import REQUESTS, assert_agrees, requests
from tests.direct import DirectDevice, assert_all_agree, ended, on_stand_ins, started
from tests.fakes import fake_cublas
from tests.fakes.fake_arrays import FakeArray
from tests.fakes.fake_cublas import FakeCublas
from tests.fakes.fake_device_arrays import OnDevice, installed, ndarray

DNN: Final[Any] = Reference(DirectDevice(lambda request: request))
MODULES: Final = ("dnn.cuda", "dnn.kernels", "dnn.verdicts", "dnn.products", "blas.kinds", "slots")


def _kept(seed: Any, offset: Any, least: Any, kept: ndarray) -> Any:
    return philox.words(int(seed), int(offset), kept.size) >= least


def _told(right: Any, place: Any) -> Any:
    ctypes.c_uint64.from_address(int(place)).value = bool(right._values)
    return right._values


def _maxima(x: Any, least: Any, *numbers: Any) -> Any:
    """As the kernel has it, but for its order."""
    space, places, size, stride, dilation, before = (numbers[at : at + 3] for at in range(0, 18, 3))
    made = numbers[18]._values
    image, found = x._values.reshape(-1, *space), np.full((math.prod(made.shape[:2]), *places), least)
    for place in np.ndindex(*places):
        for tap in np.ndindex(*size):
            at = [p * s - b + t * d for p, s, b, t, d in zip(place, stride, before, tap, dilation, strict=True)]
            if all(0 <= each < length for each, length in zip(at, space, strict=True)):
                found[:, *place] = np.maximum(found[:, *place], image[:, *at])
    return found.reshape(made.shape)


KERNELS: Final[dict[str, Any]] = {
    "dnn_kept": _kept,
    "dnn_told": _told,
    "dnn_maxima": _maxima,
    **{f"dnn_{kind}": lambda x, of=of: of(x._values) for kind, of in ACTIVATIONS.items()},
    **{f"dnn_by_{kind}": lambda x, dy, of=of: dy._values * of(x._values) for kind, of in DERIVATIVES.items()},
}
"""What kernels do."""


@contextlib.contextmanager
def _stand_ins(cublas: FakeCublas) -> Iterator[None]:
    with fake_cublas.installed(cublas), installed(KERNELS):
        yield


class Actor:
    """The CUDA actor on stand-ins.

    Args:
        engines: Those that it asks before CuPy.
    """

    def __init__(self, *engines: Any) -> None:
        self.figures: Final = [0] * PLAN_WORDS
        self.cublas: Final = FakeCublas()
        by_cudnn: Any = ModuleType("cudnn")
        by_cudnn.engines = engines
        with mock.patch.dict("sys.modules", {"atomr_mp_workers.libraries.dnn.cudnn": by_cudnn}):
            module = on_stand_ins(_stand_ins(self.cublas), MODULES)
        context = dataclasses.replace(context_on(HostDevice(), "cuda"), figures=lambda _library: self.figures)
        self.dnn: Final = module.Implementation(context, fake_cublas.FakeStream())

    @property
    def engine(self) -> str:
        """The engine that serves."""
        return ENGINES[self.figures[-1]]

    def run(self, request: Any) -> Any:
        """Do a request, with a plan of its own."""
        return ended(started(self.dnn, with_arrays(request, on_device)))


def on_device(array: Any) -> OnDevice:
    """Return an array as the actor meets it."""
    return OnDevice(array.layout, array.slab)


@pytest.mark.parametrize("name", REQUESTS)
def test_nothing_that_is_not_cupys_is_asked_and_nothing_is_read_on_the_host(name: str) -> None:
    """And what is asked gives what is meant: the functions are those of the host, on arrays that come by protocols."""
    actor = Actor()
    assert_all_agree(requests(REQUESTS[name]), 40, assert_agrees, actor.run)
    assert actor.engine == ("CuPy" if hasattr(actor.dnn, f"prepare_{name}") else "")


def test_engines_are_asked_in_turn_and_cupy_does_the_rest() -> None:
    """The first that has a plan serves; the plan gets each request, and its answer is the request's."""
    asked = []

    def engine(name: str, kinds: set[str]) -> Any:
        def planned(request: Any) -> Any:
            asked.append((name, request.kind))
            return (lambda done: (name, done.kind)) if request.kind in kinds else None

        return lambda _library: SimpleNamespace(planned=planned)

    actor = Actor(engine("one", {"relu"}), engine("two", {"relu", "tanh"}))
    x = FakeArray.of([-1.0, 2.0], "float32")
    out = FakeArray.of([0.0, 0.0], "float32")
    engines = []
    for kind in ("softplus", "tanh", "relu", "identity"):
        found = actor.run(DNN.activation(x, out, kind=kind))
        engines.append((found, actor.engine))
    assert engines == [(None, "CuPy"), (("two", "tanh"), "cuDNN"), (("one", "relu"), "cuDNN"), (None, "cuDNN")]
    np.testing.assert_array_equal(out.array, x.array)
    names = [name for name, _ in asked]
    assert names == ["one", "two", "one", "two", "one", "one", "two"]


def test_a_plan_is_used_for_other_memory_and_other_factors() -> None:
    """Nothing of the request that it was made for is kept in it."""
    actor = Actor()
    first, second = (FakeArray.of(values, "float32") for values in ([1.0, 2.0], [3.0, 4.0]))
    outputs = [FakeArray.of([0.0, 0.0], "float32") for _ in "ab"]
    one = DNN.activation(first, outputs[0], kind="relu", alpha=2.0)
    other = DNN.activation(second, outputs[1], kind="relu", alpha=3.0)
    assert one.plan_key() == other.plan_key()
    plan = actor.dnn.prepare_activation(with_arrays(one, on_device))
    for request in (other, one):
        actor.dnn.activation(with_arrays(request, on_device), plan)
    np.testing.assert_array_equal([each.array for each in outputs], [[2.0, 4.0], [9.0, 12.0]])


def test_the_handle_of_products_is_made_with_the_plan_of_a_request_that_multiplies() -> None:
    """Nothing is made while a graph is recorded; others go without it."""
    actor = Actor()
    x, weight = (FakeArray.of(np.ones(shape), "float32") for shape in ((1, 2, 4), (2, 2, 3)))
    out = FakeArray.of(np.zeros((1, 2, 2)), "float32")
    actor.run(DNN.activation(x, FakeArray.of(x.array, "float32"), kind="relu"))
    assert not actor.cublas.settings
    request = with_arrays(DNN.conv1d(x, weight, out=out), on_device)
    plan = actor.dnn.prepare_conv(request)
    made = ["create", "set_stream", "set_workspace", "set_math_mode"]
    assert actor.cublas.settings == made
    for _ in "ab":
        actor.dnn.conv(request, plan)
    assert actor.cublas.settings == made
    assert out.array.tolist() == [[[6, 6], [6, 6]]]


@pytest.mark.parametrize("name", ["conv", "scaled_dot_product_attention", "rnn"])
def test_batches_that_cublas_does_not_support_are_multiplied_one_by_one(name: str) -> None:
    """Any other status is an error."""
    actor = Actor()
    actor.cublas.refused["gemm_strided_batched_ex_64"] = actor.cublas.Status.NOT_SUPPORTED
    assert_all_agree(requests(REQUESTS[name]), 15, assert_agrees, actor.run)
    actor.cublas.refused["gemm_ex_64"] = actor.cublas.Status.INVALID_VALUE
    x, weight = (FakeArray.of(np.ones(shape), "float32") for shape in ((1, 2, 4), (2, 2, 3)))
    with pytest.raises(actor.cublas.cuBLASError):
        actor.run(DNN.conv1d(x, weight, out=FakeArray.of(np.zeros((1, 2, 2)), "float32")))


@pytest.mark.parametrize("allowed", [True, False])
def test_factors_are_rounded_only_where_that_is_allowed(*, allowed: bool) -> None:
    """To 11 bits, by tensor cores."""
    actor = Actor()
    x, weight = (FakeArray.of(np.ones(shape), "float32") for shape in ((1, 2, 4), (2, 2, 3)))
    actor.run(DNN.conv1d(x, weight, out=FakeArray.of(np.zeros((1, 2, 2)), "float32"), allow_tf32=allowed))
    assert actor.cublas.in_tf32 == allowed


def test_a_second_backward_is_refused_after_its_work_and_gives_no_numbers() -> None:
    """The host cannot know before: the gradients are NaN, so that none is taken for one, and the reserve stays."""
    actor, one = Actor(), {"mode": "gru", "hidden_size": 2}
    x, weights = FakeArray.of(np.full((3, 2, 4), 0.5), "float32"), FakeArray.of(np.full(6 * 6 + 12, 0.1), "float32")
    forward = DNN.rnn(x, weights, save_reserve=True, **one)
    made: dict[str, Any] = {name: FakeArray(layout) for name, layout in forward.results().items()}
    actor.run(msgspec.structs.replace(forward, **made))
    backward = DNN.rnn_backward(x, weights, made["out"], made["out"], made["reserve"], **one)
    outputs: dict[str, Any] = {name: FakeArray(layout) for name, layout in backward.results().items()}
    backward = msgspec.structs.replace(backward, **outputs)
    actor.run(backward)
    assert all(each.array.any() and np.isfinite(each.array).all() for each in outputs.values())
    later = started(actor.dnn, with_arrays(backward, on_device))
    with pytest.raises(errors.NumericalError, match="used it up"):
        ended(later)
    assert all(np.isnan(each.array).all() for each in outputs.values())


def test_what_an_engine_may_take_long_over_has_a_plan_that_is_made_off_the_loop() -> None:
    """No engine has dropout: its plans, one for each seed, would push out others."""
    actor = Actor()
    planned = {name for name in REQUESTS if hasattr(actor.dnn, f"prepare_{name}")}
    assert planned == actor.dnn.slow == set(REQUESTS) - {"dropout", "dropout_backward", "rnn_pack"}


def test_a_standby_tries_layers_of_each_kind() -> None:
    """They are valid, and leave all memory that they got to their holder's end."""
    actor, holder = Actor(), Holder(OURS)
    tried = []
    for request in actor.dnn.trials(holder):
        given = with_arrays(request, lambda each: FakeArray(Layout.contiguous(each.dtype, each.shape)))
        made: Any = {name: FakeArray(layout) for name, layout in given.results().items()}
        given = msgspec.structs.replace(given, **made)
        given.check()
        actor.run(given)
        tried.append((request.name, next(iter(made.values())).dtype))
    names = ["conv", "pool", "softmax", "activation", "dropout", "layer_norm", "scaled_dot_product_attention"]
    assert tried == [(name, dtype) for dtype in ("float32", "bfloat16") for name in names]
