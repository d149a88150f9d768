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
        self,
        place: Callable[[Any], values.PlacedArray | None],
        rank: int = 0,  # noqa: ARG002 - all have the same arguments
    ) -> tuple[bytes, Sequence[values.Buffer], Sequence[values.PlacedArray]]:
        """Return the arguments of one more part: body, frames, and arrays in shared memory.

        Args:
            place: Names an array that lies in shared memory once more; None for any other. It copies nothing.
            rank: The rank of the part.
        """
        if not self.placed:
            return self.body, self.payload, ()
        return values.encode(self.decoded(), place)

    def decoded(self) -> object:
        """Return the arguments; arrays in shared memory are not copied."""
        return values.Decoder[Any](writable=False).decode(self.body, self.payload, self._resolve)

    def _resolve(self, wire: WireRef | ClientArray) -> object:
        assert isinstance(wire, ClientArray)
        return self.placed[wire.id].array


class RankArguments(NamedTuple):
    """The arguments of a collective on refs, which differ by rank. They are sent once."""

    parts: Sequence[values.Encoded]
    """By rank: body, frames, and refs."""

    @property
    def body(self) -> bytes:
        """The arguments of rank 0, which stand for those of all where only one may."""
        return self.parts[0][0]

    @property
    def window_bytes(self) -> int:
        """Most bytes that a part takes in a window."""
        return max(len(body) + sum(map(len, payload)) for body, payload, _ in self.parts)

    @property
    def nbytes(self) -> int:
        """Bytes of all arguments."""
        return self.window_bytes

    def for_part(
        self,
        place: Callable[[Any], values.PlacedArray | None],  # noqa: ARG002 - as `GangArguments`
        rank: int = 0,
    ) -> values.Encoded:
        """Return the arguments of a part."""
        return self.parts[rank]


def encoded_by_rank(
    rows: Sequence[tuple[Any, ...]], place: Callable[[Any], values.PlacedArray | None]
) -> RankArguments:
    """Encode the arguments of a collective on refs.

    Raises:
        InvalidRequest: They cannot be sent.
    """
    return RankArguments([values.encode(row, place) for row in rows])


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
