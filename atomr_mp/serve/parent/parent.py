"""The parent of the front ends: owns the listening socket and, if it has started one, the pool.

A front end that dies costs its open connections: others accept meanwhile, connections in the socket's queue wait, and a
new front end is started. The parent answers no request itself, and imports no code that does.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from atomr_mp import errors
from atomr_mp.process import interpreter, oom
from atomr_mp.process.notify import Notifier
from atomr_mp.serve.front_end.plan import FrontEndPlan
from atomr_mp.serve.metrics import BEAT_S, MEMORY, Heartbeats, shared_bytes
from atomr_mp.serve.oip.sequences.table import MEMORY as SEQUENCES
from atomr_mp.serve.oip.sequences.table import shared_bytes as sequences_bytes
from atomr_mp.serve.parent.backoff import Backoff
from atomr_mp.serve.parent.child_output import ChildOutput, StrayLines
from atomr_mp.serve.parent.pool_keeper import JoinedPoolKeeper, PoolKeeper
from atomr_mp.serve.parent.pool_story import PoolStory
from atomr_mp.serve.parent.saved_files import SavedFiles
from atomr_mp.serve.parent.supervisor_watch import SupervisorWatch
from atomr_mp.serve.server_log import tell

_LOG: Final = logging.getLogger("atomr_mp.serve")

MODULE: Final = "atomr_mp.serve.front_end"


END_MARGIN_S: Final = 5.0
"""How much longer than its drain a front end may take to end."""

ABORT_S: Final = 2.0
"""How long a front end that hangs may take to write its stack."""

ENDING_HANG_S: Final = 5.0
"""How long a front end may be deaf while the server ends."""


class FrontEnd(NamedTuple):
    """A front-end process that runs."""

    process: subprocess.Popen[bytes]
    pidfd: int
    started_s: float
    """When it was started, by `time.monotonic`."""


class Parent:
    """Keeps front ends running, and the pool that it has started.

    Args:
        plan: The plan for each front end.
        listening: The socket on which they accept; owned from here on.
        keeper: Keeps the pool, or a session with it if this process has not started it; owned from here on.
        accepts: Called once when the first front end accepts and knows the pool's methods.
        story: Tells what happens to the pool.
        others: The standard error of other children; owned from here on.
        notifier: Tells the service manager that the server lives, and that it ends.
        saved: Tells when the actors' files were saved, and their code is reloaded; None if nobody watches them.
        hangup_ends: Whether SIGHUP ends the server, as when its terminal is closed; else it reloads the actors.
    """

    def __init__(
        self,
        plan: FrontEndPlan,
        listening: socket.socket,
        keeper: PoolKeeper | JoinedPoolKeeper,
        accepts: Callable[[], None],
        story: PoolStory,
        *,
        others: Sequence[StrayLines] = (),
        notifier: Notifier,
        saved: SavedFiles | None = None,
        hangup_ends: bool,
    ) -> None:
        self._saved: Final = saved
        self._plan: Final = plan
        self._listening: Final = listening
        self._keeper: Final = keeper
        self._told_accepts: Final = accepts
        self._story: Final = story
        self._notifier: Final = notifier
        self._outputs: Final = [ChildOutput(f"front end {slot}") for slot in range(plan.slots)]
        self._told_outputs: Final[list[ChildOutput | StrayLines]] = [*self._outputs, *others]
        self._hangup_ends: Final = hangup_ends
        self._reloading: asyncio.Task[None] | None = None
        self._reload_again = False
        """Whether SIGHUP has come during a reload, which may have loaded the code before it changed."""
        self._running: dict[int, FrontEnd] = {}
        """Front ends by slot."""
        self._backoffs: Final = [Backoff() for _ in range(plan.slots)]
        self._stopping = asyncio.Event()
        self._all_ended = asyncio.Event()
        self._plan_descriptor: Final = plan.to_descriptor()
        self._counters: Final = os.memfd_create(MEMORY)
        os.ftruncate(self._counters, shared_bytes(plan.slots))
        self._look: Final = os.memfd_create("atomr-mp-serve-look")
        """Memory for the front ends' latest look at the pool."""
        self._sequences: Final = os.memfd_create(SEQUENCES)
        os.ftruncate(self._sequences, sequences_bytes(plan.limits.sequences))
        self._regions: Final = os.memfd_create("atomr-mp-serve-regions")
        """Memory for the regions of shared memory that clients register."""
        self._accepting, self._accepts = os.pipe2(os.O_CLOEXEC)

    async def run(self) -> None:
        """Serve until SIGTERM or Ctrl-C; stop the pool last if this process has started it.

        Raises:
            AtomrError: The pool that this process has started did not get ready the first time.
            TimeoutError: Likewise, in time.
        """
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop)
        loop.add_signal_handler(signal.SIGHUP, self._hang_up)
        loop.add_reader(self._accepting, self._first_accepts)
        watching = loop.create_task(self._replace_deaf())
        telling = loop.create_task(self._story.keep_telling())
        keeping = loop.create_task(self._keeper.keep())
        asking = loop.create_task(SupervisorWatch(lambda: self._keeper.pool, self._notifier).keep_watching())
        stopping = loop.create_task(self._stopping.wait())
        following = loop.create_task(self._reload_what_is_saved())
        for out in self._told_outputs:
            out.watch()
        try:
            for slot in range(self._plan.slots):
                self._start_front_end(slot)
            await asyncio.wait({keeping, stopping}, return_when=asyncio.FIRST_COMPLETED)
            self._stopping.set()
            self._notifier.stopping("requests are drained")
            self._tell_ending()
            await self._end_front_ends()
        finally:
            for each in self._running.values():
                each.process.kill()
            for each in self._running.values():
                each.process.wait()
                os.close(each.pidfd)
            loop.remove_reader(self._accepting)
            self._listening.close()
            shared = self._plan_descriptor, self._counters, self._look, self._sequences, self._regions
            for descriptor in (*shared, self._accepting, self._accepts):
                os.close(descriptor)
            failed = keeping.exception() if keeping.done() else None
            for task in (watching, stopping, following, keeping, self._reloading, telling, asking):
                if task is not None:
                    task.cancel()
                    with contextlib.suppress(asyncio.CancelledError, errors.AtomrError, TimeoutError, OSError):
                        await task
            await self._keeper.close()
            await asyncio.to_thread(self._story.close)  # what the pool's end was like comes before the last words
            tell(logging.INFO, "ended", "the server has ended")
            self._close_outputs()
        if failed is not None:
            try:
                raise failed
            finally:
                del failed

    def _tell_ending(self) -> None:
        """Tell what comes, since nothing more may be heard for that long."""
        plan = self._plan
        steps = [f"connections are accepted for {plan.drain_delay_s:g} s more"] if plan.drain_delay_s else []
        steps.append(f"requests that run are answered, for at most {plan.drain_timeout_s:g} s")
        if isinstance(self._keeper, PoolKeeper):
            steps.append("then the pool is stopped")
        tell(logging.INFO, "ending", f"the server ends: {'; '.join(steps)}")

    def _close_outputs(self) -> None:
        for out in self._told_outputs:
            out.rest()
            out.close()

    # --- front ends ------------------------------------------------------------------------------------------------

    def _start_front_end(self, slot: int) -> None:
        if self._stopping.is_set():
            return
        out = self._outputs[slot]
        log = out.log.writing
        first = (self._plan_descriptor, self._listening.fileno(), self._counters)
        inherited = (*first, self._accepts, self._look, log, self._sequences, self._regions)
        numbers = (*first, slot, *inherited[len(first) :])
        try:
            popen = subprocess.Popen(  # in the main thread, since the front end dies with the thread that made it
                interpreter.module(MODULE, *map(str, numbers)),
                stdin=subprocess.DEVNULL,
                stderr=out.stray.pipe.writing,
                pass_fds=inherited,
                start_new_session=True,  # so that only the parent gets Ctrl-C
            )
            pidfd = os.pidfd_open(popen.pid)
        except OSError as error:
            _LOG.warning("front end %d cannot be started: %s", slot, error)
            self._start_later(slot, 0.0)
            return
        oom.offer(popen.pid)
        self._running[slot] = FrontEnd(popen, pidfd, time.monotonic())
        asyncio.get_running_loop().add_reader(pidfd, self._ended, slot)

    def _start_later(self, slot: int, lived_s: float) -> None:
        delay_s = self._backoffs[slot].next_s(lived_s)
        asyncio.get_running_loop().call_later(delay_s, self._start_front_end, slot)

    async def _replace_deaf(self) -> None:
        """End front ends whose event loop does not turn, with their stacks in the log."""
        beats = Heartbeats(self._counters, self._plan.slots)
        aborted: set[int] = set()
        killed: set[int] = set()
        while True:
            await asyncio.sleep(BEAT_S)  # a heartbeat that is missing is no event
            most_s = ENDING_HANG_S if self._stopping.is_set() else self._plan.limits.hang_s
            for slot, front_end in list(self._running.items()):
                pid, deaf_s = front_end.process.pid, beats.since_s(slot, front_end.started_s)
                if deaf_s > most_s + ABORT_S and pid in aborted:
                    if pid not in killed:
                        killed.add(pid)
                        text = f"front end {slot} (pid {pid}) has not ended, as a process that is stopped; it is killed"
                        tell(logging.WARNING, "front_end_killed", text, slot=slot, pid=pid)
                    front_end.process.kill()
                elif deaf_s > most_s and pid not in aborted:
                    aborted.add(pid)
                    text = f"front end {slot} (pid {pid}) has been deaf for {deaf_s:.0f} s; it is to write its stack"
                    tell(logging.WARNING, "front_end_deaf", text, slot=slot, pid=pid)
                    front_end.process.send_signal(signal.SIGABRT)

    def _ended(self, slot: int) -> None:
        popen, pidfd, started_s = self._running.pop(slot)
        asyncio.get_running_loop().remove_reader(pidfd)
        os.close(pidfd)
        status = popen.wait()
        self._outputs[slot].rest()  # first, since its last words say why
        if not self._stopping.is_set():
            text = f"front end {slot} (pid {popen.pid}) has ended with status {status}; the next starts"
            tell(logging.WARNING, "front_end_ended", text, slot=slot, pid=popen.pid, status=status)
            self._start_later(slot, time.monotonic() - started_s)
        elif not self._running:
            self._all_ended.set()

    def _first_accepts(self) -> None:
        """Announce, once, that the server answers."""
        asyncio.get_running_loop().remove_reader(self._accepting)
        tell(logging.INFO, "accepting", "a front end accepts connections, and knows the pool's methods")
        self._told_accepts()

    def _hang_up(self) -> None:
        """Reload the actors, or end as the terminal has."""
        if self._hangup_ends:
            self._stop()
        elif isinstance(self._keeper, JoinedPoolKeeper):
            _LOG.warning("SIGHUP: the pool is not this server's; `atomr-mp reload` reloads its actors")
        elif self._reloading is None or self._reloading.done():
            self._reloading = asyncio.get_running_loop().create_task(self._reload(self._keeper))
        elif not self._reload_again:
            self._reload_again = True
            tell(logging.INFO, "reload_waits", "SIGHUP: the pool is being reloaded, and is reloaded again after that")

    async def _reload(self, keeper: PoolKeeper) -> None:
        await keeper.reload()
        while self._reload_again:
            self._reload_again = False
            await keeper.reload()

    async def _reload_what_is_saved(self) -> None:
        """Reload the actors whenever their files were saved."""
        keeper = self._keeper
        if self._saved is None or isinstance(keeper, JoinedPoolKeeper):
            return

        async def reload() -> None:
            if self._reloading is not None:
                await asyncio.wait({self._reloading})  # by SIGHUP, maybe from before the file was saved
            self._reloading = asyncio.get_running_loop().create_task(self._reload(keeper))
            await asyncio.wait({self._reloading})

        await self._saved.keep_reloading(lambda: keeper.was_ready, reload)

    def _stop(self) -> None:
        """End in order; at once at the second signal."""
        if self._stopping.is_set():
            for each in self._running.values():
                each.process.kill()
            return
        self._stopping.set()

    async def _end_front_ends(self) -> None:
        for each in self._running.values():
            each.process.terminate()
        # Clients can connect to the socket as long as one process has it open.
        asyncio.get_running_loop().call_later(self._plan.drain_delay_s, self._listening.close)
        if self._running:
            limit_s = self._plan.drain_delay_s + self._plan.drain_timeout_s + END_MARGIN_S
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._all_ended.wait(), limit_s)
