"""Rights of remote clients: the messages that they may send, what errors show them, and kernels. Pure.

The supervisor asks for each message of such a session; sessions of its own machine may say and see everything.
"""

from __future__ import annotations

from typing import Any, Literal, TypeVar, assert_never

import msgspec

from atomr_mp import errors
from atomr_mp.protocol.codec import ErrorInfo
from atomr_mp.protocol.messages import operators, session, suspects

T = TypeVar("T")

KernelsFor = Literal["off", "local", "all"]
"""Clients that may use kernels of their own, see `PoolSettings.kernels`."""


def kernels_refusal(setting: KernelsFor, origin: session.RemoteOrigin | None) -> str:
    """Return why a client may not compile, load or launch kernels of its own, and how it might; empty if it may.

    Args:
        setting: The pool's `kernels`.
        origin: The remote client, None for one of the pool's own machine.
    """
    if setting == "off":
        return "the pool was started with kernels = 'off', for all clients; 'local' lets those of its own machine"
    if setting == "all" or origin is None or origin.kernels:
        return ""
    return (
        "the pool lets clients of its own machine use them (kernels = 'local'), and keys that are admitted with "
        f"`atomr-mp keys admit NAME KEY --kernels`; {origin.key:.64} was admitted without when this session began, and "
        "kernels = 'all' lets all"
    )


def refusal_of(message: session.FromClient, origin: session.RemoteOrigin) -> session.Answer | None:
    """Return the answer to a message that a remote client's key may not send; None if it may."""
    error: errors.AtomrError | None = None
    match message:
        case operators.StatusRequest() | operators.InventoryRequest() | operators.ListResidents():
            return None
        case session.OpenSlab() | session.RegisterSlab() | session.ForgetSlab() | session.LendSlab():
            return None
        case session.Hello() | session.Reach() | session.ResultsRead() | session.ClientAway() | session.Bye():
            return None
        case session.MakeWorld() | session.CloseWorld() | suspects.Suspect() | suspects.Acquit():
            return None
        case (
            operators.RestartRequest() | operators.ReloadRequest() | operators.AdmitRequest() | operators.FreeResident()
        ):
            if origin.operate:
                return None
            error = errors.NotAuthorized(f"key {origin.key} may not give orders (`keys admit --operate`)")
        case operators.TraceRequest():
            error = errors.Unsupported("a pool is traced on its own machine (`atomr-mp trace`)")
        case operators.StopRequest():
            error = errors.Unsupported("a pool is stopped on its own machine (`atomr-mp stop`)")
        case operators.ReadKeys():
            error = errors.NotAuthorized("keys are admitted and revoked on the pool's own machine (`atomr-mp keys`)")
        case _:
            assert_never(message)
    return session.Answer(message.id, ErrorInfo.of(error))


def without_tracebacks(message: T) -> T:
    """Return a message, or a part of one, whose errors show no tracebacks."""
    shown: Any = message
    match message:
        case ErrorInfo():
            shown = message.without_tracebacks()
        case msgspec.Struct():
            before = {name: getattr(message, name) for name in message.__struct_fields__}
            changed = {name: new for name, old in before.items() if (new := without_tracebacks(old)) is not old}
            shown = msgspec.structs.replace(message, **changed) if changed else message
        case list():
            parts = [without_tracebacks(part) for part in message]
            if any(new is not old for new, old in zip(parts, message, strict=True)):
                shown = parts
        case dict():
            items = {name: without_tracebacks(part) for name, part in message.items()}
            if any(items[name] is not part for name, part in message.items()):
                shown = items
    return shown  # type: ignore[no-any-return]  # of the same type
