"""One process of a device: messages to it, messages from it, its end. The device decides what they mean."""

from __future__ import annotations

import functools
import logging
import os
import select
import signal
import time
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from typing import Final, Protocol

from atomr_mp import errors
from atomr_mp.process.cgroup import WorkerCgroup
from atomr_mp.process.oom import OomKills, rise_in_words
from atomr_mp.process.spawn import ExitCause, WorkerProcess
from atomr_mp.protocol.board import BoardReader
from atomr_mp.protocol.codec import MAX_SESSION_MESSAGE_BYTES
from atomr_mp.protocol.exceptions import describe, traceback_of
from atomr_mp.protocol.messages import control
from atomr_mp.protocol.messages.devices import ActorInfo
from atomr_mp.supervisor.loop import Loop, Timer
from atomr_mp.supervisor.processes.live_board import LiveBoard
from atomr_mp.supervisor.processes.outbox import Outbox
from atomr_mp.supervisor.processes.parting import Parting
from atomr_mp.transport import descriptors
from atomr_mp.transport.descriptors import Descriptor

FREEZE_S: Final = 0.005
"""A process that should stop by itself after its last answers is stopped after this time."""


STACKS_S: Final = 1.0
"""How long a process has for writing its stacks into its log, once a call before it is ready has taken too long."""

LOOK_S: Final = 0.0003
LOOKS: Final = 15
"""Interval of looks at whether a process ends, after one of its threads has ended."""


class MessageListener(Protocol):
    """Receives a process's messages."""

    def heard(self, worker: Incarnation, message: control.FromWorker, descriptor: Descriptor | None) -> None:
        """It has sent a message; the descriptor is the caller's."""

    def garbled(self, worker: Incarnation, error: errors.ProtocolError) -> None:
        """It has sent bytes that are no message."""

    def caught_up(self, worker: Incarnation) -> None:
        """All waiting messages to it have been sent."""


class DeathListener(Protocol):
    """Receives the signs of a process's end. Messages and end of file come before its exit."""

    def late(self, worker: Incarnation) -> None:
        """It was not ready in time."""

    def dies(self, worker: Incarnation) -> None:
        """It has begun to end, by a kill or a crash, and is going to hang up."""

    def stopped(self, worker: Incarnation) -> None:
        """A dying process (`dies`) has stopped running, and its cause is known; it has not hung up yet."""

    def hung_up(self, worker: Incarnation, *, dying: bool) -> None:
        """Its control channel has ended; if it is dying, it has stopped running, and its cause is known."""

    def exited(self, worker: Incarnation) -> None:
        """Its process has ended, and was reaped."""

    def survived(self, worker: Incarnation) -> None:
        """It was killed, and has not ended in time."""


