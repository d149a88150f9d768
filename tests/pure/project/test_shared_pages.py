"""`scripts/shared-pages` finds ways of writing and reading that tear words of shared memory, and no others."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from tests.pure.project.linting import findings_of

SCRIPT: Final = Path(__file__).parents[3] / "scripts" / "shared-pages"

MAPPED: Final = "import mmap\nmemory = mmap.mmap(-1, 4096)\n"

TEARING: Final = {
    "a packed head": "HEAD.pack_into(memory, 0, 1, 2)",
    "packed by the module": 'struct.pack_into("=Q", memory, 8, 1)',
    "a packed head, read": "number = HEAD.unpack_from(memory)[0]",
    "read in the head of a loop": "for each in HEAD.unpack_from(memory):\n    print(each)",
    "bytes of a number": 'memory[8:16] = (1).to_bytes(8, "little")',
    "bytes of a number, among others": 'first, memory[8:16] = 1, (1).to_bytes(8, "little")',
    "bytes of a number, read": 'number = int.from_bytes(memory[8:16], "little")',
    "a packed head, read from a copy": "number, length = HEAD.unpack(memory[:16])",
    "a copy between views": 'memoryview(memory).cast("Q")[:2] = other',
    "words of another size": 'words = memoryview(memory).cast("I")',
    "a copy by the C library": "ctypes.memmove(address, source, 8)",
    "inside of a function": "def write():\n    if True:\n        memory[0:8] = b'12345678'",
    "with an empty reason": "memory[0:8] = b'12345678'  # no word:",
    "with the reason at another line": "memory[0:8] = b'12345678'\nother = 1  # no word: text",
}
GOOD: Final = {
    "a word": 'memoryview(memory).cast("Q")[1] = 7',
    "a word, read": 'number = memoryview(memory).cast("Q")[1]',
    "several words, read one by one": 'first, second = memoryview(memory).cast("Q")[:2].tolist()',
    "a byte": "memory[8] = 1",
    "with a reason": "memory[0:8] = b'12345678'  # no word: text",
    "with a reason in the same statement": "memory[0:8] = (  # no word: text\n    b'12345678'\n)",
}


def findings(file: Path, source: str) -> str:
    """Return what the script says of a module."""
    file.write_text(source + "\n", encoding="utf-8")
    return findings_of(SCRIPT, file)


@pytest.mark.parametrize("name", TEARING)
def test_a_way_that_tears_words_is_found(tmp_path: Path, name: str) -> None:
    """In modules that map memory, and in those that view it as words."""
    assert len(findings(tmp_path / "module.py", MAPPED + TEARING[name]).splitlines()) == 1
    viewed = 'words = given.cast("Q")\n' + TEARING[name]
    assert len(findings(tmp_path / "module.py", viewed).splitlines()) == 1


@pytest.mark.parametrize("name", GOOD)
def test_whole_words_and_bytes_with_a_reason_pass(tmp_path: Path, name: str) -> None:
    """A single item is one instruction."""
    assert not findings(tmp_path / "module.py", MAPPED + GOOD[name])


@pytest.mark.parametrize("name", [name for name in TEARING if "words" not in name and "view" not in name])
def test_memory_of_ones_own_may_be_packed(tmp_path: Path, name: str) -> None:
    """Messages are bytes in a process's own memory."""
    assert not findings(tmp_path / "module.py", "memory = bytearray(99)\n" + TEARING[name])
