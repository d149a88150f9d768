"""Neural networks: convolutions, forward and backward. Pure.

Arrays are (batch, channels, *space) with any strides: `x.transpose(0, 3, 1, 2)` is an image whose channels come last.
Half precision is computed in float32, and rounded once; float32 is computed as such, unless `allow_tf32`. A sum of
products is blended: out ← alpha·sum + beta·out.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Final, Literal

from atomr_mp.protocol.declaration.arguments import reads, writes
from atomr_mp.protocol.declaration.factors import Scalar
from atomr_mp.protocol.libraries.base import HALF, REAL, LibraryRequest, Shape
from atomr_mp.protocol.libraries.dnn_shapes import (
    Padding,
    Size,
    Window,
    as_channels,
    as_convolved,
    as_input,
    as_transposed,
    as_weight,
    divides_channels,
    has_groups,
    may_be_tf32,
    pads_less_than_stride,
    products,
)
from atomr_mp.protocol.refs import Operand

FLOATS: Final = (*HALF, *REAL)

Kind = Literal["identity", "relu", "sigmoid", "tanh", "gelu", "gelu_tanh", "silu", "elu", "softplus"]
"""Activations; gelu is that of the normal law, gelu_tanh its approximation."""

# --- convolutions -----------------------------------------------------------------------------------------------------


class _Convolution(LibraryRequest, frozen=True, kw_only=True):
    """Base of convolutions: a window that moves over an image."""

    types: ClassVar = {"T": FLOATS}
    stride: Window = (1,)
    """How far the window moves: one number, or one for each dimension."""
    padding: Padding = (0,)
    """Zeros around the image: one number, one for each dimension, or two for each, before it and behind it."""
    dilation: Window = (1,)
    """The distance between the window's elements: one number, or one for each dimension."""
    groups: Size = 1
    """Channels are divided into so many groups, each with a part of the weight."""
    alpha: Scalar = 1.0
    beta: Scalar = 0.0
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
