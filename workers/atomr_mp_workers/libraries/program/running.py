"""The steps of a program, done one after the other on one stream."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from typing import Any, Final, NamedTuple

from atomr_mp import errors
from atomr_mp.protocol.layout import Layout
from atomr_mp.protocol.timeline import SpanKind
from atomr_mp_workers import timeline
from atomr_mp_workers.libraries.method import declared_work
from atomr_mp_workers.libraries.program.course import Decision, Walk
from atomr_mp_workers.libraries.program.preparation import Prepared, PreparedStep
from atomr_mp_workers.libraries.program.views import placed
from atomr_mp_workers.memory.arrays import DeviceArray
from atomr_mp_workers.requests.request import Later, Next, current_request

TURN_NS: Final = 5_000_000
"""How long the loop puts steps on a stream before others have their turn."""

NEVER_NS: Final = 2**62


class Surroundings(NamedTuple):
    """Facts of a run that decide how it goes on."""

    in_turns: bool = True
    """Whether to return `Next` also after putting steps on the stream has taken `TURN_NS`."""
    defers: bool = False
    """Whether the stream defers its work, so that conditions have to be waited for."""
    check: Callable[[], None] = lambda: None
    """Called before each round: raises the error with which the run is to end, if it is."""


def started(
    plan: Prepared,
    slots: list[DeviceArray],
    frame: list[DeviceArray] | None = None,
    around: Surroundings = Surroundings(),  # noqa: B008 - immutable
) -> Any:
    """Do the steps; return the run's result, `Later` it, or `Next` where a step has to wait for what is on the stream.

    Args:
        plan: The program.
        slots: The arrays of its slots.
        frame: Temporaries among them that later runs may use: all runs are on one stream, one after the other.
        around: How it goes on.
    """
    return _advanced(_running(plan, slots, frame, around), in_parts=bool(plan.blocks))


def recorded(plan: Prepared, slots: list[DeviceArray], check: Callable[[], None]) -> list[tuple[int, Later]]:
    """Do the steps while the device records them; return the results to read after each run, by step.

    Args:
        plan: The program.
        slots: The arrays of its slots.
        check: Raises if the work since its last call cannot be recorded.

    Raises:
        Unsupported: A step cannot be recorded, or depends on data, which no graph can.
    """
    laters = []
    _clear(plan, slots)
    for number, step in enumerate(plan.steps):
        try:
            result = step.run(step.actual(slots))
            check()
        except Exception as error:
            raise errors.Unsupported(f"step {number} ({step.name}) cannot be recorded: {error}") from error
        if type(result) is Next:
            raise errors.Unsupported(f"step {number} ({step.name}) goes on where the data decide")
        if type(result) is Later:
            laters.append((number, result))
    return laters


def answer(plan: Prepared, array: Callable[[int], DeviceArray]) -> Any:
    """Return a run's answer, from the arrays of slots."""
    returned = [array(slot).of_layout(placed(array(slot).layout, within)) for slot, within in plan.returns]
    return returned[0] if len(returned) == 1 else returned or None


def _running(
    plan: Prepared, slots: list[DeviceArray], frame: list[DeviceArray] | None, around: Surroundings
) -> Generator[bool, None, Any]:
    """Do the steps; yield when others have their turn, or a step has to wait for the stream's work. Returns the result.

    Yields whether it waits.
    """
    laters: list[tuple[int, Later]] = []
    failed: Exception | None = None
    turn_ns = TURN_NS if around.in_turns else NEVER_NS
    number, until_ns = 0, time.monotonic_ns() + turn_ns
    walk = Walk(plan.instructions)
    _clear(plan, slots)
    try:
        while (following := walk.next()) is not None:
            if time.monotonic_ns() > until_ns:
                yield False
                until_ns = time.monotonic_ns() + turn_ns
            if isinstance(following, Decision):
                yield from _chosen(plan, slots, around, walk, following, laters)
                continue
            number, step = following, plan.steps[following]
            result = yield from _done(step, slots)
            if type(result) is Later:
                laters.append((number, result))
    except _EndedError as ended:
        failed = ended.error
    except Exception as error:  # noqa: BLE001 - raised below, or once the results are read
        _name(error, number, plan.steps)
        failed = error
    if failed is not None and not laters:
        try:
            raise failed
        finally:
            del failed  # this frame and it would keep each other, and the steps' memory, until a collection
    if frame is not None and not plan.frames:
        plan.frames.append(frame)
    result = answer(plan, slots.__getitem__)
    return Later(lambda: judged(plan.steps, laters, failed, result)) if laters else result


