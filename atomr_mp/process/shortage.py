"""Tells a process that has no file descriptor left what it lacks."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator

from atomr_mp import errors


@contextlib.contextmanager
def needs_descriptors(what: str) -> Iterator[None]:
    """Raise what file descriptors are lacking for, in place of the `OSError` of wherever the first one lacked.

    Args:
        what: What the block does, as an infinitive.

    Raises:
        ConfigurationError: There are none, in this process or in the system.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in {errno.EMFILE, errno.ENFILE}:
            raise
        whose = "this process" if error.errno == errno.EMFILE else "the system"
        raise errors.ConfigurationError(
            f"{whose} has as many files open as it may: close some, or raise the limit (ulimit -n), to {what}"
        ) from error
