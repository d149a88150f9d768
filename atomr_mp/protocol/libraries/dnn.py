"""Neural networks: layers, forward and backward. Pure.

Arrays are (batch, channels, *space) with any strides: `x.transpose(0, 3, 1, 2)` is an image whose channels come last.
Half precision is computed in float32, and rounded once; float32 is computed as such, unless `allow_tf32`. A result
is blended with what its array held, by alpha and beta.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, ClassVar, Final, Literal

from atomr_mp.protocol.declaration.arguments import reads, updates, writes
from atomr_mp.protocol.declaration.factors import Scalar
from atomr_mp.protocol.declaration.strides import packed
from atomr_mp.protocol.libraries.base import HALF, REAL, LibraryRequest, Moving, Rule, Shape
from atomr_mp.protocol.libraries.dnn_shapes import (
    Dims,
    Lengths,
    NotNegative,
    Padding,
    Probability,
    Rnn,
    Seed,
    Size,
    Window,
    as_affine,
    as_channels,
    as_convolved,
    as_input,
    as_packed,
    as_pooled,
    as_reserve,
    as_sequence,
    as_state,
    as_statistics,
    as_transposed,
    as_weight,
    attention_dtype,
    divides_channels,
    has_affine_type,
    has_all_weights,
    has_c0,
    has_dcn,
    has_dims,
    has_groups,
    has_head_elements,
    has_mask,
    has_mean,
    has_options_of_mode,
    has_running_mean,
    has_running_var,
    has_samples,
    has_seed,
    has_weight,
    has_weight_and_bias,
    is_lstm,
    is_normed,
    lengths_dtype,
    mask_dtype,
    may_be_tf32,
    meets_image,
    pads_less_than_stride,
    products,
    reserve_dtype,
    saves_lse,
    saves_mask,
    saves_reserve,
    saves_statistics,
    shares_heads,
    spread,
    statistics_dtype,
)
from atomr_mp.protocol.refs import Operand

FLOATS: Final = (*HALF, *REAL)

Kind = Literal["identity", "relu", "sigmoid", "tanh", "gelu", "gelu_tanh", "silu", "elu", "softplus"]
"""Activations; gelu is that of the normal law, gelu_tanh its approximation."""
Pooling = Literal["max", "avg"]

Cell = Literal["relu", "tanh", "lstm", "gru"]
Align = Literal["top_left", "bottom_right"]
Mode = Literal["batch", "layer", "instance", "group", "rms"]
"""Norms, by what is normalised together: a channel, a sample's last dimensions, its channels, groups of these."""

# --- convolutions -----------------------------------------------------------------------------------------------------


class _Blended(LibraryRequest, frozen=True, kw_only=True):
    """Base of requests whose result is blended with what its array held."""

    types: ClassVar = {"T": FLOATS}
    alpha: Scalar = 1.0
    beta: Scalar = 0.0


class _Convolution(_Blended, frozen=True, kw_only=True):
    """Base of convolutions: a window that moves over an image."""

    loops: ClassVar = True
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
    size: Lengths | None = None
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
    size: Lengths | None = None
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

    loops: ClassVar = True
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

    loops: ClassVar = True
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


# --- norms ------------------------------------------------------------------------------------------------------------


class _Norm(LibraryRequest, frozen=True, kw_only=True):
    """Base of norms: (x - mean)·inverse deviation·weight + bias; statistics are float32, of float64 float64."""

    types: ClassVar = {"T": FLOATS, "W": FLOATS}
    rules: ClassVar[tuple[Rule, ...]] = (is_normed, has_affine_type)
    work: ClassVar = "8 x.size"
    mode: ClassVar[Mode]
    eps: NotNegative = 1e-5
    """The number that is added to variances."""


