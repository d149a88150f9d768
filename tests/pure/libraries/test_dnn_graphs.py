from __future__ import annotations

import gc
import logging
import math
from collections.abc import Callable
from typing import Any, Final

import msgspec
import numpy as np
import pytest

from atomr_mp import errors
from atomr_mp.protocol.declaration.arguments import with_arrays
from atomr_mp.protocol.libraries import dnn
from atomr_mp.protocol.libraries.base import HALF
from atomr_mp_workers.device.faults import translate
from tests.cases.dnn_cases import REQUESTS, assert_agrees, mask, requests
from tests.direct import assert_all_agree, host_actor, on_stand_ins, run_by
from tests.fakes.fake_arrays import FakeArray
from tests.fakes.fake_cublas import AddressedArray, FakeStream
from tests.fakes.fake_cudnn import ENGINES, WORKSPACE_BYTES, FakeCudnn, FakeCupy, installed
from tests.fakes.fake_cutensor import _empty
from tests.pure.libraries.test_tensor_cuda import aligned

MODULES: Final = tuple(
    f"dnn.cudnn{name}" for name in ("", ".graphs", ".trying", ".convolution_plans", ".norm_plans", ".attention_plans")
)
CONVOLUTIONS: Final = ("conv", "conv_transpose", "conv_input", "conv_weight")
NORMS: Final = ("batch_norm_training", "layer_norm", "rms_norm", "instance_norm", "group_norm", "norm_backward")


class Workspace:
    """Memory that tells its address."""

    def __init__(self, nbytes: int) -> None:
        self.memory: Final = _empty((nbytes,), np.uint8)
        self.address: Final[int] = self.memory.ctypes.data


class LibraryOfTests:
    """What engines take of a library."""

    def __init__(self) -> None:
        self.stream: Final = FakeStream()
        self.asked: Final[list[int]] = []

    def workspace(self, nbytes: int) -> Workspace:
        """Return workspace."""
        self.asked.append(nbytes)
        return Workspace(nbytes)


def placed(request: Any) -> tuple[Any, dict[int, Any]]:
    """Return a request on memory that begins at multiples of 256, and that memory by the number of the array."""
    slabs = {each.number: aligned(each.slab) for _, _, each in request.arrays() if each is not None}
    return with_arrays(request, lambda each: AddressedArray(each.layout, slabs[each.number])), slabs  # type: ignore[attr-defined]


class Engines:
    """The engines on stand-ins; what they do not serve is done on the host."""

    def __init__(self, cudnn: FakeCudnn | None = None, *, without: bool = False) -> None:
        self.cudnn: Final = cudnn or FakeCudnn()
        self.cupy: Final = FakeCupy("cupy")
        self.library: Final = LibraryOfTests()
        module = on_stand_ins(installed(None if without else self.cudnn, self.cupy), MODULES)
        self.engines: Final = [cls(self.library) for cls in module.engines]
        self.served = 0
        self._host: Final = run_by(host_actor("dnn"))

    def plan(self, request: Any) -> Callable[[Any], None] | None:
        """Return the plan of the first engine that serves a request."""
        return next((plan for each in self.engines if (plan := each.planned(request)) is not None), None)

    def run(self, request: Any) -> None:
        """Do a request, on memory that begins at multiples of 256."""
        there, slabs = placed(request)
        plan = self.plan(there)
        if plan is None:
            self._host(request)
            return
        self.served += 1
        with np.errstate(all="ignore"):
            plan(there)
        for _, _, array in request.arrays():
            if array is not None:
                array.slab[:] = slabs[array.number]


def arrays(dtype: str, *shapes: tuple[int, ...], seed: int = 5) -> list[Any]:
    """Return arrays of random numbers."""
    random = np.random.default_rng(seed)
    return [FakeArray.of(random.uniform(-1, 1, shape), dtype) for shape in shapes]


def with_outputs(request: Any) -> Any:
    """Return a request with the arrays that it writes."""
    return msgspec.structs.replace(request, **{name: FakeArray(each) for name, each in request.results().items()})


