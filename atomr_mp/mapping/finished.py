"""A journal whose job is done: its outcomes, without a pool."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from atomr_mp.mapping.journal import Journal, header_of
from atomr_mp.mapping.schedule import Failure


def open_finished(path: Path, method: str, total: int, *, retry_failed: bool) -> Journal | None:
    """Open a journal if it has an outcome of each item, or has it set aside, and nothing is left to be tried.

    Args:
        path: The file.
        method: The items' method.
        total: The number of items.
        retry_failed: Whether failed items are to be tried again.

    Returns:
        The journal; None if it has to be used with a pool, which also tells what is wrong with it.

    Raises:
        JournalDamaged: Its middle is damaged.
        ConfigurationError: It cannot be used, or another process does.
    """
    header = header_of(path)
    if header is None or header.method != method:
        return None
    # Only a method that is not idempotent has records of items that were sent, and these are set aside.
    journal = Journal(path, method, header.parameters, idempotent=False, retry_failed=retry_failed)
    if journal.is_whole(total):
        return journal
    journal.close()
    return None


def recorded_outcomes(journal: Journal, items: Iterable[Any]) -> Iterator[Any]:
    """Yield each item's result or `Failure`, in order.

    Raises:
        JournalMismatch: The journal is that of other items.
    """
    for index, item in enumerate(items):
        found = journal.outcome(index, item)
        assert found is not None  # else the journal would not be whole
        yield found if isinstance(found, Failure) else found.value
