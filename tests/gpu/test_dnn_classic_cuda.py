from __future__ import annotations

import functools
import itertools
import math
from typing import Any, Final

import msgspec
import numpy as np
import pytest

from atomr_mp.protocol.libraries import dnn
from tests.cases.dnn_cases import CLASSIC, GATES, REQUESTS, assert_agrees, packed_requests
from tests.direct import assert_all_agree, host_actor, run_by
from tests.fakes.fake_arrays import FakeArray
from tests.gpu import on_device
from tests.tolerances import assert_close

pytestmark = on_device.NEEDS_CUPY

run: Final = functools.partial(on_device.run, "dnn")
by_host: Final = run_by(host_actor("dnn"))

FLOATS: Final = ("float16", "bfloat16", "float32", "float64")


def classic() -> Any:
    """Return the engine, with all else of its library."""
    from atomr_mp_workers.libraries.dnn.cudnn.classic_plans import ClassicEngine

    found = [each for each in on_device.library("dnn")._engines if isinstance(each, ClassicEngine)]
    if not found or found[0]._found() is None:
        pytest.skip("cuDNN is not installed")
    return found[0]


def serves(request: Any) -> bool:
    """Return whether cuDNN's classic calls serve a request."""
    return classic().planned(request) is not None


@pytest.mark.parametrize("name", CLASSIC)
def test_what_it_serves_is_what_the_request_means(name: str) -> None:
    """In every type, whatever factors; nothing else is written."""
    classic()
    served = 0

    def agrees(request: Any, *rest: Any) -> None:
        nonlocal served
        served += 1
        assert_agrees(request, *rest)

    assert_all_agree(packed_requests(REQUESTS[name]).filter(serves), 100, agrees, run)
    assert served > 30


def with_outputs(request: Any) -> Any:
    """Return a request with its outputs."""
    made = {name: FakeArray(layout) for name, layout in request.results().items()}
    return msgspec.structs.replace(request, **made)


def with_other_outputs(request: Any) -> Any:
    """Return a request with outputs that no other request has."""
    request = with_outputs(request)
    made = {name: FakeArray(each.layout) for name, argument, each in request.arrays() if argument.writes and each}
    return msgspec.structs.replace(request, **made)


def assert_is_the_hosts(request: Any, length: int = 64, magnitude: float = 8.0, *, served: bool = True) -> None:
    """Have cuDNN, or CuPy if cuDNN does not serve it, and the host do a request, and compare."""
    ours, theirs = with_other_outputs(request), with_other_outputs(request)
    assert serves(ours) == served
    with np.errstate(all="ignore"):
        by_host(theirs)
    run(ours)
    for one, other in zip(ours.written(), theirs.written(), strict=True):
        if one.dtype != "uint8":  # not what is reserved
            assert_close(one.array, other.array.astype(np.float64), one.dtype, length, magnitude)


SPECIAL: Final = (0.0, -0.0, 1e-5, -1e-5, 0.5, -0.5, 5.0, -5.0, 12.0, -12.0, 80.0, -80.0, math.nan)
"""Numbers that are no trouble to a definition."""


def special(dtype: str) -> FakeArray:
    """Return them, and others, in an image."""
    return FakeArray.of(np.resize(SPECIAL, (2, 3, 13, 16)), dtype)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("kind", ["relu", "sigmoid", "tanh", "silu"])
def test_activations_of_any_number(kind: Any, dtype: str) -> None:
    """Large and small ones, and NaNs."""
    x = special(dtype)
    assert_is_the_hosts(dnn.Activation(x, kind=kind))
    if kind == "relu" or x.layout.item_bytes > 2:
        dy = FakeArray.of(np.random.default_rng(1).uniform(0.5, 2, x.shape), dtype)
        assert_is_the_hosts(dnn.ActivationBackward(x, dy, kind=kind), served=kind != "relu")


@pytest.mark.parametrize("value", [math.inf, -math.inf])
@pytest.mark.parametrize("kind", ["relu", "sigmoid", "tanh"])
def test_activations_of_infinite_numbers(kind: Any, value: float) -> None:
    """They have limits."""
    assert_is_the_hosts(dnn.Activation(FakeArray.of(np.full((4, 8), value), "float32"), kind=kind))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("log", [False, True])
def test_softmax_of_large_numbers_of_infinite_ones_and_of_nans(dtype: str, *, log: bool) -> None:
    """A row's sum has no overflow; -inf has the share 0, and a row with a NaN is one of NaNs."""
    rows = np.array([[60000, 60000, 0, 1], [-60000, -60001, 3, 4], [-np.inf, 1, 2, 3], [np.nan, 1, 2, 3]])
    for dim, axis in ((-1, rows), (0, rows.T.copy())):
        assert_is_the_hosts(dnn.Softmax(FakeArray.of(axis, dtype), dim=(dim,), log=log), served=not log)