def has_work(request: Any) -> bool:
    """Return whether the arrays of a request have elements, and its alpha is not 0."""
    return getattr(request, "alpha", 1) != 0 and all(each is None or each.size for _, _, each in request.arrays())


def at_once(request: Any) -> Any:
    """Return a request with the factors and activations of one that a graph does alone."""
    more = {"activation": "relu" if len(request.x.shape) > 3 else "identity"} if request.name == "conv" else {}
    return msgspec.structs.replace(request, alpha=1.0, beta=0.0, **more)


def conv(dtype: str = "float32", **options: Any) -> Any:
    """Return a convolution of 4 channels."""
    x, weight, bias = arrays(dtype, (2, 4, 5, 5), (4, 4, 3, 3), (4,))
    return with_outputs(dnn.Conv(x, weight, bias if options.pop("has_bias", False) else None, **options))


@pytest.mark.parametrize("name", CONVOLUTIONS)
@pytest.mark.parametrize("fuses", [True, False], ids=["fusing", "plain"])
def test_convolutions_give_what_is_meant(name: str, *, fuses: bool) -> None:
    """Whatever the strides, types, windows, groups, factors and activations; with and without fused engines."""
    engines = Engines(FakeCudnn(refuses=lambda graph: not fuses and (len(graph.names) > 1 or graph.is_mixed)))
    drawn = requests(REQUESTS[name]).filter(has_work)
    assert_all_agree(drawn.map(at_once) if fuses else drawn, 100, assert_agrees, engines.run)
    assert engines.served
    assert any(len(names) > 1 for names in engines.cudnn.ran) == (fuses and name == "conv")


@pytest.mark.parametrize("name", NORMS)
def test_norms_give_what_is_meant(name: str) -> None:
    """Of float32 and half precision, with and without weights and running statistics."""
    engines = Engines()
    assert_all_agree(requests(REQUESTS[name]).filter(has_work), 80, assert_agrees, engines.run)
    assert engines.served > 5


@pytest.mark.parametrize("style", ["wrapped", "plain", "public"])
def test_graphs_run_by_every_version_of_the_frontend(style: str) -> None:
    """The private function where there is one, else the public one; with the workspace that a graph takes."""
    engines, request = Engines(FakeCudnn(style)), conv()
    engines.run(request)
    assert engines.cudnn.ran == [["conv_fprop"]]
    assert set(engines.library.asked) == {WORKSPACE_BYTES}


@pytest.mark.parametrize("tf32", [False, True])
@pytest.mark.parametrize("dtype", dnn.FLOATS)
def test_results_repeat_and_float32_is_exact_unless_tf32_is_allowed(dtype: str, *, tf32: bool) -> None:
    """By the notes of the engines that are not wanted; half precision and float64 have tensor cores in any case."""
    engines = Engines()
    request = conv(dtype, allow_tf32=tf32 and dtype == "float32")
    engines.run(request)
    exact = dtype == "float32" and not tf32
    notes = engines.cudnn.built[0].notes
    assert notes > {"NONDETERMINISTIC", "REDUCED_PRECISION_REDUCTION", "FFT", "WINOGRAD", "RUNTIME_COMPILATION"}
    assert ("TENSOR_CORE" in notes) == exact


def test_engines_share_a_handle_which_ends_with_their_library() -> None:
    """Plans do not keep the library."""
    engines = Engines()
    plans = [engines.plan(conv()), engines.plan(attention("float16", (1, 1, 1, 2, 2)))]
    assert engines.cudnn.handles == 2  # one is for trials
    cudnn = engines.cudnn
    del engines, plans
    gc.collect()
    assert cudnn.handles == 0


