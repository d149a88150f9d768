"""Tensors with named modes in a device's memory: `device.tensor`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from atomr_mp.libraries.generated.tensor import TensorRequests
from atomr_mp.protocol.libraries import tensor
from atomr_mp.protocol.refs import Operand

if TYPE_CHECKING:
    from atomr_mp.client.reply import Reply


class Tensor(TensorRequests):
    """Operations on tensors with named modes, as in cuTENSOR, and `einsum` in NumPy's notation."""

    def einsum(
        self,
        subscripts: str,
        *operands: Operand,
        out: Operand | None = None,
        compute: tensor.Compute = "default",
        deadline_s: float | None = None,
    ) -> Reply:
        """Compute a sum of products, as `numpy.einsum` does; `einstein_sum` is the request.

        Lengths are not broadcast: all dimensions with a label have the same one.

        Args:
            subscripts: A notation such as "ij,jk->ik". A label twice in a term takes the diagonal; "..." stands for
                dimensions without a name.
            operands: Refs.
            out: The array for the result; it is allocated if left out.
            compute: "tf32" lets tensor cores round to 11 bits.
            deadline_s: The request's deadline in seconds; None for the pool's default.

        Raises:
            InvalidRequest: The notation cannot be read, or does not fit the operands.
        """
        return self.einstein_sum(list(operands), out, subscripts=subscripts, compute=compute, deadline_s=deadline_s)


Reference: Final = Tensor
