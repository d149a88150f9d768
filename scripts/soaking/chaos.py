"""Chaos: the soak with everything that can go wrong, and every law that can be checked meanwhile."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import psutil

import atomr_mp
from atomr_mp import errors, testing
from atomr_mp.process.files.events import read_events
from atomr_mp.process.identity import Identity
from atomr_mp.protocol.messages.devices import DeviceState
from atomr_mp.testing import At, Exit, FullDisk, Hang, HangInKernel, Injection, Kill, NoMemory, Poison
from soaking import stray, words
from soaking.delays import any_has_waited_s
from soaking.disturbances import Disturbance
from soaking.soak import CLIENT, WORKER, Moment, Soak

STANDBY: Final = "kill of a standby"
ZYGOTE: Final = "kill of the zygote"
RESTART: Final = "restart"
RELOAD: Final = "reload"
FAULT: Final = "fault"
OUTSIDE: Final = "kill from outside"
STRAY: Final = "stray write"
STRAY_DEATH: Final = "kill after a stray write"
CUT: Final = "cut by a worker"

KILLS: Final = (WORKER, STANDBY, ZYGOTE, CLIENT, OUTSIDE, STRAY_DEATH)

OUTSIDE_ONLY_S: Final = {OUTSIDE: 0.5, CLIENT: 3.0}
"""Disturbances and their mean intervals, if all kills come from outside."""

EVERY_S: Final = {
    WORKER: 2.5,
    OUTSIDE: 2.5,
    CLIENT: 3.0,
    RESTART: 6.0,
    RELOAD: 12.0,
    FAULT: 1.2,
    STRAY: 4.0,
    STRAY_DEATH: 4.0,
    CUT: 2.0,
}
"""Mean interval of each disturbance."""

WANTED: Final = {
    "answer under load": 1,
    "boards not believed": 1,
    "cut of a data connection": 1,
    "result read late": 1,
}
"""What has to have happened, and how often: a run without it would have checked little."""

WANTED_OF_REFS: Final = {"writer that failed": 1}
"""The same, if clients use refs."""

WANTED_OUTSIDE: Final = {OUTSIDE: 5}
"""The same, if all kills come from outside."""

MORE_ROUNDS: Final = 10
"""How many further rounds a run may take for what is wanted: on a busy machine clients need seconds to start."""

QUICK: Final = 3.0
"""How much more often disturbances come if kills are counted."""

CUTTING: Final = f"{Path(__file__).parents[2] / 'tests/actors/cutting.py'}:Cutting"
"""An actor that shuts its worker's data connections."""

CUT_S: Final = 5.0
"""How long an order to do so may wait for its turn."""

PROMISE_S: Final = 2.0
"""Within this time nothing of the dead remains."""

OFFERED_S: Final = 3.0
"""How long an order for a fault waits for a process that meets it."""

PATIENCE_S: Final = 8.0
"""How long a device that is not ready is still disturbed, or waited for if kills are counted."""

HUNG_S: Final = 0.5
"""How long a process that would hang for ever lives until it is killed."""

NO_MEMORY: Final = At("allocate", NoMemory())
"""A single refusal: an allocation that is refused tries once more."""

IN_A_REQUEST: Final[tuple[At, ...]] = (
    At("decode", Kill()),
    At("decode", Exit(3)),
    At("borrow", Kill()),
    At("enqueue", Kill(signal.SIGSEGV)),
    At("before_reply", Kill()),
    At("enqueue", Poison()),
    At("before_reply", Poison(716)),
    NO_MEMORY,
    At("enqueue", Hang(0.2)),
    At("enqueue", HangInKernel(0.2)),
    At("enqueue", Hang()),
    At("before_reply", Hang(gil=True)),
)
IN_A_START: Final[tuple[At, ...]] = (
    At("import", Kill()),
    At("setup", Kill()),
    At("setup", Exit(3)),
    At("setup", Poison()),
    At("ready", Kill()),
    At("ready", Hang(0.3)),
)
OF_THE_SYSTEM: Final[tuple[At, ...]] = (At("disk", FullDisk(), times=None),)
"""Faults that any process may meet: the supervisor and its helpers."""

