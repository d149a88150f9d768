"""A cluster: one pool on each of several nodes of Ray's, and a client of each of them."""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

import ray
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from atomr_mp import errors
from atomr_mp.client.callers import calling_loop
from atomr_mp.client.reply_stream import ReplyStream
from atomr_mp.client.taken_arguments import kept
from atomr_mp.device import DEFAULT_DEADLINE_S
from atomr_mp.mapping.schedule import MAX_DEPTH
from atomr_mp.operator.pool_status import PoolStatus
from atomr_mp.pool import Pool
from atomr_mp.protocol import amounts
from atomr_mp.protocol.keywords import checks_names
from atomr_mp.protocol.messages.devices import MethodInfo
from atomr_mp.protocol.words import did_you_mean
from atomr_mp.ray.cluster_map import run_map
from atomr_mp.ray.cluster_reply import ClusterReply
from atomr_mp.ray.failover import ClusterCall, ref_among
from atomr_mp.ray.member import NodeInfo
from atomr_mp.ray.node import NodePool
from atomr_mp.ray.nodes import NodeName, Nodes
from atomr_mp.ray.places import Places, wait_reserved
from atomr_mp.startup.targets import Actors, targets

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from atomr_mp.client.memory.refs import GpuRef

STOP_S: Final = 45.0
"""How long the nodes' actors may take to stop their pools."""

FORGET_S: Final = 5.0
"""How long Ray may take to end the actors after their pools have ended."""

OWN_SETTINGS: Final = frozenset({"gpus", "pool", "run_dir", "listen", "keys_dir", "insecure", "config"})
"""Settings of pools that a cluster decides itself."""


_JOINING: Final = threading.Lock()
_JOINED: Final[dict[str, Cluster]] = {}
"""Clusters that came to this process from another one, by name."""


class NodeStatus(NamedTuple):
    """A node and its pool's status."""

    info: NodeInfo
    pool: PoolStatus | None
    """The pool's status; None if it does not answer."""


