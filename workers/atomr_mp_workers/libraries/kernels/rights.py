"""Which sessions may use kernels of their own: the supervisor has said so when it introduced each.

What an actor does in its own code is not asked: whoever starts a pool has chosen its actors.
"""

from __future__ import annotations

from typing import TypeVar

from atomr_mp import errors
from atomr_mp.protocol.libraries import program
from atomr_mp.protocol.libraries.base import LibraryRequest
from atomr_mp.protocol.library_names import KERNELS
from atomr_mp_workers.compiling.compiler_process import confines
from atomr_mp_workers.memory.blocks import Holder

R = TypeVar("R", bound=LibraryRequest)


def admitted(request: R, holder: Holder) -> R:
    """Return a request of the library, if its session may make it.

    Raises:
        KernelsForbidden: It may not.
    """
    if holder.no_kernels:
        raise errors.KernelsForbidden(f"this client may not {request.name} kernels: {holder.no_kernels}")
    if holder.is_relayed and request.name != "launch" and not confines():
        raise errors.KernelsForbidden(
            f"this client may not {request.name} kernels: nothing confines the compiler on this machine, whose kernel "
            "has no Landlock, so it works for clients of the same machine only"
        )
    return request


def check_program(request: program.RunProgram, holder: Holder) -> None:
    """Check that a program launches no kernels, if its session may not.

    Args:
        request: A run with its definition.
        holder: The session's.

    Raises:
        KernelsForbidden: It does.
    """
    if not holder.no_kernels:
        return
    digest = request.digest or program.digest(request.program)
    if digest in holder.harmless:
        return
    try:
        definition = program.DEFINITIONS.decode(request.program)
    except errors.ProtocolError as error:
        raise errors.InvalidRequest(f"the program cannot be decoded: {error}") from error
    for number, step in enumerate(definition.steps):
        if step.library == KERNELS:
            raise errors.KernelsForbidden(
                f"this client may not run this program, whose step {number} is {step.name:.64}: {holder.no_kernels}"
            )
    if len(holder.harmless) >= program.PLACES:
        holder.harmless.clear()
    holder.harmless.add(digest)


def admitted_program(request: program.RunProgram, holder: Holder) -> program.RunProgram:
    """Return a run, see `check_program`."""
    check_program(request, holder)
    return request
