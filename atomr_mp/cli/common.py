"""Shared by several commands: the pool's options, a session with it, and numbers for a person."""

from __future__ import annotations

import argparse
import contextlib
import re
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar

from atomr_mp import errors
from atomr_mp.protocol import amounts, words

if TYPE_CHECKING:
    from atomr_mp.operator.session import OperatorSession
    from atomr_mp.process.files.rundir import RunDirectory

N = TypeVar("N", int, float)

counted = words.counted

LONGEST_WAIT_S: Final = 1e6
"""The longest that a command waits, some eleven days: the kernel counts a wait's milliseconds in 31 bits."""

Commands = Any
"""The class `_SubParsersAction` of `argparse`, which has no public name."""


class Parser(argparse.ArgumentParser):
    """Takes no abbreviated options, and says what a misspelt one may mean.

    Its commands' parsers are of this class too.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs["allow_abbrev"] = False
        super().__init__(*args, **kwargs)

    def error(self, message: str) -> NoReturn:
        """Print the usage and the error, and exit with status 2."""
        misspelt = _CHOICE.search(message)
        if misspelt:
            message += words.did_you_mean(misspelt[1], _WORD.findall(message[misspelt.end() :]))
        super().error(message)

    def refuse(self, unknown: Sequence[str]) -> NoReturn:
        """Exit for arguments that the command does not take."""
        option = unknown[0].partition("=")[0]
        options = [each for action in self._actions for each in action.option_strings]
        hint = words.did_you_mean(option, options) if option.startswith("-") else ""
        self.error(f"unrecognized arguments: {' '.join(unknown)}{hint}")


def leaves(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """Yield this parser's leaves: itself, or the parsers of its commands."""
    below = [action.choices for action in parser._actions if isinstance(action.choices, dict)]  # noqa: SLF001
    if not below:
        yield parser
    for choices in below:
        for each in choices.values():
            yield from leaves(each)


_CHOICE: Final = re.compile(r"invalid choice: '([^']*)' \(choose from ")
"""The message of argparse for an unknown word, before the known ones."""

_WORD: Final = re.compile(r"[\w-]+")


def add_pool(parser: argparse.ArgumentParser) -> None:
    """Add the options that name the pool."""
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--pool", metavar="NAME", help="name of the pool (default: ATOMR_MP_POOL, or `default`)")
    which.add_argument(
        "--run-dir",
        metavar="DIR",
        help="its run directory, if that is not the default for its name (default: ATOMR_MP_RUN_DIR)",
    )


def seconds(*, zero: bool = False, most: float = LONGEST_WAIT_S) -> Callable[[str], float]:
    """Return the type of an option that is a duration, see `amounts.duration`."""
    return _number(float, lambda value: amounts.duration("it", value, zero=zero, most=most))


def whole(least: int, most: int = amounts.MOST) -> Callable[[str], int]:
    """Return the type of an argument that is a whole number, see `amounts.whole`."""
    return _number(int, lambda value: amounts.whole("it", value, least, most))


def real(least: float, most: float) -> Callable[[str], float]:
    """Return the type of an option that is any number between bounds, see `amounts.real`."""
    return _number(float, lambda value: amounts.real("it", value, least, most))


def _number(kind: type[N], checked: Callable[[Any], N]) -> Callable[[str], N]:
    """Return a type for `argparse`, which puts the option's name before the error."""

    def parse(text: str) -> N:
        try:
            return checked(number_in(text, kind))
        except errors.InvalidRequest as error:
            raise argparse.ArgumentTypeError(error.message) from error

    return parse


def number_in(text: str, kind: type[int | float]) -> Any:
    """Return the number that a text is, or the text itself, for an error that shows it."""
    try:
        return kind(text)
    except ValueError:
        return text


def add_timeout(parser: argparse.ArgumentParser, default_s: float) -> None:
    """Declare how long to wait."""
    parser.add_argument(
        "--timeout",
        type=seconds(zero=True),
        default=default_s,
        metavar="S",
        help="seconds to wait (default: %(default)g)",
    )