@checks_names
class Cluster:
    """One pool on each of several nodes. Thread-safe; use it with `with`, or `close` it. `ray.init` comes first.

    It can be passed to Ray's tasks and actors: there it is one more client of the pools, and does not end them. The
    pools live as long as the program that made the cluster. If a node's actor ends, Ray restarts it, maybe on another
    node, and it starts a new pool.

    Args:
        actors: What the devices run, see `atomr_mp.start`; named files must be on every node.
        nodes: How many nodes; no two pools are on one.
        gpus_per_node: Whole GPUs of each node that Ray gives to its pool, each with `workers_per_gpu` devices; on the
            host backend, processes.
        backend: "cuda", or "host" for nodes without GPUs.
        cpus_per_node: CPUs that Ray counts for each pool.
        relay_ports: First and last port of the relays, for firewalls. None for any.
        runtime_env: Ray's runtime environment of the nodes' actors.
        start_timeout_s: How long the pools may take to be ready.
        **settings: Other settings of the pools, see `atomr_mp.start`.

    Raises:
        InvalidRequest: A number is out of range, or is not whole.
        ConfigurationError: Ray is not initialized, a pool cannot be started, or a node has another version.
        ActorLoadFailed: An actor cannot be imported on a node.
        SetupFailed: An actor's `setup` fails.
        PoolBusy: Processes of another pool still hold a GPU.
        PoolUnreachable: Ray has no room for all nodes in time, or a pool cannot be reached.
    """

    def __init__(
        self,
        *,
        actors: Actors,
        nodes: int = 1,
        gpus_per_node: int = 1,
        backend: str = "cuda",
        cpus_per_node: float = 1,
        relay_ports: tuple[int, int] | None = None,
        runtime_env: dict[str, Any] | None = None,
        start_timeout_s: float = 300.0,
        **settings: Any,
    ) -> None:
        _check(nodes, gpus_per_node, backend, cpus_per_node, relay_ports, runtime_env, settings.keys())
        start_timeout_s = amounts.duration("start_timeout_s", start_timeout_s)
        if not ray.is_initialized():
            raise errors.ConfigurationError("Ray is not initialized: call ray.init first")
        settings |= {"actors": targets(actors), "backend": backend, "start_timeout_s": start_timeout_s}
        until = time.monotonic() + start_timeout_s
        gpus = gpus_per_node if backend == "cuda" else 0
        self._name = f"ray-{os.urandom(4).hex()}"
        self._group = placement_group([{"CPU": cpus_per_node, "GPU": gpus}] * nodes, strategy="STRICT_SPREAD")
        try:
            wait_reserved(self._group, Places(nodes, cpus_per_node, gpus), start_timeout_s)
            self._actors = [
                ray.remote(NodePool)
                .options(
                    num_cpus=cpus_per_node,
                    num_gpus=gpus,
                    max_restarts=-1,
                    max_task_retries=0,
                    runtime_env=runtime_env,
                    scheduling_strategy=PlacementGroupSchedulingStrategy(
                        self._group, placement_group_bundle_index=bundle
                    ),
                )
                .remote(f"{self._name}-{bundle}", gpus_per_node, settings, relay_ports)
                for bundle in range(nodes)
            ]
        except BaseException:
            remove_placement_group(self._group)
            raise
        self._nodes = Nodes(self._actors)
        try:
            self._nodes.wait_all(until)
        except BaseException:
            self.close()
            raise

    def __reduce__(self) -> tuple[Any, ...]:
        return _joined, (self._name, self._actors)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Cluster of {len(self._nodes.members)} nodes, {len(self._nodes.pools)} of them connected>"

    @property
    def nodes(self) -> list[NodeInfo]:
        """The nodes as this process sees them."""
        return [each.info for each in self._nodes.members]

    @property
    def methods(self) -> list[str]:
        """The requests that can be made, as "Actor.method". Blocks while no node can be reached."""
        return self.pool().methods

    def method_info(self, method: str) -> MethodInfo:
        """Return the description of a request; see `Pool.method_info`. Blocks while no node can be reached.

        Raises:
            InvalidRequest: There is no such method.
        """
        return self.pool().method_info(method)

    def status(self, timeout_s: float = 10.0) -> list[NodeStatus]:
        """Ask each node's pool for its status, one after the other; blocks at most for `timeout_s` each."""
        timeout_s = amounts.duration("timeout_s", timeout_s)
        found = []
        for member in self._nodes.members:
            pool, told = member.reached, None
            if pool is not None:
                try:
                    told = pool.status(timeout_s)
                except (errors.AtomrError, OSError, TimeoutError):
                    told = None  # the pool ends just now, or hangs; the node's info soon tells more
            found.append(NodeStatus(member.info, told))
        return found

    def pool(self, node: NodeName | None = None, within_s: float = DEFAULT_DEADLINE_S) -> Pool:
        """Return this process's client of a node's pool, with the whole interface of a pool; it ends with that pool.

        Args:
            node: One of `nodes`, or its index there; None for the least loaded one.
            within_s: How long to wait for it.

        Raises:
            InvalidRequest: There is no such node.
            PoolUnreachable: Its pool does not answer in time.
        """
        within_s = amounts.duration("within_s", within_s, zero=True)
        any_call = ClusterCall("", kept((), {}), None, None, 0, node=self._nodes.index(node))
        pool = self._nodes.wait_reached(any_call, within_s).reached
        if pool is None:
            raise errors.PoolUnreachable("the node's pool was lost just now")
        return pool

    @property
    def pools(self) -> list[Pool]:
        """This process's clients of all pools that can be reached now."""
        return self._nodes.pools

    def wait_nodes(self, within_s: float) -> bool:
        """Wait until this process has reached the pools of all nodes; return False if it has not in time."""
        return self._nodes.wait_all_reached(amounts.duration("within_s", within_s, zero=True))

    def call(
        self,
        method: str,
        /,
        *args: Any,
        node: NodeName | None = None,
        device: int | None = None,
        deadline_s: float | None = None,
        priority: int = 0,
        wait: bool | None = None,
        kwargs: dict[str, Any] | None = None,
    ) -> ClusterReply:
        """Make a request, by the unix socket or the relay of a node's pool.

        In a thread it blocks while no node that may take it can be reached, until the deadline; in an event loop,
        awaiting the reply waits for a node. If the node's pool is lost, the call goes to another node, provided that
        its method is idempotent or it certainly has not run, no node was named, and no ref is among its arguments.
        Otherwise the reply ends with the error, whose `maybe_executed` says whether it may have run.

        Args:
            method: "Actor.method".
            *args: Its arguments, see `Pool.call`. Refs in lists and maps need `node`.
            node: One of `nodes`, or its index there. None for the node of the refs among the arguments. Else a node
                with a device that takes the call now goes before those whose devices start, then the one with the
                fewest unanswered calls of this process, and among equals this process's own.
            device: Index of the device on that node; see `Pool.call`.
            deadline_s: See `Pool.call`; it holds for all attempts together.
            priority: See `Pool.call`.
            wait: See `Pool.call`.
            kwargs: Arguments by name.

        Raises:
            InvalidRequest: No such method, node or device, an argument that cannot be sent, or a ref that is on
                another node than `node`.
            GpuRefStale: The pool that has the memory of a ref was lost.
            PoolUnreachable: No pool could be reached until the deadline.
            Overloaded: See `Pool.call`.
            DeviceUnavailable: No device of any node takes work.
        """
        nodes, in_loop = self._nodes, calling_loop() is not None
        began_ns = time.monotonic_ns()
        left_s = amounts.deadline(deadline_s, DEFAULT_DEADLINE_S)
        at = nodes.index(node)
        member = nodes.least_loaded(at, (), method, device)
        pool = None if member is None else member.pool
        if pool is None and not in_loop:
            pool = self.pool(at, left_s)
        info = None if pool is None or member is None else member.declared(method, 0.0 if in_loop else left_s)
        if info is not None and info.deadline_s and deadline_s is None:
            left_s = info.deadline_s
        call = ClusterCall(
            method,
            lambda: (args, kwargs or {}),
            ref_among(args, kwargs),
            device,
            began_ns + int(left_s * 1e9),
            priority,
            wait,
            at,
            idempotent=info is not None and info.idempotent,
            called_ns=began_ns if info is None and deadline_s is None else None,
        )
        attempt = None if info is None else nodes.send_at_once(call, first=member)
        if attempt is None and not in_loop:
            attempt = nodes.send(call)
        if attempt is None or (at is None and call.ref is None):  # it may be sent later
            call = call._replace(given=kept(args, kwargs or {}))
        return ClusterReply(call, nodes, attempt)

    def stream(
        self,
        method: str,
        /,
        *args: Any,
        node: NodeName | None = None,
        kwargs: dict[str, Any] | None = None,
        **options: Any,
    ) -> ReplyStream:
        """Make a request of a method that streams; see `Pool.stream`.

        In a thread it blocks while no node that may take it can be reached. A stream ends with its node's pool, and is
        not opened elsewhere.

        Args:
            method: "Actor.method", a generator.
            *args: Its arguments. Refs in lists and maps need `node`.
            node: See `call`.
            kwargs: Arguments by name.
            **options: See `Pool.stream`.

        Raises:
            InvalidRequest: There is no such node, or a ref is on another one than `node`.
            GpuRefStale: The pool that has the memory of a ref was lost.
            PoolUnreachable: No pool could be reached in time; in an event loop, no pool is connected now.
            AtomrError: See `Pool.stream`.
        """
        within_s = 0.0 if calling_loop() is not None else DEFAULT_DEADLINE_S
        until = time.monotonic() + within_s
        ref, at = ref_among(args, kwargs), self._nodes.index(node)
        call = ClusterCall(method, kept((), {}), ref, options.get("device"), 0, node=at)
        while True:
            pool = self._nodes.member_for(call, until - time.monotonic()).pool
            if pool is not None:
                try:
                    return pool.stream(method, *args, kwargs=kwargs, **options)
                except errors.PoolLost:
                    if pool.lost is None:
                        raise

    def map(
        self,
        method: str,
        items: Iterable[Any],
        *,
        in_flight: int | None = None,
        deadline_s: float | None = None,
        priority: int = 0,
        return_failures: bool = False,
    ) -> Iterator[Any]:
        """Call a method once for every item, on all nodes, and yield the results in the items' order.

        Works while the results are read, in the thread that reads them; not in an event loop. Items lost with a pool
        are sent again, under the conditions of `call`.

        Args:
            method: "Actor.method"; it takes an item as its one argument.
            items: Values that can be sent; any iterable, even an endless one.
            in_flight: How many items are sent and not answered at a time, in all. None for 32 per device.
            deadline_s: Deadline of each call.
            priority: Priority of each call.
            return_failures: Yield a `map.Failure` in the place of an item that fails, and go on. Otherwise its error is
                raised there, and the items in flight are cancelled.

        Raises:
            InvalidRequest: No such method, or `in_flight` is less than 1.
            AtomrError: While reading: an item's error; `PoolUnreachable` if no node can be reached.
        """
        self.method_info(method)
        if in_flight is None:
            in_flight = MAX_DEPTH * sum(len(pool.devices_for(method)) for pool in self.pools)
        else:
            in_flight = amounts.whole("in_flight", in_flight, 1)

        def call(item: Any) -> ClusterReply:
            return self.call(method, item, deadline_s=deadline_s, priority=priority)

        return run_map(call, items, max(1, in_flight), return_failures=return_failures)

    def actor(
        self, name: str, *, node: NodeName | None = None, device: int | None = None, deadline_s: float | None = None
    ) -> ClusterActor:
        """Return a reference through which an actor's methods are called like methods. Blocks while no node is reached.

        Args:
            name: The actor's name.
            node: One of `nodes`, or its index there; None for the node that suits best, call by call.
            device: The device's index on that node; None for the least loaded one.
            deadline_s: Deadline of the calls.

        Raises:
            InvalidRequest: There is no such actor, or no such node.
        """
        at = self._nodes.index(node)
        known = sorted({method.partition(".")[0] for method in self.methods})
        if name not in known:
            raise errors.InvalidRequest(
                f"there is no actor {name!r}{did_you_mean(name, known)}; this cluster's actors are: {', '.join(known)}"
            )
        return ClusterActor(self, name, at, device, deadline_s)

    def put(self, array: ArrayLike, *, node: NodeName | None = None, device: int = 0) -> GpuRef:
        """Put an array into a device's memory, and return a ref, which stays on its node. Blocks.

        A call with it among its arguments goes to that node; when the node's pool is lost, it is `GpuRefStale`.

        Args:
            array: The array.
            node: One of `nodes`, or its index there; None for the least loaded one.
            device: The device's index on that node.

        Raises:
            AtomrError: See `Device.put`.
        """
        return self.pool(node).device(device).put(array)

    def close(self) -> None:
        """End this process's sessions, and the pools if this is where the cluster was made. May be called twice."""
        if not self._nodes.close():
            return
        if self._group is None or not ray.is_initialized():
            return
        stopping = [actor.stop.remote() for actor in self._actors]
        ray.wait(stopping, num_returns=len(stopping), timeout=STOP_S)
        # On another thread, since it blocks while Ray's GCS is gone, and Ray ends both with this program in any case.
        forgetting = threading.Thread(target=_forget, args=(self._actors, self._group), daemon=True)
        forgetting.start()
        forgetting.join(FORGET_S)


