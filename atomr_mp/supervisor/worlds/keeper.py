"""One world: feeds its table with facts of its members' processes, and carries the orders out that follow.

Theory of operation. `WorldMembers` decides, and each of its orders is carried out to its end before the next one. A
fact that comes up meanwhile has its orders behind them. The end of an epoch is always the same sequence: the stop word
is stored and all bells are rung, so that members stop waiting for each other; then clients are told; then each member
is asked to leave. No message about such an end comes before its stop word.

A planned end has no stop word: clients hold new calls, and members run what was published, up to the last entry of the
ring. Behind that each of them leaves by itself. The epoch is stopped if that takes longer than a device may drain, or
if anything else ends it meanwhile.

A process has its own files from before its start until it has ended, whether it is active or stands by. Other members
get them with the first epoch that it is in. Its mailbox, if it has one, goes to all processes of other ranks as soon as
both are there, so that a standby has nothing left to map when it takes over.
"""

from __future__ import annotations

import functools
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from atomr_mp import checks, errors
from atomr_mp.process.files.events import Scalar
from atomr_mp.protocol.codec import clip
from atomr_mp.protocol.messages import control, operators
from atomr_mp.protocol.messages.control import WorldFileKind
from atomr_mp.protocol.messages.devices import WorldInfo, WorldState
from atomr_mp.protocol.words import these_devices
from atomr_mp.supervision.world_members import (
    EpochCause,
    FinishEpoch,
    FormEpoch,
    FreeWorld,
    LeaveEpoch,
    PublishEpoch,
    RefuseEpoch,
    ReplaceMembers,
    StopEpoch,
    WorldMember,
    WorldMembers,
    WorldOrder,
)
from atomr_mp.supervision.world_watch import WatchedWorld, WorldWatch, read_member, read_published
from atomr_mp.supervisor.device.listener import WorldMessage
from atomr_mp.supervisor.loop import Loop, Timer
from atomr_mp.supervisor.plan import WorldPlan
from atomr_mp.supervisor.worlds.files import ProcessFiles, StopFile
from atomr_mp.supervisor.worlds.holding import WorldHolding
from atomr_mp.supervisor.worlds.processes import WorldProcesses
from atomr_mp.transport.descriptors import Descriptor

STOPPED: Final = "was stopped by a signal (SIGSTOP)"
"""The cause of a member's end that was stopped, whoever has noticed it."""

WORD_OF_STOPPED: Final = "sigstop"
WORD_OF_LATE: Final = "late"
WORD_OF_UNFIT: Final = "unfit"
"""Causes of members' ends in a word, as metrics and events have them."""

LOOK_S: Final = 1.0
"""Time between two looks at where the members are."""

JOIN_S: Final = 10.0
"""Time in which all members have to join an epoch."""

NCCL_JOIN_S: Final = 60.0
"""The same where members form a communicator of NCCL: about a second for two GPUs, and longer for more."""

CLOSE_S: Final = 10.0
"""Time in which the members of a world that a session has made have to run what was published, once it is closed."""

LEAVE_S: Final = 10.0
"""Time in which all members have to leave an epoch that is over."""

REASON_CHARS: Final = 300
"""Longest text of a cause that a device or a worker gives."""

_GOES_ON: Final = frozenset({WorldState.FORMING, WorldState.READY, WorldState.CLOSING, WorldState.ENDING})
"""States in which members may still find their epoch broken."""

Offer = tuple[control.FromSupervisor, Descriptor | None]
"""A message to a process, and the descriptor that travels with it."""


