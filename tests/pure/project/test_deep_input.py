"""Whoever reads JSON, msgpack or TOML knows that it may be nested too deeply."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import atomr_mp
import atomr_mp_workers

PACKAGES = [Path(package.__path__[0]) for package in (atomr_mp, atomr_mp_workers)]
OF_DECODERS = {"DecodeError", "MsgspecError", "TOMLDecodeError"}


def names(node: ast.AST | None) -> set[str]:
    """Return the last parts of the names in an expression."""
    found = list(ast.walk(node)) if node is not None else []
    attributes = {each.attr for each in found if isinstance(each, ast.Attribute)}
    return attributes | {each.id for each in found if isinstance(each, ast.Name)}


def incomplete(tree: ast.AST) -> Iterator[int]:
    """Yield the lines of what catches a decoder's errors, but not that of nesting."""
    for node in ast.walk(tree):
        caught: list[ast.AST | None] = []
        if isinstance(node, ast.Try):
            caught += [each.type for each in node.handlers]
        elif isinstance(node, ast.Call) and "suppress" in names(node.func):
            caught += node.args
        found = set().union(*map(names, caught))
        if found & OF_DECODERS and not found & {"RecursionError", "Exception", "BaseException"}:
            assert isinstance(node, ast.stmt | ast.expr)
            yield node.lineno


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.name)
def test_who_catches_a_decoders_errors_catches_that_of_nesting(package: Path) -> None:
    """Deep input is a `RecursionError` of msgspec and of tomllib, which none of their own errors covers."""
    found = [
        f"{file}:{line}"
        for file in package.rglob("*.py")
        for line in incomplete(ast.parse(file.read_text(encoding="utf-8")))
    ]
    assert not found
