"""What a remote client's session may say, by its key."""

from __future__ import annotations

from typing import Final

import msgspec

from atomr_mp import errors
from atomr_mp.protocol.messages import operators, session, suspects
from atomr_mp.remote.keys import AdmittedKey


class SessionRights:
    """What a session of a key may say.

    Args:
        key: The key.
        origin: Names the session in the supervisor's records; None for an operator's.
    """

    def __init__(self, key: AdmittedKey, origin: session.RemoteOrigin | None) -> None:
        self.key: Final = key
        self._origin = origin

    def hello(self, said: session.Hello) -> session.Hello:
        """Return the hello that the supervisor gets."""
        return msgspec.structs.replace(
            said,
            observer=self._origin is None,
            shared_memory=self._origin is not None,
            weight=self.key.weight,
            origin=self._origin,
            slab_offers=False,
            probe=False,
        )

    def check(self, message: session.FromClient) -> None:
        """Refuse what the key may not say.

        Raises:
            AtomrError: Why.
            ProtocolError: No client says it here.
        """
        if isinstance(message, session.Hello):
            raise errors.ProtocolError("a session has one hello")
        if isinstance(message, operators.StopRequest):
            raise errors.Unsupported("a pool is stopped on its own machine (`atomr-mp stop`)")
        if isinstance(message, operators.ReadKeys):
            raise errors.NotAuthorized("keys are admitted and revoked on the pool's own machine (`atomr-mp keys`)")
        if not isinstance(message, ALLOWED) and not self.key.operate:
            raise errors.NotAuthorized(f"key {self.key.name} may not give orders (`keys admit --operate`)")


ALLOWED: Final = (
    operators.StatusRequest
    | operators.InventoryRequest
    | operators.ListResidents
    | session.OpenSlab
    | session.RegisterSlab
    | session.ForgetSlab
    | session.LendSlab
    | suspects.Suspect
    | suspects.Acquit
    | session.Reach
    | session.ResultsRead
    | session.Bye
)
"""What every key may say; the rest are orders."""
