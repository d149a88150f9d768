"""Which sessions may use kernels of their own: the supervisor has said so when it introduced each.

What an actor does in its own code is not asked: whoever starts a pool has chosen its actors.
"""

from __future__ import annotations

from typing import Final, TypeVar

from atomr_mp import errors
from atomr_mp.protocol.libraries import kernels, program
from atomr_mp.protocol.libraries.base import LibraryRequest
from atomr_mp.protocol.library_names import KERNELS
from atomr_mp_workers.compiling.compiler_process import confines
from atomr_mp_workers.memory.blocks import Holder

R = TypeVar("R", bound=LibraryRequest)

_OWNER: Final = "owner"


def admitted(request: R, holder: Holder) -> R:
    """Return a request of the library, if its session may make it; one that is compiled has its owner noted.

    Raises:
        KernelsForbidden: It may not.
    """
    if holder.no_kernels:
        what = "globals of kernels" if request.name in {"read", "write"} else "kernels"
        raise errors.KernelsForbidden(f"this client may not {request.name} {what}: {holder.no_kernels}")
    if holder.is_relayed and isinstance(request, kernels.Compile | kernels.Load) and not confines():
        raise errors.KernelsForbidden(
            f"this client may not {request.name} kernels: nothing confines the compiler on this machine, whose kernel "
            "has no Landlock, so it works for clients of the same machine only"
        )
    if isinstance(request, kernels.Compile | kernels.Load):
        request.__dict__[_OWNER] = holder.group or holder
    return request


def owner_of(request: kernels.Compile | kernels.Load) -> Holder | str | None:
    """Return whose turn it is when a request is compiled: its session's, or that of the session's group.

    None for this process's own code.
    """
    return request.__dict__.get(_OWNER)


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
