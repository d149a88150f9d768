"""An actor that wants to end the process with itself."""

from __future__ import annotations

import sys

from atomr_mp_workers import Actor, method


class Ending(Actor):
    """Others are there too."""

    def teardown(self) -> None:
        """Do as a program does at its end."""
        sys.exit(5)

    @method
    def nothing(self) -> None:
        """Do nothing."""
