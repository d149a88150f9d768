"""The steps of a program, done one after the other on one stream."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from typing import Any, Final

from atomr_mp import errors
from atomr_mp.protocol.layout import Layout
from atomr_mp.protocol.timeline import SpanKind
from atomr_mp_workers import timeline
from atomr_mp_workers.libraries.program.preparation import Prepared, PreparedStep, placed
from atomr_mp_workers.memory.arrays import DeviceArray
from atomr_mp_workers.requests.request import Later, Next, current_request

TURN_NS: Final = 5_000_000
"""How long the loop puts steps on a stream before others have their turn."""

NEVER_NS: Final = 2**62


def started(
    plan: Prepared, slots: list[DeviceArray], frame: list[DeviceArray] | None = None, *, in_turns: bool = True
) -> Any:
    """Do the steps; return the run's result, `Later` it, or `Next` where a step has to wait for what is on the stream.

    Args:
        plan: The program.
        slots: The arrays of its slots.
        frame: Temporaries among them that later runs may use: all runs are on one stream, one after the other.
        in_turns: Whether to return `Next` also after putting steps on the stream has taken `TURN_NS`.
    """
    return _advanced(_running(plan, slots, frame, TURN_NS if in_turns else NEVER_NS))


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
    returned = [array(slot).viewed(placed(array(slot).layout, within)) for slot, within in plan.returns]
    return returned[0] if len(returned) == 1 else returned or None


def _running(
    plan: Prepared, slots: list[DeviceArray], frame: list[DeviceArray] | None, turn_ns: int
) -> Generator[None, None, Any]:
    """Do the steps; yield when a step has to wait for the stream's work. Returns the run's result."""
    laters: list[tuple[int, Later]] = []
    failed: Exception | None = None
    number, until_ns = 0, time.monotonic_ns() + turn_ns
    recorder = timeline.recorder
    _clear(plan, slots)
    try:
        for number, step in enumerate(plan.steps):
            if time.monotonic_ns() > until_ns:
                yield
                until_ns = time.monotonic_ns() + turn_ns
            began_ns = 0 if recorder is None else time.monotonic_ns()
            result = step.run(step.actual(slots))
            while type(result) is Next:
                yield
                result = result.enqueue()
            if recorder is not None:
                recorder.span(SpanKind.STEP, step.name, began_ns, 0, current_request())
            if type(result) is Later:
                laters.append((number, result))
    except Exception as error:
        _name(error, number, plan.steps)
        if not laters:
            raise
        failed = error
    if frame is not None and not plan.frames:
        plan.frames.append(frame)
    result = answer(plan, slots.__getitem__)
    return Later(lambda: judged(plan.steps, laters, failed, result)) if laters else result


def _clear(plan: Prepared, slots: list[DeviceArray]) -> None:
    """Set temporaries to zero that steps read in part before they are written."""
    for number in plan.clears:
        array = slots[plan.first + number]
        array.viewed(Layout.contiguous("uint8", (array.nbytes,), array.layout.offset)).array.fill(0)


def _advanced(running: Generator[None, None, Any]) -> Any:
    """Continue until the run ends or waits; return its result, or its next work."""
    try:
        next(running)
    except StopIteration as ended:
        return ended.value
    return Next(lambda: _advanced(running))


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
