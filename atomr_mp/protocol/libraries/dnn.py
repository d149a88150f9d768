"""Neural networks: layers, forward and backward. Pure.

Arrays are (batch, channels, *space) with any strides: `x.transpose(0, 3, 1, 2)` is an image whose channels come last.
Half precision is computed in float32, and rounded once; float32 is computed as such, unless `allow_tf32`. A result
is blended with what its array held, by alpha and beta.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, ClassVar, Final, Literal

from atomr_mp.protocol.declaration.arguments import reads, writes
from atomr_mp.protocol.declaration.factors import Scalar
from atomr_mp.protocol.libraries.base import HALF, REAL, LibraryRequest, Moving, Shape
from atomr_mp.protocol.libraries.dnn_shapes import (
    Dims,
    Padding,
    Probability,
    Seed,
    Size,
    Window,
    as_channels,
    as_convolved,
    as_input,
    as_pooled,
    as_transposed,
    as_weight,
    divides_channels,
    has_dims,
    has_groups,
    has_seed,
    mask_dtype,
    may_be_tf32,
    meets_image,
    pads_less_than_stride,
    products,
    saves_mask,
    spread,
)
from atomr_mp.protocol.refs import Operand

FLOATS: Final = (*HALF, *REAL)

Kind = Literal["identity", "relu", "sigmoid", "tanh", "gelu", "gelu_tanh", "silu", "elu", "softplus"]
"""Activations; gelu is that of the normal law, gelu_tanh its approximation."""
Pooling = Literal["max", "avg"]

# --- convolutions -----------------------------------------------------------------------------------------------------


class _Blended(LibraryRequest, frozen=True, kw_only=True):
    """Base of requests whose result is blended with what its array held."""

    types: ClassVar = {"T": FLOATS}
    alpha: Scalar = 1.0
    beta: Scalar = 0.0


class _Convolution(_Blended, frozen=True, kw_only=True):
    """Base of convolutions: a window that moves over an image."""

    stride: Window = (1,)
    """How far the window moves: one number, or one for each dimension."""
    padding: Padding = (0,)
    """Zeros around the image: one number, one for each dimension, or two for each, before it and behind it."""
    dilation: Window = (1,)
    """The distance between the window's elements: one number, or one for each dimension."""
    groups: Size = 1
    """Channels are divided into so many groups, each with a part of the weight."""
    allow_tf32: bool = False
    """Whether tensor cores may round the factors of products of float32 to 11 bits, where there are any."""


class Conv(_Convolution, frozen=True):
    """Compute out ← activation(alpha·(x ⋆ weight) + beta·out + bias), the cross-correlation in 1 to 3 dimensions."""

    name: ClassVar = "conv"
    rules: ClassVar = (has_groups, may_be_tf32)
    x: Annotated[Operand, reads("n c *space")]
    weight: Annotated[Operand, reads("k cg *window")]
    bias: Annotated[Operand | None, reads("k")] = None
    out: Annotated[Operand | None, writes(as_convolved, factor="beta")] = None
    activation: Kind = "identity"
    """The activation that is applied last, see `activation`."""

    def flops(self) -> int:
        """Return a product and a sum for each element of the window at each place."""
        return _products(self, as_convolved(self, self.sizes())[2:], self.sizes()["window"])


class ConvTranspose(_Convolution, frozen=True):
    """Compute out ← activation(alpha·(what conv's backward gives for x) + beta·out + bias), on a larger image."""

    name: ClassVar = "conv_transpose"
    rules: ClassVar = (has_groups, may_be_tf32, pads_less_than_stride)
    x: Annotated[Operand, reads("n k *places")]
    weight: Annotated[Operand, reads("k cg *window")]
    bias: Annotated[Operand | None, reads(as_channels)] = None
    out: Annotated[Operand | None, writes(as_transposed, factor="beta")] = None
    output_padding: Padding = (0,)
    """How much longer the result is than the least: one number, or one for each dimension, less than the stride."""
    activation: Kind = "identity"
    """The activation that is applied last, see `activation`."""

    def flops(self) -> int:
        """Return a product and a sum for each element of the window at each place."""
        return _products(self, self.sizes()["places"], self.sizes()["window"])


