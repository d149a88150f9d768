"""An actor that takes and gives texts and bytes of any size."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from atomr_mp_workers import Actor, Batch, method
from tests.actors import probe


class Texts(Actor):
    """Returns what it gets, or its sizes."""

    @method(idempotent=True)
    def images(self, images: list[bytes], names: list[str] | None = None) -> list[bytes]:
        """Return images, each behind its name."""
        return [name.encode() + image for name, image in zip(names or [""] * len(images), images, strict=True)]

    @method(idempotent=True)
    def text(self, text: str) -> str:
        """Return a text backwards."""
        return text[::-1]

    @method(idempotent=True)
    def anything(self, value: Any) -> Any:
        """Return it."""
        return {"it": value}

    @method(thread=True, idempotent=True)
    def parts(self, sizes: list[int], kind: str) -> Iterator[str | bytes]:
        """Yield texts or bytes of these sizes, and note each."""
        for size in sizes:
            probe.note("made")
            yield "é" * (size // 2) if kind == "text" else bytes(size)

    @method(batch=Batch(max_items=64, max_wait_s=0, rows=True), thread=True, idempotent=True)
    def lengths(self, images: list[bytes]) -> list[int]:
        """Return the length of each."""
        return list(map(len, images))
