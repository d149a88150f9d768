"""A pool's supervisor: devices and sessions on one loop, from the first start to the last end."""

from __future__ import annotations

import functools
import logging
import os
import signal
import time
from collections.abc import Callable, Mapping
from typing import Final

from atomr_mp import errors
from atomr_mp.process.adopt import adopted_children, kill_adopted, still_running
from atomr_mp.process.files import disk
from atomr_mp.process.files.events import EventLog, Scalar
from atomr_mp.process.files.rundir import HeldRunDirectory
from atomr_mp.process.notify import Notifier
from atomr_mp.process.oom import OomKills
from atomr_mp.process.prctl import set_child_subreaper
from atomr_mp.process.scheduling import standstill
from atomr_mp.process.zygote_process import ZygoteProcess
from atomr_mp.protocol.board import BoardReader, Counter, Gauge
from atomr_mp.protocol.codec import ErrorInfo, clip
from atomr_mp.protocol.library_names import ENGINES, LIBRARIES
from atomr_mp.protocol.messages import devices, operators, session
from atomr_mp.protocol.process_tags import epoch_label
from atomr_mp.protocol.words import counted
from atomr_mp.supervision.lifecycle import State
from atomr_mp.supervision.settings import OFF
from atomr_mp.supervision.standby import Turns
from atomr_mp.supervisor.care.exporter import Exporter
from atomr_mp.supervisor.care.health import HealthWatch
from atomr_mp.supervisor.care.helpers import Helpers
from atomr_mp.supervisor.care.inventory import take_inventory
from atomr_mp.supervisor.care.recycler import Recycler
from atomr_mp.supervisor.care.relay import RelayKeeper
from atomr_mp.supervisor.care.reload import Done, Reload
from atomr_mp.supervisor.care.run_files import RunFiles
from atomr_mp.supervisor.care.usage import memory_bytes, started_at
from atomr_mp.supervisor.care.watchdog import Watchdog
from atomr_mp.supervisor.device.device import PoolServices, SupervisedDevice
from atomr_mp.supervisor.device.quarantine import StuckOnGpu
from atomr_mp.supervisor.loop import Loop
from atomr_mp.supervisor.plan import Plan
from atomr_mp.supervisor.processes.process_factory import ProcessFactory
from atomr_mp.supervisor.sessions.residents import ResidentKeeper
from atomr_mp.supervisor.sessions.sessions import Order, Question, Respond, Sessions
from atomr_mp.supervisor.worlds.made_worlds import MadeWorlds
from atomr_mp.supervisor.worlds.worlds import Worlds
from atomr_mp.transport.session import SessionPeer
from atomr_mp.version import __version__

_LOG: Final = logging.getLogger("atomr_mp.supervisor")

REASON_CHARS: Final = 4000
"""Longest reason of a failed reload that a status has."""

MOST_WAITING_RELOADS: Final = 64
"""Orders that wait for the end of a reload; they are carried out as one."""

SHOWN_WORK: Final = 32
"""Methods of libraries whose work a status has, of each device: it is one message."""

SURVIVORS_S: Final = 10.0
"""How long workers of a killed supervisor may take to die before this one gives up."""

TIDY_S: Final = 1.0
"""How long this supervisor waits, at its end, for processes that killed workers had started."""

HOUSEKEEPING_S: Final = 5.0
"""Interval of looks at log files, whose size is not an event, and of new attempts after a lack of descriptors."""


