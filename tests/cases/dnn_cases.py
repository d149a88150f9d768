"""Expected results of neural networks on every backend: their definitions, in double precision.

Windows are laid over padded images place by place, which no backend does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt
from hypothesis import assume
from hypothesis import strategies as st
from scipy.special import ndtr

from atomr_mp.protocol.declaration.arguments import declared as fields_of
from atomr_mp.protocol.declaration.arguments import with_arrays
from atomr_mp.protocol.layout import Layout
from atomr_mp.protocol.libraries import dnn, requests_of, rng
from atomr_mp.protocol.libraries.base import LibraryRequest
from atomr_mp.protocol.refs import Operand
from tests import declared, layouts
from tests.declared import Expected
from tests.direct import host_actor, run_by
from tests.fakes.fake_arrays import GUARD_BYTES, FakeArray

Array = npt.NDArray[Any]

REQUESTS: Final = requests_of("dnn")


@st.composite
def requests(draw: st.DrawFn, cls: type[LibraryRequest]) -> Any:
    """Draw a request: any layouts, sizes and options, some arrays left out."""
    if cls is dnn.RnnPack:
        return draw(packings())
    return draw(declared.requests(cls, **DRAWN[cls.name](draw)))


@st.composite
def packed_requests(draw: st.DrawFn, cls: type[LibraryRequest]) -> Any:
    """Draw a request whose arrays lie without gaps, all row-major or all with their channels last."""
    request, last = draw(requests(cls)), draw(st.booleans())
    made: dict[Any, FakeArray] = {}

    def packed(operand: Operand) -> FakeArray:
        key = operand.memory, operand.layout  # an array in place stays in place
        if key not in made:
            made[key] = layouts.poisoned(_packed_layout(operand, last=last))
        return made[key]

    return with_arrays(request, packed)


def _packed_layout(operand: Operand, *, last: bool) -> Layout:
    """Return the layout of an array without gaps, of four dimensions or more with its channels last."""
    shape, ndim = operand.shape, operand.ndim
    if not last or ndim < 4:
        return Layout.contiguous(operand.dtype, shape, GUARD_BYTES)
    order = [0, *range(2, ndim), 1]
    there = Layout.contiguous(operand.dtype, [shape[axis] for axis in order], GUARD_BYTES)
    return there.transposed([order.index(axis) for axis in range(ndim)])


def assert_agrees(request: Any, random: np.random.Generator, run: Callable[[Any], Any]) -> None:
    """Give a request random numbers, have it done, and check all of its memory."""
    if isinstance(request, dnn.AttentionBackward):
        for name in ("attn_mask", "query_lengths", "key_lengths"):  # by which lse is told, which comes before them
            if (array := getattr(request, name)) is not None:
                array.array[...] = _attention_numbers(request, name, random.uniform(-2, 2, array.shape))
    if isinstance(request, dnn.RnnBackward):
        request = _run_before(request, random, run)
    declared.assert_agrees(request, random, run, expected, numbers)


def expected(request: Any, dense: dict[str, Array]) -> Expected:
    """Compute by the definition."""
    return EXPECTED[request.name](request, dense)


# --- activations ------------------------------------------------------------------------------------------------------

CLASSIC: Final = (
    "activation",
    "activation_backward",
    "softmax",
    "softmax_backward",
    "pool",
    "pool_backward",
    "local_response_norm",
    "local_response_norm_backward",
    "batch_norm",
    "rnn",
    "rnn_backward",
)
"""Requests that cuDNN's classic calls serve."""

ACTIVATIONS: Final[dict[str, Callable[[Array], Any]]] = {
    "identity": lambda x: x,
    "relu": lambda x: np.where(x.real > 0, x, 0),
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "tanh": np.tanh,
    "gelu": lambda x: x * ndtr(x),
    "gelu_tanh": lambda x: x / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x))),
    "silu": lambda x: x / (1 + np.exp(-x)),
    "elu": lambda x: np.where(x.real > 0, x, np.exp(np.where(x.real > 0, 0, x)) - 1),
    "softplus": lambda x: np.log(1 + np.exp(x)),
}
"""Functions of real and of complex numbers."""

# --- windows ----------------------------------------------------------------------------------------------------------


def window(draw: st.DrawFn) -> dict[str, Any]:
    """Draw a window's shape and way, and an image on which it fits, at best with few places."""
    count = draw(st.integers(1, 3))

    def several(low: int, high: int) -> tuple[int, ...]:
        return tuple(draw(st.integers(low, high)) for _ in range(count))

    def short(values: tuple[int, ...]) -> tuple[int, ...]:
        return values[:1] if len(set(values)) == 1 and draw(st.booleans()) else values

    shape, stride, dilation, extra = several(1, 3), several(1, 3), several(1, 2), several(0, 3)
    sides = [draw(st.integers(0, 2)) for _ in range(2 * count)]
    if draw(st.booleans()):
        sides = [each for each in sides[:count] for _ in range(2)]
    padding = tuple(sides[::2]) if sides[::2] == sides[1::2] else tuple(sides)
    reach = [d * (k - 1) + 1 for k, d in zip(shape, dilation, strict=True)]
    space = tuple(
        max(0, r - before - behind) + more
        for r, before, behind, more in zip(reach, sides[::2], sides[1::2], extra, strict=True)
    )
    found = {"window": shape, "space": space}
    return found | {"stride": short(stride), "dilation": short(dilation), "padding": short(padding)}