class BatchNorm(_Norm, frozen=True):
    """Normalise each channel by given statistics."""

    name: ClassVar = "batch_norm"
    mode: ClassVar = "batch"
    x: Annotated[Operand, reads("*dims")]
    running_mean: Annotated[Operand, reads(as_affine, dtype=statistics_dtype)]
    running_var: Annotated[Operand, reads(as_affine, dtype=statistics_dtype)]
    weight: Annotated[Operand | None, reads(as_affine, dtype="W")] = None
    bias: Annotated[Operand | None, reads(as_affine, dtype="W")] = None
    out: Annotated[Operand | None, writes("*dims")] = None


class BatchNormTraining(_Norm, frozen=True):
    """Normalise each channel by the statistics of the batch, and let running statistics follow these.

    running ← (1 - momentum)·running + momentum·that of the batch. Running variances are those of samples: of m
    elements, squares are divided by m - 1, or by 1.
    """

    name: ClassVar = "batch_norm_training"
    mode: ClassVar = "batch"
    rules: ClassVar = (is_normed, has_affine_type, has_samples)
    x: Annotated[Operand, reads("*dims")]
    weight: Annotated[Operand | None, reads(as_affine, dtype="W")] = None
    bias: Annotated[Operand | None, reads(as_affine, dtype="W")] = None
    running_mean: Annotated[Operand | None, updates(as_affine, dtype=statistics_dtype, where=has_running_var)] = None
    running_var: Annotated[Operand | None, updates(as_affine, dtype=statistics_dtype, where=has_running_mean)] = None
    out: Annotated[Operand | None, writes("*dims")] = None
    mean: Annotated[Operand | None, writes(as_affine, dtype=statistics_dtype)] = None
    """The batch's means, for `norm_backward`."""
    invstd: Annotated[Operand | None, writes(as_affine, dtype=statistics_dtype)] = None
    """1 / √(variance + eps), for `norm_backward`."""
    momentum: Probability = 0.1
    """The share of the batch in the running statistics."""


class _SampleNorm(_Norm, frozen=True, kw_only=True):
    """Base of norms within each sample."""

    save_statistics: bool = False
    """Whether the statistics are results too, for `norm_backward`."""


class _LastNorm(_SampleNorm, frozen=True, kw_only=True):
    """Base of norms of the last dimensions."""

    normalized_shape: Shape
    """The lengths of the dimensions that are normalised together: the last of x, and all of weight and bias."""


class LayerNorm(_LastNorm, frozen=True):
    """Normalise the last dimensions of x together."""

    name: ClassVar = "layer_norm"
    mode: ClassVar = "layer"
    x: Annotated[Operand, reads("*dims")]
    weight: Annotated[Operand | None, reads(as_affine, dtype="W")] = None
    bias: Annotated[Operand | None, reads(as_affine, dtype="W")] = None
    out: Annotated[Operand | None, writes("*dims")] = None
    mean: Annotated[Operand | None, writes(as_statistics, dtype=statistics_dtype, where=saves_statistics)] = None
    invstd: Annotated[Operand | None, writes(as_statistics, dtype=statistics_dtype, where=saves_statistics)] = None


class RmsNorm(_LastNorm, frozen=True):
    """Divide by the root of the mean of squares of the last dimensions: x·weight / √(mean(x²) + eps)."""

    name: ClassVar = "rms_norm"
    mode: ClassVar = "rms"
    x: Annotated[Operand, reads("*dims")]
    weight: Annotated[Operand | None, reads(as_affine, dtype="W")] = None
    out: Annotated[Operand | None, writes("*dims")] = None
    invstd: Annotated[Operand | None, writes(as_statistics, dtype=statistics_dtype, where=saves_statistics)] = None


