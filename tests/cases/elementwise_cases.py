"""Expected results of elementwise requests on every backend: NumPy's, in double precision or whole numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

from atomr_mp.protocol.libraries import elementwise, requests_of
from atomr_mp.protocol.libraries.base import LibraryRequest
from tests import declared
from tests.declared import Expected

Array = npt.NDArray[Any]

REQUESTS: Final = requests_of("elementwise")
SHAPES: Final = (((3,), (3,)), ((2, 1, 4), (3, 1)), ((), (5,)), ((4, 2), ()), ((0, 3), (1,)), ((2, 3), (2, 3)))


@st.composite
def requests(draw: st.DrawFn, cls: type[LibraryRequest]) -> Any:
    """Draw a request whose shapes can be broadcast."""
    made: Any = draw(declared.requests(cls, sizes={"_": ()}, shapes=shapes_of(cls, *draw(st.sampled_from(SHAPES)))))
    return made


def shapes_of(cls: type[LibraryRequest], one: tuple[int, ...], other: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    """Return shapes for the inputs of a request."""
    names = [name for name in ("condition", "x", "y") if name in cls.__struct_fields__]
    return dict(zip(names, (one, other, one), strict=False)) if len(names) > 1 else {}


def assert_agrees(request: Any, random: np.random.Generator, run: Callable[[LibraryRequest], Any]) -> None:
    """Give a request random numbers, have it done, and check all of its memory."""
    declared.assert_agrees(request, random, run, expected, fitting)


def fitting(request: Any, name: str, values: Array) -> Array:
    """Return numbers, some equal, and none negative where the type cannot be: whole ones, and halves."""
    types = getattr(request, name).dtype, getattr(request, "dtype", "")  # NumPy leaves open what -1.0 is as a uint8
    whole = np.round(values * 2) / 2
    if request.name == "divide" and name == "y" and types[0].startswith("complex"):
        whole = np.where(whole == 0, 1, whole)  # infinities or NaNs: C leaves open which
    return np.abs(whole) if any(dtype.startswith("uint") for dtype in types) else whole


def expected(request: Any, dense: dict[str, Array]) -> Expected:
    """Compute with NumPy."""
    with np.errstate(all="ignore"):
        if isinstance(request, elementwise.Cast):
            made: Any = dense["x"] if request.dtype.startswith(("complex", "bool")) else dense["x"].real
            made = made.astype(np.int64) if request.dtype.lstrip("u").startswith("int") else made
        elif isinstance(request, elementwise.ElementCopy):
            made = dense["x"]
        elif isinstance(request, elementwise.Where):
            made = np.where(dense["condition"].astype(bool), dense["x"], dense["y"])
        else:
            made = getattr(np, request.name)(*(dense[name] for name in ("x", "y") if name in dense))
        finite = np.abs(made[np.isfinite(made)])
    return Expected({"out": np.asarray(made)}, 1, float(finite.max(initial=1.0)))