def per_dimension(values: Sequence[int], count: int) -> list[int]:
    """Return a number for each dimension."""
    return list(values) * (count // len(values)) if len(values) < count else list(values)


def padded(request: Any, x: Array, value: float = 0.0) -> Array:
    """Return an image with its padding."""
    return np.pad(x, [(0, 0), (0, 0), *_sides(request, x.ndim - 2)], constant_values=value)


def _sides(request: Any, count: int) -> list[tuple[int, int]]:
    """Return the padding before and behind each dimension."""
    given = list(request.padding)
    if len(given) < 2 * count:
        given = [side for side in per_dimension(given, count) for _ in range(2)]
    return list(zip(given[::2], given[1::2], strict=True))


def patches(request: Any, image: Array, shape: Sequence[int]) -> Iterator[tuple[Any, Any]]:
    """Return for each place of a window on a padded image its index, and that of its elements there."""
    stride, dilation = (per_dimension(getattr(request, name, (1,)), len(shape)) for name in ("stride", "dilation"))
    reach = [d * (k - 1) + 1 for k, d in zip(shape, dilation, strict=True)]
    steps = [range(0, n - r + 1, s) for n, r, s in zip(image.shape[2:], reach, stride, strict=True)]
    for place in np.ndindex(*map(len, steps)):
        begins = [step[at] for step, at in zip(steps, place, strict=True)]
        along = [begin + d * np.arange(k) for begin, k, d in zip(begins, shape, dilation, strict=True)]
        yield place, (slice(None), slice(None), *np.ix_(*along))


def places(request: Any, space: Sequence[int], shape: Sequence[int]) -> tuple[int, ...]:
    """Return how many places a window has."""
    image = padded(request, np.zeros((1, 1, *space)))
    *_, (last, _) = patches(request, image, shape)
    return tuple(at + 1 for at in last)


# --- convolutions -----------------------------------------------------------------------------------------------------


def _drawn_convolution(draw: st.DrawFn, name: str) -> dict[str, Any]:
    way = window(draw)
    groups = draw(st.integers(1, 3))
    n, cg, kg = (draw(st.sampled_from([0, 1, 1, 2, 3])) for _ in range(3))
    fixed = {key: way[key] for key in ("stride", "padding", "dilation")} | {"groups": groups, "allow_tf32": False}
    sizes: dict[str, Any] = {"n": n, "c": groups * cg, "cg": cg, "k": groups * kg, "window": way["window"]}
    sizes["space"] = way["space"]
    types: Any = type("Way", (), fixed)
    sizes["places"] = places(types, way["space"], way["window"])
    if name == "conv_transpose":
        steps = per_dimension(way["stride"], len(way["space"]))
        fixed["output_padding"] = tuple(draw(st.integers(0, step - 1)) for step in steps)
        types.output_padding = fixed["output_padding"]
        assume(all(n >= 0 for n in enlarged(types, sizes["places"], way["window"])))
    if name in {"conv_input", "conv_weight"}:
        fixed["size"] = way["space" if name == "conv_input" else "window"]
    return {"fixed": fixed, "sizes": sizes, "absent": ["bias"] if draw(st.booleans()) else []}


def enlarged(request: Any, count: Sequence[int], shape: Sequence[int]) -> list[int]:
    """Return the lengths of a transposed convolution's result."""
    ways = (per_dimension(getattr(request, name), len(shape)) for name in ("stride", "dilation", "output_padding"))
    pads = [sum(sides) - 1 for sides in _sides(request, len(shape))]
    found = zip(*ways, count, shape, pads, strict=True)
    return [(n - 1) * step + dilation * (k - 1) - pad + more for step, dilation, more, n, k, pad in found]


def _by_group(request: Any, *channels: int) -> Iterator[tuple[Any, ...]]:
    for group in range(request.groups):
        yield tuple(slice(group * each // request.groups, (group + 1) * each // request.groups) for each in channels)


def correlated(request: Any, x: Array, weight: Array) -> Array:
    """Return the cross-correlation."""
    image, shape = padded(request, x), weight.shape[2:]
    found = np.zeros((len(x), len(weight), *places(request, x.shape[2:], shape)))
    for place, here in patches(request, image, shape):
        patch = image[here]
        for c, k in _by_group(request, x.shape[1], len(weight)):
            axes = [*range(1, patch.ndim)]
            found[(slice(None), k, *place)] = np.tensordot(patch[:, c], weight[k], (axes, axes))
    return found


def gradients(request: Any, x: Array, weight: Array, dy: Array) -> tuple[Array, Array]:
    """Return the gradients of the cross-correlation by its image and by its weight."""
    image, shape = padded(request, x), weight.shape[2:]
    of_image, of_weight = np.zeros_like(image), np.zeros(weight.shape)
    for place, here in patches(request, image, shape):
        for c, k in _by_group(request, x.shape[1], len(weight)):
            at = dy[(slice(None), k, *place)]
            patch = np.zeros_like(image[here])
            patch[:, c] = np.tensordot(at, weight[k], 1)
            of_image[here] += patch
            of_weight[k] += np.tensordot(at, image[here][:, c], (0, 0))
    sides = _sides(request, x.ndim - 2)
    inner: tuple[Any, ...] = tuple(slice(begin, begin + n) for (begin, _), n in zip(sides, x.shape[2:], strict=True))
    return of_image[(..., *inner)], of_weight


def _finished(request: Any, dense: dict[str, Array], total: Array, terms: int) -> Expected:
    """Blend, add the bias, and apply the activation."""
    if request.alpha == 0:
        total = np.zeros_like(total)
    total = request.alpha * total + (request.beta * dense["out"] if request.beta else 0)
    if "bias" in dense:
        total = total + dense["bias"].reshape(-1, *(1,) * (total.ndim - 2))
    total = ACTIVATIONS[getattr(request, "activation", "identity")](total)
    return Expected({"out": total}, terms + 3, 4 * abs(request.alpha) + 2 * abs(request.beta) + 2)


def _conv(request: Any, dense: dict[str, Array]) -> Expected:
    weight = dense["weight"]
    total = correlated(request, dense["x"], weight)
    return _finished(request, dense, total, math.prod(weight.shape[1:]))


def _conv_input(request: Any, dense: dict[str, Array]) -> Expected:
    """Scatter; for a transposed convolution too."""
    dy, weight = dense["dy" if "dy" in dense else "x"], dense["weight"]
    total, _ = gradients(request, np.zeros(dense["out"].shape), weight, dy)
    return _finished(request, dense, total, math.prod(weight.shape) // request.groups)


def _conv_weight(request: Any, dense: dict[str, Array]) -> Expected:
    x, dy = dense["x"], dense["dy"]
    _, total = gradients(request, x, np.zeros(dense["out"].shape), dy)
    return _finished(request, dense, total, len(dy) * math.prod(dy.shape[2:]))


# --- pooling ----------------------------------------------------------------------------------------------------------


def _drawn_pooling(draw: st.DrawFn) -> dict[str, Any]:
    shape, stride, extra = (tuple(draw(st.lists(st.integers(1, 3), min_size=3, max_size=3))) for _ in range(3))
    count = draw(st.integers(1, 3))
    sides = [draw(st.sampled_from([(0, 0), (0, k - 1), (k // 2, k // 2), (k - 1, 0)])) for k in shape[:count]]
    sides = [
        (before, behind) if before + behind <= k else (0, 0) for (before, behind), k in zip(sides, shape, strict=False)
    ]
    space = tuple(max(1, k - sum(side)) + more - 1 for k, side, more in zip(shape, sides, extra, strict=False))
    fixed = {
        "kernel_size": shape[:count],
        "stride": draw(st.sampled_from([None, stride[:count], stride[:1]])),
        "padding": sum(sides, ()),
    }
    assume(all(side[0] < k > side[1] for side, k in zip(sides, shape, strict=False)))
    sizes = {"n": draw(st.integers(0, 2)), "c": draw(st.integers(0, 3)), "space": space}
    return {"fixed": fixed, "sizes": sizes, "solid": 5}


def _pooled(request: Any, x: Array) -> tuple[Array, Array]:
    """Return the result of pooling, and the number that an average has divided by."""
    count = x.ndim - 2
    shape, request = per_dimension(request.kernel_size, count), _with_stride(request, count)
    image = padded(request, x, -math.inf if request.mode == "max" else 0.0)
    inside = padded(request, np.ones(x.shape), float(request.count_include_pad))
    found, divided = np.zeros((2, *x.shape[:2], *places(request, x.shape[2:], shape)))
    axes = tuple(range(2, x.ndim))
    for place, here in patches(request, image, shape):
        at = (..., *place)
        divided[at] = inside[here].sum(axes)
        found[at] = image[here].max(axes) if request.mode == "max" else image[here].sum(axes) / divided[at]
    return found, divided


def _with_stride(request: Any, count: int) -> Any:
    """Return the parameters of a window, with those that it has by default."""
    names = ("padding", "mode", "count_include_pad")
    given = {name: getattr(request, name) for name in names}
    stride = request.stride or tuple(per_dimension(request.kernel_size, count))
    return type("Pooling", (), given | {"stride": stride})


def _pool(request: Any, dense: dict[str, Array]) -> Expected:
    total, _ = _pooled(request, dense["x"])
    return _finished(request, dense, total, math.prod(per_dimension(request.kernel_size, total.ndim - 2)))


def _pool_backward(request: Any, dense: dict[str, Array]) -> Expected:
    x, dy = dense["x"], dense["dy"]
    count = x.ndim - 2
    shape, window = per_dimension(request.kernel_size, count), _with_stride(request, count)
    image = padded(window, x, -math.inf)
    gradient = np.zeros(image.shape)
    _, divided = _pooled(request, x)
    for place, here in patches(window, image, shape):
        share = dy[(..., *place)].reshape(*x.shape[:2], *(1,) * count)
        if request.mode == "max":
            patch = image[here].reshape(*x.shape[:2], math.prod(shape))
            first = np.arange(patch.shape[2]) == patch.argmax(2)[..., None] if patch.size else patch
            gradient[here] += share * first.reshape(image[here].shape)
        else:
            gradient[here] += share / divided[(..., *place)].reshape(share.shape)
    inner: tuple[Any, ...] = tuple(
        slice(begin, begin + n) for (begin, _), n in zip(_sides(window, count), x.shape[2:], strict=True)
    )
    return _finished(request, dense, gradient[(..., *inner)], math.prod(shape))


# --- element by element -----------------------------------------------------------------------------------------------


def _drawn_softmax(draw: st.DrawFn) -> dict[str, Any]:
    dims = tuple(draw(st.lists(st.sampled_from([0, 1, 2, 3, 5]), min_size=1, max_size=4)))
    dim = draw(st.permutations(range(len(dims))))[: draw(st.integers(1, len(dims)))]
    return {
        "fixed": {"dim": tuple(at - draw(st.sampled_from([0, len(dims)])) for at in dim)},
        "sizes": {"dims": dims},
    }


def _softmax(request: Any, dense: dict[str, Array]) -> Expected:
    powers = np.exp(dense["x"])
    total = powers / powers.sum(request.dim, keepdims=True)
    return _finished(request, dense, np.log(total) if request.log else total, total.size + 8)


def _softmax_backward(request: Any, dense: dict[str, Array]) -> Expected:
    """Multiply by the matrix of derivatives."""
    y, dy, axes = dense["y"], dense["dy"], [at % dense["y"].ndim for at in request.dim]
    order = [at for at in range(y.ndim) if at not in axes] + axes
    shape = [y.shape[at] for at in order]
    flat = (math.prod(shape[: -len(axes)]), math.prod(shape[-len(axes) :]))
    rows, by = (each.transpose(order).reshape(flat) for each in (y, dy))
    found = np.zeros(flat)
    for at, (row, gradient) in enumerate(zip(rows, by, strict=True)):
        matrix = np.eye(len(row)) - np.exp(row) if request.log else np.diag(row) - np.outer(row, row)
        found[at] = gradient @ matrix
    total = found.reshape(shape).transpose(np.argsort(order))
    finished = _finished(request, dense, total, 2 * y.size + 8)
    return finished._replace(magnitude=finished.magnitude * 8)


def _activation(request: Any, dense: dict[str, Array]) -> Expected:
    return _finished(request, dense, ACTIVATIONS[request.kind](dense["x"]), 8)


def _activation_backward(request: Any, dense: dict[str, Array]) -> Expected:
    """Differentiate by a step along the imaginary axis, which is exact."""
    derivative = ACTIVATIONS[request.kind](dense["x"] + 1j * STEP).imag / STEP
    return _finished(request, dense, dense["dy"] * derivative, 8)


STEP: Final = 1e-40


def _drawn_channels(draw: st.DrawFn) -> dict[str, Any]:
    fixed = {"size": draw(st.integers(1, 6)), "alpha": draw(st.sampled_from([1e-4, 1.0, 0.0]))}
    fixed |= {"beta": draw(st.sampled_from([0.75, 1.0, -0.5, 0.0])), "k": draw(st.sampled_from([1.0, 2.0]))}
    sizes = {
        "n": draw(st.integers(0, 2)),
        "c": draw(st.integers(0, 7)),
        "space": draw(st.sampled_from([(), (3,), (2, 2)])),
    }
    return {"fixed": fixed, "sizes": sizes}


def normalized(request: Any, x: Array) -> Array:
    """Return what `local_response_norm` gives, by its definition."""
    total, count = np.array(x), x.shape[1]
    for channel in range(count):
        first, end = channel - request.size // 2, channel + (request.size - 1) // 2 + 1
        squares = (x[:, max(0, first) : min(count, end)] ** 2).sum(1)
        total[:, channel] = x[:, channel] / (request.k + request.alpha * squares / request.size) ** request.beta
    return total


def _response_norm(request: Any, dense: dict[str, Array]) -> Expected:
    return Expected({"out": normalized(request, dense["x"])}, 16, 4.0)


def _response_norm_backward(request: Any, dense: dict[str, Array]) -> Expected:
    x, found = dense["x"], np.zeros(dense["x"].shape)
    for channel in range(x.shape[1]):
        moved = x.astype(complex)
        moved[:, channel] += 1j * STEP
        found[:, channel] = (dense["dy"] * normalized(request, moved).imag / STEP).sum(1)
    return Expected({"out": found}, 16, 64.0)


def _drawn_dropout(draw: st.DrawFn) -> dict[str, Any]:
    fixed = {
        "p": draw(st.sampled_from([0.0, 0.25, 0.5, 0.9, 1.0])),
        "seed": draw(st.sampled_from([0, 1, 2**64 - 1])),
        "offset": draw(st.sampled_from([0, 1, 2**33 + 5])),
    }
    return {"fixed": fixed}


def mask_of(p: float, source: rng.Source, shape: tuple[int, ...]) -> Array:
    """Return the mask of dropout, from the words that `rng` gives."""
    bits = rng.Bits(FakeArray.of(np.zeros(shape), "uint32"), source=source)
    run_by(host_actor("rng"))(bits)
    return bits.out.array / 2.0**32 >= p  # type: ignore[union-attr,no-any-return]


def _dropout(request: Any, dense: dict[str, Array]) -> Expected:
    values = dense["dy" if "dy" in dense else "x"]
    kept = mask_of(request.p, rng.Source(seed=request.seed, offset=request.offset), values.shape)
    return Expected({"out": kept * values / (1 - request.p or 1.0), "mask": kept}, 1, 20.0)


# --- norms ------------------------------------------------------------------------------------------------------------


def _drawn_norm(draw: st.DrawFn, cls: Any) -> dict[str, Any]:
    backward = cls.name == "norm_backward"
    mode = draw(st.sampled_from(["batch", "layer", "instance", "group", "rms"])) if backward else cls.mode
    groups = draw(st.integers(1, 3))
    lengths = [0, 1, 2, 3, 4] if cls.name != "batch_norm_training" else [1, 2, 3]
    dims = [draw(st.sampled_from(lengths)) for _ in range(draw(st.integers(2, 4)))]
    dims[1] *= groups
    fixed: dict[str, Any] = {"normalized_shape": ()} if backward else {"eps": draw(st.sampled_from([1e-3, 0.1]))}
    if mode in {"layer", "rms"}:
        fixed["normalized_shape"] = tuple(dims[-draw(st.integers(1, len(dims))) :])
    if backward or mode == "group":
        fixed["num_groups"] = groups
    if cls.name == "batch_norm_training":
        fixed["momentum"] = draw(st.sampled_from([0.0, 0.1, 1.0]))
    if backward:
        fixed["mode"] = mode
    names = [["weight"], ["bias"], ["running_mean", "running_var"]]
    absent = [name for each in names if draw(st.booleans()) for name in each]
    if cls.name == "batch_norm":
        absent = [name for name in absent if not name.startswith("running")]
    elif cls.name == "batch_norm_training":
        fixed["running_var"] = None if "running_var" in absent else "given too"
    dtype = draw(st.sampled_from(["float16", "bfloat16", "float32", "float64"]))
    letters = {"T": dtype, "W": draw(st.sampled_from([dtype, "float32"])) if dtype.endswith("16") else dtype}
    sizes = {"dims": tuple(dims)}
    return {"fixed": fixed, "sizes": sizes, "absent": absent, "letters": letters, "solid": 5 if backward else 0}


def rows(request: Any, x: Array) -> tuple[Array, Callable[[Array], Array]]:
    """Return the elements that are normalised together as the rows of a matrix, and the way back."""
    mode = request.mode
    turned = x.swapaxes(0, 1) if mode == "batch" else x
    if mode in {"layer", "rms"}:
        columns = math.prod(request.normalized_shape)
        count = math.prod(x.shape[: x.ndim - len(request.normalized_shape)])
    else:
        count = {"batch": x.shape[1], "instance": x.shape[0] * x.shape[1]}.get(mode) or 0
        if mode == "group":
            count = x.shape[0] * request.num_groups
        columns = x.size // count if count else 0

    def back(matrix: Array) -> Array:
        found = matrix.reshape(turned.shape)
        return found.swapaxes(0, 1) if mode == "batch" else found

    return turned.reshape(count, columns), back


def statistics(request: Any, x: Array, eps: float) -> tuple[Array, Array, Array]:
    """Return means, inverse deviations, and variances, row by row."""
    matrix, _ = rows(request, x)
    found = np.zeros((3, len(matrix)), matrix.dtype)
    for at, row in enumerate(matrix):
        count = max(1, len(row))
        mean = 0 if request.mode == "rms" else sum(row) / count
        variance = sum((row - mean) ** 2) / count
        found[:, at] = mean, 1 / np.sqrt(variance + eps), variance
    return found[0], found[1], found[2]


def affine(request: Any, dense: dict[str, Array], normal: Array) -> Array:
    """Return normalised values times weight plus bias."""
    shape = (-1, *(1,) * (normal.ndim - 2)) if request.mode not in {"layer", "rms"} else request.normalized_shape
    for name, function in (("weight", np.multiply), ("bias", np.add)):
        if name in dense:
            normal = function(normal, dense[name].reshape(shape))
    return normal


def _by_statistics(request: Any, dense: dict[str, Array], mean: Array, invstd: Array) -> Array:
    matrix, back = rows(request, dense["x"])
    return affine(request, dense, back((matrix - mean[:, None]) * invstd[:, None]))


def _norm(request: Any, dense: dict[str, Array]) -> Expected:
    x = dense["x"]
    mean, invstd, variance = statistics(request, x, request.eps)
    values = {"out": _by_statistics(request, dense, mean, invstd)}
    for name, array in (("mean", mean), ("invstd", invstd)):
        if name in dense:
            values[name] = array.reshape(dense[name].shape)
    if "running_mean" in dense:
        share, count = request.momentum, rows(request, x)[0].shape[1]
        sample = variance * count / max(1, count - 1)
        values["running_mean"] = (1 - share) * dense["running_mean"] + share * mean
        values["running_var"] = (1 - share) * dense["running_var"] + share * sample
    return Expected(values, 16, 8 * max(1.0, invstd.max(initial=0)))


def _batch_norm(request: Any, dense: dict[str, Array]) -> Expected:
    invstd = 1 / np.sqrt(dense["running_var"] + request.eps)
    out = _by_statistics(request, dense, dense["running_mean"], invstd)
    return Expected({"out": out}, 8, 8 * max(1.0, invstd.max(initial=0)))


EPS: Final = 0.01
"""That of the forward whose gradient is taken."""


def _norm_backward(request: Any, dense: dict[str, Array]) -> Expected:
    """Take a step along the imaginary axis from each element of x, of weight and of bias."""
    shape = request.x.shape[1:2] if request.mode not in {"layer", "rms"} else tuple(request.normalized_shape)
    given = {"x": dense["x"], "weight": dense.get("weight", np.ones(shape)), "bias": np.zeros(shape)}
    names = {"x": "out", "weight": "dweight", "bias": "dbias"}
    values = {}
    for name, wanted in names.items():
        if wanted not in dense:
            continue
        found = np.zeros(given[name].shape)
        for at in np.ndindex(found.shape):
            moved = given[name].astype(complex)
            moved[at] += 1j * STEP
            now = given | {name: moved}
            mean, invstd, _ = statistics(request, now["x"], EPS)
            found[at] = (dense["dy"] * _by_statistics(request, now, mean, invstd).imag / STEP).sum()
        values[wanted] = found
    largest = dense["invstd"].max(initial=1.0)
    return Expected(values, 2 * dense["x"].size + 8, 16 * largest**2)


# --- attention --------------------------------------------------------------------------------------------------------


def _drawn_attention(draw: st.DrawFn, name: str) -> dict[str, Any]:
    backward = name.endswith("backward")
    shared = draw(st.integers(1, 2))
    b, sq, sk = (draw(st.sampled_from([0, 1, 2, 3])) for _ in range(3))
    sizes = {
        "b": min(b, 2),
        "hq": shared * draw(st.integers(1, 2)),
        "hk": shared,
        "sq": sq,
        "sk": sk + draw(st.integers(0, 2)),
    }
    sizes |= {"d": draw(st.integers(1, 3)), "dv": draw(st.integers(0, 2))}
    fixed: dict[str, Any] = {
        "window": draw(st.sampled_from([None, None, 1, 2, 3])),
        "scale": draw(st.sampled_from([None, 0.5, 0.0])),
        "dropout_p": draw(st.sampled_from([0.0, 0.0, 0.4, 1.0])),
        "seed": draw(st.integers(0, 9)),
        "offset": draw(st.sampled_from([0, 2**40 + 1])),
        "allow_tf32": False,
    }
    absent = [each for each in ("attn_mask", "query_lengths", "key_lengths") if draw(st.booleans())]
    whole = (sizes["b"], sizes["hq"], sizes["sq"], sizes["sk"])
    mask = tuple(draw(st.sampled_from([n, 1])) for n in whole)[draw(st.integers(0, 4)) :]
    return {
        "fixed": fixed,
        "sizes": sizes | {"_": mask},
        "absent": absent,
        "shapes": {"attn_mask": mask},
        "solid": 5 if backward else 0,
    }


def attention(request: Any, dense: dict[str, Array]) -> tuple[Array, Array]:
    """Return the result of attention and the logarithms of sums, query by query."""
    query, key, value = dense["query"], dense["key"], dense["value"]
    (b, hq, sq, d), (_, hk, sk, dv) = query.shape, value.shape
    kind = np.result_type(query, key, value)
    scale = d**-0.5 if request.scale is None else request.scale
    bias = np.broadcast_to(dense.get("attn_mask", 0.0), (b, hq, sq, sk))
    source = rng.Source(seed=request.seed, offset=request.offset)
    kept = mask_of(request.dropout_p, source, (b, hq, sq, sk)) if request.dropout_p else np.ones((b, hq, sq, sk))
    found, sums = np.zeros((b, hq, sq, dv), kind), np.full((b, hq, sq), -np.inf)
    for sample, head in np.ndindex(b, hq):
        queries, keys = (
            n if name not in dense else int(np.clip(dense[name][sample], 0, n))
            for name, n in (("query_lengths", sq), ("key_lengths", sk))
        )
        shift = keys - queries if request.align == "bottom_right" else 0
        for i in range(queries):
            powers = np.zeros(sk, kind)
            for j in range(keys):
                distance = i + shift - j
                if (request.is_causal and distance < 0) or (request.window and abs(distance) >= request.window):
                    continue
                product = query[sample, head, i] @ key[sample, head * hk // hq, j]
                powers[j] = np.exp(scale * product + bias[sample, head, i, j])
            total = powers.sum()
            if total != 0:
                weights = powers / total * kept[sample, head, i] / (1 - request.dropout_p or 1)
                found[sample, head, i] = weights @ value[sample, head * hk // hq]
                sums[sample, head, i] = np.log(total).real
    return found, sums


def _attention(request: Any, dense: dict[str, Array]) -> Expected:
    out, lse = attention(request, dense)
    return Expected({"out": out, "lse": lse}, dense["key"].shape[2] * 4 + 16, 16.0)


def _attention_backward(request: Any, dense: dict[str, Array]) -> Expected:
    """Take a step along the imaginary axis from each element of query, key and value."""
    values = {}
    for name in ("query", "key", "value"):
        found = np.zeros(dense[name].shape)
        for at in np.ndindex(found.shape):
            moved = dense[name].astype(complex)
            moved[at] += 1j * STEP
            result, _ = attention(request, dense | {name: moved})
            found[at] = (dense["dy"] * result.imag / STEP).sum()
        values[f"d{name}"] = found
    return Expected(values, 4 * dense["query"].shape[2] * (dense["key"].shape[2] + 4), 64.0)


def _known_numbers(request: Any, name: str, drawn: Array) -> Array:
    """Return those of masks and lengths that are there already."""
    if name in {"attn_mask", "query_lengths", "key_lengths"}:
        return np.array(getattr(request, name).array, np.float64)
    return _attention_numbers(request, name, drawn)


def _attention_numbers(request: Any, name: str, drawn: Array) -> Array:
    """Return numbers for masks, lengths and what the forward has saved."""
    if name == "attn_mask":
        return np.where(drawn > 1.5, -np.inf, drawn)
    if name.endswith("_lengths"):
        most = (request.query if name == "query_lengths" else request.key).shape[2]
        return np.asarray(np.floor((drawn + 2) / 4 * (most + 3)) - 1)  # some are too small, and some too large
    if name == "lse" and request.name.endswith("backward"):
        arrays = {each: array.array.astype(np.float64) for each, _, array in request.arrays() if array is not None}
        return np.asarray(attention(request, arrays)[1])
    return drawn


# --- recurrent networks -----------------------------------------------------------------------------------------------


def _drawn_network(draw: st.DrawFn, name: str) -> dict[str, Any]:
    fixed: dict[str, Any] = {
        "hidden_size": draw(st.integers(1, 2)),
        "num_layers": draw(st.integers(1, 2)),
        "dropout_p": draw(st.sampled_from([0.0, 0.5])),
        "seed": draw(st.integers(0, 9)),
        "offset": draw(st.sampled_from([0, 2**40 + 1])),
        "allow_tf32": False,
    }
    sizes = {"t": draw(st.integers(0, 3)), "b": draw(st.integers(0, 2)), "i": draw(st.integers(0, 2))}
    given = [["h0", "c0"], ["dhn", "dcn"], ["lengths"]]
    absent = [each for names in given if draw(st.booleans()) for each in names]
    return {"fixed": fixed, "sizes": sizes, "absent": absent, "solid": 5 if name.endswith("backward") else 0}


@st.composite
def packings(draw: st.DrawFn) -> Any:
    """Draw a packing of weights that lie anyhow."""
    cells: dict[str, Any] = {"mode": draw(st.sampled_from(list(GATES))), "hidden_size": draw(st.integers(1, 3))}
    cells |= {"num_layers": draw(st.integers(1, 2)), "bidirectional": draw(st.booleans())}
    inputs, dtype = draw(st.integers(1, 3)), draw(st.sampled_from(dnn.FLOATS))
    fields = fields_of(dnn.RnnPack)
    shapes = [each.shape for layer in unpacked(cells, inputs, None) for each in layer]
    weights: list[Operand] = [draw(layouts.placed(shape, dtype, fields.lists["weights"])) for shape in shapes]
    size = sum(math.prod(shape) for shape in shapes)
    return dnn.RnnPack(weights, draw(layouts.placed((size,), dtype, fields.arrays["out"])), input_size=inputs, **cells)


GATES: Final = {"relu": 1, "tanh": 1, "lstm": 4, "gru": 3}


def unpacked(cells: Any, inputs: int, packed: Array | None) -> list[list[Array]]:
    """Return w_ih, w_hh, b_ih and b_hh for each direction of each layer: all matrices, and then all biases."""
    hidden, ways = cells["hidden_size"], 1 + cells["bidirectional"]
    gates = GATES[cells["mode"]] * hidden
    matrices: list[Array] = []
    biases: list[Array] = []
    at = 0

    def next_of(*shape: int) -> Array:
        nonlocal at
        at += math.prod(shape)
        return np.zeros(shape) if packed is None else packed[at - math.prod(shape) : at].reshape(shape)

    for layer in range(cells["num_layers"]):
        for _ in range(ways):
            matrices += [next_of(gates, ways * hidden if layer else inputs), next_of(gates, hidden)]
    for _ in range(cells["num_layers"] * ways):
        biases += [next_of(gates), next_of(gates)]
    return [[*matrices[n : n + 2], *biases[n : n + 2]] for n in range(0, len(matrices), 2)]


def _cell(mode: str, weights: Sequence[Array], x: Array, h: Array, c: Array) -> tuple[Array, Array]:
    """Return the next states of one sequence."""
    w_ih, w_hh, b_ih, b_hh = weights
    by_x, by_h = w_ih @ x + b_ih, w_hh @ h + b_hh
    sigmoid, tanh, n = ACTIVATIONS["sigmoid"], np.tanh, len(h)
    if mode == "lstm":
        i, f, g, o = (by_x + by_h).reshape(4, n)
        c = sigmoid(f) * c + sigmoid(i) * tanh(g)
        return sigmoid(o) * tanh(c), c
    if mode == "gru":
        r, z = sigmoid((by_x + by_h)[: 2 * n]).reshape(2, n)
        new = tanh(by_x[2 * n :] + r * by_h[2 * n :])
        return (1 - z) * new + z * h, c
    return ACTIVATIONS[mode](by_x + by_h), c


def network(request: Any, dense: dict[str, Array]) -> dict[str, Array]:
    """Return out, hn and cn, one sequence after the other."""
    x, packed = dense["x"], dense["weights"]
    t, b, inputs = x.shape
    names = ("mode", "hidden_size", "num_layers", "bidirectional")
    weights = unpacked({name: getattr(request, name) for name in names}, inputs, packed)
    hidden, ways = request.hidden_size, 1 + request.bidirectional
    shape = (len(weights), b, hidden)
    kind = np.result_type(*(dense[name] for name in ("x", "weights", "h0", "c0") if name in dense))
    states = [np.array(dense.get(name, np.zeros(shape)), kind) for name in ("h0", "c0")]
    source = rng.Source(seed=request.seed, offset=request.offset)
    kept = mask_of(request.dropout_p, source, (request.num_layers, t, b, ways * hidden))
    found = np.zeros((t, b, ways * hidden), kind)
    for sample in range(b):
        steps = int(np.clip(dense["lengths"][sample], 0, t)) if "lengths" in dense else t
        rows = x[:steps, sample].astype(kind)
        for layer in range(request.num_layers):
            if layer:
                rows = rows * kept[layer - 1, :steps, sample] / (1 - request.dropout_p)
            outputs = np.zeros((steps, ways, hidden), kind)
            for way in range(ways):
                at = layer * ways + way
                h, c = states[0][at, sample], states[1][at, sample]
                for step in range(steps)[:: -1 if way else 1]:
                    h, c = _cell(request.mode, weights[at], rows[step], h, c)
                    outputs[step, way] = h
                states[0][at, sample], states[1][at, sample] = h, c
            rows = outputs.reshape(steps, ways * hidden)
        found[:steps, sample] = rows
    return {"out": found, "hn": states[0], "cn": states[1]}


def _network(request: Any, dense: dict[str, Array]) -> Expected:
    values = network(request, dense)
    nothing = {"reserve": np.zeros(dense["reserve"].shape, bool)} if "reserve" in dense else {}
    return Expected(values | nothing, 64, 16.0, nothing)


def network_gradients(request: Any, dense: dict[str, Array]) -> dict[str, Array]:
    """Return the gradients by x, weights and the first states, by a step along the imaginary axis from each element."""
    zeros = np.zeros((request.num_layers * (1 + request.bidirectional), dense["x"].shape[1], request.hidden_size))
    dense = {"h0": zeros, "c0": zeros} | dense
    values: dict[str, Any] = {}
    for name in ("x", "weights", "h0", "c0"):
        found = values[name] = np.zeros(dense[name].shape)
        for at in np.ndindex(found.shape):
            moved = dense[name].astype(complex)
            moved[at] += 1j * STEP
            results = network(request, dense | {name: moved})
            for result, gradient in (("out", "dy"), ("hn", "dhn"), ("cn", "dcn")):
                if gradient in dense:
                    found[at] += (dense[gradient] * results[result].imag / STEP).sum()
    return values


def _network_backward(request: Any, dense: dict[str, Array]) -> Expected:
    gradients = network_gradients(request, dense)
    values: dict[str, Any] = {f"d{name}": each for name, each in gradients.items() if f"d{name}" in dense}
    values["reserve"] = np.zeros(dense["reserve"].shape)
    return Expected(values, 64, 64.0, {"reserve": np.zeros(dense["reserve"].shape, bool)})


def _packed(request: dnn.RnnPack, dense: dict[str, Array]) -> Expected:
    names = [f"weights[{at}]" for at in range(len(request.weights))]
    order = [each for each in range(len(names)) if each % 4 < 2] + [each for each in range(len(names)) if each % 4 > 1]
    return Expected({"out": np.concatenate([dense[names[at]].reshape(-1) for at in order])})


def _network_numbers(request: Any, name: str, drawn: Array) -> Array:
    if name == "lengths":
        return np.asarray(np.floor((drawn + 2) / 4 * (request.x.shape[0] + 3)) - 1)
    return drawn * 0.4


def _run_before(request: Any, random: np.random.Generator, run: Callable[[Any], Any]) -> Any:
    """Have a forward fill the reserve of a backward; return the backward with the forward's result."""
    forward = {name: getattr(request, name) for name in dnn.RnnForward.__struct_fields__ if hasattr(request, name)}
    for name in ("x", "weights", "h0", "c0", "lengths"):
        if (array := forward[name]) is not None:
            array.array[...] = _network_numbers(request, name, random.uniform(-2, 2, array.shape))
    made = dnn.RnnForward(**forward, save_reserve=True)
    outputs = {name: FakeArray(layout) for name, layout in made.results().items()}
    run(msgspec.structs.replace(made, **outputs))
    result = outputs["out"].array
    request.y.array[...] = result
    if np.array_equal(request.y.array, result):
        return request
    return msgspec.structs.replace(request, y=FakeArray.of(result, request.x.dtype))  # some of its elements are one


def _there(request: Any, name: str, drawn: Array) -> Array:
    """Return the numbers that are there already, and others for gradients."""
    if name in {"x", "weights", "h0", "c0", "lengths", "reserve", "y"}:
        return np.array(getattr(request, name).array, np.float64)
    return drawn


# --- all --------------------------------------------------------------------------------------------------------------


def _plain(_draw: st.DrawFn) -> dict[str, Any]:
    return {}


DRAWN: Final[dict[str, Callable[[st.DrawFn], dict[str, Any]]]] = {
    **{
        name: lambda draw, name=name: _drawn_convolution(draw, name)  # type: ignore[misc]
        for name in ("conv", "conv_transpose", "conv_input", "conv_weight")
    },
    **dict.fromkeys(("pool", "pool_backward"), _drawn_pooling),
    **dict.fromkeys(("softmax", "softmax_backward"), _drawn_softmax),
    **dict.fromkeys(("activation", "activation_backward"), _plain),
    **dict.fromkeys(("local_response_norm", "local_response_norm_backward"), _drawn_channels),
    **dict.fromkeys(("dropout", "dropout_backward"), _drawn_dropout),
    **{
        name: lambda draw, name=name: _drawn_norm(draw, REQUESTS[name])  # type: ignore[misc]
        for name in REQUESTS
        if "norm" in name and "response" not in name
    },
    **{
        name: lambda draw, name=name: _drawn_attention(draw, name)  # type: ignore[misc]
        for name in REQUESTS
        if "attention" in name
    },
    **{
        name: lambda draw, name=name: _drawn_network(draw, name)  # type: ignore[misc]
        for name in ("rnn", "rnn_backward")
    },
}
"""What requests are drawn with, by name."""

EXPECTED: Final[dict[str, Callable[[Any, dict[str, Array]], Expected]]] = {
    "conv": _conv,
    "conv_transpose": _conv_input,
    "conv_input": _conv_input,
    "conv_weight": _conv_weight,
    "pool": _pool,
    "pool_backward": _pool_backward,
    "softmax": _softmax,
    "softmax_backward": _softmax_backward,
    "activation": _activation,
    "activation_backward": _activation_backward,
    "local_response_norm": _response_norm,
    "local_response_norm_backward": _response_norm_backward,
    "dropout": _dropout,
    "dropout_backward": _dropout,
    "batch_norm": _batch_norm,
    **dict.fromkeys(("batch_norm_training", "layer_norm", "instance_norm", "group_norm", "rms_norm"), _norm),
    "norm_backward": _norm_backward,
    "scaled_dot_product_attention": _attention,
    "scaled_dot_product_attention_backward": _attention_backward,
    "rnn_pack": _packed,
    "rnn": _network,
    "rnn_backward": _network_backward,
}


def _pool_numbers(request: Any, name: str, drawn: Array) -> Array:
    return _pooled(request, request.x.array.astype(np.float64))[0] if name == "y" else drawn


def _softmax_numbers(request: Any, name: str, drawn: Array) -> Array:
    if name != "y" or not drawn.size:
        return drawn
    powers = np.exp(drawn)
    total = powers / powers.sum(request.dim, keepdims=True)
    return np.asarray(np.log(total) if request.log else total)


def _norm_numbers(request: Any, name: str, drawn: Array) -> Array:
    if name not in {"mean", "invstd"}:
        return drawn
    mean, invstd, _ = statistics(request, request.x.array.astype(np.float64), EPS)
    return np.reshape(mean if name == "mean" else invstd, drawn.shape)


NUMBERS: Final[dict[str, Callable[[Any, str, Array], Array]]] = {
    "pool_backward": _pool_numbers,
    "softmax_backward": _softmax_numbers,
    "batch_norm": lambda _request, name, drawn: np.abs(drawn) if name == "running_var" else drawn,
    "norm_backward": _norm_numbers,
    "scaled_dot_product_attention": _attention_numbers,
    "scaled_dot_product_attention_backward": _known_numbers,
    "rnn": _network_numbers,
    "rnn_backward": _there,
}


def numbers(request: Any, name: str, drawn: Array) -> Array:
    """Return numbers of an array that are possible beside those that the arrays before it have."""
    array: Any = getattr(request, name, None)  # not of an array in a list
    for given, _, other in request.arrays():
        if (
            name == "out" != given
            and other is not None
            and other.layout == array.layout
            and other.number == array.number
        ):
            return np.array(array.array, np.float64)  # in place
    found = NUMBERS.get(request.name)
    return drawn if found is None else found(request, name, drawn)


def mask(*shape: int) -> Array:
    """Return a mask that leaves out a part of the keys, and all of them for the first query."""
    found = np.random.default_rng(2).choice([0.0, 0.5, -math.inf], shape)
    found[..., 0, :] = -math.inf
    found[..., 1:, 0] = 0
    return found
