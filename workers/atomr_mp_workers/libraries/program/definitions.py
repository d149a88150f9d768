"""Definitions of programs as their runs bring them, or name those that were brought before."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from atomr_mp import errors
from atomr_mp.protocol.libraries import program
from atomr_mp_workers.libraries.kernels.rights import check_program
from atomr_mp_workers.libraries.weights import UNKNOWN
from atomr_mp_workers.memory.blocks import Holder

SHORT_BYTES: Final = 2**14
"""Largest definition that is run at once like other small requests: some hundred steps, in a few ms."""
STEP_WEIGHT: Final = 16
"""Bytes as which each further byte of a definition counts."""


def recall(request: program.RunProgram, holder: Holder) -> program.RunProgram:
    """Return a run with the definition of its program: one that was sent before, or is kept from now on.

    Raises:
        InvalidRequest: The digest is of another definition, or the program is too long to keep.
        ProgramUnseen: No such program has been told in this session.
        KernelsForbidden: It launches kernels, which the session may not.
    """
    found = _recalled(request, holder)
    check_program(found, holder)
    return found


def _recalled(request: program.RunProgram, holder: Holder) -> program.RunProgram:
    if not request.program:
        told, definition = holder.programs.get(request.place, (None, b""))
        if told != request.digest:
            raise errors.ProgramUnseen(f"there is no such program in place {request.place}: send it as a whole")
        return msgspec.structs.replace(request, program=definition)
    if not request.digest and request.place < 0:
        return request
    digest = program.digest(request.program)
    if request.digest not in (b"", digest):
        raise errors.InvalidRequest("the program that is sent has another digest")
    if request.place >= 0:
        if len(request.program) > program.KEPT_BYTES:
            raise errors.InvalidRequest(
                f"the program takes {len(request.program)} bytes; at most {program.KEPT_BYTES} are kept: send it "
                "with place -1"
            )
        holder.programs[request.place] = digest, request.program
    return request


def weigh(arguments: tuple[Any, ...]) -> int:
    """Return the bytes that a run's steps count for: many steps hold up the loop, however small they are, as does one.

    Nobody knows how many rounds a loop will do.
    """
    request, _, plan = arguments
    if request.varies or plan.has_failed:
        return UNKNOWN
    return STEP_WEIGHT * max(0, len(request.program) - SHORT_BYTES) + int(plan.get().weight)


def is_in_parts(request: program.RunProgram) -> bool:
    """Return whether a run lets others have their turn amid it."""
    return request.varies
