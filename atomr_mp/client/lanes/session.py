"""A client's session with the supervisor: the state of the pool as it reports it, questions, and reports."""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import select
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from atomr_mp import errors
from atomr_mp.client import interrupts
from atomr_mp.client.lanes.homes import Homes, homes_of
from atomr_mp.client.lanes.retry_policy import KnownSuspicions, was_answered
from atomr_mp.client.memory.leases import Releases
from atomr_mp.client.reply import Reply
from atomr_mp.client.worlds.known_worlds import KnownWorlds
from atomr_mp.protocol import token
from atomr_mp.protocol.exceptions import traceback_of
from atomr_mp.protocol.messages import devices, session, suspects
from atomr_mp.protocol.own_time import Patience
from atomr_mp.transport.data import Login
from atomr_mp.transport.session import SessionConnection, SessionEnd

if TYPE_CHECKING:
    from atomr_mp.client.memory.worker_slabs import SlabMapping

_LOG: Final = logging.getLogger("atomr_mp")

LONGEST_WAIT_S: Final = 3600.0
"""Longest wait at a time, since `poll` takes no more than some weeks."""

SupervisorNews = (
    session.DeviceChanged
    | session.WorldChanged
    | session.IncarnationStopped
    | session.IncarnationEnded
    | suspects.Suspicions
    | errors.PoolLost
)
"""Messages of the supervisor to lanes."""

AnswerMessage = session.Answer | session.SlabOpened | session.WorldMade

Undo = Callable[[AnswerMessage], object]
"""Gives back what an answer has made."""


