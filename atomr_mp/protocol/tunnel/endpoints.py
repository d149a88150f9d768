"""What a remote client gets in the place of an incarnation's address: its device and generation. Pure."""

from __future__ import annotations

from typing import Final, NamedTuple

from atomr_mp import errors

SCHEME: Final = "tunnel://"


class CarriedEndpoint(NamedTuple):
    """The incarnation to which a lane connects."""

    device: int
    generation: int


def carried(device: int, generation: int) -> str:
    """Return the address of an incarnation for a remote client."""
    return f"{SCHEME}{device}/{generation}"


def parse(endpoint: str) -> CarriedEndpoint:
    """Return the incarnation of such an address.

    Raises:
        ProtocolError: The text is not such an address.
    """
    device, _, generation = endpoint.removeprefix(SCHEME).partition("/")
    if not endpoint.startswith(SCHEME) or not (device.isdecimal() and generation.isdecimal()):
        raise errors.ProtocolError(f"{endpoint!r} is not the address of a worker behind a relay")
    return CarriedEndpoint(int(device), int(generation))
