"""Whether a call goes on at another node. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from atomr_mp import errors
from atomr_mp.client.memory.refs import GpuRef


class ClusterCall(NamedTuple):
    """A call, with all that it takes to make it again."""

    method: str
    args: Sequence[Any]
    kwargs: dict[str, Any] | None
    device: int | None
    deadline_ns: int
    """Of all attempts together, CLOCK_MONOTONIC."""
    priority: int = 0
    wait: bool | None = None
    node: int | None = None
    """Where the caller wants it; None for anywhere."""
    idempotent: bool = False

    @property
    def ref(self) -> GpuRef | None:
        """A ref among the arguments, which ties the call to the ref's node; None if there is none."""
        arguments = (*self.args, *self.kwargs.values()) if self.kwargs else self.args
        return next((each for each in arguments if isinstance(each, GpuRef)), None)


def goes_on(call: ClusterCall, error: errors.AtomrError | None, now_ns: int) -> bool:
    """Return whether a call that has ended with an error may be made again at another node.

    That is so where its pool was lost, or its node's devices take no work, if it may run twice or certainly has not
    run. It is not if a node was named, if a ref among its arguments ties it to a node, or after its deadline.
    """
    if not isinstance(error, errors.PoolLost | errors.DeviceUnavailable):
        return False
    may = call.idempotent or not error.maybe_executed
    return may and call.node is None and call.ref is None and now_ns < call.deadline_ns
