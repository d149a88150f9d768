"""The arguments of a gang call: encoded once, for all parts and all attempts.

A large array is copied into shared memory once. Each part names it by a number of its own, since each worker gives it
back by that number.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from atomr_mp import errors
from atomr_mp.protocol import values
from atomr_mp.protocol.refs import ClientArray, WireRef


class GangArguments(NamedTuple):
    """The arguments of a gang call."""

    body: bytes
    payload: Sequence[values.Buffer]
    placed: dict[int, Any]
    """Arrays in shared memory, by number. They stay as long as the call may be sent."""

    @property
    def window_bytes(self) -> int:
        """Most bytes that a part takes in a window."""
        return len(self.body) + 8 * len(self.placed) + sum(map(len, self.payload))

    @property
    def nbytes(self) -> int:
        """Bytes of all arguments, with those in shared memory."""
        copied: int = sum([each.nbytes for each in self.placed.values()])
        return self.window_bytes + copied

    def for_part(
        self, place_again: Callable[[Any], values.PlacedArray | None]
    ) -> tuple[bytes, Sequence[values.Buffer], Sequence[values.PlacedArray]]:
        """Return the arguments of one more part: body, frames, and arrays in shared memory.

        Args:
            place_again: Names an array that lies in shared memory once more; None for any other. It copies nothing.
        """
        if not self.placed:
            return self.body, self.payload, ()
        return values.encode(self.decoded(), place_again)

    def decoded(self) -> object:
        """Return the arguments; arrays in shared memory are not copied."""
        return values.Decoder[Any](writable=False).decode(self.body, self.payload, self._resolve)

    def _resolve(self, wire: WireRef | ClientArray) -> object:
        assert isinstance(wire, ClientArray)
        return self.placed[wire.id].array


def encoded(method: str, arguments: object, place: Callable[[Any], values.PlacedArray | None]) -> GangArguments:
    """Encode the arguments of a gang call.

    Args:
        method: "Actor.method".
        arguments: A sequence by position, or a mapping by name.
        place: Copies an array into shared memory.

    Raises:
        InvalidRequest: They cannot be sent, or there is a ref among them.
    """
    body, payload, placed = values.encode(arguments, place)
    wires = [each.to_wire() for each in placed]
    arrays = [wire for wire in wires if isinstance(wire, ClientArray)]
    if len(arrays) < len(wires):
        raise errors.InvalidRequest(
            f"a ref among the arguments of {method}: a ref lives on one device, and a call of a world goes to several; "
            "give the values, for example by `ref.numpy()`"
        )
    return GangArguments(body, payload, {wire.id: each for wire, each in zip(arrays, placed, strict=True)})
