"""The command lines of this package's own processes. Pure.

Python puts the current folder first on the path of a process that is started by `-m`. There a user's own `queue.py`
would stand for the standard library's. No process of ours looks there before it has its imports; workers look there
last, for actors (`atomr_mp_workers.import_path`).
"""

from __future__ import annotations

import contextlib
import errno
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from atomr_mp import errors


def module(name: str, *arguments: str) -> list[str]:
    """Return the command line that runs a module in an interpreter like this one, without the current folder.

    A flag rather than PYTHONSAFEPATH, which programs that an actor starts would inherit.

    Raises:
        ConfigurationError: Python does not know its own path, as where it is embedded.
    """
    if not sys.executable:
        raise _refused(f"its path is not known; {_ADVICE}")
    return [sys.executable, "-P", "-m", name, *arguments]


@contextlib.contextmanager
def startable() -> Iterator[None]:
    """Turn the system's refusal to start an interpreter into an error of ours.

    Raises:
        ConfigurationError: It cannot be started.
    """
    try:
        yield
    except OSError as error:
        advice = "" if error.errno in {errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE} else f"; {_ADVICE}"
        raise _refused(f"{error.strerror or error}{advice}") from error


def _refused(why: str) -> errors.ConfigurationError:
    from atomr_mp import errors  # not before: the supervisor starts a process before it imports much

    path = sys.executable or "(unknown)"
    return errors.ConfigurationError(
        f"the Python interpreter {path} (sys.executable) cannot be started as a process: {why}"
    )


_ADVICE: Final = "make it an executable file, or set sys.executable to one"
