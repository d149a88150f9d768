"""A request of a library as a method: decoded, checked, with its outputs allocated and its plan made."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from typing import Any, Final, NamedTuple, cast

import msgspec

from atomr_mp import errors
from atomr_mp.protocol import values
from atomr_mp.protocol.allocation import aligned
from atomr_mp.protocol.codec import MAX_U64
from atomr_mp.protocol.layout import Layout
from atomr_mp.protocol.libraries.base import KNOWN, LibraryRequest
from atomr_mp.protocol.refs import Operand
from atomr_mp_workers.device.base import Event
from atomr_mp_workers.libraries.base import Library, LibraryContext
from atomr_mp_workers.libraries.lazy_library import Import, LazyLibrary
from atomr_mp_workers.libraries.plans import LibraryPlan, LibraryPlans, Preparer
from atomr_mp_workers.libraries.weights import UNKNOWN, check_extents, made_bytes, unshown_weight, weight
from atomr_mp_workers.memory.arrays import DeviceArray
from atomr_mp_workers.memory.blocks import Holder
from atomr_mp_workers.requests.method import Method, Resolve
from atomr_mp_workers.requests.request import Elsewhere, Later, Next, Request, current_request

KNOWN_BYTES: Final = 1024
"""Largest message that is remembered, in bytes."""


class Planning(NamedTuple):
    """The source of a library's plans."""

    plans: LibraryPlans
    prepare: Callable[[Any], Any]
    slow: bool


class Arrival(NamedTuple):
    """The functions of a request that are called when it arrives, see `Method`."""

    recall: Callable[[Any, Holder], Any] | None = None
    admit: Callable[[Any, Holder], None] | None = None
    withdraw: Callable[[Any, Holder], None] | None = None
    weigh: Callable[[tuple[Any, ...]], int] | None = None
    in_parts: Callable[[Any], bool] | None = None


class Known(NamedTuple):
    """Facts that follow from a request alone."""

    key: tuple[object, ...] | None
    """Key of its plan; None if it needs none."""
    left_out: dict[str, Layout]
    """The outputs to allocate."""
    run: Callable[..., Any]
    """The library's method; or `Library.rest`, where sizes and factors of 0 leave nothing else to do."""
    work: list[int]
    """Its operations and its bytes, once they have been asked for."""
    weight: list[int]
    """Its weight, likewise."""


class CountedRun(NamedTuple):
    """A request whose work is counted."""

    request: LibraryRequest
    known: Known
    of: Request | None
    """It as the worker has received it, None if it runs nowhere; it counts the steps of a program."""


