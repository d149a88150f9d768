"""examples/tensor_parallel.py: one model over several ranks says what it says on one, through kills."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import openai
import pytest
from numpy.typing import NDArray

import atomr_mp
from atomr_mp import errors
from tensor_parallel_model import HEAD, LONGEST, WEIGHTS, draw_weights, layout
from tests.serving import Server
from tests.support import DEADLINE_S, Ledger, parts_of
from tests.worlds import on_host, ready_world, start

EXAMPLE: Final = Path(__file__).parents[3] / "examples" / "tensor_parallel.py"
ACTOR: Final = f"{EXAMPLE}:TensorParallel"
PROGRAM_S: Final = 120.0
"""How long the program may take, on a busy machine."""

TEXTS: Final = ["Once upon a time", "So many as 60 heads are better than one, as long as they agree: " * 4]
LENGTH: Final = 80

pytestmark = on_host


@pytest.fixture(scope="module")
def pool() -> Iterator[atomr_mp.Pool]:
    """A pool whose world has two ranks."""
    with Ledger() as ledger, start(ledger, ACTOR, standby="hot", max_restarts=100) as pool:
        yield pool


@pytest.fixture(scope="module")
def alone(pool: atomr_mp.Pool) -> list[str]:
    """What each chat says if it is the only one."""
    return ["".join(opened(ready_world(pool), number)) for number in range(4)]


def opened(world: atomr_mp.World, number: int, ahead: int = 16) -> atomr_mp.ReplyStream:
    """Begin a chat; every other one has the likeliest tokens."""
    arguments = {"max_tokens": LENGTH, "temperature": number % 2, "seed": number}
    messages = [{"role": "user", "content": TEXTS[number // 2]}]
    return world.stream(
        "TensorParallel.chat", kwargs={"messages": messages, **arguments}, ahead=ahead, between_s=DEADLINE_S
    )


def drawn(rank: int, size: int) -> dict[str, NDArray[np.float32]]:
    """Return a rank's weights."""
    arrays: dict[str, Any] = {name: np.empty(shape, dtype) for name, (shape, dtype) in layout(size, "float32").items()}
    draw_weights(arrays, rank, size, np)
    return arrays


@pytest.mark.parametrize("size", [2, 4, 8])
def test_the_ranks_have_the_slices_of_the_whole(size: int) -> None:
    """Put together again, they are the weights of one device; a rank has whole heads."""
    whole, ranks = drawn(0, 1), [drawn(rank, size) for rank in range(size)]
    assert ranks[0]["queries"].shape[1] % HEAD == 0
    for name, (_, axis) in WEIGHTS.items():
        parts = [rank[name] for rank in ranks]
        if axis is None:
            assert all(np.array_equal(part, whole[name]) for part in parts)
        else:
            assert np.array_equal(np.concatenate(parts, axis), whole[name])


def test_all_sizes_have_the_scores_of_one_device(pool: atomr_mp.Pool) -> None:
    """But for the last digits: the sums are taken in another order. All ranks of a world have the same bits."""
    found = [ready_world(pool).call("TensorParallel.scores", text, each=True).result(DEADLINE_S) for text in TEXTS]
    assert all(np.array_equal(first, second) for first, second in found)
    for size in (1, 4):
        with Ledger() as ledger, start(ledger, ACTOR, size) as other:
            for text, (scores, _) in zip(TEXTS, found, strict=True):
                same = ready_world(other).call("TensorParallel.scores", text).result(DEADLINE_S)
                np.testing.assert_allclose(same, scores, rtol=0, atol=1e-4)


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("read", [0, 30])
def test_chats_go_on_when_a_rank_is_killed(pool: atomr_mp.Pool, alone: list[str], rank: int, read: int) -> None:
    """At their begin and in the middle: each text is the one of an undisturbed world. No weights are drawn again."""
    world = ready_world(pool)
    resident = pool.status().resident_bytes
    chats = [opened(world, number, ahead=4) for number in range(4)]
    begun = [[next(chat) for _ in range(read)] for chat in chats]
    os.kill(pool.devices[rank].pid, signal.SIGKILL)
    assert ["".join([*parts, *chat]) for parts, chat in zip(begun, chats, strict=True)] == alone
    assert ready_world(pool).epoch > 1
    assert pool.status().resident_bytes == resident


def test_a_chat_that_is_too_long_fails_alone(pool: atomr_mp.Pool, alone: list[str]) -> None:
    """The epoch goes on, and others with it."""
    world = ready_world(pool)
    epoch = world.epoch
    chat = opened(world, 3, ahead=4)
    begun = [next(chat)]
    messages = [{"role": "user", "content": "x" * LONGEST}]
    parts, error = parts_of(world.stream("TensorParallel.chat", messages))
    assert parts == []
    assert isinstance(error, errors.InvalidRequest)
    assert f"{LONGEST} tokens" in str(error)
    assert "".join([*begun, *chat]) == alone[3]
    assert world.epoch == epoch


def test_openai_s_client_gets_the_same_text(alone: list[str]) -> None:
    """By the command that the example names."""
    options = ("--gpus", "2", "--world", "0,1", "--standby", "hot")
    with (
        Ledger() as ledger,
        Server(ledger, *options, actor=ACTOR) as server,
        openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key=server.token) as client,
    ):
        answer = client.chat.completions.create(
            model="TensorParallel",
            messages=[{"role": "user", "content": TEXTS[0]}],
            max_tokens=LENGTH,
            temperature=1,
            seed=1,
        )
    assert answer.choices[0].message.content == alone[1]
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (len(TEXTS[0]) + 1, LENGTH)


@pytest.mark.timeout(PROGRAM_S + 20)
def test_the_program_ends_well() -> None:
    """It compares the texts and the scores itself."""
    ran = subprocess.run([sys.executable, EXAMPLE], capture_output=True, text=True, timeout=PROGRAM_S, check=False)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines()[-1] == "each text is the one of the undisturbed world"
