"""Neural networks on arrays in a device's memory: `device.dnn`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, SupportsIndex, TypedDict, Unpack

from atomr_mp import errors
from atomr_mp.libraries.base import Number, whole
from atomr_mp.libraries.generated.dnn import DnnRequests
from atomr_mp.protocol.libraries import dnn
from atomr_mp.protocol.libraries.dnn_shapes import GATES, Rnn
from atomr_mp.protocol.refs import Operand
from atomr_mp.protocol.words import counted, not_among

if TYPE_CHECKING:
    from atomr_mp.client.reply import Reply

Lengths = SupportsIndex | Sequence[SupportsIndex]


class OfConvolution(TypedDict, total=False):
    """Parameters of convolutions, by name; `conv` says what they are."""

    stride: Lengths
    padding: Lengths
    dilation: Lengths
    groups: SupportsIndex
    alpha: Number
    beta: Number
    allow_tf32: bool
    deadline_s: float | None


class OfConv(OfConvolution, total=False):
    """Parameters of a convolution."""

    activation: dnn.Kind


class OfConvTranspose(OfConv, total=False):
    """Parameters of a transposed convolution."""

    output_padding: Lengths


class OfGradient(OfConvolution, total=False):
    """Parameters of a convolution's gradient."""

    size: Lengths | None


class OfPooling(TypedDict, total=False):
    """Parameters of pooling, by name; `pool` says what they are."""

    stride: Lengths | None
    padding: Lengths
    alpha: Number
    beta: Number
    deadline_s: float | None


class OfAverage(OfPooling, total=False):
    """Parameters of averages."""

    count_include_pad: bool


class OfBlend(TypedDict, total=False):
    """Parameters that requests on elements have in common."""

    alpha: Number
    beta: Number
    deadline_s: float | None