def run_path(options: argparse.Namespace) -> Path:
    """Return the run directory that the options name, whether or not it exists.

    Raises:
        ConfigurationError: The pool's name is not a name.
    """
    from atomr_mp.process.files.rundir import find_run_dir

    return find_run_dir(options.pool, options.run_dir)


def open_pool(options: argparse.Namespace) -> RunDirectory:
    """Return the run directory of the running pool that the options name.

    Raises:
        PoolUnreachable: No pool runs there.
        ConfigurationError: The directory is not safe, or not ours.
    """
    from atomr_mp.process.files.rundir import RunDirectory

    return RunDirectory.open(run_path(options))


@contextlib.contextmanager
def observe(directory: RunDirectory, hello_s: float | None = None) -> Iterator[OperatorSession]:
    """Open a session for questions and orders.

    Args:
        directory: The pool's.
        hello_s: How long the supervisor may take to answer the hello; see `patience_s` for the default.

    Raises:
        PoolLost: The supervisor is gone, stands still, or does not answer.
    """
    from atomr_mp.operator.session import OperatorSession, patience_s
    from atomr_mp.process.scheduling import silence

    supervisor = directory.supervisor
    begun_s = time.monotonic()
    check_runs(directory)
    try:
        with OperatorSession(directory.session_socket, hello_s or patience_s(supervisor)) as observer:
            yield observer
    except TimeoutError as error:
        raise errors.PoolLost(silence(supervisor.pid, time.monotonic() - begun_s)) from error


def check_runs(directory: RunDirectory) -> None:
    """Check that a pool's supervisor does not stand still.

    Raises:
        PoolLost: It does; the message says why, and what has it go on.
    """
    from atomr_mp.process.scheduling import silence, standstill

    pid = directory.supervisor.pid
    if standstill(pid) is not None:
        raise errors.PoolLost(silence(pid, 0.0))


def duration(seconds: float) -> str:
    """Return a duration as one reads it: "0.3 s", "2 min 5 s", "3 d 4 h"."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest_s = divmod(int(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest_s} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours < 24 else f"{hours // 24} d {hours % 24} h"


def short_duration(seconds: float) -> str:
    """Return a duration in at most five characters, for a table: "0.3s", "12s", "5m", "4h", "9d"."""
    if seconds < 9.95:
        return f"{seconds:.1f}s"
    for unit, unit_s, most in (("s", 1, 100), ("m", 60, 100), ("h", 3600, 48)):
        if seconds < most * unit_s:
            return f"{seconds / unit_s:.0f}{unit}"
    return f"{seconds / 86400:.0f}d"


def short_time(seconds: float) -> str:
    """Return the time of some work: "850 ns", "12.3 us", "4.56 ms", "1.2 s"."""
    for unit, unit_s in (("ns", 1e-9), ("us", 1e-6), ("ms", 1e-3)):
        if seconds < 999.5 * unit_s:
            return f"{seconds / unit_s:.3g} {unit}"
    return f"{seconds:.3g} s"


def short_count(count: int) -> str:
    """Return a number in at most five characters, for a table: "9,999", "12k", "3.4M"."""
    if count < 10_000:
        return f"{count:,}"
    for unit, scale in (("k", 1e3), ("M", 1e6), ("G", 1e9)):
        if count < 999.5 * scale or unit == "G":
            return f"{count / scale:.3g}{unit}"
    raise AssertionError


def short_size(nbytes: int) -> str:
    """Return a number of bytes in at most five characters, for a table: "64M", "1.5G"."""
    if nbytes < 999.5 * 2**20:
        return f"{nbytes / 2**20:.0f}M"
    for unit, scale in (("G", 2**30), ("T", 2**40)):
        if nbytes < 999.5 * scale or unit == "T":
            value = nbytes / scale  # may be a little less than 1, for there are 1,024 of each in the next
            return f"{value:.2f}{unit}" if value < 1 else f"{value:.3g}{unit}"
    raise AssertionError


def size(nbytes: int) -> str:
    """Return a number of bytes as one reads it."""
    return f"{nbytes / 2**20:,.0f} MiB" if nbytes < 2**30 else f"{nbytes / 2**30:,.1f} GiB"
