"""The text form of a list of devices behind an actor: "0+2", "0-3", "0-1+6". Pure.

No comma: lists in environment variables have that between their items.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from atomr_mp import errors
from atomr_mp.protocol import amounts
from atomr_mp.protocol.codec import MAX_DEVICES

_PART: Final = re.compile(r"([0-9]{1,5})(?:-([0-9]{1,5}))?", re.ASCII)

_ALONE: Final = re.compile(r"[0-9][0-9+-]*", re.ASCII)
"""A list of devices, or a part of one, as far as it can be distinguished from an actor."""


def check_place(actor: str, location: str) -> None:
    """Check that a list of devices is where it belongs: behind the class.

    Args:
        actor: The actor as it is named, for the error.
        location: What is before the class.

    Raises:
        ConfigurationError: It stands alone, cut off by a comma, or before the class.
    """
    if _ALONE.fullmatch(actor):
        raise errors.ConfigurationError(
            f"{actor!r} names devices and no actor; several of an actor are joined by +, as in file.py:Class@0+1"
        )
    file, at, behind = location.rpartition("@")
    if at and _ALONE.fullmatch(behind):
        cls = actor.rpartition(":")[2]
        raise errors.ConfigurationError(
            f"{actor!r}: the devices come last, behind the class; write {file}:{cls}@{behind}"
        )


def devices_in(actor: str, text: str) -> tuple[int, ...]:
    """Return the devices that a text names, in order.

    Args:
        actor: The actor that they are of, for the error.
        text: The text behind the "@".

    Raises:
        ConfigurationError: It names none, or what can be no device.
    """
    found: set[int] = set()
    for part in text.split("+"):
        matched = _PART.fullmatch(part.strip())
        if matched is None:
            raise errors.ConfigurationError(
                f"{actor!r}: behind the @ are the devices that have the actor, as 0+1 or 0-3, and not {text!r}"
            )
        first = int(matched[1])
        last = int(matched[2] or first)
        if not first <= last < MAX_DEVICES:
            raise errors.ConfigurationError(
                f"{actor!r}: {part.strip()} names no devices; they are numbered from 0, and a pool has at most "
                f"{MAX_DEVICES}"
            )
        found.update(range(first, last + 1))
    return tuple(sorted(found))


def text_of(devices: Any) -> str:
    """Return the text that names devices.

    Raises:
        InvalidRequest: It is no list, there are none, or one is no whole number from 0 to 63.
    """
    if isinstance(devices, str | bytes | Mapping) or not isinstance(devices, Iterable):
        raise errors.InvalidRequest(f"devices must be a list of whole numbers, such as [0, 1]; got {devices!r}")
    found = sorted({amounts.whole("devices", device, 0, MAX_DEVICES - 1) for device in devices})
    if not found:
        raise errors.InvalidRequest("devices names no device; leave it out for an actor that all devices have")
    return "+".join(map(str, found))
