from __future__ import annotations

import itertools
import math
import tracemalloc
from collections.abc import Callable
from typing import Any, Final

import msgspec
import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from atomr_mp import errors
from atomr_mp.libraries.dnn import Reference
from atomr_mp.protocol.libraries.dnn_shapes import Sweep
from tests.cases.dnn_cases import ACTIVATIONS
from tests.direct import DirectDevice, host_actor, run_by
from tests.fakes.fake_arrays import FakeArray
from tests.in_turn import in_turn
from tests.tolerances import EPSILONS, assert_close

run: Final = run_by(host_actor("dnn"))
DNN: Final[Any] = Reference(DirectDevice(run))


def of(*shape: int, dtype: str = "float64", seed: int = 1) -> FakeArray:
    """Return an array of random numbers."""
    return FakeArray.of(np.random.default_rng([seed, *shape]).uniform(-1, 1, shape), dtype)


def done(request: Any) -> Any:
    """Do a request with the outputs that it leaves out, and return these: one, or a list."""
    made = {name: FakeArray(layout) for name, layout in request.results().items()}
    run(type(request)(**{name: getattr(request, name) for name in request.__struct_fields__} | made))
    found = [each.array for each in made.values()]
    return found[0] if len(found) == 1 else found


# --- mistakes ---------------------------------------------------------------------------------------------------------

X, W = of(2, 4, 5, 6), of(6, 2, 3, 3)


@in_turn(
    "message, call",
    [
        (
            "x has 3 dimensions; here it must have 4: batch, channels, and 2 of space",
            lambda: DNN.conv2d(of(2, 4, 5), W),
        ),
        ("the image has 1 dimension and the window 2", lambda: DNN.conv(of(2, 4, 5), W, groups=2)),
        ("moves along 1 to 3 dimensions; here it is 4", lambda: DNN.conv(of(1, 1, *(2,) * 4), of(1, 1, *(2,) * 4))),
        ("moves along 1 to 3 dimensions; here it is 0", lambda: DNN.conv(of(1, 1), of(1, 1))),
        ("must have c / groups channels", lambda: DNN.conv(X, W)),
        ("groups must divide k", lambda: DNN.conv(X, of(5, 2, 3, 3), groups=2)),
        (
            "spans 7 elements of dimension 1, where the image has 6 with 0 \\+ 0",
            lambda: DNN.conv2d(X, W, groups=2, dilation=(1, 3)),
        ),
        ("shape \\(0, 3\\), and no element", lambda: DNN.conv2d(X, of(6, 2, 0, 3), groups=2)),
        (
            "stride has 3 numbers; for 2 dimensions it may have 1 or 2",
            lambda: DNN.conv2d(X, W, groups=2, stride=(1, 1, 1)),
        ),
        (
            "padding has 3 numbers; for 2 dimensions it may have 1 or 2, or 4",
            lambda: DNN.conv2d(X, W, groups=2, padding=(1, 1, 1)),
        ),
        ("stride is \\(0,\\)", lambda: DNN.conv2d(X, W, groups=2, stride=0)),
        ("padding is \\(-1,\\)", lambda: DNN.conv2d(X, W, groups=2, padding=-1)),
        (
            "padding is 'same'; it must be a sequence",
            lambda: DNN.conv2d(X, W, groups=2, padding="same"),
        ),
        ("groups is 0", lambda: DNN.conv2d(X, W, groups=0)),
        ("x is float64 and weight is float32", lambda: DNN.conv2d(X, of(6, 2, 3, 3, dtype="float32"), groups=2)),
        (
            "conv is not defined for int8",
            lambda: DNN.conv2d(of(1, 1, 3, 3, dtype="int8"), of(1, 1, 1, 1, dtype="int8")),
        ),
        ("k must be the same for all arrays", lambda: DNN.conv2d(X, W, of(5), groups=2)),
        ("out must be given: beta multiplies", lambda: DNN.conv2d(X, W, groups=2, beta=1)),
        ("out has the shape", lambda: DNN.conv2d(X, W, None, of(2, 6, 3, 5), groups=2)),
        ("Only float32 can be computed as tf32", lambda: DNN.conv2d(X, W, groups=2, allow_tf32=True)),
        ("alpha is complex", lambda: DNN.conv2d(X, W, groups=2, alpha=1j)),
        (
            "activation is 'leaky'; it must be one of identity, relu",
            lambda: DNN.conv2d(X, W, groups=2, activation="leaky"),
        ),
        ("is larger than any memory", lambda: DNN.conv2d(X, W, groups=2, padding=2**31 - 1)),
        ("must be less than the stride", lambda: DNN.conv_transpose2d(of(2, 6, 3, 3), W, groups=2, output_padding=1)),
        ("the result would have the lengths", lambda: DNN.conv_transpose2d(of(2, 6, 3, 3), W, groups=2, padding=9)),
        (
            "bias has the shape \\(6,\\); it must have \\(4,\\)",
            lambda: DNN.conv_transpose2d(of(2, 6, 3, 3), W, of(6), groups=2),
        ),
        ("dy has \\(3, 5\\)", lambda: DNN.conv2d_input(W, of(2, 6, 3, 5), groups=2, size=(5, 6))),
        ("the window 2; they must have", lambda: DNN.conv_input(W, of(2, 6, 3), groups=2)),
        ("give size or out", lambda: DNN.conv2d_weight(X, of(2, 6, 3, 4), groups=2)),
        (
            "has the places \\(4, 4\\) on x; dy has \\(3, 4\\)",
            lambda: DNN.conv2d_weight(X, of(2, 6, 3, 4), groups=2, size=(2, 3)),
        ),
        ("Groups must divide", lambda: DNN.conv2d_weight(X, of(2, 6, 3, 4), groups=3, size=(3, 3))),
    ],
)
def test_what_cannot_be_done_says_so(message: str, call: Any) -> None:
    """The error uses the caller's words, and nothing was sent."""
    with pytest.raises(errors.InvalidRequest, match=message):
        call()