class Supervisor:
    """A pool's supervisor.

    Args:
        plan: The pool to run.
        run_dir: The run directory, held by this process.
        starter: The session of the process that started this one, if there is one.
        zygote: The zygote's process, if it was started already.
        bound: The pool ends with that session.
    """

    def __init__(
        self,
        plan: Plan,
        run_dir: HeldRunDirectory,
        starter: SessionPeer | None,
        zygote: ZygoteProcess | None = None,
        *,
        bound: bool,
    ) -> None:
        self._plan = plan
        self._run_dir = run_dir
        self._starter = starter
        self._bound = bound
        self._has_terminal = _has_terminal()
        self._loop = Loop()
        self._stopping = False
        self._helpers = Helpers(self._loop)
        self._notifier = Notifier()
        self._begun = False
        """Whether the devices were started."""
        self._was_ready = False
        """Whether the service manager knows that the pool is up."""
        self._relay: RelayKeeper | None = None
        self._reload: Reload | None = None
        self._reload_failed = 0.0, ""
        """When the last reload has failed, in seconds since 1970, and why; 0 if it has not."""
        self._reload_waits: list[Done] = []
        """Whoever has ordered a reload while another ran, or the pool started: one reload after that is for all."""
        self._files: RunFiles | None = None
        self._metrics: Exporter | None = None
        self._has_orphans = False
        """Whether the search for leftovers of dead workers failed."""
        self._strangers = set(adopted_children(set() if zygote is None else {zygote.popen.pid}))
        """Children that this process had before it became a supervisor, such as a script's."""
        self._started_at = time.time()
        epoch = self._epoch = os.urandom(16)
        self._events = EventLog(run_dir.events)
        self.devices: Final[list[SupervisedDevice]] = []
        self._sessions = Sessions(
            plan,
            epoch,
            self._loop,
            self.devices,
            describe=self._describe,
            carry_out=self._carry_out,
            unreached=self._look_after_files,
            owner_gone=self._owner_gone,
            worlds=lambda session: self._worlds.of_session(session),  # noqa: PLW0108 - it is made below
            made_worlds=lambda: self._made_worlds,
        )
        self._worlds = Worlds(
            plan.worlds,
            self.devices,
            self._loop,
            tell=self._sessions.world_changed,
            note=self._note_world,
            client_of=self._sessions.client_of,
        )
        self._made_worlds = MadeWorlds(
            self._worlds,
            len(plan.worlds),
            len(plan.devices),
            plan.backend,
            self._loop,
            self._sessions.own_world_changed,
        )
        self._factory = ProcessFactory(plan, self._loop, run_dir, self._events, zygote)
        self._residents = ResidentKeeper(plan.backend, plan.settings.resident_max_bytes, self.devices, self._events)
        self._oom_kills: Final = OomKills()
        stuck = {device.gpu: StuckOnGpu() for device in plan.devices}
        shared = PoolServices(
            self._loop,
            run_dir,
            self._events,
            epoch,
            self._sessions,
            self._residents,
            self._factory,
            Turns(plan.settings.standby_starts),
            self._worlds,
            self._oom_kills,
        )
        self.devices.extend(
            SupervisedDevice(
                plan, each, shared, stuck[each.gpu], ended=self._worker_ended, changed=self._device_changed
            )
            for each in plan.devices
        )
        gpus = {device.gpu: device.uuid for device in plan.devices if device.uuid}
        self._health = HealthWatch(self._loop, self._helpers, self.devices, gpus)
        self._recycler = Recycler(
            self._loop,
            self.devices,
            lambda: self._plan.settings,
            pausing=lambda: self._stopping or self._reload is not None,
            driver_bytes=self._health.taken_bytes,
        )

    def run(self) -> None:
        """Run until the pool has stopped.

        Raises:
            Unrecoverable: Workers of a former supervisor do not die.
        """
        for identity in self._run_dir.end_survivors(SURVIVORS_S):
            _LOG.warning("a worker of a killed supervisor was left: pid %d; it has ended now", identity.pid)
        self._run_dir.clean()
        set_child_subreaper()
        self._loop.on_signal(signal.SIGTERM, lambda: self._on_stop_signal("SIGTERM"))
        self._loop.on_signal(signal.SIGHUP, self._on_hangup)
        self._loop.on_signal(signal.SIGINT, lambda: self._on_stop_signal("SIGINT"))
        self._loop.on_signal(signal.SIGCHLD, self._on_child)
        files = self._files = RunFiles(
            self._run_dir, self._loop, self._sessions, self.devices, self._other_sockets, self._note, self.stop
        )
        self._note(
            "pool_start",
            f"pool {self._plan.settings.pool} starts with {counted(len(self.devices), f'{self._plan.backend} device')}",
            epoch=epoch_label(self._epoch),
        )
        exporter = self._metrics = self._exporter()
        self._relay = self._open_relay()
        self._factory.open(self._begin)
        files.start()
        self._housekeep()
        self._recycler.start()
        Watchdog(self._loop, self.devices, self._sessions.client_of).start()
        self._health.start()
        if self._notifier.watchdog_s:
            self._feed_watchdog()
        self._loop.on_pause(self._was_paused)
        self._loop.run()
        if self._relay is not None:
            self._relay.close("the pool was stopped")
        if exporter is not None:
            exporter.close()
        self._helpers.kill()
        self._health.close()
        self._factory.close()
        self._note("pool_end", "the pool has ended")
        self._sessions.close(errors.PoolLost("the pool was stopped"))
        self._residents.close()
        self._worlds.free()
        for device in self.devices:
            device.starter.tidy(TIDY_S)
        files.close()
        self._loop.close()
        self._events.close()

    def _begin(self) -> None:
        """Let clients in and start the devices, which must not seem stopped to any client."""
        if not self._stopping:
            self._begun = True
            assert self._files is not None
            self._files.listen()
            if self._starter is not None:
                self._sessions.add(self._starter, owner=self._bound)
            if self._relay is not None:
                self._relay.start()
            for device in self.devices:
                device.start()

    @property
    def has_failed(self) -> bool:
        """Whether some device has ever ended unplanned: its logs are worth keeping."""
        return any(device.restarts.count for device in self.devices)

    # --- orders ----------------------------------------------------------------------------------------------------

    def _carry_out(self, client: str, order: Order, answer: Respond) -> None:  # noqa: C901 - one case for each kind
        """Carry out a client's order."""

        def done(error: errors.AtomrError | None = None) -> None:
            answer(session.Answer(order.id, None if error is None else ErrorInfo.of(error)))

        def reloaded(error: errors.AtomrError | None, pending: list[str]) -> None:
            if error is None:
                answer(operators.Reloaded(order.id, pending))
            else:
                done(error)

        try:
            match order:
                case operators.RestartRequest():
                    self._restart(order.device)
                    done()
                case operators.AdmitRequest():
                    answer(self._sessions.suspects.admit(order))
                case operators.ReloadRequest():
                    self.reload(reloaded)
                case operators.ReadKeys():
                    self._read_keys(done)
                case operators.ListResidents() | operators.FreeResident():
                    answer(self._residents.answer(order))
                case operators.StopRequest():
                    done()
                    self.stop(f"{client} asked for it")
        except errors.AtomrError as error:
            done(error)

    def _restart(self, device: int) -> None:
        """Replace a device's worker."""
        if device >= len(self.devices):
            raise errors.InvalidRequest(f"there is no device {device}; this pool has {len(self.devices)}")
        if self._stopping:
            raise errors.InvalidRequest("the pool stops")
        self._factory.retry()
        self.devices[device].replace("restart", "an operator asked for a restart")

    def reload(self, done: Done) -> None:
        """Read the configuration again and replace the workers, one device at a time.

        While another reload runs the order waits for its end: what has changed since that began is loaded by a further
        one, together with all other orders that wait.
        """
        if self._stopping:
            raise errors.InvalidRequest("the pool stops")
        if not self._begun:
            raise errors.InvalidRequest("the pool starts")
        if self._reload is None:
            self._start_reload(done)
            return
        if len(self._reload_waits) >= MOST_WAITING_RELOADS:
            raise errors.InvalidRequest(f"{MOST_WAITING_RELOADS} orders to reload wait already; one reload is for all")
        if not self._reload_waits:
            self._note("reload_waits", "the pool is being reloaded; it will be reloaded once more after that")
        self._reload_waits.append(done)

    def _start_reload(self, done: Done) -> None:
        self._note("reload_start", "the reload of the pool begins, one device at a time")
        self._notifier.reloading()

        def over(error: errors.AtomrError | None, pending: list[str]) -> None:
            self._reload = None
            if error is not None:
                self._factory.take_plan(self._plan)
                self._factory.renew(if_outdated=True)
                self._reload_failed = time.time(), error.message
                self._note("reload_failed", error.message)
                self._loop.call_later(0, self._return_strays)
            else:
                self._reload_failed = 0.0, ""
                self._sessions.suspects.clear()
                later = f"; a restart of the pool is needed for {', '.join(pending)}" if pending else ""
                self._note("reload_end", f"all devices are reloaded{later}")
            if not self._stopping:
                self._notifier.ready(self._summary())
            done(error, pending)
            self._reload_again()

        def renew(plan: Plan, then: Callable[[], None]) -> None:
            self._factory.take_plan(plan)
            self._residents.limit(plan.settings.resident_max_bytes)  # the first worker by this plan may need it
            self._factory.renew(then)

        self._reload = Reload(
            self._plan,
            self._loop,
            self._helpers,
            self.devices,
            take=self._take_plan,
            renew=renew,
            done=over,
        )
        self._reload.start()

    def _reload_again(self) -> None:
        """Carry out the orders that came during a reload."""
        waiting, self._reload_waits = self._reload_waits, []
        if not waiting:
            return

        def done(error: errors.AtomrError | None, pending: list[str]) -> None:
            for each in waiting:
                each(error, pending)

        if self._stopping:
            done(errors.PoolLost("the pool stops"), [])
        else:
            self._start_reload(done)

    def stop(self, why: str) -> None:
        """Let the workers finish their requests, then end."""
        if self._stopping:
            return
        self._stopping = True
        self._note("pool_stop", f"the pool stops: {why}")
        self._notifier.stopping()
        if self._reload is not None:
            self._reload.give_up(errors.PoolLost("the pool stops"))
        if self._relay is not None:
            self._relay.drain()
        self._sessions.drain()
        self._worlds.close("the pool stops")
        for device in self.devices:
            device.stop()
        self._stop_if_done()

    def _look_after_files(self) -> None:
        """Make anew what was removed of the run directory."""
        if self._files is not None:
            self._files.look_soon()

    def _owner_gone(self) -> None:
        """End now, even if the pool stops already: without waiting for the workers' answers."""
        if self._stopping:
            _LOG.warning("the pool's application has ended: the workers are killed")
        self.stop("its application has ended")
        for device in self.devices:
            device.kill()

    def _describe(self, question: Question) -> operators.Status | operators.Inventory:
        """Return the snapshot that a client asks for.

        Raises:
            Overloaded: No descriptor is left for looking.
        """
        return self._status() if isinstance(question, operators.StatusRequest) else self._take_inventory()

    def _status(self) -> operators.Status:
        """Return a snapshot."""
        trouble = disk.STATE.trouble
        return operators.Status(
            id=0,
            pool=self._plan.settings.pool,
            backend=self._plan.backend,
            version=__version__,
            supervisor_pid=os.getpid(),
            supervisor_started_at=self._started_at,
            supervisor_memory_bytes=memory_bytes(os.getpid()),
            stopping=self._stopping,
            sessions=len(self._sessions),
            refused=self._sessions.refused,
            unkept_results=self._sessions.results.unkept,
            workers=[_worker_status(device, self._factory, self._notes(device)) for device in self.devices],
            resident_bytes=self._residents.nbytes,
            quarantined=self._sessions.suspects.quarantined,
            remote=self._remote_status(),
            worlds=self._worlds.infos,
            progress=self._worlds.progress(),
            links=[*self._health.links.values()],
            unwritable="" if trouble is None else str(trouble),
            unwritable_since=0.0 if trouble is None else trouble.since,
            reloading=self._reload is not None,
            kernels=self._plan.settings.kernels,
            reload_failed=clip(self._reload_failed[1], REASON_CHARS),
            reload_failed_at=self._reload_failed[0],
        )

    def _read_keys(self, done: Callable[[errors.AtomrError | None], object]) -> None:
        """Tell the relay to read the admitted keys again.

        Raises:
            InvalidRequest: There is none.
        """
        if self._relay is None:
            raise errors.InvalidRequest("this pool admits no remote clients (`listen` is off)")
        self._relay.read_keys(done)

    def _notes(self, device: SupervisedDevice) -> list[str]:
        """Return an operator's notes on a device."""
        return [*self._health.notes(device.gpu), *self._sessions.notes(device.index, device.roles.generation)]

    def _take_inventory(self) -> operators.Inventory:
        """Return an account of the pool's processes, descriptors and memory."""
        try:
            return take_inventory(
                self._epoch,
                self._plan.backend,
                self.devices,
                self._sessions,
                self._factory,
                self._helpers,
                self._residents,
                self._worlds,
                self._strangers,
                self._remote_status(),
            )
        except OSError as error:
            raise errors.Overloaded(f"the supervisor cannot look at its processes: {error.strerror}") from error

    # --- what happens ----------------------------------------------------------------------------------------------

    def _on_stop_signal(self, name: str) -> None:
        if self._stopping:
            _LOG.warning("%s again: the workers are killed", name)
            for device in self.devices:
                device.kill()
            return
        self.stop(name)
        waiting = self._status().unanswered
        if waiting:
            key, limit_s = "Ctrl-C" if name == "SIGINT" else name, self._plan.settings.drain_timeout_s
            requests = "1 request" if waiting == 1 else f"{waiting} requests"
            _LOG.info("waiting for %s, at most %g s; %s again kills", requests, limit_s, key)

    def _exporter(self) -> Exporter | None:
        address = self._plan.settings.metrics
        if address == OFF:
            return None
        made = Exporter(address, self._run_dir.path, self._run_dir.session_socket, self._loop, self._helpers)
        self._note("metrics", f"metrics are served at {address}")
        made.start()
        return made

    def _other_sockets(self) -> list[str]:
        return [] if self._metrics is None else self._metrics.restore()

    def _remote_status(self) -> operators.RemoteStatus | None:
        return None if self._relay is None else self._relay.status()

    def _open_relay(self) -> RelayKeeper | None:
        """Listen for remote clients, if they are admitted."""
        settings = self._plan.settings
        if settings.listen == OFF:
            return None

        def note(event: str, text: str, facts: dict[str, str]) -> None:
            self._note(event, text, **facts)

        keys_dir = self._plan.keys_dir
        return RelayKeeper(settings, keys_dir, self._run_dir, self._loop, self._helpers, note)

    def _on_hangup(self) -> None:
        """Reload, unless the signal comes from a terminal that has gone."""
        if self._plan.source is None or self._has_terminal:
            self._on_stop_signal("SIGHUP")
            return
        try:
            if self._reload is None or not self._reload_waits:  # else one is due that no signal could add to
                self.reload(lambda _error, _pending: None)
        except errors.InvalidRequest as error:
            _LOG.warning("SIGHUP: %s", error)

    def _take_plan(self, plan: Plan) -> None:
        self._plan = plan
        self._factory.take_plan(plan)
        self._residents.limit(plan.settings.resident_max_bytes)
        for device in self.devices:
            device.take_plan(plan)
        self._recycler.start()

    def _summary(self) -> str:
        ready = sum(device.life.state is State.READY for device in self.devices)
        return f"{ready} of {counted(len(self.devices), 'device')} ready"

    def _was_paused(self, seconds: float) -> None:
        """Write the event of a pause of this process."""
        if self._notifier.watchdog_s:
            self._notifier.alive()  # its timer goes by the time in which this process ran
        self._note(
            "supervisor_paused",
            f"the supervisor stood still for {seconds:.1f} s: stopped (SIGSTOP), frozen, or without the machine's time",
            seconds=round(seconds, 1),
        )

    def _feed_watchdog(self) -> None:
        self._notifier.alive()
        self._loop.call_later(self._notifier.watchdog_s / 2, self._feed_watchdog)

    def _tell_manager(self) -> None:
        """Tell the service manager the state: up, once a device is ready and all others are too, or out of use."""
        if self._stopping:
            return
        states = {device.life.state for device in self.devices}
        if not self._was_ready and State.READY in states <= {State.READY, *devices.OUT_OF_USE}:
            self._was_ready = True
            self._notifier.ready(self._summary())
        else:
            self._notifier.status(self._summary())

    def _device_changed(self) -> None:
        self._tell_manager()
        self._worlds.look()
        # Later: the device is in the middle of a step.
        self._loop.call_later(0, self._return_strays if self._reload is None else self._reload.advance)

    def _return_strays(self) -> None:
        """Replace processes that a reload has made that was given up, if they keep a world from forming."""
        if self._reload is not None or self._stopping:
            return
        for device in map(self.devices.__getitem__, self._worlds.strays(self._plan.code)):
            if device.life.state is State.READY:
                why = "its world forms no epoch with what a reload has started that was given up"
                device.replace("reload", why, anew=True)

    def _worker_ended(self) -> None:
        self._end_orphans()
        self._stop_if_done()

    def _on_child(self) -> None:
        """A child, or a process that a worker has left behind, has ended or stopped."""
        for device in self.devices:
            if device.roles.predecessor is not None:
                device.roles.predecessor.look()
        self._end_orphans()

    def _end_orphans(self) -> None:
        """End the processes that dead workers have left behind; called again by SIGCHLD until all have ended."""
        self._strangers = still_running(self._strangers)
        workers = {worker.pid for device in self.devices for worker in (*device.roles.all, *device.quarantine.stuck)}
        try:
            kill_adopted(workers | self._helpers.pids | self._factory.pids | self._strangers, timeout_s=0)
            self._has_orphans = False
        except OSError as error:  # no descriptor is left for looking
            if not self._has_orphans:
                _LOG.warning("the search for processes of dead workers failed, and is tried again: %s", error)
            self._has_orphans = True
        for device in self.devices:
            device.starter.tidy()

    def _stop_if_done(self) -> None:
        if self._stopping and all(
            device.life.state is State.STOPPED and not device.roles.all for device in self.devices
        ):
            self._loop.stop()

    def _housekeep(self) -> None:
        self._oom_kills.look()
        for device in self.devices:
            device.output.check()
        self._factory.output.check()
        if self._has_orphans:
            self._end_orphans()
        self._loop.call_later(HOUSEKEEPING_S, self._housekeep)

    def _note_world(self, event: str, text: str, facts: Mapping[str, Scalar]) -> None:
        """Write an event of a world; onto the screen when the loop has time, for a takeover may come next."""
        self._loop.call_afterwards(functools.partial(_LOG.info, "%s", text))
        self._append(event, text, facts)

    def _note(self, event: str, text: str, **facts: Scalar) -> None:
        _LOG.info("%s", text)
        self._append(event, text, facts)

    def _append(self, event: str, text: str, facts: Mapping[str, Scalar]) -> None:
        self._events.append({"time": time.time(), "event": event, "text": text, "pid": os.getpid(), **facts})