class InstanceNorm(_SampleNorm, frozen=True):
    """Normalise each channel of each sample."""

    name: ClassVar = "instance_norm"
    mode: ClassVar = "instance"
    x: Annotated[Operand, reads("*dims")]
    weight: Annotated[Operand | None, reads(as_affine, dtype="W")] = None
    bias: Annotated[Operand | None, reads(as_affine, dtype="W")] = None
    out: Annotated[Operand | None, writes("*dims")] = None
    mean: Annotated[Operand | None, writes(as_statistics, dtype=statistics_dtype, where=saves_statistics)] = None
    invstd: Annotated[Operand | None, writes(as_statistics, dtype=statistics_dtype, where=saves_statistics)] = None


class GroupNorm(_SampleNorm, frozen=True):
    """Normalise groups of channels of each sample."""

    name: ClassVar = "group_norm"
    mode: ClassVar = "group"
    x: Annotated[Operand, reads("*dims")]
    weight: Annotated[Operand | None, reads(as_affine, dtype="W")] = None
    bias: Annotated[Operand | None, reads(as_affine, dtype="W")] = None
    out: Annotated[Operand | None, writes("*dims")] = None
    mean: Annotated[Operand | None, writes(as_statistics, dtype=statistics_dtype, where=saves_statistics)] = None
    invstd: Annotated[Operand | None, writes(as_statistics, dtype=statistics_dtype, where=saves_statistics)] = None
    num_groups: Size = 1
    """How many groups: it divides the number of channels."""


class NormBackward(LibraryRequest, frozen=True):
    """Compute the gradients of a norm by x, weight and bias, from dy, that by its result, and its statistics.

    Statistics are those of x, from the forward: a gradient through given ones, as of `batch_norm`, is another.
    """

    name: ClassVar = "norm_backward"
    types: ClassVar = {"T": FLOATS, "W": FLOATS}
    rules: ClassVar = (has_options_of_mode, has_affine_type)
    work: ClassVar = "12 x.size"
    x: Annotated[Operand, reads("*dims")]
    dy: Annotated[Operand, reads("*dims")]
    invstd: Annotated[Operand, reads(as_statistics, dtype=statistics_dtype)]
    mean: Annotated[Operand | None, reads(as_statistics, dtype=statistics_dtype, where=has_mean)] = None
    weight: Annotated[Operand | None, reads(as_affine, dtype="W")] = None
    out: Annotated[Operand | None, writes("*dims")] = None
    """The gradient by x."""
    dweight: Annotated[Operand | None, writes(as_affine, dtype="W", where=has_weight)] = None
    dbias: Annotated[Operand | None, writes(as_affine, dtype="W", where=has_weight_and_bias)] = None
    mode: Mode = "layer"
    """The norm: "batch", "layer", "instance", "group" or "rms"."""
    normalized_shape: Shape = ()
    """As of `layer_norm` and `rms_norm`; for these modes only."""
    num_groups: Size = 1
    """As of `group_norm`; for this mode only."""


# --- attention --------------------------------------------------------------------------------------------------------


class _Attention(LibraryRequest, frozen=True, kw_only=True):
    """Base of attention: softmax(scale·query·keyᵀ + attn_mask)·value for each head, where keys may be left out."""

    loops: ClassVar = True
    types: ClassVar = {"T": FLOATS}
    rules: ClassVar = (shares_heads, has_head_elements, has_mask, has_seed, may_be_tf32)
    is_causal: bool = False
    """Whether query i takes only keys j ≤ i, counted as `align` says."""
    align: Align = "top_left"
    """The queries and keys that have the same number: the first, or the last with "bottom_right"."""
    window: Size | None = None
    """How near to query i keys are: |i - j| < window."""
    scale: float | None = None
    """The factor of the products; by default 1 / √d."""
    dropout_p: Probability = 0.0
    """The probability of a weight to become 0; the others are divided by 1 - dropout_p."""
    seed: Seed = 0
    """The seed of that, as of `dropout` on an array (b, hq, sq, sk)."""
    offset: Moving = 0
    """The word of random bits for the first weight."""
    allow_tf32: bool = False
    """Whether tensor cores may round the factors of products of float32 to 11 bits, where there are any."""


