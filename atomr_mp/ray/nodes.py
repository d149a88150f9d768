"""The nodes of a cluster as a process sees them, and the choice of a node for each call."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Collection, Sequence
from typing import Any, Final, TypeAlias

import ray

from atomr_mp import errors
from atomr_mp.client.callers import calling_loop
from atomr_mp.pool import Pool
from atomr_mp.protocol import amounts
from atomr_mp.ray.cluster_reply import Attempt
from atomr_mp.ray.failover import ClusterCall
from atomr_mp.ray.member import TRANSIENT, Member, NodeInfo

NodeName: TypeAlias = int | NodeInfo
"""A node, as callers name it: one of `Cluster.nodes`, or its index there."""

SAY_S: Final = 3.0
"""How long a cluster's start waits for nodes before the log says what it waits for."""

_WAITS: Final = 2**32
"""Stands for a node on which a call would wait for a device: more than calls can be unanswered."""

_LOG: Final = logging.getLogger("atomr_mp")


class Nodes:
    """A member for each node's actor, which join their pools from now on. Thread-safe.

    Args:
        actors: Ray's handles of the nodes' actors.
    """

    def __init__(self, actors: Sequence[Any]) -> None:
        self._changed: Final = threading.Condition()
        """Notified when a pool comes or goes, and at the end."""
        self._closed: Final = threading.Event()
        here = ray.get_runtime_context().get_node_id()
        self.members: Final = [
            Member(index, actor, here, self._changed, self._closed) for index, actor in enumerate(actors)
        ]
        for member in self.members:
            member.start()

    @property
    def closed(self) -> bool:
        """Whether the sessions have ended for good."""
        return self._closed.is_set()

    @property
    def pools(self) -> list[Pool]:
        """The pools that can be reached now."""
        return [pool for each in self.members if (pool := each.reached) is not None]

    def close(self) -> bool:
        """End all sessions; return False if they had ended before."""
        with self._changed:
            if self._closed.is_set():
                return False
            self._closed.set()
            self._changed.notify_all()
        for member in self.members:
            member.close()
        return True

    def index(self, node: NodeName | None) -> int | None:
        """Return the index of a node that a caller has named, None if it has named none.

        Raises:
            InvalidRequest: There is no such node.
        """
        if node is None:
            return None
        given = node.number if isinstance(node, NodeInfo) else node
        try:
            return amounts.whole("node", given, 0, len(self.members) - 1)
        except errors.InvalidRequest:
            raise errors.InvalidRequest(
                f"node must be one of `Cluster.nodes`, or its index there, from 0 to {len(self.members) - 1}; "
                f"got {node!r:.200}"
            ) from None

    def least_loaded(
        self, node: int | None = None, avoid: Collection[int] = (), method: str = "", device: int | None = None
    ) -> Member | None:
        """Return the node that has a call answered soonest, None if none is reached; never blocks.

        That is one with a device that takes the call now, before those whose devices start; of these, the one with the
        fewest unanswered calls. This process's own node goes first among equals.

        Args:
            node: The only node to consider; None for all.
            avoid: Nodes not to consider.
            method: "Actor.method"; empty for any.
            device: The device's index on its node; None for any.
        """
        if node is not None:
            member = self.members[node]
            return None if member.reached is None or node in avoid else member
        best: Member | None = None
        least = 0
        for member in self.members:
            if member.reached is None or member.index in avoid:
                continue
            load = 2 * member.unanswered + (not member.local)
            if not member.takes_now(method, device):
                load += _WAITS
            if best is None or load < least:
                best, least = member, load
        return best

    def send(self, call: ClusterCall, avoid: Collection[int] = ()) -> Attempt:
        """Send a call to the node that suits it best; blocks while none can be reached, until its deadline.

        Raises:
            AtomrError: See `Cluster.call`.
        """
        while True:
            attempt = self.send_at_once(call, avoid)
            if attempt is not None:
                return attempt
            self.wait_reached(call, (call.deadline_ns - time.monotonic_ns()) / 1e9, avoid)

    def send_at_once(
        self, call: ClusterCall, avoid: Collection[int] = (), first: Member | None = None
    ) -> Attempt | None:
        """Send a call to the node that suits it best, or to the next if that node has no room; None if none is reached.

        Args:
            call: The call.
            avoid: Nodes that do not get it.
            first: The node that suits a call without a ref best, if that is known.

        Raises:
            GpuRefStale: The pool that has the memory of a ref was lost.
            Overloaded: No node that is reached has room.
            DeviceUnavailable: No device of the nodes that are reached takes work.
            InvalidRequest: See `Cluster.call`.
        """
        refused: errors.RequestError | None = None
        ref = call.ref
        while True:
            member = self._owner(call) if ref is not None else first or self._best(call, avoid)
            if member is None:
                if refused is not None:
                    raise errors.unraised(refused)
                return None
            try:
                attempt = _attempt(member, call)
            except (errors.DeviceUnavailable, errors.Overloaded) as error:
                if ref is not None:
                    raise
                refused = refused or errors.unraised(error)
            else:
                if attempt is not None:
                    return attempt
            avoid, first = {*avoid, member.index}, None

    def may_have_started(self, attempt: Attempt) -> bool:
        """Return whether a call that was lost with its pool may have started, as far as its node knows. Blocks."""
        started = self.members[attempt.node].started(attempt.epoch)
        return started is None or started.may_have(attempt.reply.id, attempt.reply.sent_ns)

    def member_for(self, call: ClusterCall, within_s: float) -> Member:
        """Return the node that suits a call best; blocks while none can be reached.

        Raises:
            GpuRefStale: The pool that has the memory of its ref was lost.
            AtomrError: See `wait_reached`.
        """
        return self.wait_reached(call, within_s) if call.ref is None else self._owner(call)

    def wait_reached(self, call: ClusterCall, within_s: float, avoid: Collection[int] = ()) -> Member:
        """Return the node that suits a call without a ref best; blocks while none can be reached.

        Raises:
            PoolLost: The cluster is closed.
            DeviceUnavailable: All nodes are in `avoid`.
            PoolUnreachable: None was reached in time.
        """
        among = [each for each in self.members if call.node in {None, each.index} and each.index not in avoid]
        if not among:
            raise errors.DeviceUnavailable("no device of any node takes work")
        found = self._best(call, avoid)
        if found is None:
            with self._changed:
                self._changed.wait_for(
                    lambda: self.closed or any(each.reached is not None for each in among), max(0.0, within_s)
                )
            found = self._best(call, avoid)
        if self.closed:
            raise errors.PoolLost("this cluster is closed", maybe_executed=False)
        if found is None:
            why = next((f": {each.error}" for each in among if each.error), "")
            raise errors.PoolUnreachable(f"no pool of {len(among)} nodes could be reached in {within_s:.3g} s{why}")
        return found

    def wait_all_reached(self, within_s: float) -> bool:
        """Wait until all nodes are reached; return False if they are not in time."""
        with self._changed:
            return self._changed.wait_for(
                lambda: self.closed or all(each.reached is not None for each in self.members), max(0.0, within_s)
            )

    def wait_all(self, until: float) -> None:
        """Wait for the pools of all nodes.

        Args:
            until: How long, in seconds of `time.monotonic`.

        Raises:
            AtomrError: A pool cannot be started; the text names its node.
            PoolUnreachable: Not all were ready in time.
        """

        def failed() -> Member | None:
            wrong = (each for each in self.members if each.error is not None)
            return next((each for each in wrong if not isinstance(each.error, TRANSIENT)), None)

        def settled() -> bool:
            return failed() is not None or all(each.pool for each in self.members)

        def missing() -> str:
            late = [f"node {each.index} ({each.error or 'no answer'})" for each in self.members if not each.pool]
            return f"{len(self.members) - len(late)} of {len(self.members)} are ready; missing are {', '.join(late)}"

        with self._changed:
            left_s = max(0.0, until - time.monotonic())
            in_time = self._changed.wait_for(settled, min(SAY_S, left_s))
            if not in_time and left_s > SAY_S:
                _LOG.warning("waiting at most %.0f s for the pools of a cluster: %s", left_s - SAY_S, missing())
                in_time = self._changed.wait_for(settled, left_s - SAY_S)
        if (member := failed()) is not None and (error := member.error) is not None:
            error.message = f"node {member.index}: {error.message}"
            raise errors.unraised(error)
        if not in_time:
            raise errors.PoolUnreachable(f"not all pools were ready in time: {missing()}")

    def _best(self, call: ClusterCall, avoid: Collection[int]) -> Member | None:
        return self.least_loaded(call.node, avoid, call.method, call.device)

    def _owner(self, call: ClusterCall) -> Member:
        """Return the node whose pool has the memory of a call's ref.

        Raises:
            InvalidRequest: The caller has named another node.
            GpuRefStale: That pool was lost.
        """
        ref = call.ref
        for member in self.members:
            if ref is not None and member.owns(ref):
                if call.node not in {None, member.index}:
                    raise errors.InvalidRequest(
                        f"a ref among the arguments is on node {member.index}, and the call names node {call.node}: "
                        "leave `node` out, or put the data there"
                    )
                return member
        raise errors.GpuRefStale("the pool that has this ref's memory was lost: put the data again")


def _attempt(member: Member, call: ClusterCall) -> Attempt | None:
    """Send a call to a node; return None if that node was lost just now, or a coroutine cannot wait for its methods."""
    pool = member.pool
    if pool is None:
        return None
    try:
        if call.called_ns is not None or not call.idempotent:
            info = member.declared(call.method, 0.0 if calling_loop() is not None else max(0.0, _left_s(call)))
            if info is None:
                return None
            call = call.knowing(info)
        args, kwargs = call.given()
        reply = pool.call(
            call.method,
            *args,
            device=call.device,
            deadline_s=_left_s(call),
            priority=call.priority,
            wait=call.wait,
            kwargs=kwargs,
        )
    except errors.PoolLost:
        return None
    return Attempt(member.index, reply, call, pool.epoch)


def _left_s(call: ClusterCall) -> float:
    return (call.deadline_ns - time.monotonic_ns()) / 1e9
