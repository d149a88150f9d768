"""Runs programs as graphs: carries out the decisions of `graphs` with the device's recorder.

A graph owns one piece of memory, of the process and not of a session: for copies of inputs, for temporaries, and for
results that are copied to the caller's memory.
"""

from __future__ import annotations

import functools
import logging
import weakref
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Final, Protocol

from atomr_mp import errors
from atomr_mp.protocol.allocation import aligned
from atomr_mp.protocol.layout import Layout
from atomr_mp.protocol.refs import Operand
from atomr_mp_workers.libraries.base import LibraryContext
from atomr_mp_workers.libraries.counting import count
from atomr_mp_workers.libraries.program import running
from atomr_mp_workers.libraries.program.graphs import COPIED_BYTES, Refusal, Way
from atomr_mp_workers.libraries.program.preparation import Prepared
from atomr_mp_workers.memory.arrays import DeviceArray
from atomr_mp_workers.requests.request import Later, current_request


class Plain(Protocol):
    """Runs a program step by step on the given arrays; its results lie in the given ones by slot, or in new ones."""

    def __call__(
        self, plan: Prepared, given: Sequence[Any], results: dict[int, DeviceArray], *, in_turns: bool = True
    ) -> Any:
        """Return the run's answer, or its next work."""


CAPTURED: Final = 0
REPLAYED: Final = 1
DROPPED: Final = 2
BUSY: Final = 3
"""Places of counts, see `board.GraphCounts`."""


class DeviceGraph(Protocol):
    """A graph that a device has recorded; holds the memory that was allocated during the recording."""

    def launch(self) -> None:
        """Put it on its stream."""


class Recorder(Protocol):
    """Records work on the stream of a program."""

    def measured(self, enqueue: Callable[[], Any]) -> tuple[Any, int]:
        """Call a function; return its result and how many bytes it has allocated for itself."""

    def check(self) -> None:
        """Raise if work since the recording began cannot be recorded."""

    def record(self, enqueue: Callable[[], Any], nbytes: int) -> tuple[DeviceGraph, Any]:
        """Record a function's work on the stream without doing it.

        Args:
            enqueue: Puts the work on the stream.
            nbytes: Bytes that it allocates for itself.

        Returns:
            The graph, and the result of `enqueue`.

        Raises:
            Exception: The work cannot be recorded; none of it has been done.
        """


class Graph:
    """A run that was recorded.

    Args:
        plan: The program.
        launchable: The device's graph.
        own: Its own buffers, by slot.
        laters: Results to read after each run, by step.
    """

    def __init__(
        self,
        plan: Prepared,
        launchable: DeviceGraph,
        own: dict[int, DeviceArray],
        laters: Sequence[tuple[int, Later]],
    ) -> None:
        self._launchable = launchable
        self._own = own
        self._inputs = [(slot, own[slot].array) for slot in plan.copied]
        returned = [plan.first + number for number in sorted(plan.apart)]
        self._results = [(slot, own[slot].array) for slot in returned if slot in own]
        self.laters = laters
        self.unread = False
        """Whether a verdict of its last run is unread."""

    def __del__(self) -> None:
        self.laters = ()  # first, since they may hold memory that the device's graph gives back at its end

    def launch(self, copy: Callable[[Any, Any], None], given: Sequence[Any], results: dict[int, DeviceArray]) -> None:
        """Copy the inputs, launch, and copy the results, in this order on the stream."""
        for slot, array in self._inputs:
            source = given[slot]
            copy(source.array if isinstance(source, DeviceArray) else source, array)
        self._launchable.launch()
        for slot, array in self._results:
            copy(array, results[slot].array)


