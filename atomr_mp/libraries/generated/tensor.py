"""Requests of tensor as methods. Written by `scripts/library-methods` from the declared requests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from atomr_mp.libraries.base import LibraryReference, Number, factor, several
from atomr_mp.protocol.libraries import tensor
from atomr_mp.protocol.refs import Operand

if TYPE_CHECKING:
    from atomr_mp.client.reply import Reply


class TensorRequests(LibraryReference):
    """Contractions, reductions, permutations and elementwise operations on tensors whose modes have names.

    A mode is a dimension with a name: one character. `modes_a="ik"` names the two of a. Arrays that have a mode in
    common have the same length in it; no array has one twice (`einsum` takes diagonals). Any strides fit.

    Operators are applied to each element before it is multiplied by its factor. An array with a factor of 0 is not
    read, and counts as 0. Half precision is computed in float32, and rounded once.

    `LibraryReference` says what all methods have in common.
    """

    library: ClassVar[str] = "tensor"

    def contraction(
        self,
        a: Operand,
        b: Operand,
        c: Operand | None = None,
        *,
        modes_a: str,
        modes_b: str,
        modes_c: str,
        alpha: Number = 1.0,
        beta: Number = 0.0,
        op_a: tensor.Linear = "identity",
        op_b: tensor.Linear = "identity",
        op_c: tensor.Linear = "identity",
        compute: tensor.Compute = "default",
        deadline_s: float | None = None,
    ) -> Reply:
        """Compute c ← alpha·Σ op_a(a)·op_b(b) + beta·op_c(c), the sum over the modes that c does not have.

        Args:
            a: Read unless alpha is 0; any shape.
            b: Read unless alpha is 0; any shape.
            c: Written, and read unless beta is 0; the lengths of modes_c; modes of a and b that c does not have are
                summed.
            modes_a: The name of each dimension of a, as "ik".
            modes_b: The name of each dimension of b, as "kj".
            modes_c: The name of each dimension of c, as "ij".
            alpha: A factor; complex only for complex arrays.
            beta: A factor; complex only for complex arrays.
            op_a: The operator on a: "identity" or "conj".
            op_b: The operator on b: "identity" or "conj".
            op_c: The operator on the old content of c: "identity" or "conj".
            compute: "tf32" lets tensor cores round the factors of each product to 11 bits, where there are any;
                float32 and complex64 only.
            deadline_s: Seconds until `DeadlineExceeded` ends the reply, whether it runs or not; None for 60.
        """
        return self._request(
            tensor.Contraction(
                a=a,
                b=b,
                modes_a=modes_a,
                modes_b=modes_b,
                modes_c=modes_c,
                c=c,
                alpha=factor("alpha", alpha),
                beta=factor("beta", beta),
                op_a=op_a,
                op_b=op_b,
                op_c=op_c,
                compute=compute,
            ),
            deadline_s,
        )

    def reduction(
        self,
        a: Operand,
        c: Operand | None = None,
        *,
        modes_a: str,
        modes_c: str,
        alpha: Number = 1.0,
        beta: Number = 0.0,
        op_a: tensor.Unary = "identity",
        op_c: tensor.Unary = "identity",
        op_reduce: tensor.Binary = "add",
        deadline_s: float | None = None,
    ) -> Reply:
        """Compute c ← alpha·op_reduce(op_a(a)) + beta·op_c(c), reduced over the modes that c does not have.

        Args:
            a: Read unless alpha is 0; any shape.
            c: Written, and read unless beta is 0; the lengths of modes_c, which a has; its others are reduced.
            modes_a: The name of each dimension of a.
            modes_c: The name of each dimension of c; "" for a single number.
            alpha: A factor; complex only for complex arrays.
            beta: A factor; complex only for complex arrays.
            op_a: The operator on each element of a.
            op_c: The operator on the old content of c.
            op_reduce: The operator that combines elements: "add", "mul", "max" or "min".
            deadline_s: Seconds until `DeadlineExceeded` ends the reply, whether it runs or not; None for 60.
        """
        return self._request(
            tensor.Reduction(
                a=a,
                modes_a=modes_a,
                modes_c=modes_c,
                c=c,
                alpha=factor("alpha", alpha),
                beta=factor("beta", beta),
                op_a=op_a,
                op_c=op_c,
                op_reduce=op_reduce,
            ),
            deadline_s,
        )

    def permutation(
        self,
        a: Operand,
        b: Operand | None = None,
        *,
        modes_a: str,
        modes_b: str,
        alpha: Number = 1.0,
        op_a: tensor.Unary = "identity",
        deadline_s: float | None = None,
    ) -> Reply:
        """Compute b ← alpha·op_a(a), with the dimensions in another order.

        Args:
            a: Read unless alpha is 0; any shape.
            b: Written; the lengths of modes_b, which are those of a in another order.
            modes_a: The name of each dimension of a.
            modes_b: The same names, in the order of b.
            alpha: A factor; complex only for complex arrays.
            op_a: The operator on each element of a.
            deadline_s: Seconds until `DeadlineExceeded` ends the reply, whether it runs or not; None for 60.
        """
        return self._request(
            tensor.Permutation(a=a, modes_a=modes_a, modes_b=modes_b, b=b, alpha=factor("alpha", alpha), op_a=op_a),
            deadline_s,
        )

    def elementwise_binary(
        self,
        a: Operand,
        c: Operand,
        d: Operand | None = None,
        *,
        modes_a: str,
        modes_c: str,
        alpha: Number = 1.0,
        gamma: Number = 1.0,
        op_a: tensor.Unary = "identity",
        op_c: tensor.Unary = "identity",
        op_ac: tensor.Binary = "add",
        deadline_s: float | None = None,
    ) -> Reply:
        """Compute d ← op_ac(alpha·op_a(a), gamma·op_c(c)); a goes to all of the modes that only c has.

        Args:
            a: Read unless alpha is 0; any shape.
            c: Read unless gamma is 0; any shape.
            d: Written; as c, which has all modes of the others. May be c itself.
            modes_a: The name of each dimension of a.
            modes_c: The name of each dimension of c and d.
            alpha: A factor; complex only for complex arrays.
            gamma: A factor; complex only for complex arrays.
            op_a: The operator on each element of a.
            op_c: The operator on each element of c.
            op_ac: The operator that combines the two: "add", "mul", "max" or "min".
            deadline_s: Seconds until `DeadlineExceeded` ends the reply, whether it runs or not; None for 60.
        """
        return self._request(
            tensor.ElementwiseBinary(
                a=a,
                c=c,
                modes_a=modes_a,
                modes_c=modes_c,
                d=d,
                alpha=factor("alpha", alpha),
                gamma=factor("gamma", gamma),
                op_a=op_a,
                op_c=op_c,
                op_ac=op_ac,
            ),
            deadline_s,
        )

    def elementwise_trinary(
        self,
        a: Operand,
        b: Operand,
        c: Operand,
        d: Operand | None = None,
        *,
        modes_a: str,
        modes_b: str,
        modes_c: str,
        alpha: Number = 1.0,
        beta: Number = 1.0,
        gamma: Number = 1.0,
        op_a: tensor.Unary = "identity",
        op_b: tensor.Unary = "identity",
        op_c: tensor.Unary = "identity",
        op_ab: tensor.Binary = "add",
        op_abc: tensor.Binary = "add",
        deadline_s: float | None = None,
    ) -> Reply:
        """Compute d ← op_abc(op_ab(alpha·op_a(a), beta·op_b(b)), gamma·op_c(c)), a and b along the modes of c.

        Args:
            a: Read unless alpha is 0; any shape.
            b: Read unless beta is 0; any shape.
            c: Read unless gamma is 0; any shape.
            d: Written; as c, which has all modes of the others. May be c itself.
            modes_a: The name of each dimension of a.
            modes_b: The name of each dimension of b.
            modes_c: The name of each dimension of c and d.
            alpha: A factor; complex only for complex arrays.
            beta: A factor; complex only for complex arrays.
            gamma: A factor; complex only for complex arrays.
            op_a: The operator on each element of a.
            op_b: The operator on each element of b.
            op_c: The operator on each element of c.
            op_ab: The operator that combines a and b: "add", "mul", "max" or "min".
            op_abc: The operator that combines that and c.
            deadline_s: Seconds until `DeadlineExceeded` ends the reply, whether it runs or not; None for 60.
        """
        return self._request(
            tensor.ElementwiseTrinary(
                a=a,
                b=b,
                c=c,
                modes_a=modes_a,
                modes_b=modes_b,
                modes_c=modes_c,
                d=d,
                alpha=factor("alpha", alpha),
                beta=factor("beta", beta),
                gamma=factor("gamma", gamma),
                op_a=op_a,
                op_b=op_b,
                op_c=op_c,
                op_ab=op_ab,
                op_abc=op_abc,
            ),
            deadline_s,
        )

    def einstein_sum(
        self,
        operands: Sequence[Operand],
        out: Operand | None = None,
        *,
        subscripts: str,
        compute: tensor.Compute = "default",
        deadline_s: float | None = None,
    ) -> Reply:
        """Compute a sum of products in NumPy's notation of einsum, pair by pair in the order that takes the least work.

        Args:
            operands: Read; any shape.
            out: Written; as the subscripts say.
            subscripts: As "ij,jk->ik"; "..." stands for the dimensions that have no name.
            compute: As that of a contraction.
            deadline_s: Seconds until `DeadlineExceeded` ends the reply, whether it runs or not; None for 60.
        """
        return self._request(
            tensor.EinsteinSum(operands=several("operands", operands), subscripts=subscripts, out=out, compute=compute),
            deadline_s,
        )
