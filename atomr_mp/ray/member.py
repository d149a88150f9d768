"""One node of a cluster, as a process sees it: a thread that joins the node's pool whenever there is one."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any, Final, NamedTuple

import ray
from ray.exceptions import RayError

from atomr_mp import errors
from atomr_mp.client.client import Client
from atomr_mp.client.known_methods import NOT_KNOWN_YET, KnownMethods
from atomr_mp.client.lanes.session import LONGEST_WAIT_S
from atomr_mp.client.memory.refs import GpuRef
from atomr_mp.pool import Pool
from atomr_mp.process.files.rundir import RunDirectory
from atomr_mp.protocol.messages.devices import MethodInfo
from atomr_mp.ray.failover import StartedCalls
from atomr_mp.ray.node_death import wait_lost
from atomr_mp.ray.outcomes import Outcome, value_of
from atomr_mp.remote import keys
from atomr_mp.transport.session import SessionConnection
from atomr_mp.tunnel.client import CarriedClient
from atomr_mp.version import __version__

ASK_S: Final = 10.0
"""How long a node's actor may take to admit a key."""

STARTED_S: Final = 3.0
"""How long a node's actor may take to say which calls its lost pool had started. Those calls wait for it."""

KNOWN_POOLS: Final = 4
"""Lost pools of a node whose started calls are kept."""

OPEN_S: Final = 30.0
"""How long a node's actor may be silent or absent before it is asked again."""

LOOK_S: Final = 0.2
"""Time between looks at whether the cluster is closed while Ray is waited for: nothing else ends that wait."""

END_S: Final = 5.0
"""How long the thread may take to end; longer than it needs."""

FIRST_AGAIN_S: Final = 0.2
LAST_AGAIN_S: Final = 5.0
"""Times between attempts to join a pool: the first, and the last. Each is twice the one before."""

TRANSIENT: Final = (errors.PoolUnreachable, errors.PoolLost, errors.DeadlineExceeded)
"""Errors of joining that may pass by themselves."""


class NodeInfo(NamedTuple):
    """A node of a cluster, as this process sees it."""

    node: str
    """Ray's id of the node; empty while its pool was never reached."""
    connected: bool
    """Whether it can be called."""
    local: bool
    """Whether calls go by its unix socket; by the relay otherwise."""
    epoch: str
    """The life of its pool; each restart of a node's actor begins another. Empty if there is no pool."""
    supervisor_pid: int
    """The pool's supervisor on that node, 0 if not known."""
    unanswered: int
    """Calls of this process that the node has not answered."""
    error: errors.AtomrError | None
    """Why it is not connected, if that is known."""
    number: int
    """Its index in `Cluster.nodes`, which stays the same when its actor is restarted, on whichever node of Ray's."""


