"""Decides the outcome of a call that was lost with a gateway."""

from __future__ import annotations

from atomr_mp import errors
from atomr_mp.client.reply import Reply, StreamReply
from atomr_mp.protocol.messages.devices import MethodInfo, Resumes


def refs_stand(reply: Reply) -> bool:
    """Return whether the gateway that lives holds the refs among a call's arguments."""
    return not any(getattr(each, "releases", None) and each.releases.over for each in reply.kept)  # type: ignore[attr-defined]


def stale(reply: Reply, *, maybe_executed: bool) -> errors.GpuRefStale:
    """Return the error of a call whose refs were held through a gateway that has ended."""
    return errors.GpuRefStale(
        f"a ref among the arguments of {reply.method} was held through a gateway that has ended",
        device=reply.device,
        maybe_executed=maybe_executed,
    )


def may_replay(reply: Reply, info: MethodInfo | None, max_replays: int) -> bool:
    """Return whether a call or a stream that may have run is sent again without the caller."""
    if info is None or reply.replays >= max_replays:
        return False
    if isinstance(reply, StreamReply) and (reply.credit.received or reply.resumes is not Resumes.NEVER):
        return reply.resumes is not Resumes.NEVER  # else it would begin again
    return info.idempotent


def lost(reply: Reply) -> errors.GatewayLost:
    """Return the error of a call that may have run and is not sent again."""
    if isinstance(reply, StreamReply) and reply.credit.received:
        why = f"the gateway ended in the middle of a stream of {reply.method}, after part {reply.credit.received}"
        return errors.GatewayLost(why, maybe_executed=True)
    return errors.GatewayLost(
        f"the gateway ended while {reply.method} was on its way through it, and it may have run", maybe_executed=True
    )
