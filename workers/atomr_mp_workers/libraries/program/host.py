"""Programs on the host backend."""

from __future__ import annotations

from typing import Final

from atomr_mp.protocol.libraries import program
from atomr_mp_workers.libraries.program.base import ProgramLibrary
from atomr_mp_workers.libraries.program.preparation import Prepared
from atomr_mp_workers.libraries.weights import unshown_weight


class HostPrograms(ProgramLibrary):
    """Programs whose steps the host does."""

    def prepare_run(self, request: program.RunProgram) -> Prepared:
        """Prepare a program, with the weight that its heaviest step has here: the outputs of all steps are given."""
        prepared = super().prepare_run(request)
        unshown = max((unshown_weight(step.request, {}) for step in prepared.steps), default=0)
        return prepared._replace(weight=max(prepared.weight, unshown))


Implementation: Final = HostPrograms
