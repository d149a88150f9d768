"""A world that a session has made: collectives on refs, one for each rank."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, Self

import msgspec

from atomr_mp import errors
from atomr_mp.client import interrupts
from atomr_mp.client.worlds import ref_checks
from atomr_mp.device import DEFAULT_DEADLINE_S
from atomr_mp.protocol import amounts
from atomr_mp.protocol import ref_collectives as kinds
from atomr_mp.protocol.keywords import checks_names
from atomr_mp.protocol.messages.devices import WorldInfo, WorldState
from atomr_mp.protocol.pickling import CONNECT, refusal
from atomr_mp.protocol.world_names import OF_MADE_WORLD, missing
from atomr_mp.world import AnyWorld

if TYPE_CHECKING:
    from atomr_mp.client.client import Client
    from atomr_mp.client.memory.refs import GpuRef
    from atomr_mp.client.worlds.gang_reply import GangReply
    from atomr_mp.libraries.world_program import WorldProgram
    from atomr_mp.protocol.libraries.program import RunProgram

Refs = Sequence["GpuRef"]
"""One ref for each rank, on that rank's device."""


@checks_names
class MadeWorld(AnyWorld):
    """Several devices whose refs are exchanged and reduced. Made by `Pool.world`; ended by `close` or with its client.

    It is thread-safe, and may be used in `with`. One that nothing refers to any longer is closed, once all replies of
    its collectives are over.

    **Calls** return a `GangReply` at once. Its result is a list by rank: new refs, or those of `out`; None where a rank
    gets nothing. `out` may be the refs that are given. All ranks and all runs have equal bits.

    **Order.** A collective waits for the requests on its refs that were sent before, and later ones wait for it, as for
    any request. It is sent to all ranks at once or refused, and never sent again by itself. Two clients that use
    the same refs may wait for each other; then the deadline of one ends its collective on all ranks, unbegun.

    **Errors** of all collectives:

    - `WorldMismatch`: the refs have different element types or numbers of elements. Nothing was exchanged.
    - `InvalidRequest`, `GpuRefWrongDevice`: something else is wrong with the arguments. Nothing was exchanged.
    - `DeviceUnavailable`: the world is closed or has no ready epoch; `wait_ready` waits for one.
    - `CollectiveAborted`, `WorkerLost`: a rank was lost. What the collective has written, or was to write, is
      undefined.

    Args:
        client: The session.
        number: The world's number.
    """

    def __init__(self, client: Client, number: int) -> None:
        super().__init__(client, number)
        self._closed = False
        client.watch_world(self, number)

    __reduce__ = refusal(CONNECT, "its devices")

    def __getattr__(self, name: str) -> NoReturn:
        missing(self, "a world that is made of devices", name, OF_MADE_WORLD)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _now(self) -> WorldInfo:
        found = super()._now()
        if self._closed and found.state not in {WorldState.ENDING, WorldState.ENDED}:
            found = msgspec.structs.replace(found, state=WorldState.ENDING)  # the supervisor will say so
        return found

    @interrupts.defer_interrupts
    def close(self) -> None:
        """End the world; what its ranks have begun runs to its end. May be called twice."""
        if not self._closed:
            self._closed = True
            self._client.close_world(self._number)

    def all_reduce(
        self,
        refs: Refs,
        op: str = "sum",
        *,
        factor: Any = None,
        out: Refs | None = None,
        deadline_s: float | None = None,
        wait: bool | None = None,
    ) -> GangReply:
        """Reduce the arrays of all ranks to one, element by element, on all ranks.

        Args:
            refs: One ref for each rank, with as many elements of the same type.
            op: "sum", "prod", "min", "max" or "avg".
            factor: A number by which elements are multiplied first, or one for each rank; for "sum" and "avg".
            out: Refs to which the results go; `refs` for in place.
            deadline_s: Seconds after which the reply ends with `DeadlineExceeded`.
            wait: Whether to wait for room; see `Pool.call`. Only threads wait.

        Raises:
            RequestError: As the class says; nothing was sent.
            PoolLost: The pool has ended.
        """
        refs = self._refs(refs)
        return self._send(kinds.ALL_REDUCE, refs, out, self._shapes(refs), deadline_s, wait, op=op, factor=factor)

    def reduce(
        self,
        refs: Refs,
        root: int = 0,
        op: str = "sum",
        *,
        factor: Any = None,
        out: GpuRef | None = None,
        deadline_s: float | None = None,
        wait: bool | None = None,
    ) -> GangReply:
        """Reduce the arrays of all ranks to one, on one rank; the others get None. See `all_reduce`.

        Args:
            refs: One ref for each rank, with as many elements of the same type.
            root: The rank that gets the result.
            op: As in `all_reduce`.
            factor: As in `all_reduce`.
            out: The ref of the root to which the result goes.
            deadline_s: As in `all_reduce`.
            wait: As in `all_reduce`.
        """
        refs, root = self._refs(refs), self._rank(root, "root")
        shapes = [refs[rank].shape if rank == root else None for rank in range(self.size)]
        outs = None if out is None else [out if rank == root else None for rank in range(self.size)]
        return self._send(kinds.REDUCE, refs, outs, shapes, deadline_s, wait, op=op, factor=factor, root=root)

    def reduce_scatter(
        self,
        refs: Refs,
        op: str = "sum",
        *,
        factor: Any = None,
        out: Refs | None = None,
        deadline_s: float | None = None,
        wait: bool | None = None,
    ) -> GangReply:
        """Give each rank its part of what `all_reduce` gives: as many rows of the first axis as each rank gets.

        See `all_reduce`. The length of the first axis is divisible by the number of ranks.
        """
        refs = self._refs(refs)
        shapes = [(shape[0] // self.size, *shape[1:]) for shape in self._divisible(refs)]
        return self._send(kinds.REDUCE_SCATTER, refs, out, shapes, deadline_s, wait, op=op, factor=factor)

    def all_gather(
        self, refs: Refs, *, out: Refs | None = None, deadline_s: float | None = None, wait: bool | None = None
    ) -> GangReply:
        """Give all ranks the arrays of all, in the order of ranks, along a new first axis. See `all_reduce`."""
        refs = self._refs(refs)
        shapes = [(self.size, *ref.shape) for ref in refs]
        return self._send(kinds.ALL_GATHER, refs, out, shapes, deadline_s, wait)

    def broadcast(
        self,
        refs: Refs,
        root: int = 0,
        *,
        out: Refs | None = None,
        deadline_s: float | None = None,
        wait: bool | None = None,
    ) -> GangReply:
        """Give all ranks the array of one. See `all_reduce`.

        Args:
            refs: One ref for each rank; those of the others say the type and number of elements alone.
            root: The rank whose array it is.
            out: Refs to which the results go; `refs` for in place.
            deadline_s: As in `all_reduce`.
            wait: As in `all_reduce`.
        """
        refs, root = self._refs(refs), self._rank(root, "root")
        return self._send(kinds.BROADCAST, refs, out, self._shapes(refs), deadline_s, wait, root=root)

    def all_to_all(
        self, refs: Refs, *, out: Refs | None = None, deadline_s: float | None = None, wait: bool | None = None
    ) -> GangReply:
        """Send part *i* of the first axis to rank *i*. See `all_reduce`.

        The length of the first axis is divisible by the number of ranks.
        """
        refs = self._refs(refs)
        return self._send(kinds.ALL_TO_ALL, refs, out, self._divisible(refs), deadline_s, wait)

    def all_to_all_v(
        self, parts: Sequence[Refs], *, deadline_s: float | None = None, wait: bool | None = None
    ) -> GangReply:
        """Send a ref from each rank to each; the result is a list by rank of new refs by their sender.

        Args:
            parts: For each rank a list of refs on its device, by receiver. The lengths of their first axes may differ,
                those of the others not.
            deadline_s: As in `all_reduce`.
            wait: As in `all_reduce`.
        """
        rows = ref_checks.by_rank(parts, self.size, "a list of refs")
        checked = [
            ref_checks.refs_of(row, [device] * self.size) for row, device in zip(rows, self.devices, strict=True)
        ]
        ref_checks.check_rows([ref for row in checked for ref in row])
        return self._submit_collective(kinds.ALL_TO_ALL_V, [(row, None) for row in checked], None, deadline_s, wait)

    def sendrecv(
        self,
        refs: Refs,
        pairs: Iterable[tuple[int, int]],
        *,
        out: Sequence[GpuRef | None] | None = None,
        deadline_s: float | None = None,
        wait: bool | None = None,
    ) -> GangReply:
        """Send arrays between ranks, all at once; ranks to which none is sent get None. See `all_reduce`.

        Args:
            refs: One ref for each rank, with as many elements of the same type, where nothing is sent too.
            pairs: Who sends to whom: (from, to). A rank sends to one at most, and receives from one at most.
            out: Refs to which the results go, None for ranks that receive none; `refs` for in place.
            deadline_s: As in `all_reduce`.
            wait: As in `all_reduce`.
        """
        refs = self._refs(refs)
        to, from_ = ref_checks.pairs_by_rank(pairs, self.size)
        shapes = [None if from_[rank] is None else refs[rank].shape for rank in range(self.size)]
        if out is not None:
            out = [
                each if shape is not None else None
                for each, shape in zip(ref_checks.by_rank(out, self.size, "a ref"), shapes, strict=True)
            ]
        return self._send(kinds.SENDRECV, refs, out, shapes, deadline_s, wait, to=to, from_=from_)

    def barrier(self, *, deadline_s: float | None = None, wait: bool | None = None) -> GangReply:
        """Wait until all ranks have come to this; the result is a list of None."""
        return self._submit_collective(kinds.BARRIER, [(None, None)] * self.size, None, deadline_s, wait)

    def program(self) -> WorldProgram:
        """Return a program to record, which all ranks run: many steps, collectives among them, sent and run as one."""
        from atomr_mp.libraries.world_program import Ranks, WorldProgram

        return WorldProgram(Ranks(self.devices, self._run_program))

    # --- helpers ---------------------------------------------------------------------------------------------------

    def _run_program(self, rows: Sequence[RunProgram], deadline_s: float | None) -> GangReply:
        return self._submit(kinds.program_of(self.name), rows, None, deadline_s, None, is_program=True)

    def _send(
        self,
        kind: str,
        refs: Refs,
        out: Sequence[GpuRef | None] | None,
        shapes: Sequence[tuple[int, ...] | None],
        deadline_s: float | None,
        wait: bool | None,  # noqa: FBT001 - as the caller gives it
        *,
        op: str = "sum",
        factor: Any = None,
        root: int = 0,
        to: Sequence[int | None] | None = None,
        from_: Sequence[int | None] | None = None,
    ) -> GangReply:
        """Check what is known of all ranks, and send a collective.

        Args:
            kind: The collective.
            refs: What the ranks give.
            out: Where results go.
            shapes: Shapes of the results by rank, None for none.
            deadline_s: See `all_reduce`.
            wait: See `all_reduce`.
            op: The operator.
            factor: One factor, or one by rank.
            root: The root.
            to: Receivers by rank.
            from_: Senders by rank.
        """
        ref_checks.check_same(kind, refs)
        ref_checks.check_operator(op)
        outs: Sequence[GpuRef | None] = [None] * self.size
        if out is not None:
            outs = ref_checks.outputs_of(out, refs, shapes, self.devices)
        factors = ref_checks.factors_by_rank(factor, self.size)
        nobody: Sequence[int | None] = [None] * self.size
        rows = [
            (refs[rank], outs[rank], op, factors[rank], root, (to or nobody)[rank], (from_ or nobody)[rank])
            for rank in range(self.size)
        ]
        return self._submit_collective(kind, rows, None if out is None else outs, deadline_s, wait)

    def _submit_collective(
        self,
        kind: str,
        rows: Sequence[tuple[Any, ...]],
        given: Sequence[GpuRef | None] | None,
        deadline_s: float | None,
        wait: bool | None,  # noqa: FBT001 - as the caller gives it
    ) -> GangReply:
        return self._submit(kinds.request_of(self.name), [(kind, *row) for row in rows], given, deadline_s, wait)

    def _submit(
        self,
        request: str,
        rows: Sequence[Any],
        given: Sequence[GpuRef | None] | None,
        deadline_s: float | None,
        wait: bool | None,  # noqa: FBT001 - as the caller gives it
        *,
        is_program: bool = False,
    ) -> GangReply:
        if self._closed:
            raise errors.DeviceUnavailable(f"{self._title} is closed")
        limit_s = DEFAULT_DEADLINE_S if deadline_s is None else amounts.duration("deadline_s", deadline_s)
        return self._client.submit_gang(
            self.info,
            request,
            rows,
            each=True,
            deadline_s=limit_s,
            wait=wait,
            once=True,
            given=given,
            keeps=self,
            is_program=is_program,
        )

    def _refs(self, refs: Any) -> Refs:
        return ref_checks.refs_of(refs, self.devices)

    def _rank(self, rank: Any, name: str) -> int:
        return ref_checks.rank_of(rank, self.size, name)

    def _shapes(self, refs: Refs) -> list[tuple[int, ...]]:
        return [ref.shape for ref in refs]

    def _divisible(self, refs: Refs) -> list[tuple[int, ...]]:
        shapes = self._shapes(refs)
        for rank, shape in enumerate(shapes):
            if not shape or shape[0] % self.size:
                raise errors.InvalidRequest(
                    f"the first axis of the array of rank {rank}, of shape {shape}, is not divisible by {self.size}, "
                    "the number of ranks"
                )
        return shapes