class ClusterActor:
    """An actor of a cluster; its methods are the actor's requests. Made by `Cluster.actor`.

    They return a `ClusterReply`, or a `ReplyStream` for methods that stream.
    """

    def __init__(
        self, cluster: Cluster, name: str, node: int | None, device: int | None, deadline_s: float | None
    ) -> None:
        self._cluster = cluster
        self._name = name
        self._node = node
        self._device = device
        self._deadline_s = deadline_s

    def __repr__(self) -> str:
        return f"<actor {self._name} of {self._cluster!r}>"

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = f"{self._name}.{name}"
        if name.startswith("__") or method not in self._cluster.methods:
            raise AttributeError(f"actor {self._name!r} has no request {name!r}")
        cluster, node, device, deadline_s = self._cluster, self._node, self._device, self._deadline_s
        send: Callable[..., Any] = cluster.stream if cluster.method_info(method).streams else cluster.call

        def call(*args: Any, **kwargs: Any) -> Any:
            return send(method, *args, node=node, device=device, deadline_s=deadline_s, kwargs=kwargs or None)

        found = self.__dict__[name] = call  # found here from now on, without this function
        return found


def _forget(actors: Sequence[Any], group: Any) -> None:
    """Have Ray end a cluster's actors, and free their places."""
    for actor in actors:
        ray.kill(actor)
    remove_placement_group(group)