def _has_terminal() -> bool:
    """Return whether this process has a terminal, whose end would send SIGHUP."""
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY | os.O_CLOEXEC))
    except OSError:
        return False
    return True


def _worker_status(device: SupervisedDevice, factory: ProcessFactory, health: list[str]) -> operators.WorkerStatus:
    active = device.roles.active
    board = active.live_board.read() if active else None
    pid = active.pid if active else 0
    running = board.running() if board else []
    now_ns = time.monotonic_ns()
    still = standstill(pid) if pid else None
    return operators.WorkerStatus(
        device=device.info(0),
        queue_depth=board.queue_depth if board else 0,
        started=board.read(Counter.STARTED) if board else 0,
        completed=board.read(Counter.COMPLETED) if board else 0,
        refused=board.read(Counter.REFUSED) if board else 0,
        running=len(running),
        running_for_s=(now_ns - running[0].started_ns) / 1e9 if running else 0.0,
        started_at=started_at(pid),
        memory_bytes=memory_bytes(pid),
        notes=[*device.notes, *health],
        batches=_batches(device, board) if board else [],
        slab_bytes=board.read(Gauge.SLAB_BYTES) if board else 0,
        leases=board.read(Gauge.LEASES) if board else 0,
        figures=device.ends.figures((active, device.roles.predecessor)),
        last_fault=device.ends.last_fault[1],
        last_fault_at=device.ends.last_fault[0],
        standby=device.takeover.status(factory),
        plans=_plans(board) if board else [],
        graphs=_graphs(board) if board else None,
        standstill=str(still) if still else "",
        work=_work(board) if board else [],
    )


