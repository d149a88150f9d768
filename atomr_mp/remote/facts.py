"""The facts of a remote call that its reply does not have."""

from __future__ import annotations

import msgspec

from atomr_mp.protocol.messages import remote
from atomr_mp.protocol.refs import WireRef
from atomr_mp.remote.blobs import Encoded, EncodedBlob


class Facts(msgspec.Struct, eq=False):
    """A call's size, blob and refs: facts that its reply does not have."""

    refs: list[WireRef]
    nbytes: int
    """Bytes of the body and the payload frames."""
    blob: EncodedBlob | None = None
    """The body and the payload frames, if the gateway pulls them."""
    encoded: Encoded | None = None
    """The value that the blob was made of."""

    @classmethod
    def of(cls, encoded: Encoded, refs: list[WireRef]) -> Facts:
        """Return the facts of an encoded call."""
        nbytes = encoded.nbytes
        if nbytes <= remote.MAX_CALL_BYTES:
            return cls(refs, nbytes)
        blob = encoded.blob()
        return cls(refs, blob.nbytes, blob, encoded)

    @classmethod
    def of_stream(cls, encoded: Encoded, refs: list[WireRef]) -> Facts:
        """Return the facts of a stream's request, which may be encoded again."""
        facts = cls.of(encoded, refs)
        facts.encoded = encoded
        return facts

    @property
    def message_bytes(self) -> int:
        """Bytes of the call in a message."""
        return self.nbytes if self.blob is None else 0
