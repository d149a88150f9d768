"""When Ctrl-C is put off, until when, and whose handler is where meanwhile."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Iterator

import pytest

from atomr_mp.client import interrupts


@pytest.fixture(autouse=True)
def _python_s_own_handler() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    left = signal.signal(signal.SIGINT, before)
    assert left is signal.default_int_handler


def interrupt() -> None:
    """Be interrupted, here."""
    signal.raise_signal(signal.SIGINT)


def in_a_thread(function: Callable[[], object]) -> object:
    """Return what a function returns in another thread."""
    found: list[object] = []
    thread = threading.Thread(target=lambda: found.append(function()))
    thread.start()
    thread.join()
    return found[0]


def test_what_is_done_as_a_whole_is_done_before() -> None:
    """An interrupt comes after it, once, and finds Python's handler in its place."""
    done = []

    @interrupts.defer_interrupts
    def work() -> None:
        interrupt()
        interrupt()
        done.append(1)

    with pytest.raises(KeyboardInterrupt):
        work()
    assert done == [1]
    interrupts.defer_interrupts(lambda: done.append(2))()
    assert done == [1, 2], "it was interrupted a second time"


def test_its_own_error_stands_behind_the_interrupt() -> None:
    """Whoever looks sees both."""

    @interrupts.defer_interrupts
    def work() -> None:
        interrupt()
        raise ValueError("its own")

    with pytest.raises(KeyboardInterrupt) as interrupted:
        work()
    assert isinstance(interrupted.value.__context__, ValueError)


def test_what_waits_is_interrupted_at_once() -> None:
    """Foreign code is interrupted too. The rest of the part is not done, and no interrupt is left over."""
    done = []

    @interrupts.defer_interrupts
    def work() -> None:
        interrupts.wait(interrupt)
        done.append(1)

    with pytest.raises(KeyboardInterrupt):
        work()
    assert not done
    interrupts.defer_interrupts(lambda: None)()


def test_an_interrupt_from_before_ends_a_wait_before_it_begins() -> None:
    """Or it would be heard of only when that is over."""
    done: list[int] = []

    @interrupts.defer_interrupts
    def work() -> None:
        interrupt()
        interrupts.wait(done.append, 1)

    with pytest.raises(KeyboardInterrupt):
        work()
    assert not done


def test_a_part_in_a_wait_in_a_part_is_done_as_a_whole_too() -> None:
    """The items of a map may come from calls."""
    done = []

    @interrupts.defer_interrupts
    def inner() -> None:
        interrupt()
        done.append("inner")

    def between() -> None:
        inner()
        done.append("between")

    @interrupts.defer_interrupts
    def outer() -> None:
        interrupts.defer_interrupts(lambda: done.append("nested"))()
        interrupts.wait(between)
        done.append("outer")

    with pytest.raises(KeyboardInterrupt):
        outer()
    assert done == ["nested", "inner"]


def test_results_and_errors_come_through() -> None:
    """A part and a wait return what their function returns, and raise its errors."""
    assert interrupts.defer_interrupts(lambda value: value)(1) == 1
    assert interrupts.wait(max, 1, 3, 2) == 3
    with pytest.raises(ZeroDivisionError):
        interrupts.defer_interrupts(interrupts.wait)(lambda: 1 / 0)


def test_another_s_handler_is_left_alone() -> None:
    """Whatever it does."""
    seen: list[int] = []
    signal.signal(signal.SIGINT, lambda number, _frame: seen.append(number))
    try:
        interrupts.defer_interrupts(interrupt)()
        assert seen == [signal.SIGINT]
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def test_a_handler_that_is_set_meanwhile_stays() -> None:
    """By what is called in a wait: the stand-in does not put Python's back then."""

    def theirs(_number: int, _frame: object) -> None:
        pass

    interrupts.defer_interrupts(lambda: interrupts.wait(signal.signal, signal.SIGINT, theirs))()
    assert signal.signal(signal.SIGINT, signal.default_int_handler) is theirs


def test_other_threads_change_nothing() -> None:
    """Python interrupts only its main thread, also while that does something as a whole."""

    @interrupts.defer_interrupts
    def work() -> object:
        return in_a_thread(lambda: (interrupts.hold(), interrupts.wait(lambda: 1)))

    assert in_a_thread(interrupts.hold) == 0
    assert work() == (0, 1)


def test_a_thread_that_only_seems_to_be_the_main_one_puts_nothing_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only Python's own main thread may set handlers."""
    mistaken = interrupts._Main(None)
    monkeypatch.setattr(interrupts, "_main", mistaken)

    def seems_main() -> int:
        mistaken.thread = threading.get_ident()
        return interrupts.hold()

    assert in_a_thread(seems_main) == 0
    assert mistaken.level == 0


def test_event_loops_find_python_s_handler() -> None:
    """They set theirs only in its place; with it the first interrupt cancels the main task."""
    interrupts.defer_interrupts(lambda: None)()

    async def main() -> str:
        interrupt()
        try:
            await asyncio.sleep(60)  # the interrupt ends it
        except asyncio.CancelledError:
            return "cancelled in good order"
        return "not cancelled"

    with asyncio.Runner() as runner:
        assert runner.run(main()) == "cancelled in good order"


@pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning")
def test_a_process_forked_meanwhile_by_another_thread_begins_anew() -> None:
    """There the thread that has forked is the main one."""

    def fork() -> int:
        pid = os.fork()
        if not pid:
            status = 1
            try:
                assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
                with pytest.raises(KeyboardInterrupt):
                    interrupts.defer_interrupts(interrupt)()
                status = 0
            finally:
                os._exit(status)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    assert interrupts.defer_interrupts(in_a_thread)(fork) == 0