def test_an_unknown_option_is_told() -> None:
    """Also by the methods for a number of dimensions."""
    with pytest.raises(errors.WrongArgument, match=r"no argument strides.*did you mean stride"):
        DNN.conv2d(X, W, strides=2)


P = of(2, 3, 7, 8)


@in_turn(
    "message, call",
    [
        ("x has 4 dimensions; here it must have 3", lambda: DNN.max_pool1d(P, 2)),
        ("kernel_size has 3 numbers; for 2 dimensions it may have 1 or 2", lambda: DNN.max_pool2d(P, (2, 2, 2))),
        ("spans 9 elements of dimension 0, where the image has 7", lambda: DNN.max_pool2d(P, 9)),
        ("must meet the image everywhere", lambda: DNN.avg_pool2d(P, 2, padding=2)),
        ("must meet the image everywhere", lambda: DNN.avg_pool2d(P, 3, padding=(2, 2, 0, 0))),
        ("must meet the image everywhere", lambda: DNN.avg_pool1d(of(1, 1, 0), 2, padding=1)),
        ("dy has the shape", lambda: DNN.pool_backward(P, of(2, 3, 3, 4), of(2, 3, 3, 3), kernel_size=2)),
        ("mode is 'min'; it must be one of max, avg", lambda: DNN.pool(P, kernel_size=2, mode="min")),
        ("must be those of different dimensions", lambda: DNN.softmax(P, dim=4)),
        ("must be those of different dimensions", lambda: DNN.softmax(P, dim=(1, -3))),
        (r"dim is \(\)", lambda: DNN.softmax(P, dim=())),
        ("approximate is 'tan'.*did you mean tanh", lambda: DNN.gelu(P, approximate="tan")),
        ("size is 0", lambda: DNN.local_response_norm(P, size=0)),
        ("p is 1.5", lambda: DNN.dropout(P, p=1.5, seed=1)),
        ("seed must be less than 2", lambda: DNN.dropout(P, seed=2**64)),
        (
            "mask must be left out: it is given with",
            lambda: DNN.dropout(P, None, of(2, dtype="uint8"), seed=1),
        ),
    ],
)
def test_what_other_layers_cannot_do_says_so(message: str, call: Any) -> None:
    """Windows beyond the image, above all."""
    with pytest.raises(errors.InvalidRequest, match=message):
        call()


@in_turn(
    "message, call",
    [
        ("mode cannot be given: this method's is 'max'", lambda: DNN.max_pool2d(X, 2, mode="avg")),
        ("kind cannot be given: this method's is 'relu'", lambda: DNN.relu(X, kind="tanh")),
        ("kind cannot be given: this method's is 'gelu'", lambda: DNN.gelu(X, kind="tanh")),
        ("log cannot be given: this method's is True", lambda: DNN.log_softmax(X, log=False)),
        ("no argument strides", lambda: DNN.max_pool2d(X, 2, strides=2)),
    ],
)
def test_what_a_method_s_name_says_cannot_be_given(message: str, call: Any) -> None:
    """Nor what its request does not have."""
    with pytest.raises(errors.WrongArgument, match=message):
        call()


@pytest.mark.parametrize(
    "call",
    [
        DNN.gelu,
        lambda x: DNN.activation_backward(x, x, kind="gelu"),
        lambda x: DNN.local_response_norm(x, size=5),
        lambda x: DNN.local_response_norm_backward(x, x, size=5),
    ],
)
def test_temporaries_are_those_of_a_part(call: Any) -> None:
    """Half precision is widened part by part; the parts together are the whole."""
    x = FakeArray.of(np.resize(of(3, 4, 64, 64).array, (256, 4, 64, 64)), "float16")
    request = call(x)
    outputs = {name: FakeArray(layout) for name, layout in request.results().items()}
    request = msgspec.structs.replace(request, **outputs)
    tracemalloc.start()
    run(request)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 2 * x.nbytes
    found = request.out.array
    np.testing.assert_array_equal(found, np.resize(found[:3], found.shape))


def test_one_length_is_that_of_all_dimensions() -> None:
    """Of a weight, or of an image."""
    x, dy, weight = of(1, 2, 6, 6), of(1, 3, 4, 4), of(3, 2, 3, 3)
    for one, other in (
        (DNN.conv2d_weight(x, dy, size=3), DNN.conv2d_weight(x, dy, size=(3, 3))),
        (DNN.conv2d_input(weight, dy, size=6), DNN.conv2d_input(weight, dy, size=(6, 6))),
    ):
        np.testing.assert_array_equal(done(one), done(other))


# --- windows ----------------------------------------------------------------------------------------------------------

SMALL: Final = st.integers(0, 4)


@given(st.builds(Sweep, st.integers(1, 4), st.integers(1, 4), st.integers(1, 4), SMALL, SMALL), SMALL, SMALL)
def test_a_window_s_elements_lie_where_the_definition_says(sweep: Sweep, length: int, places: int) -> None:
    """Each place and element of the image that meet are found once, whatever lies beyond the image."""
    found = [
        (tap, place, element)
        for tap, there, here in sweep.taps(length, places)
        for place, element in zip(range(places)[there], range(length)[here], strict=True)
    ]
    wanted = [
        (tap, place, at)
        for tap, place in itertools.product(range(sweep.size), range(places))
        if 0 <= (at := place * sweep.stride + tap * sweep.dilation - sweep.before) < length
    ]
    assert found == wanted
    by_places = [
        (tap, place, element)
        for place, here, within in sweep.spots(length, places)
        for tap, element in zip(range(sweep.size)[within], range(length)[here], strict=True)
    ]
    assert sorted(by_places) == wanted
    assert [place for place, *_ in sweep.spots(length, places)] == sorted({place for _, place, _ in wanted})


