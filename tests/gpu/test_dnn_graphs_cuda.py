"""cuDNN's graphs by themselves; tests/gpu/test_dnn_cuda.py has them within the library."""

from __future__ import annotations

import functools
import importlib.util
import logging
import math
from collections.abc import Callable
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from atomr_mp.protocol.declaration.arguments import with_arrays
from atomr_mp.protocol.libraries import dnn
from atomr_mp.protocol.libraries.base import HALF
from atomr_mp_workers.libraries.base import Library
from tests.cases.dnn_cases import REQUESTS, assert_agrees, mask, requests
from tests.direct import assert_all_agree, host_actor, run_by
from tests.fakes.fake_arrays import FakeArray
from tests.gpu import on_device
from tests.tolerances import assert_close

pytestmark = [
    *on_device.NEEDS_CUPY,
    pytest.mark.skipif(importlib.util.find_spec("cudnn") is None, reason="needs cuDNN's frontend"),
]

Array = npt.NDArray[Any]

CONVOLUTIONS: Final = ("conv", "conv_transpose", "conv_input", "conv_weight")
NORMS: Final = ("batch_norm_training", "layer_norm", "rms_norm", "instance_norm", "group_norm", "norm_backward")
TIMES: Final = 5
"""How often a request is repeated."""

host: Final = run_by(host_actor("dnn"))


@functools.cache
def engines() -> list[Any]:
    """Return the engines of graphs, on a stream of their own."""
    from atomr_mp_workers.libraries.dnn.cudnn.attention_plans import GraphAttentions
    from atomr_mp_workers.libraries.dnn.cudnn.convolution_plans import GraphConvolutions
    from atomr_mp_workers.libraries.dnn.cudnn.norm_plans import GraphNorms

    library = Library(on_device.context(), on_device.device().make_stream("graphs", inline_bytes=0))
    return [cls(library) for cls in (GraphConvolutions, GraphNorms, GraphAttentions)]


def run(request: Any, served: list[bool] | None = None, times: int = 1) -> None:
    """Have a request done by a graph, or on the host if there is none; its arrays' memory travels there and back.

    Args:
        request: To be done.
        served: Is told whether there was a graph.
        times: How often it is done; each time it has to give the same bits.
    """
    found: dict[int, Any] = {array.number: array.slab for _, _, array in request.arrays() if array is not None}
    there = {number: on_device.device().make_slab(slab.nbytes) for number, slab in found.items()}
    placed = with_arrays(request, lambda array: on_device.placed(there[array.number], array))  # type: ignore[arg-type,attr-defined]
    plan = next((made for engine in engines() if (made := engine.planned(placed)) is not None), None)
    if served is not None:
        served.append(plan is not None)
    if plan is None:
        host(request)
        return
    stream = engines()[0]._library.stream.stream
    before = {number: slab.copy() for number, slab in found.items()}
    for turn in range(times):
        for number, slab in before.items():
            on_device.over(there[number]).set(slab)
        on_device.synchronize()
        with stream:
            plan(placed)
        stream.synchronize()
        for number, slab in found.items():
            now = on_device.over(there[number]).get()
            if turn:
                np.testing.assert_array_equal(now, slab)
            slab[:] = now


def has_work(request: Any) -> bool:
    """Return whether the arrays of a request have elements, and its alpha is not 0."""
    return getattr(request, "alpha", 1) != 0 and all(each is None or each.size for _, _, each in request.arrays())


@pytest.mark.parametrize("name", [*CONVOLUTIONS, *NORMS])
def test_results_are_those_of_the_definitions(name: str) -> None:
    """Whatever strides, options, factors, types; nothing else is written. Many are served, but few tiny images.

    Of drawn norms in training, and their backward, there may be none with a graph: other tests have some.
    """
    served: list[bool] = []
    count = 100 if name in CONVOLUTIONS else 25  # norms are compiled
    drawn = requests(REQUESTS[name]).filter(has_work)
    assert_all_agree(drawn, count, assert_agrees, functools.partial(run, served=served))
    if name not in {"batch_norm_training", "instance_norm", "norm_backward"}:
        assert sum(served) > len(served) // 8