class ConvInput(_Convolution, frozen=True):
    """Compute out ← alpha·gradient + beta·out, with the gradient of `conv` by its image, from dy by its result."""

    name: ClassVar = "conv_input"
    rules: ClassVar = (has_groups, may_be_tf32)
    weight: Annotated[Operand, reads("k cg *window")]
    dy: Annotated[Operand, reads("n k *places")]
    out: Annotated[Operand | None, writes(as_input, factor="beta")] = None
    size: Shape | None = None
    """The image's lengths behind its channels; if out is left out too, the least that fit."""

    def flops(self) -> int:
        """Return a product and a sum for each element of the window at each place."""
        return _products(self, self.sizes()["places"], self.sizes()["window"])


class ConvWeight(_Convolution, frozen=True):
    """Compute out ← alpha·gradient + beta·out, with the gradient of `conv` by its weight, from dy by its result."""

    name: ClassVar = "conv_weight"
    rules: ClassVar = (divides_channels, may_be_tf32)
    x: Annotated[Operand, reads("n c *space")]
    dy: Annotated[Operand, reads("n k *places")]
    out: Annotated[Operand | None, writes(as_weight, factor="beta")] = None
    size: Shape | None = None
    """The window's lengths; those of out if it is left out."""

    def flops(self) -> int:
        """Return a product and a sum for each element of the window at each place."""
        return _products(self, self.sizes()["places"], as_weight(self, self.sizes())[2:])


