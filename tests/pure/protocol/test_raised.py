from __future__ import annotations

import sys
import traceback
import unicodedata

from hypothesis import given, settings
from hypothesis import strategies as st

from atomr_mp import errors
from atomr_mp.protocol import exceptions, raised
from atomr_mp.protocol.exceptions import describe, traceback_of
from atomr_mp.protocol.raised import Repeats, lines_of, one_line, place_of


def _traceback(text: str, cause: str | None) -> str:
    """Return Python's own traceback of an exception with a text, raised from another one if there is a cause."""
    try:
        try:
            if cause is not None:
                raise KeyError(cause)
        except KeyError as error:
            raise ValueError(text) from error
        raise ValueError(text)
    except ValueError as error:
        return "".join(traceback.format_exception(error))


FORGED = st.sampled_from(
    [
        "",
        "\n",
        '\n  File "forged", line 1, in forged\n',
        "\n\nThe above exception was the direct cause of the following exception:\n\n",
        "2026-01-01 00:00:00,000 forged",
        "\x1b[2J",
        "\ud800",
        "\u2028",
        "x" * 5000,
    ]
)
TEXTS = st.lists(FORGED | st.text(max_size=30), max_size=8).map("".join)


@given(TEXTS, st.none() | TEXTS)
def test_a_log_shows_users_data_in_bounded_lines_without_control_characters(text: str, cause: str | None) -> None:
    """Whatever an exception says: it is one line, and its own frames are all there."""
    lines = lines_of(_traceback(text, cause))
    assert len(lines) <= raised.MOST_LINES + 1
    for line in lines:
        assert len(line) <= raised.MOST_CHARS
        assert not any(unicodedata.category(each) in {"Cc", "Cs", "Zl", "Zp"} for each in line)
    assert sum(", in _traceback" in line for line in lines) >= (1 if cause is None else 2)


@given(st.text(max_size=60).filter(lambda text: "\n" not in text and "\r" not in text))
def test_a_place_is_where_the_exception_was_raised(text: str) -> None:
    """The innermost frame of the last exception, not one of its cause or its text."""
    place = place_of(_traceback(f'{text}\n  File "forged", line 1, in forged', text))
    assert place.startswith(f"{__file__}:")
    assert place.endswith(" in _traceback")


@given(st.text(), st.integers(1, 50))
def test_a_line_is_bounded(text: str, most: int) -> None:
    """It ends with a sign if something is missing, and is unchanged if nothing had to be."""
    found = one_line(text, most)
    assert len(found) <= most
    if text.isprintable() and len(text) <= most:
        assert found == text
    if len(text) > most:
        assert found.endswith("…")


@given(
    st.lists(st.tuples(st.integers(0, 400), st.floats(0, 40, allow_nan=False)), max_size=200),
    st.integers(1, 5),
)
def test_every_exception_is_shown_or_counted_once(events: list[tuple[int, float]], most: int) -> None:
    """Shown at most once a minute for each place; and memory stays bounded however many places there are."""
    before, raised.MOST_KEYS = raised.MOST_KEYS, most  # type: ignore[misc]
    try:
        repeats, now_s, seen = Repeats(), 0.0, 0
        shown: dict[int, float] = {}
        for place, later_s in events:
            now_s += later_s
            seen += sum(more for _, more in repeats.due(now_s))
            if repeats.note(("A.b", "ValueError", f"{place}"), now_s):
                assert now_s - shown.get(place, -raised.WINDOW_S) >= raised.WINDOW_S
                shown[place] = now_s
                seen += 1
            assert len(repeats._known) <= most + 1
        while (after_s := repeats.next_s(now_s)) is not None:
            now_s += after_s + 1e-6
            seen += sum(more for _, more in repeats.due(now_s))
        assert seen == len(events)
    finally:
        raised.MOST_KEYS = before  # type: ignore[misc]


@given(
    st.integers(0, 120_000), st.sampled_from(["x", "x\n", '  File "forged", line 1, in forged\n']), st.integers(0, 900)
)
@settings(deadline=None, max_examples=30)
def test_a_traceback_of_bounded_length_keeps_the_place(chars: int, unit: str, depth: int) -> None:
    """Whatever the length of the exception's text, and however many frames there are."""

    def even(left: int) -> None:
        if not left:
            raise ValueError("text: " + (unit * chars)[:chars])
        odd(left - 1)

    def odd(left: int) -> None:
        even(left)

    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(limit + 4000)
    try:
        even(depth)
    except ValueError as error:
        found, error_text = traceback_of(error), describe(error)
    finally:
        sys.setrecursionlimit(limit)
    assert len(found) <= exceptions.TRACEBACK_CHARS
    assert len(error_text) <= exceptions.TEXT_CHARS + 100
    assert place_of(found).startswith(f"{__file__}:")
    assert place_of(found).endswith(" in even")
    assert "ValueError: text: " in found


@given(st.lists(st.sampled_from(["the values take {} bytes, too many", "a set cannot be sent"]), max_size=20))
def test_two_causes_of_one_type_are_counted_apart_and_one_cause_of_many_sizes_together(causes: list[str]) -> None:
    """What cannot be sent has no place that distinguishes it."""
    repeats = Repeats()
    shown = []
    for size, cause in enumerate(causes):
        text = f"A.b returned a value of type str: the result cannot be sent: {cause.format(size)}"
        key = raised.raised("A.b", errors.ActorFailed(text, returned="str")).key
        if repeats.note(key, float(size)):
            shown.append(cause)
    assert sorted(shown) == sorted(set(causes))
    for key, more in repeats.due(float("inf")):
        (cause,) = [each for each in set(causes) if each.format("N") in raised.summary(key, more)]
        assert more == causes.count(cause) - 1
