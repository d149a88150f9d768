from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from atomr_mp.process.files.events import EventLog, Scalar
from atomr_mp.serve.watch.story import MOST_EVENTS, Story
from atomr_mp.serve.watch.timeline import ENDS, MEANINGS, MOST_SPANS, OUT, REASONS, WINDOW_S, Timeline

Event = dict[str, Scalar]


def event(at: float, name: str, generation: int, text: str = "", device: int = 0) -> Event:
    """Return an event of a device."""
    return {"time": at, "event": name, "device": device, "generation": generation, "text": text or name}


def shown(*events: Event, now_s: float = 100.0) -> dict[str, list[tuple[Any, ...]]]:
    """Return the spans of device 0 by lane: phase, generation, begin, end, cause, fault."""
    timeline = Timeline()
    for each in events:
        timeline.take(each)
    lanes = timeline.shown(now_s)["0"]
    return {lane: [tuple(span.values()) for span in spans] for lane, spans in lanes.items()}


START = (event(1, "start", 1), event(2, "ready", 1))


def test_a_worker_that_is_killed_is_down_until_the_next_starts() -> None:
    """The cause is at the break."""
    found = shown(*START, event(5, "end", 1, "killed by SIGKILL"), event(6, "start", 2), event(8, "ready", 2))
    assert found["worker"] == [
        ("starting", 1, 1.0, 2.0, "", False),
        ("serving", 1, 2.0, 5.0, "killed by SIGKILL", True),
        ("down", 1, 5.0, 6.0, "killed by SIGKILL", True),
        ("starting", 2, 6.0, 8.0, "", False),
        ("serving", 2, 8.0, None, "", False),
    ]


def test_a_standby_takes_over_before_the_cause_is_known() -> None:
    """Its lane ends where it takes over, and the break gets the cause of the end that is reported afterwards."""
    standby = (event(3, "standby_start", 2), event(4, "standby_ready", 2))
    found = shown(*START, *standby, event(9, "promoted", 2), event(9.1, "end", 1, "killed by SIGKILL"))
    assert found["worker"][1:] == [
        ("serving", 1, 2.0, 9.0, "killed by SIGKILL", True),
        ("serving", 2, 9.0, None, "", False),
    ]
    assert found["standby"] == [("starting", 2, 3.0, 4.0, "", False), ("standby", 2, 4.0, 9.0, "", False)]


def test_a_reload_is_no_fault() -> None:
    """Its reason is at the break, not that the worker left on an order, whether or not a standby takes over."""
    reload = event(5, "reload", 1, "to run the present code")
    end = event(6, "planned_end", 1, "left as told")
    plain = shown(*START, reload, end, event(7, "start", 2))
    assert plain["worker"][1] == ("serving", 1, 2.0, 6.0, "to run the present code", False)
    hot = shown(*START, event(3, "standby_ready", 2), reload, event(5.5, "promoted", 2), end)
    assert hot["worker"][1:] == [
        ("serving", 1, 2.0, 5.5, "to run the present code", False),
        ("serving", 2, 5.5, None, "", False),
    ]
    assert shown(*START, event(3, "standby_ready", 2), event(4, "planned_end", 2, "has left"))["standby"] == [
        ("standby", 2, 3.0, 4.0, "has left", False)
    ]


def test_the_end_of_a_supervisor_ends_all() -> None:
    """In order or not."""
    stopped = shown(*START, {"time": 5.0, "event": "pool_end", "text": "the pool has ended"})
    assert stopped["worker"][-1] == ("serving", 1, 2.0, 5.0, "the pool has ended", False)
    killed = shown(*START, {"time": 7.0, "event": "pool_start", "text": "p"}, event(8, "start", 2))
    assert killed["worker"][1] == ("serving", 1, 2.0, 7.0, "the supervisor had ended", True)


NAMES = sorted({*MEANINGS, *ENDS, *OUT, *REASONS, "back_off", "poison_request"})


@given(
    st.lists(
        st.one_of(
            st.builds(event, st.floats(0, 2000), st.sampled_from(NAMES), st.integers(1, 4), device=st.integers(0, 1)),
            st.sampled_from([{"time": 50.0, "event": "pool_start"}, {"time": 60.0, "event": "pool_end"}, {}]),
        ),
        max_size=300,
    ),
    st.floats(0, 3000),
)
def test_any_events_make_lanes_that_are_bounded_and_in_order(events: list[Event], now_s: float) -> None:
    """One span is open at most, the last; each ends where the next begins, or before; what is past is forgotten."""
    timeline = Timeline()
    for each in sorted(events, key=lambda each: float(each.get("time") or 0)):
        timeline.take(each)
    for lanes in timeline.shown(now_s).values():
        for spans in lanes.values():
            assert len(spans) <= MOST_SPANS
            for span, following in itertools.pairwise(spans):
                assert span["begin"] <= span["end"] <= following["begin"]
            assert all(span["end"] is None or span["end"] > now_s - WINDOW_S for span in spans)


def test_a_worker_that_ends_without_end_stays_bounded() -> None:
    """The latest spans are kept."""
    events = [event(n, name, n) for n in range(1, 400) for name in ("start", "end")]
    found = shown(*events, now_s=400.0)["worker"]
    assert len(found) == MOST_SPANS
    assert found[-1][:2] == ("down", 399)


def test_the_latest_events_are_told_once_whenever_they_were_written(tmp_path: Path) -> None:
    """Before the first look, between two, or in a log that is made anew; the same words of two ends are shown once."""
    path = tmp_path / "events.jsonl"
    with EventLog(path) as log:
        for n in range(MOST_EVENTS):
            log.append(event(n, "ready", n))
        story = Story(path)
        log.append(event(500, "end", 7, "killed"))
        log.append(event(501, "poison_request", 7, "refused"))
        log.append(event(501, "poison_request", 8, "refused"))
        told = story.shown()["news"]
    story.close()
    assert len(told) == MOST_EVENTS
    assert [(each["event"], each["kind"], each["generation"]) for each in told[-3:]] == [
        ("ready", "ready", MOST_EVENTS - 1),
        ("end", "fault", 7),
        ("poison_request", "fault", 7),
    ]
