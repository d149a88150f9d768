"""Plugin of pytest that records what each test executes, the making of its fixtures included."""

from __future__ import annotations

import os
import sys
from collections.abc import Generator
from typing import Final

import executed_code
import pytest

now: Final[set[str]] = set()
ever: Final[set[str]] = set()
in_tests: Final[set[str]] = set()
again: Final[set[str]] = set()
tests: Final = tuple(os.environ[executed_code.TESTS].split(","))
restart: Final = executed_code.watch(now.add)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Write down what runs, and begin anew: with what functions keep, others would not run again."""
    write()
    file, _, rest = item.nodeid.partition("::")
    name = f"{file.removesuffix('.py').replace('/', '.')}::{rest}"
    if matters := name.startswith(tests):
        os.environ[executed_code.TEST] = name
        forget()
    restart()
    try:
        return (yield)
    finally:
        os.environ.pop(executed_code.TEST, None)
        if matters:
            executed_code.write(name, now)
        executed_code.write(executed_code.AGAIN, now & in_tests - again)
        again.update(now & in_tests)
        in_tests.update(now)
        write()


def write() -> None:
    """Write what has never run before."""
    executed_code.write(executed_code.EVER, now - ever)
    ever.update(now)
    now.clear()


def forget() -> None:
    """Clear the caches of the product's functions."""
    for name, module in list(sys.modules.items()):
        if name.startswith(("atomr_mp.protocol.", "atomr_mp_workers.libraries.")):
            for value in list(vars(module).values()):
                if getattr(value, "__module__", "") == name and hasattr(value, "cache_clear"):
                    value.cache_clear()
