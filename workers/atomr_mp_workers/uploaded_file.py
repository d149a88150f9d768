"""A file that came by HTTP, as an argument of a method. Pure."""

from __future__ import annotations

import msgspec


class UploadedFile(msgspec.Struct, frozen=True):
    """A file with what the client says of it, for a parameter that is annotated so.

    A method with plain `bytes` gets the content alone. In a call from Python, or in JSON, it is a map with these keys.
    """

    content: bytes
    """Everything that is in it."""
    filename: str = ""
    """Its name as the client says: any text. Never open a file by it."""
    content_type: str = ""
    """Its media type as the client says, unchecked."""