# --- convolutions -----------------------------------------------------------------------------------------------------

SPACES: Final = {"line": (37,), "image": (13, 11), "volume": (5, 6, 7)}


def random(dtype: str, *shapes: tuple[int, ...], seed: int = 5, last: bool = False) -> list[Any]:
    """Return arrays of random numbers, with the second dimension varying fastest if that is wanted."""
    numbers = np.random.default_rng(seed)
    found = []
    for shape in shapes:
        if last and len(shape) > 2:
            array = FakeArray.of(numbers.uniform(-1, 1, (shape[0], *shape[2:], shape[1])), dtype)
            found.append(array.transpose(0, len(shape) - 1, *range(1, len(shape) - 1)))
        else:
            found.append(FakeArray.of(numbers.uniform(-1, 1, shape), dtype))
    return found


def convolution(name: str, dtype: str, *, space: str = "image", last: bool = False, groups: int = 1) -> Any:
    """Return a convolution of 16 channels, with uneven padding."""
    lengths = SPACES[space]
    count = len(lengths)
    way: dict[str, Any] = {"padding": (1, 0) * count, "stride": (2, *(1,) * (count - 1)), "groups": groups}
    places = tuple((n + 1 - 3) // step + 1 for n, step in zip(lengths, way["stride"], strict=True))
    shapes: dict[str, tuple[int, ...]] = {
        "image": (3, 16, *lengths),
        "window": (32, 16 // groups, *(3,) * count),
        "places": (3, 32, *places),
    }
    x, weight, dy = random(dtype, shapes["image"], shapes["window"], shapes["places"], last=last)
    out = FakeArray.of(np.zeros(1), dtype)
    if name == "conv":
        made: Any = dnn.Conv(x, weight, **way)
    elif name == "conv_transpose":
        made = dnn.ConvTranspose(dy, weight, **way)
    elif name == "conv_input":
        made = dnn.ConvInput(weight, dy, size=lengths, **way)
    else:
        made = dnn.ConvWeight(x, dy, size=(3,) * count, **way)
    (layout,) = made.results().values()
    (out,) = random(dtype, layout.shape, last=last)
    return msgspec.structs.replace(made, out=out)


def exact(request: Any) -> Array:
    """Return what the host gives for a request in float64."""
    wide = with_arrays(request, lambda each: FakeArray.of(each.array.astype(np.float64), "float64"))  # type: ignore[attr-defined]
    if hasattr(wide, "allow_tf32"):
        wide = msgspec.structs.replace(wide, allow_tf32=False)
    host(wide)
    found: Array = wide.out.array
    return found


@pytest.mark.parametrize("dtype", dnn.FLOATS)
@pytest.mark.parametrize("groups", [1, 4, 16])
@pytest.mark.parametrize("last", [False, True], ids=["rows", "channels last"])
@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions_are_served_and_repeat(name: str, space: str, dtype: str, groups: int, *, last: bool) -> None:
    """Every kind; ones of float32 to all its bits."""
    request = convolution(name, dtype, space=space, last=last, groups=groups)
    served: list[bool] = []
    expected = exact(request)
    run(request, served, TIMES)
    assert_close(request.out.array, expected, dtype, 3 * 16 * 343, 1.0)
    if not all(served):
        pytest.skip("no engine")


@pytest.mark.parametrize("fault", ["wrong", "other each time"])
def test_an_engine_that_is_wrong_is_not_used(
    fault: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The next one is; a trial that finds every engine wrong leaves the request to others."""
    from atomr_mp_workers.libraries.dnn.cudnn import convolution_plans, graphs

    used: list[str] = []
    call = graphs.CudnnGraph.__call__

    def spoilt(graph: Any, arrays: Any) -> None:
        call(graph, arrays)
        used.append(graph.engine)
        if graph.engine == used[0] and (fault == "wrong" or not len(used) % 2):
            arrays["out"][-1, -1, -1, -1] *= 1.0 + 2.0**-6

    monkeypatch.setattr(graphs.CudnnGraph, "__call__", spoilt)
    request = convolution("conv", "float32")
    expected, served = exact(request), list[bool]()
    with caplog.at_level(logging.WARNING, "atomr_mp.worker"):
        run(request, served)
    assert_close(request.out.array, expected, "float32", 144, 1.0)
    assert used[0] == used[1] != used[2]
    assert any(used[0] in message for message in caplog.messages)
    monkeypatch.setattr(convolution_plans, "is_close", lambda *_, **__: False)
    run(convolution("conv", "float32"), served)
    assert served == [True, False]


@pytest.mark.parametrize("dtype", dnn.FLOATS)
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_some_samples_are_tried_of_many(name: str, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine is right for all of them."""
    from atomr_mp_workers.libraries.dnn.cudnn import convolution_plans

    monkeypatch.setattr(convolution_plans, "TRIAL_BYTES", 2**17)
    request = convolution(name, dtype, last=True)
    served: list[bool] = []
    expected = exact(request)
    run(request, served)
    assert_close(request.out.array, expected, dtype, 3 * 16 * 343, 1.0)
    assert served == [True]


def test_tf32_is_taken_only_where_it_is_allowed() -> None:
    """It is off by 2⁻¹¹ of a factor at most; by default nothing is."""
    for allowed, error in ((False, 0.0), (True, 2.0**-10)):
        request = msgspec.structs.replace(convolution("conv", "float32"), allow_tf32=allowed)
        expected = exact(request)
        run(request)
        assert_close(request.out.array, expected, "float32", 144, 1.0 + error * 2**21)


@pytest.mark.parametrize("dtype", dnn.FLOATS)
@pytest.mark.parametrize("activation", ["identity", "relu", "gelu"])
@pytest.mark.parametrize("last", [False, True], ids=["rows", "channels last"])
@pytest.mark.parametrize("factors", [(1.0, 0.0), (0.5, 0.0), (1.0, 1.0)], ids=str)
def test_what_follows_the_products(activation: str, dtype: str, factors: tuple[float, float], *, last: bool) -> None:
    """Bias and activation, in the graph or by CuPy; of a NaN comes a NaN, as on the host."""
    alpha, beta = factors
    request = convolution("conv", dtype, last=last)
    (bias,) = random(dtype, (32,))
    request.x.array[0, 0, 5, 5] = math.nan
    request = msgspec.structs.replace(request, bias=bias, activation=activation, alpha=alpha, beta=beta)
    expected = exact(request)
    served: list[bool] = []
    run(request, served, TIMES)
    assert served == [True]
    assert np.isnan(expected).any()
    assert_close(request.out.array, expected, dtype, 146, 4.0)


def test_the_public_way_to_run_graphs_gives_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """A version of the frontend may have no other."""
    from atomr_mp_workers.libraries.dnn.cudnn import graphs

    first = convolution("conv", "float32")
    run(first)
    other = convolution("conv", "float32")

    def public(graph: Any, handle: Any) -> Callable[[dict[int, int], int], None]:
        return lambda addresses, workspace: graph.execute(addresses, workspace, handle=handle)

    monkeypatch.setattr(graphs, "_runner", public)
    run(other)
    np.testing.assert_array_equal(other.out.array, first.out.array)


# --- norms ------------------------------------------------------------------------------------------------------------

WAYS: Final[dict[str, Callable[..., Any]]] = {
    "batch": dnn.BatchNormTraining,
    "layer": lambda *of, **more: dnn.LayerNorm(*of, normalized_shape=of[0].shape[-1:], **more),
    "rms": lambda *of, **more: dnn.RmsNorm(*of[:2], normalized_shape=of[0].shape[-1:], **more),
    "instance": dnn.InstanceNorm,
    "group": functools.partial(dnn.GroupNorm, num_groups=4),
}


def with_outputs(request: Any) -> Any:
    """Return a request with the arrays that it writes."""
    return msgspec.structs.replace(request, **{name: FakeArray(each) for name, each in request.results().items()})


def wide(request: Any) -> Any:
    """Return a request in float64 that the host has done, with outputs of its own."""
    made = with_arrays(request, lambda each: FakeArray.of(each.array.astype(np.float64), "float64"))  # type: ignore[attr-defined]
    host(made)
    return made


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("last", [False, True], ids=["rows", "channels last"])
@pytest.mark.parametrize("weighted", [True, False], ids=["weighted", "plain"])
@pytest.mark.parametrize("mode", WAYS)
def test_norms_are_served_and_repeat(mode: str, dtype: str, *, last: bool, weighted: bool) -> None:
    """Forward with statistics, and backward; means that are far from 0 cost no more than their rounding."""
    (x,) = random(dtype, (6, 16, 9, 24), last=last)
    x.array[...] = (x.array.astype(np.float64) + 4).astype(x.array.dtype)
    affine = random("float32", *[(24,) if mode in {"layer", "rms"} else (16,)] * 2)
    more: dict[str, Any] = {} if mode == "batch" else {"save_statistics": True}
    if mode == "batch" and weighted:
        running = [FakeArray.of(np.full(16, value), "float32") for value in (3.0, 2.0)]
        more = dict(zip(("running_mean", "running_var"), running, strict=True))
    forward = with_outputs(WAYS[mode](x, *(affine if weighted else ()), **more))
    expected = wide(forward)
    served: list[bool] = []
    run(forward, served, TIMES)
    compare(forward, expected)
    mean = {} if mode == "rms" else {"mean": forward.mean}
    shape = (24,) if mode in {"layer", "rms"} else ()
    (dy,) = random(dtype, x.shape, seed=6, last=last)
    weight = forward.weight
    backward = with_outputs(
        dnn.NormBackward(
            x, dy, forward.invstd, weight=weight, mode=mode, normalized_shape=shape,  # type: ignore[arg-type]
            num_groups=4 if mode == "group" else 1, **mean,
        )
    )  # fmt: skip
    expected = wide(backward)
    run(backward, served, TIMES)
    compare(backward, expected)
    assert served == [True, mode != "group" or not weighted]


@pytest.mark.parametrize("mode", ["batch", "instance"])
def test_norms_of_many_sizes_are_right(mode: str) -> None:
    """Those of images, whose channels are multiples of 8; some are served."""
    served: list[bool] = []
    sizes = st.tuples(st.integers(2, 5), st.sampled_from([8, 16, 40]), st.integers(1, 12), st.integers(2, 13))
    drawn = st.tuples(sizes, st.sampled_from(["float32", "float16", "bfloat16"]), st.booleans())

    @given(drawn)
    @settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
    def agree(case: tuple[tuple[int, ...], str, bool]) -> None:
        shape, dtype, last = case
        (x,) = random(dtype, shape, last=last)
        request = with_outputs(WAYS[mode](x, *random("float32", shape[1:2], shape[1:2])))
        expected = wide(request)
        run(request, served, 2)
        compare(request, expected)

    agree()
    assert any(served)


def compare(found: Any, expected: Any) -> None:
    """Compare all that two requests have written."""
    for name, argument, array in found.arrays():
        if argument.writes and array is not None:
            assert_close(array.array, getattr(expected, name).array, array.dtype, 6 * 9 * 24, 16.0)


# --- attention --------------------------------------------------------------------------------------------------------


ATTENTIONS: Final[dict[str, dict[str, Any]]] = {
    "plain": {"shape": (2, 4, 4, 130, 150)},
    "one query": {"shape": (2, 4, 4, 1, 150)},
    "shared heads": {"shape": (2, 8, 2, 130, 150)},
    "causal": {"shape": (2, 4, 4, 130, 150), "is_causal": True},
    "causal, more queries": {"shape": (2, 4, 4, 150, 130), "is_causal": True},
    "causal, aligned at the end": {"shape": (2, 4, 4, 130, 150), "is_causal": True, "align": "bottom_right"},
    "window": {"shape": (1, 2, 2, 150, 150), "window": 20},
    "causal window": {"shape": (1, 2, 2, 150, 150), "window": 20, "is_causal": True},
    "mask": {"shape": (2, 4, 2, 130, 152), "attn_mask": mask(2, 1, 130, 152)},
    "odd mask": {"shape": (2, 4, 2, 13, 15), "attn_mask": mask(13, 15)},
    "mask and causal": {"shape": (2, 4, 2, 144, 144), "attn_mask": mask(144, 144), "is_causal": True},
    "lengths": {"shape": (4, 4, 2, 130, 150), "query_lengths": [130, 17, 0, 999], "key_lengths": [150, 64, 30, -4]},
    "lengths of keys": {"shape": (2, 4, 4, 130, 150), "key_lengths": [0, 70]},
    "causal lengths": {"shape": (3, 4, 2, 150, 150), "is_causal": True, "key_lengths": [150, 40, 0]},
    "causal lengths, aligned at the end": {
        "shape": (3, 4, 2, 150, 150), "is_causal": True, "align": "bottom_right", "query_lengths": [150, 149, 1],
        "key_lengths": [20, 150, 150],
    },
    "window and lengths": {"shape": (3, 4, 2, 150, 150), "window": 20, "is_causal": True, "key_lengths": [150, 40, 0]},
}  # fmt: skip


def attention(dtype: str, d: int, dv: int, options: dict[str, Any]) -> Any:
    """Return attention with results of its own."""
    options = dict(options)
    b, hq, hk, sq, sk = options.pop("shape")
    query, key, value = random(dtype, (b, hq, sq, d), (b, hk, sk, d), (b, hk, sk, dv))
    masks = {"attn_mask": dtype, "query_lengths": "int32", "key_lengths": "int32"}
    given: Any = {name: FakeArray.of(options.pop(name), masks[name]) for name in masks if name in options}
    return with_outputs(dnn.Attention(query, key, value, **given, save_lse=True, **options))


def in_float32(request: Any) -> Any:
    """Return a request on the same numbers in float32 that the host has done."""
    made = with_arrays(
        request, lambda each: each if each.dtype == "int32" else FakeArray.of(each.array.astype(np.float32), "float32")  # type: ignore[attr-defined]
    )  # fmt: skip
    host(made)
    return made


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize(
    ("case", "sizes"),
    [*((case, (64, 64)) for case in ATTENTIONS), ("plain", (8, 16)), ("causal", (8, 16)), ("causal", (128, 64))],
    ids=str,
)
def test_attention_is_served_and_repeats(case: str, dtype: str, sizes: tuple[int, int]) -> None:
    """Forward and backward, each within roundings of weights, of y and of results; the host's in float32."""
    forward = attention(dtype, *sizes, ATTENTIONS[case])
    served: list[bool] = []
    expected = in_float32(forward)
    run(forward, served, TIMES)
    alike(forward, expected, ("out", "lse"), dtype)
    names = [name for name in dnn.AttentionBackward.__struct_fields__ if name in dnn.Attention.__struct_fields__]
    (dy,) = random(dtype, forward.out.shape, seed=6)
    if forward.query_lengths is not None:  # rows that no query has may hold anything
        for sample, count in enumerate(np.clip(forward.query_lengths.array, 0, None)):
            dy.array[sample, :, count:] = math.nan
    given = {name: getattr(forward, name) for name in names}
    backward = with_outputs(dnn.AttentionBackward(y=forward.out, dy=dy, **given))
    expected = in_float32(backward)
    run(backward, served, TIMES)
    alike(backward, expected, ("dquery", "dkey", "dvalue"), dtype)
    if not all(served):
        pytest.skip(f"no engine: forward {served[0]}, backward {served[1]}")


def alike(found: Any, expected: Any, names: tuple[str, ...], dtype: str) -> None:
    """Check that arrays of two requests are the same but for roundings to half precision along the way."""
    step = 2.0**-7 if dtype == "bfloat16" else 2.0**-10
    for name in names:
        actual, wanted = (getattr(each, name).array.astype(np.float64) for each in (found, expected))
        finite = np.isfinite(wanted)
        np.testing.assert_array_equal(actual[~finite], wanted[~finite], err_msg=name)
        largest = np.abs(wanted[finite]).max(initial=1e-3)
        np.testing.assert_allclose(actual[finite], wanted[finite], rtol=4 * step, atol=2 * step * largest, err_msg=name)
