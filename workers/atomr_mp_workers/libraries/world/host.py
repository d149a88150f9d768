"""The collectives of a world on the host backend, as steps of programs."""

from __future__ import annotations

from typing import Final

from atomr_mp_workers.libraries.world.base import WorldLibrary

Implementation: Final = WorldLibrary
