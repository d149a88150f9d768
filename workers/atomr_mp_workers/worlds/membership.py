"""A process's place in one world: it joins epochs, takes parts of their calls, and leaves. With the loop's turn."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection
from typing import Any, Final, Protocol

from atomr_mp import errors
from atomr_mp.protocol.messages import control
from atomr_mp.protocol.messages.devices import Resumes
from atomr_mp.protocol.world import NoteKind, WorldPageDamagedError
from atomr_mp_workers.fault_points import hooks
from atomr_mp_workers.requests.batches.former import NEVER_NS
from atomr_mp_workers.requests.kinds.stream import StreamRequest
from atomr_mp_workers.requests.request import Request
from atomr_mp_workers.worlds.epoch_ends import PLANNED, EpochEnd, aborted, planned, stream_error, unrun
from atomr_mp_workers.worlds.epoch_place import EpochPlace
from atomr_mp_workers.worlds.mailboxes import FormingFailedError, Mailboxes, NoMailboxes
from atomr_mp_workers.worlds.member_states import MemberAction, MemberEvent, MemberState, member_step
from atomr_mp_workers.worlds.order.calls import CallFacts
from atomr_mp_workers.worlds.order.files import WorldFiles
from atomr_mp_workers.worlds.order.joined_epoch import JoinedEpoch
from atomr_mp_workers.worlds.order.steps import PartKey, StreamEnd
from atomr_mp_workers.worlds.running.gang_queue import GangQueue, came_as, key_of
from atomr_mp_workers.worlds.running.waiting_parts import WaitingParts
from atomr_mp_workers.worlds.running.world_thread import EpochMeeting, WorldThread

_INSIDE: Final = frozenset({MemberState.JOINED, MemberState.CLOSING})
"""States in which published calls begin."""

LONGEST_S: Final = 1e9

REASON_CHARS: Final = 2000

MOST_PLANNED: Final = 64
"""How many epochs are remembered that have ended as planned."""

_REFS_IN_USE: Final = ": its refs were in use"


class WorldView(Protocol):
    """The world as its actors see it."""

    def enter(self, meeting: Any, /) -> None:
        """Begin an epoch."""

    def leave(self) -> None:
        """End the epoch."""

    def serve(self) -> None:
        """End the rehearsals: this process is ready."""


class Membership:
    """A process's place in one world.

    Args:
        offered: The world, and the rank of this process.
        files: The world's files.
        view: The world as its actors see it.
        thread: Runs its calls.
        queue: Where they wait.
        make_meeting: Makes the process's side of an epoch's collectives.
        send: Tells the supervisor.
        wake: Has the loop look; any thread.
        mailboxes: The mailboxes on devices.
    """

    def __init__(
        self,
        offered: control.WorldOffered,
        files: WorldFiles,
        view: WorldView,
        thread: WorldThread,
        queue: GangQueue,
        make_meeting: Callable[[EpochPlace], EpochMeeting],
        send: Callable[[control.FromWorker], None],
        wake: Callable[[], object],
        mailboxes: Mailboxes | None = None,
    ) -> None:
        self.number: Final = offered.world
        self.name: Final = offered.name
        self.state = MemberState.OUTSIDE
        self._abort: Callable[[Request, errors.RequestError], object] = lambda _request, _error: None
        self._rank: Final = offered.rank
        self._devices: Final = offered.devices
        self._mailboxes: Final = mailboxes or NoMailboxes()
        self._files: Final = files
        self._view: Final = view
        self._thread: Final = thread
        self._queue: Final = queue
        queue.give_up, queue.decline, queue.explain = self._break_off, self._decline, self._explain
        queue.expire = self._expire
        self._make_meeting: Final = make_meeting
        self._send: Final = send
        self._wake: Final = wake
        self._begin_timeout_ns: Final = int(min(offered.begin_timeout_s, LONGEST_S) * 1e9)
        self._patience_ns: Final = self._begin_timeout_ns * (4 + self.number % 4) // 4
        """How long to wait for members that are not quiet. Worlds that wait for each other do not give up at once."""
        self._rehearses = True
        self._epoch: JoinedEpoch | None = None
        self._end: EpochEnd | None = None
        self._reason = ""
        """Why it leaves unasked."""
        self._is_unfit = False
        """Whether it leaves because this process has to be replaced."""
        self._is_cut = False
        """Whether parts may have been lost with a connection."""
        self._unable = ""
        """Why this process cannot run what the ring says, "" if it can."""
        self._is_reported = False
        """Whether the supervisor knows that the epoch cannot go on."""
        self._quiet_due_ns: int | None = None
        """When to look whether the others are quiet for a part that has to run alone; None if there is none."""
        self._holders: list[control.EpochHolder] = []
        """The requests that hold a planned end, as the supervisor knows them."""
        self._latest = (0, -1, "")
        """The epoch that it has left last, with the rank and the cause of its end."""
        self._session: Final = offered.session
        """The session whose parts alone are taken; 0 for all."""
        self._waiting: Final = WaitingParts(queue)
        self._planned: deque[int] = deque(maxlen=MOST_PLANNED)
        """Epochs that have ended as planned. Parts of their calls may still come."""

    # --- the supervisor's orders ------------------------------------------------------------------------------------

    def join(self, order: control.JoinEpoch) -> None:
        """Join an epoch, or tell why that cannot be."""
        try:
            if self._epoch is not None:
                raise errors.ProtocolError(f"epoch {self._epoch.number} was not left")
            self._files.close_former(order.generations)
            pages = self._files.pages(self._rank, order.generations)
            has_joined = self._mailboxes.join(order.epoch, order.generations, self._wake)
            epoch = JoinedEpoch(pages, self._rank, order.epoch, self._begin_timeout_ns)
        except (errors.AtomrError, WorldPageDamagedError) as error:
            if self._epoch is None:
                self._mailboxes.over()
            reason = f"could not join: {error}"[:REASON_CHARS]
            self._send(control.EpochLeft(self.number, order.epoch, reason, unfit=True))
            return
        end = EpochEnd(self.name, epoch, self._wake)
        meeting = self._make_meeting(
            EpochPlace(
                self.name,
                self._rank,
                order.epoch,
                epoch.writer,
                epoch.readers,
                pages.mailboxes,
                pages.thread_bells,
                end.error,
                end.left_waiting,
            )
        )
        self._epoch, self._end, self._reason = epoch, end, ""
        self._is_reported = self._is_cut = self._is_unfit = False
        self._unable, self._holders = "", []
        self._queue.enter(epoch)
        self._thread.meet(meeting)
        self._view.enter(meeting)
        self._feed(MemberEvent.JOIN if has_joined else MemberEvent.FORM)

    def depart(self, order: control.DepartEpoch) -> None:
        """Leave an epoch that is over."""
        if self._epoch is None or self._epoch.number != order.epoch or self._end is None:
            return  # it has left by itself, or has never joined
        self._end.know(order.rank, order.cause)
        self._feed(MemberEvent.DEPART)

    def close(self, order: control.CloseEpoch) -> None:
        """Run what is published of an epoch, and leave behind the last entry."""
        if self.state is MemberState.JOINED and self._epoch is not None and self._epoch.number == order.epoch:
            self._feed(MemberEvent.CLOSE)

    def mailbox_came(self) -> None:
        """Take in that the mailbox of another rank's process waits among the files, maybe before that is a member."""
        try:
            self._mailboxes.map()
        except errors.AtomrError:
            return  # to join an epoch with it fails as well, and is reported

    def incarnation_over(self, device: int, generation: int) -> None:
        """Close the mailbox of a process that has ended, which would keep memory of its device."""
        if device in self._devices:
            rank = self._devices.index(device)
            self._files.drop_mailbox(rank, generation)
            self._mailboxes.forget(rank, generation)

    def drain(self) -> None:
        """Leave the epoch, unless it is closed and this process leaves it by itself."""
        if self._end is not None and self.state in {MemberState.FORMING, MemberState.JOINED}:
            self._reason = "its worker leaves"
            self._end.know(self._rank, self._reason)
        self._feed(MemberEvent.DRAIN)

    def give_up(self, reason: str) -> None:
        """Leave the epoch unasked."""
        if self._end is not None and self.state is not MemberState.LEAVING:
            self._reason = reason[:REASON_CHARS]
            self._end.know(self._rank, self._reason)
        self._feed(MemberEvent.GIVE_UP)

    def use(
        self, abort: Callable[[Request, errors.RequestError], object], discard: Callable[[Request], object]
    ) -> None:
        """Take the functions that answer parts that have not begun, and that drop them with their session."""
        self._abort = abort

        def drop(request: Request) -> None:
            if request.method.refused is None or request.peer.session.ended:
                discard(request)
            else:  # its caller has cancelled it; only rank 0 was told
                self._abort(request, _cancelled())

        self._queue.discard = drop

    def serve(self) -> None:
        """Take parts of gang calls, and no examples."""
        self._rehearses = False
        self._view.serve()
        self.mailbox_came()  # those that came before this place was made

    # --- parts ------------------------------------------------------------------------------------------------------

    def check(self, method: str, session: int, gang_id: int | None, epoch: int) -> None:
        """Refuse a call of a method of this world that is no part of the epoch of now.

        Args:
            method: The method's name.
            session: Number of the session.
            gang_id: The gang call's id; None if the call is part of none.
            epoch: The epoch that it is for.

        Raises:
            InvalidRequest: It is no part of a gang call, or the part is here already.
            CollectiveAborted: It is for another epoch.
        """
        if self._session and session != self._session:
            raise errors.InvalidRequest(f"the world {self.name!r} is another session's")
        if gang_id is None:
            if self._rehearses:
                return
            raise errors.InvalidRequest(
                f"{method} belongs to the world {self.name!r}, whose members are called together: "
                f"pool.world({self.name!r}).call({method!r}, ...)"
            )
        if self.state is not MemberState.JOINED or self._epoch is None or self._epoch.number != epoch:
            if epoch in self._planned:
                raise planned(self.name, epoch)
            _, rank, cause = self._latest if self._latest[0] == epoch else (epoch, -1, "")
            raise aborted(self.name, epoch, rank, cause, maybe_executed=False)
        if (session, gang_id) in self._queue:
            raise errors.InvalidRequest(f"the call {gang_id} of the world is in use already")

    def came(self, request: Request) -> None:
        """Take in a part that was checked."""
        key = key_of(request)
        if key is not None and self._epoch is not None:
            self._queue.arrive(key, request)
            if hooks.hook is not None:
                hooks.hook("world_note", "")
            if self._epoch.publisher is not None and request.method.steps is None:
                is_for_refs = request.method.refused is not None  # then `_waiting` looks at its deadline
                due_ns = NEVER_NS if is_for_refs else request.deadline_ns
                self._epoch.publisher.calls.know(key, CallFacts(request.peer.session, request.method, due_ns))
            kind = came_as(request)
            shares = request.method.batch is not None or request.method.steps is not None
            if isinstance(request, StreamRequest):
                request.sends = self._rank == 0
                if self._epoch.publisher is not None and not shares:
                    can_move = request.method.resumes is not Resumes.NEVER
                    self._epoch.publisher.streams.came(key, has_room=bool(request.credit), is_resumable=can_move)
            if request.method.refused is not None:  # it is noted once its memory is free
                self._waiting.add(key, request, is_first_rank=self._epoch.publisher is not None)
            elif not shares or kind is NoteKind.CAME_ALONE:  # else it is noted once its arguments are decoded
                self._epoch.note(key, kind)

    @property
    def waiting(self) -> Collection[Request]:
        """The parts that wait for their memory."""
        return self._waiting.requests

    def refuse(self, key: PartKey) -> None:
        """Refuse a part that waits for its memory, if it still does: others would wait for each other for ever."""
        request = self._waiting.take(key)
        if request is not None and not request.dropped and self._epoch is not None:
            self._abort(request, _blocked(self.name))
            self._epoch.note(key, NoteKind.REFUSED)
            self._wake()

    def refused(self, key: PartKey, epoch: int) -> None:
        """Take in that a part was answered on its arrival: no member runs the call."""
        epochs = self._epoch is not None and self._epoch.number == epoch and self.state is MemberState.JOINED
        if self._epoch is not None and epochs and key not in self._queue:
            self._epoch.note(key, NoteKind.REFUSED)

    def unwanted(self, request: Request) -> None:
        """Take in that a part's caller has cancelled it. As rank 0, have no rank run the call if it is unpublished."""
        key = key_of(request)
        if key is None or self._epoch is None or self._epoch.publisher is None or request.dropped:
            return
        if request.method.refused is None:
            self._queue.withdraw(request)
        elif self._waiting.cancel(key, self._epoch.publisher):
            self._wake()

    def left(self, request: Request) -> None:
        """Take in that the connection of a part has ended: its call is dropped if other parts of it do not come."""
        key = key_of(request)
        if key is not None and key in self._queue and self._epoch is not None and not request.dropped:
            self._epoch.note(key, NoteKind.LEFT)

    def is_quiet(self) -> bool:
        """Return whether the part that has to run alone may begin: nothing else runs on any member until it has ended.

        By asking, this process says that nothing else runs here.
        """
        return self._epoch is not None and self._epoch.be_quiet(self._queue.sequence)

    def session_ended(self, session: int) -> None:
        """Take in that a session has ended. As rank 0, have all members drop those of its calls that may not begin."""
        if self._epoch is not None and self._epoch.publisher is not None:
            self._epoch.publisher.cancel(session)

    def cut_off(self, session: int, epoch: int) -> bool:
        """Take in that parts of a session were lost with a connection, maybe before this process had read them.

        Return whether that ends the epoch for all.

        Args:
            session: Number of the session.
            epoch: The epoch that they were for.

        The other members would wait for these; only the end of the epoch answers what they have. One that is closed
        has its end before it. The session that has made a world is its only one.
        """
        if self._session not in {0, session} or self._epoch is None or self._epoch.number != epoch:
            return False
        if self.state is not MemberState.JOINED or self._epoch.is_given_up:
            return False
        self._is_cut = self._epoch.is_given_up = True
        return True

    # --- the loop ---------------------------------------------------------------------------------------------------

    @property
    def is_inside(self) -> bool:
        """Whether it has joined an epoch and not left it."""
        return self._epoch is not None

    @property
    def owes(self) -> bool:
        """Whether only a look goes on from here."""
        if self.state is MemberState.LEAVING:
            return True
        return self._epoch is not None and (self._epoch.owes or bool(self._epoch.damage) or self._epoch.is_closed)

    @property
    def has_free_part(self) -> bool:
        """Whether the memory of a part has become free that is not noted yet."""
        return self._epoch is not None and self._waiting.has_free

    @property
    def due_ns(self) -> int | None:
        """When to look at the latest, if nothing else happens; None if something else has to happen first."""
        if self._epoch is None:
            return None
        dues = [self._waiting.due_ns]
        if self.state in _INSIDE and not self._is_reported:
            dues += [self._epoch.due_ns, self._quiet_due_ns]
        return min([due for due in dues if due is not None], default=None)

    def look(self, now_ns: int, *, away: bool = False) -> None:
        """Look at the pages: note, publish, notice the end. Calls may begin after that.

        Args:
            now_ns: CLOCK_MONOTONIC.
            away: Whether a suspect waits or runs in this process, so that nothing is to be published that begins.
        """
        epoch, end = self._epoch, self._end
        if epoch is None or end is None:
            return
        if self.state in {MemberState.FORMING, *_INSIDE} and epoch.is_over:
            self._feed(MemberEvent.STOP)
        if self.state is MemberState.FORMING:
            self._look_forming()
        if self.state in _INSIDE and epoch.is_closed:
            if epoch.number not in self._planned:  # the order to close is on its way
                self._planned.append(epoch.number)
            end.know(-1, PLANNED)
            self._feed(MemberEvent.LAST)
        if self.state in _INSIDE:
            epoch.be_away(now_ns, away=away, has_parts=self._queue.has_parts)
            self._look_inside(epoch, end, now_ns)
        if self.state is MemberState.LEAVING and not (self._thread.ahead or self._queue.has_streams):
            self._feed(MemberEvent.IDLE)

    def _look_inside(self, epoch: JoinedEpoch, end: EpochEnd, now_ns: int) -> None:
        """Note what has come and become free, publish, and find out whether the epoch can go on."""
        self._waiting.note_free(epoch.note)
        epoch.look(now_ns)
        if epoch.publisher is not None and self._waiting.drop_late(epoch.publisher, now_ns):
            self._wake()
        if self.state is MemberState.CLOSING and epoch.publisher is not None:
            self._tell_holders(epoch.number)
        if epoch.damage:
            self.give_up(epoch.damage)
        else:
            self._report_broken(epoch, end, now_ns)

    def _tell_holders(self, epoch: int) -> None:
        """Tell the supervisor for whom a planned end waits, if that has changed."""
        requests = {each for each in (*self._thread.in_hand, *self._queue.open_streams) if each.gang is not None}
        first = sorted(requests, key=lambda each: each.received_ns)[: control.MAX_HOLDERS]
        holders = [control.EpochHolder(each.peer.session.number, each.method.name, each.received_ns) for each in first]
        if holders != self._holders:
            self._holders = holders
            self._send(control.EpochHeld(self.number, epoch, holders, len(requests)))

    def _look_forming(self) -> None:
        """Open the epoch once what it needs on the device is there; give it up if that cannot be."""
        try:
            if self._mailboxes.formed():
                self._feed(MemberEvent.JOIN)
        except FormingFailedError as failure:
            self._is_unfit = failure.is_unfit
            self.give_up(str(failure))

    def _report_broken(self, epoch: JoinedEpoch, end: EpochEnd, now_ns: int) -> None:
        """Tell the supervisor, once, of what keeps an epoch from going on."""
        if self._is_reported:
            return
        try:
            reason, rank, late = self._why_broken(epoch, end, now_ns)
        except WorldPageDamagedError as error:
            self.give_up(f"a page of the world is damaged: {error}")
            return
        if reason:
            self._is_reported = True
            self._send(control.EpochBroken(self.number, epoch.number, reason, rank, late))

    def _why_broken(self, epoch: JoinedEpoch, end: EpochEnd, now_ns: int) -> tuple[str, int, bool]:
        """Say why an epoch cannot go on, by which rank, and whether its process has to be replaced; "" if it can.

        Raises:
            WorldPageDamagedError: A member's lines cannot be believed.
        """
        if end.missed is not None:
            return "has ended a call without meeting the others, who waited for it", end.missed, False
        if self._unable:
            return self._unable, self._rank, False
        if self._is_cut:
            return "has lost a client's connection, maybe with parts of calls", self._rank, False
        loud = self._not_quiet(epoch, now_ns)
        if loud is not None:
            return "has not stopped other work in time for a suspected call, which runs alone", loud, False
        if epoch.publisher is not None and epoch.publisher.is_overfull:
            return "too many calls have come to some of the members and not to all", -1, False
        late = epoch.late(now_ns) if epoch.due_ns is not None and now_ns >= epoch.due_ns else None
        return ("", -1, False) if late is None else ("has not begun a call in time", late, True)

    def _not_quiet(self, epoch: JoinedEpoch, now_ns: int) -> int | None:
        """Return a rank for which a part that has to run alone has waited for too long, None if there is none."""
        if self._queue.apart is None:
            self._quiet_due_ns = None
            return None
        rank = epoch.not_quiet(self._queue.sequence, now_ns, self._patience_ns)
        self._quiet_due_ns = (epoch.stuck_ns or now_ns) + self._patience_ns
        return rank

    def _break_off(self, reason: str) -> None:
        """Begin nothing more in this epoch, and have it end."""
        if self._epoch is not None:
            self._unable, self._epoch.is_given_up = reason, True
            self._wake()

    def _decline(self, request: Request) -> None:
        """Answer a part of a call that no member runs."""
        if self._epoch is None:
            return
        error: errors.RequestError | None = unrun(self.name, request, time.monotonic_ns())
        key, publisher = key_of(request), self._epoch.publisher
        if key is not None and publisher is not None and key in publisher.mixed:
            publisher.mixed.discard(key)
            error = errors.InvalidRequest(
                f"the parts of {request.method.name} that came to the ranks of the world {self.name!r} do not agree on "
                "whether it runs alone; it has begun on none. The client that has sent it is at fault",
            )
        if error is None:
            error = aborted(self.name, self._epoch.number, -1, "")
            error.message = (
                f"another rank of the world {self.name!r} has refused the call, or its caller has cancelled it; it has "
                "begun on none"
            )
            error.left_epoch = False
        self._abort(request, error)

    def _expire(self, request: Request) -> None:
        """Answer a part that rank 0 has found late, a little before its deadline so that its caller hears in time."""
        error = unrun(self.name, request, request.deadline_ns, _REFS_IN_USE)
        if error is None or request.peer.session.ended:
            self._queue.discard(request)
        else:
            self._abort(request, error)

    def _unbegun(self, epoch: JoinedEpoch, end: EpochEnd) -> errors.CollectiveAborted:
        """Return the error of a part that has not begun here and will not; behind the last entry it was unpublished."""
        if epoch.is_closed:
            return planned(self.name, epoch.number)
        error = end.known()
        return aborted(self.name, epoch.number, error.rank, error.cause)

    def _explain(self, end: StreamEnd) -> errors.AtomrError:
        """Return the error of a stream that ends on all ranks."""
        number = 0 if self._epoch is None else self._epoch.number
        return stream_error(self.name, number, end)

    def _feed(self, event: MemberEvent) -> None:
        move = member_step(self.state, event)
        self.state = move.state
        for action in move.actions:
            self._act(action)

    def _act(self, action: MemberAction) -> None:
        epoch, end = self._epoch, self._end
        assert epoch is not None
        assert end is not None
        match action:
            case MemberAction.OPEN:
                hooks.point("world_join")
                self._send(control.EpochJoined(self.number, epoch.number))
            case MemberAction.CLOSE:
                self._planned.append(epoch.number)
                if epoch.publisher is not None:
                    epoch.publisher.close()
                self._wake()
            case MemberAction.WAKE:
                epoch.wake_thread()
                self._mailboxes.over()
            case MemberAction.REFUSE:
                over = end.known()  # and not the end itself, with all pages of the epoch
                facts = epoch.number, over.rank, over.cause
                self._queue.leave(lambda: aborted(self.name, *facts, maybe_executed=over.maybe_executed))
                self._waiting.clear()
                for request in self._queue.empty():
                    if not request.dropped:
                        self._abort(request, self._unbegun(epoch, end))
                self._wake()
            case MemberAction.REPORT:
                error = end.known()
                self._latest = epoch.number, error.rank, error.cause
                self._epoch = self._end = None
                self._thread.meet(None)
                self._view.leave()
                self._mailboxes.over()
                hooks.point("world_leave")
                self._send(control.EpochLeft(self.number, epoch.number, self._reason, unfit=self._is_unfit))


def _blocked(world: str) -> errors.BorrowConflict:
    """Return the error of a part that waits in a circle."""
    return errors.BorrowConflict(
        "refs of the call are in use by a call of another client, which waits for refs of this one on another device "
        f"of the world {world!r}. This one has begun on none; make it again"
    )


def _cancelled() -> errors.Cancelled:
    """Return the error of a part whose caller has cancelled the call before any rank began it."""
    return errors.Cancelled("cancelled before it began", maybe_executed=False)
