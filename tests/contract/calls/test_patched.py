"""Contract of processes in which gevent or eventlet has replaced waits."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable

import pytest

import atomr_mp
from atomr_mp import errors


@pytest.mark.parametrize(
    ("module", "noted", "library"),
    [("gevent.monkey", "saved", "gevent"), ("eventlet.patcher", "already_patched", "eventlet")],
)
@pytest.mark.parametrize("begin", [atomr_mp.start, atomr_mp.connect])
def test_a_pool_is_refused_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, begin: Callable[[], atomr_mp.Pool], module: str, noted: str, library: str
) -> None:
    """Neither library is imported for it; one that is imported, and has patched nothing, does no harm."""
    patcher = types.ModuleType(module)
    patcher.__dict__[noted] = {"socket": {}, "threading": {}}
    monkeypatch.setitem(sys.modules, module, patcher)
    with pytest.raises(errors.ConfigurationError, match=rf"{library} has patched socket, threading of the standard"):
        begin()
    patcher.__dict__[noted] = {"ssl": {}}
    with pytest.raises(errors.PoolUnreachable):
        atomr_mp.connect("there-is-no-such-pool")
