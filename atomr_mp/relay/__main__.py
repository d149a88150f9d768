"""The relay's program. Arguments: the supervisor's pid, and `RelaySettings` as JSON."""

from __future__ import annotations

import logging
import sys
from typing import Final

import msgspec

from atomr_mp import output
from atomr_mp.process import heap
from atomr_mp.process.prctl import die_with_parent
from atomr_mp.protocol.decoders import known
from atomr_mp.protocol.messages.relay import RelaySettings
from atomr_mp.relay.server import Relay

KEPT_BYTES: Final = 16 * 2**20
"""Freed memory that is kept: some packets are always on their way."""

BLOCK_BYTES: Final = 2**20
"""Several packets of 256 KiB, each with its head."""


def main() -> int:
    """Serve until the supervisor ends, or orders the end."""
    parent = int(sys.argv[1])
    die_with_parent(parent)
    heap.keep(KEPT_BYTES, BLOCK_BYTES)
    output.protect()
    logging.basicConfig(format="%(asctime)s %(name)s %(levelname)s %(message)s", level=logging.WARNING)
    return Relay(msgspec.json.decode(sys.argv[2].encode(), type=known(RelaySettings))).serve()


if __name__ == "__main__":
    sys.exit(main())
