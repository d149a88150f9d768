"""Programs on the CUDA backend."""

from __future__ import annotations

from typing import Final

from atomr_mp_workers.libraries.program.base import ProgramLibrary

Implementation: Final = ProgramLibrary