class Incarnation:
    """One process of a device, from its start to its end.

    Args:
        device: The device's index.
        process: The process, just started.
        loop: The supervisor's loop.
        cgroup: Its cgroup, if it has one.
        messages: Receives its messages.
        deaths: Receives the signs of its end.
        kill_timeout_s: How long it may take to end once it is killed.
        oom_kills: Tells whether the kernel has lately killed for memory.
    """

    _threads: tuple[int, ...] = ()
    """Pidfds of some of its threads, which tell sooner of its end."""
    _warming: Timer | None = None
    """The timer of a call that it makes before it is ready."""
    _look: Timer | None = None
    """The next look at whether it ends."""
    _dies = False
    """Whether `dies` was called."""

    def __init__(
        self,
        device: int,
        process: WorkerProcess,
        loop: Loop,
        cgroup: WorkerCgroup | None,
        messages: MessageListener,
        deaths: DeathListener,
        kill_timeout_s: float,
        oom_kills: OomKills | None = None,
    ) -> None:
        self.device: Final = device
        self.process: Final = process
        self.generation: Final = process.generation
        self.key: Final = (device, process.generation)
        """Its device and generation."""
        self.pid: Final = process.pid
        self.cgroup: Final = cgroup
        self.parting: Final = Parting()
        """The reason of its end."""
        self._started_s = time.monotonic()
        self._ready_s: float | None = None
        self._promoted_s: float | None = None
        """Time of its promotion; None if it was not a standby, or still is one."""
        self._leaving = False
        self._is_waited_for = False
        self._actors: list[ActorInfo] = []
        self._admitted: set[int] = set()
        self._admitting: set[int] = set()
        """Sessions that it has acknowledged before all messages about them were sent."""
        self._cause = ExitCause()
        self._memory = ""
        """What the kernel has counted, in words, if it may have killed it for its memory."""
        self._oom_kills = oom_kills
        self._timer: Timer | None = None
        """The timer of its start, or of its drain."""
        self._is_stuck = False
        self._kill_timeout_s = kill_timeout_s
        self._kill_timer: Timer | None = None
        self._loop = loop
        self._messages = messages
        self._deaths = deaths
        self._outbox = Outbox(process.control)
        self._hears = True
        """Its control channel has not ended."""
        self._once_frozen: Callable[[], object] | None = None
        """Called when it has stopped running, though it lives."""
        self._over = False
        """Whether it was released."""
        loop.watch(process.pidfd, select.EPOLLIN, self._on_exit)
        loop.watch(process.control.fileno(), select.EPOLLIN, self._on_control)

    @property
    def age_s(self) -> float:
        """How long it has taken calls; a standby does not grow old."""
        return time.monotonic() - (self._promoted_s or self._started_s)

    @property
    def start_s(self) -> float:
        """How long its start took, or has taken until now."""
        return (time.monotonic() if self._ready_s is None else self._ready_s) - self._started_s

    @property
    def ready_for_s(self) -> float | None:
        """How long ago it became ready; None if it never did."""
        return None if self._ready_s is None else time.monotonic() - self._ready_s

    @property
    def was_ready(self) -> bool:
        """Whether it ever became ready."""
        return self._ready_s is not None

    @property
    def is_ready(self) -> bool:
        """Whether it can take calls, or could on an order."""
        return self._ready_s is not None and not self._leaving

    @property
    def took_over_ready(self) -> bool:
        """Whether it was a standby, and ready before it was promoted."""
        return self._promoted_s is not None and self._ready_s is not None and self._promoted_s > self._ready_s

    @property
    def leaving(self) -> bool:
        """Whether it was killed, or ordered to leave, so that its further messages do not count."""
        return self._leaving

    @property
    def drained(self) -> bool:
        """Whether it was ordered to finish its requests."""
        return self.parting.drained

    @property
    def actors(self) -> list[ActorInfo]:
        """Its actors, once it is ready."""
        return self._actors

    @property
    def methods(self) -> list[str]:
        """The names of its actors' methods, in the order in which it numbers them."""
        return [f"{actor.name}.{method.name}" for actor in self._actors for method in actor.methods]

    @property
    def admitted(self) -> AbstractSet[int]:
        """Sessions that it has acknowledged, and that may call it."""
        return self._admitted

    @property
    def cause(self) -> ExitCause:
        """The cause of its end, once it has stopped running."""
        return self._cause

    @property
    def is_stuck(self) -> bool:
        """Whether it was killed, and has not ended in time."""
        return self._is_stuck

    @property
    def is_behind(self) -> bool:
        """Whether messages to it wait here, since it has not read earlier ones."""
        return bool(self._outbox)

    @property
    def board(self) -> BoardReader:
        """Its board as it is, unchecked; release it."""
        return BoardReader(self.process.board)

    @functools.cached_property
    def live_board(self) -> LiveBoard:
        """Its board, as far as it is believed."""
        return LiveBoard(self.process.board)

    def expect_ready(self, timeout_s: float) -> None:
        """Start the timer of its start."""
        self.set_timer(timeout_s, lambda: self._deaths.late(self))

    def warming_up(self, method: str, limit_s: float) -> None:
        """Note the method that it calls with its example from now on; empty once it has called all.

        Args:
            method: The method.
            limit_s: How long that may take; 0 for as long as the start.
        """
        if self._warming is not None:
            self._warming.cancel()
        late = functools.partial(self._on_warming_too_long, method, limit_s)
        self._warming = self._loop.call_later(limit_s + STACKS_S, late) if method and limit_s else None

    def became_ready(self, actors: list[ActorInfo]) -> None:
        """Record that it can take calls, and its actors; its end is seen sooner from now on."""
        self._actors = actors
        if self._ready_s is None:
            self._ready_s = time.monotonic()
        self.watch_threads()

    def promote(self, predecessor_end: Descriptor | None) -> None:
        """Tell it to take calls.

        Args:
            predecessor_end: The descriptor that signals the predecessor's end; owned from here on.
        """
        self.tell(control.Promote(), predecessor_end)
        self._promoted_s = time.monotonic()

    def drain(self, timeout_s: float, on_timeout: Callable[[], None], *, waited_for: bool = False) -> None:
        """Tell it to finish its requests and leave; start the timer of that anew.

        Args:
            timeout_s: The time that it has.
            on_timeout: Called after that.
            waited_for: Whether nothing takes calls before its end.
        """
        self.parting.told_to_finish()
        self._is_waited_for = waited_for or self._is_waited_for
        self.tell(control.Drain(self._is_waited_for))
        self.set_timer(timeout_s, on_timeout)

    def wait_for(self) -> None:
        """Tell it, once, that nothing takes calls before its end."""
        if not self._is_waited_for:
            self._is_waited_for = True
            self.tell(control.Drain(waited_for=True))

    def leave(self) -> None:
        """Ignore its further messages."""
        self._leaving = True

    def acknowledged(self, session: int) -> None:
        """It has acknowledged a session, which may call it once all earlier messages to it were sent."""
        self._admitting.add(session)

    def closed(self, session: int) -> None:
        """It has finished with a session."""
        self._admitted.discard(session)
        self._admitting.discard(session)

    def admit(self) -> list[int]:
        """Return the sessions that may call it from now on; none while messages to it wait."""
        if self._outbox:
            return []
        admitting, self._admitting = sorted(self._admitting), set()
        self._admitted.update(admitting)
        return admitting

    def set_timer(self, delay_s: float, call: Callable[[], None]) -> None:
        """Call `call()` after a time, unless it ends before or the timer is set anew."""
        self.cancel_timer()
        self._timer = self._loop.call_later(delay_s, call)

    def tell(self, message: control.FromSupervisor, descriptor: Descriptor | None = None) -> None:
        """Send a message; one that it does not take yet is queued.

        Args:
            message: The message.
            descriptor: Travels with it; owned from here on.
        """
        if self._hears:
            self._outbox.put(message, descriptor)
            self.flush()
        elif descriptor is not None:
            descriptor.close()

    def withdraw(self, session: int) -> bool:
        """Drop messages that wait here for an ended session; False if the process may have heard of it."""
        return self._outbox.withdraw(session)

    def listen(self) -> bool:
        """Read its messages; return False if its control channel has ended."""
        while not self._over:
            try:
                packet, descriptor = descriptors.receive(self.process.control, MAX_SESSION_MESSAGE_BYTES)
            except BlockingIOError:
                return True
            except (
                ConnectionResetError
            ):  # it has ended without having read all; its own messages can be read all the same
                continue
            except OSError:
                return False
            try:
                if not packet:
                    return False
                self._messages.heard(self, control.FROM_WORKER.decode(packet), descriptor)
            except errors.ProtocolError as error:
                self._messages.garbled(self, error)
            except Exception as fault:  # noqa: BLE001 - ours; it costs this process
                _LOG.error("internal error with a message of process %d:\n%s", self.process.pid, traceback_of(fault))
                self._messages.garbled(self, errors.ProtocolError(f"its message has met a fault: {describe(fault)}"))
            finally:
                if descriptor is not None:
                    descriptor.close()
        return True

    def kill(self) -> None:
        """Send SIGKILL to its process group."""
        self._leaving = True
        self.process.kill()
        if self._kill_timer is None and self.process.pidfd >= 0:
            self._kill_timer = self._loop.call_later(self._kill_timeout_s, self._on_kill_timeout)

    def freeze(self, then: Callable[[], object]) -> None:
        """Call `then` as soon as it has stopped running, though it lives: it stops by itself, or is stopped."""
        self._loop.call_later(FREEZE_S, self.process.freeze)
        self._once_frozen = then
        self.look()

    def look(self) -> None:
        """See whether it has stopped; to be called after each SIGCHLD."""
        if self._once_frozen is not None and self.process.frozen():
            then, self._once_frozen = self._once_frozen, None
            then()

    @property
    def end(self) -> str:
        """The end in words."""
        if self._is_stuck:
            return "was killed and does not end"
        if self._cause.signal == signal.SIGKILL and self.parting.is_deadly:
            fault = self.parting.fault
            return fault.cause if isinstance(fault, errors.WorkerHung) else "was ended by its supervisor"
        return f"{self._cause.describe()}; {self._memory}" if self._memory else self._cause.describe()

    @property
    def why(self) -> str:
        """Why it takes no more calls, in words, as far as that is known by now."""
        if self._cause != ExitCause():
            return self.end
        if self.parting.fault is not None:
            return self.parting.fault.message
        return f"its worker is replaced ({self.parting.wish})" if self.parting.wish else "ended"

    def _on_warming_too_long(self, method: str, limit_s: float) -> None:
        self._warming = None
        if not (self.was_ready or self._leaving or self._over):
            text = f"warming up {method} with its example took longer than {limit_s:g} s (hang_timeout_s)"
            self.parting.failed(errors.SetupFailed(text))
            self._deaths.late(self)

    def cancel_timer(self) -> None:
        """Forget the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def close(self) -> None:
        """Release it, once it has ended."""
        self._over = True
        self._forget_threads()
        self.cancel_timer()
        self.warming_up("", 0.0)
        self.process.close()

    def flush(self) -> None:
        """Send what waits."""
        channel = self.process.control
        try:
            if not self._outbox.send():
                self._loop.rewatch(channel.fileno(), select.EPOLLIN | select.EPOLLOUT)
                return
        except OSError:  # its end of file will tell
            return
        self._loop.rewatch(channel.fileno(), select.EPOLLIN)
        self._messages.caught_up(self)

    def watch_threads(self) -> None:
        """Watch some of its threads, which tell sooner of a kill or a crash; the pidfd tells of every end."""
        self._forget_threads()
        self._threads = tuple(self.process.open_threads())
        for thread in self._threads:
            self._loop.watch(thread, select.EPOLLIN, functools.partial(self._on_thread_end, thread))

    def _on_thread_end(self, thread: int, _events: int) -> None:
        self._forget_thread(thread)
        if self._look is not None:
            self._look.cancel()
        self._check_dying(LOOKS)
        if self._hears and not (self._dies or self._over):
            self.watch_threads()  # the thread may have ended by itself

    def _check_dying(self, looks: int) -> None:
        """A watched thread has ended. If it did not end by itself, the kernel is ending the others too."""
        if not self._hears or self._over:
            return
        dying = self.process.dying()
        if dying is not None and not self._dies:
            self._dies, self._cause = True, dying
            if not self.listen():
                return
            self._deaths.dies(self)
        if dying is not None and not self.process.running():
            self._forget_threads()
            self._ended_by(dying)
            self._deaths.stopped(self)
        elif looks:
            self._look = self._loop.call_later(LOOK_S, lambda: self._check_dying(looks - 1))

    def _forget_threads(self) -> None:
        for thread in self._threads:
            self._forget_thread(thread)

    def _forget_thread(self, thread: int) -> None:
        self._threads = tuple(each for each in self._threads if each != thread)
        self._loop.forget(thread)
        os.close(thread)

    def _on_control(self, events: int) -> None:
        if events & select.EPOLLOUT:
            self.flush()
        if events & ~select.EPOLLOUT and not self.listen():
            self.hang_up()

    def hang_up(self) -> None:
        """Record that its control channel has ended."""
        if self._hears:
            self._stop_telling()
            dying = self.process.dying()
            if dying is not None:
                self._ended_by(dying)
            self._deaths.hung_up(self, dying=dying is not None)

    def _on_exit(self, _events: int) -> None:
        """The pidfd says that the process has ended."""
        self.listen()  # messages that the worker sent before its end
        self._loop.forget(self.process.pidfd)
        self._stop_telling()
        if self._kill_timer is not None:
            self._kill_timer.cancel()
        self._ended_by(self.process.reap())
        if self.cgroup is not None:
            self.cgroup.kill()
        self._deaths.exited(self)

    def _ended_by(self, cause: ExitCause) -> None:
        """Note how it has ended, and what the kernel has counted if it was killed by somebody else."""
        self._cause = cause
        if cause.signal != signal.SIGKILL or self._leaving or self._memory:
            return
        own = 0 if self.cgroup is None else self.cgroup.oom_kills()
        if own:
            self._memory = rise_in_words("its cgroup", 0, own)
        elif self._oom_kills is not None:
            self._memory = self._oom_kills.rise()

    def _on_kill_timeout(self) -> None:
        self._is_stuck = True
        self._stop_telling()
        self._deaths.survived(self)

    def _stop_telling(self) -> None:
        self._forget_threads()
        if self._hears:
            self._hears = False
            self._loop.forget(self.process.control.fileno())
            self._outbox.drop()


_LOG: Final = logging.getLogger("atomr_mp.supervisor")
