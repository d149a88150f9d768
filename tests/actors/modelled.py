"""An actor whose arguments and results are pydantic's models, torch's tensors, and what does not cross."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from typing import Annotated, Any

import msgspec
import numpy as np
import pydantic

from atomr_mp_workers import Actor, Batch, DeviceArray, method
from tests.fakes import fake_torch

sys.modules.setdefault("torch", fake_torch)
torch: Any = sys.modules["torch"]


class Box(pydantic.BaseModel):
    """A part of a picture."""

    left: int
    width: Annotated[int, pydantic.Field(gt=0)] = 1


class Picture(pydantic.BaseModel):
    """What FastAPI's users send."""

    name: str
    taken: datetime | None = None
    boxes: list[Box] = []

    @pydantic.field_serializer("taken")
    def as_text(self, taken: datetime | None) -> str | None:
        """Return it as it is sent."""
        return None if taken is None else taken.isoformat()


class Dated(pydantic.BaseModel):
    """Has what does not cross."""

    when: datetime = datetime(2020, 1, 1, tzinfo=UTC)


class Around(msgspec.Struct):
    """Has models within."""

    boxes: list[Box]


class DataFrame:
    """Stands for pandas' class."""

    __module__ = "pandas.core.frame"


class Modelled(Actor):
    """Has methods of all these."""

    @method
    def name(self, picture: Picture, size: Annotated[int, pydantic.Field(ge=1)] = 1) -> str:
        """Take a model, and a bound of pydantic's."""
        return f"{picture.name} {len(picture.boxes)} {size} {type(picture).__name__}"

    @method
    def widths(self, boxes: list[Box], more: dict[str, Box] | None = None, last: Box | None = None) -> list[int]:
        """Take models in lists and maps, or none."""
        return [each.width for each in (*boxes, *(more or {}).values(), *([last] if last else []))]

    @method
    def either(self, one: Box | Picture) -> str:
        """Take one of two models."""
        return type(one).__name__

    @method
    def around(self, around: Around) -> list[str]:
        """Take models in a struct."""
        return [type(each).__name__ for each in around.boxes]

    @method
    def picture(self, boxes: int) -> Picture:
        """Return a model of models."""
        made = [Box(left=each) for each in range(boxes)]
        return Picture(name="made", taken=datetime(2020, 1, 1, tzinfo=UTC), boxes=made)

    @method
    def dated(self) -> Dated:
        """Return what does not cross."""
        return Dated()

    @method(batch=Batch(max_items=8, max_wait_s=0))
    def lefts(self, boxes: list[Box]) -> list[Box]:
        """Take models in batches."""
        return [each.model_copy(update={"left": each.left + 1}) for each in boxes]

    @method
    def kinds(self, x: torch.Tensor, others: list[torch.Tensor], last: torch.Tensor | None = None) -> list[str]:
        """Take tensors."""
        return [
            f"{type(each).__name__} {each.array.sum():g}" for each in (x, *others, *([] if last is None else [last]))
        ]

    @method
    def is_over(self, x: Annotated[torch.Tensor, "any"], same: Annotated[DeviceArray, "the same"]) -> bool:
        """Return whether a tensor lies where a ref does."""
        return bool(np.shares_memory(x.array, same.array))

    @method
    def tensors(self, count: int, dtype: str) -> Any:
        """Return tensors, one with a gradient."""
        made = torch.Tensor(np.arange(count)).detach()
        made = torch.Tensor(made.array.astype(dtype)) if dtype != "bfloat16" else torch.Tensor(_bfloat16(count))
        return {"one": made, "others": [torch.Tensor(np.arange(float(count)), requires_grad=True)]}

    @method(batch=Batch(max_items=8, max_wait_s=0))
    def doubled(self, rows: list[torch.Tensor]) -> torch.Tensor:
        """Return a tensor with a row for each item."""
        return torch.Tensor(np.stack([each.array * 2 for each in rows]))

    @method
    def frame(self) -> Any:
        """Return what does not cross."""
        return {"table": DataFrame()}

    @method
    def number(self, z: complex, maybe: DeviceArray | None = None) -> list[Any]:
        """Take a complex number, and a handle or none."""
        return [abs(z), type(maybe).__name__]


def _bfloat16(count: int) -> Any:
    import ml_dtypes

    return np.arange(count).astype(ml_dtypes.bfloat16)
