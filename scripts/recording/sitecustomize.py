"""Has processes recorded that tests start, such as workers. Python imports it at its start, from PYTHONPATH."""

from __future__ import annotations

import os

test = os.environ.get("ATOMR_MP_RECORDED_TEST", "")
if test:
    import errno

    import executed_code

    seen: set[str] = set()
    waiting: list[str] = []

    def note(name: str) -> None:
        """Write a function down as soon as it runs, for a worker may end at any time."""
        if name not in seen:
            seen.add(name)
            waiting.append(name)
            try:
                executed_code.write(test, waiting)
                waiting.clear()
            except OSError as error:
                if error.errno != errno.EMFILE:  # some tests leave no descriptor: with the next one
                    raise

    executed_code.watch(note)
