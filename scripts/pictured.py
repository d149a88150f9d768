"""An actor whose pool `scripts/watch-pictures` shows: it answers after some time, and one request is deadly."""

from __future__ import annotations

import os
import random
import signal
import time

from atomr_mp_workers import Actor, method


class Vision(Actor):
    """Looks at pictures."""

    @method(idempotent=True)
    def embed(self, image: int) -> float:
        """Return an embedding's first number."""
        time.sleep(random.uniform(0.002, 0.006))
        return image / 7

    @method(idempotent=True)
    def classify(self, image: int) -> str:
        """Return a picture's class; fail for some."""
        time.sleep(random.uniform(0.004, 0.02))
        if image % 40 == 7:
            raise ValueError(f"picture {image} is empty")
        return f"class {image % 10}"

    @method(idempotent=True)
    def render(self, scene: str) -> str:
        """Return a picture of a scene; a broken one ends the process, as a fault of native code does."""
        if scene == "broken":
            os.kill(os.getpid(), signal.SIGSEGV)
        return scene
