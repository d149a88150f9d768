from __future__ import annotations

import itertools
from typing import Any, Final

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atomr_mp import errors
from atomr_mp.libraries.fft import Reference
from atomr_mp.protocol.layout import Layout
from atomr_mp.protocol.libraries.fft import Transform
from atomr_mp_workers.libraries.fft.embedding import embedding, placed
from tests.declared import positions
from tests.direct import DirectDevice, host_actor
from tests.fakes.fake_arrays import FakeArray

ACTOR: Final = host_actor("fft")
FFT: Final[Any] = Reference(DirectDevice())


def of(*shape: int, dtype: str = "complex64") -> FakeArray:
    """Return zeros."""
    return FakeArray.of(np.zeros(shape), dtype)


def test_names_axes_and_norms_are_scipys() -> None:
    """An output has SciPy's shape and type."""
    from scipy import fft

    for name in ("fft", "ifft", "fft2", "ifft2", "fftn", "ifftn"):
        x = of(3, 4, 5)
        made = getattr(FFT, name)(x)
        assert made.results()["out"].shape == getattr(fft, name)(x.array).shape
        assert made.inverse == name.startswith("i")
    for name in ("rfft", "rfft2", "rfftn"):
        x = of(3, 4, 5, dtype="float64")
        layout = getattr(FFT, name)(x).results()["out"]
        assert (layout.shape, layout.dtype) == (getattr(fft, name)(x.array).shape, "complex128")
    for name in ("irfft", "irfft2", "irfftn"):
        x = of(3, 4, 5)
        layout = getattr(FFT, name)(x).results()["out"]
        assert (layout.shape, layout.dtype) == (getattr(fft, name)(x.array).shape, "float32")
    assert FFT.irfft(of(3, 5), n=9).results()["out"].shape == (3, 9)
    assert FFT.irfft(of(3, 5), of(3, 9, dtype="float32")).n == 9


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: FFT.fft(of(4, dtype="float32")), "must be complex for kinds c2c and c2r"),
        (lambda: FFT.rfft(of(4)), "must be complex for kinds c2c and c2r, real for r2c"),
        (lambda: FFT.fftn(of(2, 2), axes=(0, 0)), "must be different dimensions of x, which has 2"),
        (lambda: FFT.fftn(of(2, 2), axes=(0, 2)), "must be different dimensions of x, which has 2"),
        (lambda: FFT.fftn(of(2, 2, 2, 2)), "one to 3 dimensions can be transformed at a time"),
        (lambda: FFT.fftn(of(2, 2), axes=()), "one to 3 dimensions"),
        (lambda: FFT.fft(of(2, 0)), "at least one element"),
        (lambda: FFT.irfft(of(5), n=11), "has n // 2 \\+ 1"),
        (lambda: FFT.irfft(of(1)), "two or more without n"),
        (lambda: FFT.irfft(of(5), n=0), "n is 0"),
        (lambda: FFT.transform(of(4), n=4), "Only kind c2r has a choice of n"),
        (lambda: FFT.transform(of(4, dtype="float32"), kind="r2c", inverse=True), "Only kind c2c has a choice"),
        (lambda: FFT.fft(of(4), norm="both"), "norm is 'both'"),
        (lambda: FFT.fft(of(4), axis=0.5), "axes is|must be"),
        (lambda: FFT.fft(of(4), of(4, dtype="complex128")), "out is complex128; it must be complex64"),
        (lambda: FFT.rfft(of(4, dtype="float32"), of(4)), r"out has the shape \(4,\); it must have \(3,\): as x"),
    ],
)
def test_what_cannot_be_transformed_says_so(call: Any, message: str) -> None:
    """The error uses the caller's words, and nothing was sent."""
    with pytest.raises(errors.InvalidRequest, match=message):
        call()


# --- where cuFFT is told that elements lie ----------------------------------------------------------------------------


@st.composite
def layouts(draw: st.DrawFn, shape: tuple[int, ...]) -> Layout:
    """Draw a layout, mostly one that cuFFT can describe."""
    order = draw(st.permutations(range(len(shape))))
    step, strides = 8, [0] * len(shape)
    for axis in reversed(order):
        strides[axis] = step * draw(st.sampled_from([1, 1, 1, 2, 3]))
        step = strides[axis] * shape[axis] + draw(st.sampled_from([0, 0, 0, 8]))
    return Layout("complex64", shape, tuple(strides), 0)


