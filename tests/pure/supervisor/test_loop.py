from __future__ import annotations

import os
import select

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