@pytest.mark.parametrize("mixes", [True, False])
def test_bias_and_relu_are_part_of_the_graph_for_factors_of_one_and_zero(*, mixes: bool) -> None:
    """By one plan, other factors are another graph's products and CuPy's work, without rounding between."""
    engines = Engines(FakeCudnn(refuses=lambda graph: graph.is_mixed and not mixes))
    request = conv("float16", has_bias=True, activation="relu")
    engines.run(request)
    assert engines.cudnn.ran == [["conv_fprop", "bias", "relu"]]
    engines.run(msgspec.structs.replace(request, alpha=0.5))
    assert engines.cudnn.ran[1:] == [["conv_fprop"]]
    at_once, products = engines.cudnn.built[:2]
    assert (at_once.dtype, at_once.is_mixed) == ("float16", False)
    assert (products.dtype, products.is_mixed) == (("float16", True) if mixes else ("float32", False))


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_channels_last_images_stay_so(dtype: str) -> None:
    """Nothing is copied: the graph has the strides of the arrays, and is given their addresses."""
    engines = Engines()
    x, weight, out = (each.transpose(0, 3, 1, 2) for each in arrays(dtype, (2, 5, 5, 8), (4, 3, 3, 8), (2, 3, 3, 4)))
    engines.run(dnn.Conv(x, weight, out=out))
    graph = engines.cudnn.built[0]
    assert [tensor.stride[1] for tensor in graph._tensors] == [1, 1, 1]


def test_a_line_is_an_image_of_height_one() -> None:
    """Also channels last."""
    engines = Engines()
    x, weight, out = (each.transpose(0, 2, 1) for each in arrays("float32", (2, 9, 8), (4, 3, 8), (2, 7, 4)))
    engines.run(dnn.Conv(x, weight, out=out))
    given, *_ = engines.cudnn.built[0]._tensors
    assert (given.dim, given.stride) == ([2, 8, 1, 9], [72, 1, 72, 8])


@pytest.mark.parametrize(
    "options", [{"alpha": 0.0}, {"padding": (3,)}], ids=["nothing to compute", "a window on padding alone"]
)
def test_what_cudnn_need_not_or_should_not_do_is_declined(options: dict[str, Any]) -> None:
    """CuPy does it."""
    engines = Engines()
    assert engines.plan(conv(**options)) is None
    assert engines.cudnn.built == []


def test_a_request_without_an_engine_is_declined() -> None:
    """It is not refused, and the next one is asked for again."""
    engines = Engines(FakeCudnn(refuses=lambda graph: graph.dtype == "float64"))
    assert engines.plan(conv("float64")) is None
    assert engines.plan(conv("float32")) is not None


def test_without_the_frontend_nothing_is_served(caplog: pytest.LogCaptureFixture) -> None:
    """And that is said once."""
    engines = Engines(without=True)
    with caplog.at_level(logging.INFO, "atomr_mp.worker"):
        assert [engines.plan(conv()) for _ in range(3)] == [None] * 3
    assert [record.getMessage() for record in caplog.records] == [
        "cuDNN serves no graphs: its frontend is not installed"
    ]


# --- trials of engines ------------------------------------------------------------------------------------------------


def convolution(name: str, dtype: str) -> Any:
    """Return a convolution, or one of its gradients, of 3 samples, in 2 groups."""
    x, weight, dy = arrays(dtype, (3, 4, 5, 6), (4, 2, 3, 2), (3, 4, 3, 5))
    if name == "conv":
        return with_outputs(dnn.Conv(x, weight, groups=2))
    if name == "conv_transpose":
        return with_outputs(dnn.ConvTranspose(dy, weight, groups=2))
    if name == "conv_input":
        return with_outputs(dnn.ConvInput(weight, dy, size=(5, 6), groups=2))
    return with_outputs(dnn.ConvWeight(x, dy, size=(3, 2), groups=2))