@checks.owned(by_maker=True)
class WorldKeeper:
    """One world, from the start of the pool to its end.

    Args:
        plan: The world.
        processes: The processes of its devices.
        loop: The supervisor's loop.
        tell: Tells the clients of the world.
        note: Writes an event: its name, its text and its facts.
        freed: Called once the world is closed and all of its members have left.
        client_of: Returns words for the client of a session.

    Raises:
        OSError: No descriptor is left.
    """

    def __init__(
        self,
        plan: WorldPlan,
        processes: WorldProcesses,
        loop: Loop,
        *,
        tell: Callable[[WorldInfo], None],
        note: Callable[[str, str, Mapping[str, Scalar]], None],
        freed: Callable[[], object] = lambda: None,
        client_of: Callable[[int], str] = "session {}".format,
    ) -> None:
        self.plan: Final = plan
        self._processes = processes
        self._loop = loop
        self._tell = tell
        self._note = note
        self._freed = freed
        self._members = WorldMembers(len(plan.devices), mailboxes=plan.mailboxes)
        self._stop: StopFile | None = StopFile(plan.name)
        """None once the world was freed."""
        self._files: Final[dict[WorldMember, ProcessFiles]] = {}
        """Those of all processes of its devices that were started and have not ended."""
        self._given: Final[set[tuple[WorldMember, WorldMember]]] = set()
        """Pairs of a process and another one whose files it has got."""
        self._loaded: Final[dict[WorldMember, str]] = {}
        """Digests of the code that processes have loaded."""
        self._refused: Final[dict[WorldMember, str]] = {}
        """Processes without a mailbox, and why."""
        self._stopped: dict[WorldMember, int] = {}
        """At how many looks in a row a member was stopped."""
        self._orders: Final[deque[WorldOrder]] = deque()
        self._carries_out = False
        """An order is being carried out."""
        self._timer: Timer | None = None
        self._late = "joined"
        """What the timer waits for."""
        self._join_s: Final = NCCL_JOIN_S if plan.engine == "nccl" else JOIN_S
        self._told: WorldInfo | None = None
        self._watch: Final = WorldWatch()
        self._watched = ""
        """What the latest look has found that members wait for."""
        self._holding: Final = WorldHolding(plan, processes, note, client_of)

    # --- what others ask -------------------------------------------------------------------------------------------

    @property
    def info(self) -> WorldInfo:
        """The world, as clients are shown it."""
        state = self._members.state
        reason, rank = self._reason
        ready = state is WorldState.READY
        return WorldInfo(
            number=self.plan.number,
            name=self.plan.name,
            devices=self.plan.devices,
            actors=self.plan.actors,
            state=state,
            epoch=self._members.epoch,
            generations=[each.incarnation for each in self._members.members] if ready else [],
            reason=reason,
            rank=rank,
            made=self.plan.session > 0,
        )

    def look_for_stopped(self) -> None:
        """Have members replaced that were stopped at several looks in a row, `LOOK_S` apart.

        A stopped member that runs a call is not late to begin one, and takes none; and rank 0 is awaited by nobody
        while only streams are open.
        """
        members = self._members.members if self._members.state in _GOES_ON else ()
        stopped = [each for each in members if self._is_stopped(each)]
        self._stopped = {each: self._stopped.get(each, 0) + 1 for each in stopped}
        for member, looks in self._stopped.items():
            if (looks - 1) * LOOK_S >= self.plan.begin_timeout_s:
                self._take(self._members.poisoned(*member, STOPPED))
                self._replace([member], STOPPED, WORD_OF_STOPPED)

    def progress(self, now_s: float) -> operators.WorldProgress:
        """Look at the members' pages, and return where they are; `now_s` is by the monotonic clock."""
        members = self._members
        found = self._look(now_s) if members.state in _GOES_ON else None
        self._watched = "" if found is None else found.waits
        waits = self._holding.sentence(members.state, members.epoch, members.inside, now_s, self._watched)
        if found is None:
            return operators.WorldProgress(waits=waits)
        shown = [operators.WorldMemberProgress(each.begun, each.ended, doing) for each, doing in found.members]
        return operators.WorldProgress(found.published, shown, waits)

    def _look(self, now_s: float) -> WatchedWorld | None:
        """Return where the members are, None if there are no pages of them."""
        epoch = self._members.epoch
        files = [self._files.get(each) for each in self._members.members]
        if not files or files[0] is None:
            return None
        return self._watch.look(
            epoch,
            read_published(files[0].ring_header(), epoch),
            [None if each is None else read_member(each.lines(), epoch) for each in files],
            now_s,
        )

    def note_held(self, now_s: float) -> None:
        """Write an event, once, of what holds the world that is not ready."""
        members = self._members
        self._holding.note(members.state, members.epoch, members.inside, now_s, self._watched)

    @property
    def descriptors(self) -> list[int]:
        """The descriptors of memory that are kept open here."""
        stop = [] if self._stop is None else [self._stop.memory]
        return [*stop, *(each for files in self._files.values() for each in files.descriptors)]

    # --- facts -----------------------------------------------------------------------------------------------------

    def starting(self, rank: int, generation: int) -> list[Offer]:
        """Make the files of a process that is about to start, and return the first messages to it.

        Raises:
            OSError: No descriptor is left.
        """
        if self._stop is None:
            return []
        plan, device = self.plan, self.plan.devices[rank]
        mailboxes = [offer for each in self._files if each.rank != rank for offer in self._mailbox(each)]
        name = f"{plan.name}-d{device}-g{generation}"
        files = self._files[WorldMember(rank, generation)] = ProcessFiles(name, on_device=plan.mailboxes)
        own = {WorldFileKind.STOP: self._stop.share(), **files.take_own()}
        place = plan.number, plan.name, rank, len(plan.devices), generation
        offered = control.WorldOffered(
            *place, plan.actors, plan.begin_timeout_s, plan.session, plan.devices, plan.engine, plan.spares
        )
        return [*self._messages(WorldMember(rank, generation), own), *mailboxes, (offered, None)]

    def loaded(self, rank: int, generation: int, code: bytes) -> None:
        """Take in the digest of the code that a process has loaded for the world's actors, before it is active."""
        self._loaded[WorldMember(rank, generation)] = code.hex()

    def ready(self, rank: int, generation: int, code: str) -> None:
        """Take in that a process is active from now on: it has become ready, or was promoted.

        Args:
            rank: Its rank.
            generation: Its generation.
            code: Names the code that it was set up with.
        """
        self._take(
            self._members.ready(rank, generation, f"{code} {self._loaded.get(WorldMember(rank, generation), '')}")
        )

    def strays(self, plan: str) -> list[int]:
        """Return the devices whose processes were set up by another plan than the one that holds, in vain."""
        return [] if self.plan.session else [self.plan.devices[rank] for rank in self._members.strays(plan)]

    def mailbox(self, rank: int, generation: int, mailbox: Descriptor | None) -> None:
        """Take in the mailbox of a process, and hand it to all processes of other ranks; have it replaced without one.

        Args:
            rank: Its rank.
            generation: Its generation.
            mailbox: The descriptor, which is the caller's; None if there was no room for it.

        Raises:
            ProtocolError: It has handed one over before, or has none in this world.
        """
        if not self.plan.mailboxes:
            raise errors.ProtocolError(f"members of world {self.plan.name} have no mailboxes")
        member = WorldMember(rank, generation)
        files = self._files.get(member)
        if files is None:
            return
        if not files.keep_mailbox(mailbox):
            self._replace([member], "made a mailbox whose file descriptor has not come", WORD_OF_UNFIT)
            return
        for other in [each for each in self._files if each.rank != rank]:
            for message, descriptor in self._mailbox(member):
                self._tell_member(other, message, descriptor)
        self._take(self._members.handed_over(rank, generation))

    def refused(self, rank: int, generation: int, reason: str) -> None:
        """Take in why a process has no mailbox: its rank is missing, until the world is closed or the process ends."""
        if WorldMember(rank, generation) in self._files:
            self._refused[WorldMember(rank, generation)] = clip(reason, REASON_CHARS)
            self.look()

    def leaves(self, rank: int, generation: int, reason: str, *, answers: bool) -> None:
        """Take in that a process takes no more calls.

        Args:
            rank: Its rank.
            generation: Its generation.
            reason: Why, in words.
            answers: Whether it carries out orders until its end.
        """
        lose = self._members.drains if answers else self._members.poisoned
        self._take(lose(rank, generation, reason))

    def stopped(self, rank: int, generation: int) -> None:
        """Take in that all threads of a process have stopped; the process itself may end later."""
        self._take(self._members.ended(rank, generation))

    def ended(self, rank: int, generation: int) -> None:
        """Take in that a process has ended, or was never made, or never will end; close its files."""
        self.stopped(rank, generation)
        member = WorldMember(rank, generation)
        self._given.difference_update([each for each in self._given if member in each])
        self._loaded.pop(member, None)
        self._refused.pop(member, None)
        files = self._files.pop(member, None)
        if files is not None:
            files.close()

    def heard(self, rank: int, generation: int, message: WorldMessage) -> None:
        """Take in what a process says of an epoch.

        Raises:
            ProtocolError: It cannot know of such an epoch or rank.
        """
        if message.epoch > self._members.epoch:
            raise errors.ProtocolError(f"epoch {message.epoch} of world {self.plan.name} was not formed yet")
        match message:
            case control.EpochJoined():
                self._take(self._members.joined(rank, generation, message.epoch))
            case control.EpochLeft(unfit=True):
                orders = self._members.poisoned(rank, generation, message.reason)
                if orders:
                    self._take(orders)
                    why = clip(message.reason, REASON_CHARS)
                    self._replace([WorldMember(rank, generation)], why, WORD_OF_UNFIT)
            case control.EpochLeft():
                self._take(self._members.left(rank, generation, message.epoch, message.reason))
            case control.EpochHeld() if rank == 0:
                self._holding.heard(message)
            case control.EpochBroken():
                if message.rank >= len(self.plan.devices) or (message.late and message.rank < 0):
                    raise errors.ProtocolError(f"world {self.plan.name} has no rank {message.rank}")
                if WorldMember(rank, generation) in self._members.inside:
                    self._broken(message)

    def close(self, reason: str) -> None:
        """Take in that the world is over. When the pool stops, members have as long as they have to drain."""
        self._take(self._members.close(reason))
        if not self.plan.session:
            self._cancel_timer()

    def look(self) -> None:
        """Tell the clients if the world is seen differently, since its devices are."""
        info = self.info
        if info != self._told and not self._carries_out:
            self._told = info
            self._tell(info)

    def free(self) -> None:
        """Close all files; may be called twice."""
        self._cancel_timer()
        for files in self._files.values():
            files.close()
        self._files.clear()
        self._given.clear()
        self._free_stop()

    # --- what follows ----------------------------------------------------------------------------------------------

    def _broken(self, message: control.EpochBroken) -> None:
        """Take in that a member has found the present epoch broken."""
        if message.epoch != self._members.epoch or self._members.state not in _GOES_ON:
            return
        if message.late:
            late = self._members.members[message.rank]
            stopped = self._is_stopped(late)
            self._take(self._members.poisoned(*late, STOPPED if stopped else message.reason))
            self._replace([late], f"is late: {message.reason}", WORD_OF_LATE)
        else:
            rank = message.rank if message.rank >= 0 else None
            self._take(self._members.broken(message.epoch, message.reason, rank))

    def _take(self, orders: Iterable[WorldOrder]) -> None:
        self._orders.extend(orders)
        if self._carries_out:
            return
        self._carries_out = True
        try:
            while self._orders:
                self._carry_out(self._orders.popleft())
        finally:
            self._carries_out = False
        self.look()

    def _carry_out(self, order: WorldOrder) -> None:
        match order:
            case FormEpoch(epoch, members):
                self._form(epoch, members)
            case PublishEpoch(epoch, _):
                self._cancel_timer()
                self._publish()
                text = f"world {self.plan.name} is ready: epoch {epoch} on {these_devices(self.plan.devices)}"
                self._note("world_ready", text, {"world": self.plan.name, "epoch": epoch})
            case StopEpoch(epoch):
                assert self._stop is not None
                cause = self._members.cause
                rank = -1 if cause.rank is None else cause.rank
                self._stop.store(epoch, rank, clip(cause.reason, REASON_CHARS))
                for files in self._files.values():
                    files.stop(epoch)
                    files.ring()
            case RefuseEpoch():
                self._publish()
            case FinishEpoch(epoch, members):
                self._finish(epoch, members)
            case LeaveEpoch(epoch, members):
                self._leave(epoch, members)
            case ReplaceMembers(epoch, members):
                limit_s = self._join_s if self._late == "joined" else LEAVE_S
                what = f"epoch {epoch}"
                self._replace(members, f"has not {self._late} {what} within {limit_s:g} s", WORD_OF_LATE)
            case FreeWorld():
                self._cancel_timer()
                self._free_stop()
                self._freed()

    def _form(self, epoch: int, members: tuple[WorldMember, ...]) -> None:
        self._holding.asked(time.monotonic())
        join = control.JoinEpoch(self.plan.number, epoch, [each.incarnation for each in members])
        for member in members:
            for other in members:
                if other != member and (member, other) not in self._given:
                    self._given.add((member, other))
                    for message, descriptor in self._messages(other, self._files[other].share()):
                        self._tell_member(member, message, descriptor)
            self._tell_member(member, join)
        self._set_timer(self._join_s, "joined", functools.partial(self._members.join_late, epoch))

    def _finish(self, epoch: int, members: tuple[WorldMember, ...]) -> None:
        self._holding.asked(time.monotonic())
        for member in members:
            self._tell_member(member, control.CloseEpoch(self.plan.number, epoch))
        if self._members.state is WorldState.CLOSING or self.plan.session:
            drains_s = max(map(self._processes.drain_timeout_s, self.plan.devices))
            limit_s = drains_s if self._members.state is WorldState.CLOSING else CLOSE_S
            self._set_timer(limit_s, "left", functools.partial(self._members.close_late, epoch))
        cause = self._members.cause
        text = f"epoch {epoch} of world {self.plan.name} ends as planned: {self._where(cause)}{cause.reason}"
        facts: dict[str, Scalar] = {"world": self.plan.name, "epoch": epoch, "cause": cause.reason}
        self._note("world_closing", text, facts)

    def _leave(self, epoch: int, members: tuple[WorldMember, ...]) -> None:
        self._holding.asked(time.monotonic())
        cause = self._members.cause
        rank = -1 if cause.rank is None else cause.rank
        for member in members:
            depart = control.DepartEpoch(self.plan.number, epoch, rank, clip(cause.reason, REASON_CHARS))
            self._tell_member(member, depart)
        if self._members.state is WorldState.ENDED and not self.plan.session:
            return
        self._set_timer(LEAVE_S, "left", functools.partial(self._members.leave_late, epoch))
        how = "ends as planned" if cause.planned else "has ended"
        text = f"epoch {epoch} of world {self.plan.name} {how}: {self._where(cause)}{cause.reason}"
        facts: dict[str, Scalar] = {"world": self.plan.name, "epoch": epoch, "rank": rank, "cause": cause.reason}
        self._note("world_closing" if cause.planned else "world_broken", text, facts)

    def _replace(self, members: Iterable[WorldMember], why: str, word: str) -> None:
        """Have members replaced. The cause of one that is stopped is always that.

        Args:
            members: The members.
            why: What they have done, or not: "has not joined".
            word: The same in a word.
        """
        for member in members:
            cause, in_a_word = (STOPPED, WORD_OF_STOPPED) if self._is_stopped(member) else (why, word)
            text = f"its worker {cause} (world {self.plan.name})"
            self._processes.replace(self.plan.devices[member.rank], member.incarnation, text, in_a_word)

    def _is_stopped(self, member: WorldMember) -> bool:
        return self._processes.is_stopped(self.plan.devices[member.rank], member.incarnation)

    def _publish(self) -> None:
        self._told = self.info
        self._tell(self._told)

    def _messages(self, of: WorldMember, files: Mapping[WorldFileKind, Descriptor]) -> list[Offer]:
        """Return the messages that hand files of a process on."""
        return [
            (control.WorldFile(self.plan.number, of.rank, of.incarnation, kind), each) for kind, each in files.items()
        ]

    def _mailbox(self, of: WorldMember) -> list[Offer]:
        """Return the message that hands the mailbox of a process on, if that has come."""
        mailbox = self._files[of].share_mailbox()
        return [] if mailbox is None else self._messages(of, {WorldFileKind.MAILBOX: mailbox})

    def _tell_member(
        self, member: WorldMember, message: control.FromSupervisor, descriptor: Descriptor | None = None
    ) -> None:
        self._processes.tell(self.plan.devices[member.rank], member.incarnation, message, descriptor)

    @property
    def _reason(self) -> tuple[str, int]:
        """Why the world is not ready, and the rank where that comes from, -1 if from none."""
        match self._members.state:
            case WorldState.READY:
                return "", -1
            case WorldState.FORMING:
                return "its members join the next epoch", -1
            case WorldState.WAITING:
                missing = self._members.missing
                if missing:
                    state = clip(self._processes.state(self.plan.devices[missing[0]]), REASON_CHARS)
                    return f"{self._which(missing[0])} {state}", missing[0]
                late = self._members.without_mailbox
                if late:
                    refused = [why for member, why in self._refused.items() if member.rank == late[0]]
                    why = f"takes no part: {refused[-1]}" if refused else "has not made its mailbox yet"
                    return f"{self._which(late[0])} {why}", late[0]
                return "its members were set up with different code: reload the pool (atomr-mp reload)", -1
            case _:
                cause = self._members.cause
                return clip(cause.reason, REASON_CHARS), -1 if cause.rank is None else cause.rank

    def _where(self, cause: EpochCause) -> str:
        return "" if cause.rank is None else f"{self._which(cause.rank)}: "

    def _which(self, rank: int) -> str:
        return f"rank {rank} (device {self.plan.devices[rank]})"

    def _set_timer(self, delay_s: float, late: str, then: Callable[[], Iterable[WorldOrder]]) -> None:
        self._cancel_timer()
        self._late = late

        def call() -> None:
            self._timer = None
            self._take(then())

        self._timer = self._loop.call_later(delay_s, call)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _free_stop(self) -> None:
        if self._stop is not None:
            self._stop.close()
            self._stop = None