def _products(request: Any, places: tuple[int, ...], window: tuple[int, ...]) -> int:
    sizes: dict[str, Any] = request.sizes() | {"places": places, "window": window}
    sizes.setdefault("cg", sizes.get("c", 0) // request.groups)
    return 2 * products(sizes, "n", "k", "cg", "places", "window")


# --- pooling ----------------------------------------------------------------------------------------------------------


class _Pooling(_Blended, frozen=True, kw_only=True):
    """Base of pooling: a window that moves over an image."""

    rules: ClassVar = (meets_image,)
    kernel_size: Window
    """The window's lengths: one number, or one for each dimension."""
    stride: Window | None = None
    """How far the window moves: one number, or one for each dimension; by default its lengths."""
    padding: Padding = (0,)
    """Padding around the image: one number, one for each dimension, or two for each, before it and behind it."""
    mode: Pooling = "max"
    """"max", or "avg" for the average."""
    count_include_pad: bool = True
    """Whether an average divides by all elements of the window, padding too, not by those of the image."""

    def flops(self) -> int:
        """Return one operation for each element of the window at each place."""
        sizes = self.sizes()
        return products(sizes | {"places": as_pooled(self, sizes)[2:]}, "n", "c", "places") * math.prod(
            spread("kernel_size", self.kernel_size, len(sizes["space"]))
        )


class WindowPool(_Pooling, frozen=True):
    """Compute out ← alpha·(the maximum or average in each place of a window) + beta·out, in 1 to 3 dimensions."""

    name: ClassVar = "pool"
    x: Annotated[Operand, reads("n c *space")]
    out: Annotated[Operand | None, writes(as_pooled, factor="beta")] = None


class WindowPoolBackward(_Pooling, frozen=True):
    """Compute out ← alpha·gradient + beta·out, that of `pool` by x, from y, its result, and dy by that.

    Of equal maxima, the first in the window has the gradient.
    """

    name: ClassVar = "pool_backward"
    x: Annotated[Operand, reads("n c *space")]
    y: Annotated[Operand, reads(as_pooled)]
    dy: Annotated[Operand, reads(as_pooled)]
    out: Annotated[Operand | None, writes("n c *space", factor="beta")] = None


# --- element by element -----------------------------------------------------------------------------------------------


class _Softmax(_Blended, frozen=True, kw_only=True):
    """Base of softmax, which is normalised along some dimensions."""

    rules: ClassVar = (has_dims,)
    work: ClassVar = "5 dims"
    dim: Dims = (-1,)
    """The dimensions that are normalised together: one, or several."""
    log: bool = False
    """Whether the logarithm is taken, without loss of precision."""


class Softmax(_Softmax, frozen=True):
    """Compute out ← alpha·softmax(x) + beta·out, or its logarithm."""

    name: ClassVar = "softmax"
    x: Annotated[Operand, reads("*dims")]
    out: Annotated[Operand | None, writes("*dims", factor="beta", alias=("x",))] = None


class SoftmaxBackward(_Softmax, frozen=True):
    """Compute out ← alpha·gradient + beta·out, that of softmax by x, from y, its result, and dy by that."""

    name: ClassVar = "softmax_backward"
    y: Annotated[Operand, reads("*dims")]
    dy: Annotated[Operand, reads("*dims")]
    out: Annotated[Operand | None, writes("*dims", factor="beta", alias=("y", "dy"))] = None


class _Activation(_Blended, frozen=True, kw_only=True):
    """Base of activations."""

    work: ClassVar = "dims"
    kind: Kind
    """The activation."""


class Activation(_Activation, frozen=True):
    """Compute out ← alpha·f(x) + beta·out."""

    name: ClassVar = "activation"
    x: Annotated[Operand, reads("*dims")]
    out: Annotated[Operand | None, writes("*dims", factor="beta", alias=("x",))] = None


class ActivationBackward(_Activation, frozen=True):
    """Compute out ← alpha·dy·f'(x) + beta·out. The derivative of relu at 0 is 0."""

    name: ClassVar = "activation_backward"
    x: Annotated[Operand, reads("*dims")]
    dy: Annotated[Operand, reads("*dims")]
    out: Annotated[Operand | None, writes("*dims", factor="beta", alias=("x", "dy"))] = None


class _ResponseNorm(LibraryRequest, frozen=True, kw_only=True):
    """Base of the normalisation by neighbouring channels."""

    types: ClassVar = {"T": FLOATS}
    work: ClassVar = "5 n c space"
    size: Size
    """How many channels: from size // 2 before each to (size - 1) // 2 behind it, as far as there are some."""
    alpha: float = 1e-4
    """The weight of the squares' mean, in which channels that are missing count as 0."""
    beta: float = 0.75
    """The exponent."""
    k: float = 1.0
    """The number that is added to the weighted mean."""


class ResponseNorm(_ResponseNorm, frozen=True):
    """Compute x / (k + alpha·(the mean of the squares of neighbouring channels))^beta."""

    name: ClassVar = "local_response_norm"
    x: Annotated[Operand, reads("n c *space")]
    out: Annotated[Operand | None, writes("n c *space")] = None


class ResponseNormBackward(_ResponseNorm, frozen=True):
    """Compute the gradient of `local_response_norm` by x, from dy, that by its result."""

    name: ClassVar = "local_response_norm_backward"
    x: Annotated[Operand, reads("n c *space")]
    dy: Annotated[Operand, reads("n c *space")]
    out: Annotated[Operand | None, writes("n c *space")] = None


class _Dropout(LibraryRequest, frozen=True, kw_only=True):
    """Base of dropout: the same seed and offset keep the same elements, whatever their type and strides."""

    types: ClassVar = {"T": FLOATS}
    rules: ClassVar = (has_seed,)
    work: ClassVar = "dims"
    p: Probability = 0.5
    """The probability of an element to become 0; the others are divided by 1 - p."""
    seed: Seed
    """The seed of Philox 4x32-10, as of `rng`, from 0 to 2⁶⁴ - 1."""
    offset: Moving = 0
    """The word of 32 bits that decides on the first element; the others' follow in row-major order."""


class Dropout(_Dropout, frozen=True):
    """Compute x·mask / (1 - p). An element is kept if its word of random bits, divided by 2³², is not less than p."""

    name: ClassVar = "dropout"
    x: Annotated[Operand, reads("*dims")]
    out: Annotated[Operand | None, writes("*dims", alias=("x",))] = None
    mask: Annotated[Operand | None, writes("*dims", dtype=mask_dtype, where=saves_mask)] = None
    """1 for an element that is kept, 0 for another."""
    save_mask: bool = False
    """Whether the mask is a result too."""


class DropoutBackward(_Dropout, frozen=True):
    """Compute dy·mask / (1 - p), the gradient of `dropout` by x; seed and offset give the same mask."""

    name: ClassVar = "dropout_backward"
    dy: Annotated[Operand, reads("*dims")]
    out: Annotated[Operand | None, writes("*dims", alias=("dy",))] = None
