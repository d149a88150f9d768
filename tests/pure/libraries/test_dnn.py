from __future__ import annotations

import itertools
from typing import Any, Final

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atomr_mp import errors
from atomr_mp.libraries.dnn import Reference
from atomr_mp.protocol.libraries.dnn_shapes import Sweep
from tests.direct import DirectDevice, host_actor, run_by
from tests.fakes.fake_arrays import FakeArray
from tests.in_turn import in_turn
from tests.tolerances import assert_close

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
        ("padding is 's'; it must be a whole number", lambda: DNN.conv2d(X, W, groups=2, padding="same")),
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
