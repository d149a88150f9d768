"""Limits on the size of a call or reply, and on how far a stream may run ahead of its reader. Pure."""

from __future__ import annotations

from typing import Final

MAX_DEPTH: Final = 64
"""Deepest nesting of lists and maps in untyped arguments and in results."""

AROUND: Final = 2
"""Lists of messages that may be around a value: one of arguments or results, and one of items."""

MAX_BODY_BYTES: Final = 4 * 2**20
"""Largest body of a call or reply (its arguments or result without payload frames). Untyped decoding can take some
75 times the input's size, so this bounds what one message can allocate."""

MAX_FRAMES: Final = 255
"""Most payload frames of one call."""

MAX_PAYLOAD_BYTES: Final = 16 * 2**20
"""Most that the payload frames of one call or reply take. Larger arrays belong in shared memory."""

CLIENT_SLAB_BYTES: Final = 2**30
"""Most memory that a client takes for arrays of its calls."""

MAX_AHEAD: Final = 4096
"""Most parts for which a stream may have credit beyond those that were sent."""