class LibraryMethod(Method):
    """A request of a library.

    It is *bound* once its library is imported and open: then it knows what the library has for the request.

    Args:
        request: The name of the request.
        library: The library that does it.
        decoder: Decodes its message.
        context: The context, which allocates outputs.
        arrival: Functions for the request's arrival.
        elsewhere: Does work that would hold up the loop.
    """

    def __init__(
        self,
        request: str,
        library: LazyLibrary,
        decoder: values.Decoder[LibraryRequest],
        context: LibraryContext,
        arrival: Arrival,
        elsewhere: Preparer,
    ) -> None:
        # The time of what a device has only been given to do is not known here.
        super().__init__(f"{library.name}.{request}", self._call if context.device.asynchronous else self._timed)
        self.is_ours = True
        self._request: Final = request
        self._lazy: Final = library
        self._preparer: Final = library.preparer
        self.stream = self._stream = library.stream
        self.recall, self.admit, self.withdraw, weigh, self.in_parts = arrival
        self.weigh = weigh or (None if context.device.asynchronous else self._weighed)
        self.prepares = True
        self.allocates = True
        self._library: Library | None = None
        """The library, once this is bound."""
        self._run: Callable[..., Any] = self._not_bound
        self._planning: Planning | None = None
        self._begin: Callable[[Any], Future[Any]] | None = None
        """Begins the part of the request that is done elsewhere, see `Library`."""
        self._decoder = decoder
        self._context = context
        self._elsewhere = elsewhere
        self._known: dict[Hashable, Known] = {}
        """Facts of messages that were found well-formed, by the part that recurs if some fields advance."""
        self._work: dict[Hashable, tuple[int, int]] = {}
        """Work that is declared, by `LibraryRequest.work_key`: the same sizes come again in other arrays."""

    def bind_here(self) -> None:
        """Have the library imported and made on the calling thread, and bind this to it.

        Raises:
            Unsupported: The backend does not have the request, or a package that it needs is not installed.
        """
        self._bind(self._lazy.here())

    def _bind(self, library: Library) -> None:
        """Take the method and the plans that a library has for the request."""
        run = getattr(library, self._request, None)
        if run is None:
            raise errors.Unsupported(f"{self.name} is not provided on the {self._context.backend} backend")
        prepare = getattr(library, f"prepare_{self._request}", None)
        if prepare is not None:
            self._planning = Planning(self._lazy.keep_plans(), prepare, self._request in library.slow)
        self._library, self._run = library, run
        self._begin = getattr(library, f"begin_{self._request}", None)
        self.prepares = prepare is not None or self._begin is not None
        self._known.clear()  # facts from before name no method

    def _not_bound(self, *_: object) -> None:
        raise AssertionError(f"{self.name} is run before its library is imported")

    def arguments(self, body: bytes, frames: Sequence[memoryview], resolve: Resolve) -> tuple[LibraryRequest, Known]:
        """Decode the message, and check it."""
        request = self._decoder.decode(body, frames, resolve)
        if frames or len(body) > KNOWN_BYTES:
            return request, self._checked(request)
        known = self._known.get(body)  # the layouts of its refs never change
        if known is None:
            key: Hashable = request.recurring() if type(request).moving() else body
            known = self._known.get(key)
            if known is None:
                known = self._checked(request)
                if len(self._known) >= KNOWN:
                    self._known.clear()
                self._known[key] = known
        return request, known

    def _checked(self, request: LibraryRequest) -> Known:
        """Check a request, and return the facts that follow from it."""
        request.check()
        check_extents(request, self._context.store.slabs.quota_bytes)
        return self._facts(request)

    def _facts(self, request: LibraryRequest) -> Known:
        if request.is_idle():
            rest = self._not_bound if self._library is None else self._library.rest
            return Known(None, request.results(), rest, [0, 0], [0])  # it does less than it declares
        return Known(None if self._planning is None else request.plan_key(), request.results(), self._run, [], [])

    def written(self, arguments: tuple[Any, ...]) -> list[DeviceArray]:
        """Return the arrays that the message writes; it has checked itself that they may be."""
        request: LibraryRequest = arguments[0]
        return request.written()

    def read(self, arguments: tuple[Any, ...], _arrays: Sequence[DeviceArray]) -> list[DeviceArray]:
        """Return the arrays that the message reads, including those of a factor other than 0."""
        request: LibraryRequest = arguments[0]
        return request.read()

    def triangle_of(self, arguments: tuple[Any, ...], array: DeviceArray) -> str | None:
        """Return the only triangle of an array that the message writes."""
        request: LibraryRequest = arguments[0]
        return request.triangle_of(array)

    def written_before(self, arguments: tuple[Any, ...], array: DeviceArray) -> Sequence[DeviceArray]:
        """Return the arrays that the message writes before it reads this one."""
        request: LibraryRequest = arguments[0]
        return request.written_before(array)

    def undefined_after(self, arguments: tuple[Any, ...], error: errors.AtomrError) -> Sequence[DeviceArray] | None:
        """Return the outputs that an error names; None, for all, if it names none or another array."""
        if not isinstance(error, errors.NumericalError):
            return None
        request: LibraryRequest = arguments[0]
        written = {name: cast("DeviceArray", array) for name, argument, array in request.arrays() if argument.writes}
        names = error.undefined.split(", ")
        return [written[name] for name in names] if written.keys() >= set(names) else None

    def explained(self, error: errors.AtomrError) -> errors.AtomrError:
        """Return an error of the data with its library and request."""
        if isinstance(error, errors.NumericalError) and not error.library:
            error.library = self.name.partition(".")[0]
            error.message = f"{self.name}: {error.message}"
        return error

    def prepared(self, arguments: tuple[Any, ...], *, elsewhere: bool = False) -> tuple[tuple[Any, ...], Event | None]:
        """Return the arguments with the plan, and the event of its making if it is made elsewhere.

        The first requests of a library wait for its import instead, and get their plans when they are `resumed`.
        """
        if self._library is None:
            return self._first(arguments)
        planning = self._planning
        request, known = arguments
        if self._begin is not None:
            begun = self._begun(self._begin, request)
            return (request, known, begun), begun.event
        if planning is None or known.key is None:
            return arguments, None
        plan = planning.plans.find(known.key)
        if plan is None:
            plan = self._plan(planning, request, known, elsewhere=elsewhere or planning.slow)
        return (request, known, plan), plan.event if plan.event is not None and not plan.event.done else None

    def resumed(self, arguments: tuple[Any, ...]) -> tuple[tuple[Any, ...], Event | None]:
        """Return the same for a request that has waited for the import; its plan is made elsewhere too.

        If the import has failed, the request gets the error when it is run.
        """
        waited = arguments[2] if len(arguments) > 2 else None
        if not isinstance(waited, Import) or waited.has_failed:
            return arguments, None
        return self._first(arguments, elsewhere=True)

    def _first(self, arguments: tuple[Any, ...], *, elsewhere: bool = False) -> tuple[tuple[Any, ...], Event | None]:
        """Bind this, and return the arguments of one of the first requests; or have the library imported before."""
        request, known = arguments[:2]
        if self._library is None:
            if not self._lazy.is_ready:
                imported, event = self._lazy.begin_import()
                return (request, known, imported), event
            try:
                self.bind_here()
            except errors.Unsupported as error:
                failed = LibraryPlan()
                failed.fail(error)
                return (request, known, failed), None
        return self.prepared((request, self._facts(request)), elsewhere=elsewhere)

    def work(self, arguments: tuple[Any, ...]) -> tuple[int, int]:
        """Return the figures of the declaration, reckoned once for requests that differ in nothing but their arrays."""
        request, known = arguments[:2]
        if not known.work:
            left_out = sum([each.nbytes for each in known.left_out.values()])
            known.work[:] = _bounded(lambda: self._declared(request), left_out)
        return known.work[0], known.work[1]

    def _weighed(self, arguments: tuple[Any, ...]) -> int:
        """Return how much a request is to do, reckoned once for all that have the same message."""
        request: LibraryRequest = arguments[0]
        known: Known = arguments[1]
        if not known.weight:
            known.weight.append(min(UNKNOWN, weight(request) + unshown_weight(request, known.left_out)))
        return known.weight[0] or made_bytes(known.left_out)  # of an idle one that is all that it does

    def kernel(self, arguments: tuple[Any, ...]) -> str:
        """Return the name of the kernel that a request launches."""
        request: LibraryRequest = arguments[0]
        return request.launched

    def _declared(self, request: LibraryRequest) -> tuple[int, int]:
        """Return the work that is declared for a request, without outputs that were left out."""
        key = request.work_key()
        if key is None:
            return request.flops(), request.moved_bytes()
        found = self._work.get(key)
        if found is None:
            if len(self._work) >= KNOWN:
                self._work.clear()
            found = self._work[key] = request.flops(), request.moved_bytes()
        return found

    def room_for(self, arguments: tuple[Any, ...], holder: Holder) -> Event | None:
        """Have room made for a request's outputs, if there is none for all of them in one piece."""
        request, known = arguments[:2]
        nbytes = sum(aligned(each.nbytes) for each in known.left_out.values()) or request.made_bytes
        if not nbytes:
            return None
        device = self._context.device
        event = device.make_event()
        return event if self._context.store.slabs.provide(holder, nbytes, event, self._context.wake) else None

    def decode_step(self, body: bytes, resolve: Resolve) -> LibraryRequest:
        """Return a step of a program, decoded and checked."""
        request = self._decoder.decode(body, (), resolve)
        request.check()
        check_extents(request, self._context.store.slabs.quota_bytes)
        return request

    def step(self, request: LibraryRequest) -> Callable[[LibraryRequest], Any]:
        """Return the function that does a step like this one; open the library, and make its plan if there is none."""
        assert self._library is not None
        self._library.open_here()
        known = self._facts(request)
        if known.key is None:
            return known.run
        plan = self._plan_now(request, known)
        return lambda request: self._run(request, plan.get())

    def prepare_here(self, request: LibraryRequest) -> None:
        """Make the plan of a checked request on the calling thread, if it needs one and there is none.

        Raises:
            BaseException: Making it has failed.
        """
        known = self._facts(request)
        if known.key is not None:
            self._plan_now(request, known)

    def run_here(self, request: LibraryRequest) -> Any:
        """Do a checked request on the calling thread; make its plan at once if there is none.

        Returns its method's result, which may be a `Later` or a `Next`.
        """
        known = self._facts(request)
        plan = None
        if self._begin is not None:
            plan, begun = LibraryPlan(), self._begin(request)
            plan.make(begun.result)
        elif known.key is not None:
            plan = self._plan_now(request, known)
        result = self._done(request, known, plan)
        return result.then(result.work()) if type(result) is Elsewhere else result

    def _plan_now(self, request: LibraryRequest, known: Known) -> LibraryPlan:
        """Return the plan of a request, made at once if there is none.

        Raises:
            BaseException: Making it has failed.
        """
        planning, key = self._planning, known.key
        assert planning is not None
        assert key is not None
        plan = planning.plans.find(key)
        if plan is None:
            plan = LibraryPlan()
            plan.make(lambda: planning.prepare(_laid_out(request, known.left_out)))
            planning.plans.keep(key, plan)
        plan.get()
        return plan

    def give_up(self, arguments: tuple[Any, ...]) -> None:
        """Give up the work that was begun elsewhere for an unwanted request, which then fails."""
        for each in arguments:
            if isinstance(each, BegunWork):
                each.future.cancel()

    def _begun(self, begin: Callable[[Any], Future[Any]], request: LibraryRequest) -> LibraryPlan:
        """Begin what is done elsewhere; return what stands for it. No other request gets it."""
        try:
            future = begin(request)
        except errors.AtomrError as error:
            refused = LibraryPlan()
            refused.fail(error)
            return refused
        plan = BegunWork(self._context.device.make_event(), future)
        future.add_done_callback(lambda _: self._end(plan))
        return plan

    def _end(self, plan: BegunWork) -> None:
        """Take the outcome of work elsewhere. Any thread."""
        if plan.future.cancelled():
            plan.fail(errors.Cancelled(f"{self.name} was given up before it was done"))
        else:
            plan.make(plan.future.result, self._context.device.explain)
        assert plan.event is not None
        plan.event.end()
        self._context.wake()

    def _plan(self, planning: Planning, request: LibraryRequest, known: Known, *, elsewhere: bool) -> LibraryPlan:
        """Make a plan, or have it made."""
        assert known.key is not None
        laid_out = _laid_out(request, known.left_out)
        plan = LibraryPlan(self._context.device.make_event() if elsewhere else None)
        if elsewhere:
            self._preparer.prepare(plan, lambda: planning.prepare(laid_out))
        else:
            plan.make(lambda: planning.prepare(laid_out))
        dropped = planning.plans.keep(known.key, plan)
        if dropped is not None:
            self._preparer.drop(dropped)
        return plan

    def _timed(self, request: LibraryRequest, known: Known, plan: LibraryPlan | None = None) -> Any:
        """Do a request as `_call` does, and count its work, on a device that works as it is called."""
        begun_ns = time.monotonic_ns()
        result = self._call(request, known, plan)
        counted = CountedRun(request, known, current_request())
        return self._counted(result, counted, time.monotonic_ns() - begun_ns)

    def _counted(self, result: Any, run: CountedRun, took_ns: int) -> Any:
        """Return a result of a method, and count the work once it is there.

        Args:
            result: What the method has returned.
            run: The request.
            took_ns: How long the device has worked for it so far.
        """
        if type(result) is Later:
            return Later(lambda: self._go_on(result.read, run, took_ns))
        if type(result) is Next:
            return dataclasses.replace(result, enqueue=lambda: self._go_on(result.enqueue, run, took_ns))
        if self.work_count is not None:
            flops, nbytes = run.known.work or self.work(run[:2])
            if run.of is not None:
                flops, nbytes = flops + run.of.step_flops, nbytes + run.of.step_bytes
            self.work_count.add(took_ns, flops, nbytes)
        return result

    def _go_on(self, part: Callable[[], Any], run: CountedRun, took_ns: int) -> Any:
        """Do the next part of a request that has taken so long before; see `_counted`."""
        begun_ns = time.monotonic_ns()
        result = part()
        return self._counted(result, run, took_ns + time.monotonic_ns() - begun_ns)

    def _call(self, request: LibraryRequest, known: Known, plan: LibraryPlan | None = None) -> Any:
        """Do a request on the loop, without holding the loop up."""
        result = self._done(request, known, plan)
        if type(result) is not Elsewhere:
            return result
        if not self._stream.defers:
            return result.then(result.work())

        def begin() -> Next:
            work = LibraryPlan(self._context.device.make_event())
            self._elsewhere.prepare(work, result.work)
            return Next(lambda: result.then(work.get()), work.event)

        return Next(begin)

    def _done(self, request: LibraryRequest, known: Known, plan: LibraryPlan | None) -> Any:
        """Do a request; outputs that were left out lie in new memory of the caller."""
        content = None if plan is None else _made(plan)
        made: dict[str, Any] = {}
        if known.left_out:
            store, holder = self._context.store, self._context.holder()
            made = {
                name: store.buffers.allocate(holder, each.dtype, each.shape) for name, each in known.left_out.items()
            }
            request = msgspec.structs.replace(request, **made)
        result = known.run(request) if plan is None else known.run(request, content)
        if not made:
            return result
        outputs = next(iter(made.values())) if len(made) == 1 else list(made.values())
        return _answered(result, outputs)


