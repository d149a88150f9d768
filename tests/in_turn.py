"""Cases of a test that are many and cost next to nothing each: one test runs them in turn, and tells all that fail."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any, Final

import pytest

PARAM: Final = type(pytest.param())


def in_turn(names: str, cases: Iterable[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Run a test with each of some cases, as one test, and name all cases that failed.

    Collecting a case costs each process that runs tests more than most cases do. All cases share the test's fixtures.

    Args:
        names: The parameters that a case has values for, as `pytest.mark.parametrize` takes them.
        cases: The cases: values, or a tuple of them where there are several names, or what `pytest.param` returns.
    """
    given, found = [name.strip() for name in names.split(",")], list(cases)

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(test)

        def run(**fixtures: Any) -> None:
            failures: list[BaseException] = []
            for case in found:
                values = case.values if isinstance(case, PARAM) else case if len(given) > 1 else (case,)
                try:
                    test(**fixtures, **dict(zip(given, values, strict=True)))
                except (Exception, pytest.fail.Exception) as failure:  # noqa: BLE001 - told below
                    failure.add_note(f"with {names} = {case!r}"[:1000])
                    failures.append(failure)
            if failures:
                raise BaseExceptionGroup(f"{len(failures)} of {len(found)} cases", failures)

        assert found, "no case at all"
        functools.update_wrapper(run, test)
        del run.__wrapped__  # type: ignore[attr-defined]  # pytest would look at its parameters
        left = [each for name, each in signature.parameters.items() if name not in given]
        run.__signature__ = signature.replace(  # type: ignore[attr-defined]
            parameters=[each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in left]
        )
        return run

    return decorate
