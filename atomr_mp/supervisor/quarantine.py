"""Why nothing is to be started on a device: a process that does not end, or a GPU that needs a reset."""

from __future__ import annotations

from atomr_mp.supervisor.incarnation import Incarnation


class Quarantine:
    """What keeps a device from being used, as far as there is something.

    Attributes:
        stuck: Processes that were killed and have not ended; their requests have failed, their exit is awaited.
        sick: Why the GPU cannot be used, for a person; empty if it can, as far as is known.
        overruled: An operator wants a start in spite of all that.
    """

    def __init__(self) -> None:
        self.stuck: list[Incarnation] = []
        self.sick = ""
        self.overruled = False

    @property
    def reason(self) -> str:
        """Why nothing is started; empty if nothing is in the way."""
        if self.sick:
            return self.sick
        if self.stuck:
            pids = ", ".join(str(worker.pid) for worker in self.stuck)
            return (
                f"a killed worker has not ended (pid {pids}): it is stuck in the kernel, and nothing is started on its "
                "device before that has passed; see `dmesg`"
            )
        return ""

    def forbids(self) -> str:
        """Return why nothing may be started now, empty if it may; an operator's order holds once."""
        overruled, self.overruled = self.overruled, False
        return "" if overruled else self.reason