class Dnn(DnnRequests):
    """Layers of neural networks, with the names of torch.nn.functional and `out`.

    Those with a number in their name have a request that takes any number of dimensions, and check that there are as
    many. What is not said here is said of that request.
    """

    def conv1d(
        self,
        x: Operand,
        weight: Operand,
        bias: Operand | None = None,
        out: Operand | None = None,
        **options: Unpack[OfConv],
    ) -> Reply:
        """Correlate signals (n, c, length) with a weight; see `conv`."""
        return self.conv(_along(1, x=x), weight, bias, out, **options)

    def conv2d(
        self,
        x: Operand,
        weight: Operand,
        bias: Operand | None = None,
        out: Operand | None = None,
        **options: Unpack[OfConv],
    ) -> Reply:
        """Correlate images (n, c, height, width) with a weight; see `conv`."""
        return self.conv(_along(2, x=x), weight, bias, out, **options)

    def conv3d(
        self,
        x: Operand,
        weight: Operand,
        bias: Operand | None = None,
        out: Operand | None = None,
        **options: Unpack[OfConv],
    ) -> Reply:
        """Correlate volumes (n, c, depth, height, width) with a weight; see `conv`."""
        return self.conv(_along(3, x=x), weight, bias, out, **options)

    def conv_transpose1d(
        self,
        x: Operand,
        weight: Operand,
        bias: Operand | None = None,
        out: Operand | None = None,
        **options: Unpack[OfConvTranspose],
    ) -> Reply:
        """Enlarge signals (n, k, length); see `conv_transpose`."""
        return self.conv_transpose(_along(1, x=x), weight, bias, out, **options)

    def conv_transpose2d(
        self,
        x: Operand,
        weight: Operand,
        bias: Operand | None = None,
        out: Operand | None = None,
        **options: Unpack[OfConvTranspose],
    ) -> Reply:
        """Enlarge images (n, k, height, width); see `conv_transpose`."""
        return self.conv_transpose(_along(2, x=x), weight, bias, out, **options)

    def conv_transpose3d(
        self,
        x: Operand,
        weight: Operand,
        bias: Operand | None = None,
        out: Operand | None = None,
        **options: Unpack[OfConvTranspose],
    ) -> Reply:
        """Enlarge volumes (n, k, depth, height, width); see `conv_transpose`."""
        return self.conv_transpose(_along(3, x=x), weight, bias, out, **options)

    def conv1d_input(
        self, weight: Operand, dy: Operand, out: Operand | None = None, **options: Unpack[OfGradient]
    ) -> Reply:
        """Compute the gradient of `conv1d` by x; see `conv_input`."""
        return self.conv_input(weight, _along(1, dy=dy), out, **options)

    def conv2d_input(
        self, weight: Operand, dy: Operand, out: Operand | None = None, **options: Unpack[OfGradient]
    ) -> Reply:
        """Compute the gradient of `conv2d` by x; see `conv_input`."""
        return self.conv_input(weight, _along(2, dy=dy), out, **options)

    def conv3d_input(
        self, weight: Operand, dy: Operand, out: Operand | None = None, **options: Unpack[OfGradient]
    ) -> Reply:
        """Compute the gradient of `conv3d` by x; see `conv_input`."""
        return self.conv_input(weight, _along(3, dy=dy), out, **options)

    def conv1d_weight(
        self, x: Operand, dy: Operand, out: Operand | None = None, **options: Unpack[OfGradient]
    ) -> Reply:
        """Compute the gradient of `conv1d` by its weight; see `conv_weight`."""
        return self.conv_weight(_along(1, x=x), dy, out, **options)

    def conv2d_weight(
        self, x: Operand, dy: Operand, out: Operand | None = None, **options: Unpack[OfGradient]
    ) -> Reply:
        """Compute the gradient of `conv2d` by its weight; see `conv_weight`."""
        return self.conv_weight(_along(2, x=x), dy, out, **options)

    def conv3d_weight(
        self, x: Operand, dy: Operand, out: Operand | None = None, **options: Unpack[OfGradient]
    ) -> Reply:
        """Compute the gradient of `conv3d` by its weight; see `conv_weight`."""
        return self.conv_weight(_along(3, x=x), dy, out, **options)

    def max_pool1d(
        self, x: Operand, kernel_size: Lengths, out: Operand | None = None, **options: Unpack[OfPooling]
    ) -> Reply:
        """Take maxima of windows over signals (n, c, length); see `pool`."""
        return self.pool(_along(1, x=x), out, kernel_size=kernel_size, **_with(options, mode="max"))

    def max_pool2d(
        self, x: Operand, kernel_size: Lengths, out: Operand | None = None, **options: Unpack[OfPooling]
    ) -> Reply:
        """Take maxima of windows over images (n, c, height, width); see `pool`."""
        return self.pool(_along(2, x=x), out, kernel_size=kernel_size, **_with(options, mode="max"))

    def max_pool3d(
        self, x: Operand, kernel_size: Lengths, out: Operand | None = None, **options: Unpack[OfPooling]
    ) -> Reply:
        """Take maxima of windows over volumes (n, c, depth, height, width); see `pool`."""
        return self.pool(_along(3, x=x), out, kernel_size=kernel_size, **_with(options, mode="max"))

    def avg_pool1d(
        self, x: Operand, kernel_size: Lengths, out: Operand | None = None, **options: Unpack[OfAverage]
    ) -> Reply:
        """Take averages of windows over signals (n, c, length); see `pool`."""
        return self.pool(_along(1, x=x), out, kernel_size=kernel_size, **_with(options, mode="avg"))

    def avg_pool2d(
        self, x: Operand, kernel_size: Lengths, out: Operand | None = None, **options: Unpack[OfAverage]
    ) -> Reply:
        """Take averages of windows over images (n, c, height, width); see `pool`."""
        return self.pool(_along(2, x=x), out, kernel_size=kernel_size, **_with(options, mode="avg"))

    def avg_pool3d(
        self, x: Operand, kernel_size: Lengths, out: Operand | None = None, **options: Unpack[OfAverage]
    ) -> Reply:
        """Take averages of windows over volumes (n, c, depth, height, width); see `pool`."""
        return self.pool(_along(3, x=x), out, kernel_size=kernel_size, **_with(options, mode="avg"))

    def log_softmax(
        self, x: Operand, out: Operand | None = None, *, dim: Lengths = -1, **options: Unpack[OfBlend]
    ) -> Reply:
        """Compute the logarithm of softmax; see `softmax`."""
        return self.softmax(x, out, dim=dim, **_with(options, log=True))

    def relu(self, x: Operand, out: Operand | None = None, **options: Unpack[OfBlend]) -> Reply:
        """Compute the activation "relu" of each element; see `activation`."""
        return self.activation(x, out, **_with(options, kind="relu"))

    def sigmoid(self, x: Operand, out: Operand | None = None, **options: Unpack[OfBlend]) -> Reply:
        """Compute the activation "sigmoid" of each element; see `activation`."""
        return self.activation(x, out, **_with(options, kind="sigmoid"))

    def tanh(self, x: Operand, out: Operand | None = None, **options: Unpack[OfBlend]) -> Reply:
        """Compute the activation "tanh" of each element; see `activation`."""
        return self.activation(x, out, **_with(options, kind="tanh"))

    def silu(self, x: Operand, out: Operand | None = None, **options: Unpack[OfBlend]) -> Reply:
        """Compute the activation "silu" of each element; see `activation`."""
        return self.activation(x, out, **_with(options, kind="silu"))

    def elu(self, x: Operand, out: Operand | None = None, **options: Unpack[OfBlend]) -> Reply:
        """Compute the activation "elu" of each element; see `activation`."""
        return self.activation(x, out, **_with(options, kind="elu"))

    def softplus(self, x: Operand, out: Operand | None = None, **options: Unpack[OfBlend]) -> Reply:
        """Compute the activation "softplus" of each element; see `activation`."""
        return self.activation(x, out, **_with(options, kind="softplus"))

    def gelu(
        self,
        x: Operand,
        out: Operand | None = None,
        *,
        approximate: Literal["none", "tanh"] = "none",
        **options: Unpack[OfBlend],
    ) -> Reply:
        """Compute x times the normal law's probability of less than x, or its approximation; see `activation`."""
        if str(approximate) not in {"none", "tanh"}:  # an array is not compared, for one
            raise errors.InvalidRequest(not_among("approximate", approximate, ("none", "tanh")))
        return self.activation(x, out, **_with(options, kind="gelu" if approximate == "none" else "gelu_tanh"))

    def rnn_unpack(
        self,
        weights: Operand,
        *,
        mode: dnn.Cell = "lstm",
        input_size: SupportsIndex,
        hidden_size: SupportsIndex,
        num_layers: SupportsIndex = 1,
        bidirectional: bool = False,
    ) -> list[Any]:
        """Return views of packed weights, in the order of `rnn_pack`; nothing is sent.

        They are w_ih (gates·hidden_size, inputs), w_hh (gates·hidden_size, hidden_size), b_ih and b_hh
        (gates·hidden_size) of each direction of each layer, as torch has them. What is written to them is packed.

        Raises:
            InvalidRequest: The weights are not as many as such a network has.
        """
        if str(mode) not in GATES:
            raise errors.InvalidRequest(not_among("mode", mode, tuple(GATES)))
        if not isinstance(bidirectional, bool):
            raise errors.InvalidRequest(f"bidirectional is {bidirectional!r}; it must be True or False")
        sizes = [whole("input_size", input_size), whole("hidden_size", hidden_size), whole("num_layers", num_layers)]
        rnn = Rnn(mode, sizes[0], sizes[1], sizes[2], 1 + bidirectional)
        shape = getattr(weights, "shape", None)
        if min(sizes) < 1 or shape != (rnn.size,):
            raise errors.InvalidRequest(
                f"weights has the shape {shape}; those of {mode} with input_size, hidden_size and num_layers {sizes}, "
                f"bidirectional={bidirectional}, have {(rnn.size,)}"
            )
        packed: Any = weights
        return [packed[begin : begin + math.prod(each)].reshape(*each) for begin, each in rnn.parts()]


def _with(options: Mapping[str, Any], **fixed: Any) -> dict[str, Any]:
    """Return parameters with those that a method's name fixes.

    Raises:
        WrongArgument: One of these is given.
    """
    for name, value in fixed.items():
        if name in options:
            raise errors.WrongArgument(f"{name} cannot be given: this method's is {value!r}")
    return {**options, **fixed}


def _along(dimensions: int, **given: Operand) -> Operand:
    """Return an array that has so many dimensions besides batch and channels.

    Raises:
        InvalidRequest: It has others.
    """
    ((name, array),) = given.items()
    found = getattr(array, "ndim", None)  # what is no array is refused by the request
    if isinstance(found, int) and found != dimensions + 2:
        raise errors.InvalidRequest(
            f"{name} has {counted(found, 'dimension')}; here it must have {dimensions + 2}: batch, channels, and "
            f"{dimensions} of space"
        )
    return array


Reference: Final = Dnn
