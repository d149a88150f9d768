"""cuRAND's generators, each set to the place where a request's numbers begin."""

from __future__ import annotations

from typing import Final

from nvmath.bindings import curand

from atomr_mp.protocol.libraries import rng

TYPES: Final = {
    "philox4_32_10": curand.RngType.PSEUDO_PHILOX4_32_10,
    "xorwow": curand.RngType.PSEUDO_XORWOW,
    "mrg32k3a": curand.RngType.PSEUDO_MRG32K3A,
    "sobol32": curand.RngType.QUASI_SOBOL32,
    "scrambled_sobol32": curand.RngType.QUASI_SCRAMBLED_SOBOL32,
    "sobol64": curand.RngType.QUASI_SOBOL64,
    "scrambled_sobol64": curand.RngType.QUASI_SCRAMBLED_SOBOL64,
}

KEPT: Final = 8
"""Generators of a kind, each with a seed: this many can take turns without new seeding."""


class _Made:
    """A generator.

    Args:
        handle: cuRAND's.
        seed: Its seed.
    """

    def __init__(self, handle: int, seed: int) -> None:
        self.handle: Final = handle
        self.seed: Final = seed
        self.at: int | None = None
        """The offset at which it continues by itself; None if that is unknown."""


class Generators:
    """The generators of a library. They stay until the process ends.

    Args:
        stream: Address of the stream that they use.
    """

    def __init__(self, stream: int) -> None:
        self._stream = stream
        self._made: dict[tuple[str, int], list[_Made]] = {}
        self._spares: Final[dict[str, int]] = {}
        """Handles that have no seed yet, by kind."""

    def make_spare(self, kind: str) -> None:
        """Make a generator beforehand, which gets its seed from the first request."""
        if kind not in self._spares:
            self._spares[kind] = curand.create_generator(TYPES[kind])

    def generate(self, source: rng.Source, address: int, count: int, moves: int) -> None:
        """Have words written.

        Args:
            source: The kind, the seed and the offset.
            address: The address to write to.
            count: Number of words, each with the generator's bits.
            moves: How far they move the generator.
        """
        made = self._find(source)
        if made.at != source.offset:
            made.at = None
            curand.set_generator_offset(made.handle, source.offset)
        made.at = None  # unless it succeeds
        generate = curand.generate_long_long if source.word_bits == 64 else curand.generate
        generate(made.handle, address, count)
        made.at = source.offset + moves

    def _find(self, source: rng.Source) -> _Made:
        """Return a generator with this seed, and put it last in its kind, as the latest used."""
        of_kind = self._made.setdefault((source.kind, source.dimensions), [])
        found = next((each for each in of_kind if each.seed == source.seed), None)
        if found is not None:
            of_kind.remove(found)
        elif len(of_kind) < KEPT:
            found = self._make(source)
        else:
            found = _Made(of_kind.pop(0).handle, source.seed)
            self._set(found, source)
        of_kind.append(found)
        return found

    def _make(self, source: rng.Source) -> _Made:
        made = _Made(self._spares.pop(source.kind, 0) or curand.create_generator(TYPES[source.kind]), source.seed)
        self._set(made, source)
        return made

    def _set(self, made: _Made, source: rng.Source) -> None:
        """Set the parameters of a generator's words; a generator that cannot be set is destroyed and forgotten."""
        try:
            curand.set_stream(made.handle, self._stream)
            if source.is_quasi:
                curand.set_quasi_random_generator_dimensions(made.handle, source.dimensions)
            else:
                curand.set_pseudo_random_generator_seed(made.handle, source.seed)
        except BaseException:
            curand.destroy_generator(made.handle)
            raise
