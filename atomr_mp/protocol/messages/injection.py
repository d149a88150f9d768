"""Faults that tests inject: which there are, where, and the files by which processes learn of them. Pure.

A fault that is to happen N times is N files in a directory, and whoever removes one has to carry it out: so it happens
N times in all, however many processes come by. `atomr_mp.testing` writes them; processes find the directory by an
environment variable that nobody else sets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Annotated, Final, Literal

import msgspec

from atomr_mp.protocol.decoders import json_decoder

DIRECTORY: Final = "_ATOMR_MP_FAULTS"
"""Environment variable that names the directory."""

Point = Literal[
    "import",
    "setup",
    "fill",
    "ready",
    "promotion",
    "decode",
    "borrow",
    "enqueue",
    "before_reply",
    "export",
    "world_join",
    "world_note",
    "world_publish",
    "world_meet",
    "world_leave",
    "allocate",
    "nvml",
    "disk",
]
"""Where a fault can happen, see `docs/testing.md`."""

Seconds = Annotated[float, msgspec.Meta(ge=0)]


class Kill(msgspec.Struct, frozen=True, tag=True):
    """A signal that the process sends to itself: SIGKILL, as the kernel does when memory runs out; or SIGSEGV."""

    signal: int = 9


class Exit(msgspec.Struct, frozen=True, tag=True):
    """An end without any last words, as by a library that calls `exit`."""

    status: int = 1


class Fail(msgspec.Struct, frozen=True, tag=True):
    """An exception: in an import, in `setup`, in the decoding of arguments, or in a method."""

    message: str = "on purpose"


class Poison(msgspec.Struct, frozen=True, tag=True):
    """A sticky fault of the device's context, which only a new process cures.

    On a GPU by a kernel that really goes wrong: 700 by an illegal address, 710 by an assertion, 716 by a misaligned
    address, 719 by a trap. It shows when the device comes to it, as such faults do. On the host backend
    `ContextPoisoned` is raised at once.
    """

    status: Literal[700, 710, 716, 719] = 700


class Hang(msgspec.Struct, frozen=True, tag=True):
    """Python code that does not return."""

    seconds: Seconds | None = None
    """How long; None for ever."""
    gil: bool = False
    """It keeps the interpreter's lock (the GIL), so that no other thread of the process runs either."""


class HangInKernel(msgspec.Struct, frozen=True, tag=True):
    """Work that the device does not finish: a kernel that spins; on the host backend C code, without the GIL."""

    seconds: Seconds | None = None


class FullDisk(msgspec.Struct, frozen=True, tag=True):
    """No space is left for what is written to the run directory."""


class NoMemory(msgspec.Struct, frozen=True, tag=True):
    """The device has no memory left for a slab, as when another process has it."""


Fault = Kill | Exit | Fail | Poison | Hang | HangInKernel | FullDisk | NoMemory


class Order(msgspec.Struct, frozen=True):
    """A fault, and where it is to happen."""

    at: Point
    fault: Fault
    device: int | None = None
    """The device; None for any."""
    generation: int | None = None
    """The incarnation; None for any."""
    of: str = ""
    """The request, "Actor.method", or the actor whose import and `setup` are meant; empty for any."""

    def fits(self, at: str, device: int | None, generation: int, of: str) -> bool:
        """Whether the fault happens at this place."""
        return (
            self.at == at
            and self.device in {None, device}
            and self.generation in {None, generation}
            and self.of in {"", of}
        )

    @property
    def problem(self) -> str:
        """Why this fault cannot happen at this point, in words; empty if it can."""
        if (self.at == "disk") != isinstance(self.fault, FullDisk):
            return "FullDisk happens at the point disk, and nothing else does"
        if (self.at == "allocate") != isinstance(self.fault, NoMemory):
            return "NoMemory happens at the point allocate, and nothing else does"
        if self.at == "nvml" and not isinstance(self.fault, Hang):
            return "at the point nvml, Hang is what can happen"
        if self.at == "import" and isinstance(self.fault, Poison | HangInKernel):
            return "while an actor is imported there is no context yet"
        return ""


def names(number: int, times: int | None) -> list[str]:
    """Return the names of an order's files. An order that holds until it is withdrawn has one, which stays."""
    return [f"{number:06}-always"] if times is None else [f"{number:06}-{each:06}" for each in range(times)]


def lasts(name: str) -> bool:
    """Whether a file belongs to an order that holds until it is withdrawn."""
    return name.endswith("-always")


def fired(name: str) -> str:
    """Return the pipe into which whoever carries a file's order out writes its pid before, as a line."""
    return f"{name.partition('-')[0]}.fired"


def found(
    directory: Iterable[str], read: Callable[[str], bytes], at: str, device: int | None, generation: int, of: str
) -> Iterator[tuple[str, Fault]]:
    """Yield the files whose orders are for this place, and their faults, oldest first.

    Args:
        directory: The names in the directory.
        read: Returns a file's content; raises FileNotFoundError if it has been removed.
        at: Where we are.
        device: The device; None if there is none, or none yet.
        generation: Its incarnation.
        of: The request, or the actor.
    """
    for name in sorted(directory):
        if "-" not in name:
            continue
        try:
            order = ORDER.decode(read(name))
        except FileNotFoundError:
            continue
        if order.fits(at, device, generation, of):
            yield name, order.fault


ORDER: Final = json_decoder(Order)