def test_a_long_window_with_few_places_is_gone_through_by_places() -> None:
    """No object is made for each of its elements."""
    length = 10**6
    x, ones = FakeArray.of(np.full((1, 2, length), 0.1), "float32"), FakeArray.of(np.ones((1, 2, length)), "float32")
    tracemalloc.start()
    average, largest, product = (
        done(request)
        for request in (
            DNN.avg_pool1d(x, length - 1, stride=1),
            DNN.max_pool1d(x, length - 1, stride=1),
            DNN.conv1d(x, ones, padding=(1, 0)),
        )
    )
    y, dy = FakeArray.of(largest, "float32"), FakeArray.of(np.ones((1, 2, 2)), "float32")
    by_largest, by_average = (
        done(DNN.pool_backward(x, y, dy, kernel_size=length - 1, stride=1, mode=mode)) for mode in ("max", "avg")
    )
    out = FakeArray.of(product, "float32")
    by_x = done(DNN.conv1d_input(ones, out, size=(length,), padding=(1, 0)))
    by_weight = done(DNN.conv1d_weight(x, out, size=(length,), padding=(1, 0)))
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    np.testing.assert_allclose(average, np.full((1, 2, 2), 0.1), rtol=1e-6)
    np.testing.assert_array_equal(largest, np.full((1, 2, 2), np.float32(0.1)))
    np.testing.assert_allclose(product, [[[0.2 * (length - 1), 0.2 * length]]], rtol=1e-3)
    assert (by_largest[0, 0, :2].tolist(), by_largest.sum()) == ([1, 1], 4)
    np.testing.assert_allclose(by_average[0, 0, 1:-1], 2 / (length - 1), rtol=1e-5)
    np.testing.assert_allclose(by_x[0, 0, :-1], product.sum(), rtol=1e-3)
    np.testing.assert_allclose(by_weight[0, 0, 1:], 0.1 * product.sum(), rtol=1e-3)
    assert most < 12 * x.nbytes


def test_what_lies_beyond_the_image_costs_nothing() -> None:
    """A window whose elements are one number of memory, and a padding, may be as long as numbers go."""
    most = 2**31 - 1
    assert len(list(Sweep(most, most, 1, most, most).taps(4, 3))) == 4
    request = DNN.conv(of(1, 1, 4), FakeArray.of([[[2.0]]], "float64"), stride=most, padding=(0, most - 5))
    np.testing.assert_array_equal(done(request)[0, 0], [2 * of(1, 1, 4).array[0, 0, 0]])
    layout = FakeArray.of([[[3.0]]], "float64").layout._replace(shape=(1, 1, most), strides=(8, 8, 0))
    wide = FakeArray(layout, FakeArray.of([[[3.0]]], "float64").slab)
    request = DNN.conv(of(1, 1, 4), wide, padding=most // 2)
    assert_close(done(request)[0, 0], [3 * of(1, 1, 4).array.sum()] * 4, "float64", 4, 3)


# --- convolutions -----------------------------------------------------------------------------------------------------


def test_channels_last_are_strides() -> None:
    """The result is the same, and lies as its memory does."""
    x, weight = X.array, W.array
    last = FakeArray.of(np.moveaxis(x, 1, 3), "float64").transpose(0, 3, 1, 2)
    turned = FakeArray.of(np.moveaxis(weight, 1, 3), "float64").transpose(0, 3, 1, 2)
    out = FakeArray.of(np.zeros((2, 3, 4, 6)), "float64").transpose(0, 3, 1, 2)
    DNN.conv2d(last, turned, None, out, groups=2)
    assert_close(out.array, done(DNN.conv2d(X, W, groups=2)), "float64", 18)


def test_padding_may_be_uneven() -> None:
    """It is that of an image with more zeros before it, or behind it."""
    x = np.pad(X.array, [(0, 0), (0, 0), (2, 0), (1, 3)])
    found = done(DNN.conv2d(X, W, groups=2, padding=(2, 0, 1, 3)))
    np.testing.assert_array_equal(found, done(DNN.conv2d(FakeArray.of(x, "float64"), W, groups=2)))


@in_turn("count, groups", itertools.product((1, 2, 3), (1, 2)))
def test_gradients_are_the_adjoints_of_a_convolution(count: int, groups: int) -> None:
    """⟨conv(x, w), dy⟩ = ⟨x, conv_input(w, dy)⟩ = ⟨w, conv_weight(x, dy)⟩; conv_transpose is the gradient by x."""
    options = {"stride": 2, "padding": (1, 2) * count, "dilation": 2, "groups": groups}
    x, weight = of(2, 2 * groups, *(7, 6, 5)[:count]), of(3 * groups, 2, *(3, 2, 2)[:count])
    y = done(getattr(DNN, f"conv{count}d")(x, weight, **options))
    dy = of(*y.shape)
    total = np.vdot(y, dy.array)
    by_x = done(getattr(DNN, f"conv{count}d_input")(weight, dy, size=x.shape[2:], **options))
    by_weight = done(getattr(DNN, f"conv{count}d_weight")(x, dy, size=weight.shape[2:], **options))
    assert by_x.shape == x.shape
    assert_close([np.vdot(by_x, x.array), np.vdot(by_weight, weight.array)], [total] * 2, "float64", y.size * 36)
    larger = tuple((n + 3 - 2 * (k - 1) - 1) % 2 for n, k in zip(x.shape[2:], weight.shape[2:], strict=True))
    again = done(getattr(DNN, f"conv_transpose{count}d")(dy, weight, output_padding=larger, **options))
    np.testing.assert_array_equal(again, by_x)


def test_float32_is_not_rounded_to_less() -> None:
    """A factor with 24 significant bits is seen whole."""
    x, weight = FakeArray.of([[[1 + 2.0**-23]]], "float32"), FakeArray.of([[[1.0]]], "float32")
    assert done(DNN.conv1d(x, weight)).item() == 1 + 2.0**-23


# --- gradients --------------------------------------------------------------------------------------------------------


def derivative(forward: Callable[[FakeArray], Any], x: FakeArray, step: Any) -> Any:
    """Return the derivative of a function along a step, by central differences of the fourth order."""
    h = 2.0**-12

    def at(much: float) -> Any:
        return forward(FakeArray.of(x.array + much * h * step, "float64"))

    return (8 * (at(1) - at(-1)) - (at(2) - at(-2))) / (12 * h)


def assert_is_gradient(
    forward: Callable[[FakeArray], Any], backward: Callable[[FakeArray, FakeArray], Any], x: FakeArray
) -> None:
    """Check that ⟨dy, J·v⟩ is ⟨dx, v⟩ for a drawn v.

    Args:
        forward: Returns y for x.
        backward: Returns dx for y and dy.
        x: Where; nothing is steep there.
    """
    y = FakeArray.of(forward(x), "float64")
    dy, step = of(*y.shape, seed=7), of(*x.shape, seed=8).array
    expected = np.vdot(dy.array, derivative(forward, x, step))
    found = np.vdot(backward(y, dy), step)
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9)