class Attention(_Attention, frozen=True):
    """Compute softmax(scale·query·keyᵀ + attn_mask)·value for each head; 0 for a query without a key.

    hk heads of key and value are shared by hq / hk heads of query each.
    """

    name: ClassVar = "scaled_dot_product_attention"
    work: ClassVar = "2 b hq sq sk d + 2 b hq sq sk dv"
    query: Annotated[Operand, reads("b hq sq d")]
    key: Annotated[Operand, reads("b hk sk d")]
    value: Annotated[Operand, reads("b hk sk dv")]
    attn_mask: Annotated[Operand | None, reads("*_")] = None
    """It is added to the scores, and broadcast to (b, hq, sq, sk); -inf leaves a key out."""
    query_lengths: Annotated[Operand | None, reads("b", dtype=lengths_dtype)] = None
    """How many queries each sample has, from 0 to sq; beyond these the next is taken. The others' results are 0."""
    key_lengths: Annotated[Operand | None, reads("b", dtype=lengths_dtype)] = None
    """How many keys each sample has, from 0 to sk; beyond these the next is taken."""
    out: Annotated[Operand | None, writes("b hq sq dv")] = None
    lse: Annotated[Operand | None, writes("b hq sq", dtype=attention_dtype, where=saves_lse)] = None
    """The natural logarithm of the sum of exponentials, for the backward; -inf for a query without a key."""
    save_lse: bool = False
    """Whether lse is a result too."""


class AttentionBackward(_Attention, frozen=True):
    """Compute the gradients of attention by query, key and value, from its result y, dy by that, and lse."""

    name: ClassVar = "scaled_dot_product_attention_backward"
    work: ClassVar = "6 b hq sq sk d + 4 b hq sq sk dv"
    query: Annotated[Operand, reads("b hq sq d")]
    key: Annotated[Operand, reads("b hk sk d")]
    value: Annotated[Operand, reads("b hk sk dv")]
    y: Annotated[Operand, reads("b hq sq dv")]
    dy: Annotated[Operand, reads("b hq sq dv")]
    lse: Annotated[Operand, reads("b hq sq", dtype=attention_dtype)]
    attn_mask: Annotated[Operand | None, reads("*_")] = None
    query_lengths: Annotated[Operand | None, reads("b", dtype=lengths_dtype)] = None
    key_lengths: Annotated[Operand | None, reads("b", dtype=lengths_dtype)] = None
    dquery: Annotated[Operand | None, writes("b hq sq d")] = None
    dkey: Annotated[Operand | None, writes("b hk sk d")] = None
    dvalue: Annotated[Operand | None, writes("b hk sk dv")] = None


# --- recurrent networks -----------------------------------------------------------------------------------------------


class _Recurrent(LibraryRequest, frozen=True, kw_only=True):
    """Base of recurrent networks: layers of cells, in one direction or both."""

    types: ClassVar = {"T": FLOATS}
    mode: Cell = "lstm"
    """The cell: "lstm", "gru", or a plain one with "tanh" or "relu"."""
    hidden_size: Size
    """Elements of a cell's state."""
    num_layers: Size = 1
    """How many layers; each takes the outputs of the one before it."""
    bidirectional: bool = False
    """Whether each layer has cells that go backwards too, whose outputs lie behind those of the others."""


class _Network(_Recurrent, frozen=True, kw_only=True):
    """Base of what runs such a network."""

    loops: ClassVar = True
    rules: ClassVar = (has_seed, may_be_tf32)
    dropout_p: Probability = 0.0
    """The probability of an output to become 0 on its way to the next layer; others are divided by 1 - dropout_p."""
    seed: Seed = 0
    """The seed of that, as of `dropout` on an array (num_layers - 1, t, b, directions·hidden_size)."""
    offset: Moving = 0
    """The word of random bits for the first of these outputs."""
    allow_tf32: bool = False
    """Whether tensor cores may round the factors of products of float32 to 11 bits, where there are any."""


