from __future__ import annotations

import os
import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from atomr_mp.process.files import follow
from atomr_mp.process.files.follow import FollowedLog
from atomr_mp.process.files.logs import RotatedOutput

STEP = st.one_of(
    st.binary(max_size=40).map(lambda data: data.replace(b"\0", b"\n")),
    st.sampled_from(["look", "rotate"]),
)


@settings(max_examples=60)
@given(st.lists(STEP, max_size=40), st.integers(1, 40))
def test_every_byte_that_is_written_is_seen_once_or_counted(steps: list[bytes | str], most: int) -> None:
    """Across rotations, with a look between two of them; and lines are whole, however they were written."""
    before = follow.MOST_BYTES, follow.MOST_HALF_BYTES
    follow.MOST_BYTES, follow.MOST_HALF_BYTES = most, most  # type: ignore[misc]
    try:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "device-0.log"
            with RotatedOutput(path, max_bytes=1, keep=2) as output:
                os.write(output.fileno(), b"from before\n")
                log = FollowedLog(path)
                written, lines, skipped = b"", list[bytes](), 0
                for step in [*steps, b"\n", "look"]:
                    if isinstance(step, bytes):
                        os.write(output.fileno(), step)
                        written += step
                        continue
                    found, more = log.more()
                    if more:
                        assert sum(len(line) + 1 for line in lines) + skipped <= len(written)
                    lines += found
                    skipped += more
                    if step == "rotate":
                        output.check()
        if not skipped and max(map(len, written.split(b"\n"))) <= most:
            assert b"\n".join(lines) + b"\n" == written
        # Of a line that was too long to wait for, the end is a line of its own.
        assert len(b"".join(lines)) + skipped <= len(written)
        assert len(b"".join(lines)) + skipped + len(lines) + written.count(b"\n") >= len(written)
    finally:
        follow.MOST_BYTES, follow.MOST_HALF_BYTES = before  # type: ignore[misc]
