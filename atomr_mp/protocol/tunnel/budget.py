"""How many channels a key and a session may have at the relay, and how large their windows are. Pure.

Everything is counted when a channel opens, and until its client has all of it: so neither channels that are just
opening nor ended ones that nobody reads are free. A window bounds what the relay keeps of a channel, and the windows of
a key together are bounded by its `--max-bytes`; a channel beyond that opens with a small window, and is slower.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, Final, NamedTuple

from atomr_mp import errors
from atomr_mp.protocol.messages.tunnel import ChannelKind
from atomr_mp.protocol.tunnel.flow import SMALL_WINDOW, WINDOWS

MOST: Final = {ChannelKind.LANE: 4096, ChannelKind.MEMORY: 4}
"""Most channels of a session: as many lanes as a client may have, to some devices and their standbys."""

SESSIONS: Final = frozenset({ChannelKind.SESSION, ChannelKind.OPERATOR})


class KeyLimits(NamedTuple):
    """What a key may have."""

    name: str
    sessions: int
    max_bytes: int


class ChannelGrant(NamedTuple):
    """A channel that was admitted."""

    key: str
    kind: ChannelKind
    session: bytes
    """The name of the session to which it belongs."""
    window: int
    """Most bytes that may be under way in each direction."""


class KeyBudgets:
    """The channels of all keys.

    Args:
        max_sessions: Most sessions of a kind, of all keys together.
    """

    def __init__(self, max_sessions: int) -> None:
        self._max_sessions = max_sessions
        self._taken: Final[Counter[str]] = Counter()
        """Bytes of all windows, by key."""
        self._sessions: Final[Counter[tuple[str, ChannelKind]]] = Counter()
        self._channels: Final[Counter[tuple[bytes, ChannelKind]]] = Counter()

    def admit(self, key: KeyLimits, kind: ChannelKind, session: bytes) -> ChannelGrant:
        """Count a channel from now on.

        Raises:
            Overloaded: The key, the pool or the session has as many as it may.
        """
        if kind in SESSIONS:
            self._check_sessions(key, kind)
            self._sessions[key.name, kind] += 1
        else:
            if self._channels[session, kind] >= MOST[kind]:
                raise errors.Overloaded(f"this session has {MOST[kind]} connections of its kind ({kind})")
            self._channels[session, kind] += 1
        wanted = WINDOWS[kind]
        window = wanted if self._taken[key.name] + wanted <= key.max_bytes else min(wanted, SMALL_WINDOW)
        self._taken[key.name] += window
        return ChannelGrant(key.name, kind, session, window)

    def release(self, grant: ChannelGrant) -> None:
        """Count a channel no more."""
        self._taken.subtract({grant.key: grant.window})
        if not self._taken[grant.key]:
            del self._taken[grant.key]
        if grant.kind in SESSIONS:
            _count_down(self._sessions, (grant.key, grant.kind))
        else:
            _count_down(self._channels, (grant.session, grant.kind))

    def _check_sessions(self, key: KeyLimits, kind: ChannelKind) -> None:
        of_key = self._sessions[key.name, kind]
        of_kind = sum(count for (_, each), count in self._sessions.items() if each is kind)
        if of_key >= key.sessions or of_kind >= self._max_sessions:
            raise errors.Overloaded(
                f"key {key.name} has {of_key} sessions of {key.sessions}, the pool {of_kind} of {self._max_sessions}: "
                "close some, or allow more",
                retry_after_s=1.0,
            )


def _count_down(counts: Counter[Any], of: object) -> None:
    counts[of] -= 1
    if not counts[of]:
        del counts[of]
