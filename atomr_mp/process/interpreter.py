"""The command lines of this package's own processes. Pure.

Python puts the current folder first on the path of a process that is started by `-m`. There a user's own `queue.py`
would stand for the standard library's. No process of ours looks there before it has its imports; workers look there
last, for actors (`atomr_mp_workers.import_path`).
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

from atomr_mp import errors


def module(name: str, *arguments: str) -> list[str]:
    """Return the command line that runs a module in an interpreter like this one, without the current folder.

    A flag rather than PYTHONSAFEPATH, which programs that an actor starts would inherit.
    """
    return [sys.executable, "-P", "-m", name, *arguments]


@contextlib.contextmanager
def startable() -> Iterator[None]:
    """Turn the system's refusal to start an interpreter into an error of ours.

    Raises:
        ConfigurationError: It cannot be started.
    """
    try:
        yield
    except (OSError, TypeError) as error:  # the latter where Python does not know its own path, as where it is embedded
        why = getattr(error, "strerror", None) or error
        raise errors.ConfigurationError(
            f"the Python interpreter {sys.executable or '(unknown)'} (sys.executable) cannot be started as a process: "
            f"{why}; make it an executable file, or set sys.executable to one"
        ) from error
