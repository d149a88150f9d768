"""What `scripts/soak.py` calls: gives back what it gets."""

from __future__ import annotations

from typing import Any

from atomr_mp_workers import Actor, method


class Echo(Actor):
    """Gives back what it gets."""

    @method
    def on_loop(self, value: Any) -> Any:
        """Give it back, on the loop."""
        return value

    @method(thread=True)
    def on_thread(self, value: Any) -> Any:
        """Give it back, on the actor's thread."""
        return value

    @method(idempotent=True)
    def number(self, value: int) -> int:
        """Give it back; may be sent again."""
        return value