@in_turn("kind", ACTIVATIONS)
def test_an_activation_s_derivative_is_that_of_the_activation(kind: Any) -> None:
    """Of each of the nine, by differences."""
    assert_is_gradient(
        lambda x: done(DNN.activation(x, kind=kind)),
        lambda _y, dy: done(DNN.activation_backward(P, dy, kind=kind)),
        P,
    )


@in_turn("dim, log", itertools.product((-1, 1, (0, 2)), (False, True)))
def test_softmax_s_gradient_is_that_of_softmax(dim: Any, log: bool) -> None:  # noqa: FBT001 - a case
    """And of its logarithm, by differences."""
    assert_is_gradient(
        lambda x: done(DNN.softmax(x, dim=dim, log=log)),
        lambda y, dy: done(DNN.softmax_backward(y, dy, dim=dim, log=log)),
        P,
    )


@in_turn("mode, padding", itertools.product(("max", "avg"), (0, (1, 0, 2, 1))))
def test_pooling_s_gradient_is_that_of_pooling(mode: Any, padding: Any) -> None:
    """Also where windows overlap, by differences."""
    options = {"mode": mode, "kernel_size": 3, "stride": 2, "padding": padding, "count_include_pad": False}
    assert_is_gradient(
        lambda x: done(DNN.pool(x, **options)), lambda y, dy: done(DNN.pool_backward(P, y, dy, **options)), P
    )


@in_turn("size", (1, 2, 3, 4, 9))
def test_normalising_by_neighbours_has_its_gradient(size: int) -> None:
    """With even sizes, and sizes beyond the channels, by differences."""
    options = {"size": size, "alpha": 2.0, "beta": 0.75, "k": 1.5}
    assert_is_gradient(
        lambda x: done(DNN.local_response_norm(x, **options)),
        lambda _y, dy: done(DNN.local_response_norm_backward(P, dy, **options)),
        P,
    )


def test_an_even_size_has_one_neighbour_more_before_a_channel() -> None:
    """As torch has it; cuDNN has it behind."""
    x = FakeArray.of([[1.0, 10.0, 100.0]], "float64")
    found = done(DNN.local_response_norm(x, size=2, alpha=2.0, beta=1.0, k=0.0))
    assert_close(found[0], [1 / 1, 10 / 101, 100 / 10100], "float64")


def test_of_equal_maxima_the_first_has_the_gradient() -> None:
    """In row-major order; a NaN is the maximum."""
    x = FakeArray.of([[[3.0, 3.0, 1.0, np.nan, 5.0, np.nan]]], "float32")
    y = FakeArray.of(done(DNN.max_pool1d(x, 3)), "float32")
    np.testing.assert_array_equal(y.array, [[[3.0, np.nan]]])
    dx = done(DNN.pool_backward(x, y, FakeArray.of([[[1.0, 2.0]]], "float32"), kernel_size=3))
    np.testing.assert_array_equal(dx, [[[1.0, 0, 0, 2.0, 0, 0]]])


def logistic(x: Any) -> Any:
    """Return the sigmoid in extended precision."""
    return np.exp(np.minimum(x, 0)) / (1 + np.exp(-np.abs(x)))


def by_tanh(x: Any) -> Any:
    """Return the argument of gelu's sigmoid, and its derivative."""
    slope, cubic = 2 * np.sqrt(2 / np.longdouble(math.pi)), np.longdouble("0.044715")
    return slope * (x + cubic * x**3), slope * (1 + 3 * cubic * x**2)


def bell(x: Any) -> Any:
    """Return the normal density."""
    return np.exp(-x * x / 2) / np.sqrt(2 * np.longdouble(math.pi))


def below(x: Any) -> Any:
    """Return the normal distribution; below -6 by its continued fraction, which loses no digits."""
    deep = np.maximum(-x, 6)
    fraction = deep
    for step in range(200, 0, -1):
        fraction = deep + step / fraction
    near = np.array([math.erfc(-float(each) * math.sqrt(0.5)) / 2 for each in x], np.longdouble)
    return np.where(x < -6, bell(deep) / fraction, near)


