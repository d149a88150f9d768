"""Asks the driver how the GPUs are: a process of its own, which the supervisor starts where there are GPUs.

What NVML is asked may take for ever, and a thread that is stuck in the driver would keep even a killed supervisor from
ending. So it is asked here, where nobody waits.
"""

from __future__ import annotations

import socket
import sys
import time
from typing import Final

from atomr_mp import output
from atomr_mp.process.gpus.health import Monitor
from atomr_mp.process.prctl import die_with_parent
from atomr_mp.protocol.messages.health import FROM_HEALTH, FromHealth
from atomr_mp.supervision.health import is_well

POLL_S: Final = 5.0
"""How often it is asked for what is no event."""


def main() -> int:
    """Report until the supervisor ends. Arguments: its pid, the descriptor to write to, POSITION=UUID of each GPU."""
    parent, descriptor = map(int, sys.argv[1:3])
    die_with_parent(parent)
    output.protect()
    uuids = {int(gpu): uuid for gpu, _, uuid in (each.partition("=") for each in sys.argv[3:])}
    channel = socket.socket(fileno=descriptor)

    def tell(message: FromHealth) -> None:
        channel.send(FROM_HEALTH.encode(message))

    while True:
        with Monitor(uuids) as monitor:
            for link in monitor.links():
                tell(link)
            well = True
            while well:
                for seen in monitor.wait(POLL_S):
                    tell(seen)
                states = list(monitor.states())
                for state in states:
                    tell(state)
                for taken in monitor.memory():
                    tell(taken)
                well = all(map(is_well, states))
        # Let go of: a GPU that somebody holds cannot be reset.
        time.sleep(POLL_S)


if __name__ == "__main__":
    sys.exit(main())
