from __future__ import annotations

import os
import select
from types import SimpleNamespace

import pytest

from atomr_mp.protocol.own_time import STEP_S
from atomr_mp.supervisor import loop as loop_module
from atomr_mp.supervisor.loop import Loop


def test_what_was_seen_of_a_closed_descriptor_is_not_told_to_the_next_of_its_number() -> None:
    """Two have something to tell; the call for either closes the other, whose number then is another's."""
    loop = Loop()
    told: list[str] = []
    silent = os.pipe()
    ends = [os.pipe(), os.pipe()]

    def stop_after_another_look() -> None:
        loop.call_later(0, loop.stop)

    for here, there in ends:
        os.write(there, b".")
        (other,) = [end for end, _ in ends if end != here]

        def call(_events: int, here: int = here, other: int = other) -> None:
            told.append("first")
            for descriptor in (here, other):
                loop.forget(descriptor)
            os.dup2(silent[0], other)  # closes it, and gives its number to another at once
            loop.watch(other, select.EPOLLIN, lambda _: told.append("never"))
            loop.call_later(0, stop_after_another_look)

        loop.watch(here, select.EPOLLIN, call)
    loop.run()
    loop.close()
    for descriptor in {*silent, *(end for pair in ends for end in pair)}:
        os.close(descriptor)
    assert told == ["first"]


def test_what_is_to_be_done_afterwards_is_done_last_and_never_left() -> None:
    """Also what was asked for before the loop runs, by such a call itself, and in the last round."""
    loop = Loop()
    told: list[str] = []

    def last() -> None:
        loop.call_afterwards(lambda: told.append("after the last"))
        loop.stop()
        told.append("last")

    def first() -> None:
        loop.call_afterwards(lambda: loop.call_afterwards(lambda: told.append("after the first")))
        loop.call_later(0, last)
        told.append("first")

    loop.call_afterwards(lambda: told.append("before"))
    loop.call_later(0, first)
    loop.run()
    loop.close()
    assert told == ["before", "first", "after the first", "last", "after the last"]


def test_who_was_stopped_hears_what_came_in_and_judges_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a pause only a step counts: the timer for a peer's silence is put off by the rest."""
    clock = [100.0]
    monkeypatch.setattr(loop_module, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    loop = Loop()
    told: list[str | float] = []
    here, there = os.pipe()

    def pause() -> None:
        clock[0] += 60
        os.write(there, b".")

    def hear(_events: int) -> None:
        os.read(here, 1)
        told.append("heard")
        silent.cancel()
        loop.call_later(0, loop.stop)

    silent = loop.call_later(STEP_S + 1, lambda: told.append("silent"))
    loop.watch(here, select.EPOLLIN, hear)
    loop.on_pause(told.append)
    loop.call_afterwards(pause)
    loop.run()
    loop.close()
    os.close(here)
    os.close(there)
    assert told == ["heard", 60.0]


def test_who_is_silent_is_found_though_the_judge_was_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    """After the limit of own time."""
    clock = [100.0]
    monkeypatch.setattr(loop_module, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    loop = Loop()
    pauses: list[float] = []

    def pause() -> None:
        pauses.append(60)
        clock[0] += pauses[-1]
        loop.call_later(0, pause)

    loop.call_later(5 * STEP_S, loop.stop)
    loop.call_later(0, pause)
    loop.run()
    loop.close()
    assert len(pauses) in {5, 6}, "a timer of the last round may come first"
