from __future__ import annotations

import json
import logging
import sys
import unicodedata
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from atomr_mp.protocol.raised import MARK
from atomr_mp.serve.server_log import JsonFormatter, TextFormatter

TEXTS = st.text() | st.sampled_from(
    ["a\nb", "a\r\nb", f"a\n{MARK}b", "\x1b[31m", "%s %d", "\ud800", "\u2028", "é" * 9000]
)
FACTS = st.dictionaries(
    st.sampled_from(["device", "id", "output"]), TEXTS | st.integers() | st.none() | st.binary(max_size=3)
)


def _record(
    text: str, arguments: tuple[Any, ...], facts: dict[str, Any] | None, raised: str | None
) -> logging.LogRecord:
    """Return a record, of ours if it has facts and else of a library, which may log anything."""
    info = None
    if raised is not None:
        try:
            raise ValueError(raised)
        except ValueError:
            info = sys.exc_info()
    record = logging.LogRecord("a.library", logging.WARNING, __file__, 1, text, arguments, info)
    if facts is not None:
        vars(record).update(event="told", facts=facts)
    return record


@given(TEXTS, st.just(()) | st.tuples(TEXTS), st.none() | FACTS, st.none() | TEXTS)
def test_every_record_is_one_line_whoever_has_made_it(
    text: str, arguments: tuple[Any, ...], facts: dict[str, Any] | None, raised: str | None
) -> None:
    """Of text, with marked lines behind it; or of JSON, which can be read. Neither has control characters."""
    record = _record(text, arguments, facts, raised)
    first, *more = TextFormatter().format(record).split("\n")
    assert all(line.startswith(MARK) for line in more)
    for line in (first, *more):
        assert not any(unicodedata.category(each) in {"Cc", "Cs", "Zl", "Zp"} for each in line)
    line = JsonFormatter().format(record)
    assert line.isascii()
    assert "\n" not in line
    found = json.loads(line)
    assert (found["level"], found["event"]) == ("warning", "log" if facts is None else "told")
    assert found.get("device", None) == (json.loads(json.dumps((facts or {}).get("device"), default=str)))
    assert raised is None or any(", in _record" in each for each in found["traceback"])
