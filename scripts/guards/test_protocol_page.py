"""docs/protocol.md says what the code does: limits, states, examples.

`scripts/reference-tables messages` prints the messages from the code.
"""

from __future__ import annotations

import re
import subprocess
import sys
from typing import Final

from atomr_mp.protocol import codec, values
from atomr_mp.protocol.flow import flight, limits
from atomr_mp.protocol.messages import data, devices, remote, session
from atomr_mp.protocol.zmtp import framing, stream
from atomr_mp.supervisor.sessions import sessions
from atomr_mp.transport import session as session_transport
from guards.pages import ROOT

DOC: Final = (ROOT / "docs" / "protocol.md").read_text(encoding="utf-8")
LIMITS_FROM: Final = (remote, codec, data, flight, limits, framing, values, stream, sessions, session_transport)


def section(heading: str) -> str:
    """Return the text below a heading, up to the next one."""
    found = re.search(rf"^#+ {re.escape(heading)}\n(.*?)(?=^#|\Z)", DOC, re.MULTILINE | re.DOTALL)
    assert found, f"docs/protocol.md has no heading {heading!r}"
    return found[1]


def rows(text: str) -> list[list[str]]:
    """Return the cells of the tables in a text, without their headings."""
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:1] == "|"]
    rules = [number for number, row in enumerate(cells) if set("".join(row)) <= set("-")]
    return [row for number, row in enumerate(cells) if number not in rules and number + 1 not in rules]


def example(name: str) -> bytes:
    """Return the bytes of an example."""
    found = re.search(rf"<!-- {name} -->\n```\n(.*?)\n```", DOC, re.DOTALL)
    assert found
    return bytes.fromhex(found[1])


def test_the_limits_are_those_of_the_code() -> None:
    """Every limit in the table has the value that is enforced."""
    for name, value, _ in rows(section("Limits")):
        found = {getattr(module, name.strip("`")) for module in LIMITS_FROM if hasattr(module, name.strip("`"))}
        assert found == {float(value)}, name


def test_every_state_of_a_device_is_described() -> None:
    """A client in another language knows what to do with calls in each state."""
    command = [sys.executable, str(ROOT / "scripts" / "reference-tables"), "messages"]
    messages = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = re.search(r"^- `state` .+: (Send calls .+)$", messages, re.MULTILINE)
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
