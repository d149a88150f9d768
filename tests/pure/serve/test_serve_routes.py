"""Paths and their handlers."""

from __future__ import annotations

from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as some

from atomr_mp.serve.http.routes import OPEN, Route, RouteGroup, Routes


async def nothing(_exchange: Any) -> None:
    """Stand for a handler."""


def route(name: str) -> Route:
    """Return a route of a name."""
    return Route(name, "GET", nothing)


INNER: Final = RouteGroup(
    {path: route(path) for path in ("/v/models", "/v/models/{}", "/v/models/{}/ready", "/v/models/{}/versions/{}")},
    "/v/",
)
OUTER: Final = RouteGroup({path: route(path) for path in ("/", "/call/{}", "/health")})
ROUTES: Final = Routes([INNER, OUTER])


@pytest.mark.parametrize(
    ("path", "found", "values"),
    [
        ("/", "/", ()),
        ("/call/A.b", "/call/{}", ("A.b",)),
        ("/v/models", "/v/models", ()),
        ("/v/models/m", "/v/models/{}", ("m",)),
        ("/v/models/ready", "/v/models/{}", ("ready",)),
        ("/v/models/m/ready", "/v/models/{}/ready", ("m",)),
        ("/v/models/m/versions/1", "/v/models/{}/versions/{}", ("m", "1")),
    ],
)
def test_a_path_is_found_with_what_its_route_leaves_open(path: str, found: str, values: tuple[str, ...]) -> None:
    """One without open places comes first."""
    assert ROUTES.find(path) == (route(found), values)


@pytest.mark.parametrize("path", ["", "/call", "/call/", "/call/a/b", "/v/models/", "/v/models//ready", "/health/"])
def test_other_paths_are_nothing(path: str) -> None:
    """An open place is not empty."""
    assert ROUTES.find(path) is None


@given(some.lists(some.sampled_from(["v", "models", "m", "ready", "versions", "1", "call", "", "x"]), max_size=6))
def test_every_path_has_a_group_and_one_that_is_found_fits_its_route(segments: list[str]) -> None:
    """Its errors have the form of the group to which it belongs."""
    path = "/" + "/".join(segments)
    group = ROUTES.group_of(path)
    assert group is (INNER if path.startswith("/v/") else OUTER)
    found = ROUTES.find(path)
    if found is not None:
        left = iter(found[1])
        assert "/".join(next(left) if each == OPEN else each for each in found[0].name.split("/")) == path
        assert found[0] in group.routes.values()
