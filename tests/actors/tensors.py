"""An actor whose results are torch's tensors."""

from __future__ import annotations

from typing import Any

from atomr_mp_workers import Actor, Context, method


class Tensors(Actor):
    """Computes on the GPU, with torch."""

    def setup(self, context: Context) -> None:  # noqa: ARG002 - nothing of it is needed
        """Have torch's memory and kernels ready."""
        import torch

        self._torch: Any = torch
        self._kept = torch.full((1000,), 7.0, device="cuda")

    def _counted(self, count: int, dtype: str, first: int = 0) -> Any:
        return self._torch.arange(first, first + count, device="cuda").to(getattr(self._torch, dtype))

    @method
    def counted(self, count: int, dtype: str, first: int) -> Any:
        """Return so many numbers."""
        return self._counted(count, dtype, first)

    @method(thread=True)
    def counted_on_thread(self, count: int, dtype: str, first: int) -> Any:
        """Return so many numbers, from the actor's thread."""
        return self._counted(count, dtype, first)

    @method
    def turned(self, rows: int, columns: int) -> Any:
        """Return a matrix that does not lie in rows."""
        return self._counted(rows * columns, "float64").reshape(rows, columns).T[:, ::2]

    @method
    def several(self, count: int) -> Any:
        """Return tensors and something else."""
        return {"one": self._counted(count, "float32"), "others": [self._counted(count, "int64"), "text"]}

    @method
    def kept(self) -> Any:
        """Return one that the actor goes on writing."""
        return self._kept

    @method
    def add_to_kept(self) -> None:
        """Write it."""
        self._kept += 1

    @method
    def total(self, array: Any) -> float:
        """Return the sum of an argument, which is taken for a tensor."""
        return float(self._torch.from_dlpack(array).double().sum())
