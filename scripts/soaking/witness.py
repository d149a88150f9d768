"""Tells what keeps slabs mapped in a worker, for a report of a slab that should be unmapped."""

from __future__ import annotations

import gc
import sys
import threading
import types
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator
from typing import Any, Final

import numpy as np

from atomr_mp.protocol.words import counted
from atomr_mp_workers import Actor, method
from atomr_mp_workers.device.host_memory import HostMemory, HostSlab

LONGEST: Final = 14
"""Most objects in a chain from a slab to whatever keeps it."""

MOST_CHAINS: Final = 12
"""Most chains that are shown."""


class Witness(Actor):
    """Looks at its process's objects. Asked only after a failed check."""

    @method(thread=True)
    def keepers(self) -> list[str]:
        """Return in words what keeps slabs of clients and of workers, and how many of them a collection frees."""
        gc.unfreeze()  # else what setup has made would not be found
        words, count = _told(), len(_slabs())
        gc.collect()
        return [f"of {counted(count, 'slab')} a collection frees {count - len(_slabs())}", *words]


def _slabs() -> list[HostMemory]:
    return [each for each in gc.get_objects() if type(each) in {HostMemory, HostSlab}]


def _told() -> list[str]:
    """Return the chains from all slabs to what keeps them."""
    words: list[str] = []
    slabs = _slabs()
    if slabs:
        kept_by = _keepers_of_all()
        for slab in slabs:
            kind = "own slab" if type(slab) is HostSlab else "slab of another process"
            words += [f"{kind} at {slab.address:#x}: {chain}" for chain in _chains(slab, kept_by, {id(slabs)})]
    return words


def _keepers_of_all() -> dict[int, list[Any]]:
    """Return the objects that refer to each object, by its id.

    The collector does not know NumPy's arrays, so they are found by what refers to them, and their bases by them.
    """
    kept_by: defaultdict[int, list[Any]] = defaultdict(list)
    arrays: dict[int, Any] = {}

    def note(keeper: Any, kept: Iterable[Any]) -> None:
        for each in kept:
            kept_by[id(each)].append(keeper)
            if isinstance(each, np.ndarray) and id(each) not in arrays:
                arrays[id(each)] = each
                note(each, [each.base])

    for each in gc.get_objects():
        if each is not kept_by and each is not arrays:
            note(each, gc.get_referents(each))
    for frame in _running_frames():
        note(frame, frame.f_locals.values())
    return kept_by


def _running_frames() -> Iterator[types.FrameType]:
    """Yield the frames of all other threads, which the collector does not know."""
    for thread, innermost in sys._current_frames().items():  # noqa: SLF001 - nothing else has them
        frame: types.FrameType | None = innermost if thread != threading.get_ident() else None
        while frame is not None:
            yield frame
            frame = frame.f_back


def _chains(start: Any, kept_by: dict[int, list[Any]], hidden: set[int]) -> list[str]:
    """Return the shortest chains from an object to what keeps it; each ends where an earlier one has been."""
    chains: list[str] = []
    waiting: deque[list[Any]] = deque([[start]])
    seen = {id(start), *hidden}
    while waiting and len(chains) < MOST_CHAINS:
        chain = waiting.popleft()
        further = [each for each in kept_by[id(chain[-1])] if id(each) not in seen]
        if not further or len(chain) == LONGEST:
            chains.append(" < ".join(map(_words, chain)))
            continue
        for each in further:
            seen.add(id(each))
            waiting.append([*chain, each])
    return chains


def _words(value: Any) -> str:
    """Return an object's kind and what distinguishes it, without running its own code."""
    kind = type(value).__name__
    if isinstance(value, types.FrameType):
        return f"frame of {value.f_code.co_qualname}, line {value.f_lineno}"
    if isinstance(value, types.CoroutineType | types.GeneratorType | types.FunctionType):
        return f"{kind} {value.__qualname__}"
    if isinstance(value, types.ModuleType):
        return f"module {value.__name__}"
    if isinstance(value, dict):
        return f"dict of {', '.join(str(key) for key in list(value)[:6] if isinstance(key, str))}"
    if isinstance(value, list | tuple | set):
        return f"{kind} of {len(value)}"
    name = getattr(getattr(value, "method", None), "name", "")
    return f"{kind} of {name}" if name else kind
