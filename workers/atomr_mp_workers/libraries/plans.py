"""Plans: objects that a library makes for a request and uses again for later ones like it.

Plans are kept by all declared facts of a request (`LibraryRequest.plan_key`), so that no two requests share a plan by
mistake; the least recently used are dropped. A thread that uses libraries has plans of its own; another thread makes
plans that take long.
"""

from __future__ import annotations

import copy
import sys
import threading
import traceback
from collections import OrderedDict
from collections.abc import Callable, MutableSequence
from queue import SimpleQueue
from typing import Any, Final

from atomr_mp import errors
from atomr_mp.protocol.board import PLAN_WORDS, PlanCounts
from atomr_mp_workers.device.base import Event, WorkerDevice
from atomr_mp_workers.libraries.counting import count

SWITCH_S: Final = 0.0002
"""How long the thread that makes plans may keep the interpreter from the loop. Python's default is 5 ms, after each
wait of the loop."""

KEPT: Final = 256
"""Most plans of a library."""

MISSES, HITS, DROPPED, KEPT_NOW = (PlanCounts._fields.index(each) for each in ("misses", "hits", "dropped", "kept"))
"""Places of counts."""


class LibraryPlan:
    """A plan, or the error of making it."""

    __slots__ = ("_error", "_made", "event")

    def __init__(self, event: Event | None = None) -> None:
        self.event: Final = event
        """The event of its end, if it is made elsewhere."""
        self._made: Any = None
        self._error: BaseException | None = None

    @property
    def has_failed(self) -> bool:
        """Whether it could not be made."""
        return self._error is not None

    def make(
        self, prepare: Callable[[], Any], explain: Callable[[BaseException], BaseException | None] = lambda _: None
    ) -> None:
        """Make it; never raises.

        Args:
            prepare: Makes it.
            explain: Returns the meaning of an error, None if it knows none.
        """
        try:
            self._made = prepare()
        except BaseException as error:  # noqa: BLE001 - it is the answer to the requests that wait for it
            self.fail(explain(error) or error)

    def fail(self, error: BaseException) -> None:
        """Keep the error of making it, without the frames: they have the arrays of a request."""
        if not isinstance(error, errors.AtomrError):
            error.add_note("".join(traceback.format_exception(error)))
        error.__cause__ = error.__context__ = None
        self._error = error.with_traceback(None)

    def get(self) -> Any:
        """Return the plan's content.

        Raises:
            BaseException: The error of making it, a new exception for each caller: one that is raised again keeps the
                frames of all earlier callers.
        """
        if self._error is not None:
            raise _another(self._error)
        return self._made


def _another(error: BaseException) -> BaseException:
    """Return a new exception like this one."""
    try:
        return copy.copy(error)
    except Exception:  # noqa: BLE001 - its class is not made from its arguments
        another = RuntimeError(f"{type(error).__name__}: {error}")
        for note in error.__notes__:
            another.add_note(note)
        return another


class LibraryPlans:
    """The plans of a library.

    Args:
        kept: Most plans to keep.
        figures: The words that count them, as `board.PlanCounts`; several libraries may share them.
    """

    def __init__(self, kept: int = KEPT, figures: MutableSequence[int] | None = None) -> None:
        self._kept = kept
        self._figures: Final = [0] * PLAN_WORDS if figures is None else figures
        self._plans: OrderedDict[object, LibraryPlan] = OrderedDict()
        self.made = 0
        self.used = 0
        """How often a plan existed already."""
        self.dropped = 0

    def __len__(self) -> int:
        return len(self._plans)

    def find(self, key: object) -> LibraryPlan | None:
        """Return a plan that was made or is being made; None if there is none, or it has failed."""
        plan = self._plans.get(key)
        if plan is None or plan.has_failed:
            return None
        self._plans.move_to_end(key)
        self.used += 1
        count(self._figures, HITS)
        return plan

    def keep(self, key: object, plan: LibraryPlan) -> LibraryPlan | None:
        """Keep a plan; return the one that is dropped for it, if one is."""
        figures = self._figures
        self.made += 1
        count(figures, MISSES)  # first, so that never more are kept than were made
        replaced = key in self._plans
        self._plans[key] = plan
        self._plans.move_to_end(key)
        if len(self._plans) <= self._kept:
            count(figures, KEPT_NOW, not replaced)
            return None
        self.dropped += 1
        count(figures, DROPPED)
        return self._plans.popitem(last=False)[1]


class Preparer:
    """Makes plans that take long, one after the other, on a thread of its own, and drops them there.

    Args:
        device: The thread's device.
        wake: Has the loop look at the requests that wait.
        name: The thread's.
    """

    def __init__(self, device: WorkerDevice, wake: Callable[[], None], name: str = "plans") -> None:
        self._device = device
        self._name = name
        self._wake = wake
        self._queue: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._started = False

    def prepare(self, plan: LibraryPlan, prepare: Callable[[], Any]) -> None:
        """Have a plan made; its event ends then."""
        self._submit(lambda: self._prepare(plan, prepare))

    def drop(self, plan: LibraryPlan) -> None:
        """Drop a plan on the thread, since that may wait for the device."""
        self._submit(lambda held=[plan]: held.clear())  # type: ignore[misc]

    def _submit(self, work: Callable[[], None]) -> None:
        if not self._started:
            self._started = True
            # A daemon: a plan that is never made must not keep a worker alive that was told to leave.
            threading.Thread(target=self._run, name=self._name, daemon=True).start()
        self._queue.put(work)

    def _prepare(self, plan: LibraryPlan, prepare: Callable[[], Any]) -> None:
        usual_s = sys.getswitchinterval()
        sys.setswitchinterval(SWITCH_S)
        try:
            self._device.on_thread(lambda: plan.make(prepare, self._device.explain))
        except BaseException as error:  # noqa: BLE001 - of the device: the requests that wait are told
            plan.fail(error)
        finally:
            sys.setswitchinterval(usual_s)
        assert plan.event is not None
        plan.event.end()
        self._wake()

    def _run(self) -> None:
        while True:
            work = self._queue.get()
            work()
            del work