def _answered(result: Any, outputs: Any) -> Any:
    """Return outputs as the result of a method, after its last chance to raise."""
    if type(result) is Later:
        return Later(lambda: (result.read(), outputs)[1])
    if type(result) is Next:
        return dataclasses.replace(result, enqueue=lambda: _answered(result.enqueue(), outputs))
    if type(result) is Elsewhere:
        return Elsewhere(result.work, lambda made: _answered(result.then(made), outputs))
    return outputs


def _made(plan: LibraryPlan) -> Any:
    """Return a plan's content; if it could not be made, its request has not run."""
    try:
        return plan.get()
    except BaseException:
        request = current_request()
        if request is not None:
            request.kept_out = True
        raise


def _laid_out(request: LibraryRequest, left_out: dict[str, Layout]) -> LibraryRequest:
    """Return a request with outputs that are not allocated yet, for its plan."""
    filled = {name: LaidOut(layout) for name, layout in left_out.items()}
    return msgspec.structs.replace(request, **filled) if filled else request


class BegunWork(LibraryPlan):
    """Work of one request that is done elsewhere.

    Args:
        event: The event of its end.
        future: Its outcome.
    """

    __slots__ = ("future",)

    def __init__(self, event: Event, future: Future[Any]) -> None:
        super().__init__(event)
        self.future: Final = future


class LaidOut(Operand):
    """An output that is not allocated yet, for a plan: only its layout is known."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout


def declared_work(request: LibraryRequest) -> tuple[int, int]:
    """Return the arithmetic operations that a request declares, and the bytes that it reads and writes at least."""
    return _bounded(lambda: (request.flops(), request.moved_bytes()))


def _bounded(declared: Callable[[], tuple[int, int]], more_bytes: int = 0) -> tuple[int, int]:
    """Return declared operations and bytes, as records have room for them; zeros for a request that no figures fit."""
    try:
        flops, nbytes = declared()
    except Exception:  # noqa: BLE001 - it goes without
        return 0, 0
    return max(0, min(flops, MAX_U64)), max(0, min(nbytes + more_bytes, MAX_U64))
