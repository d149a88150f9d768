"""The lives of each device's processes over the last 15 minutes, from the pool's event log. Pure.

A device has two lanes: the worker that has the device, and the one that stands by. A lane is a row of spans.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

if TYPE_CHECKING:
    from collections.abc import Mapping

    from atomr_mp.process.files.events import Scalar

WINDOW_S: Final = 900.0

MOST_SPANS: Final = 120
"""Most spans of a lane; the oldest make room."""

MOST_TEXT: Final = 400


class Phase(StrEnum):
    """The phase of a process in a span."""

    STARTING = "starting"
    SERVING = "serving"
    STANDBY = "standby"
    """Ready to take over."""
    DOWN = "down"
    """There is no process, or one that does not serve."""


class Track(StrEnum):
    """The part that a process plays."""

    WORKER = "worker"
    STANDBY = "standby"


class Span(msgspec.Struct):
    """A phase of a process."""

    life: Phase
    generation: int
    begin: float
    """Seconds since 1970."""
    end: float | None = None
    """None if it lasts."""
    cause: str = ""
    """Why it has ended, or why there is no process."""
    fault: bool = False
    """Whether it ended unplanned."""


class Meaning(NamedTuple):
    """The meaning of an event for a lane."""

    lane: Track
    life: Phase | None
    """The phase that begins; None: the lane is empty from now on."""


MEANINGS: Final = {
    "start": Meaning(Track.WORKER, Phase.STARTING),
    "ready": Meaning(Track.WORKER, Phase.SERVING),
    "promoted": Meaning(Track.WORKER, Phase.SERVING),
    "standby_start": Meaning(Track.STANDBY, Phase.STARTING),
    "standby_ready": Meaning(Track.STANDBY, Phase.STANDBY),
    "standby_end": Meaning(Track.STANDBY, None),
}
"""What begins."""

ENDS: Final = {"end": True, "fault": True, "hung": True, "planned_end": False}
"""Events of a process's end, and whether it was unplanned. Several tell of one end, in any order."""

OUT: Final = frozenset({"circuit_open", "quarantined", "sick"})
"""Events that tell why a device has no process."""

REASONS: Final = frozenset({"board", "reload", "restart", "recycle"})
"""Events that tell why a process is about to be replaced."""


class Timeline:
    """The lanes of all devices."""

    def __init__(self) -> None:
        self._lanes: Final[dict[int, dict[Track, list[Span]]]] = {}
        self._reasons: Final[dict[tuple[int, int], str]] = {}
        """Reasons of planned ends that are about to come, by device and generation."""

    def take(self, event: Mapping[str, Scalar]) -> None:
        """Take in the next event of the log."""
        match event:
            case {"event": str(name), "time": int() | float() as at, "device": int(device), "generation": int(number)}:
                self._device(name, float(at), device, number, str(event.get("text") or name)[:MOST_TEXT])
            case {"event": "pool_end", "time": int() | float() as at}:
                self._all_end(float(at), "the pool has ended", fault=False)
            case {"event": "pool_start", "time": int() | float() as at}:
                self._all_end(float(at), "the supervisor had ended", fault=True)

    def shown(self, now_s: float) -> dict[str, Any]:
        """Return the spans of the last 15 minutes by device and lane, as JSON values; forget older ones."""
        for lanes in self._lanes.values():
            for spans in lanes.values():
                spans[:] = [each for each in spans if each.end is None or each.end > now_s - WINDOW_S]
        found: dict[str, Any] = msgspec.to_builtins(self._lanes, str_keys=True)
        return found

    def _device(self, name: str, at: float, device: int, generation: int, text: str) -> None:
        lanes = self._lanes.setdefault(device, {lane: [] for lane in Track})
        if name in REASONS:
            self._reasons[device, generation] = text
        elif name in ENDS:
            self._ended(lanes, device, Span(Phase.DOWN, generation, at, None, text, fault=ENDS[name]))
        elif name in OUT:
            self._begin(lanes[Track.WORKER], Span(Phase.DOWN, generation, at, None, text))
        elif (meaning := MEANINGS.get(name)) is not None:
            spans = lanes[meaning.lane]
            open_one = _open(spans)
            if open_one is not None and open_one.generation != generation:
                open_one.cause = open_one.cause or self._reasons.get((device, open_one.generation), "")
            if meaning.life is None:
                if open_one is not None:
                    open_one.end, open_one.cause = at, text
                return
            if name == "promoted":
                self._close(lanes[Track.STANDBY], at, generation)
            self._begin(spans, Span(meaning.life, generation, at))

    def _ended(self, lanes: dict[Track, list[Span]], device: int, down: Span) -> None:
        """Take in the end of a process: the present worker, the one before it, or a standby."""
        if self._close(lanes[Track.STANDBY], down.begin, down.generation, down.cause):
            return
        reason = self._reasons.pop((device, down.generation), "")
        spans = lanes[Track.WORKER]
        for span in reversed(spans):
            if span.generation == down.generation and span.life is not Phase.DOWN:
                span.fault = span.fault or down.fault
                span.cause = down.cause if down.fault or not span.cause else span.cause
                if not down.fault and reason:
                    span.cause = reason
                break
        open_one = _open(spans)
        if open_one is not None and open_one.generation == down.generation:
            self._begin(spans, down)

    def _close(self, spans: list[Span], at: float, generation: int, cause: str = "") -> bool:
        open_one = _open(spans)
        if open_one is None or open_one.generation != generation:
            return False
        open_one.end, open_one.cause = at, cause
        return True

    def _begin(self, spans: list[Span], span: Span) -> None:
        open_one = _open(spans)
        if open_one is not None:
            open_one.end = span.begin
        spans.append(span)
        del spans[:-MOST_SPANS]

    def _all_end(self, at: float, cause: str, *, fault: bool) -> None:
        self._reasons.clear()
        for lanes in self._lanes.values():
            for spans in lanes.values():
                if (open_one := _open(spans)) is not None:
                    open_one.end, open_one.cause, open_one.fault = at, open_one.cause or cause, fault


def _open(spans: list[Span]) -> Span | None:
    return spans[-1] if spans and spans[-1].end is None else None