class PoolSession:
    """One session with a pool. Thread-safe.

    Args:
        connection: The connection to the supervisor.
        welcome: The supervisor's answer to the hello.
        max_replays: How often a lost request is sent again; None for the pool's setting.
        heard: Called with each message for the lanes, once it is noted here.
        over: Called with the releases of a standby that has gone.
        offered: Called when a standby has made a slab for results of this client, with the releases for it.
        after_read: Called after the messages were read, without the session's lock.
    """

    is_traced = False
    """Whether calls note when they are made: the pool is traced."""
    workers_live = False
    """Whether only the session has ended, and not the pool: its workers will not disconnect."""

    def __init__(  # noqa: PLR0915 - one statement for each attribute
        self,
        connection: SessionEnd,
        welcome: session.Welcome,
        max_replays: int | None,
        *,
        heard: Callable[[SupervisorNews], None],
        over: Callable[[Releases], None],
        offered: Callable[[session.SlabOffered, Releases, int | None], None],
        after_read: Callable[[], None],
    ) -> None:
        self._connection = connection
        self._heard = heard
        self._over = over
        self._offered = offered
        self._after_read = after_read
        self.epoch: Final = welcome.epoch
        self.login: Final = Login(welcome.session, welcome.secret, welcome.window)
        self.clock: Final = connection.clock
        """What is known of the pool's CLOCK_MONOTONIC."""
        self.descriptor: Final = connection.fileno()
        """Readable when the supervisor has sent a message."""
        self.devices: Final = list(welcome.devices)
        """The devices, as the supervisor last reported them."""
        self.max_replays: Final = welcome.max_replays if max_replays is None else max_replays
        """How often a lost request is sent again."""
        self.suspicions: Final = KnownSuspicions(welcome.suspicions)
        """The verdicts on requests."""
        self.worlds: Final = KnownWorlds(welcome.worlds)
        """The worlds."""
        self.methods: dict[str, devices.MethodInfo] = {}
        """The pool's requests by "Actor.method"."""
        self.actors: list[devices.ActorInfo] = []
        """The actors, as the supervisor reported them."""
        self.homes: Homes = {}
        """The devices of those actors that not all have."""
        self.listeners: Final[list[Callable[[session.DeviceChanged | session.IncarnationEnded], object]]] = []
        """Called with every lifecycle event, on whichever thread reads it; must be short."""
        self.lost: errors.PoolLost | None = None
        """Why the session has ended, None if it has not."""
        self._lost_listeners: list[Callable[[errors.PoolLost], object]] = []
        self._learn(welcome.actors)
        self.polled_ns = 0
        """Latest time at which the session is known to have been read, CLOCK_MONOTONIC."""
        self.lock = threading.RLock()
        """Held while messages are taken in."""
        self._waiting: set[int] = set()
        """Descriptors of threads in `wait_until`; every event wakes them."""
        self._sending = threading.Lock()
        """Held while a message is sent."""
        self._questions = itertools.count(1)
        self._answers: dict[int, Answered | None] = {}
        """Answers for which threads wait."""
        self._undoes: Final[dict[int, Undo]] = {}
        """The undoing of questions whose threads wait no longer."""
        self._kept = False
        """Whether the connection lasts until mappings have ended."""
        self._releases_lock = threading.Lock()
        self._releases: weakref.WeakValueDictionary[tuple[int, int], Releases] = weakref.WeakValueDictionary()
        self._results_read: deque[tuple[int, int]] = deque()
        """Ended incarnations whose results have all been read, to be reported."""
        self.request_ids: Final = itertools.count(1)
        """Ids that no other request of the session has."""

    @property
    def carried(self) -> bool:
        """Whether a relay carries the connections."""
        return not isinstance(self._connection, SessionConnection)

    @interrupts.defer_interrupts
    def read(self) -> None:
        """Read the supervisor's messages, without waiting."""
        with self.lock:
            if self.lost is not None:
                return
            self.polled_ns = time.monotonic_ns()
            try:
                for message in self._connection.receive_waiting():
                    self._hear(message)
            except errors.PoolLost as lost:
                self.workers_live = isinstance(lost, errors.SessionLost)
                self.lose(lost)
            except errors.ProtocolError as error:
                self.lose(errors.PoolLost(error.message))
            while self._results_read:
                self.tell(session.ResultsRead(*self._results_read.popleft()))
        self._after_read()

    @interrupts.defer_interrupts
    def wait_until(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        """Take in lifecycle events until `condition()` holds; False if it does not within `timeout_s`.

        Raises:
            PoolLost: The supervisor went away.
            OutOfMemory: This process may open no more files.
        """
        patience = Patience(timeout_s, time.monotonic)
        try:
            heard = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)  # another thread may read the awaited event
        except OSError as error:
            raise errors.OutOfMemory(f"nothing can be waited for: {error} (ulimit -n)", maybe_executed=False) from error
        poll = select.poll()
        poll.register(self.descriptor, select.POLLIN)
        poll.register(heard, select.POLLIN)
        with self.lock:
            self._waiting.add(heard)
        try:
            while True:
                self.read()
                if condition():
                    return True
                if self.lost is not None:
                    raise self.lost.again(maybe_executed=True)
                if not patience.left_s:
                    return False
                interrupts.wait(poll.poll, patience.wait_s * 1000)
                with contextlib.suppress(BlockingIOError):
                    os.eventfd_read(heard)
        finally:
            with self.lock:
                self._waiting.discard(heard)
            os.close(heard)

    def releases(self, device: int, generation: int) -> Releases:
        """Return the releases for an incarnation."""
        with self._releases_lock:
            found = self._releases.get((device, generation))
            if found is None:
                found = Releases(token.pack(self.epoch, device, generation), self._results_read)
                self._releases[device, generation] = found
        return found

    def known_releases(self, device: int, generation: int) -> Releases | None:
        """Return the releases for an incarnation, None if there are none."""
        return self._releases.get((device, generation))

    @interrupts.defer_interrupts
    def ask(
        self,
        question: Callable[[int], session.FromClient],
        timeout_s: float,
        descriptor: int | None = None,
        undo: Undo | None = None,
    ) -> Answered:
        """Ask a question in the session; wait for the answer and the descriptor that came with it. Thread-safe.

        Args:
            question: Returns the message with the given id; called when nothing else can be sent before it.
            timeout_s: How long to wait.
            descriptor: Travels with it; stays the caller's.
            undo: Gives back what was made if the answer comes too late, or this thread is interrupted; takes the
                answer, on whichever thread, which may hold the session's lock.

        Raises:
            PoolLost: There is no pool any more.
            DeadlineExceeded: No answer came in time.
            AtomrError: It was refused.
        """
        number = next(self._questions)
        answered: Answered | None = None
        self._answers[number] = None
        try:
            try:
                self._say(lambda: question(number), descriptor)
            except errors.PoolLost as lost:
                self.read()  # a goodbye in the session says why
                raise (self.lost or lost).again(maybe_executed=False) from lost
            if not self.wait_until(lambda: self._answers[number] is not None, timeout_s):
                raise errors.DeadlineExceeded(f"the supervisor did not answer within {timeout_s:g} s")
            answered = self._answers[number]
        finally:
            with self.lock:
                came = self._answers.pop(number)
                if came is None and undo is not None:
                    self._undoes[number] = undo
            if came is not None and answered is None:  # this thread waits no longer
                self._drop(came, undo)
        assert answered is not None
        if isinstance(answered.message, session.Answer) and answered.message.error is not None:
            raise answered.message.error.error()
        return answered

    @interrupts.defer_interrupts
    def tell(self, message: session.FromClient) -> None:
        """Send a message without an answer in the session; do nothing if the pool is lost."""
        with contextlib.suppress(errors.PoolLost):
            self._say(lambda: message)

    def report(self, device: int, generation: int, requests: list[suspects.RequestKey]) -> int:
        """Report which requests ran when an incarnation ended; return the number of the answer, `Suspicions`."""
        number = next(self._questions)
        self.tell(suspects.Suspect(number, device, generation, requests[: suspects.MAX_SUSPECTS]))
        return number

    def tell_reach(self, device: int, generation: int, failures: int) -> None:
        """Report failed attempts in a row to connect to a living worker; 0 after a success."""
        self.tell(session.Reach(device, generation, failures))

    def acquit(self, reply: Reply) -> None:
        """Report a suspect as acquitted, if it has run alone and its worker lives."""
        request = reply.alone
        if request is not None and was_answered(reply):
            self.tell(suspects.Acquit(request))

    def _say(self, message: Callable[[], session.FromClient], descriptor: int | None = None) -> None:
        with self._sending:
            if self.lost is not None:
                raise self.lost.again(maybe_executed=False)
            self._connection.send(message(), descriptor)

    def _answer(self, message: AnswerMessage) -> None:
        """Keep an answer for the thread that waits for it."""
        carries = isinstance(message, session.SlabOpened)
        descriptor = self._connection.take_descriptor(message.id) if carries else None
        if message.id in self._answers:
            self._answers[message.id] = Answered(message, descriptor)
            self._wake_waiting()
        else:
            self._drop(Answered(message, descriptor), self._undoes.pop(message.id, None))

    def _drop(self, answered: Answered, undo: Undo | None) -> None:
        """Undo an answer, since its thread waits no longer."""
        if answered.descriptor is not None:
            os.close(answered.descriptor)
        refused = isinstance(answered.message, session.Answer) and answered.message.error is not None
        if undo is not None and not refused:
            undo(answered.message)

    def _wake_waiting(self) -> None:
        for eventfd in self._waiting:
            os.eventfd_write(eventfd, 1)

    def on_lost(self, listener: Callable[[errors.PoolLost], object]) -> None:
        """Call a listener when the session ends, or at once if it has; see `Pool.on_lost`."""
        with self.lock:
            self._lost_listeners.append(listener)
            lost = self.lost
        if lost is not None:
            _tell(listener, lost)

    def lose(self, lost: errors.PoolLost) -> None:
        """End the session, once. With the lock held."""
        if self.lost is None:
            self.lost = lost
            self._heard(lost)
            self._wake_waiting()  # a thread that polls a descriptor is not woken when another thread closes it
            for listener in self._lost_listeners:
                _tell(listener, lost)

    def say_bye(self, mapped: Sequence[SlabMapping] = ()) -> None:
        """Report the end of this client. Its connection lasts until these mappings of workers' memory have ended."""
        with contextlib.suppress(errors.PoolLost), self._sending:
            self._connection.send(session.Bye(mapped=bool(mapped)))
            if mapped:
                last = _LastMappings(self._connection, len(mapped))
                for each in mapped:
                    each.unmapped = last.unmapped
                self._kept = True

    def close(self) -> None:
        """Close the connection, unless it lasts until mappings have ended."""
        if not self._kept:
            self._connection.close()

    def forget_in_child(self, lost: errors.PoolLost) -> None:
        """Close the descriptor in a forked child, which would otherwise keep the session alive."""
        self.lock = threading.RLock()  # a thread of the parent may hold the other
        self._sending, self._releases_lock = threading.Lock(), threading.Lock()
        self.lost = lost
        self._connection.close()

    def _hear(  # noqa: C901 - one case for each kind of message
        self, message: session.FromSupervisor
    ) -> None:
        match message:
            case session.Answer() | session.SlabOpened() | session.WorldMade():
                self._answer(message)
            case suspects.Suspicions():
                self.suspicions.take(message.changed)
                self._heard(message)
            case session.DeviceChanged(device, actors):
                self._change_device(device)
                if actors is not None:
                    self._learn(actors)
                self._publish(message)
            case session.WorldChanged(world):
                self.worlds.take(world)
                self._heard(message)
                self._wake_waiting()
            case session.IncarnationEnded(device_index, generation):
                self._end_incarnation(device_index, generation)
                self._publish(message)
            case session.IncarnationStopped():
                self._heard(message)
            case session.TraceChanged(on):
                self.is_traced = on
            case session.SlabOffered():
                descriptor = self._connection.take_offered(message)
                self._offered(message, self.releases(message.device, message.generation), descriptor)
            case session.Goodbye(error):
                self.workers_live = error.code != errors.PoolLost.code
                lost = error.error()
                if not isinstance(lost, errors.PoolLost):
                    lost = errors.PoolLost(
                        f"the supervisor has ended this client's session, since {error.message}; the pool goes on: "
                        "mend that, and connect again"
                    )
                self.lose(lost)

    def _publish(self, message: session.DeviceChanged | session.IncarnationEnded) -> None:
        self._heard(message)
        self._wake_waiting()
        for listener in self.listeners:
            _tell(listener, message)

    def _end_incarnation(self, device: int, generation: int) -> None:
        """Record that an incarnation has ended."""
        info = self.devices[device]
        if info.generation == generation:
            # The device's new state is told later; a lane that is made meanwhile must not send to this one.
            self.devices[device] = msgspec.structs.replace(info, admitted=False, endpoint="")
        ended = self.known_releases(device, generation)
        if ended is not None:
            ended.over = True

    def _change_device(self, device: devices.DeviceInfo) -> None:
        """Record a device's new state, and release a standby's memory if the standby has gone."""
        before, standby = self.devices[device.index].standby, device.standby
        self.devices[device.index] = device
        living = {device.generation, 0 if standby is None else standby.generation}
        if before is None or before.generation in living:
            return
        ended = self.known_releases(device.index, before.generation)
        if ended is not None:
            ended.end(awaited=False)
            self._over(ended)

    def _learn(self, actors: list[devices.ActorInfo]) -> None:
        self.actors = actors
        self.homes = homes_of(actors)
        self.methods = {f"{actor.name}.{method.name}": method for actor in actors for method in actor.methods}


class Answered(NamedTuple):
    """An answer in the session."""

    message: AnswerMessage
    descriptor: int | None
    """The descriptor that came with it; the asker closes it."""


class _LastMappings:
    """The connection of a closed client that has memory mapped. Its end tells the supervisor that it has none.

    Args:
        connection: The connection.
        count: The number of mappings.
    """

    def __init__(self, connection: SessionEnd, count: int) -> None:
        self._connection = connection
        self._left = list(range(count))
        self._pid: Final = os.getpid()

    def unmapped(self) -> None:
        """A mapping has ended. On any thread, in the middle of anything; also in a forked child, for its copies."""
        self._left.pop()
        if self._left:
            return
        if os.getpid() == self._pid:
            self._connection.hang_up()
        else:
            self._connection.close()


def _tell(listener: Callable[[Any], object], message: object) -> None:
    try:
        listener(message)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - the reading thread is not to blame
        _LOG.error("a listener to lifecycle events failed:\n%s", traceback_of(error))