def _joined(name: str, actors: Sequence[Any]) -> Cluster:
    """Return this process's client of a cluster's pools: the same one however often the cluster arrives here."""
    with _JOINING:
        cluster = _JOINED.get(name)
        if cluster is None or cluster._nodes.closed:  # noqa: SLF001 - of this module
            _JOINED[name] = cluster = Cluster.__new__(Cluster)
            cluster._group, cluster._name, cluster._actors = None, name, list(actors)  # noqa: SLF001
            cluster._nodes = Nodes(actors)  # noqa: SLF001
        return cluster


def _check(
    nodes: int,
    gpus_per_node: int,
    backend: str,
    cpus_per_node: float,
    ports: tuple[int, int] | None,
    runtime_env: dict[str, Any] | None,
    settings: Collection[str],
) -> None:
    """Check a cluster's arguments.

    Raises:
        InvalidRequest: An argument is invalid.
    """
    for what, number in {"nodes": nodes, "gpus_per_node": gpus_per_node}.items():
        if type(number) is not int or number < 1:
            raise errors.InvalidRequest(f"{what} must be a whole number from 1 on, got {number!r}")
    if backend not in {"cuda", "host"}:
        raise errors.InvalidRequest(f"backend must be 'cuda' or 'host', got {backend!r}")
    if type(cpus_per_node) not in {int, float} or not 0 <= cpus_per_node < math.inf:
        raise errors.InvalidRequest(f"cpus_per_node must be a number from 0 on, got {cpus_per_node!r}")
    if backend == "host" and not cpus_per_node:
        raise errors.InvalidRequest(
            "cpus_per_node must be more than 0 on the host backend: Ray reserves no place without a resource"
        )
    if runtime_env is not None and not isinstance(runtime_env, dict):
        raise errors.InvalidRequest(f"runtime_env must be a dict as Ray has it, got {type(runtime_env).__name__}")
    if ports is not None and not _is_range(ports):
        raise errors.InvalidRequest(
            f"relay_ports must be the first and the last of some ports from 1024 to 65535; got {ports!r}"
        )
    if own := OWN_SETTINGS & set(settings):
        raise errors.InvalidRequest(f"a cluster decides about {', '.join(sorted(own))} itself")


def _is_range(ports: object) -> bool:
    return (
        isinstance(ports, tuple | list)
        and len(ports) == 2
        and all(type(each) is int for each in ports)
        and 1024 <= ports[0] <= ports[1] < 2**16
    )
