"""Runs a target for a time, and keeps what it finds."""

from __future__ import annotations

import contextlib
import hashlib
import random
import time
import traceback
from pathlib import Path
from typing import Final, NamedTuple

from fuzzing.bounds import TooSlowError, bounded
from fuzzing.target import Target

KEPT: Final = 64
"""Inputs that later ones are made of, beside new valid ones."""

KEPT_BYTES: Final = 2**14
"""Longest of them, since changes of changes grow."""

MOST_SLOW: Final = 3
"""Checks that may take too long before a target is tried no further: each takes seconds."""

TRACE_LINES: Final = 16


class Find(NamedTuple):
    """An input that the code does not bear."""

    data: bytes
    why: str
    """The exception, and where it was raised."""
    place: str
    """What tells kinds of finds apart: the exception's type, and the line that raised it."""


def fuzz(
    target: Target, seed: int, *, seconds: float | None = None, count: int | None = None
) -> tuple[int, list[Find]]:
    """Check random inputs; return how many, and one find of each kind.

    Args:
        target: The target.
        seed: Decides about all inputs.
        seconds: How long; None for no limit.
        count: How many inputs; None for no limit.
    """
    rng = random.Random(f"{target.name} {seed}")
    until_s = None if seconds is None else time.monotonic() + seconds
    kept = [target.make(rng)]
    finds: dict[str, Find] = {}
    done = slow = 0
    while slow < MOST_SLOW and (count is None or done < count) and (until_s is None or time.monotonic() < until_s):
        base = target.make(rng) if rng.random() < 0.5 else rng.choice(kept)
        data = base if rng.random() < 0.05 else target.mutate(rng, base)
        found = attempt(target, data)
        done += 1
        if found is not None:
            finds.setdefault(found.place, found)
            slow += found.place.startswith(TooSlowError.__name__)
        elif len(data) <= KEPT_BYTES and len(kept) < KEPT:
            kept.append(data)
        elif len(data) <= KEPT_BYTES:
            kept[rng.randrange(KEPT)] = data
    return done, list(finds.values())


def replay(target: Target, corpus: Path) -> tuple[int, list[Find]]:
    """Check the inputs that were found before; return how many, and the finds."""
    paths = sorted((corpus / target.name).glob("*"))
    found = [attempt(target, path.read_bytes()) for path in paths]
    return len(paths), [find for find in found if find is not None]


def keep(target: Target, corpus: Path, find: Find) -> Path:
    """Write a find's input into the corpus; return where."""
    path = corpus / target.name / hashlib.sha256(find.data).hexdigest()[:16]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(find.data)
    return path


def attempt(target: Target, data: bytes) -> Find | None:
    """Check one input."""
    try:
        with contextlib.nullcontext() if target.is_live else bounded():
            target.check(data)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is what is looked for
        last = traceback.extract_tb(error.__traceback__)[-1]
        lines = "".join(traceback.format_exception(error)).splitlines()[-TRACE_LINES:]
        return Find(data, "\n".join(lines), f"{type(error).__name__} {last.filename}:{last.lineno}")
    return None
