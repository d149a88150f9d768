"""examples/chat.py: a transformer with a cache, many chats in a step, says the same through kills."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

import atomr_mp
from atomr_mp import errors
from tests.support import Ledger, parts_of, wait_generation

pytest.importorskip("torch", reason="examples/chat.py needs torch")

from chat import SLOTS, Prompt  # after the look whether torch is there

EXAMPLE: Final = Path(__file__).parents[3] / "examples" / "chat.py"
LOADING_S: Final = 100.0
"""How long a worker may take to import torch, on a busy machine."""

PROGRAM_S: Final = 300.0
"""How long the program may take: four of its processes import torch."""

PROMPTS: Final = [Prompt(f"Chat {number}", 40 + number, seed=number) for number in range(6)]


@pytest.fixture(scope="module")
def pool() -> Iterator[atomr_mp.Pool]:
    """One pool for all tests."""
    with Ledger() as ledger, ledger.start(f"{EXAMPLE}:Chat") as pool:
        yield pool


@pytest.fixture(scope="module")
def alone(pool: atomr_mp.Pool) -> list[str]:
    """What each chat says if it is the only one in its steps."""
    return ["".join(opened(pool, prompt)) for prompt in PROMPTS]


def opened(pool: atomr_mp.Pool, prompt: Prompt, ahead: int = 16) -> atomr_mp.ReplyStream:
    """Begin a chat."""
    return pool.stream("Chat.chat", prompt, ahead=ahead, first_s=LOADING_S, between_s=LOADING_S)


def test_chats_say_what_they_ask_for(alone: list[str]) -> None:
    """As many characters as asked for, and each another text."""
    assert [len(text) for text in alone] == [prompt.length for prompt in PROMPTS]
    assert len({text[:40] for text in alone}) == len(PROMPTS)


def test_chats_that_share_steps_say_the_same(pool: atomr_mp.Pool, alone: list[str]) -> None:
    """Though some begin while others are in their middle, and some have no room."""
    first = [opened(pool, prompt, ahead=4) for prompt in PROMPTS[:3]]
    begun = [[next(chat) for _ in range(10)] for chat in first]
    second = [opened(pool, prompt) for prompt in PROMPTS[3:]]
    assert ["".join([*parts, *chat]) for parts, chat in zip(begun, first, strict=True)] == alone[:3]
    assert ["".join(chat) for chat in second] == alone[3:]


@pytest.mark.parametrize("read", [0, 20])
def test_chats_go_on_when_their_worker_is_killed(pool: atomr_mp.Pool, alone: list[str], read: int) -> None:
    """Before a reader has read anything, and in the middle: each text is the one of an undisturbed worker."""
    device = pool.devices[0]
    chats = [opened(pool, prompt, ahead=4) for prompt in PROMPTS]
    begun = [[next(chat) for _ in range(read)] for chat in chats]
    os.kill(device.pid, signal.SIGKILL)
    assert ["".join([*parts, *chat]) for parts, chat in zip(begun, chats, strict=True)] == alone
    assert wait_generation(pool, device.generation + 1).generation == device.generation + 1


def test_a_text_that_is_too_long_fails_alone(pool: atomr_mp.Pool, alone: list[str]) -> None:
    """Others of its step go on."""
    chat = opened(pool, PROMPTS[0], ahead=4)
    begun = [next(chat)]
    parts, error = parts_of(opened(pool, Prompt("x" * 500, 13)))
    assert parts == []
    assert isinstance(error, errors.InvalidRequest)
    assert "512 characters" in str(error)
    assert len("".join(opened(pool, Prompt("x" * 500, 12)))) == 12
    assert "".join([*begun, *chat]) == alone[0]


def test_readers_that_leave_give_their_slots_back(pool: atomr_mp.Pool, alone: list[str]) -> None:
    """All slots are taken, and free again."""
    for _ in range(2):
        chats = [opened(pool, Prompt("All", 400, seed=number), ahead=1) for number in range(SLOTS)]
        assert all(next(chat) for chat in chats)
        for chat in chats:
            chat.close()
    assert "".join(opened(pool, PROMPTS[0])) == alone[0]


@pytest.mark.timeout(PROGRAM_S + 20)
def test_the_program_ends_well() -> None:
    """It compares the texts itself."""
    ran = subprocess.run([sys.executable, EXAMPLE], capture_output=True, text=True, timeout=PROGRAM_S, check=False)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines()[-1] == "each text is the one of the undisturbed worker"
