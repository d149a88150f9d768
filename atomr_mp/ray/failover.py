"""Decides whether a call goes on at another node. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from atomr_mp import errors
from atomr_mp.client.memory.refs import GpuRef
from atomr_mp.client.taken_arguments import GivenArguments
from atomr_mp.protocol.messages.devices import MethodInfo


class ClusterCall(NamedTuple):
    """A call, with everything needed to make it again."""

    method: str
    given: GivenArguments
    """Its arguments as they were at the call."""
    ref: GpuRef | None
    """A ref among them, which ties the call to the ref's node; None if there is none."""
    device: int | None
    deadline_ns: int
    """The deadline of all attempts together, by CLOCK_MONOTONIC."""
    priority: int = 0
    wait: bool | None = None
    node: int | None = None
    """The node that the caller named; None for any."""
    idempotent: bool = False
    called_ns: int | None = None
    """When it was made, if its deadline becomes the method's own, which is not known yet; else None."""

    def knowing(self, info: MethodInfo) -> ClusterCall:
        """Return the call with what its method's description says of it."""
        deadline_ns = self.deadline_ns
        if self.called_ns is not None and info.deadline_s:
            deadline_ns = self.called_ns + int(info.deadline_s * 1e9)
        return self._replace(deadline_ns=deadline_ns, idempotent=info.idempotent, called_ns=None)


def ref_among(args: Iterable[Any], kwargs: dict[str, Any] | None) -> GpuRef | None:
    """Return a ref among a call's arguments; None if there is none."""
    arguments = (*args, *kwargs.values()) if kwargs else args
    return next((each for each in arguments if isinstance(each, GpuRef)), None)


_NODE_LOST: Final = (errors.PoolLost, errors.DeviceUnavailable)
"""A call that may run twice goes on elsewhere too: no device of its node takes it."""

_LOST: Final = (*_NODE_LOST, errors.WorkerLost, errors.ContextPoisoned, errors.ConnectionLost)
"""The workers of a pool that ends may be reported first; a pool itself sends again what may run twice."""


CLOCKS_DIFFER: Final = 1000
"""One part in so many, at most, by which the clocks of two machines run apart; NTP slews by half of that."""


class StartedCalls(NamedTuple):
    """The calls that a lost pool had started, by its node's answer."""

    ids: frozenset[int]
    """Their ids, of all its clients together."""
    since_ns: int
    """All that started and were sent later are among them; by this process's CLOCK_MONOTONIC."""

    @classmethod
    def told(cls, ids: Iterable[int], known_for_ns: int | None, now_ns: int) -> StartedCalls:
        """Return a node's answer in this process's time.

        Args:
            ids: The ids.
            known_for_ns: For how long, by the node's clock, starts are known; None for all that ever were.
            now_ns: CLOCK_MONOTONIC of this process, after the answer.
        """
        if known_for_ns is None:
            return cls(frozenset(ids), -1)
        return cls(frozenset(ids), now_ns - known_for_ns + -(-known_for_ns // CLOCKS_DIFFER))

    def may_have(self, number: int, sent_ns: int) -> bool:
        """Return whether a call may have started.

        Args:
            number: Its id.
            sent_ns: When it was sent.
        """
        return number in self.ids or sent_ns <= self.since_ns


def may_ask(call: ClusterCall, error: errors.AtomrError | None, now_ns: int) -> bool:
    """Return whether a call goes on if its node knows that it has not started."""
    return (
        isinstance(error, errors.PoolLost | errors.ConnectionLost)
        and error.maybe_executed
        and not call.idempotent
        and call.node is None
        and call.ref is None
        and now_ns < call.deadline_ns
    )


def goes_on(call: ClusterCall, error: errors.AtomrError | None, now_ns: int) -> bool:
    """Return whether a call that has ended with an error may be made again at another node.

    It may if its pool was lost or its node's devices take no work, and it may run twice; and after the loss of any
    process, if it certainly has not run. It may not if a node was named, if a ref among its arguments ties it to a
    node, or after its deadline.
    """
    if not isinstance(error, _LOST):
        return False
    may = not error.maybe_executed or (call.idempotent and isinstance(error, _NODE_LOST))
    return may and call.node is None and call.ref is None and now_ns < call.deadline_ns
