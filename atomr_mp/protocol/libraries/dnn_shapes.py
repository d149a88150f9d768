"""Shapes and rules of the requests of neural networks. Pure."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Any, Final, NamedTuple

from msgspec import Meta

from atomr_mp import errors
from atomr_mp.protocol.declaration.arguments import Sizes
from atomr_mp.protocol.libraries.base import HALF
from atomr_mp.protocol.words import counted

MOST_DIMENSIONS: Final = 3
"""Dimensions that a window may move along."""

Dims = Annotated[tuple[int, ...], Meta(min_length=1)]
"""Numbers of dimensions, counted from either end."""
NotNegative = Annotated[float, Meta(ge=0)]
Probability = Annotated[float, Meta(ge=0, le=1)]
Seed = Annotated[int, Meta(ge=0)]  # msgspec knows no larger bounds than those of 64 bits with a sign
Size = Annotated[int, Meta(ge=1, le=2**31 - 1)]
Window = Annotated[tuple[Size, ...], Meta(min_length=1, max_length=MOST_DIMENSIONS)]
"""A number for each dimension that a window moves along, or one for all."""
Padding = Annotated[
    tuple[Annotated[int, Meta(ge=0, le=2**31 - 1)], ...], Meta(min_length=1, max_length=2 * MOST_DIMENSIONS)
]
"""One number for all sides, one for each dimension, or two for each: before it and behind it."""
Lengths = Annotated[tuple[Annotated[int, Meta(ge=0, le=2**31 - 1)], ...], Meta(max_length=MOST_DIMENSIONS)]
"""A length for each dimension that a window moves along, or one for all."""

# --- windows ----------------------------------------------------------------------------------------------------------

Meeting = tuple[tuple[Any, ...], tuple[Any, ...], tuple[Any, ...]]
"""Indices of what meets: of places of a window, its elements, or those of an image."""


class Sweep(NamedTuple):
    """The sweep of a window along one dimension of an image, which zeros before and behind it pad."""

    size: int
    stride: int
    dilation: int
    before: int
    behind: int

    @property
    def reach(self) -> int:
        """How many elements it spans."""
        return self.dilation * (self.size - 1) + 1

    def places(self, length: int) -> int:
        """Return how many places it has on an image of this length; 0 or less if it does not fit."""
        return (length + self.before + self.behind - self.reach) // self.stride + 1

    def least(self, places: int) -> int:
        """Return the least length of an image on which it has so many places; may be 0 or less."""
        return (places - 1) * self.stride + self.reach - self.before - self.behind

    def taps(self, length: int, places: int) -> Iterator[tuple[int, slice, slice]]:
        """Return for each element of the window its number, the places where it lies on the image, and where there.

        Elements that never lie on it are passed over without being counted: they may be many more than those that do.
        """
        tap = 0
        while tap < self.size and length:
            shift = tap * self.dilation - self.before
            first = max(0, -(shift // self.stride))
            begin = first * self.stride + shift
            if first < places and begin < length:
                end = min(places, (length - 1 - shift) // self.stride + 1)
                yield tap, slice(first, end), slice(begin, begin + (end - first - 1) * self.stride + 1, self.stride)
                tap += 1
            elif first:
                tap = -(((min(first, places) - 1) * self.stride - self.before) // self.dilation)
            else:
                return

    def spots(self, length: int, places: int) -> Iterator[tuple[int, slice, slice]]:
        """Return for each place of the window its number, the elements of the image there, and those of the window.

        Places where no element of it lies on the image are left out.
        """
        for place in range(places):
            shift = place * self.stride - self.before
            first = max(0, -(shift // self.dilation))
            end = min(self.size, (length - 1 - shift) // self.dilation + 1)
            if first < end:
                begin, last = (shift + tap * self.dilation for tap in (first, end - 1))
                yield place, slice(begin, last + 1, self.dilation), slice(first, end)


def goes_by_places(sweeps: Sequence[Sweep], space: Sequence[int], places: Sequence[int]) -> bool:
    """Return whether a window has fewer places than elements that may lie on the image."""
    ways = zip(sweeps, space, places, strict=True)
    return math.prod(places) < math.prod(min(sweep.size, count * length) for sweep, length, count in ways)


def spots(sweeps: Sequence[Sweep], space: Sequence[int], places: Sequence[int]) -> Iterator[Meeting]:
    """Return for each place of a window its index, the part of the image there, and the part of the window on it.

    Args:
        sweeps: The window's sweep along each dimension.
        space: The image's lengths.
        places: How many places the window has along each.
    """
    return _crossed(sweep.spots(*lengths) for sweep, *lengths in zip(sweeps, space, places, strict=True))


def taps(sweeps: Sequence[Sweep], space: Sequence[int], places: Sequence[int]) -> Iterator[Meeting]:
    """Return for each element of a window its index, the places where it lies on the image, and where there.

    Args:
        sweeps: The window's sweep along each dimension.
        space: The image's lengths.
        places: How many places the window has along each.
    """
    return _crossed(sweep.taps(*lengths) for sweep, *lengths in zip(sweeps, space, places, strict=True))


def _crossed(along: Iterable[Iterable[tuple[int, slice, slice]]]) -> Iterator[Meeting]:
    """Combine the indices along single dimensions to indices of arrays."""
    for chosen in itertools.product(*along):
        first, second, third = zip(*chosen, strict=True)
        yield (..., *first), (..., *second), (..., *third)


def sweeps_of(request: Any, window: tuple[int, ...]) -> list[Sweep]:
    """Return the sweeps of a window of this shape along each dimension, from a request's stride, padding and dilation.

    Raises:
        InvalidRequest: There are not as many numbers as dimensions.
    """
    count = len(window)
    if not 1 <= count <= MOST_DIMENSIONS:
        raise errors.InvalidRequest(
            f"{request.name}: a window moves along 1 to {MOST_DIMENSIONS} dimensions; here it is {count}"
        )
    if 0 in window:
        raise errors.InvalidRequest(f"{request.name}: the window has the shape {tuple(window)}, and no element")
    stride = spread("stride", request.stride or window, count)
    dilation = spread("dilation", getattr(request, "dilation", (1,)), count)
    sides: tuple[int, ...] = request.padding
    if len(sides) != 2 * count:
        sides = tuple(each for each in spread("padding", sides, count, f", or {2 * count}") for _ in range(2))
    return [Sweep(*each) for each in zip(window, stride, dilation, sides[::2], sides[1::2], strict=True)]


def spread(name: str, values: tuple[int, ...], count: int, more: str = "") -> tuple[int, ...]:
    """Return a number for each dimension.

    Raises:
        InvalidRequest: There are neither as many as dimensions, nor one.
    """
    if len(values) not in {1, count}:
        least = "1" if count == 1 else f"1 or {count}"
        raise errors.InvalidRequest(
            f"{name} has {counted(len(values), 'number')}; for {counted(count, 'dimension')} it may have {least}{more}"
        )
    return values if len(values) == count else values * count


def placed(request: Any, space: Sequence[int], window: tuple[int, ...]) -> tuple[int, ...]:
    """Return how many places a window has along each dimension of an image.

    Raises:
        InvalidRequest: It does not fit on the image with its padding.
    """
    if len(space) != len(window):
        raise errors.InvalidRequest(
            f"{request.name}: the image has {counted(len(space), 'dimension')} and the window "
            f"{len(window)}; they must have the same number, besides batch and channels"
        )
    found = []
    for axis, (sweep, length) in enumerate(zip(sweeps_of(request, window), space, strict=True)):
        if sweep.places(length) < 1:
            raise errors.InvalidRequest(
                f"{request.name}: the window spans {sweep.reach} elements of dimension {axis}, where the image has "
                f"{length} with {sweep.before} + {sweep.behind} of padding"
            )
        found.append(sweep.places(length))
    return tuple(found)


# --- convolutions -----------------------------------------------------------------------------------------------------


def as_convolved(request: Any, sizes: Sizes) -> tuple[int, ...]:
    """(n, k, *places of the window)."""
    return (sizes["n"], sizes["k"], *placed(request, sizes["space"], sizes["window"]))


def as_transposed(request: Any, sizes: Sizes) -> tuple[int, ...]:
    """(n, groups·cg, *space), the least space on which the window has x's places, and output_padding more."""
    places, more = sizes["places"], spread("output_padding", request.output_padding, len(sizes["places"]))
    space = [least + each for least, each in zip(_least(request, places, sizes["window"]), more, strict=True)]
    return (sizes["n"], request.groups * sizes["cg"], *_not_negative(request, space))


