"""The tensors of requests that lie in clients' regions."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from atomr_mp import errors
from atomr_mp.pool import Pool
from atomr_mp.serve.http.exchange import Budget
from atomr_mp.serve.oip import datatypes, tensors
from atomr_mp.serve.oip.datatypes import BYTES
from atomr_mp.serve.oip.region import Region, RegionPart, resolved, shown, unknown, wish_of
from atomr_mp.serve.oip.requests import InferAnswer, InferRequest, SharedInput
from atomr_mp.serve.oip.shared_memory import files
from atomr_mp.serve.oip.shared_memory.files import SharedFiles
from atomr_mp.serve.oip.shared_memory.table import RegionTable
from atomr_mp.serve.oip.tensors import NamedTensor
from atomr_mp.serve.problems import Problem

THREAD_BYTES: Final = 2**20
"""Tensors of more bytes together are moved on a thread, as the others' requests would wait. These take 0.1 ms, and a
thread as long to begin."""

PLACED_BYTES: Final = 256 * 2**10
"""Arrays of more bytes are read into memory that a call does not copy again."""

T = TypeVar("T")


class _Written(NamedTuple):
    """An output and its place."""

    tensor: NamedTensor
    extent: RegionPart
    nbytes: int

    @property
    def begin(self) -> int:
        """Where it begins in its file."""
        assert self.extent.region is not None
        return self.extent.region.offset + self.extent.offset


class SharedMemory:
    """Registers clients' regions, reads inputs from them and writes outputs into them.

    Args:
        table: Has the registrations; owned from here on.
        shared_files: Opens the files; owned from here on.
        budget: What inputs are counted in while their request runs, as bodies are.
        most_bytes: Most bytes that the inputs of a request may have in regions.
    """

    def __init__(self, table: RegionTable, shared_files: SharedFiles, budget: Budget, most_bytes: int) -> None:
        self._table: Final = table
        self._files: Final = shared_files
        self._budget: Final = budget
        self._most_bytes: Final = most_bytes

    def close(self) -> None:
        """Close what it holds; the registrations stay."""
        self._table.close()
        self._files.close()

    # --- regions ---------------------------------------------------------------------------------------------------

    def status(self, name: str) -> list[dict[str, Any]]:
        """Return the fields that the protocol tells of a region, or of each if the name is empty.

        Raises:
            Problem: 404, there is no such region.
        """
        found = [self._table.find(name)] if name else self._table.all()
        if found == [None]:
            raise unknown(name)
        return [
            {"name": each.name, "key": each.key, "offset": each.offset, "byte_size": each.byte_size}
            for each in found
            if each is not None
        ]

    def status_of_gpus(self, name: str) -> list[dict[str, Any]]:
        """Return that there are no regions of GPUs' memory: clients ask, and unregister all, before they begin.

        Raises:
            Problem: 404, the request is about one.
        """
        if name:
            raise unknown(name, "cuda")
        return []

    async def register(self, name: object, key: object, offset: object, byte_size: object) -> None:
        """Register a region.

        Raises:
            InvalidRequest: It cannot be one.
            Problem: 409, its name is taken.
            Overloaded: There are too many.
        """
        wish = wish_of(name, key, offset, byte_size)
        await self._table.register(wish, self._files.identity(wish))

    async def unregister(self, name: str) -> None:
        """Forget a region, or all if the name is empty; nothing happens if there is none."""
        await self._table.unregister(name)

    # --- tensors ---------------------------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def filled(self, request: InferRequest, pool: Pool) -> AsyncIterator[InferRequest]:
        """Return a request with the inputs that lie in regions, and with the regions of its outputs looked up.

        Args:
            request: The request.
            pool: The pool that it is for.

        Raises:
            Problem: 404, a region is not registered; 413, there are too many bytes; 429, there is no room for them now.
            InvalidRequest: An extent is not within its region, or not the tensor's; or a file is not as it was.
            Overloaded: The server cannot open files now.
        """
        inputs = [each._replace(extent=self._resolved(each.extent)) for each in request.shared]
        outputs = [
            each if each.extent is None else each._replace(extent=self._resolved(each.extent))
            for each in request.outputs
        ]
        for region in {each.extent.region for each in outputs if each.extent is not None}:
            assert region is not None
            with self._files.writing(region):
                pass
        for each in inputs:
            tensors.check_raw_size(each.name, each.datatype, each.shape, each.extent.byte_size)
        nbytes = sum(each.extent.byte_size for each in inputs)
        if nbytes > self._most_bytes:
            raise Problem(
                413,
                "too_large",
                f"the inputs in shared memory have {nbytes} bytes; those of a request may have {self._most_bytes}",
                facts={"limit_bytes": self._most_bytes},
            )
        self._budget.hold(nbytes)
        try:
            read = await _apart(nbytes, lambda: [self._read(each, pool) for each in inputs])
            yield request._replace(inputs=[*request.inputs, *read], shared=(), outputs=outputs)
        finally:
            self._budget.let_go(nbytes)

    def _resolved(self, extent: RegionPart) -> RegionPart:
        return resolved(extent, self._table.use(extent.name))

    def _read(self, given: SharedInput, pool: Pool) -> NamedTensor:
        """Return an input."""
        nbytes, region = given.extent.byte_size, given.extent.region
        assert region is not None
        if nbytes > PLACED_BYTES and given.datatype != BYTES:
            memory = pool.host_array(nbytes, "uint8").data  # which the call does not copy again
        else:
            memory = memoryview(bytearray(nbytes))
        with self._files.reading(region) as descriptor:
            files.read(descriptor, given.extent, memory)
        return tensors.of_raw(given.name, given.datatype, given.shape, memory)

    async def written(self, request: InferRequest, answer: InferAnswer) -> InferAnswer:
        """Write the outputs of an answer that belong into regions, and return the answer without their elements.

        Nothing is written unless all of them fit.

        Args:
            request: The request, from `filled`.
            answer: The answer.

        Raises:
            InvalidRequest: One does not fit, two would overlap, or a file is not as it was.
            Overloaded: The server cannot open files now.
        """
        extents = {each.name: each.extent for each in request.outputs if each.extent is not None}
        found = [_Written(each, extents[each.name], _nbytes(each)) for each in answer.outputs if each.name in extents]
        if not found:
            return answer
        for each in found:
            if each.nbytes > each.extent.byte_size:
                raise errors.InvalidRequest(
                    f"output {shown(each.tensor.name)} has {each.nbytes} bytes, and {each.extent.byte_size} were given "
                    f"for it in the shared memory region {shown(each.extent.name)}",
                    maybe_executed=True,
                )
        _check_apart(found)
        try:
            await _apart(sum(each.nbytes for each in found), lambda: self._write(found))
        except errors.RequestError as error:
            error.maybe_executed = True
            raise
        outputs = [each._replace(values=[]) if each.name in extents else each for each in answer.outputs]
        return answer._replace(
            outputs=outputs, shared={each.tensor.name: each.extent._replace(byte_size=each.nbytes) for each in found}
        )

    def _write(self, found: Sequence[_Written]) -> None:
        with contextlib.ExitStack() as opened:
            descriptors: dict[Region, int] = {}
            for each in found:
                region = each.extent.region
                assert region is not None
                if region not in descriptors:
                    descriptors[region] = opened.enter_context(self._files.writing(region))
            for each in found:
                assert each.extent.region is not None
                files.write(descriptors[each.extent.region], each.extent, _data(each.tensor))


def _check_apart(found: Sequence[_Written]) -> None:
    """Check that no output would be written over another one.

    Raises:
        InvalidRequest: One would.
    """

    def place(each: _Written) -> tuple[int, int, int]:
        assert each.extent.region is not None
        return each.extent.region.device, each.extent.region.inode, each.begin

    in_order = sorted((each for each in found if each.nbytes), key=place)
    for one, other in itertools.pairwise(in_order):
        if place(one)[:2] == place(other)[:2] and one.begin + one.nbytes > other.begin:
            raise errors.InvalidRequest(
                f"the outputs {shown(one.tensor.name)} and {shown(other.tensor.name)} would overlap in shared memory",
                maybe_executed=True,
            )


def _nbytes(tensor: NamedTensor) -> int:
    """Return the bytes of a tensor's raw data."""
    values = tensor.values
    if isinstance(values, list):
        return sum(map(len, values)) + datatypes.LENGTH_BYTES * len(values)
    return values.nbytes


def _data(tensor: NamedTensor) -> memoryview:
    """Return a tensor's raw data, without a copy of an array."""
    import numpy as np

    values = tensor.values
    if isinstance(values, list):
        return memoryview(datatypes.pack(values))
    return values.reshape(-1).view(np.uint8).data


async def _apart(nbytes: int, work: Callable[[], T]) -> T:
    """Return a function's result; on a thread where there are many bytes."""
    return work() if nbytes <= THREAD_BYTES else await asyncio.to_thread(work)
