"""How much one round measures. Pure."""

from __future__ import annotations

from dataclasses import dataclass

KILLS = 10
"""Fewest kills of a run, over all its rounds."""


@dataclass(frozen=True)
class Sizes:
    """How much one round measures."""

    warm_up: int
    """Calls before any that are timed."""
    calls: int
    """Calls one after another."""
    flight_calls: int
    """Calls with `window` in flight."""
    clients_s: float
    """How long several clients call at the same time."""
    imports: int
    """Interpreters started, of each kind."""
    kills: int
    """Workers killed, of each kind."""
    embed_s: float
    """How long texts are embedded, of each kind."""
    signal_s: float
    """How long calls are made with a signal on, at a time."""
    backend: str = "host"
    """What the model runs on: "host" or "cuda"."""
    window: int = 64
    payload_bytes: int = 64
    clients: int = 4
    """Client processes at the same time."""

    @classmethod
    def of(cls, rounds: int, *, quick: bool, backend: str, kills: int | None = None) -> Sizes:
        """Return the sizes for a run of so many rounds; `kills` of a round, if they are to be more than usual."""
        if kills is None:
            kills = max(4, -(-KILLS // rounds))
        if quick:
            return cls(200, 2000, 10_000, 0.7, 5, kills, 6.0, 0.5, backend)
        return cls(500, 5000, 20_000, 2.0, 10, kills, 15.0, 1.0, backend)