EXACT: Final[dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]]] = {
    "identity": (lambda x: x, np.ones_like),
    "relu": (lambda x: np.maximum(x, 0), lambda x: 1.0 * (x > 0)),
    "sigmoid": (logistic, lambda x: logistic(x) * logistic(-x)),
    "tanh": (np.tanh, lambda x: 4 * logistic(2 * x) * logistic(-2 * x)),
    "gelu": (lambda x: x * below(x), lambda x: below(x) + x * bell(x)),
    "gelu_tanh": (
        lambda x: x * logistic(by_tanh(x)[0]),
        lambda x: logistic(by_tanh(x)[0]) * (1 + x * logistic(-by_tanh(x)[0]) * by_tanh(x)[1]),
    ),
    "silu": (lambda x: x * logistic(x), lambda x: logistic(x) * (1 + x * logistic(-x))),
    "elu": (lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0))), lambda x: np.exp(np.minimum(x, 0))),
    "softplus": (lambda x: np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x))), logistic),
}
"""Activations and their derivatives, of numbers in extended precision."""


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "float64"])
@pytest.mark.parametrize("kind", EXACT)
def test_an_activation_is_exact_relative_to_itself(kind: Any, dtype: str) -> None:
    """In the tails too: its error is a few roundings of the result, or of x as far as x's roundings count.

    An ulp of x moves the result by |x·f'(x) / f(x)| ulps.
    """
    sizes = np.concatenate([np.geomspace(1e-6, 100, 400), np.geomspace(100, 30000, 40)])
    x = FakeArray.of(np.concatenate([-sizes, [0.0], sizes]), dtype)
    one = FakeArray.of(np.ones(x.shape), dtype)
    ways = DNN.activation(x, kind=kind), DNN.activation_backward(x, one, kind=kind)
    exact = x.array.astype(np.longdouble)
    stored, computed = EPSILONS[dtype], min(EPSILONS[dtype], EPSILONS["float32"])
    least = {"float16": 2.0**-24, "float64": 2.0**-1016}.get(dtype, 2.0**-120)  # what is not normal has few digits
    for request, function in zip(ways, EXACT[kind], strict=True):
        expected, step = function(exact), np.maximum(np.abs(exact), 1e-3) * 1e-6
        moved = np.abs(function(exact + step) - function(exact - step)) / 2e-6 + np.abs(expected)
        off = np.abs(done(request).astype(np.longdouble) - expected)
        bound = stored * np.abs(expected) + 8 * computed * moved + least
        worst = int((off / bound).argmax())
        assert off[worst] <= bound[worst], (x.array[worst], off[worst] / np.abs(expected[worst]))


def test_large_numbers_have_a_softmax_and_a_sigmoid() -> None:
    """Nothing overflows on the way, and the logarithm is exact where softmax is 0."""
    x = FakeArray.of([[-1000.0, 0.0, 1000.0]], "float32")
    np.testing.assert_array_equal(done(DNN.softmax(x)), [[0, 0, 1]])
    np.testing.assert_array_equal(done(DNN.log_softmax(x)), [[-2000, -1000, 0]])
    np.testing.assert_array_equal(done(DNN.sigmoid(x)), [[0, 0.5, 1]])
    np.testing.assert_array_equal(done(DNN.silu(x)), [[0, 0, 1000]])
    np.testing.assert_array_equal(done(DNN.elu(x)), [[-1, 0, 1000]])
    assert_close(done(DNN.softplus(x)), [[0, np.log(2), 1000]], "float32")


# --- dropout ----------------------------------------------------------------------------------------------------------


def test_a_seed_has_one_mask() -> None:
    """Forward, backward, of any type and strides, and in parts, whose offsets say where they begin."""
    options = {"p": 0.3, "seed": 2**63 + 5}
    out, mask = done(DNN.dropout(FakeArray.of(np.ones((6, 50)), "float16"), offset=7, save_mask=True, **options))
    np.testing.assert_array_equal(mask, out != 0)
    turned = FakeArray.of(np.ones((50, 6)), "float64").transpose()
    np.testing.assert_array_equal(done(DNN.dropout_backward(turned, offset=7, **options)) != 0, mask)
    rest = done(DNN.dropout(FakeArray.of(np.ones(200), "float32"), offset=107, **options))
    np.testing.assert_array_equal(rest != 0, mask.reshape(-1)[100:])


@in_turn("p", (0.1, 0.5, 0.9))
def test_elements_are_dropped_with_their_probability(p: float) -> None:
    """By the binomial law: a right one fails once in 10,000 seeds; this seed is fixed."""
    count = 2**20
    found = np.count_nonzero(done(DNN.dropout(FakeArray.of(np.ones(count), "float32"), p=p, seed=3)) == 0)
    assert scipy.stats.binomtest(found, count, p).pvalue > 1e-4


def test_the_ends_of_the_probabilities_keep_all_and_nothing() -> None:
    """Nothing is divided by 0, and infinities that are dropped are 0."""
    x = FakeArray.of([1.0, np.inf, np.nan], "float32")
    np.testing.assert_array_equal(done(DNN.dropout(x, p=0.0, seed=1)), x.array)
    np.testing.assert_array_equal(done(DNN.dropout(x, p=1.0, seed=1)), [0, 0, 0])


# --- norms ------------------------------------------------------------------------------------------------------------

ONES: Final = of(3)


@in_turn(
    "message, call",
    [
        ("normalized_shape must be the last lengths of x", lambda: DNN.layer_norm(P, normalized_shape=7)),
        ("normalized_shape must be", lambda: DNN.norm_backward(P, P, ONES, ONES)),
        ("takes.*normalized_shape", lambda: DNN.layer_norm(P, 8)),
        ("num_groups is 2; it must divide the 3 channels of x", lambda: DNN.group_norm(P, num_groups=2)),
        ("x has 1 dimension; it must have at least 2", lambda: DNN.instance_norm(ONES)),
        (r"weight has the shape \(3,\); it must have \(8,\)", lambda: DNN.layer_norm(P, ONES, normalized_shape=8)),
        ("weight is float64 and bias is float32", lambda: DNN.group_norm(P, ONES, of(3, dtype="float32"))),
        ("running_mean is float32; it must be float64", lambda: DNN.batch_norm(P, of(3, dtype="float32"), ONES)),
        ("running_mean must be given together with running_var", lambda: DNN.batch_norm_training(P, running_var=ONES)),
        (
            "running_var must be given together with running_mean",
            lambda: DNN.batch_norm_training(P, running_mean=ONES),
        ),
        (
            'num_groups for mode "group" only',
            lambda: DNN.norm_backward(P, P, ONES, ONES, mode="batch", num_groups=3),
        ),
        (
            'normalized_shape is for modes "layer" and "rms" only',
            lambda: DNN.norm_backward(P, P, ONES, ONES, mode="batch", normalized_shape=8),
        ),
        ("must be an element of x for each channel", lambda: DNN.batch_norm_training(of(0, 3, 2))),
        ("mean must be left out: it is given with save_statistics", lambda: DNN.instance_norm(P, mean=of(2, 3))),
        ("mean must be given unless mode", lambda: DNN.norm_backward(P, P, ONES, mode="batch")),
        (
            "mean must be left out",
            lambda: DNN.norm_backward(of(3, 4), of(3, 4), ONES, ONES, mode="rms", normalized_shape=4),
        ),
        (
            "dweight must be left out",
            lambda: DNN.norm_backward(P, P, ONES, ONES, dweight=ONES, mode="batch"),
        ),
        ("must have the element type of x", lambda: DNN.group_norm(P, of(3, dtype="float32"))),
        ("eps is -1", lambda: DNN.instance_norm(P, eps=-1)),
    ],
)
def test_what_cannot_be_normalised_says_so(message: str, call: Any) -> None:
    """Statistics that do not fit, or are wanted of nothing."""
    with pytest.raises((errors.InvalidRequest, errors.WrongArgument), match=message):
        call()


