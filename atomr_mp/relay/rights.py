"""The hello of a remote client, with its key's rights in place of its own words. The supervisor enforces them."""

from __future__ import annotations

from typing import Final

import msgspec

from atomr_mp.protocol.messages import session
from atomr_mp.protocol.messages.tunnel import ChannelKind
from atomr_mp.remote.keys import AdmittedKey


class SessionRights:
    """The rights of a session.

    Args:
        key: Its key.
        kind: Whether it may call.
    """

    def __init__(self, key: AdmittedKey, kind: ChannelKind) -> None:
        self.key: Final = key
        self._kind = kind
        self._origin = session.RemoteOrigin(key.name, key.operate, key.kernels)

    def hello(self, said: session.Hello) -> session.Hello:
        """Return the hello that the supervisor gets."""
        calls = self._kind is ChannelKind.SESSION
        return msgspec.structs.replace(
            said,
            observer=not calls,
            shared_memory=calls,
            weight=self.key.weight,
            origin=self._origin,
            slab_offers=False,
            probe=False,
        )