@pytest.mark.parametrize("shape", [(70000, 5), (3, 70000), (5, 7, 300), (70000, 3, 2)])
@pytest.mark.parametrize("log", [False, True])
def test_softmax_of_many_rows_and_of_long_ones(shape: tuple[int, ...], *, log: bool) -> None:
    """Along each dimension, and in place."""
    random = np.random.default_rng(1)
    for dim in range(len(shape)):
        x, dy = (FakeArray.of(random.uniform(-2, 2, shape), "float32") for _ in range(2))
        forward = with_outputs(dnn.Softmax(x, dim=(dim,), log=log))
        assert_is_the_hosts(forward, shape[dim], served=not log)
        by_host(forward)
        assert_is_the_hosts(dnn.SoftmaxBackward(forward.out, dy, dim=(dim,), log=log), shape[dim])
        copy = FakeArray.of(x.array, "float32")
        run(dnn.Softmax(copy, copy, dim=(dim,), log=log))
        assert_close(copy.array, forward.out.array.astype(np.float64), "float32", shape[dim], 8.0)


WINDOWS: Final[list[dict[str, Any]]] = [
    {"kernel_size": (2,)},
    {"kernel_size": (3,), "stride": (1,), "padding": (1,)},
    {"kernel_size": (3,), "stride": (2,), "padding": (1,)},
    {"kernel_size": (5,), "stride": (1,), "padding": (2,)},
]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("window", WINDOWS, ids=str)
@pytest.mark.parametrize("mode", ["max", "avg"])
@pytest.mark.parametrize("space", [(40,), (13, 16), (6, 7, 8)], ids=str)
def test_pooling_of_images_with_equal_elements(space: tuple[int, ...], mode: Any, window: Any, dtype: str) -> None:
    """Of equal maxima the first has the gradient, wherever windows overlap; averages count as they are declared."""
    random = np.random.default_rng(2)
    x = FakeArray.of(np.maximum(random.integers(-3, 3, (3, 4, *space)), 0), dtype)
    for counts in (True, False):
        way = window | {"mode": mode, "count_include_pad": counts}
        forward = with_outputs(dnn.WindowPool(x, **way))
        assert_is_the_hosts(forward, served=mode == "avg")
        by_host(forward)
        dy = FakeArray.of(random.uniform(-1, 1, forward.out.shape), dtype)
        assert_is_the_hosts(dnn.WindowPoolBackward(x, forward.out, dy, **way))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("value", [math.nan, -math.inf, math.inf])
def test_maxima_of_windows_with_nans_and_infinite_numbers(value: float, dtype: str) -> None:
    """A NaN is the maximum of each of its windows."""
    values = np.random.default_rng(3).uniform(-1, 1, (2, 3, 8, 8))
    values[0, 0, 3:5, 2:6] = value
    values[1, 2] = value
    x = FakeArray.of(values, dtype)
    for window in WINDOWS[:3]:
        assert_is_the_hosts(dnn.WindowPool(x, **window), served=False)


@pytest.mark.parametrize("dtype", FLOATS)
def test_gradients_of_maxima_that_are_nans(dtype: str) -> None:
    """The first NaN of a window has the gradient."""
    values = np.random.default_rng(3).uniform(-1, 1, (2, 3, 8, 8))
    values[0, 0, 3:5, 2:6] = math.nan
    x = FakeArray.of(values, dtype)
    forward = with_outputs(dnn.WindowPool(x, kernel_size=(2,)))
    by_host(forward)
    dy = FakeArray.of(np.ones(forward.out.shape), dtype)
    assert_is_the_hosts(dnn.WindowPoolBackward(x, forward.out, dy, kernel_size=(2,)))


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("size", [1, 3, 5, 9, 15])
@pytest.mark.parametrize("channels", [1, 4, 24, 300])
def test_norms_by_neighbouring_channels(channels: int, size: int, dtype: str) -> None:
    """Of fewer channels than the window has, and of many."""
    random = np.random.default_rng(4)
    x, dy = (FakeArray.of(random.uniform(-2, 2, (2, channels, 5, 7)), dtype) for _ in range(2))
    for alpha, beta, k in ((1e-4, 0.75, 1.0), (2.0, 0.5, 2.0), (1.0, 2.0, 1e-3)):
        how: Any = {"size": size, "alpha": alpha, "beta": beta, "k": k}
        magnitude = 8.0 * k ** (-beta - 1)
        assert_is_the_hosts(dnn.ResponseNorm(x, **how), magnitude=magnitude)
        if dtype != "float16":
            assert_is_the_hosts(dnn.ResponseNormBackward(x, dy, **how), magnitude=magnitude)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape", [(65535, 3), (5, 300, 33, 7), (3, 1, 70000)])
