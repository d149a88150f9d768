from __future__ import annotations

import functools
from typing import Final

import pytest

from tests.cases.elementwise_cases import REQUESTS, assert_agrees, requests
from tests.direct import assert_all_agree
from tests.gpu import on_device

pytestmark = on_device.NEEDS_CUPY

run: Final = functools.partial(on_device.run, "elementwise")


@pytest.mark.parametrize("name", REQUESTS)
def test_results_are_numpys(name: str) -> None:
    """Of every type, however arrays lie, broadcast and in place; nothing else is written."""
    assert_all_agree(requests(REQUESTS[name]), 60, assert_agrees, run)
