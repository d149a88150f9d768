"""An actor whose methods stream, in every way that tests ask for."""

from __future__ import annotations

import contextvars
import os
import threading
import time
from collections.abc import Generator, Iterator
from typing import Any

import msgspec

from atomr_mp import errors
from atomr_mp_workers import Actor, Context, Live, LiveStream, Steps, method
from tests.actors.probe import arrive, die, note

VARIABLE: contextvars.ContextVar[str] = contextvars.ContextVar("VARIABLE", default="")


class Streamer(Actor):
    """One thread."""

    def setup(self, context: Context) -> None:
        """Remember where this is."""
        self._context = context

    @method(thread=True)
    def count(self, upto: int) -> Generator[int, None, int]:
        """Yield the numbers up to one, and return their sum."""
        yield from range(upto)
        return sum(range(upto))

    @method(thread=True, idempotent=True)
    def again(self, upto: int, tag: str, gate: str = "", at: int = -1, how: str = "") -> Iterator[list[int]]:
        """Yield (pid, number); at one of them note it, wait at a gate, or die, in the first incarnation only."""
        note(f"{tag}-begun")
        for n in range(upto):
            if n == at and self._context.generation == 1:
                if gate:
                    arrive(gate)
                if how:
                    die(how)
            yield [os.getpid(), n]

    @method(thread=True)
    def doomed(self, upto: int, at: int, how: str, gate: str = "") -> Iterator[int]:
        """Yield numbers, and die at one."""
        for n in range(upto):
            if n == at:
                if gate:
                    arrive(gate)
                die(how)
            yield n

    @method(thread=True, idempotent=True)
    def deadly(self, how: str, _padding: str = "") -> Iterator[int]:
        """Die before the first part, always."""
        die(how)
        yield 0

    @method(thread=True)
    def held(self, gate: str, parts: int = 1) -> Iterator[int]:
        """Yield, wait at a gate, and go on; note how it ends."""
        try:
            yield from range(parts)
            arrive(gate)
            yield parts
        except GeneratorExit:
            note("closed")
            raise
        finally:
            note("over")

    @method(thread=True)
    def endless(self, tag: str, nbytes: int = 0) -> Iterator[Any]:
        """Yield for ever; note when it is closed, and on which thread."""
        thread = threading.get_ident()
        try:
            n = 0
            while True:
                yield bytes(nbytes) if nbytes else n
                n += 1
                assert threading.get_ident() == thread
        finally:
            note(f"{tag}-closed-{threading.get_ident() == thread}-{n}")

    @method(thread=True)
    def stubborn(self) -> Iterator[int]:
        """Yield even when it has to end."""
        try:
            yield 0
            yield 1
        finally:
            yield 2

    @method(thread=True)
    def failing(self, at: int, kind: str = "value") -> Iterator[int]:
        """Yield numbers, and raise at one."""
        yield from range(at)
        if kind == "typed":
            raise errors.OutOfMemory("on purpose", requested_bytes=7)
        raise ValueError("on purpose")

    @method(thread=True)
    def odd(self, what: str) -> Generator[Any, None, Any]:
        """Yield a value that cannot be sent, or return it."""
        yield 1
        if what == "part":
            yield object()
        return object()

    @method(thread=True)
    def arrays(self, count: int, length: int) -> Iterator[Any]:
        """Yield arrays, inline, in frames or in shared memory."""
        import numpy as np

        for n in range(count):
            yield np.full(length, n, np.float32)

    @method(thread=True)
    def refs(self, array: Any, count: int) -> Iterator[Any]:
        """Yield refs to new arrays, made from one that is borrowed meanwhile."""
        for n in range(count):
            yield self._context.keep(array + n)

    @method(thread=True)
    def with_variable(self, value: str, parts: int) -> Iterator[str]:
        """Set a context variable, and yield its value."""
        VARIABLE.set(value)
        for _ in range(parts):
            yield VARIABLE.get()

    @method(thread=True)
    def slow(self, parts: int, seconds: float) -> Iterator[int]:
        """Yield numbers, each after a time."""
        for n in range(parts):
            time.sleep(seconds)  # deadlines are tested with the time that this takes
            yield n

    @method(thread=True, exclusive=True)
    def alone_on_thread(self, parts: int) -> Iterator[int]:
        """Yield numbers, keeping the thread."""
        yield from range(parts)

    @method(thread=True, hang_timeout_s=1.0)
    def hanging(self, at: int) -> Iterator[int]:
        """Yield numbers, and hang at one."""
        yield from range(at)
        die("hang")

    @method(thread=True)
    def where(self) -> int:
        """Return our pid."""
        return os.getpid()

    @method(thread=True)
    def note(self, tag: str) -> str:
        """Record that this ran."""
        note(tag)
        return tag

    @method
    def one(self) -> int:
        """Return one, from the loop."""
        return 1


class Crew(Streamer):
    """Three threads."""

    threads = 3


