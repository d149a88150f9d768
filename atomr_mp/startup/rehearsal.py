"""Checks what a start would find out only while it starts, for `atomr-mp config`: without starting, or importing."""

from __future__ import annotations

import ast
import os
import socket
from pathlib import Path
from typing import Final

from atomr_mp import errors
from atomr_mp.supervision.settings import OFF
from atomr_mp.supervisor.plan import Plan

DYNAMIC: Final = frozenset({"exec", "eval", "globals", "setattr", "vars", "__getattr__"})
"""Names by which a module may get a class that its text does not name."""


def rehearse(plan: Plan) -> None:
    """Check that the address is this machine's, and that files name the actors' classes.

    Raises:
        ConfigurationError: `start` would fail.
    """
    if plan.settings.listen != OFF:
        _check_address(plan.settings.listen)
    for actor in plan.actors:
        location, _, name = actor.target.rpartition(":")
        if location.endswith(".py"):
            _check_class(Path(location), name)


def _check_address(address: str) -> None:
    """Bind a free port at an address, since a pool that runs may listen at its own."""
    from atomr_mp.supervisor.care import relay

    host, _ = relay.parse(address)
    try:
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM) as binding:
            binding.bind((host, 0))
    except OSError as error:
        raise errors.ConfigurationError(
            f"listen = {address!r}: nothing can listen there: {os.strerror(error.errno or 0)}"
        ) from error


def _check_class(path: Path, name: str) -> None:
    try:
        tree = ast.parse(path.read_bytes(), str(path))
    except (SyntaxError, ValueError) as error:
        raise errors.ConfigurationError(f"the actor's file {path} cannot be read as Python: {error}") from error
    except OSError as error:
        raise errors.ConfigurationError(f"the actor's file {path} cannot be read: {error.strerror}") from error
    classes = [node.name for node in tree.body if isinstance(node, ast.ClassDef)]
    named = {word for node in ast.walk(tree) for word in _words(node)}
    if name not in named and not named & {*DYNAMIC, "*"}:
        raise errors.ConfigurationError(f"{path} has no {name!r}; its classes are: {', '.join(classes) or 'none'}")


def _words(node: ast.AST) -> tuple[str, ...]:
    """Return the names and texts in a node by which a module may get an attribute."""
    match node:
        case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.Name(id=name) | ast.Constant(value=str(name)):
            return (name,)
        case ast.alias(name=name, asname=other):
            return (other or name,)
    return ()