class Member:
    """One node.

    Args:
        index: Its index in the cluster.
        actor: Ray's handle of the node's actor.
        here: Ray's id of this process's node.
        changed: Notified when its pool comes or goes.
        closed: Set when the cluster is closed.
    """

    def __init__(
        self, index: int, actor: Any, here: str, changed: threading.Condition, closed: threading.Event
    ) -> None:
        self.index: Final = index
        self._actor: Final = actor
        self._here: Final = here
        self._changed: Final = changed
        self._closed: Final = closed
        self._found: dict[str, Any] = {}
        self._pair: keys.KeyPair | None = None
        self._name: Final = f"ray-{os.urandom(8).hex()}"
        self._opening: Any = None
        """Ray's ref of the question to which no answer has come."""
        self._thread: Final = threading.Thread(target=self._run, name="atomr-mp ray node", daemon=True)
        self.local = False
        """Whether its node is this process's."""
        self.pool: Pool | None = None
        """The pool, None while there is no session."""
        self._client: Client | None = None
        """The last session."""
        self.error: errors.AtomrError | None = None
        self._asking: Final = threading.Lock()
        self._started: dict[bytes, StartedCalls | None] = {}
        """The started calls of its last lost pools, by epoch; None if nothing tells them."""
        self._news: object = None
        """Another object after each event of the devices."""
        self._looked: tuple[object, frozenset[int] | None] = (self, None)
        """The news after which the devices were looked at, and those that take calls at once; None for all."""

    @property
    def reached(self) -> Pool | None:
        """The pool, None if there is no session or it has ended."""
        pool = self.pool
        return pool if pool is not None and pool.lost is None else None

    @property
    def unanswered(self) -> int:
        """Number of calls of this process that the node has not answered."""
        client = self._client
        return 0 if client is None or self.pool is None else client.unanswered

    @property
    def info(self) -> NodeInfo:
        """The node's state."""
        found, connected = self._found, self.reached is not None
        return NodeInfo(
            found.get("node", ""),
            connected,
            self.local,
            found.get("epoch", ""),
            found.get("supervisor", 0),
            self.unanswered,
            None if connected else self.error,
            self.index,
        )

    def takes_now(self, method: str = "", device: int | None = None) -> bool:
        """Whether a call would not have to wait for a device that starts or comes back.

        Args:
            method: "Actor.method"; empty for any.
            device: The only device that may take it; None for any that has the actor.
        """
        client, news = self._client, self._news
        if client is None:
            return False
        if news is not self._looked[0]:  # they change seldom: most calls only compare
            ready = frozenset(each.index for each in client.devices if each.admitted)
            self._looked = news, None if len(ready) == len(client.devices) else ready
        ready_now = self._looked[1]
        if ready_now is None:
            return True
        if type(device) is int:
            return device in ready_now
        home = client.homes.get(method.partition(".")[0]) if type(method) is str else None  # the pool refuses others
        return bool(ready_now if home is None else ready_now.intersection(home))

    def declared(self, method: str, within_s: float) -> MethodInfo | None:
        """Return a method's description; None if it is not known yet, or the pool has been lost.

        Args:
            method: "Actor.method".
            within_s: How long to wait to know while the pool starts; 0 for not at all.

        Raises:
            InvalidRequest: There is no such method.
            DeadlineExceeded: The pool still starts.
        """
        client = self._client
        if client is None or self.reached is None:
            return None
        known = KnownMethods(client)
        try:
            info = known.known(method, within_s) if within_s else known.info(method)
        except errors.PoolLost:
            return None
        return None if info is NOT_KNOWN_YET else info

    def owns(self, ref: GpuRef) -> bool:
        """Whether the node's pool has a ref's memory, by this session."""
        client = self._client
        return client is not None and self.reached is not None and ref.is_of(client.memory)

    def started(self, epoch: bytes) -> StartedCalls | None:
        """Return the calls that a lost pool of this node had started; None if nothing tells them. Blocks.

        The node is asked once for each pool. If it was lost too, there is no answer.
        """
        with self._asking:
            if epoch not in self._started:
                while len(self._started) >= KNOWN_POOLS:
                    del self._started[next(iter(self._started))]
                self._started[epoch] = self._ask_started(epoch)
            return self._started[epoch]

    def _ask_started(self, epoch: bytes) -> StartedCalls | None:
        if self._closed.is_set() or not ray.is_initialized():  # the question would start Ray again
            return None
        try:
            found = value_of(self._answer(self._actor.started.remote(epoch.hex()), STARTED_S))
        except (errors.AtomrError, RayError):
            return None
        if found is None:
            return None
        ids, known_for_ns = found
        return StartedCalls.told(ids, known_for_ns, time.monotonic_ns())

    def start(self) -> None:
        """Begin to join."""
        self._thread.start()

    def close(self) -> None:
        """End the session; the cluster is closed. The thread has asked Ray its last question once this has returned."""
        with self._changed:
            pool, self.pool = self.pool, None
        if pool is not None:
            pool.close()
        if threading.current_thread() is not self._thread:
            self._thread.join(END_S)

    def _run(self) -> None:
        again_s = FIRST_AGAIN_S
        while not self._closed.is_set() and ray.is_initialized():
            try:
                pool = self._join()
            except errors.AtomrError as error:
                self._set(None, error)
            except RayError as error:
                self._set(None, _ray_error(error))
            else:
                again_s = FIRST_AGAIN_S
                self._set(pool, None)
                lost = self._wait_lost()
                self._set(None, lost)
                pool.close()
            if self._closed.wait(again_s):
                break
            again_s = min(2 * again_s, LAST_AGAIN_S)

    def _join(self) -> Pool:
        """Return a session with the node's pool, which its actor starts if there is none."""
        if self._opening is None:
            self._opening = self._actor.open.remote(__version__)
        # It is kept if there is no answer: Ray holds it while the actor is restarted.
        self._found = found = value_of(self._answer(self._opening, OPEN_S))
        self.local = found["node"] == self._here
        if self.local:
            directory = RunDirectory.open(Path(found["run_dir"]))
            self._client = Client(SessionConnection.connect(directory.session_socket))
            return self._heard(Pool(self._client, directory.path))
        pair = self._pair = self._pair or keys.new_pair()
        value_of(self._answer(self._actor.admit.remote(self._name, pair.public), ASK_S))
        own = keys.ClientKeys(name=self._name, public=pair.public, secret=pair.secret, server=found["server"])
        self._client = client = CarriedClient(found["address"], own)
        return self._heard(Pool(client, operator=client.operator))

    def _heard(self, pool: Pool) -> Pool:
        """Have the events of a new pool's devices noted, and forget what is known of those of the last one."""
        pool.on_event(self._note_news)
        self._news = pool
        return pool

    def _answer(self, question: Any, within_s: float) -> Outcome:
        """Wait for an answer of the node's actor, but not beyond the cluster's end.

        After `ray.shutdown`, Ray would start again by itself in a process that asks it for anything.
        """
        until = time.monotonic() + within_s
        while not ray.wait([question], timeout=LOOK_S)[0]:
            if self._closed.is_set() or not ray.is_initialized():
                raise errors.PoolLost("this cluster is closed", maybe_executed=False)
            if time.monotonic() > until:
                raise errors.PoolUnreachable(
                    f"node {self.index} has no answer after {within_s:g} s; it starts, stands still, or is gone"
                )
        if question is self._opening:
            self._opening = None
        answer: Outcome = ray.get(question, timeout=ASK_S)
        return answer

    def _wait_lost(self) -> errors.PoolLost:
        """Return the reason when the pool can be called no more; its calls end with `PoolLost` then."""
        client = self._client
        assert client is not None
        if isinstance(client, CarriedClient):
            return wait_lost(client, self.index)
        try:
            while True:
                client.wait_until(lambda: False, LONGEST_WAIT_S)
        except errors.PoolLost as lost:
            return lost

    def _note_news(self, event: object) -> None:
        self._news = event

    def _set(self, pool: Pool | None, error: errors.AtomrError | None) -> None:
        with self._changed:
            self.pool, self.error = pool, error
            self._changed.notify_all()
        if pool is not None and self._closed.is_set():
            self.close()


def _ray_error(error: RayError) -> errors.AtomrError:
    """Return an error of Ray's actor as one of ours: PoolUnreachable for errors that may pass."""
    text = str(error)
    if "ModuleNotFoundError" in text or "failed to import" in text or "creation task" in text:
        last = text.strip().splitlines()[-1]
        return errors.ConfigurationError(
            f"a node cannot make the cluster's actor: {last}; install atomr-mp[ray] {__version__} there, as here"
        )
    return errors.PoolUnreachable(f"the node's actor is not there: {text.strip().splitlines()[0]}")
