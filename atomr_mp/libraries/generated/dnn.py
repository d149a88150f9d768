"""Requests of dnn as methods. Written by `scripts/library-methods` from the declared requests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, SupportsIndex

from atomr_mp.libraries.base import LibraryReference, Number, factor, lengths, whole
from atomr_mp.protocol.libraries import dnn
from atomr_mp.protocol.refs import Operand

if TYPE_CHECKING:
    from atomr_mp.client.reply import Reply


class DnnRequests(LibraryReference):
    """Neural networks: convolutions, forward and backward.

    Arrays are (batch, channels, *space) with any strides: `x.transpose(0, 3, 1, 2)` is an image whose channels come
    last. Half precision is computed in float32, and rounded once; float32 is computed as such, unless `allow_tf32`. A
    sum of products is blended: out ← alpha·sum + beta·out.

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
        stride: SupportsIndex | Sequence[SupportsIndex] = (1,),
        padding: SupportsIndex | Sequence[SupportsIndex] = (0,),
        dilation: SupportsIndex | Sequence[SupportsIndex] = (1,),
        groups: SupportsIndex = 1,
        alpha: Number = 1.0,
        beta: Number = 0.0,
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
            stride: How far the window moves: one number, or one for each dimension.
            padding: Zeros around the image: one number, one for each dimension, or two for each, before it and
                behind it.
            dilation: The distance between the window's elements: one number, or one for each dimension.
            groups: Channels are divided into so many groups, each with a part of the weight.
            alpha: A factor; complex only for complex arrays.
            beta: A factor; complex only for complex arrays.
            allow_tf32: Whether tensor cores may round the factors of products of float32 to 11 bits, where there
                are any.
            deadline_s: Seconds from now until which it must have started; None for the pool's default.
        """
        return self._request(
            dnn.Conv(
                x=x,
                weight=weight,
                bias=bias,
                out=out,
                activation=activation,
                stride=lengths("stride", stride),
                padding=lengths("padding", padding),
                dilation=lengths("dilation", dilation),
                groups=whole("groups", groups),
                alpha=factor("alpha", alpha),
                beta=factor("beta", beta),
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
        stride: SupportsIndex | Sequence[SupportsIndex] = (1,),
        padding: SupportsIndex | Sequence[SupportsIndex] = (0,),
        dilation: SupportsIndex | Sequence[SupportsIndex] = (1,),
        groups: SupportsIndex = 1,
        alpha: Number = 1.0,
        beta: Number = 0.0,
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
            stride: How far the window moves: one number, or one for each dimension.
            padding: Zeros around the image: one number, one for each dimension, or two for each, before it and
                behind it.
            dilation: The distance between the window's elements: one number, or one for each dimension.
            groups: Channels are divided into so many groups, each with a part of the weight.
            alpha: A factor; complex only for complex arrays.
            beta: A factor; complex only for complex arrays.
            allow_tf32: Whether tensor cores may round the factors of products of float32 to 11 bits, where there
                are any.
            deadline_s: Seconds from now until which it must have started; None for the pool's default.
        """
        return self._request(
            dnn.ConvTranspose(
                x=x,
                weight=weight,
                bias=bias,
                out=out,
                output_padding=lengths("output_padding", output_padding),
                activation=activation,
                stride=lengths("stride", stride),
                padding=lengths("padding", padding),
                dilation=lengths("dilation", dilation),
                groups=whole("groups", groups),
                alpha=factor("alpha", alpha),
                beta=factor("beta", beta),
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
        stride: SupportsIndex | Sequence[SupportsIndex] = (1,),
        padding: SupportsIndex | Sequence[SupportsIndex] = (0,),
        dilation: SupportsIndex | Sequence[SupportsIndex] = (1,),
        groups: SupportsIndex = 1,
        alpha: Number = 1.0,
        beta: Number = 0.0,
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
            stride: How far the window moves: one number, or one for each dimension.
            padding: Zeros around the image: one number, one for each dimension, or two for each, before it and
                behind it.
            dilation: The distance between the window's elements: one number, or one for each dimension.
            groups: Channels are divided into so many groups, each with a part of the weight.
            alpha: A factor; complex only for complex arrays.
            beta: A factor; complex only for complex arrays.
            allow_tf32: Whether tensor cores may round the factors of products of float32 to 11 bits, where there
                are any.
            deadline_s: Seconds from now until which it must have started; None for the pool's default.
        """
        return self._request(
            dnn.ConvInput(
                weight=weight,
                dy=dy,
                out=out,
                size=None if size is None else lengths("size", size),
                stride=lengths("stride", stride),
                padding=lengths("padding", padding),
                dilation=lengths("dilation", dilation),
                groups=whole("groups", groups),
                alpha=factor("alpha", alpha),
                beta=factor("beta", beta),
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
        stride: SupportsIndex | Sequence[SupportsIndex] = (1,),
        padding: SupportsIndex | Sequence[SupportsIndex] = (0,),
        dilation: SupportsIndex | Sequence[SupportsIndex] = (1,),
        groups: SupportsIndex = 1,
        alpha: Number = 1.0,
        beta: Number = 0.0,
        allow_tf32: bool = False,
        deadline_s: float | None = None,
    ) -> Reply:
        """Compute out ← alpha·gradient + beta·out, with the gradient of `conv` by its weight, from dy by its result.

        Args:
            x: Read; shape (n, c, *space).
            dy: Read; shape (n, k, *places).
            out: Written, and read unless beta is 0; (k, c / groups, *size).
            size: The window's lengths; those of out if it is left out.
            stride: How far the window moves: one number, or one for each dimension.
            padding: Zeros around the image: one number, one for each dimension, or two for each, before it and
                behind it.
            dilation: The distance between the window's elements: one number, or one for each dimension.
            groups: Channels are divided into so many groups, each with a part of the weight.
            alpha: A factor; complex only for complex arrays.
            beta: A factor; complex only for complex arrays.
            allow_tf32: Whether tensor cores may round the factors of products of float32 to 11 bits, where there
                are any.
            deadline_s: Seconds from now until which it must have started; None for the pool's default.
        """
        return self._request(
            dnn.ConvWeight(
                x=x,
                dy=dy,
                out=out,
                size=None if size is None else lengths("size", size),
                stride=lengths("stride", stride),
                padding=lengths("padding", padding),
                dilation=lengths("dilation", dilation),
                groups=whole("groups", groups),
                alpha=factor("alpha", alpha),
                beta=factor("beta", beta),
                allow_tf32=allow_tf32,
            ),
            deadline_s,
        )
