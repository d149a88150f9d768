"""Words of messages for a person: numbers with their nouns, and what a misspelt name may mean. Pure."""

from __future__ import annotations

import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

MAX_SHOWN_CHARS: Final = 400
"""How much of a value a message quotes."""

OTHER_WORDS: Final = {
    "cpu": ("host",),
    "numpy": ("host",),
    "gpu": ("gpus", "cuda", "device"),
    "nvidia": ("cuda",),
    "devices": ("gpus",),
    "workers": ("gpus",),
    "num_gpus": ("gpus",),
    "num_workers": ("gpus",),
    "processes": ("gpus",),
    "timeout": ("timeout_s", "deadline_s", "start_timeout_s"),
    "timeout_s": ("deadline_s", "start_timeout_s"),
    "deadline": ("deadline_s", "timeout_s"),
    "deadline_s": ("timeout_s",),
    "name": ("pool",),
    "max_in_flight": ("in_flight",),
    "chunksize": ("batch_size",),
    "retries": ("attempts", "max_replays"),
}
"""Words of other libraries, each with our own words for it. The first of these that fits the place is meant."""


def counted(count: int, noun: str, several: str = "") -> str:
    """Return "1 device", "2 devices".

    Args:
        count: How many.
        noun: What, if it is one.
        several: What, if it is not one; by default the noun with an s.
    """
    return f"{count:,} {noun if count == 1 else several or noun + 's'}"


def shown(value: object) -> str:
    """Return a value as Python writes it, or both ends of that if it is long: it may be whatever a caller has given."""
    try:
        text = repr(value)
    except ValueError:  # a whole number of more digits than Python writes
        return f"a {type(value).__name__} of too many digits"
    if len(text) <= MAX_SHOWN_CHARS:
        return text
    half = MAX_SHOWN_CHARS // 2
    return f"{text[:half]} [... {len(text) - 2 * half} characters ...] {text[-half:]}"


def rate(count: int, seconds: float) -> float:
    """Return thousands of millions a second, by four digits: GFLOP/s of operations, GB/s of bytes."""
    return float(f"{count / seconds / 1e9:.4g}")


def these_devices(devices: Sequence[int]) -> str:
    """Return "device 0", "devices 0 and 1", "devices 0, 1 and 2"."""
    *first, last = map(str, devices)
    return f"devices {', '.join(first)} and {last}" if first else f"device {last}"


def place_of(gpu: int, worker: int, workers_per_gpu: int) -> str:
    """Return "GPU 1, worker 0" for a device of a GPU that has several; else nothing, since the two have one number."""
    return f"GPU {gpu}, worker {worker}" if workers_per_gpu > 1 else ""


def device_words(event: Mapping[str, object]) -> str:
    """Return the device of an event, "device 3 generation 2", with its GPU and worker if the event has them."""
    place = f" (GPU {event['gpu']}, worker {event['worker']})" if "worker" in event else ""
    return f"device {event['device']}{place} generation {event.get('generation')}"


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return "; did you mean NAME?", or nothing if no known name is like this one."""
    import difflib  # late: only a mistake needs it

    by_lower = {each.lower(): each for each in known}
    for other in OTHER_WORDS.get(name.lower().strip("-").replace("-", "_"), ()):
        if other in by_lower:
            return f"; did you mean {other}?"
    begun = [each for each in by_lower if len(name) > 2 and each.startswith(name.lower())]
    found = sorted(begun, key=len) or difflib.get_close_matches(name.lower(), by_lower, n=1)
    return f"; did you mean {by_lower[found[0]]}?" if found else ""


def not_among(name: str, value: object, known: Iterable[object]) -> str:
    """Return the words for a parameter with a value that it cannot have, with the values that it can have.

    Args:
        name: The parameter.
        value: The wrong value.
        known: The right ones.
    """
    found = list(known)
    hint = did_you_mean(value, [each for each in found if isinstance(each, str)]) if isinstance(value, str) else ""
    return f"{name} is {shown(value)}; it must be one of {', '.join(map(str, found))}{hint}"


def choices(hint: Any) -> list[Any]:
    """Return the values that a type admits, if it names each of them; else none."""
    if typing.get_origin(hint) is typing.Literal:
        return list(typing.get_args(hint))
    if typing.get_origin(hint) in {typing.Union, types.UnionType}:
        return [each for part in typing.get_args(hint) for each in choices(part)]
    return []