def test_norms_by_given_statistics(shape: tuple[int, ...], dtype: str) -> None:
    """Of many samples, channels and places; row-major and with channels last."""
    random = np.random.default_rng(5)
    wide = "float64" if dtype == "float64" else "float32"
    mean, variance = (FakeArray.of(random.uniform(0.1, 2, shape[1]), wide) for _ in range(2))
    weight, bias = (FakeArray.of(random.uniform(-2, 2, shape[1]), dtype) for _ in range(2))
    x = FakeArray.of(random.uniform(-2, 2, shape), dtype)
    request = dnn.BatchNorm(x, mean, variance, weight, bias)
    assert_is_the_hosts(request)
    n, c, *space = shape
    order = (0, len(shape) - 1, *range(1, len(shape) - 1))
    image = FakeArray.of(random.uniform(-2, 2, (n, *space, c)), dtype).transpose(*order)
    out = FakeArray.of(np.zeros((n, *space, c)), dtype).transpose(*order)
    request = dnn.BatchNorm(image, mean, variance, out=out)
    assert serves(request)
    run(request)
    expected = with_outputs(dnn.BatchNorm(image, mean, variance))
    by_host(expected)
    assert_close(out.array, expected.out.array.astype(np.float64), dtype, 8, 8.0)


# --- networks ---------------------------------------------------------------------------------------------------------


def network(mode: str, dtype: str, layers: int, ways: int, hidden: int = 32) -> tuple[dnn.RnnForward, dict[str, Any]]:
    """Return a network with its outputs, and its options."""
    random = np.random.default_rng(6)
    t, b, inputs = 9, 5, 24
    options: dict[str, Any] = {"mode": mode, "hidden_size": hidden, "num_layers": layers, "bidirectional": ways == 2}
    count = sum(
        ways * GATES[mode] * hidden * ((ways * hidden if layer else inputs) + hidden + 2) for layer in range(layers)
    )
    x, weights = (FakeArray.of(random.uniform(-0.3, 0.3, shape), dtype) for shape in ((t, b, inputs), count))
    states = [FakeArray.of(random.uniform(-1, 1, (layers * ways, b, hidden)), dtype) for _ in range(2)]
    given: dict[str, Any] = dict(zip(("h0", "c0"), states[: 1 + (mode == "lstm")], strict=False))
    return with_outputs(dnn.RnnForward(x, weights, **given, save_reserve=True, **options)), options | given


NETWORKS: Final = list(itertools.product(GATES, (1, 2), (1, 2)))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(("mode", "layers", "ways"), NETWORKS)
def test_networks_are_those_of_the_host(mode: str, layers: int, ways: int, dtype: str) -> None:
    """Our weights lie as cuDNN's do, our reserve has room for its own, and gradients are right; each time the same."""
    forward, options = network(mode, dtype, layers, ways)
    assert_is_the_hosts(forward)
    first: list[Any] = []
    for turn in range(10):
        run(forward)
        random = np.random.default_rng(7)
        dy: Any = FakeArray.of(random.uniform(-1, 1, forward.out.shape), dtype)  # type: ignore[union-attr]
        x, weights, y, reserve = (getattr(forward, name) for name in ("x", "weights", "out", "reserve"))
        backward = with_outputs(dnn.RnnBackward(x, weights, y, dy, reserve, **options))
        assert serves(backward)
        run(backward)
        found = [each.array.copy() for each in backward.written()[1:]]
        first = first or found
        for one, other in zip(found, first, strict=True):
            np.testing.assert_array_equal(one, other, f"turn {turn}")
    theirs = with_other_outputs(forward)
    by_host(theirs)
    expected = with_outputs(dnn.RnnBackward(x, weights, theirs.out, dy, theirs.reserve, **options))
    by_host(expected)
    for one, host in zip(first, expected.written()[1:], strict=True):
        assert_close(one, host.array.astype(np.float64), dtype, 640, 16.0)


@pytest.mark.parametrize("step", [1, 16])
def test_a_reserve_may_begin_anywhere(step: int) -> None:
    """It is copied to where cuDNN may read it."""
    forward, options = network("lstm", "float32", 2, 2)
    whole = FakeArray.of(np.zeros(forward.reserve.nbytes + step), "uint8")  # type: ignore[union-attr]
    found = []
    for reserve in (forward.reserve, whole[step:]):
        run(msgspec.structs.replace(forward, reserve=reserve))
        given = forward.x, forward.weights, forward.out, forward.out, reserve
        backward = with_outputs(dnn.RnnBackward(*given, **options))  # type: ignore[arg-type]
        run(backward)
        found.append([each.array.copy() for each in backward.written()[1:]])
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)
