"""The error of a session that has ended, as all calls get it."""

from __future__ import annotations

import ast
import inspect
import pathlib
from typing import Final

import pytest

import atomr_mp
from atomr_mp import errors

ROOT: Final = pathlib.Path(inspect.getfile(atomr_mp)).parent
FILES: Final = sorted([ROOT / "pool.py", *(ROOT / "client").rglob("*.py"), *(ROOT / "tunnel").rglob("*.py")])


def test_a_loss_is_told_again_as_what_it_was() -> None:
    """A session that has ended in a living pool is not a lost pool, for whichever call."""
    told = errors.SessionLost("key bob was revoked").again("it ran: ", maybe_executed=False)
    assert (type(told), told.message, told.maybe_executed) == (
        errors.SessionLost,
        "it ran: key bob was revoked",
        False,
    )


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_no_loss_is_made_of_another_one_s_text(file: pathlib.Path) -> None:
    """That would make a lost pool of an ended session: `PoolLost.again` keeps the kind."""
    made = [
        node.lineno
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "errors.PoolLost"
        if node.args and ast.unparse(node.args[0]).endswith(("lost.message", "lost).message", "told.message"))
    ]
    assert made == []
