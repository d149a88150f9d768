"""Programs on every backend: prepared once for each definition and layout, then run step by step on one stream.

The preparation holds all that is the same in every run: the requests of the steps, decoded and checked, their plans,
and the places of the temporaries. A run takes memory for the temporaries, puts the arrays of its slots into the
requests, and has the libraries do them, one after the other. If a device can record that, later runs are launched as a
whole.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Final, cast

from atomr_mp import errors
from atomr_mp.protocol.libraries import program
from atomr_mp.protocol.refs import Operand
from atomr_mp_workers.device.base import Stream
from atomr_mp_workers.device.streams import OneStream
from atomr_mp_workers.libraries import Libraries
from atomr_mp_workers.libraries.base import Library, LibraryContext
from atomr_mp_workers.libraries.program import endings, running
from atomr_mp_workers.libraries.program.preparation import Preparation, Prepared
from atomr_mp_workers.libraries.program.replay import GraphRuns, Recorder
from atomr_mp_workers.memory.arrays import DeviceArray
from atomr_mp_workers.memory.blocks import Holder

KEPT_BYTES: Final = 2**20
"""Most bytes of a program's temporaries that are kept between runs: making them takes longer than a small step."""


class ProgramLibrary(Library):
    """Runs programs, with libraries of its own that all work on its stream."""

    slow = frozenset({"run"})

    def __init__(self, context: LibraryContext, stream: Stream) -> None:
        super().__init__(context, stream)
        self._libraries = Libraries(dataclasses.replace(context, streams=OneStream(stream)))
        recorder = self._recorder()
        self._graphs = None if recorder is None else GraphRuns(context, recorder)

    def _recorder(self) -> Recorder | None:
        """Return the recorder of graphs; None if the device has none."""
        return None

    def prepare_run(self, request: program.RunProgram) -> Prepared:
        """Decode and check a program's steps, and make their plans; runs on a thread of its own.

        Raises:
            InvalidRequest: A step does not fit; the message names it.
        """
        try:
            definition = program.DEFINITIONS.decode(request.program)
        except errors.ProtocolError as error:
            raise errors.InvalidRequest(f"the program cannot be decoded: {error}") from error
        return Preparation(definition, request, self._libraries).prepared()

    def run(self, request: program.RunProgram, plan: Prepared) -> Any:
        """Run a program."""
        given = [*request.inputs, *request.refs]
        if self._graphs is None:
            return self._plain(plan, given, {})
        return self._graphs.run(plan, given, self._plain)

    def _plain(
        self, plan: Prepared, given: Sequence[Any], results: dict[int, DeviceArray], *, in_turns: bool = True
    ) -> Any:
        """Run a program step by step; let others have their turns meanwhile if `in_turns`."""
        store, holder = self.context.store, self.context.holder()
        slots = [
            cast("DeviceArray", each) if isinstance(each, Operand) else store.buffers.keep(holder, each)
            for each in given
        ]
        keeps = 0 < plan.nbytes <= KEPT_BYTES  # nothing takes a slab for this process where the caller's has room
        frame = plan.frames.pop() if plan.frames else self._frame(plan, store.buffers.ours if keeps else holder)
        temporaries = list(frame)
        for number in plan.apart:
            layout, result = plan.temporaries[number], results.get(plan.first + number)
            temporaries[number] = result or store.buffers.allocate(holder, layout.dtype, layout.shape)
        around = running.Surroundings(in_turns, self.stream.defers, endings.check_here())
        return running.started(plan, slots + temporaries, frame if keeps else None, around)

    def _frame(self, plan: Prepared, holder: Holder) -> list[DeviceArray]:
        """Return memory for temporaries; a placeholder for returned ones."""
        scratch = self.context.store.buffers.allocate(holder, "uint8", (plan.nbytes,))
        begin = scratch.layout.offset
        return [
            scratch if number in plan.apart else scratch.of_layout(layout.at(begin + layout.offset))
            for number, layout in enumerate(plan.temporaries)
        ]
