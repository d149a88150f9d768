"""Random numbers in a device's memory: `device.rng`."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, SupportsIndex

import msgspec

from atomr_mp import errors
from atomr_mp.libraries.base import LibraryDevice, check, whole
from atomr_mp.libraries.generated.rng import RngRequests
from atomr_mp.protocol.libraries import rng
from atomr_mp.protocol.refs import Operand
from atomr_mp.protocol.words import not_among

if TYPE_CHECKING:
    from numpy.typing import DTypeLike

    from atomr_mp.client.reply import Reply

LAST: Final = 2**63 - 1
"""The largest offset."""

QUASI: Final = tuple(kind for kind in rng.Kind.__args__ if "sobol" in kind)  # type: ignore[attr-defined]


class Generator(RngRequests):
    """A generator of random numbers, with NumPy's names. It keeps its own position; the device keeps none.

    Each request says where its numbers begin, and moves the generator on. So the numbers are the same whatever happens
    to the worker in between, and a generator made with the same kind, seed and offset continues there. Threads may
    share a generator; their order decides which of them gets which numbers. Requests of a program give the same numbers
    in every run.

    Args:
        device: The device that makes the numbers.
        source: The kind, the seed and the position.
    """

    def __init__(self, device: LibraryDevice, source: rng.Source) -> None:
        super().__init__(device)
        self._source = source
        self._first: Final = msgspec.structs.replace(source, offset=0)
        self._moving: Final = threading.Lock()

    def __repr__(self) -> str:
        source = self._source
        return f"<Generator {source.kind} seed={source.seed} offset={source.offset} dimensions={source.dimensions}>"

    @property
    def kind(self) -> rng.Kind:
        """The kind, by cuRAND's name."""
        return self._source.kind

    @property
    def seed(self) -> int:
        """The seed; 0 for a quasi-random generator, which has none."""
        return self._source.seed

    @property
    def offset(self) -> int:
        """How many words have been taken; for a quasi-random generator, how many points."""
        return self._source.offset

    @property
    def dimensions(self) -> int:
        """Dimensions of a quasi-random generator's points."""
        return self._source.dimensions

    def random(
        self,
        out: Operand | None = None,
        *,
        size: SupportsIndex | Sequence[SupportsIndex] | None = None,
        dtype: DTypeLike | None = None,
        deadline_s: float | None = None,
    ) -> Reply:
        """Draw uniform numbers in (0, 1]; see `uniform`."""
        return self.uniform(out, size=size, dtype=dtype, deadline_s=deadline_s)

    def generator(
        self,
        seed: SupportsIndex | None = None,
        kind: rng.Kind = "philox4_32_10",
        *,
        offset: SupportsIndex = 0,
        dimensions: SupportsIndex = 1,
    ) -> Generator:
        """Make a generator of this device.

        Args:
            seed: From 0 to 2⁶⁴ - 1; None takes one from the operating system. A quasi-random generator has none.
            kind: "philox4_32_10", "xorwow", "mrg32k3a", "sobol32", "scrambled_sobol32", "sobol64", "scrambled_sobol64".
                The host has philox4_32_10 and sobol32.
            offset: Where it begins: how many words to pass over, or points if it is quasi-random.
            dimensions: Dimensions of a quasi-random generator's points, and then the last length of `size`.

        Raises:
            InvalidRequest: There is no such generator.
            Unsupported: cuRAND has it, but it cannot begin at an offset.
        """
        kinds: Any = rng.Kind
        if str(kind) not in (*kinds.__args__, *rng.NO_OFFSET):  # an array is not compared, for one
            raise errors.InvalidRequest(not_among("kind", kind, kinds.__args__))
        if kind in rng.NO_OFFSET:
            raise errors.Unsupported(
                f"{kind} cannot be told where to begin, so that its state would be lost with the worker; the nearest "
                "that can is philox4_32_10"
            )
        if seed is None:
            seed = 0 if kind in QUASI else secrets.randbits(64)
        source = rng.Source(kind, whole("seed", seed), whole("offset", offset), whole("dimensions", dimensions))
        shape = (source.dimensions,) if source.dimensions else ()
        check(rng.Uniform(size=shape, source=source))
        return Generator(self._device, source)

    def _request(self, request: Any, deadline_s: float | None) -> Reply:
        request = self._taken(msgspec.structs.replace(request, source=self._first))
        check(request)  # at offset 0: further requests with another offset need no check
        taken = rng.taken(request)
        with self._moving:
            source = self._source
            if source.offset + taken > LAST:
                raise errors.InvalidRequest(f"{self!r} ends before {taken} more; make one with another seed")
            self._source = msgspec.structs.replace(source, offset=source.offset + taken)
        return self._device.request(self.library, msgspec.structs.replace(request, source=source), deadline_s)


class Rng(Generator):
    """Random numbers: `generator` makes a generator with a seed; this one has its seed from the operating system."""

    def __init__(self, device: LibraryDevice) -> None:
        super().__init__(device, rng.Source(seed=secrets.randbits(64)))


Reference: Final = Rng
