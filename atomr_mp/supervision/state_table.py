"""Draws a table of states: a dict from (state, event) to the next state and the actions. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, TypeVar

S = TypeVar("S", bound=str)
E = TypeVar("E", bound=str)


class StateMove(Protocol):
    """What a table says of a state and an event."""

    @property
    def state(self) -> str:
        """The next state."""

    @property
    def actions(self) -> tuple[str, ...]:
        """The actions, in their order."""


def mermaid(transitions: Mapping[tuple[S, E], StateMove], first: str) -> str:
    """Return a table as a Mermaid state diagram; rows that change nothing are left out.

    Args:
        transitions: The table.
        first: The state in which everything begins.
    """
    arrows: dict[tuple[str, str, tuple[str, ...]], list[str]] = {}
    for (state, event), to in transitions.items():
        if to.state != state or to.actions:
            arrows.setdefault((state, to.state, to.actions), []).append(event)
    lines = ["stateDiagram-v2", f"    [*] --> {first}"]
    for (before, after, actions), events in arrows.items():
        label = ", ".join(events)
        if actions:
            label += " / " + ", ".join(actions)
        lines.append(f"    {before} --> {after}: {label}")
    return "\n".join(lines) + "\n"
