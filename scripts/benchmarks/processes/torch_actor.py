"""The actor that failovers are measured with of a process that has imported torch."""

from __future__ import annotations

import torch

from atomr_mp_workers import Actor, Context, method


class Echo(Actor):
    """Does as little as possible, where torch has been used: its threads and its mappings go with the process."""

    def setup(self, context: Context) -> None:  # noqa: ARG002 - not needed
        """Have torch start what it starts."""
        torch.ones(512, 512) @ torch.ones(512, 512)

    @method
    def empty(self) -> None:
        """Answer."""
