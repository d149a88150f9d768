"""Paths and their handlers. Pure."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Final, NamedTuple, Protocol

from atomr_mp import errors
from atomr_mp.serve import problems
from atomr_mp.serve.http.exchange import Exchange
from atomr_mp.serve.problems import Problem

Handler = Callable[[Exchange], Awaitable[None]]

OPEN: Final = "{}"
"""Stands in a path for one segment of any text, which the handler finds in `Exchange.values`."""


class Route(NamedTuple):
    """The handler of a path."""

    name: str
    """Name of the route in metrics."""
    method: str
    """HTTP's; empty for any."""
    handler: Handler
    needs_token: bool = True


class ErrorBody(Protocol):
    """Returns the body of an answer for an error; see `problems.describe`."""

    def __call__(
        self, error: errors.AtomrError | Problem, request_id: str, *, debug: bool, sent: bool = False
    ) -> bytes:
        """Return it."""


class ErrorStatus(Protocol):
    """Returns the status of an answer for an error; see `problems.status_of`."""

    def __call__(self, error: errors.AtomrError | Problem, *, sent: bool = False) -> int:
        """Return it."""


class RouteGroup(NamedTuple):
    """Paths whose errors have one form."""

    routes: Mapping[str, Route]
    """Routes by path; a segment that is `OPEN` may be any."""
    prefix: str = "/"
    """Begins all paths of the group, those among them that are nothing."""
    status_of: ErrorStatus = problems.status_of
    body_of: ErrorBody = problems.body_of


class Routes:
    """Finds the handler of a path.

    Args:
        groups: The groups; one with a longer prefix comes before those with its beginning.
    """

    def __init__(self, groups: Iterable[RouteGroup]) -> None:
        self._groups: Final = tuple(groups)
        self.paths: Final = [path for group in self._groups for path in group.routes]
        self._exact: Final = dict[str, Route]()
        self._open: Final = dict[int, list[tuple[list[str], Route]]]()
        """Paths with open segments, by their number of segments."""
        for group in self._groups:
            for path, route in group.routes.items():
                if OPEN in path:
                    segments = path.split("/")
                    self._open.setdefault(len(segments), []).append((segments, route))
                else:
                    self._exact[path] = route

    def find(self, path: str) -> tuple[Route, tuple[str, ...]] | None:
        """Return the route of a path, and the texts of its open segments; None if there is none."""
        exact = self._exact.get(path)
        if exact is not None:
            return exact, ()
        given = path.split("/")
        for segments, route in self._open.get(len(given), ()):
            pairs = list(zip(segments, given, strict=True))
            if all(one == other or (one == OPEN and other) for one, other in pairs):
                return route, tuple(other for one, other in pairs if one == OPEN)
        return None

    def group_of(self, path: str) -> RouteGroup:
        """Return the group of a path."""
        return next(group for group in self._groups if path.startswith(group.prefix) or group is self._groups[-1])