@pytest.mark.parametrize("name", CONVOLUTIONS)
@pytest.mark.parametrize(
    ("dtype", "fault", "text"),
    [
        *((dtype, fault, "gives wrong numbers") for dtype in dnn.FLOATS for fault in ("wrong", "unwritten")),
        ("float16", "unsteady", "gives other numbers each time"),
        ("float32", "failing", "fails (cudnnBackendExecute: CUDNN_STATUS_EXECUTION_FAILED)"),
        ("float32", "refused", ""),
    ],
)
def test_an_engine_that_is_wrong_is_not_used(
    name: str, dtype: str, fault: str, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The next that the heuristics name is, and a warning says for which request. A name may begin as another does."""
    engines = Engines(FakeCudnn(faults={0: fault, 1: fault}))
    request = convolution(name, dtype)
    with caplog.at_level(logging.WARNING, "atomr_mp.worker"):
        engines.run(request)
    expected = with_outputs(msgspec.structs.replace(request, out=None))
    run_by(host_actor("dnn"))(expected)
    found, wanted = (each.out.array.astype(np.float64) for each in (request, expected))
    np.testing.assert_allclose(found, wanted, rtol=0.01, atol=0.01)
    assert engines.cudnn.used == [2]
    warned = [message for message in caplog.messages if name in message]
    if text:
        assert all(f"engine {engine}_" in each for engine, each in zip(("eng1", "eng11"), warned, strict=True))
        assert all(f"{text} for {name}: " in each and f"{dtype} (3, 4, " in each for each in warned)
        assert warned[0].endswith("stride (1,), padding (0,), dilation (1,), groups 2: it is not used")
    else:
        assert warned == []


@pytest.mark.parametrize("step", ["products", "bias", "relu"])
def test_each_graph_of_a_request_is_tried(step: str) -> None:
    """That of a whole request, and that of the products alone."""

    def refuses(graph: Any) -> bool:
        last: str = graph.names[-1]
        return last != {"products": "conv_fprop"}.get(step, step)

    options: dict[str, Any] = {"products": {"alpha": 0.5}, "bias": {"has_bias": True}, "relu": {"activation": "relu"}}
    engines = Engines(FakeCudnn(refuses=refuses, faults={0: "wrong"}))
    request = conv("float16", **{"products": {"alpha": 0.5, "beta": 1.0}, **options}[step])
    plan = engines.plan(request)
    if step == "products":
        assert plan is not None
    assert [graph.engine for graph in engines.cudnn.built][:2] == [0, 1]


def test_nothing_is_served_if_every_engine_is_wrong() -> None:
    """A few are tried, none on the stream of the library, and CuPy does the request."""
    engines = Engines(FakeCudnn(faults=dict.fromkeys(range(ENGINES), "wrong")))
    assert engines.plan(conv(alpha=0.5)) is None
    assert engines.cudnn.used == []
    numbers = [name.partition("_")[0] for name in engines.cudnn.tried[::2]]
    assert numbers[:4] == ["eng1", "eng11", "eng4", "eng5"]


def test_some_samples_are_tried_of_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the same engine, whose settings may be others."""
    engines = Engines(FakeCudnn(faults={0: "wrong"}))
    globals_of = type(engines.engines[0]).plans["conv"].__init__.__globals__
    for nbytes, samples in ((2**20, 3), (16 * (48 + 2 * 180), 2), (1, 1)):
        monkeypatch.setitem(globals_of, "TRIAL_BYTES", nbytes)
        engines.cudnn.tried.clear()
        assert engines.plan(convolution("conv", "float64")) is not None
        assert engines.cudnn.built[-1].engine == 1
        assert engines.cudnn.tried == [f"eng{number}_k2={samples}" for number in (1, 1, 11, 11)]


@pytest.mark.parametrize("why", ["room", "recording"])
def test_what_cannot_be_tried_is_declined(why: str) -> None:
    """Without memory, and while a graph is recorded: nothing waits then."""
    engines = Engines()
    engines.cupy.has_room, engines.cupy.records = why != "room", why == "recording"
    assert engines.plan(conv()) is None
    assert engines.cudnn.tried == []


@pytest.mark.parametrize(
    ("x", "dy", "way"),
    [
        ((3, 4, 3, 3), (3, 2, 1, 1), {"stride": (3, 1), "padding": (1, 0, 0, 0), "dilation": (1, 2)}),
        ((3, 4, 2, 3), (3, 2, 1, 2), {"stride": (3, 2), "padding": (2, 0, 0, 1), "dilation": (2, 1)}),
    ],
)
def test_weights_that_meet_padding_alone_are_declined(x: Any, dy: Any, way: dict[str, Any]) -> None:
    """Their gradients are left unwritten by cuDNN."""
    image, gradient = arrays("float32", x, dy)
    request = dnn.ConvWeight(image, gradient, size=(2, 2), groups=2, **way)
    assert Engines().plan(with_outputs(request)) is None


def test_a_graph_that_fails_says_so() -> None:
    """The error is cuDNN's, so that a context that is lost is found."""
    engines, request = Engines(), conv()
    plan = engines.plan(request)
    assert plan is not None
    engines.cudnn.is_failing = True
    with pytest.raises(Exception, match="CUDNN_STATUS_EXECUTION_FAILED") as raised:
        plan(placed(request)[0])
    found = translate(raised.value, lambda: 0)
    assert isinstance(found, errors.LibraryError)
    assert found.library == "cudnn"
    assert isinstance(translate(raised.value, lambda: 700), errors.ContextPoisoned)


# --- attention --------------------------------------------------------------------------------------------------------


def attention(dtype: str, shape: tuple[int, int, int, int, int], **options: Any) -> Any:
    """Return attention of batch, heads, heads of keys, queries and keys, with heads of 8 and 16 elements."""
    b, hq, hk, sq, sk = shape
    query, key, value = arrays(dtype, (b, hq, sq, 8), (b, hk, sk, 8), (b, hk, sk, 16))
    masks = {"attn_mask": dtype, "query_lengths": "int32", "key_lengths": "int32"}
    given: Any = {name: FakeArray.of(options.pop(name), masks[name]) for name in masks if name in options}
    return with_outputs(dnn.Attention(query, key, value, **given, save_lse=True, **options))


def backward_of(request: dnn.Attention) -> Any:
    """Return the backward of attention that has been done."""
    names = [name for name in dnn.AttentionBackward.__struct_fields__ if name in dnn.Attention.__struct_fields__]
    (dy,) = arrays(request.query.dtype, request.out.shape, seed=6)  # type: ignore[union-attr]
    given = {name: getattr(request, name) for name in names}
    return with_outputs(dnn.AttentionBackward(y=request.out, dy=dy, **given))  # type: ignore[arg-type]


ATTENTIONS: Final[dict[str, dict[str, Any]]] = {
    "plain": {"shape": (2, 2, 2, 3, 5)},
    "shared heads": {"shape": (2, 4, 2, 3, 5)},
    "causal": {"shape": (1, 2, 2, 5, 5), "is_causal": True},
    "causal, aligned at the end": {"shape": (1, 2, 2, 3, 5), "is_causal": True, "align": "bottom_right"},
    "scaled": {"shape": (1, 2, 1, 3, 5), "scale": 0.7},
    "window": {"shape": (1, 2, 2, 5, 5), "window": 2},
    "causal window": {"shape": (1, 2, 2, 5, 5), "window": 2, "is_causal": True},
    "endless window": {"shape": (1, 2, 2, 5, 5), "window": 2**31 - 1},
    "mask": {"shape": (2, 2, 1, 3, 5), "attn_mask": mask(2, 1, 3, 5)},
    "broadcast mask": {"shape": (2, 2, 1, 3, 5), "attn_mask": mask(3, 1)},
    "mask and causal": {"shape": (2, 2, 1, 4, 4), "attn_mask": mask(4, 4), "is_causal": True},
    "lengths": {"shape": (4, 2, 1, 3, 5), "query_lengths": [3, 1, 0, 9], "key_lengths": [5, 2, 3, -4]},
    "lengths of queries": {"shape": (2, 2, 1, 3, 5), "query_lengths": [3, 1]},
    "causal lengths": {"shape": (3, 2, 1, 4, 4), "is_causal": True, "key_lengths": [4, 1, 0]},
    "causal lengths, aligned at the end": {
        "shape": (3, 2, 1, 4, 4), "is_causal": True, "align": "bottom_right", "query_lengths": [4, 3, 1],
        "key_lengths": [2, 4, 4],
    },
    "window and lengths": {"shape": (3, 2, 1, 4, 4), "window": 2, "key_lengths": [4, 1, 0]},
}  # fmt: skip


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("case", ATTENTIONS)
def test_attention_gives_what_the_host_gives(case: str, dtype: str) -> None:
    """Forward and backward; of queries without a key too, for which cuDNN defines no result."""
    engines, host = Engines(), run_by(host_actor("dnn"))
    request = attention(dtype, **ATTENTIONS[case])
    engines.run(request)
    expected = with_outputs(msgspec.structs.replace(request, out=None, lse=None))
    host(expected)
    assert_alike(request, expected, ("out", "lse"))
    backward = backward_of(request)
    if (beyond := request.query_lengths) is not None:  # rows that no query has may hold anything
        for sample, count in enumerate(np.clip(beyond.array, 0, None)):
            backward.dy.array[sample, :, count:] = math.nan
    engines.run(backward)
    wanted = with_outputs(msgspec.structs.replace(backward, dquery=None, dkey=None, dvalue=None))
    host(wanted)
    assert_alike(backward, wanted, ("dquery", "dkey", "dvalue"))
    assert engines.cudnn.ran == [["sdpa"], ["sdpa_backward"]]


def assert_alike(found: Any, expected: Any, names: tuple[str, ...]) -> None:
    """Check that arrays of two requests are the same but for roundings: cuDNN has that of y, the host has not."""
    for name in names:
        actual, wanted = (getattr(each, name).array.astype(np.float64) for each in (found, expected))
        np.testing.assert_allclose(actual, wanted, rtol=0.02, atol=0.005, err_msg=name)


@pytest.mark.parametrize(
    "options",
    [
        {"dtype": "float32"},
        {"dropout_p": 0.5},
        {"is_causal": True, "align": "bottom_right", "shape": (1, 2, 2, 5, 3)},
        {"window": 1, "shape": (1, 2, 2, 5, 3)},
    ],
    ids=["float32", "dropout", "more queries than keys", "a window past the keys"],
)
def test_attention_that_cudnn_does_otherwise_is_declined(options: dict[str, Any]) -> None:
    """Its weights are of half precision, its random bits others, and queries without keys not defined."""
    engines = Engines()
    request = attention(**{"dtype": "float16", "shape": (1, 2, 2, 3, 5)} | options)
    assert engines.plan(request) is None


def test_heads_may_lie_between_others() -> None:
    """As the transposed (b, s, h, d) does; nothing is copied."""
    engines = Engines()
    query, key, value, out = (each.transpose(0, 2, 1, 3) for each in arrays("float16", *[(2, 6, 4, 8)] * 4))
    engines.run(dnn.Attention(query, key, value, out=out))
    assert [tensor.stride for tensor in engines.cudnn.built[0]._tensors[:4]] == [[192, 8, 32, 1]] * 4


@pytest.mark.parametrize("mode", ["batch", "instance"])
def test_norms_take_channels_last(mode: str) -> None:
    """A graph has the strides of x; if there is no such engine, x is copied."""
    engines = Engines()
    (x,) = arrays("bfloat16", (2, 5, 5, 8))
    cls: Any = {"batch": dnn.BatchNormTraining, "instance": dnn.InstanceNorm}[mode]
    engines.run(with_outputs(cls(x.transpose(0, 3, 1, 2))))
    assert engines.cudnn.built[0]._tensors[0].stride == [200, 1, 40, 8]


def test_the_backward_of_an_instance_norm_copies_channels_last() -> None:
    """The engine for these gives other gradients of weight and bias each time."""
    engines = Engines()
    x, dy = (each.transpose(0, 3, 1, 2) for each in arrays("bfloat16", (2, 5, 5, 8), (2, 5, 5, 8)))
    mean, invstd, weight = arrays("float32", (2, 8), (2, 8), (8,))
    engines.run(with_outputs(dnn.NormBackward(x, dy, invstd, mean=mean, weight=weight, mode="instance")))
    assert [tensor.stride for tensor in engines.cudnn.built[0]._tensors[:2]] == [[200, 25, 5, 1]] * 2
