"""Expected results of neural networks on every backend: their definitions, in double precision.

Windows are laid over padded images place by place, which no backend does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from hypothesis import assume
from hypothesis import strategies as st
from scipy.special import ndtr

from atomr_mp.protocol.libraries import requests_of
from atomr_mp.protocol.libraries.base import LibraryRequest
from tests import declared
from tests.declared import Expected

Array = npt.NDArray[Any]

REQUESTS: Final = requests_of("dnn")


@st.composite
def requests(draw: st.DrawFn, cls: type[LibraryRequest]) -> Any:
    """Draw a request: any layouts, sizes and options, some arrays left out."""
    return draw(declared.requests(cls, **DRAWN[cls.name](draw)))


def assert_agrees(request: Any, random: np.random.Generator, run: Callable[[Any], Any]) -> None:
    """Give a request random numbers, have it done, and check all of its memory."""
    declared.assert_agrees(request, random, run, expected)


def expected(request: Any, dense: dict[str, Array]) -> Expected:
    """Compute by the definition."""
    return EXPECTED[request.name](request, dense)


# --- activations ------------------------------------------------------------------------------------------------------

ACTIVATIONS: Final[dict[str, Callable[[Array], Any]]] = {
    "identity": lambda x: x,
    "relu": lambda x: np.where(x > 0, x, 0),
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "tanh": np.tanh,
    "gelu": lambda x: x * ndtr(x),
    "gelu_tanh": lambda x: x / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x))),
    "silu": lambda x: x / (1 + np.exp(-x)),
    "elu": lambda x: np.where(x > 0, x, np.exp(np.where(x > 0, 0, x)) - 1),
    "softplus": lambda x: np.log1p(np.exp(-np.abs(x))) + np.where(x > 0, x, 0),
}

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


# --- all --------------------------------------------------------------------------------------------------------------

DRAWN: Final[dict[str, Callable[[st.DrawFn], dict[str, Any]]]] = {
    name: lambda draw, name=name: _drawn_convolution(draw, name)  # type: ignore[misc]
    for name in ("conv", "conv_transpose", "conv_input", "conv_weight")
}
"""What requests are drawn with, by name."""

EXPECTED: Final[dict[str, Callable[[Any, dict[str, Array]], Expected]]] = {
    "conv": _conv,
    "conv_transpose": _conv_input,
    "conv_input": _conv_input,
    "conv_weight": _conv_weight,
}
