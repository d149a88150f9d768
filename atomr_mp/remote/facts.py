"""What a remote call is, beside its reply."""

from __future__ import annotations

from typing import NamedTuple

from atomr_mp.protocol.messages import remote
from atomr_mp.protocol.refs import WireRef
from atomr_mp.remote.blobs import Encoded, EncodedBlob


class Facts(NamedTuple):
    """What a call is, beside its reply."""

    refs: list[WireRef]
    nbytes: int
    """Of its body and payload frames."""
    blob: EncodedBlob | None = None
    """They, if the gateway is to pull them."""
    encoded: Encoded | None = None
    """What the blob was made of."""

    @classmethod
    def of(cls, encoded: Encoded, refs: list[WireRef]) -> Facts:
        """Return what a call is that is encoded."""
        if encoded.nbytes <= remote.MAX_CALL_BYTES:
            return cls(refs, encoded.nbytes)
        blob = encoded.blob()
        return cls(refs, blob.nbytes, blob, encoded)

    @classmethod
    def of_stream(cls, encoded: Encoded, refs: list[WireRef]) -> Facts:
        """Return what the request of a stream is, which may be encoded again."""
        return cls.of(encoded, refs)._replace(encoded=encoded)

    @property
    def message_bytes(self) -> int:
        """What it takes in a message."""
        return self.nbytes if self.blob is None else 0
