"""Requests of blas_lt as methods. Written by `scripts/library-methods` from the declared requests."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from atomr_mp.libraries.base import LibraryReference, Number, element_type
from atomr_mp.protocol.libraries import blas_lt
from atomr_mp.protocol.refs import Operand

if TYPE_CHECKING:
    from numpy.typing import DTypeLike

    from atomr_mp.client.reply import Reply


class BlasLtRequests(LibraryReference):
    """Matrix products, with the operations that cuBLASLt has for the same kernel.

    out ← scale_out·epilogue(alpha·scale_a·scale_b·(a·b) + beta·c + bias). Everything is computed in float32, float64
    arrays in float64 and int8 in int32, and rounded once. Numbers too large for a float8 become the largest one.

    The epilogues have cuBLASLt's names: "relu" and "gelu" (by tanh) are applied to the sum; "bias" adds a vector to
    each row first; "aux" stores what the gradient needs in `aux_out`. "drelu" and "dgelu" multiply the sum with the
    derivative at what was stored, `aux`, and "bgrad" sums the result over its rows for the gradient of the bias.
    "bgrada" and "bgradb" leave the product as it is, and sum a or b over k.

    A row of `aux` is longer than one of out: cuBLASLt wants whole units. For ReLU it has a bit for each element, the
    lowest first, 1 where the sum was positive; for GELU it has the sums. Its content beyond the row of out is
    undefined.

    `LibraryReference` says what all methods have in common.
    """

    library: ClassVar[str] = "blas_lt"

    def matmul(
        self,
        a: Operand,
        b: Operand,
        out: Operand | None = None,
        c: Operand | None = None,
        bias: Operand | None = None,
        aux: Operand | None = None,
        bias_grad: Operand | None = None,
        aux_out: Operand | None = None,
        scale_a: Operand | None = None,
        scale_b: Operand | None = None,
        scale_out: Operand | None = None,
        *,
        alpha: Number | Operand = 1.0,
        beta: Number | Operand = 0.0,
        epilogue: blas_lt.Epilogue = "default",
        dtype: DTypeLike | None = None,
        autotune: bool = False,
        compute: blas_lt.Compute = "default",
        deadline_s: float | None = None,
    ) -> Reply:
        """Compute out ← scale_out·epilogue(alpha·scale_a·scale_b·(a·b) + beta·c + bias).

        The result is a ref to out, or a list of refs to those of out, bias_grad and aux_out, in this order, that the
        epilogue has and that were left out. Matrices that are read may be the same for all of a batch: a stride of 0.

        On CUDA cuBLASLt decides whether it has a kernel; if not, the reply is `Unsupported`, and nothing has run. For
        float8 and int8 it wants rows of a, columns of b and lengths that are multiples of 16 bytes.

        Args:
            a: Read; shape (*batch, m, k). Strides: each matrix with one contiguous dimension; all dimensions before
                these two as if they were one.
            b: Read; shape (*batch, k, n). Strides: each matrix with one contiguous dimension; all dimensions before
                these two as if they were one.
            out: Written; shape (*batch, m, n). Strides: each matrix with one contiguous dimension; all dimensions
                before these two as if they were one. May be c itself.
            c: Read unless beta is 0; shape (*batch, m, n). Strides: each matrix with one contiguous dimension; all
                dimensions before these two as if they were one. Has the type of out; bfloat16 if that is a float8.
            bias: Read; shape (n). Strides: row-major, without gaps. Given for the epilogues that end with bias. Has
                the type of out; bfloat16 where a is a float8 and out no float16. The same for all of a batch.
            aux: Read; (*batch, m, 16·⌈n / 128⌉) of a ReLU, (*batch, m, 8·⌈n / 8⌉) of a GELU. Strides: row-major,
                without gaps. Given for the epilogues drelu, drelu_bgrad, dgelu and dgelu_bgrad. The values that the
                forward pass has stored: uint8 for a ReLU, the type of out for a GELU.
            bias_grad: Written; (*batch, m) for bgrada, else (*batch, n). Strides: row-major, without gaps. Given
                for the epilogues with bgrad. Has the type of bias.
            aux_out: Written; (*batch, m, 16·⌈n / 128⌉) of a ReLU, (*batch, m, 8·⌈n / 8⌉) of a GELU. Strides: row-
                major, without gaps. Given for the epilogues with aux. The values that the gradient will need, in
                the form that aux takes.
            scale_a: Read; shape (_). Strides: row-major, without gaps. For float8: float32, one for all of a, or m,
                one for each row; 1 if left out.
            scale_b: Read; shape (_). Strides: row-major, without gaps. For float8: float32, one for all of b, or n,
                one for each column; 1 if left out.
            scale_out: Read; shape (_). Strides: row-major, without gaps. For a float8 result: one float32 by which
                it is multiplied before it is rounded; 1 if left out.
            alpha: A factor; complex only for complex arrays. An array of one element is read when the request runs.
            beta: A factor; complex only for complex arrays. An array of one element is read when the request runs.
            epilogue: The operations that follow the product.
            dtype: The element type of out if out is left out; by default that of a, bfloat16 for float8, int32 for
                int8.
            autotune: Time the algorithms that cuBLASLt proposes when the plan is made, and take the fastest;
                otherwise its first.
            compute: "tf32" lets tensor cores round the factors of each product to 11 bits, where there are any;
                float32 only.
            deadline_s: Seconds until `DeadlineExceeded` ends the reply, whether it runs or not; None for 60.
        """
        return self._request(
            blas_lt.Matmul(
                a=a,
                b=b,
                out=out,
                c=c,
                bias=bias,
                aux=aux,
                bias_grad=bias_grad,
                aux_out=aux_out,
                scale_a=scale_a,
                scale_b=scale_b,
                scale_out=scale_out,
                alpha=self._factor("alpha", alpha),
                beta=self._factor("beta", beta),
                epilogue=epilogue,
                dtype=None if dtype is None else element_type(dtype),
                autotune=autotune,
                compute=compute,
            ),
            deadline_s,
        )
