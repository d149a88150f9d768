"""The globals of modules on the host backend: each module has its own, as on a GPU, though one array stands for all.

Functions that stand for kernels use an array of their own Python module. So the values of a loaded module are put into
it before one of the module's kernels runs, or a global is read or written; those of the module before are kept.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Iterator, Sequence
from typing import Any, Final

from atomr_mp_workers.libraries.kernels.modules import LoadedModule


class _StandIn:
    """An array that stands for globals.

    Args:
        array: The array, with the first values.
    """

    def __init__(self, array: Any) -> None:
        self._first: Final = array.copy()
        self._present: weakref.ref[LoadedModule] | None = None
        """The module whose values the array has."""
        self._kept: Final[weakref.WeakKeyDictionary[LoadedModule, Any]] = weakref.WeakKeyDictionary()
        """Values of other modules."""

    def put_in(self, array: Any, module: LoadedModule) -> None:
        """Give the array a module's values; first ones to a module that has none yet."""
        present = None if self._present is None else self._present()
        if present is module:
            return
        if present is not None:
            self._kept[present] = array.copy()
        array[...] = self._kept.pop(module, self._first)
        self._present = weakref.ref(module)


@contextlib.contextmanager
def globals_in_place(module: LoadedModule, arrays: Sequence[Any]) -> Iterator[None]:
    """Have the values of a module's globals in the arrays that stand for them. Blocks while another thread has."""
    if not arrays:
        yield
        return
    with _lock:
        for array in arrays:
            key = id(array)
            if key not in _stand_ins:
                _stand_ins[key] = _StandIn(array)
                weakref.finalize(array, _stand_ins.pop, key)
            _stand_ins[key].put_in(array, module)
        yield


_lock: Final = threading.RLock()
_stand_ins: Final[dict[int, _StandIn]] = {}
"""By the arrays' ids."""