def test_running_statistics_are_those_of_samples() -> None:
    """The batch is normalised with the variance of its own elements; of one element it is 0."""
    x = FakeArray.of([[1.0], [2.0], [6.0]], "float64")
    mean, var = FakeArray.of([10.0], "float64"), FakeArray.of([20.0], "float64")
    out, of_batch, invstd = done(DNN.batch_norm_training(x, None, None, mean, var, momentum=0.25, eps=0.0))
    assert_close(out, (x.array - 3) / np.sqrt(14 / 3), "float64", 3, 3)
    assert_close([of_batch, invstd**2], [[3.0], [3 / 14]], "float64", 3)
    assert_close([mean.array, var.array], [[0.75 * 10 + 0.25 * 3], [0.75 * 20 + 0.25 * 7]], "float64", 3, 20)
    one = done(DNN.batch_norm_training(x[:1], None, None, mean, var, momentum=1.0))
    assert [each.item() for each in (one[0], one[1], mean.array, var.array)] == [0.0, 1.0, 1.0, 0.0]


def test_norms_of_one_element_and_of_none() -> None:
    """One element is its mean; no element has the mean 0."""
    x = FakeArray.of([[5.0], [7.0]], "float32")
    out, mean, invstd = done(DNN.layer_norm(x, normalized_shape=1, save_statistics=True, eps=0.25))
    assert (out.tolist(), mean.tolist(), invstd.tolist()) == ([[0.0], [0.0]], [5.0, 7.0], [2.0, 2.0])
    out, mean, invstd = done(DNN.layer_norm(x[:, :0], normalized_shape=0, save_statistics=True, eps=0.25))
    assert (out.shape, mean.tolist(), invstd.tolist()) == ((2, 0), [0.0, 0.0], [2.0, 2.0])


def test_a_large_mean_costs_no_digits() -> None:
    """Deviations are taken from the mean, and sums in double precision."""
    values = np.tile([4095.0, 4097.0], 500_000).reshape(1, 1, -1)
    found = done(DNN.instance_norm(FakeArray.of(values, "float32"), eps=0.0))
    np.testing.assert_array_equal(found, values - 4096)


# --- attention --------------------------------------------------------------------------------------------------------

Q, K = of(2, 4, 5, 3), of(2, 2, 6, 3)
attend: Final = DNN.scaled_dot_product_attention


@in_turn(
    "message, call",
    [
        ("The heads of key and value must divide", lambda: attend(Q, of(2, 3, 6, 3), of(2, 3, 6, 3))),
        ("The heads of key and value must divide", lambda: attend(Q, of(2, 0, 6, 3), of(2, 0, 6, 3))),
        ("last length of query and key must be at least 1", lambda: attend(Q[..., :0], K[..., :0], K)),
        ("d must be the same for all arrays", lambda: attend(Q, K[..., :2], K)),
        ("sk must be the same for all arrays", lambda: attend(Q, K, K[:, :, :2])),
        ("broadcast to", lambda: attend(Q, K, K, of(5, 5))),
        ("broadcast to", lambda: attend(Q, K, K, of(1, 2, 4, 5, 6))),
        ("query_lengths is float64; it must be int32", lambda: attend(Q, K, K, None, of(2))),
        ("b must be the same for all arrays", lambda: attend(Q, K, K, None, of(3, dtype="int32"))),
        ("window is 0", lambda: attend(Q, K, K, window=0)),
        ("align is 'left'", lambda: attend(Q, K, K, align="left")),
        ("lse must be left out", lambda: attend(Q, K, K, lse=of(2, 4, 5))),
        ("seed must be less", lambda: attend(Q, K, K, seed=2**64)),
    ],
)
def test_what_cannot_be_attended_to_says_so(message: str, call: Any) -> None:
    """Heads, masks and lengths that do not fit."""
    with pytest.raises(errors.InvalidRequest, match=message):
        call()


def taken(sq: int, sk: int, **options: Any) -> list[list[int]]:
    """Return the keys that each query takes: those whose values reach its result."""
    values = FakeArray.of(np.eye(sk)[None, None], "float64")
    found = done(attend(FakeArray.of(np.zeros((1, 1, sq, 1)), "float64"), values[..., :1], values, **options))
    return [np.flatnonzero(row).tolist() for row in found[0, 0]]


def test_masks_take_the_keys_that_the_definition_says() -> None:
    """A query's own key counts in its window; either corner may be where queries and keys have the same number."""
    assert taken(2, 4, is_causal=True) == [[0], [0, 1]]
    assert taken(2, 4, is_causal=True, align="bottom_right") == [[0, 1, 2], [0, 1, 2, 3]]
    assert taken(4, 2, is_causal=True, align="bottom_right") == [[], [], [0], [0, 1]]
    assert taken(4, 4, is_causal=True, window=2) == [[0], [0, 1], [1, 2], [2, 3]]
    assert taken(4, 4, window=2) == [[0, 1], [0, 1, 2], [1, 2, 3], [2, 3]]
    assert taken(2, 5, window=1, align="bottom_right") == [[3], [4]]
    lengths = {"query_lengths": FakeArray.of([2], "int32"), "key_lengths": FakeArray.of([3], "int32")}
    assert taken(3, 4, is_causal=True, align="bottom_right", **lengths) == [[0, 1], [0, 1, 2], []]