class _Packing(_Recurrent, frozen=True, kw_only=True):
    """Base of packing, which sees no inputs."""

    input_size: Size
    """Elements of an input."""


class RnnPack(_Packing, frozen=True):
    """Pack weights as `rnn` takes them; `rnn_unpack` returns views of them."""

    name: ClassVar = "rnn_pack"
    rules: ClassVar = (has_all_weights,)
    weights: Annotated[list[Operand], reads("*_")]
    """w_ih, w_hh, b_ih and b_hh of each direction of each layer, as torch has them."""
    out: Annotated[Operand | None, writes(as_packed)] = None


class RnnForward(_Network, frozen=True):
    """Run a recurrent network over sequences: out has the outputs of the last layer, hn and cn the last states.

    gru's new gate multiplies by reset after the product with the state, as torch and cuDNN do.
    """

    name: ClassVar = "rnn"
    x: Annotated[Operand, reads("t b i")]
    weights: Annotated[Operand, reads(as_packed, lies=packed)]
    h0: Annotated[Operand | None, reads(as_state)] = None
    """The first states; 0 if they are left out."""
    c0: Annotated[Operand | None, reads(as_state, where=has_c0)] = None
    lengths: Annotated[Operand | None, reads("b", dtype=lengths_dtype)] = None
    """How many steps each sequence has, from 0 to t; beyond these the next is taken. Outputs behind them are 0."""
    out: Annotated[Operand | None, writes(as_sequence)] = None
    hn: Annotated[Operand | None, writes(as_state)] = None
    cn: Annotated[Operand | None, writes(as_state, where=is_lstm)] = None
    reserve: Annotated[Operand | None, writes(as_reserve, dtype=reserve_dtype, lies=packed, where=saves_reserve)] = None
    """Room for what the backward needs; it is used up by one."""
    save_reserve: bool = False
    """Whether reserve is a result too."""

    def flops(self) -> int:
        """Return a product and a sum for each weight of the matrices at each step."""
        return _recurrent_flops(self)


class RnnBackward(_Network, frozen=True):
    """Compute the gradients of `rnn` by x, weights and first states, from its out y, dy by that, and its reserve."""

    name: ClassVar = "rnn_backward"
    undefined: ClassVar = (
        "The reserve is not that of such a network's forward with these lengths, or a backward has used it up."
    )
    x: Annotated[Operand, reads("t b i")]
    weights: Annotated[Operand, reads(as_packed, lies=packed)]
    y: Annotated[Operand, reads(as_sequence)]
    dy: Annotated[Operand, reads(as_sequence)]
    reserve: Annotated[Operand, updates(as_reserve, dtype=reserve_dtype, lies=packed)]
    """As the forward has left it; it is used up, and a second backward with it is refused."""
    h0: Annotated[Operand | None, reads(as_state)] = None
    c0: Annotated[Operand | None, reads(as_state, where=has_c0)] = None
    dhn: Annotated[Operand | None, reads(as_state)] = None
    """The gradient by hn; 0 if it is left out."""
    dcn: Annotated[Operand | None, reads(as_state, where=has_dcn)] = None
    lengths: Annotated[Operand | None, reads("b", dtype=lengths_dtype)] = None
    dx: Annotated[Operand | None, writes("t b i")] = None
    dweights: Annotated[Operand | None, writes(as_packed, lies=packed)] = None
    dh0: Annotated[Operand | None, writes(as_state)] = None
    dc0: Annotated[Operand | None, writes(as_state, where=is_lstm)] = None

    def flops(self) -> int:
        """Return twice that of the forward."""
        return 2 * _recurrent_flops(self)


def _recurrent_flops(request: Any) -> int:
    sizes = request.sizes()
    return 2 * products(sizes, "t", "b") * Rnn.of(request, sizes["i"]).matrices
