"""Checks of the arguments of `method`, `Batch` and `Steps`, when the actor is loaded and its name known."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Final

from atomr_mp.errors import ActorLoadFailed
from atomr_mp.protocol import amounts
from atomr_mp_workers.actor import Batch, MethodOptions, Steps

MAX_BATCH_ITEMS: Final = 1024
"""Most items of a batch: as many as the board has slots, so that each running request can be named after a death."""

MAX_BATCH_WAIT_S: Final = 60.0


def checked(where: str, options: MethodOptions) -> MethodOptions:
    """Return a method's options with numbers of Python's own types.

    Args:
        where: The method, for the errors' texts.
        options: Its decorator's arguments, of any types.

    Raises:
        ActorLoadFailed: One is of the wrong type, or out of bounds; the message names it.
    """
    for name in ("idempotent", "thread", "exclusive", "resumable"):
        found = getattr(options, name)
        if not isinstance(found, bool):
            raise ActorLoadFailed(f"{where}: {name} is {found!r}; it is True or False")
    for name in ("resend", "openai"):
        found = getattr(options, name)
        if not isinstance(found, str | None):
            raise ActorLoadFailed(f"{where}: {name} is {found!r}; it is a str, or None")
    if not (options.example is None or isinstance(options.example, str) or callable(options.example)):
        raise ActorLoadFailed(
            f"{where}: example is {options.example!r}; it is a function that returns arguments, as "
            f"example=lambda: ({options.example!r},), or the name of a method"
        )
    deadline_s: Any = options.deadline_s
    if deadline_s is not None:
        deadline_s = amounts.duration(f"{where}: deadline_s", deadline_s, error=ActorLoadFailed)
    queue: Any = options.queue
    if queue is not None:
        queue = amounts.whole(f"{where}: queue", queue, 1, error=ActorLoadFailed)
    return dataclasses.replace(
        options,
        deadline_s=deadline_s,
        queue=queue,
        writes=_names(where, options.writes),
        batch=_batch(where, options.batch),
        steps=None if options.steps is None else Steps(_max_items(where, options.steps)),
    )


def _names(where: str, writes: Any) -> tuple[str, ...]:
    """Return the names of written parameters."""
    if isinstance(writes, str) or not isinstance(writes, Sequence) or not all(isinstance(each, str) for each in writes):
        advice = f", as writes=[{writes!r}]" if isinstance(writes, str) else ""
        raise ActorLoadFailed(f"{where}: writes is {writes!r}; it is a list of parameters' names{advice}")
    return tuple(writes)


def _batch(where: str, batch: Any) -> Batch | None:
    """Return the rules for a method's batches, None if it has none."""
    if batch is None:
        return None
    if not isinstance(batch, Batch):
        most = batch if type(batch) is int else 32
        raise ActorLoadFailed(
            f"{where}: batch is {batch!r}; it is Batch(...), as batch=Batch(max_items={most}), or Steps(...), or None"
        )
    max_bytes: Any = batch.max_bytes
    if max_bytes is not None:
        max_bytes = amounts.whole(f"{where}: max_bytes of its Batch(...)", max_bytes, 1, error=ActorLoadFailed)
    wait = f"{where}: max_wait_s of its Batch(...)"
    wait_s = amounts.duration(wait, batch.max_wait_s, zero=True, most=MAX_BATCH_WAIT_S, error=ActorLoadFailed)
    rows: Any = batch.rows
    if not isinstance(rows, bool):
        raise ActorLoadFailed(f"{where}: rows of its Batch(...) is {rows!r}; it is True or False")
    return Batch(_max_items(where, batch), max_bytes, wait_s, batch.key, rows)


def _max_items(where: str, rules: Batch | Steps) -> int:
    name = f"{where}: max_items of its {type(rules).__name__}(...)"
    return amounts.whole(name, rules.max_items, 1, MAX_BATCH_ITEMS, error=ActorLoadFailed)
