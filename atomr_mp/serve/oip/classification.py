"""Outputs as classes: the greatest elements, each as a text with its place and its label. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from atomr_mp import errors
from atomr_mp.serve.oip.datatypes import BYTES
from atomr_mp.serve.oip.tensors import NamedTensor


def classes_of(tensor: NamedTensor, most: int, labels: Sequence[str], *, has_rows: bool) -> NamedTensor:
    """Return the greatest elements of a tensor, or of each of its rows, as texts "value:place:label".

    Args:
        tensor: The output.
        most: How many; fewer where there are fewer elements.
        labels: Names by place; places beyond have none.
        has_rows: Whether the first dimension is of rows.

    Raises:
        InvalidRequest: Its elements have no order.
    """
    import numpy as np

    values = tensor.values
    if isinstance(values, list) or not values.ndim or values.dtype.kind == "b":
        raise errors.InvalidRequest(
            f"output {tensor.name!r} is {tensor.datatype} of shape {list(tensor.shape)}, and has no classes",
            maybe_executed=True,
        )
    rows = values.reshape(values.shape[0] if has_rows else 1, -1)
    count = min(most, rows.shape[1])
    elements: list[bytes] = []
    for row in rows:
        for at in np.argsort(-row.astype(np.float64), kind="stable")[:count].tolist():
            label = f":{labels[at]}" if at < len(labels) else ""
            value = row[at]
            shown = f"{float(value):f}" if value.dtype.kind in "fV" else str(int(value))
            elements.append(f"{shown}:{at}{label}".encode())
    return NamedTensor(tensor.name, BYTES, (len(rows), count) if has_rows else (count,), elements)