@given(st.data(), st.lists(st.integers(1, 4), min_size=1, max_size=4), st.booleans())
@settings(max_examples=200, deadline=None)
def test_what_cufft_is_told_is_where_the_elements_lie(data: st.DataObject, dims: list[int], halved: bool) -> None:  # noqa: FBT001
    """The formula of cuFFT's documentation finds each element. Batches have the same order on both sides."""
    shape = tuple(dims)
    axes = data.draw(
        st.permutations(range(len(shape))).map(lambda order: order[: data.draw(st.integers(1, min(3, len(shape))))])
    )
    source, target = data.draw(layouts(shape)), data.draw(layouts(shape))
    how = placed(source, target, axes, halved=halved)
    assert sorted(how.axes) == sorted(axes)
    assert not halved or how.axes[-1] == axes[-1]
    for layout, told in ((source, how.source), (target, how.target)):
        assert told == embedding(layout, how.axes)
        if told is None:
            continue
        rest = [axis for axis in range(len(shape)) if axis not in how.axes]
        lies = np.moveaxis(positions(FakeArray(layout))[..., 0], [*rest, *how.axes], range(len(shape))) // 8
        lies = lies.reshape(-1, *(shape[axis] for axis in how.axes))
        for batch, *at in itertools.product(*(range(n) for n in lies.shape)):
            place = 0
            for index, length in zip(at, told.embed, strict=True):
                place = place * length + index
            assert lies[(batch, *at)] == batch * told.distance + place * told.stride


def test_common_layouts_are_told_without_a_copy() -> None:
    """Packed arrays, their slices and transposes, with the axes in any order."""
    packed = Layout.contiguous("complex64", (4, 6, 8))
    for layout in (packed, packed.transposed((2, 0, 1)), packed.indexed((slice(1, 3),)), packed.indexed((..., 3))):
        for count in (1, 2):
            for axes in itertools.combinations(range(len(layout.shape)), count):
                if len(layout.shape) - count < 2:
                    how = placed(layout, layout, axes, halved=False)
                    assert how.source is not None, (layout, axes)
                    assert how.target is not None


# --- what must not go wrong silently ----------------------------------------------------------------------------------


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("kind", ["c2c", "r2c", "c2r"])
def test_every_transform_of_a_batch_is_done_in_every_rank(kind: Any, rank: int) -> None:
    """Not the first alone: each gives what it gives by itself."""
    random = np.random.default_rng(rank)
    shape = (3, 2, *(4, 6, 5)[:rank])
    axes = tuple(range(-rank, 0))
    half = (*shape[:-1], shape[-1] // 2 + 1)
    values = random.normal(size=half if kind == "c2r" else shape)
    x = FakeArray.of(
        values if kind == "r2c" else values + 1j * values[::-1], "float64" if kind == "r2c" else "complex128"
    )
    out = FakeArray.of(np.zeros(shape if kind != "r2c" else half), "float64" if kind == "c2r" else "complex128")
    n = shape[-1] if kind == "c2r" else None
    ACTOR.transform(Transform(x, out, kind=kind, axes=axes, n=n))
    for batch in np.ndindex(3, 2):
        one, single = x[batch], FakeArray.of(np.zeros(out.shape[2:]), out.dtype)
        ACTOR.transform(Transform(one, single, kind=kind, axes=axes, n=n))
        np.testing.assert_allclose(out.array[batch], single.array, atol=1e-12)
        assert np.abs(single.array).max() > 0


def test_no_plan_is_another_transforms() -> None:
    """Its key has the batch, every stride, the alignment, kind, axes, direction and norm; not where the arrays lie."""
    x, out = of(3, 4, 6), of(3, 4, 6)
    plain = Transform(x, out)
    others = [
        Transform(x[:2], out[:2]),
        Transform(x[:, :, ::-1], out),
        Transform(x, out.transpose(0, 2, 1).transpose(0, 2, 1), axes=(-2,)),
        Transform(FakeArray(x.layout._replace(offset=x.layout.offset + 8)), out),
        Transform(x, out, inverse=True),
        Transform(x, out, norm="ortho"),
        Transform(of(3, 4, 6, dtype="complex128"), of(3, 4, 6, dtype="complex128")),
        Transform(of(3, 4, 6, dtype="float32"), of(3, 4, 4), kind="r2c"),
        Transform(of(3, 4, 4), of(3, 4, 6, dtype="float32"), kind="c2r", n=6),
        Transform(of(3, 4, 4), of(3, 4, 6, dtype="float32"), kind="c2r"),
    ]
    keys = [plain.plan_key(), *(each.plan_key() for each in others)]
    assert len(set(keys)) == len(keys)
    assert Transform(of(3, 4, 6), of(3, 4, 6)).plan_key() == plain.plan_key()