def as_channels(request: Any, sizes: Sizes) -> tuple[int, ...]:
    """(groups·cg)."""
    return (request.groups * sizes["cg"],)


def as_input(request: Any, sizes: Sizes) -> tuple[int, ...]:
    """(n, groups·cg, *size); by default the least size on which the window has dy's places."""
    places, window = sizes["places"], sizes["window"]
    space = _told(request, len(places))
    if space is None:
        space = _not_negative(request, _least(request, places, window))
    if (found := placed(request, space, window)) != places:
        raise errors.InvalidRequest(f"on an image of {space} the window has the places {found}; dy has {places}")
    return (sizes["n"], request.groups * sizes["cg"], *space)


def as_weight(request: Any, sizes: Sizes) -> tuple[int, ...]:
    """(k, c / groups, *size)."""
    window = _told(request, len(sizes["space"]))
    if window is None:
        raise errors.InvalidRequest(f"{request.name}: nothing that was given tells the window; give size or out")
    if (found := placed(request, sizes["space"], window)) != sizes["places"]:
        raise errors.InvalidRequest(
            f"a window of {window} has the places {found} on x; dy has {sizes['places']} of them"
        )
    return (sizes["k"], sizes["c"] // request.groups, *window)


def _told(request: Any, count: int) -> tuple[int, ...] | None:
    """Return the lengths behind the first two that are given by `size`, or by out."""
    if request.size is not None:
        return spread("size", tuple(request.size), count)
    out = getattr(request, "out", None)
    return None if out is None else tuple(out.shape[2:])


def _least(request: Any, places: Sequence[int], window: tuple[int, ...]) -> list[int]:
    if len(places) != len(window):
        raise errors.InvalidRequest(
            f"{request.name}: the window's places have {counted(len(places), 'dimension')} and the window "
            f"{len(window)}; they must have the same number, besides batch and channels"
        )
    return [sweep.least(count) for sweep, count in zip(sweeps_of(request, window), places, strict=True)]


def _not_negative(request: Any, space: Sequence[int]) -> tuple[int, ...]:
    if min(space) < 0:
        raise errors.InvalidRequest(f"{request.name}: with this padding the result would have the lengths {(*space,)}")
    return tuple(space)


def has_groups(request: Any, sizes: Sizes) -> bool:
    """The weight must have c / groups channels in its second dimension, and groups must divide k."""
    groups = request.groups
    return bool(sizes["k"] % groups == 0 and sizes.get("c", groups * sizes["cg"]) == groups * sizes["cg"])


def divides_channels(request: Any, sizes: Sizes) -> bool:
    """Groups must divide the channels of x and of dy."""
    return bool(sizes["c"] % request.groups == 0 == sizes["k"] % request.groups)


def pads_less_than_stride(request: Any, _sizes: Sizes) -> bool:
    """Each output_padding must be less than the stride."""
    count = max(len(request.output_padding), len(request.stride))
    more, stride = (spread("output_padding", each, count) for each in (request.output_padding, request.stride))
    return all(each < step for each, step in zip(more, stride, strict=True))


def may_be_tf32(request: Any, _sizes: Sizes) -> bool:
    """Only float32 can be computed as tf32."""
    return (
        not request.allow_tf32 or next(each for _, _, each in request.arrays() if each is not None).dtype == "float32"
    )


def products(sizes: Sizes, *names: str) -> int:
    """Return the product of some sizes, of a star's all lengths."""
    return math.prod(math.prod(each) if isinstance(each, tuple) else each for each in map(sizes.__getitem__, names))


# --- pooling ----------------------------------------------------------------------------------------------------------


def pooling(request: Any) -> list[Sweep]:
    """Return the sweeps of a pooling window along each dimension of x."""
    return sweeps_of(request, spread("kernel_size", request.kernel_size, request.x.ndim - 2))


def as_pooled(request: Any, sizes: Sizes) -> tuple[int, ...]:
    """(n, c, *places of the window)."""
    space = sizes["space"]
    return (sizes["n"], sizes["c"], *placed(request, space, spread("kernel_size", request.kernel_size, len(space))))


def meets_image(request: Any, sizes: Sizes) -> bool:
    """The window must meet the image everywhere: padding is less than it, also that of both sides together by one."""
    sides = ((sweep.size, sweep.before, sweep.behind) for sweep in pooling(request))
    fits = (max(before, behind) < size >= before + behind for size, before, behind in sides)
    return 0 not in sizes["space"] and all(fits)


# --- element by element -----------------------------------------------------------------------------------------------


def has_dims(request: Any, sizes: Sizes) -> bool:
    """The numbers in dim must be those of different dimensions of the arrays."""
    ndim, dim = len(sizes["dims"]), request.dim
    return all(-ndim <= each < ndim for each in dim) and len({each % ndim for each in dim}) == len(dim)


def mask_dtype(_request: Any) -> str:
    """Return the element type of masks."""
    return "uint8"


def saves_mask(request: Any) -> bool:
    """With save_mask."""
    return bool(request.save_mask)


def has_seed(request: Any, _sizes: Sizes) -> bool:
    """The seed must be less than 2^64."""
    return bool(request.seed < 2**64)


# --- norms ------------------------------------------------------------------------------------------------------------


class Normed(NamedTuple):
    """The view of x that a norm takes."""

    view: tuple[int, ...]
    """Its shape, in which the channels of a group norm are two dimensions."""
    axes: tuple[int, ...]
    """The dimensions that are normalised together."""
    affine: tuple[int, ...]
    """The shape of weight and bias, as they are broadcast to the view."""

    @property
    def statistics(self) -> tuple[int, ...]:
        """The shape of means and inverse deviations."""
        return tuple(n for axis, n in enumerate(self.view) if axis not in self.axes)


def normed(request: Any) -> Normed:
    """Return the view of x that a request's norm takes, by its `mode`.

    Raises:
        InvalidRequest: x has no such view.
    """
    shape, mode = tuple(request.x.shape), request.mode
    if mode in {"layer", "rms"}:
        last = request.normalized_shape
        if not last or shape[-len(last) :] != tuple(last):
            raise errors.InvalidRequest(f"normalized_shape must be the last lengths of x, which has the shape {shape}")
        first = len(shape) - len(last)
        return Normed(shape, tuple(range(first, len(shape))), (1,) * first + tuple(last))
    if len(shape) < 2:
        raise errors.InvalidRequest(
            f"x has {counted(len(shape), 'dimension')}; it must have at least 2: batch and channels"
        )
    n, c, *space = shape
    ones = (1,) * len(space)
    if mode == "group":
        groups = request.num_groups
        if c % groups:
            raise errors.InvalidRequest(f"num_groups is {groups}; it must divide the {counted(c, 'channel')} of x")
        view = (n, groups, c // groups, *space)
        return Normed(view, tuple(range(2, len(view))), (1, groups, c // groups, *ones))
    return Normed(
        shape, tuple(axis for axis in range(len(shape)) if axis > 1 or axis < (mode == "batch")), (1, c, *ones)
    )


def is_normed(request: Any, _sizes: Sizes) -> bool:
    """The dimensions of x must be those that the norm takes."""
    return bool(normed(request).view)


def as_affine(request: Any, _sizes: Sizes) -> tuple[int, ...]:
    """(c), or normalized_shape."""
    if request.mode in {"layer", "rms"}:
        return tuple(normed(request).affine[request.x.ndim - len(request.normalized_shape) :])
    normed(request)
    return (int(request.x.shape[1]),)


def as_statistics(request: Any, _sizes: Sizes) -> tuple[int, ...]:
    """The lengths of x along which nothing is summed; (n, num_groups) for a group norm."""
    return normed(request).statistics


def statistics_dtype(request: Any) -> str:
    """Return the element type of statistics."""
    return "float64" if request.x.dtype == "float64" else "float32"


def saves_statistics(request: Any) -> bool:
    """With save_statistics."""
    return bool(request.save_statistics)


def has_mean(request: Any) -> bool:
    """Unless mode is "rms"."""
    return bool(request.mode != "rms")


def has_weight(request: Any) -> bool:
    """Where weight is given."""
    return request.weight is not None


def has_weight_and_bias(request: Any) -> bool:
    """Where weight is given, and mode is not "rms"."""
    return has_weight(request) and has_mean(request)


def has_running_mean(request: Any) -> bool:
    """Together with running_mean."""
    return request.running_mean is not None


def has_running_var(request: Any) -> bool:
    """Together with running_var."""
    return request.running_var is not None


def has_options_of_mode(request: Any, _sizes: Sizes) -> bool:
    """normalized_shape is for modes "layer" and "rms" only, and num_groups for mode "group" only."""
    has_shape, has_groups = request.mode in {"layer", "rms"}, request.mode == "group"
    return bool((has_shape or not request.normalized_shape) and (has_groups or request.num_groups == 1))


def has_affine_type(request: Any, _sizes: Sizes) -> bool:
    """Weight and bias must have the element type of x, or be float32 beside half precision."""
    given = (request.weight, getattr(request, "bias", None))
    types = {request.x.dtype, "float32"} if request.x.dtype in HALF else {request.x.dtype}
    return all(each is None or each.dtype in types for each in given)


def has_samples(request: Any, _sizes: Sizes) -> bool:
    """There must be an element of x for each channel: nothing has no mean."""
    return bool(request.x.size > 0 or request.x.shape[1] == 0)


# --- attention --------------------------------------------------------------------------------------------------------


def lengths_dtype(_request: Any) -> str:
    """Return the element type of lengths."""
    return "int32"


def attention_dtype(request: Any) -> str:
    """Return the element type of logarithms of sums."""
    return "float64" if request.query.dtype == "float64" else "float32"


def saves_lse(request: Any) -> bool:
    """With save_lse."""
    return bool(request.save_lse)


def shares_heads(_request: Any, sizes: Sizes) -> bool:
    """The heads of key and value must divide those of query."""
    return bool(sizes["hk"] > 0 and sizes["hq"] % sizes["hk"] == 0)


def has_head_elements(_request: Any, sizes: Sizes) -> bool:
    """The last length of query and key must be at least 1: nothing has no product."""
    return bool(sizes["d"] > 0)


def has_mask(request: Any, sizes: Sizes) -> bool:
    """The shape of attn_mask must be one that is broadcast to (b, hq, sq, sk)."""
    if request.attn_mask is None:
        return True
    whole, shape = [sizes[name] for name in ("b", "hq", "sq", "sk")], request.attn_mask.shape
    return len(shape) <= 4 and all(n in {1, of} for n, of in zip(reversed(shape), reversed(whole), strict=False))


# --- recurrent networks -----------------------------------------------------------------------------------------------

GATES: Final = {"relu": 1, "tanh": 1, "lstm": 4, "gru": 3}
"""Gates of a cell, whose weights lie one after the other: for lstm input, forget, cell, output; for gru reset, update,
new."""
MARK_BYTES: Final = 64


class Rnn(NamedTuple):
    """The sizes of a recurrent network."""

    mode: str
    input_size: int
    hidden_size: int
    layers: int
    directions: int

    @classmethod
    def of(cls, request: Any, input_size: int) -> Rnn:
        """Return those of a request."""
        return cls(request.mode, input_size, request.hidden_size, request.num_layers, 1 + request.bidirectional)

    @property
    def gates(self) -> int:
        """Elements of all gates."""
        return GATES[self.mode] * self.hidden_size

    def inputs(self, layer: int) -> int:
        """Return how many inputs a layer has."""
        return self.hidden_size * self.directions if layer else self.input_size

    @property
    def matrices(self) -> int:
        """Elements of all matrices."""
        more = self.input_size + (self.layers - 1) * self.inputs(1) + self.layers * self.hidden_size
        return self.directions * self.gates * more

    @property
    def size(self) -> int:
        """Elements of all weights."""
        return self.matrices + 2 * self.layers * self.directions * self.gates

    def parts(self) -> Iterator[tuple[int, tuple[int, ...]]]:
        """Return where each weight begins in the packed ones, and its shape: w_ih, w_hh, b_ih, b_hh of each direction.

        They come layer by layer. As cuDNN packs them, all matrices lie before all biases.
        """
        matrix, bias = 0, self.matrices
        for layer in range(self.layers):
            for _ in range(self.directions):
                for columns in (self.inputs(layer), self.hidden_size):
                    yield matrix, (self.gates, columns)
                    matrix += self.gates * columns
                for _ in range(2):
                    yield bias, (self.gates,)
                    bias += self.gates


def as_packed(request: Any, sizes: Sizes) -> tuple[int, ...]:
    """(all weights of the network)."""
    given: Any = request
    return (Rnn.of(request, sizes["i"] if hasattr(request, "x") else given.input_size).size,)


def as_sequence(request: Any, sizes: Sizes) -> tuple[int, ...]:
    """(t, b, directions·hidden_size)."""
    return (sizes["t"], sizes["b"], (1 + request.bidirectional) * request.hidden_size)


def as_state(request: Any, sizes: Sizes) -> tuple[int, ...]:
    """(num_layers·directions, b, hidden_size)."""
    return (request.num_layers * (1 + request.bidirectional), sizes["b"], request.hidden_size)


def as_reserve(request: Any, sizes: Sizes) -> tuple[int, ...]:
    """(bytes): room for the gates and two states of each cell at each step, and for a mark."""
    cells = sizes["t"] * math.prod(as_state(request, sizes))
    return (MARK_BYTES + cells * (GATES[request.mode] + 2) * (8 if request.x.dtype == "float64" else 4),)


def reserve_dtype(_request: Any) -> str:
    """Return the element type of reserves."""
    return "uint8"


def is_lstm(request: Any) -> bool:
    """For mode "lstm"."""
    return bool(request.mode == "lstm")


def has_c0(request: Any) -> bool:
    """For mode "lstm", beside h0."""
    return is_lstm(request) and request.h0 is not None


def has_dcn(request: Any) -> bool:
    """For mode "lstm", beside dhn."""
    return is_lstm(request) and request.dhn is not None


def saves_reserve(request: Any) -> bool:
    """With save_reserve."""
    return bool(request.save_reserve)


def has_all_weights(request: Any, _sizes: Sizes) -> bool:
    """The weights must be w_ih, w_hh, b_ih and b_hh of each direction of each layer."""
    rnn, arrays = Rnn.of(request, request.input_size), request.weights
    if len(arrays) != 4 * rnn.layers * rnn.directions:
        return False
    for at, (array, (_, shape)) in enumerate(zip(arrays, rnn.parts(), strict=True)):
        if tuple(array.shape) != shape:
            raise errors.InvalidRequest(f"weights[{at}] has the shape {array.shape}; it must have {shape}")
    return True
