"""An actor whose methods note what they are given, by their examples and by callers. Tests call it with the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from atomr_mp.interop.host import kept_by
from atomr_mp_workers import Actor, Batch, Context, DeviceArray, method


def described(value: Any) -> Any:
    """Return an argument's type, shape, sum, whether it may be written, and the type of its keeper."""
    if isinstance(value, list):
        return [described(each) for each in value]
    if isinstance(value, DeviceArray):
        return ["ref", value.dtype, list(value.shape), value.writable, float(value.array.sum())]
    if isinstance(value, np.ndarray):
        keeper = type(kept_by(value)).__name__
        return ["array", str(value.dtype), list(value.shape), value.flags.writeable, float(value.sum()), keeper]
    return [type(value).__name__, str(getattr(value, "dtype", value)), list(getattr(value, "shape", []))]


MIB: Final = 2**20 // 8
"""Numbers of float64 in a MiB."""

GIVEN: Final[dict[str, Callable[[], tuple[Any, ...] | dict[str, Any]]]] = {
    "large": lambda: (np.arange(17.0 * MIB), 2),
    "strided": lambda: (np.arange(34 * MIB, dtype=">f4")[::2],),
    "several": lambda: ([np.full(MIB // 10, float(number)) for number in range(200)],),
    "by_name": lambda: {"second": np.ones((17, MIB)), "first": np.ones(3, np.complex64)},
    "returned": lambda: (33 * MIB,),
    "streamed": lambda: (17 * MIB, 3),
    "batched": lambda: (np.ones(17 * MIB),),
    "written": lambda: (np.ones(17 * MIB), np.ones(17 * MIB)),
    "handled": lambda: {"target": np.ones((3, 5), np.float16)},
    "without": lambda: (None,),
}
"""Arguments of the methods of `Alike`, of more bytes than a message takes where that matters."""

BY_REF: Final[dict[str, list[int | str]]] = {"written": [0], "handled": ["target"]}
"""Which of these a caller puts on the device first."""


class Alike(Actor):
    """Notes what it is given, by examples and by callers."""

    def setup(self, context: Context) -> None:
        """Begin to note."""
        self._context = context
        self._notes: dict[bool, dict[str, Any]] = {True: {}, False: {}}

    def _note(self, name: str, *given: Any) -> None:
        self._notes[self._context.warming][name] = [described(each) for each in given]

    @method
    def notes(self) -> list[dict[str, Any]]:
        """Return the notes of calls before this process was ready, and of those after."""
        return [self._notes[True], self._notes[False]]

    @method(example=GIVEN["large"])
    def large(self, array: NDArray[np.float64], number: int) -> None:
        """Take one large array."""
        self._note("large", array, number)

    @method(thread=True, example=GIVEN["strided"])
    def strided(self, array: NDArray[np.float32]) -> NDArray[np.float32]:
        """Take one with gaps, of the other byte order, and return it."""
        self._note("strided", array)
        return array

    @method(example=GIVEN["several"])
    def several(self, arrays: list[NDArray[np.float64]]) -> list[NDArray[np.float64]]:
        """Take arrays that are too much for a message only together, and return them."""
        self._note("several", arrays)
        return arrays

    @method(example=GIVEN["by_name"])
    def by_name(self, first: NDArray[np.complex64], second: NDArray[np.float64]) -> None:
        """Take arrays by name."""
        self._note("by_name", first.view(np.float32), second)

    @method(example=GIVEN["returned"])
    def returned(self, count: int) -> NDArray[np.float64]:
        """Return a large array."""
        self._note("returned", count)
        return np.ones(count)

    @method(thread=True, example=GIVEN["streamed"])
    def streamed(self, count: int, parts: int) -> Iterator[NDArray[np.float64]]:
        """Stream large arrays."""
        self._note("streamed", count, parts)
        for _ in range(parts):
            yield np.ones(count)

    @method(batch=Batch(max_items=4), example=GIVEN["batched"])
    def batched(self, arrays: list[NDArray[np.float64]]) -> list[NDArray[np.float64]]:
        """Take several at a time."""
        self._note("batched", arrays)
        return arrays

    @method(writes=["target"], example=GIVEN["written"])
    def written(self, target: NDArray[np.float64], source: NDArray[np.float64]) -> NDArray[np.float64]:
        """Write a buffer, and return it."""
        self._note("written", target, source)
        target += 1
        return target

    @method(example=GIVEN["handled"])
    def handled(self, target: DeviceArray) -> DeviceArray:
        """Take a buffer as it is."""
        self._note("handled", target)
        return target

    @method(example=GIVEN["without"])
    def without(self, target: DeviceArray | None) -> None:
        """Take none."""
        self._note("without", target)