def test_lengths_are_taken_as_the_next_that_there_is() -> None:
    """Those beyond an extent, and those below 0; what lies beyond a length is not read."""
    keys = FakeArray.of([-(2**31), 2**31 - 1], "int32")
    value = FakeArray.of(K.array, "float64")
    value.array[0] = np.nan
    out, lse = done(attend(Q, K, value, key_lengths=keys, save_lse=True))
    assert not out[0].any()
    assert (lse[0] == -np.inf).all()
    np.testing.assert_array_equal(out[1], done(attend(Q, K, K))[1])


def test_few_scores_at_a_time_give_what_all_give(monkeypatch: pytest.MonkeyPatch) -> None:
    """With masks and dropout, forward and backward."""
    options = {"is_causal": True, "align": "bottom_right", "dropout_p": 0.3, "seed": 5}

    def results() -> list[Any]:
        out, lse = done(attend(Q, K, K, save_lse=True, **options))
        y, sums = FakeArray.of(out, "float64"), FakeArray.of(lse, "float64")
        return [out, lse, *done(DNN.scaled_dot_product_attention_backward(Q, K, K, y, Q, sums, **options))]

    whole = results()
    monkeypatch.setattr("atomr_mp_workers.libraries.dnn.base.ArrayLibrary.scores_at_once", 14)
    for one, other in zip(results(), whole, strict=True):
        assert_close(one, other, "float64", 30)


def test_what_lies_beyond_lengths_is_not_read() -> None:
    """NaNs there, forward and backward, in queries, keys, values, gradients, and in what the forward has saved."""
    own, of_keys = FakeArray.of([2, 4], "int32"), FakeArray.of([5, 3], "int32")
    options = {"query_lengths": own, "key_lengths": of_keys}

    def results(beyond: float) -> list[Any]:
        query, key, value = (FakeArray.of(each.array, "float64") for each in (Q, K, K))
        for array, lengths in ((query, own), (key, of_keys), (value, of_keys)):
            for sample, length in enumerate(lengths.array):
                array.array[sample, :, length:] = beyond
        out, lse = done(attend(query, key, value, save_lse=True, **options))
        y, dy, sums = (FakeArray.of(each, "float64") for each in (out, out, lse))
        for array in (dy, sums):
            for sample, length in enumerate(own.array):
                array.array[sample, :, length:] = beyond
        return [out, lse, *done(DNN.scaled_dot_product_attention_backward(query, key, value, y, dy, sums, **options))]

    for one, other in zip(results(np.nan), results(0.0), strict=True):
        assert not np.isnan(other).any()
        np.testing.assert_array_equal(one, other)


def test_dropout_of_weights_is_that_of_their_array() -> None:
    """The mask is that of `dropout` on an array of all weights, wherever a query's lie in it."""
    ones = FakeArray.of(np.ones((2, 4, 5, 6)), "float64")
    kept = done(DNN.dropout(ones, p=0.4, seed=11, offset=3))
    value = FakeArray.of(np.broadcast_to(np.eye(6), (2, 2, 6, 6)), "float64")
    weights = done(attend(Q, K, value))
    assert_close(done(attend(Q, K, value, dropout_p=0.4, seed=11, offset=3)), weights * kept, "float64", 8)


# --- recurrent networks -----------------------------------------------------------------------------------------------

LSTM: Final[dict[str, Any]] = {"mode": "lstm", "hidden_size": 3, "num_layers": 2, "bidirectional": True}
INPUTS: Final = of(5, 2, 4)
WEIGHTS: Final = of(2 * 12 * (4 + 3 + 6 + 3) + 2 * 2 * 2 * 12)
STATE: Final = of(4, 2, 3)


def forward(x: FakeArray, **given: Any) -> list[FakeArray]:
    """Return the results of a network, its reserve too."""
    results = done(DNN.rnn(x, WEIGHTS, save_reserve=True, **given, **LSTM))
    return [FakeArray.of(each, each.dtype.name) for each in results]


def lengths(*values: int) -> FakeArray:
    """Return lengths."""
    return FakeArray.of(values, "int32")


@in_turn(
    "message, call",
    [
        (
            r"weights has the shape \(480,\); it must have \(360,\)",
            lambda: DNN.rnn(INPUTS, WEIGHTS, **LSTM | {"mode": "gru", "hidden_size": 3, "num_layers": 2}),
        ),
        ("h0 has the shape", lambda: DNN.rnn(INPUTS, WEIGHTS, of(2, 2, 3), STATE, **LSTM)),
        ("c0 must be given for mode", lambda: DNN.rnn(INPUTS, WEIGHTS, STATE, **LSTM)),
        ("c0 must be left out", lambda: DNN.rnn(INPUTS, WEIGHTS, None, STATE, **LSTM)),
        ("lengths is float64; it must be int32", lambda: DNN.rnn(INPUTS, WEIGHTS, lengths=of(2), **LSTM)),
        ("b must be the same", lambda: DNN.rnn(INPUTS, WEIGHTS, lengths=lengths(1, 2, 3), **LSTM)),
        ("without gaps", lambda: DNN.rnn(INPUTS, of(960)[::2], **LSTM)),
        ("reserve must be left out", lambda: DNN.rnn(INPUTS, WEIGHTS, reserve=of(8, dtype="uint8"), **LSTM)),
        (
            "reserve has the shape",
            lambda: DNN.rnn_backward(INPUTS, WEIGHTS, of(5, 2, 6), of(5, 2, 6), of(8, dtype="uint8"), **LSTM),
        ),
        ("mode is 'lst'.*did you mean lstm", lambda: DNN.rnn(INPUTS, WEIGHTS, **LSTM | {"mode": "lst"})),
        ("larger than any memory", lambda: DNN.rnn_pack([WEIGHTS], input_size=2**31 - 1, hidden_size=2**31 - 1)),
        ("must be w_ih, w_hh, b_ih and b_hh", lambda: DNN.rnn_pack([WEIGHTS], input_size=4, hidden_size=2)),
        (
            r"weights\[1\] has the shape",
            lambda: DNN.rnn_pack([of(8, 4), of(8, 4), of(8), of(8)], input_size=4, hidden_size=2),
        ),
        (
            r"weights has the shape \(480,\); those of gru",
            lambda: DNN.rnn_unpack(WEIGHTS, mode="gru", input_size=4, hidden_size=3),
        ),
        ("those of lstm", lambda: DNN.rnn_unpack(WEIGHTS, input_size=4, hidden_size=-3, num_layers=2**40)),
        ("mode is 'rnn'; it must be one of", lambda: DNN.rnn_unpack(WEIGHTS, mode="rnn", input_size=4, hidden_size=3)),
    ],
)
def test_what_is_no_network_says_so(message: str, call: Any) -> None:
    """Weights, states and lengths that do not fit."""
    with pytest.raises(errors.InvalidRequest, match=message):
        call()


