"""From the rounds' numbers to tables and JSON: medians, ratios, goals. Pure."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import Any, Final

from benchmarks.contestants import BASE
from benchmarks.metrics import METRICS, TIMES, Metric, Results, Value

RUNTIME: Final = "runtime"
DASH: Final = "–"  # noqa: RUF001 - the sign that is meant
SPREAD: Final = f"[min{DASH}max]"
HEADER: Final = ("measurement", "unit", "base", f"{{}} {SPREAD}", f"ratio {SPREAD}", "goal", "")


@dataclass(frozen=True)
class Row:
    """One metric of one contestant."""

    metric: Metric
    base: list[float]
    values: list[float]
    ratios: list[float]
    """One a round, to the base just before and just after."""
    met: bool | None
    """None where there is no goal."""


def tables_text(results: Results, contestants: list[str], rounds: int) -> str:
    """Return a Markdown table for each contestant and, if there are several, one of all side by side."""
    texts = []
    for name in contestants:
        cells = [[column.format(name) for column in HEADER], *[_cells(row) for row in rows(results, name)]]
        texts.append(_aligned(cells))
    note = (
        f"Rounds: {rounds}; medians of them. Ratios are to the base just before and after each round; "
        "asyncio's are to the blocking base."
    )
    if len(contestants) > 1:
        texts.append(_aligned(_side_by_side(results, contestants)))
    return "\n\n".join(["", *texts, note])


def facts_text(facts: dict[str, Any]) -> str:
    """Return the machine's facts in a line or two."""
    packages = ", ".join(f"{name} {version}" for name, version in facts["packages"].items())
    return (
        f"{facts['date']}: {facts['cpu']}, {facts['cores']} cores, load {facts['load']:.2f}, {facts['kernel']}, "
        f"Python {facts['python']}\n{packages}"
    )


def as_json(
    results: Results, contestants: list[str], rounds: int, facts: dict[str, Any], failures: list[str]
) -> dict[str, Any]:
    """Return everything, every round included."""
    return {
        "machine": facts,
        "rounds": rounds,
        "failures": failures,
        "results": {name: [_record(row) for row in rows(results, name)] for name in contestants},
        "words": {name: _words(results, name) for name in contestants},
    }


def rows(results: Results, contestant: str) -> list[Row]:
    """Return a contestant's figures, in the order of the metrics."""
    found = []
    for metric in METRICS:
        base_rounds = results.get((BASE, metric.scenario), [])
        own_rounds = results.get((contestant, metric.scenario), [])
        values = _numbers(own_rounds, metric.name)
        if not values:
            continue
        base = _numbers(base_rounds, metric.base)
        ratios = []
        for number, measured in enumerate(own_rounds):
            around = _numbers(base_rounds[number : number + 2], metric.base)
            own = _numbers([measured], metric.name)
            if own and any(around):
                ratios.append(own[0] / statistics.mean(around))
        found.append(Row(metric, base, values, ratios, _met(metric, contestant, values, ratios)))
    return found


def _met(metric: Metric, contestant: str, values: list[float], ratios: list[float]) -> bool | None:
    if metric.goal is None or contestant != RUNTIME:
        return None
    judged = ratios if metric.goal.ratio else values
    return metric.goal.is_met(statistics.median(judged)) if judged else None


def _numbers(rounds: list[dict[str, Value]], name: str) -> list[float]:
    found = [measured.get(name) for measured in rounds]
    return [value for value in found if isinstance(value, int | float)]


def _words(results: Results, contestant: str) -> dict[str, str]:
    """Return results in words, by the name of their metric."""
    found: dict[str, dict[str, None]] = {}
    for (name, _scenario), measured in results.items():
        for metric, value in ((metric, value) for values in measured for metric, value in values.items()):
            if name == contestant and isinstance(value, str):
                found.setdefault(metric, {})[value] = None
    return {metric: " or ".join(values) for metric, values in found.items()}


def _side_by_side(results: Results, contestants: list[str]) -> list[list[str]]:
    """Return one line a metric, with the median of each contestant."""
    names = [BASE, *contestants]
    medians = {name: {row.metric: statistics.median(row.values) for row in rows(results, name)} for name in names}
    words = {name: _words(results, name) for name in names}
    lines = [["measurement", "unit", *names]]
    for metric in METRICS:
        cells = [
            _number(medians[name][metric]) if metric in medians[name] else words[name].get(metric.name, DASH)
            for name in names
        ]
        if any(cell != DASH for cell in cells[1:]):
            lines.append([metric.title, metric.unit, *cells])
    return lines


def _cells(row: Row) -> list[str]:
    metric = row.metric
    met = {None: "", True: "met", False: "not met"}[row.met]
    goal = metric.goal.text(metric.unit) if metric.goal is not None and met else ""
    return [
        metric.title,
        metric.unit,
        _number(statistics.median(row.base)) if row.base else DASH,
        _spread(row.values),
        _spread(row.ratios, TIMES) if row.ratios else DASH,
        goal,
        met,
    ]


def _spread(values: list[float], sign: str = "") -> str:
    return f"{_number(statistics.median(values))}{sign} [{_number(min(values))}{DASH}{_number(max(values))}]"


def _number(value: float) -> str:
    """Return three digits, or all those before the point."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _aligned(cells: list[list[str]]) -> str:
    widths = [max(len(line[column]) for line in cells) for column in range(len(cells[0]))]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) + " |" for line in cells
    ]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(lines)


def _record(row: Row) -> dict[str, Any]:
    metric = row.metric
    return {
        "scenario": metric.scenario,
        "metric": metric.name,
        "title": metric.title,
        "unit": metric.unit,
        "median": statistics.median(row.values),
        "rounds": row.values,
        "base_median": statistics.median(row.base) if row.base else None,
        "base_rounds": row.base,
        "ratio_median": statistics.median(row.ratios) if row.ratios else None,
        "ratio_rounds": row.ratios,
        "goal": metric.goal.text(metric.unit) if metric.goal and row.met is not None else None,
        "met": row.met,
    }
