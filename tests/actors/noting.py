"""An actor that leaves a line for each run, which outlives its process."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final

from atomr_mp_workers import Actor, method

LEDGER: Final = Path(os.environ["ATOMR_MP_TEST"])


class Noting(Actor):
    """Notes what runs."""

    @method(resend="unstarted")
    def once(self, tag: str) -> str:
        """Run at most once."""
        return _note(tag)

    @method(idempotent=True)
    def again(self, tag: str) -> str:
        """Run any number of times."""
        return _note(tag)

    @method(idempotent=True)
    def same(self, value: Any) -> Any:
        """Return the argument."""
        return value

    @method
    def hold(self, gate: str, tag: str) -> str:
        """Note it, and wait at a gate."""
        _note(tag)
        with Path(f"{gate}.here").open("ab", buffering=0) as here:
            here.write(b"%d\n" % os.getpid())
        with Path(f"{gate}.go").open("rb", buffering=0) as go:
            go.read(1)
        return tag


def _note(tag: str) -> str:
    with (LEDGER / "runs").open("ab", buffering=0) as runs:
        runs.write(f"{tag}\n".encode())
    return tag
