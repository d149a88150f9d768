"""Requests of dnn as methods. Written by `scripts/library-methods` from the declared requests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, SupportsFloat, SupportsIndex

from atomr_mp.libraries.base import LibraryReference, Number, factor, lengths, real, several, whole
from atomr_mp.protocol.libraries import dnn
from atomr_mp.protocol.refs import Operand

if TYPE_CHECKING:
    from atomr_mp.client.reply import Reply


class DnnRequests(LibraryReference):
    """Neural networks: layers, forward and backward.

    Arrays are (batch, channels, *space) with any strides: `x.transpose(0, 3, 1, 2)` is an image whose channels come
    last. Half precision is computed in float32, and rounded once; float32 is computed as such, unless `allow_tf32`. A
    result is blended with what its array held, by alpha and beta.

    `LibraryReference` says what all methods have in common.
    """

    library: ClassVar[str] = "dnn"

    def conv(
        self,
        x: Operand,
        weight: Operand,
        bias: Operand | None = None,
        out: Operand | None = None,
        *,
        activation: dnn.Kind = "identity",
        alpha: Number = 1.0,
        beta: Number = 0.0,
        stride: SupportsIndex | Sequence[SupportsIndex] = (1,),
        padding: SupportsIndex | Sequence[SupportsIndex] = (0,),
        dilation: SupportsIndex | Sequence[SupportsIndex] = (1,),
        groups: SupportsIndex = 1,
        allow_tf32: bool = False,
        deadline_s: float | None = None,
    ) -> Reply:
        """Compute out ← activation(alpha·(x ⋆ weight) + beta·out + bias), the cross-correlation in 1 to 3 dimensions.

        Args:
            x: Read; shape (n, c, *space).
            weight: Read; shape (k, cg, *window).
            bias: Read; shape (k).
            out: Written, and read unless beta is 0; (n, k, *places of the window).
            activation: The activation that is applied last, see `activation`.
            alpha: A factor; complex only for complex arrays.
            beta: A factor; complex only for complex arrays.
            stride: How far the window moves: one number, or one for each dimension.
            padding: Zeros around the image: one number, one for each dimension, or two for each, before it and
                behind it.
            dilation: The distance between the window's elements: one number, or one for each dimension.
            groups: Channels are divided into so many groups, each with a part of the weight.
            allow_tf32: Whether tensor cores may round the factors of products of float32 to 11 bits, where there
                are any.
            deadline_s: Seconds until `DeadlineExceeded` ends the reply, whether it runs or not; None for 60.
        """
        return self._request(
            dnn.Conv(
                x=x,
                weight=weight,
                bias=bias,
                out=out,
                activation=activation,
                alpha=factor("alpha", alpha),
                beta=factor("beta", beta),
                stride=lengths("stride", stride),
                padding=lengths("padding", padding),
                dilation=lengths("dilation", dilation),
                groups=whole("groups", groups),
                allow_tf32=allow_tf32,
            ),
            deadline_s,
        )

    def conv_transpose(
        self,
        x: Operand,
        weight: Operand,
        bias: Operand | None = None,
        out: Operand | None = None,
        *,
        output_padding: SupportsIndex | Sequence[SupportsIndex] = (0,),
        activation: dnn.Kind = "identity",
        alpha: Number = 1.0,
        beta: Number = 0.0,
        stride: SupportsIndex | Sequence[SupportsIndex] = (1,),
        padding: SupportsIndex | Sequence[SupportsIndex] = (0,),
        dilation: SupportsIndex | Sequence[SupportsIndex] = (1,),
        groups: SupportsIndex = 1,
        allow_tf32: bool = False,
        deadline_s: float | None = None,
    ) -> Reply:
        """Compute out ← activation(alpha·(what conv's backward gives for x) + beta·out + bias), on a larger image.

        Args:
            x: Read; shape (n, k, *places).
            weight: Read; shape (k, cg, *window).
            bias: Read; (groups·cg).
            out: Written, and read unless beta is 0; (n, groups·cg, *space), the least space on which the window has
                x's places, and output_padding more.
            output_padding: How much longer the result is than the least: one number, or one for each dimension,
                less than the stride.
            activation: The activation that is applied last, see `activation`.
            alpha: A factor; complex only for complex arrays.
            beta: A factor; complex only for complex arrays.
            stride: How far the window moves: one number, or one for each dimension.
            padding: Zeros around the image: one number, one for each dimension, or two for each, before it and
                behind it.
            dilation: The distance between the window's elements: one number, or one for each dimension.
            groups: Channels are divided into so many groups, each with a part of the weight.
            allow_tf32: Whether tensor cores may round the factors of products of float32 to 11 bits, where there
                are any.
            deadline_s: Seconds until `DeadlineExceeded` ends the reply, whether it runs or not; None for 60.
        """
        return self._request(
            dnn.ConvTranspose(
                x=x,
                weight=weight,
                bias=bias,
                out=out,
                output_padding=lengths("output_padding", output_padding),
                activation=activation,
                alpha=factor("alpha", alpha),
                beta=factor("beta", beta),
                stride=lengths("stride", stride),
                padding=lengths("padding", padding),
                dilation=lengths("dilation", dilation),
                groups=whole("groups", groups),
                allow_tf32=allow_tf32,
            ),
            deadline_s,
        )

    def conv_input(
        self,
        weight: Operand,
        dy: Operand,
        out: Operand | None = None,
        *,
        size: SupportsIndex | Sequence[SupportsIndex] | None = None,
        alpha: Number = 1.0,
        beta: Number = 0.0,
        stride: SupportsIndex | Sequence[SupportsIndex] = (1,),
        padding: SupportsIndex | Sequence[SupportsIndex] = (0,),
        dilation: SupportsIndex | Sequence[SupportsIndex] = (1,),
        groups: SupportsIndex = 1,
        allow_tf32: bool = False,
        deadline_s: float | None = None,
    ) -> Reply:
        """Compute out ← alpha·gradient + beta·out, with the gradient of `conv` by its image, from dy by its result.

        Args:
            weight: Read; shape (k, cg, *window).
            dy: Read; shape (n, k, *places).
            out: Written, and read unless beta is 0; (n, groups·cg, *size); by default the least size on which the
                window has dy's places.
            size: The image's lengths behind its channels; if out is left out too, the least that fit.
            alpha: A factor; complex only for complex arrays.
            beta: A factor; complex only for complex arrays.
            stride: How far the window moves: one number, or one for each dimension.
            padding: Zeros around the image: one number, one for each dimension, or two for each, before it and
                behind it.
            dilation: The distance between the window's elements: one number, or one for each dimension.
            groups: Channels are divided into so many groups, each with a part of the weight.
            allow_tf32: Whether tensor cores may round the factors of products of float32 to 11 bits, where there
                are any.
            deadline_s: Seconds until `DeadlineExceeded` ends the reply, whether it runs or not; None for 60.
        """
        return self._request(
            dnn.ConvInput(
                weight=weight,
                dy=dy,
                out=out,
                size=None if size is None else lengths("size", size),
                alpha=factor("alpha", alpha),
                beta=factor("beta", beta),
                stride=lengths("stride", stride),
                padding=lengths("padding", padding),
                dilation=lengths("dilation", dilation),
                groups=whole("groups", groups),
                allow_tf32=allow_tf32,
            ),
            deadline_s,
        )

    def conv_weight(
        self,
        x: Operand,
        dy: Operand,
        out: Operand | None = None,
        *,
        size: SupportsIndex | Sequence[SupportsIndex] | None = None,
        alpha: Number = 1.0,
        beta: Number = 0.0,
        stride: SupportsIndex | Sequence[SupportsIndex] = (1,),
        padding: SupportsIndex | Sequence[SupportsIndex] = (0,),
        dilation: SupportsIndex | Sequence[SupportsIndex] = (1,),
        groups: SupportsIndex = 1,
        allow_tf32: bool = False,
        deadline_s: float | None = None,
    ) -> Reply:
        """Compute out ← alpha·gradient + beta·out, with the gradient of `conv` by its weight, from dy by its result.

        Args:
            x: Read; shape (n, c, *space).
            dy: Read; shape (n, k, *places).
            out: Written, and read unless beta is 0; (k, c / groups, *size).
            size: The window's lengths; those of out if it is left out.
            alpha: A factor; complex only for complex arrays.
            beta: A factor; complex only for complex arrays.
            stride: How far the window moves: one number, or one for each dimension.
            padding: Zeros around the image: one number, one for each dimension, or two for each, before it and
                behind it.
            dilation: The distance between the window's elements: one number, or one for each dimension.
            groups: Channels are divided into so many groups, each with a part of the weight.
            allow_tf32: Whether tensor cores may round the factors of products of float32 to 11 bits, where there
                are any.
            deadline_s: Seconds until `DeadlineExceeded` ends the reply, whether it runs or not; None for 60.
        """
        return self._request(
            dnn.ConvWeight(
                x=x,
                dy=dy,
                out=out,
                size=None if size is None else lengths("size", size),
                alpha=factor("alpha", alpha),
                beta=factor("beta", beta),
                stride=lengths("stride", stride),
                padding=lengths("padding", padding),
                dilation=lengths("dilation", dilation),
                groups=whole("groups", groups),
                allow_tf32=allow_tf32,
            ),
            deadline_s,
        )

    def pool(
        self,
        x: Operand,
        out: Operand | None = None,
        *,
        alpha: Number = 1.0,
        beta: Number = 0.0,
        kernel_size: SupportsIndex | Sequence[SupportsIndex],
        stride: SupportsIndex | Sequence[SupportsIndex] | None = None,
        padding: SupportsIndex | Sequence[SupportsIndex] = (0,),
        mode: dnn.Pooling = "max",
        count_include_pad: bool = True,
        deadline_s: float | None = None,
    ) -> Reply:
        """Compute out ← alpha·(the maximum or average in each place of a window) + beta·out, in 1 to 3 dimensions.

        Args:
            x: Read; shape (n, c, *space).
            out: Written, and read unless beta is 0; (n, c, *places of the window).
            alpha: A factor; complex only for complex arrays.
            beta: A factor; complex only for complex arrays.
            kernel_size: The window's lengths: one number, or one for each dimension.
            stride: How far the window moves: one number, or one for each dimension; by default its lengths.
            padding: Padding around the image: one number, one for each dimension, or two for each, before it and
                behind it.
            mode: "max", or "avg" for the average.
            count_include_pad: Whether an average divides by all elements of the window, padding too, not by those
                of the image.
            deadline_s: Seconds until `DeadlineExceeded` ends the reply, whether it runs or not; None for 60.
        """
        return self._request(
            dnn.WindowPool(
                x=x,
                out=out,
                alpha=factor("alpha", alpha),
                beta=factor("beta", beta),
                kernel_size=lengths("kernel_size", kernel_size),
                stride=None if stride is None else lengths("stride", stride),
                padding=lengths("padding", padding),
                mode=mode,
                count_include_pad=count_include_pad,
            ),
            deadline_s,
        )

    def pool_backward(
        self,
        x: Operand,
        y: Operand,
        dy: Operand,
        out: Operand | None = None,
        *,
        alpha: Number = 1.0,
        beta: Number = 0.0,
        kernel_size: SupportsIndex | Sequence[SupportsIndex],
        stride: SupportsIndex | Sequence[SupportsIndex] | None = None,
        padding: SupportsIndex | Sequence[SupportsIndex] = (0,),
        mode: dnn.Pooling = "max",
        count_include_pad: bool = True,
        deadline_s: float | None = None,
    ) -> Reply:
        """Compute out ← alpha·gradient + beta·out, that of `pool` by x, from y, its result, and dy by that.

        Of equal maxima, the first in the window has the gradient.

        Args:
            x: Read; shape (n, c, *space).
            y: Read; (n, c, *places of the window).
            dy: Read; (n, c, *places of the window).
            out: Written, and read unless beta is 0; shape (n, c, *space).
            alpha: A factor; complex only for complex arrays.
            beta: A factor; complex only for complex arrays.
            kernel_size: The window's lengths: one number, or one for each dimension.
            stride: How far the window moves: one number, or one for each dimension; by default its lengths.
            padding: Padding around the image: one number, one for each dimension, or two for each, before it and
                behind it.
            mode: "max", or "avg" for the average.
            count_include_pad: Whether an average divides by all elements of the window, padding too, not by those
                of the image.
            deadline_s: Seconds until `DeadlineExceeded` ends the reply, whether it runs or not; None for 60.
        """
        return self._request(
            dnn.WindowPoolBackward(
                x=x,
                y=y,
                dy=dy,
                out=out,
                alpha=factor("alpha", alpha),
                beta=factor("beta", beta),
                kernel_size=lengths("kernel_size", kernel_size),
                stride=None if stride is None else lengths("stride", stride),
                padding=lengths("padding", padding),
                mode=mode,
                count_include_pad=count_include_pad,
            ),
            deadline_s,
        )

    def softmax(
        self,
        x: Operand,
        out: Operand | None = None,
        *,
        alpha: Number = 1.0,
        beta: Number = 0.0,
        dim: SupportsIndex | Sequence[SupportsIndex] = (-1,),
        log: bool = False,
        deadline_s: float | None = None,
    ) -> Reply:
        """Compute out ← alpha·softmax(x) + beta·out, or its logarithm.

        Args:
            x: Read; shape (*dims).
            out: Written, and read unless beta is 0; shape (*dims). May be x itself.
            alpha: A factor; complex only for complex arrays.
            beta: A factor; complex only for complex arrays.
            dim: The dimensions that are normalised together: one, or several.
            log: Whether the logarithm is taken, without loss of precision.
            deadline_s: Seconds until `DeadlineExceeded` ends the reply, whether it runs or not; None for 60.
        """
        return self._request(
            dnn.Softmax(
                x=x, out=out, alpha=factor("alpha", alpha), beta=factor("beta", beta), dim=lengths("dim", dim), log=log
            ),
            deadline_s,
        )

    def softmax_backward(
        self,
        y: Operand,
        dy: Operand,
        out: Operand | None = None,
        *,
        alpha: Number = 1.0,
        beta: Number = 0.0,
        dim: SupportsIndex | Sequence[SupportsIndex] = (-1,),
        log: bool = False,
        deadline_s: float | None = None,
    ) -> Reply:
        """Compute out ← alpha·gradient + beta·out, that of softmax by x, from y, its result, and dy by that.

        Args:
            y: Read; shape (*dims).
            dy: Read; shape (*dims).
            out: Written, and read unless beta is 0; shape (*dims). May be y or dy itself.
            alpha: A factor; complex only for complex arrays.
            beta: A factor; complex only for complex arrays.
            dim: The dimensions that are normalised together: one, or several.
            log: Whether the logarithm is taken, without loss of precision.
            deadline_s: Seconds until `DeadlineExceeded` ends the reply, whether it runs or not; None for 60.
        """
        return self._request(
            dnn.SoftmaxBackward(
                y=y,
                dy=dy,
                out=out,
                alpha=factor("alpha", alpha),
                beta=factor("beta", beta),
                dim=lengths("dim", dim),
                log=log,
            ),
            deadline_s,
        )

    def activation(
        self,
        x: Operand,
        out: Operand | None = None,
        *,
        alpha: Number = 1.0,
        beta: Number = 0.0,
        kind: dnn.Kind,
        deadline_s: float | None = None,
    ) -> Reply:
        """Compute out ← alpha·f(x) + beta·out.

        Args:
            x: Read; shape (*dims).
            out: Written, and read unless beta is 0; shape (*dims). May be x itself.
            alpha: A factor; complex only for complex arrays.
            beta: A factor; complex only for complex arrays.
            kind: The activation.
            deadline_s: Seconds until `DeadlineExceeded` ends the reply, whether it runs or not; None for 60.
        """
        return self._request(
            dnn.Activation(x=x, out=out, alpha=factor("alpha", alpha), beta=factor("beta", beta), kind=kind), deadline_s
        )

    def activation_backward(
        self,
        x: Operand,
        dy: Operand,
        out: Operand | None = None,
        *,
        alpha: Number = 1.0,
        beta: Number = 0.0,
        kind: dnn.Kind,
        deadline_s: float | None = None,
    ) -> Reply:
        """Compute out ← alpha·dy·f'(x) + beta·out. The derivative of relu at 0 is 0.

        Args:
            x: Read; shape (*dims).
            dy: Read; shape (*dims).
            out: Written, and read unless beta is 0; shape (*dims). May be x or dy itself.
            alpha: A factor; complex only for complex arrays.
            beta: A factor; complex only for complex arrays.
            kind: The activation.
            deadline_s: Seconds until `DeadlineExceeded` ends the reply, whether it runs or not; None for 60.
        """
        return self._request(
            dnn.ActivationBackward(
                x=x, dy=dy, out=out, alpha=factor("alpha", alpha), beta=factor("beta", beta), kind=kind
            ),
            deadline_s,
        )

    def local_response_norm(
        self,
        x: Operand,
        out: Operand | None = None,
        *,
        size: SupportsIndex,
        alpha: SupportsFloat = 0.0001,
        beta: SupportsFloat = 0.75,
        k: SupportsFloat = 1.0,
        deadline_s: float | None = None,
    ) -> Reply:
        """Compute x / (k + alpha·(the mean of the squares of neighbouring channels))^beta.

        Args:
            x: Read; shape (n, c, *space).
            out: Written; shape (n, c, *space).
            size: How many channels: from size // 2 before each to (size - 1) // 2 behind it, as far as there are
                some.
            alpha: The weight of the squares' mean, in which channels that are missing count as 0.
            beta: The exponent.
            k: The number that is added to the weighted mean.
            deadline_s: Seconds until `DeadlineExceeded` ends the reply, whether it runs or not; None for 60.
        """
        return self._request(
            dnn.ResponseNorm(
                x=x,
                out=out,
                size=whole("size", size),
                alpha=real("alpha", alpha),
                beta=real("beta", beta),
                k=real("k", k),
            ),
            deadline_s,
        )

    def local_response_norm_backward(
        self,
        x: Operand,
        dy: Operand,
        out: Operand | None = None,
        *,
        size: SupportsIndex,
        alpha: SupportsFloat = 0.0001,
        beta: SupportsFloat = 0.75,
        k: SupportsFloat = 1.0,
        deadline_s: float | None = None,
    ) -> Reply:
        """Compute the gradient of `local_response_norm` by x, from dy, that by its result.

        Args:
            x: Read; shape (n, c, *space).
            dy: Read; shape (n, c, *space).
            out: Written; shape (n, c, *space).
            size: How many channels: from size // 2 before each to (size - 1) // 2 behind it, as far as there are
                some.
            alpha: The weight of the squares' mean, in which channels that are missing count as 0.
            beta: The exponent.
            k: The number that is added to the weighted mean.
            deadline_s: Seconds until `DeadlineExceeded` ends the reply, whether it runs or not; None for 60.
        """
        return self._request(
            dnn.ResponseNormBackward(
                x=x,
                dy=dy,
                out=out,
                size=whole("size", size),
                alpha=real("alpha", alpha),
                beta=real("beta", beta),
                k=real("k", k),
            ),
            deadline_s,
        )

    def dropout(
        self,
        x: Operand,
        out: Operand | None = None,
        mask: Operand | None = None,
        *,
        save_mask: bool = False,
        p: SupportsFloat = 0.5,
        seed: SupportsIndex,
        offset: SupportsIndex = 0,
        deadline_s: float | None = None,
    ) -> Reply:
        """Compute x·mask / (1 - p). An element is kept if its word of random bits, divided by 2³², is not less than p.

        Args:
            x: Read; shape (*dims).
            out: Written; shape (*dims). May be x itself.
            mask: Written; shape (*dims). Given with save_mask. 1 for an element that is kept, 0 for another.
            save_mask: Whether the mask is a result too.
            p: The probability of an element to become 0; the others are divided by 1 - p.
            seed: The seed of Philox 4x32-10, as of `rng`, from 0 to 2⁶⁴ - 1.
            offset: The word of 32 bits that decides on the first element; the others' follow in row-major order.
            deadline_s: Seconds until `DeadlineExceeded` ends the reply, whether it runs or not; None for 60.
        """
        return self._request(
            dnn.Dropout(
                x=x,
                out=out,
                mask=mask,
                save_mask=save_mask,
                p=real("p", p),
                seed=whole("seed", seed),
                offset=whole("offset", offset),
            ),
            deadline_s,
        )

    def dropout_backward(
        self,
        dy: Operand,
        out: Operand | None = None,
        *,
        p: SupportsFloat = 0.5,
        seed: SupportsIndex,
        offset: SupportsIndex = 0,
        deadline_s: float | None = None,
    ) -> Reply:
        """Compute dy·mask / (1 - p), the gradient of `dropout` by x; seed and offset give the same mask.

        Args:
            dy: Read; shape (*dims).
            out: Written; shape (*dims). May be dy itself.
            p: The probability of an element to become 0; the others are divided by 1 - p.
            seed: The seed of Philox 4x32-10, as of `rng`, from 0 to 2⁶⁴ - 1.
            offset: The word of 32 bits that decides on the first element; the others' follow in row-major order.
            deadline_s: Seconds until `DeadlineExceeded` ends the reply, whether it runs or not; None for 60.
        """
        return self._request(
            dnn.DropoutBackward(
                dy=dy, out=out, p=real("p", p), seed=whole("seed", seed), offset=whole("offset", offset)
            ),
            deadline_s,
        )

    def batch_norm(
        self,
        x: Operand,
        running_mean: Operand,
        running_var: Operand,
        weight: Operand | None = None,
        bias: Operand | None = None,
        out: Operand | None = None,
        *,
        eps: SupportsFloat = 1e-05,
        deadline_s: float | None = None,
    ) -> Reply:
        """Normalise each channel by given statistics.

        Args:
            x: Read; shape (*dims).
            running_mean: Read; (c), or normalized_shape.
            running_var: Read; (c), or normalized_shape.
            weight: Read; (c), or normalized_shape.
            bias: Read; (c), or normalized_shape.
            out: Written; shape (*dims).
            eps: The number that is added to variances.
            deadline_s: Seconds until `DeadlineExceeded` ends the reply, whether it runs or not; None for 60.
        """
        return self._request(
            dnn.BatchNorm(
                x=x,
                running_mean=running_mean,
                running_var=running_var,
                weight=weight,
                bias=bias,
                out=out,
                eps=real("eps", eps),
            ),
            deadline_s,
        )

    def batch_norm_training(
        self,
        x: Operand,
        weight: Operand | None = None,
        bias: Operand | None = None,
        running_mean: Operand | None = None,
        running_var: Operand | None = None,
        out: Operand | None = None,
        mean: Operand | None = None,
        invstd: Operand | None = None,
        *,
        momentum: SupportsFloat = 0.1,
        eps: SupportsFloat = 1e-05,
        deadline_s: float | None = None,
    ) -> Reply:
        """Normalise each channel by the statistics of the batch, and let running statistics follow these.

        running ← (1 - momentum)·running + momentum·that of the batch. Running variances are those of samples: of m
        elements, squares are divided by m - 1, or by 1.

        Args:
            x: Read; shape (*dims).
            weight: Read; (c), or normalized_shape.
            bias: Read; (c), or normalized_shape.
            running_mean: Read and written; (c), or normalized_shape. Given together with running_var.
            running_var: Read and written; (c), or normalized_shape. Given together with running_mean.
            out: Written; shape (*dims).
            mean: Written; (c), or normalized_shape. The batch's means, for `norm_backward`.
            invstd: Written; (c), or normalized_shape. 1 / √(variance + eps), for `norm_backward`.
            momentum: The share of the batch in the running statistics.
            eps: The number that is added to variances.
            deadline_s: Seconds until `DeadlineExceeded` ends the reply, whether it runs or not; None for 60.
        """
        return self._request(
            dnn.BatchNormTraining(
                x=x,
                weight=weight,
                bias=bias,
                running_mean=running_mean,
                running_var=running_var,
                out=out,
                mean=mean,
                invstd=invstd,
                momentum=real("momentum", momentum),
                eps=real("eps", eps),
            ),
            deadline_s,
        )

    def layer_norm(
        self,
        x: Operand,
        weight: Operand | None = None,
        bias: Operand | None = None,
        out: Operand | None = None,
        mean: Operand | None = None,
        invstd: Operand | None = None,
        *,
        eps: SupportsFloat = 1e-05,
        save_statistics: bool = False,
        normalized_shape: SupportsIndex | Sequence[SupportsIndex],
        deadline_s: float | None = None,
    ) -> Reply:
        """Normalise the last dimensions of x together.

        Args:
            x: Read; shape (*dims).
            weight: Read; (c), or normalized_shape.
            bias: Read; (c), or normalized_shape.
            out: Written; shape (*dims).
            mean: Written; the lengths of x along which nothing is summed; (n, num_groups) for a group norm. Given
                with save_statistics.
            invstd: Written; the lengths of x along which nothing is summed; (n, num_groups) for a group norm. Given
                with save_statistics.
            eps: The number that is added to variances.
            save_statistics: Whether the statistics are results too, for `norm_backward`.
            normalized_shape: The lengths of the dimensions that are normalised together: the last of x, and all of
                weight and bias.
            deadline_s: Seconds until `DeadlineExceeded` ends the reply, whether it runs or not; None for 60.
        """
        return self._request(
            dnn.LayerNorm(
                x=x,
                weight=weight,
                bias=bias,
                out=out,
                mean=mean,
                invstd=invstd,
                eps=real("eps", eps),
                save_statistics=save_statistics,
                normalized_shape=lengths("normalized_shape", normalized_shape),
            ),
            deadline_s,
        )

    def rms_norm(
        self,
        x: Operand,
        weight: Operand | None = None,
        out: Operand | None = None,
        invstd: Operand | None = None,
        *,
        eps: SupportsFloat = 1e-05,
        save_statistics: bool = False,
        normalized_shape: SupportsIndex | Sequence[SupportsIndex],
        deadline_s: float | None = None,
    ) -> Reply:
        """Divide by the root of the mean of squares of the last dimensions: x·weight / √(mean(x²) + eps).

        Args:
            x: Read; shape (*dims).
            weight: Read; (c), or normalized_shape.
            out: Written; shape (*dims).
            invstd: Written; the lengths of x along which nothing is summed; (n, num_groups) for a group norm. Given
                with save_statistics.
            eps: The number that is added to variances.
            save_statistics: Whether the statistics are results too, for `norm_backward`.
            normalized_shape: The lengths of the dimensions that are normalised together: the last of x, and all of
                weight and bias.
            deadline_s: Seconds until `DeadlineExceeded` ends the reply, whether it runs or not; None for 60.
        """
        return self._request(
            dnn.RmsNorm(
                x=x,
                weight=weight,
                out=out,
                invstd=invstd,
                eps=real("eps", eps),
                save_statistics=save_statistics,
                normalized_shape=lengths("normalized_shape", normalized_shape),
            ),
            deadline_s,
        )

    def instance_norm(
        self,
        x: Operand,
        weight: Operand | None = None,
        bias: Operand | None = None,
        out: Operand | None = None,
        mean: Operand | None = None,
        invstd: Operand | None = None,
        *,
        eps: SupportsFloat = 1e-05,
        save_statistics: bool = False,
        deadline_s: float | None = None,
    ) -> Reply:
        """Normalise each channel of each sample.

        Args:
            x: Read; shape (*dims).
            weight: Read; (c), or normalized_shape.
            bias: Read; (c), or normalized_shape.
            out: Written; shape (*dims).
            mean: Written; the lengths of x along which nothing is summed; (n, num_groups) for a group norm. Given
                with save_statistics.
            invstd: Written; the lengths of x along which nothing is summed; (n, num_groups) for a group norm. Given
                with save_statistics.
            eps: The number that is added to variances.
            save_statistics: Whether the statistics are results too, for `norm_backward`.
            deadline_s: Seconds until `DeadlineExceeded` ends the reply, whether it runs or not; None for 60.
        """
        return self._request(
            dnn.InstanceNorm(
                x=x,
                weight=weight,
                bias=bias,
                out=out,
                mean=mean,
                invstd=invstd,
                eps=real("eps", eps),
                save_statistics=save_statistics,
            ),
            deadline_s,
        )

    def group_norm(
        self,
        x: Operand,
        weight: Operand | None = None,
        bias: Operand | None = None,
        out: Operand | None = None,
        mean: Operand | None = None,
        invstd: Operand | None = None,
        *,
        num_groups: SupportsIndex = 1,
        eps: SupportsFloat = 1e-05,
        save_statistics: bool = False,
        deadline_s: float | None = None,
    ) -> Reply:
        """Normalise groups of channels of each sample.

        Args:
            x: Read; shape (*dims).
            weight: Read; (c), or normalized_shape.
            bias: Read; (c), or normalized_shape.
            out: Written; shape (*dims).
            mean: Written; the lengths of x along which nothing is summed; (n, num_groups) for a group norm. Given
                with save_statistics.
            invstd: Written; the lengths of x along which nothing is summed; (n, num_groups) for a group norm. Given
                with save_statistics.
            num_groups: How many groups: it divides the number of channels.
            eps: The number that is added to variances.
            save_statistics: Whether the statistics are results too, for `norm_backward`.
            deadline_s: Seconds until `DeadlineExceeded` ends the reply, whether it runs or not; None for 60.
        """
        return self._request(
            dnn.GroupNorm(
                x=x,
                weight=weight,
                bias=bias,
                out=out,
                mean=mean,
                invstd=invstd,
                num_groups=whole("num_groups", num_groups),
                eps=real("eps", eps),
                save_statistics=save_statistics,
            ),
            deadline_s,
        )

    def norm_backward(
        self,
        x: Operand,
        dy: Operand,
        invstd: Operand,
        mean: Operand | None = None,
        weight: Operand | None = None,
        out: Operand | None = None,
        dweight: Operand | None = None,
        dbias: Operand | None = None,
        *,
        mode: dnn.Mode = "layer",
        normalized_shape: SupportsIndex | Sequence[SupportsIndex] = (),
        num_groups: SupportsIndex = 1,
        deadline_s: float | None = None,
    ) -> Reply:
        """Compute the gradients of a norm by x, weight and bias, from dy, that by its result, and its statistics.

        Statistics are those of x, from the forward: a gradient through given ones, as of `batch_norm`, is another.

        Args:
            x: Read; shape (*dims).
            dy: Read; shape (*dims).
            invstd: Read; the lengths of x along which nothing is summed; (n, num_groups) for a group norm.
            mean: Read; the lengths of x along which nothing is summed; (n, num_groups) for a group norm. Given
                unless mode is "rms".
            weight: Read; (c), or normalized_shape.
            out: Written; shape (*dims). The gradient by x.
            dweight: Written; (c), or normalized_shape. Given where weight is given.
            dbias: Written; (c), or normalized_shape. Given where weight is given, and mode is not "rms".
            mode: The norm: "batch", "layer", "instance", "group" or "rms".
            normalized_shape: As of `layer_norm` and `rms_norm`; for these modes only.
            num_groups: As of `group_norm`; for this mode only.
            deadline_s: Seconds until `DeadlineExceeded` ends the reply, whether it runs or not; None for 60.
        """
        return self._request(
            dnn.NormBackward(
                x=x,
                dy=dy,
                invstd=invstd,
                mean=mean,
                weight=weight,
                out=out,
                dweight=dweight,
                dbias=dbias,
                mode=mode,
                normalized_shape=lengths("normalized_shape", normalized_shape),
                num_groups=whole("num_groups", num_groups),
            ),
            deadline_s,
        )

    def scaled_dot_product_attention(
        self,
        query: Operand,
        key: Operand,
        value: Operand,
        attn_mask: Operand | None = None,
        query_lengths: Operand | None = None,
        key_lengths: Operand | None = None,
        out: Operand | None = None,
        lse: Operand | None = None,
        *,
        save_lse: bool = False,
        is_causal: bool = False,
        align: dnn.Align = "top_left",
        window: SupportsIndex | None = None,
        scale: SupportsFloat | None = None,
        dropout_p: SupportsFloat = 0.0,
        seed: SupportsIndex = 0,
        offset: SupportsIndex = 0,
        allow_tf32: bool = False,
        deadline_s: float | None = None,
    ) -> Reply:
        """Compute softmax(scale·query·keyᵀ + attn_mask)·value for each head; 0 for a query without a key.

        hk heads of key and value are shared by hq / hk heads of query each.

        Args:
            query: Read; shape (b, hq, sq, d).
            key: Read; shape (b, hk, sk, d).
            value: Read; shape (b, hk, sk, dv).
            attn_mask: Read; any shape. It is added to the scores, and broadcast to (b, hq, sq, sk); -inf leaves a
                key out.
            query_lengths: Read; shape (b). How many queries each sample has, from 0 to sq; beyond these the next is
                taken. The others' results are 0.
            key_lengths: Read; shape (b). How many keys each sample has, from 0 to sk; beyond these the next is
                taken.
            out: Written; shape (b, hq, sq, dv).
            lse: Written; shape (b, hq, sq). Given with save_lse. The natural logarithm of the sum of exponentials,
                for the backward; -inf for a query without a key.
            save_lse: Whether lse is a result too.
            is_causal: Whether query i takes only keys j ≤ i, counted as `align` says.
            align: The queries and keys that have the same number: the first, or the last with "bottom_right".
            window: How near to query i keys are: |i - j| < window.
            scale: The factor of the products; by default 1 / √d.
            dropout_p: The probability of a weight to become 0; the others are divided by 1 - dropout_p.
            seed: The seed of that, as of `dropout` on an array (b, hq, sq, sk).
            offset: The word of random bits for the first weight.
            allow_tf32: Whether tensor cores may round the factors of products of float32 to 11 bits, where there
                are any.
            deadline_s: Seconds until `DeadlineExceeded` ends the reply, whether it runs or not; None for 60.
        """
        return self._request(
            dnn.Attention(
                query=query,
                key=key,
                value=value,
                attn_mask=attn_mask,
                query_lengths=query_lengths,
                key_lengths=key_lengths,
                out=out,
                lse=lse,
                save_lse=save_lse,
                is_causal=is_causal,
                align=align,
                window=None if window is None else whole("window", window),
                scale=None if scale is None else real("scale", scale),
                dropout_p=real("dropout_p", dropout_p),
                seed=whole("seed", seed),
                offset=whole("offset", offset),
                allow_tf32=allow_tf32,
            ),
            deadline_s,
        )

    def scaled_dot_product_attention_backward(
        self,
        query: Operand,
        key: Operand,
        value: Operand,
        y: Operand,
        dy: Operand,
        lse: Operand,
        attn_mask: Operand | None = None,
        query_lengths: Operand | None = None,
        key_lengths: Operand | None = None,
        dquery: Operand | None = None,
        dkey: Operand | None = None,
        dvalue: Operand | None = None,
        *,
        is_causal: bool = False,
        align: dnn.Align = "top_left",
        window: SupportsIndex | None = None,
        scale: SupportsFloat | None = None,
        dropout_p: SupportsFloat = 0.0,
        seed: SupportsIndex = 0,
        offset: SupportsIndex = 0,
        allow_tf32: bool = False,
        deadline_s: float | None = None,
    ) -> Reply:
        """Compute the gradients of attention by query, key and value, from its result y, dy by that, and lse.

        Args:
            query: Read; shape (b, hq, sq, d).
            key: Read; shape (b, hk, sk, d).
            value: Read; shape (b, hk, sk, dv).
            y: Read; shape (b, hq, sq, dv).
            dy: Read; shape (b, hq, sq, dv).
            lse: Read; shape (b, hq, sq).
            attn_mask: Read; any shape.
            query_lengths: Read; shape (b).
            key_lengths: Read; shape (b).
            dquery: Written; shape (b, hq, sq, d).
            dkey: Written; shape (b, hk, sk, d).
            dvalue: Written; shape (b, hk, sk, dv).
            is_causal: Whether query i takes only keys j ≤ i, counted as `align` says.
            align: The queries and keys that have the same number: the first, or the last with "bottom_right".
            window: How near to query i keys are: |i - j| < window.
            scale: The factor of the products; by default 1 / √d.
            dropout_p: The probability of a weight to become 0; the others are divided by 1 - dropout_p.
            seed: The seed of that, as of `dropout` on an array (b, hq, sq, sk).
            offset: The word of random bits for the first weight.
            allow_tf32: Whether tensor cores may round the factors of products of float32 to 11 bits, where there
                are any.
            deadline_s: Seconds until `DeadlineExceeded` ends the reply, whether it runs or not; None for 60.
        """
        return self._request(
            dnn.AttentionBackward(
                query=query,
                key=key,
                value=value,
                y=y,
                dy=dy,
                lse=lse,
                attn_mask=attn_mask,
                query_lengths=query_lengths,
                key_lengths=key_lengths,
                dquery=dquery,
                dkey=dkey,
                dvalue=dvalue,
                is_causal=is_causal,
                align=align,
                window=None if window is None else whole("window", window),
                scale=None if scale is None else real("scale", scale),
                dropout_p=real("dropout_p", dropout_p),
                seed=whole("seed", seed),
                offset=whole("offset", offset),
                allow_tf32=allow_tf32,
            ),
            deadline_s,
        )

    def rnn_pack(
        self,
        weights: Sequence[Operand],
        out: Operand | None = None,
        *,
        mode: dnn.Cell = "lstm",
        hidden_size: SupportsIndex,
        num_layers: SupportsIndex = 1,
        bidirectional: bool = False,
        input_size: SupportsIndex,
        deadline_s: float | None = None,
    ) -> Reply:
        """Pack weights as `rnn` takes them; `rnn_unpack` returns views of them.

        Args:
            weights: Read; any shape. w_ih, w_hh, b_ih and b_hh of each direction of each layer, as torch has them.
            out: Written; (all weights of the network).
            mode: The cell: "lstm", "gru", or a plain one with "tanh" or "relu".
            hidden_size: Elements of a cell's state.
            num_layers: How many layers; each takes the outputs of the one before it.
            bidirectional: Whether each layer has cells that go backwards too, whose outputs lie behind those of the
                others.
            input_size: Elements of an input.
            deadline_s: Seconds until `DeadlineExceeded` ends the reply, whether it runs or not; None for 60.
        """
        return self._request(
            dnn.RnnPack(
                weights=several("weights", weights),
                out=out,
                mode=mode,
                hidden_size=whole("hidden_size", hidden_size),
                num_layers=whole("num_layers", num_layers),
                bidirectional=bidirectional,
                input_size=whole("input_size", input_size),
            ),
            deadline_s,
        )

    def rnn(
        self,
        x: Operand,
        weights: Operand,
        h0: Operand | None = None,
        c0: Operand | None = None,
        lengths: Operand | None = None,
        out: Operand | None = None,
        hn: Operand | None = None,
        cn: Operand | None = None,
        reserve: Operand | None = None,
        *,
        save_reserve: bool = False,
        mode: dnn.Cell = "lstm",
        hidden_size: SupportsIndex,
        num_layers: SupportsIndex = 1,
        bidirectional: bool = False,
        dropout_p: SupportsFloat = 0.0,
        seed: SupportsIndex = 0,
        offset: SupportsIndex = 0,
        allow_tf32: bool = False,
        deadline_s: float | None = None,
    ) -> Reply:
        """Run a recurrent network over sequences: out has the outputs of the last layer, hn and cn the last states.

        gru's new gate multiplies by reset after the product with the state, as torch and cuDNN do.

        Args:
            x: Read; shape (t, b, i).
            weights: Read; (all weights of the network). Strides: row-major, without gaps.
            h0: Read; (num_layers·directions, b, hidden_size). The first states; 0 if they are left out.
            c0: Read; (num_layers·directions, b, hidden_size). Given for mode "lstm", beside h0.
            lengths: Read; shape (b). How many steps each sequence has, from 0 to t; beyond these the next is taken.
                Outputs behind them are 0.
            out: Written; (t, b, directions·hidden_size).
            hn: Written; (num_layers·directions, b, hidden_size).
            cn: Written; (num_layers·directions, b, hidden_size). Given for mode "lstm".
            reserve: Written; (bytes): room for the gates and two states of each cell at each step, and for a mark.
                Strides: row-major, without gaps. Given with save_reserve. Room for what the backward needs; it is
                used up by one.
            save_reserve: Whether reserve is a result too.
            mode: The cell: "lstm", "gru", or a plain one with "tanh" or "relu".
            hidden_size: Elements of a cell's state.
            num_layers: How many layers; each takes the outputs of the one before it.
            bidirectional: Whether each layer has cells that go backwards too, whose outputs lie behind those of the
                others.
            dropout_p: The probability of an output to become 0 on its way to the next layer; others are divided by
                1 - dropout_p.
            seed: The seed of that, as of `dropout` on an array (num_layers - 1, t, b, directions·hidden_size).
            offset: The word of random bits for the first of these outputs.
            allow_tf32: Whether tensor cores may round the factors of products of float32 to 11 bits, where there
                are any.
            deadline_s: Seconds until `DeadlineExceeded` ends the reply, whether it runs or not; None for 60.
        """
        return self._request(
            dnn.RnnForward(
                x=x,
                weights=weights,
                h0=h0,
                c0=c0,
                lengths=lengths,
                out=out,
                hn=hn,
                cn=cn,
                reserve=reserve,
                save_reserve=save_reserve,
                mode=mode,
                hidden_size=whole("hidden_size", hidden_size),
                num_layers=whole("num_layers", num_layers),
                bidirectional=bidirectional,
                dropout_p=real("dropout_p", dropout_p),
                seed=whole("seed", seed),
                offset=whole("offset", offset),
                allow_tf32=allow_tf32,
            ),
            deadline_s,
        )

    def rnn_backward(
        self,
        x: Operand,
        weights: Operand,
        y: Operand,
        dy: Operand,
        reserve: Operand,
        h0: Operand | None = None,
        c0: Operand | None = None,
        dhn: Operand | None = None,
        dcn: Operand | None = None,
        lengths: Operand | None = None,
        dx: Operand | None = None,
        dweights: Operand | None = None,
        dh0: Operand | None = None,
        dc0: Operand | None = None,
        *,
        mode: dnn.Cell = "lstm",
        hidden_size: SupportsIndex,
        num_layers: SupportsIndex = 1,
        bidirectional: bool = False,
        dropout_p: SupportsFloat = 0.0,
        seed: SupportsIndex = 0,
        offset: SupportsIndex = 0,
        allow_tf32: bool = False,
        deadline_s: float | None = None,
    ) -> Reply:
        """Compute the gradients of `rnn` by x, weights and first states, from its out y, dy by that, and its reserve.

        Args:
            x: Read; shape (t, b, i).
            weights: Read; (all weights of the network). Strides: row-major, without gaps.
            y: Read; (t, b, directions·hidden_size).
            dy: Read; (t, b, directions·hidden_size).
            reserve: Read and written; (bytes): room for the gates and two states of each cell at each step, and for
                a mark. Strides: row-major, without gaps. As the forward has left it; it is used up, and a second
                backward with it is refused.
            h0: Read; (num_layers·directions, b, hidden_size).
            c0: Read; (num_layers·directions, b, hidden_size). Given for mode "lstm", beside h0.
            dhn: Read; (num_layers·directions, b, hidden_size). The gradient by hn; 0 if it is left out.
            dcn: Read; (num_layers·directions, b, hidden_size). Given for mode "lstm", beside dhn.
            lengths: Read; shape (b).
            dx: Written; shape (t, b, i).
            dweights: Written; (all weights of the network). Strides: row-major, without gaps.
            dh0: Written; (num_layers·directions, b, hidden_size).
            dc0: Written; (num_layers·directions, b, hidden_size). Given for mode "lstm".
            mode: The cell: "lstm", "gru", or a plain one with "tanh" or "relu".
            hidden_size: Elements of a cell's state.
            num_layers: How many layers; each takes the outputs of the one before it.
            bidirectional: Whether each layer has cells that go backwards too, whose outputs lie behind those of the
                others.
            dropout_p: The probability of an output to become 0 on its way to the next layer; others are divided by
                1 - dropout_p.
            seed: The seed of that, as of `dropout` on an array (num_layers - 1, t, b, directions·hidden_size).
            offset: The word of random bits for the first of these outputs.
            allow_tf32: Whether tensor cores may round the factors of products of float32 to 11 bits, where there
                are any.
            deadline_s: Seconds until `DeadlineExceeded` ends the reply, whether it runs or not; None for 60.

        Raises:
            NumericalError: The reserve is not that of such a network's forward with these lengths, or a backward
                has used it up. By the reply.
        """
        return self._request(
            dnn.RnnBackward(
                x=x,
                weights=weights,
                y=y,
                dy=dy,
                reserve=reserve,
                h0=h0,
                c0=c0,
                dhn=dhn,
                dcn=dcn,
                lengths=lengths,
                dx=dx,
                dweights=dweights,
                dh0=dh0,
                dc0=dc0,
                mode=mode,
                hidden_size=whole("hidden_size", hidden_size),
                num_layers=whole("num_layers", num_layers),
                bidirectional=bidirectional,
                dropout_p=real("dropout_p", dropout_p),
                seed=whole("seed", seed),
                offset=whole("offset", offset),
                allow_tf32=allow_tf32,
            ),
            deadline_s,
        )