def test_weights_are_packed_and_unpacked() -> None:
    """Views come in torch's order; in the packed memory all matrices lie before all biases."""
    views = DNN.rnn_unpack(WEIGHTS, input_size=4, **LSTM)
    assert [view.shape for view in views[:5]] == [(12, 4), (12, 3), (12,), (12,), (12, 4)]
    assert [view.shape for view in views[8:12]] == [(12, 6), (12, 3), (12,), (12,)]
    packed_again = done(DNN.rnn_pack(views, input_size=4, **LSTM))
    np.testing.assert_array_equal(packed_again, WEIGHTS.array)
    matrices = np.concatenate([view.array.reshape(-1) for view in views if view.layout.shape[1:]])
    np.testing.assert_array_equal(packed_again[: matrices.size], matrices)
    assert all(view.memory == WEIGHTS.memory for view in views)


def test_a_reserve_serves_one_backward_of_its_network() -> None:
    """A second one is refused, and so is that of another network; nothing is computed from what is not there."""
    out, hn, cn, reserve = forward(INPUTS)
    assert (hn.shape, cn.shape) == ((4, 2, 3), (4, 2, 3))
    with pytest.raises(errors.NumericalError, match="reserve"):
        done(DNN.rnn_backward(INPUTS, WEIGHTS, out, out, reserve, dropout_p=0.5, **LSTM))
    backward = DNN.rnn_backward(INPUTS, WEIGHTS, out, out, reserve, **LSTM)
    assert done(backward)[0].any()
    with pytest.raises(errors.NumericalError, match="used it up"):
        done(backward)


def test_sequences_have_their_lengths() -> None:
    """Of one that has none, states stay; what lies beyond a length is not read, forward and backward."""
    noise = FakeArray.of(INPUTS.array, "float64")
    noise.array[2:, 0] = np.nan
    given = {"lengths": lengths(2, -7), "h0": STATE, "c0": STATE}
    out, hn, cn, reserve = forward(noise, **given)
    alone = done(DNN.rnn(INPUTS[:2], WEIGHTS, STATE, STATE, **LSTM))
    np.testing.assert_array_equal(out.array[:2, 0], alone[0][:, 0])
    assert not out.array[2:].any()
    assert not out.array[:, 1].any()
    for last, of_alone in ((hn, alone[1]), (cn, alone[2])):
        np.testing.assert_array_equal(last.array[:, 0], of_alone[:, 0])
        np.testing.assert_array_equal(last.array[:, 1], STATE.array[:, 1])
    dy = FakeArray.of(np.ones(out.shape), "float64")
    found = done(DNN.rnn_backward(noise, WEIGHTS, out, dy, reserve, **given, **LSTM))
    assert all(np.isfinite(each).all() for each in found)
    assert not found[0][2:].any()


def test_a_reserve_is_that_of_its_lengths() -> None:
    """Gradients of other steps would be wrong; lengths beyond the array's count as the array's, and none as all."""
    ways: list[dict[str, Any]] = [
        {"lengths": lengths(2, 5)},
        {"lengths": lengths(2, 4)},
        {"lengths": lengths(5, 2)},
        {"lengths": lengths(5, 9)},
        {},
    ]
    for one in ways:
        for other in ways:
            out, _, _, reserve = forward(INPUTS, **one)
            backward = DNN.rnn_backward(INPUTS, WEIGHTS, out, out, reserve, **other, **LSTM)
            if one == other or min(map(ways.index, (one, other))) == 3:
                done(backward)
            else:
                with pytest.raises(
                    errors.NumericalError, match="not that of such a network's forward with these lengths"
                ):
                    done(backward)


def test_no_step_is_run_of_no_sequence() -> None:
    """Many are over at once."""
    x, weights = FakeArray.of(np.zeros((10**9, 0, 4)), "float64"), of(2 * 12 * (4 + 3 + 6 + 3) + 2 * 2 * 2 * 12)
    out, hn, cn, reserve = done(DNN.rnn(x, weights, save_reserve=True, **LSTM))
    assert (out.shape, hn.shape, cn.shape) == ((10**9, 0, 6), (4, 0, 3), (4, 0, 3))
    y, kept = FakeArray.of(out, "float64"), FakeArray.of(reserve, "uint8")
    found = done(DNN.rnn_backward(x, weights, y, y, kept, **LSTM))
    assert not found[1].any()


def test_cells_that_go_backwards_see_the_sequence_from_its_end() -> None:
    """With the weights of those that go forwards, they give on a sequence what these give on the turned one."""
    one = {"mode": "gru", "hidden_size": 3}
    views = [of(9, 4, seed=2), of(9, 3, seed=3), of(9, seed=4), of(9, seed=5)]
    weights, both = (
        FakeArray.of(done(DNN.rnn_pack(each, input_size=4, bidirectional=len(each) > 4, **one)), "float64")
        for each in (views, views * 2)
    )
    out, hn = done(DNN.rnn(INPUTS, both, bidirectional=True, **one))
    turned = done(DNN.rnn(INPUTS[::-1], weights, **one))
    assert_close(out[:, :, 3:], turned[0][::-1], "float64", 8)
    assert_close(hn[1], turned[1][0], "float64", 8)