FULL_DISK: Final = "FullDisk at disk"

OF_THE_DRIVER: Final[tuple[At, ...]] = (At("nvml", Hang(1.0), times=None),)
"""Faults of the driver, if there is one: it is slow, as if it started up a GPU."""

IN_A_PROMOTION: Final[tuple[At, ...]] = (At("promotion", Kill()), At("promotion", Hang(0.3)))


class Offered(NamedTuple):
    """A fault that was ordered."""

    injection: Injection
    at: At
    until_s: float

    @property
    def name(self) -> str:
        """Its name in figures."""
        return f"{type(self.at.fault).__name__} at {self.at.point}"

    @property
    def hangs(self) -> bool:
        """Whether the process hangs for ever unless it is killed."""
        return isinstance(self.at.fault, Hang | HangInKernel) and self.at.fault.seconds is None


class Dead(NamedTuple):
    """A process that was killed."""

    identity: Identity
    socket: Path | None
    killed_s: float
    waited_s: float
    """For how long processes had waited for a processor by then; what waits for one is a busy machine's doing."""


class Chaos(Soak):
    """One run.

    Args:
        arguments: Those of `Soak`.
        kills: How many kills to make, whatever time that takes.
        outside: Whether to kill only from outside, so that no request ends its worker.
        more: As `arguments`.
    """

    look_every_s = 0.05

    def __init__(self, *arguments: Any, kills: int = 0, outside: bool = False, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._kills = kills
        self._outside = outside
        self._offered: list[Offered] = []
        self._dead: list[Dead] = []
        self._pool: atomr_mp.Pool | None = None
        self._reloading: threading.Thread | None = None
        self._cuts: list[atomr_mp.Reply] = []
        """Orders to cut connections that have no outcome yet."""
        self._ready_s: dict[int, float] = {}
        """When each device was last seen to be ready."""
        self._stray_deaths = 0
        """Workers that had ended with a damaged board by the end of the last round."""
        self._checked_at = 0.0
        """Time of the last event then."""
        self.gone_s: Final[list[float]] = []
        """Time until nothing was left of each killed process."""

    def start(self, actors: list[str]) -> atomr_mp.Pool:
        """Start a pool whose processes look for faults."""
        self._pool = testing.start(actors=[*actors, CUTTING], faults=(), drain_timeout_s=5.0, **self.settings())
        return self._pool

    @property
    def kinds(self) -> dict[str, float]:
        """Disturbances and their mean intervals."""
        if self._outside:
            return OUTSIDE_ONLY_S
        standby = {"none": {}, "hot": {STANDBY: 5.0}, "warm": {ZYGOTE: 8.0}}[self.shape.standby]
        return {kind: every_s / (QUICK if self._kills else 1) for kind, every_s in {**EVERY_S, **standby}.items()}

    @property
    def killed(self) -> int:
        """How many processes were killed, by the soak or by a fault."""
        return sum(count for name, count in self.counts.items() if name in KILLS or name.startswith(("Kill", "Exit")))

    def goes_on(self, number: int) -> bool:
        """Whether there is another round: two at least, as the second has a device that is spared."""
        if self._kills:
            return number < 2 or self.killed < self._kills
        return super().goes_on(number) or (bool(self._missing) and number < self.rounds + MORE_ROUNDS)

    @property
    def _missing(self) -> list[str]:
        """What is wanted and has not happened as often yet."""
        wanted = WANTED_OUTSIDE if self._outside else WANTED | (WANTED_OF_REFS if self.shape.refs else {})
        return [what for what, count in wanted.items() if self.counts[what] < count]

    def disturb(self, moment: Moment, what: Disturbance) -> None:
        """Carry out a disturbance."""
        device = what.choose(moment.devices)
        if what.kind != CLIENT and not self._bears_more(moment, device):
            self.counts["left in peace"] += 1
            return
        match what.kind:
            case "fault":
                self._offer(moment, device, what.again())
            case "kill of a worker" | "kill from outside" | "stray write" | "kill after a stray write":
                self._strike(moment, device, what)
            case "kill of a client":
                self.kill_client(moment, what)
            case "kill of a standby" | "kill of the zygote":
                standby = moment.pool.status().devices[device].standby
                if standby is not None and standby.pid is not None:
                    self.kill(moment.pool, standby.pid, what.kind)
            case "cut by a worker":
                self._cut(moment.pool, device)
            case "restart":
                moment.pool.restart(device)
                self.counts[RESTART] += 1
            case "reload" if len(moment.devices) == self.shape.devices:  # it takes the spared device along
                self._reload(moment.pool)

    def _strike(self, moment: Moment, device: int, what: Disturbance) -> None:
        """Disturb a device's processes."""
        match what.kind:
            case "kill of a worker":
                self.kill_worker(moment, device)
            case "kill from outside":
                self._kill_from_outside(moment, device, what.again())
            case _:
                self._write_stray(moment, device, what.again(), die=what.kind == STRAY_DEATH)

    def kill_worker(self, moment: Moment, device: int) -> None:
        """Kill a worker, and note to check that nothing is left of it."""
        info = moment.pool.devices[device]
        with contextlib.suppress(ProcessLookupError, errors.DeviceUnavailable):  # it has ended already
            identity = Identity.of(info.pid)
            socket = moment.pool.run_dir / f"d{device}-g{info.generation}.sock"
            if self.kill(moment.pool, info.pid, WORKER):
                self._dead.append(Dead(identity, socket, time.monotonic(), any_has_waited_s()))

    def _kill_from_outside(self, moment: Moment, device: int, what: Disturbance) -> None:
        """Kill any of a device's processes, whatever it does, as an operator or the OOM killer may."""
        found = moment.pool.status().devices[device]
        standby_pid = None if found.standby is None else found.standby.pid
        pids = [pid for pid in (found.pid, standby_pid) if pid is not None]
        if pids:
            self.kill(moment.pool, what.choose(pids), OUTSIDE)

    def _write_stray(self, moment: Moment, device: int, what: Disturbance, *, die: bool) -> None:
        """Write over a worker's board; the worker ends with that, or goes on and is replaced."""
        pid = moment.pool.devices[device].worker_pid
        with contextlib.suppress(psutil.NoSuchProcess):  # it has ended already
            if pid is not None and psutil.Process(pid).ppid() == moment.pool.supervisor_pid:
                self.counts[what.kind] += stray.write(pid, what, die=die)

    def after_round(self, pool: atomr_mp.Pool, number: int) -> None:
        """Check that no stray write of this round that ended a worker went unnoticed."""
        super().after_round(pool, number)
        deaths = self.counts[STRAY_DEATH]
        events: list[Any] = list(read_events(pool.run_dir / "events.jsonl"))
        told = sum(event["event"] == "board" and event["time"] > self._checked_at for event in events)
        if told < deaths - self._stray_deaths and not self.counts[FULL_DISK]:  # which keeps events from being written
            self.wrong(f"{deaths - self._stray_deaths} workers ended with a damaged board, and {told} were told of")
        self.counts["boards not believed"] += told
        self._stray_deaths, self._checked_at = deaths, max(event["time"] for event in events)

    def look_after(self, now_s: float) -> None:
        """Check that dead processes leave nothing, and withdraw faults that no process has met."""
        for dead in list(self._dead):
            if not dead.identity.alive() and not (dead.socket is not None and dead.socket.exists()):
                self.gone_s.append(now_s - dead.killed_s)
                self._dead.remove(dead)
            elif now_s - dead.killed_s - (any_has_waited_s() - dead.waited_s) > PROMISE_S:
                self.wrong(f"{PROMISE_S:g} s after its death something is left of pid {dead.identity.pid}")
                self._dead.remove(dead)
        self._settle_cuts()
        for each in list(self._offered):
            fired = each.injection.fired
            if fired and each.hangs and now_s < each.until_s - OFFERED_S + HUNG_S:
                continue
            if fired or now_s > each.until_s:
                self._take_back(each)

    def use(self, number: int, until_s: float) -> words.Use:
        """Return the clients' orders for a round."""
        return msgspec.structs.replace(super().use(number, until_s), cuts=CUT in self.kinds)

    def rest(self) -> None:
        """Stop all disturbances."""
        for reply in self._cuts:
            reply.exception()  # which is the outcome of the cut
        self._settle_cuts()
        for each in list(self._offered):
            self._take_back(each)
        if self._reloading is not None:
            self._reloading.join()
            self._reloading = None

    def _cut(self, pool: atomr_mp.Pool, device: int) -> None:
        """Have a worker shut all its data connections, ours too; nothing if there is none just now."""
        with contextlib.suppress(errors.AtomrError):
            if pool.devices[device].state is not DeviceState.READY:
                return
            reply = pool.call("Cutting.cut", "shut", device=device, deadline_s=CUT_S)
            reply.add_done_callback(lambda _: None)  # so that the reply is received
            self._cuts.append(reply)

    def _settle_cuts(self) -> None:
        """Count the cuts that were made: their own answers had no connection left."""
        done = [reply for reply in self._cuts if reply.done]
        self.counts[CUT] += sum(isinstance(reply.exception(), errors.ConnectionLost) for reply in done)
        self._cuts = [reply for reply in self._cuts if reply not in done]

    def _bears_more(self, moment: Moment, device: int) -> bool:
        """Return whether a device may be disturbed: calls to it are to be answered before their deadline.

        If kills are counted, wait until it has come back.
        """
        until_s = time.monotonic() + (PATIENCE_S if self._kills else 0)
        while True:
            now_s = time.monotonic()
            ready = moment.pool.devices[device].state is DeviceState.READY
            if ready:
                self._ready_s[device] = now_s
            if ready or now_s > until_s:
                break
            self.look_after(now_s)
            moment.clients.hear(self.look_every_s)
        patience_s = 0.0 if self._kills else PATIENCE_S
        return now_s - self._ready_s.setdefault(device, now_s) <= patience_s

    def _offer(self, moment: Moment, device: int, what: Disturbance) -> None:
        """Order a fault, and have come by who is to meet it."""
        faults = [*IN_A_REQUEST, *IN_A_START, *OF_THE_SYSTEM]
        if self.shape.backend == "cuda":
            faults += OF_THE_DRIVER
        if self.shape.standby == "hot":
            faults += IN_A_PROMOTION
        if any(each.at is NO_MEMORY for each in self._offered):
            faults.remove(NO_MEMORY)
        at = what.choose(faults)
        injection = testing.inject(
            moment.pool,
            at=at.point,
            fault=at.fault,
            device=None if at in OF_THE_SYSTEM + OF_THE_DRIVER else device,
            times=at.times,
        )
        self._offered.append(Offered(injection, at, time.monotonic() + OFFERED_S))
        if at in IN_A_START or at in IN_A_PROMOTION:
            self.kill_worker(moment, device)

    def _take_back(self, offered: Offered) -> None:
        offered.injection.withdraw()
        fired = offered.injection.fired
        if offered.name.endswith((" at disk", " at nvml")):
            fired = fired[:1]  # how often it was met is not of interest
        if fired and offered.name.endswith(" at nvml"):
            self._ask_in_time()
        if isinstance(offered.at.fault, Kill | Exit | Poison):
            self.deadly.update(fired)
        for pid in fired:
            self.counts[offered.name] += 1
            if offered.hangs:
                assert self._pool is not None
                self.kill(self._pool, pid, WORKER)
        self._offered.remove(offered)

    def _ask_in_time(self) -> None:
        """Check that the supervisor answers, whatever the driver does."""
        assert self._pool is not None
        begun_s, waited_s = time.monotonic(), any_has_waited_s()
        self._pool.status()
        if time.monotonic() - begun_s - (any_has_waited_s() - waited_s) > PROMISE_S:
            self.wrong(f"the supervisor took more than {PROMISE_S:g} s to answer while the driver was slow")

    def _reload(self, pool: atomr_mp.Pool) -> None:
        if self._reloading is not None and self._reloading.is_alive():
            return

        def reload() -> None:
            try:
                pool.reload()
            except (errors.AtomrError, TimeoutError) as error:  # a new worker was killed as others are
                self.counts[f"reload ended by {type(error).__name__}"] += 1
            else:
                self.counts[RELOAD] += 1

        self._reloading = threading.Thread(target=reload, daemon=True)
        self._reloading.start()