def _done(step: PreparedStep, slots: list[DeviceArray]) -> Generator[bool, None, Any]:
    """Do a step, count its work, and record it if the pool is traced; yield when it has to wait. Returns its result."""
    recorder, began_ns = timeline.recorder, time.monotonic_ns()
    result = step.run(step.actual(slots))
    while type(result) is Next:
        yield True
        result = result.enqueue()
    request = current_request()
    if recorder is None and request is None:
        return result
    flops, nbytes = work_of(step)
    if recorder is not None:
        recorder.span(SpanKind.STEP, step.name, began_ns, nbytes, request, flops, step.request.launched)
    if request is not None:
        request.count_step(flops, nbytes)
    return result


def work_of(step: PreparedStep) -> tuple[int, int]:
    """Return the operations and bytes that a step declares."""
    if not step.work:
        step.work[:] = declared_work(step.request)
    return step.work[0], step.work[1]


class _EndedError(Exception):
    """Ends a run with an error that has its step already, or is of no step.

    Args:
        error: The error.
    """

    def __init__(self, error: Exception) -> None:
        super().__init__(error)
        self.error: Final = error


def _chosen(
    plan: Prepared,
    slots: list[DeviceArray],
    around: Surroundings,
    walk: Walk,
    choice: Decision,
    laters: list[tuple[int, Later]],
) -> Generator[bool, None, None]:
    """Go on by a condition, once the work before it has ended; yield as `_running` does.

    Args:
        plan: The program.
        slots: The arrays of its slots.
        around: How the run goes on.
        walk: Its place.
        choice: The instruction: into the body of a block, or behind it.
        laters: Results that depend on data, by step. They are read, and the list is empty then.
    """
    if around.defers:
        yield True
    try:
        ended = [*laters]
        laters.clear()
        judged(plan.steps, ended, None, None)
        around.check()
    except Exception as error:  # noqa: BLE001 - whatever it is, it ends the run
        raise _EndedError(error) from None
    block = plan.blocks[choice.block]
    end = walk.choose(choice, is_true=block.is_true(slots))
    if end is not None and block.results:
        rounds, reached = block.results
        rounds.of(slots).array.fill(end.rounds)
        reached.of(slots).array.fill(end.reached)


def _clear(plan: Prepared, slots: list[DeviceArray]) -> None:
    """Set temporaries to zero that steps read in part before they are written."""
    for number in plan.clears:
        array = slots[plan.first + number]
        array.of_layout(Layout.contiguous("uint8", (array.nbytes,), array.layout.offset)).array.fill(0)


def _advanced(running: Generator[bool, None, Any], *, in_parts: bool) -> Any:
    """Continue until the run ends or waits; return its result, or its next work.

    Args:
        running: The run.
        in_parts: Whether others have their turn between two parts whatever its stream.
    """
    try:
        waits = next(running)
    except StopIteration as ended:
        return ended.value
    return Next(lambda: _advanced(running, in_parts=in_parts), gives_way=in_parts and not waits)


def _name(error: Exception, number: int, steps: Sequence[PreparedStep]) -> None:
    """Add the step to an error."""
    if isinstance(error, errors.AtomrError):
        name = steps[number].name
        error.message = f"step {number} ({name}): {error.message}"
        if isinstance(error, errors.NumericalError):
            error.library = error.library or name.partition(".")[0]
            error.undefined = ""  # its array is the step's, and later steps may have used it


def judged(
    steps: Sequence[PreparedStep], laters: Sequence[tuple[int, Later]], failed: Exception | None, result: Any
) -> Any:
    """Return a run's answer, or raise the error of its first failed step.

    All results are read, since each may give memory back.

    Args:
        steps: The steps.
        laters: Results that depend on data, by step.
        failed: The error of a later step, if any.
        result: The run's result if no step has failed.
    """
    for number, later in reversed(laters):
        try:
            later.read()
        except Exception as error:  # noqa: BLE001 - raised once all are read
            _name(error, number, steps)
            failed = error
    if failed is not None:
        try:
            raise failed
        finally:
            del failed  # this frame and it would keep each other, and the steps' memory, until a collection
    return result
