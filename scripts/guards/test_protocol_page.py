"""docs/protocol.md says what the code does: limits, states, examples.

`scripts/reference-tables messages` prints messages and limits from the code.
"""

from __future__ import annotations

import functools
import re
import subprocess
import sys
from typing import Final

from atomr_mp.protocol import values
from atomr_mp.protocol.messages import devices, session
from guards.pages import ROOT

DOC: Final = (ROOT / "docs" / "protocol.md").read_text(encoding="utf-8")
MANY: Final = 5


def section(heading: str) -> str:
    """Return the text below a heading, up to the next one."""
    found = re.search(rf"^#+ {re.escape(heading)}\n(.*?)(?=^#|\Z)", DOC, re.MULTILINE | re.DOTALL)
    assert found, f"docs/protocol.md has no heading {heading!r}"
    return found[1]


@functools.cache
def printed() -> str:
    """Return the messages and limits as the script prints them."""
    command = [sys.executable, str(ROOT / "scripts" / "reference-tables"), "messages"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def example(name: str) -> bytes:
    """Return the bytes of an example."""
    found = re.search(rf"<!-- {name} -->\n```\n(.*?)\n```", DOC, re.DOTALL)
    assert found
    return bytes.fromhex(found[1])


def test_the_limits_that_the_page_names_are_printed() -> None:
    """Names in capitals, but for those of ZeroMQ."""
    named = set(re.findall(r"`((?!ZMQ_|PLAIN)[A-Z]+_[A-Z_]+)`", DOC))
    assert named <= set(re.findall(r"^\| `([A-Z_]+)` \|", printed(), re.MULTILINE))
    assert len(named) > MANY


def test_every_state_of_a_device_is_described() -> None:
    """A client in another language knows what to do with calls in each state."""
    found = re.search(r"^- `state` .+: (Send calls .+)$", printed(), re.MULTILINE)
    assert found
    text = found[1]
    assert all(f"`{state.value}`" in text for state in devices.DeviceState)


def test_every_element_type_is_described() -> None:
    """The list of element types is complete, ranges by their ends."""
    named = set(re.findall(r"`((?:bool|u?int|b?float|complex)\d*(?:_\w+)?)`", section("Values")))
    ranges = {f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)}
    assert named | ranges == values.DTYPES


def test_the_examples_are_real() -> None:
    """The bytes on the page are what the code reads and writes."""
    assert list(map(session.from_client, session.Framing().feed(example("hello")))) == [session.Hello(2, "abc")]
    array = values.Decoder[object]().decode(example("array"))
    assert repr(array) == "array([1, 2], dtype=int16)"
    assert values.encode(array) == (example("array"), [], [])