def _batches(device: SupervisedDevice, board: BoardReader) -> list[operators.BatchStatus]:
    batched = [
        f"{actor.name}.{method.name}"
        for actor in device.actors
        for method in actor.methods
        if method.batch_items and not method.streams  # steps over streams have no figures
    ]
    return [
        operators.BatchStatus(
            method,
            found.batches,
            found.items,
            found.wait_ns / 1e9,
            found.longest_wait_ns / 1e9,
            found.sizes,
            found.waits,
        )
        for number, method in enumerate(batched)
        if (found := board.batches(number)) is not None
    ]


def _work(board: BoardReader) -> list[operators.WorkStatus]:
    found = sorted(board.work().items(), key=lambda each: each[1].ns, reverse=True)
    return [operators.WorkStatus(method, *counts) for method, counts in found[:SHOWN_WORK]]


def _graphs(board: BoardReader) -> operators.GraphStatus | None:
    counts = board.graphs()
    return operators.GraphStatus(*counts) if any(counts) else None


def _plans(board: BoardReader) -> list[operators.PlanStatus]:
    return [
        operators.PlanStatus(library, *found[:4], ENGINES[found.engine] if found.engine < len(ENGINES) else "")
        for number, library in enumerate(LIBRARIES)
        if (found := board.plans(number)) is not None and found.misses
    ]
