"""The collectives of a world as steps of programs, on any backend."""

from __future__ import annotations

from typing import Any

from atomr_mp import errors
from atomr_mp.protocol.libraries import world
from atomr_mp.protocol.libraries.base import scalar
from atomr_mp_workers.libraries.base import Library, ProgramWorld, array


class WorldLibrary(Library):
    """Runs collectives on the thread of a gang call: each waits for the other ranks, there or on the device."""

    def all_reduce(self, request: world.AllReduce) -> None:
        """Reduce to all ranks."""
        view = self._view(request)
        view.all_reduce(array(request.x), request.op, factor=_factor(request, view), out=array(request.out))

    def reduce(self, request: world.Reduce) -> None:
        """Reduce to one rank."""
        view = self._view(request)
        view.reduce(array(request.x), request.root, request.op, factor=_factor(request, view), out=array(request.out))
        if view.rank != request.root:
            array(request.out).fill(0)

    def reduce_scatter(self, request: world.ReduceScatter) -> None:
        """Reduce, and give each rank its rows."""
        view = self._view(request)
        view.reduce_scatter(array(request.x), request.op, factor=_factor(request, view), out=array(request.out))

    def all_gather(self, request: world.AllGather) -> None:
        """Give all arrays to all ranks."""
        self._view(request).all_gather(array(request.x), out=array(request.out))

    def broadcast(self, request: world.Broadcast) -> None:
        """Give one rank's array to all."""
        self._view(request).broadcast(array(request.x), request.root, out=array(request.out))

    def all_to_all(self, request: world.AllToAll) -> None:
        """Give each rank a part of each array."""
        self._view(request).all_to_all(array(request.x), out=array(request.out))

    def sendrecv(self, request: world.Sendrecv) -> None:
        """Send arrays between ranks."""
        view = self._view(request)
        to = next((receiver for sender, receiver in request.pairs if sender == view.rank), None)
        from_ = next((sender for sender, receiver in request.pairs if receiver == view.rank), None)
        out = array(request.out)
        view.sendrecv(array(request.x), to, from_, out=None if from_ is None else out)
        if from_ is None:
            out.fill(0)

    def _view(self, request: Any) -> ProgramWorld:
        """Return the world.

        Raises:
            InvalidRequest: The request is of a world of another size.
        """
        view = self.context.world
        assert view is not None
        if request.ranks != view.size:
            raise errors.InvalidRequest(f"the step is for {request.ranks} ranks, and the world has {view.size}")
        return view


def _factor(request: Any, view: ProgramWorld) -> Any:
    """Return the number by which this rank's elements are multiplied, None for none."""
    if not request.multipliers:
        return None
    return scalar(request.multipliers[view.rank])