class GraphRuns:
    """Runs programs as graphs if possible.

    Args:
        context: The context for libraries.
        recorder: The device's recorder.
    """

    def __init__(self, context: LibraryContext, recorder: Recorder) -> None:
        self._context = context
        self._recorder = recorder

    def run(self, plan: Prepared, given: Sequence[Any], plain: Plain) -> Any:
        """Run a program.

        Args:
            plan: The program.
            given: Its inputs and refs; host arrays for inputs that are sent by value.
            plain: Runs it step by step.
        """
        counts, graphs = self._context.graphs, plan.graphs
        if graphs.refusal is not None:
            if not graphs.told:
                graphs.told = True
                count(counts, graphs.refusal.value)
            return plain(plan, given, {})
        given = self._on_device(plan, given)
        results = self._results(plan)
        key = self._key(plan, given, results)
        way = graphs.decide(key)
        if way is Way.BUSY:
            count(counts, BUSY)
        if way is Way.FIRST:
            result, nbytes = self._recorder.measured(lambda: plain(plan, given, results, in_turns=False))
            graphs.measured(key, nbytes)
            return result
        if way is Way.CAPTURE and self._capture(plan, key, given, results):
            way = Way.REPLAY
        if way is not Way.REPLAY:
            return plain(plan, given, results)
        return self._launch(plan, graphs.graph(key), given, results)

    def _launch(self, plan: Prepared, graph: Graph, given: Sequence[Any], results: dict[int, DeviceArray]) -> Any:
        graph.launch(self._context.device.copy, given, results)
        count(self._context.graphs, REPLAYED)
        request = current_request()
        if request is not None and request.recorded is not None:  # else nobody knows the time that they take
            for step in plan.steps:
                request.count_step(*running.work_of(step))
        result = running.answer(plan, results.__getitem__)
        if not graph.laters:
            return result
        graph.unread = True

        def read() -> Any:
            graph.unread = False
            return running.judged(plan.steps, graph.laters, None, result)

        return Later(read)

    def _capture(self, plan: Prepared, key: Hashable, given: Sequence[Any], results: dict[int, DeviceArray]) -> bool:
        """Record a run; return whether that succeeded."""
        counts, graphs = self._context.graphs, plan.graphs
        refusal = Refusal.MEMORY
        try:
            own = self._own(plan)
            refusal = Refusal.CAPTURE
            arrays = dict(enumerate(given)) | results | own
            slots = [arrays[slot] for slot in range(plan.first + len(plan.temporaries))]
            enqueue = functools.partial(running.recorded, plan, slots, self._recorder.check)
            launchable, laters = self._recorder.record(enqueue, graphs.needs(key))
        except Exception as error:  # noqa: BLE001 - whatever it is: the steps can be done one by one
            if isinstance(error, errors.OutOfMemory):
                refusal = Refusal.MEMORY
            if graphs.failed(refusal):
                _LOG.warning("a program of %d steps is not captured: %s", len(plan.steps), error, exc_info=error)
            return False
        count(counts, CAPTURED)
        count(counts, DROPPED, graphs.keep(key, Graph(plan, launchable, own, laters)))
        return True

    def _on_device(self, plan: Prepared, given: Sequence[Any]) -> list[Any]:
        """Return the given arrays, with a device copy of each host array that the graph does not copy itself."""
        store, holder = self._context.store, self._context.holder()
        return [
            each if isinstance(each, Operand) or slot in plan.copied else store.buffers.keep(holder, each)
            for slot, each in enumerate(given)
        ]

    def _results(self, plan: Prepared) -> dict[int, DeviceArray]:
        """Return new memory of the caller for a run's results, by slot."""
        buffers, holder = self._context.store.buffers, self._context.holder()
        layouts = [(number, plan.temporaries[number]) for number in sorted(plan.apart)]
        return {plan.first + number: buffers.allocate(holder, each.dtype, each.shape) for number, each in layouts}

    def _key(self, plan: Prepared, given: Sequence[Any], results: dict[int, DeviceArray]) -> Hashable:
        """Return the addresses that a graph depends on, and the objects that libraries keep with these buffers."""
        fixed = [_identity(each) for slot, each in enumerate(given) if slot not in plan.copied]
        return (*fixed, *(each.address for each in results.values() if each.nbytes > COPIED_BYTES))

    def _own(self, plan: Prepared) -> dict[int, DeviceArray]:
        """Return new memory for a graph: copies of inputs, temporaries, and results that are copied, by slot.

        Raises:
            OutOfMemory: There is no room.
        """
        layouts: dict[int, Layout] = {}
        end = 0
        for slot, layout in plan.copied.items():
            layouts[slot] = layout._replace(offset=end + layout.offset)
            end = aligned(end + layout.offset + layout.nbytes)
        for number, layout in enumerate(plan.temporaries):
            if number not in plan.apart or layout.nbytes <= COPIED_BYTES:
                layouts[plan.first + number] = layout._replace(offset=end)
                end = aligned(end + layout.nbytes)
        buffers = self._context.store.buffers
        memory = buffers.allocate(buffers.ours, "uint8", (max(end, 1),))
        return {
            slot: memory.of_layout(layout._replace(offset=memory.layout.offset + layout.offset))
            for slot, layout in layouts.items()
        }


def _identity(array: DeviceArray) -> Hashable:
    """Return the identity of an array in a graph: another buffer at its address may have other objects attached."""
    return array.address if array.attached is None else (array.address, weakref.ref(array.attached))


_LOG: Final = logging.getLogger("atomr_mp.worker")
