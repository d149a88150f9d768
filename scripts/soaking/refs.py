"""Callers that use refs: beside each ref they hold its expected content, and apply every change to both."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

import atomr_mp
from atomr_mp import errors
from soaking import contents
from soaking.caller import DEADLINE_S, AwaitingCaller, Caller, Links
from soaking.contents import Array, Pattern
from soaking.tally import OF_MEMORY
from soaking.words import Share

MOST_HELD: Final = 40
MOST_VIEWS: Final = 8


class Held(NamedTuple):
    """A ref and its expected content."""

    ref: atomr_mp.GpuRef
    expected: Array
    """Shares its memory with those of the ref's views."""
    writable: bool = True
    """Whether no other client has it, so that it may be written."""


class View(NamedTuple):
    """An open view and its expected content."""

    memory: object
    array: Array
    expected: Array


class FailedError(Exception):
    """A request has failed; the failure was noted."""


class RefUser(Caller):
    """Makes, reads, writes, views, lends, shares, claims and frees refs, at random."""

    holds_buffers = True

    def __init__(self, links: Links, chance: random.Random) -> None:
        super().__init__(links, chance)
        self._held: list[Held] = []
        self._views: list[View] = []
        self._making: Final[list[Callable[[], Held]]] = [
            self._put,
            self._put,
            self._fill_new,
            self._have_kept,
            self._have_transformed,
            self._multiply,
        ]
        self._using: Final[list[Callable[[Held], None]]] = [
            self._read,
            self._read,
            self._view,
            self._view,
            self._slice,
            self._slice,
            self._sum,
            self._sum,
            self._sum_elsewhere,
            self._copy_elsewhere,
            self._write,
            self._write,
            self._write_in_a_row,
            self._overwrite_in_a_view,
            self._release,
            self._release,
        ]

    def act(self) -> None:
        """Act once."""
        chance = self.chance
        try:
            roll = chance.random()
            if roll < 0.1:
                self._claim()
            elif roll < 0.15:
                self._share()
            elif len(self._held) < 3 or (roll < 0.35 and len(self._held) < MOST_HELD):
                self._held.append(chance.choice(self._making)())
            else:
                chance.choice(self._using)(chance.choice(self._held))
        except FailedError:
            self.tally.note("failed")
        if len(self._views) > MOST_VIEWS or (self._views and chance.random() < 0.1):
            self._close_view()

    def rest(self) -> None:
        """Release everything."""
        while self._views:
            self._close_view()
        self._held.clear()

    # --- new ones --------------------------------------------------------------------------------------------------

    def _put(self) -> Held:
        array = contents.pattern(self.chance).array
        device = self._device()
        return Held(self._try("put", lambda: device.put(array)), array)

    def _fill_new(self) -> Held:
        device, chance = self._device(), self.chance
        dtype, number = chance.choice(contents.DTYPES), chance.randrange(200)
        shape = contents.shape(chance, contents.size(chance) // 8)
        match chance.randrange(3):
            case 0:
                ref = self._try("zeros", lambda: device.zeros(shape, dtype))
                number = 0
            case 1:
                ref = self._try("full", lambda: device.full(shape, number, dtype))
            case _:
                ref = self._try("empty", lambda: device.empty(shape, dtype))
                self._try("fill", lambda: ref.fill(number), refs=[ref])
        return Held(ref, np.full(shape, number, dtype))

    def _have_kept(self) -> Held:
        array = contents.pattern(self.chance).array
        method = self.chance.choice(["Maker.keep_on_loop", "Maker.keep_on_thread"])
        return Held(self._result("ref as result", method, array), array)

    def _have_transformed(self) -> Held:
        if not self._held:
            return self._put()
        held = self.chance.choice(self._held)
        same, copy, array = self._of(held, lambda: self._result("three results", "Maker.three", held.ref))
        self.compare("array among results", held.expected, array)
        self._keep(held._replace(ref=same))
        return Held(copy, held.expected.copy())

    def _multiply(self) -> Held:
        chance, device = self.chance, self._device()
        m, n, k = (chance.randint(1, 24) for _ in range(3))
        a, b = (Pattern(chance.randrange(1000), "float64", shape).array for shape in ([m, k], [k, n]))
        x, y, z = (
            self._try("put", lambda: device.put(a)),
            self._try("put", lambda: device.put(b.T)).T,
            self._try("empty", lambda: device.empty((m, n), "float64")),
        )
        self._try("gemm", lambda: device.blas.gemm(x, y, z).result(), refs=[x, y, z])
        dot = self._try("dot", lambda: device.blas.dot(x[0], y[:, 0]).result(), refs=[x, y])
        self.compare("dot product", float(a[0] @ b[:, 0]), dot)
        return Held(z, a @ b)

    # --- reading ---------------------------------------------------------------------------------------------------

    def _read(self, held: Held) -> None:
        ref = held.ref
        match self.chance.randrange(3):
            case 0:
                found = self._of(held, lambda: self._try("numpy", ref.numpy, refs=[ref]))
            case 1:
                found = np.empty(ref.shape, ref.numpy_dtype)
                self._of(held, lambda: self._try("numpy", lambda: ref.numpy(out=found), refs=[ref]))
            case _:
                found = self._of(held, lambda: self._try("array", lambda: np.asarray(ref), refs=[ref]))
        self.compare("content", held.expected, found)

    def _view(self, held: Held) -> None:
        take = self.chance.choice([held.ref.view, lambda: np.from_dlpack(held.ref)])
        array = self._of(held, lambda: self._try("view", take, refs=[held.ref]))
        self.compare("content of a view", held.expected, array)
        if self.chance.random() < 0.3:
            self._views.append(View(held.ref.memory, array, held.expected.copy()))

    def _close_view(self) -> None:
        view = self._views.pop(self.chance.randrange(len(self._views)))
        self.compare("content of a view at its end", view.expected, view.array)

    def _slice(self, held: Held) -> None:
        chance = self.chance
        if not held.expected.size or len(self._held) >= MOST_HELD:
            return
        match chance.randrange(4):
            case 0:
                view = held._replace(ref=held.ref.T, expected=held.expected.T)
            case 1 if held.ref.layout.is_contiguous():
                view = held._replace(ref=held.ref.reshape(-1), expected=held.expected.reshape(-1))
            case _:
                index = contents.index(chance, held.expected.shape)
                expected = held.expected[(*index, ...)]  # an array, even if only a number is left
                view = held._replace(ref=held.ref[index], expected=expected)
        self._keep(view)

    def _sum(self, held: Held) -> None:
        device = held.ref.device
        beside = [each for each in self._held[:5] if each.ref.device == device]
        total: Any = _sum(held.expected)
        match self.chance.randrange(3):
            case 0:
                found = self._of(held, lambda: self._result("argument", "Maker.sum_on_loop", held.ref))
            case 1:
                found = self._of(held, lambda: self._result("argument", "Maker.sum_on_thread", held.ref))
            case _:
                refs = {str(n): each.ref for n, each in enumerate([held, *beside])}
                found = self._of(held, lambda: self._result("arguments in a map", "Maker.sums", refs))
                total = [_sum(each.expected) for each in (held, *beside)]
        self.compare("sum", total, found)

    def _sum_elsewhere(self, held: Held) -> None:
        device = self._other(held.ref.device)
        method = self.chance.choice(["Maker.sum_on_loop", "Maker.sum_on_thread"])
        found = self._of(held, lambda: self._result("argument on another device", method, held.ref, device=device))
        self.compare("sum on another device", _sum(held.expected), found)

    def _copy_elsewhere(self, held: Held) -> None:
        device = self.pool.device(self._other(held.ref.device))
        target = self._try("empty", lambda: device.empty(held.ref.shape, held.ref.dtype))

        def copy() -> None:
            also = self._excused(held.ref.device)
            self._try("copy to another device", lambda: held.ref.copy_to(target), *also, refs=[held.ref, target])

        self._of(held, copy)
        self._keep(Held(target, held.expected.copy()))

    # --- writing ---------------------------------------------------------------------------------------------------

    def _write(self, held: Held) -> None:
        number = self.chance.randrange(5)
        other = self.chance.choice(self._held)
        match self.chance.randrange(4):
            case 0:
                method = self.chance.choice(["Maker.add_on_loop", "Maker.add_on_thread"])
                write, value = (lambda: self._waited_for(method, held.ref, number)), held.expected + _as(held, number)
            case 1 if _fits(other, held):
                write, value = (lambda: other.ref.copy_to(held.ref)), other.expected
            case _:
                write, value = (lambda: held.ref.fill(number)), _as(held, number)
        self._change(held, write, value, other)

    def _overwrite_in_a_view(self, held: Held) -> None:
        value = held.expected + _as(held, 1)

        def write() -> None:
            array = held.ref.view(write=True)
            array[...] = value

        self._change(held, write, value, held)

    def _change(self, held: Held, write: Callable[[], object], value: Any, other: Held) -> None:
        """Write to the ref and to its expected content; if a view is open, check that the write is refused."""
        if not held.writable:
            return
        viewed = any(view.memory == held.ref.memory for view in self._views)
        try:
            write()
        except errors.BorrowConflict as error:
            self.tally.error(error, *[errors.BorrowConflict] * viewed)
            return
        except errors.AtomrError as error:
            self.tally.error(error, refs=[held.ref, other.ref])
            self._forget(held)
            return
        if viewed:
            self.tally.wrong(f"{held.ref!r} was written though a view is open")
        self.tally.note("written")
        held.expected[...] = value

    def _write_in_a_row(self, held: Held) -> None:
        """Wait only for the last request, which reads what the others have written."""
        if not held.writable or any(view.memory == held.ref.memory for view in self._views):
            return
        total = self._of(held, lambda: self._add_in_a_row(held))
        self.compare("sum after writes in a row", _sum(held.expected), total)

    def _add_in_a_row(self, held: Held) -> float:
        replies = []
        for _ in range(self.chance.randint(1, 6)):
            replies.append(self._call(self.chance.choice(["Maker.add_on_loop", "Maker.add_on_thread"]), held.ref, 1))
            held.expected[...] += _as(held, 1)
        method = self.chance.choice(["Maker.sum_on_loop", "Maker.sum_on_thread"])
        total: float = self._result("written in a row", method, held.ref)
        for reply in replies:
            self._try("row", reply.result, refs=[held.ref])
        return total

    # --- the end, and others ---------------------------------------------------------------------------------------

    def _release(self, held: Held) -> None:
        match self.chance.randrange(5):
            case 0:
                self._free(held)
            case 1:
                with held.ref:
                    pass
                self._forget(held)
            case 2:
                cycle: list[object] = [held]
                cycle.append(cycle)
                self._held = [each for each in self._held if each is not held]
            case 3 if held.writable and held.expected.dtype == np.int64:
                # Nobody writes it any more.
                right = self._of(
                    held, lambda: self._result("kept ref", "Hoard.keep", held.ref, int(held.expected.sum()))
                )
                self.compare("what an actor kept", True, right)
                self._free(held)
            case _:
                self._held = [each for each in self._held if each is not held]
        self.tally.note("let go")

    def _free(self, held: Held) -> None:
        """Free a ref, and check that it has become unusable."""
        held.ref.free()
        self._forget(held)
        try:
            held.ref.numpy()
        except errors.AtomrError as error:
            self.tally.error(error, errors.GpuRefReleased, refs=[held.ref])
        else:
            self.tally.wrong(f"{held.ref!r} was read after it was freed")

    def _share(self) -> None:
        """Offer a part of a new ref to others."""
        chance, device = self.chance, self._device()
        whole = Pattern(chance.randrange(10**6), chance.choice(contents.DTYPES), [contents.size(chance) // 8 + 1])
        array = whole.array
        ref = self._try("put", lambda: device.put(array))
        start = chance.randrange(whole.shape[0])
        stop = chance.randint(start + 1, whole.shape[0])
        for_s = min(chance.uniform(0.3, 5.0), self.links.to_the_lull_s)
        until_s = time.monotonic() + for_s
        shared = self._try("share", lambda: ref[start:stop].share(for_s), refs=[ref])
        exclusive = chance.random() < 0.5
        part = Pattern(whole.seed + start, whole.dtype, [stop - start])
        self.links.offer(Share(shared, part, ref.device, ref.generation, until_s, exclusive))
        if not exclusive:
            self._keep(Held(ref, array, writable=False))

    def _claim(self) -> None:
        try:
            share = self.links.shares.popleft()
        except IndexError:
            return
        late = self._excused(share.device)
        try:
            ref = self.pool.claim(share.shared)
        except errors.GpuRefReleased as error:
            self.tally.error(error, *late, *[errors.GpuRefReleased] * (time.monotonic() >= share.until_s), refs=[share])
            return
        except errors.AtomrError as error:
            self.tally.error(error, refs=[share])
            return
        self.tally.note("claim")
        held = Held(ref, share.pattern.array, share.exclusive)
        self.compare("content of a claim", held.expected, self._try("numpy", ref.numpy, refs=[ref]))
        self._keep(held)

    # --- inside ----------------------------------------------------------------------------------------------------

    def _device(self) -> atomr_mp.Device:
        return self.pool.device(self.chance.randrange(len(self.pool.devices)))

    def _other(self, device: int) -> int:
        """Return another device."""
        return (device + self.chance.randrange(1, len(self.pool.devices))) % len(self.pool.devices)

    def _keep(self, held: Held) -> None:
        if len(self._held) < 2 * MOST_HELD:
            self._held.append(held)

    def _forget(self, held: Held) -> None:
        """Drop all refs and views into a ref's memory."""
        self._held = [each for each in self._held if each.ref.memory != held.ref.memory]

    def _of(self, held: Held, use: Callable[[], Any]) -> Any:
        """Use a ref; drop its memory if that fails."""
        try:
            return use()
        except FailedError:
            self._forget(held)
            raise

    def _try(
        self, what: str, use: Callable[[], Any], *also: type[errors.AtomrError], refs: Sequence[atomr_mp.GpuRef] = ()
    ) -> Any:
        """Return the result of `use`, and count it; `refs` are the refs that it needs.

        Raises:
            FailedError: It has failed.
        """
        try:
            result = use()
        except errors.AtomrError as error:
            self.tally.error(error, *also, refs=refs)
            raise FailedError from error
        self.tally.note(what)
        return result

    def _call(self, method: str, *arguments: Any, device: int | None = None) -> atomr_mp.Reply:
        reply: atomr_mp.Reply = self._try(
            "call",
            lambda: self.pool.call(method, *arguments, device=device, deadline_s=DEADLINE_S),
            refs=_refs(arguments),
        )
        return reply

    def _result(self, what: str, method: str, *arguments: Any, device: int | None = None) -> Any:
        refs = _refs(arguments)
        also = () if device is None else self._excused(refs[0].device)
        return self._try(what, lambda: self._waited_for(method, *arguments, device=device), *also, refs=refs)

    def _waited_for(self, method: str, *arguments: Any, device: int | None = None) -> Any:
        return self.pool.call(method, *arguments, device=device, deadline_s=DEADLINE_S).result()

    def _excused(self, device: int) -> tuple[type[errors.AtomrError], ...]:
        """Return the errors that excuse a request which needs a device's memory but goes to another device."""
        return OF_MEMORY if self.tally.kills and device != self.tally.spared else ()


class AwaitingRefUser(AwaitingCaller):
    """Uses refs in an event loop."""

    holds_buffers = True
    at_once = 8

    async def use_once(self) -> None:
        """Make a buffer, add to it and sum it."""
        chance, pool = self.chance, self.pool
        array = Pattern(chance.randrange(10**6), "int64", [chance.randint(1, 60_000)]).array
        refs = []
        try:
            device = chance.randrange(len(pool.devices))
            ref = await pool.call("Maker.keep_on_loop", array, device=device, deadline_s=DEADLINE_S)
            refs.append(ref)
            times = chance.randint(0, 3)
            adding = [pool.call("Maker.add_on_loop", ref, 1, deadline_s=DEADLINE_S) for _ in range(times)]
            array += len(adding)
            ends = [chance.randint(1, len(array)) for _ in range(chance.randint(1, 10))]
            sums = [pool.call("Maker.sum_on_thread", ref[:end], deadline_s=DEADLINE_S) for end in ends]
            for end, found in zip(ends, await asyncio.gather(*sums), strict=True):
                self.compare("awaited sum", _sum(array[:end]), found)
            if chance.random() < 0.2:
                self.compare("content, in a thread", array, await asyncio.to_thread(ref.numpy))
            await asyncio.gather(*adding)
        except errors.AtomrError as error:
            self.tally.error(error, refs=refs)


def _refs(arguments: Iterable[object]) -> list[atomr_mp.GpuRef]:
    """Return those that are among a request's arguments, or in a map among them."""
    found = []
    for each in arguments:
        if isinstance(each, atomr_mp.GpuRef):
            found.append(each)
        elif isinstance(each, dict):
            found += _refs(each.values())
    return found


def _sum(array: Array) -> float:
    return float(np.sum(array, dtype=np.float64))


def _as(held: Held, number: int) -> Any:
    return np.asarray(number, held.expected.dtype)


def _fits(source: Held, target: Held) -> bool:
    """Whether one can be copied to the other."""
    return (
        source.ref.memory != target.ref.memory
        and source.ref.device == target.ref.device
        and source.ref.shape == target.ref.shape
        and source.ref.dtype == target.ref.dtype
    )