class Resumer(Actor):
    """Goes on where another incarnation has ended."""

    def setup(self, context: Context) -> None:
        """Remember where this is."""
        self._generation = context.generation

    def _come_by(self, n: int, at: int, how: str, gate: str) -> None:
        if n == at and self._generation == 1:
            if gate:
                arrive(gate)
            if how:
                die(how)

    @method(thread=True, resumable=True)
    def count(self, upto: int, at: int, how: str, start: int, gate: str = "") -> Generator[int, None, int]:
        """Yield numbers from `start` on, and die at one, in the first incarnation."""
        note(f"from-{start}")
        for n in range(start, upto):
            self._come_by(n, at, how, gate)
            yield n
        return upto

    @method(thread=True, resumable=True)
    def spell(self, sent: list[str], text: str, at: int, how: str, gate: str = "") -> Iterator[str]:
        """Yield parts that depend on all earlier parts."""
        note(f"with-{len(sent)}")
        said = list(sent)
        for n in range(len(said), len(text)):
            self._come_by(n, at, how, gate)
            said.append(f"{text[n]}{len(''.join(said)) % 7}")
            yield said[-1]

    @method(thread=True, resumable=True)
    def large(self, sent: list[bytes], parts: int, nbytes: int, at: int) -> Iterator[bytes]:
        """Yield bytes, and die at one."""
        for n in range(len(sent), parts):
            self._come_by(n, at, "kill", "")
            yield bytes(nbytes)

    @method(thread=True, resumable=True)
    def always(self, at: int, start: int) -> Iterator[int]:
        """Die at one, in every incarnation."""
        for n in range(start, 2 * at):
            if n == at:
                die("segv")
            yield n

    @method(thread=True, resumable=True)
    def each_time(self, upto: int, gate: str, start: int) -> Iterator[int]:
        """Yield two numbers, wait at a gate, and die."""
        for n in range(start, upto):
            if n == start + 2:
                arrive(gate)
                die("segv")
            yield n


class Line(msgspec.Struct):
    """The argument of `Engine.run`."""

    text: str
    parts: int = 3
    how: str = ""
    at: int = -1
    gate: str = ""


class Engine(Actor):
    """Streams that run together; each gets a part in each step."""

    def setup(self, context: Context) -> None:
        """Begin with nothing."""
        self._context = context
        self._left: dict[int, int] = {}
        self.steps = 0

    @method(thread=True, batch=Steps(max_items=4), resumable=True)
    def resumed(self, live: Live[Line, str]) -> None:
        """Send each one part more; at one of them wait at a gate and die, in the first incarnation."""
        for each in live.gone:
            self._left.pop(each.id, None)
        for each in live.new:
            self._left[each.id] = len(each.sent)
        for each in live.ready:
            line, n = each.arguments, self._left[each.id]
            if n == line.at and self._context.generation == 1:
                arrive(line.gate)
                die("kill")
            if n < line.parts:
                each.send(f"{line.text}-{n}")
                self._left[each.id] += 1
            else:
                each.end(n)
                del self._left[each.id]

    @method(thread=True, batch=Steps(max_items=4))
    def run(self, live: Live[Line, str]) -> None:
        """Send one part to each; note new and gone streams."""
        self.steps += 1
        for each in live.gone:
            note(f"gone-{each.arguments.text}")
            self._left.pop(each.id)
        for each in live.new:
            note(f"new-{each.arguments.text}")
            self._left[each.id] = 0
        assert set(self._left) == {each.id for each in live}
        for each in live:
            line, n = each.arguments, self._left[each.id]
            if n == line.at and (line.how != "once" or self._context.generation == 1):
                self._act(live, line, each)
                continue
            if n < line.parts:
                if each.ready:
                    each.send(f"{line.text}-{n}")
                    self._left[each.id] += 1
            else:
                each.end(n)
                del self._left[each.id]

    def _act(self, live: Live[Line, str], line: Line, each: LiveStream[Line, str]) -> None:
        if line.gate:
            arrive(line.gate)
        match line.how:
            case "fail":
                each.fail(ValueError("on purpose"))
                del self._left[each.id]
            case "flood" | "flood and end":
                self._flood(line, each)
            case "raise":
                raise ValueError("on purpose")
            case "return":
                line.at = -1
            case "after":
                each.end()
                del self._left[each.id]
                try:
                    each.send("too late")
                except RuntimeError:
                    note("refused")
            case "once":
                die("segv")
            case _:
                die(line.how)
        assert each.id in {one.id for one in live}

    def _flood(self, line: Line, each: LiveStream[Line, str]) -> None:
        for _ in range(2000):
            each.send("more")
        if line.how == "flood and end":
            each.end("all of it")
            del self._left[each.id]

    @method(thread=True)
    def count(self) -> int:
        """Return how many steps there were."""
        return self.steps


class HangingEngine(Engine):
    """Has a limit."""

    hang_timeout_s = 1.0
