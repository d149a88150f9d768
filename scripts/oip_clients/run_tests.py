"""Runs a module of Triton's tests, and writes how each test went; with the interpreter of the clients' environment."""

from __future__ import annotations

import json
import sys
import unittest
from pathlib import Path
from typing import Any


class Told(unittest.TestResult):
    """Keeps why tests have failed, by name."""

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[str, str] = {}

    def startTest(self, test: unittest.TestCase) -> None:  # noqa: N802 - unittest's name
        """Expect it to pass."""
        super().startTest(test)
        self.found.setdefault(_name(test), "")

    def addError(self, test: unittest.TestCase, err: Any) -> None:  # noqa: N802
        """Keep why."""
        super().addError(test, err)
        self.found[_name(test)] = repr(err[1])[:500]

    def addFailure(self, test: unittest.TestCase, err: Any) -> None:  # noqa: N802
        """Keep why."""
        super().addFailure(test, err)
        self.found[_name(test)] = repr(err[1])[:500]

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:  # noqa: N802
        """Keep it as one that has not passed."""
        super().addSkip(test, reason)
        self.found[_name(test)] = f"skipped: {reason}"

    def addSubTest(self, test: unittest.TestCase, subtest: unittest.TestCase, err: Any) -> None:  # noqa: N802
        """Keep why a part has failed."""
        super().addSubTest(test, subtest, err)
        if err is not None:
            self.found[_name(test)] = repr(err[1])[:500]


def _name(test: unittest.TestCase) -> str:
    return str(getattr(test, "_testMethodName", test))


def main(module: str, output: str, *left_out: str) -> None:
    """Run a module's tests, but for some."""
    sys.path.insert(0, ".")
    told = Told()
    waiting: list[Any] = [unittest.defaultTestLoader.loadTestsFromName(module)]
    while waiting:
        each = waiting.pop()
        if isinstance(each, unittest.TestSuite):
            waiting.extend(each)
        elif _name(each) in left_out:
            told.found[_name(each)] = "not run"
        else:
            unittest.TestSuite([each]).run(told)
    Path(output).write_text(json.dumps(told.found))


if __name__ == "__main__":
    main(*sys.argv[1:])
