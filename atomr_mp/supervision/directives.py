"""The supervisor's reaction to an error: one table. Pure."""

from __future__ import annotations

from enum import StrEnum, auto
from typing import Final

from atomr_mp import errors


class Directive(StrEnum):
    """The reaction to an error of a worker."""

    RESUME = auto()
    """Nothing: the request has its error, the worker goes on. If it has ended all the same: `RESTART`."""
    RESTART = auto()
    """Start a new incarnation, within the restart intensity."""
    STOP = auto()
    """Stop the device: a new incarnation would meet the same error."""
    ESCALATE = auto()
    """It is more than one device's affair: whoever holds the pool has to decide."""


DIRECTIVES: Final[dict[type[errors.AtomrError], Directive]] = {
    # What nobody thought of is nobody's to swallow.
    errors.AtomrError: Directive.ESCALATE,
    # What a request ends with is its caller's affair, but for those below.
    errors.RequestError: Directive.RESUME,
    # Refused at the door: the peer's affair.
    errors.NotAuthorized: Directive.RESUME,
    # Cured by a new process.
    errors.ContextPoisoned: Directive.RESTART,
    errors.ProtocolError: Directive.RESTART,
    errors.ResidentCorrupt: Directive.RESTART,
    errors.SetupFailed: Directive.RESTART,
    errors.WorkerLost: Directive.RESTART,
    # Not cured by it.
    errors.ActorLoadFailed: Directive.STOP,
    errors.ConfigurationError: Directive.STOP,
    errors.ResidentMismatch: Directive.STOP,
    errors.Unrecoverable: Directive.STOP,
    # Not of one device.
    errors.PoolBusy: Directive.ESCALATE,
    errors.PoolLost: Directive.ESCALATE,
    errors.PoolUnreachable: Directive.ESCALATE,
}
"""By class; a class that is not here has the directive of its nearest base class."""


def directive(error: errors.AtomrError) -> Directive:
    """Return the reaction to an error."""
    return next(DIRECTIVES[cls] for cls in type(error).__mro__ if cls in DIRECTIVES)
