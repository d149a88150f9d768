"""OpenAI's form over a world with continuous batching: many clients' texts in one step, through a member's end."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

import openai
import pytest

import atomr_mp
from tests.serving import Server
from tests.support import ACTORS, DEADLINE_S, Ledger
from tests.worlds import on_host

ACTOR = f"{ACTORS}/worldly_chat.py:WorldlyChat"
MODEL = "WorldlyChat"
CLIENTS = 6

pytestmark = on_host


@pytest.fixture(scope="module")
def serving() -> Iterator[tuple[Server, atomr_mp.Pool]]:
    """A server over a pool with a world of two ranks."""
    worlds = {"tp": {"devices": [0, 1], "actors": [MODEL]}}
    with (
        Ledger() as ledger,
        ledger.start(ACTOR, gpus=2, worlds=worlds, standby="hot") as pool,
        Server(ledger, actor=None) as server,
    ):
        pool.world("tp").wait_ready(DEADLINE_S)
        yield server, pool


def messages(count: int, number: int) -> Any:
    """Return what asks for so many letters."""
    return [{"role": "user", "content": f"{count} letters, {'abcdefgh'[number]}"}]


def test_many_texts_share_steps_and_go_on_through_a_kill(serving: tuple[Server, atomr_mp.Pool]) -> None:
    """Each is the one that its client gets alone, before and while a member is killed."""
    server, pool = serving
    world = pool.world("tp")
    alone = [
        "".join(world.stream(f"{MODEL}.chat", messages(300, number), between_s=DEADLINE_S)) for number in range(CLIENTS)
    ]
    assert [len(text) for text in alone] == [300] * CLIENTS
    assert world.call(f"{MODEL}.together").result() == 1
    found: dict[int, str] = {}
    begun = threading.Barrier(CLIENTS + 1)

    def chat(number: int) -> None:
        with openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key=server.token, max_retries=0) as made:
            parts = iter(made.chat.completions.create(model=MODEL, messages=messages(300, number), stream=True))
            text = ""
            while len(text) < 20:
                text += next(parts).choices[0].delta.content or ""
            begun.wait(DEADLINE_S)
            for part in parts:
                text += part.choices[0].delta.content or ""
            found[number] = text

    threads = [threading.Thread(target=chat, args=(number,)) for number in range(CLIENTS)]
    for thread in threads:
        thread.start()
    begun.wait(DEADLINE_S)
    os.kill(pool.devices[1].pid or 0, signal.SIGKILL)
    for thread in threads:
        thread.join(DEADLINE_S)
    assert [found.get(number) for number in range(CLIENTS)] == alone
    assert world.call(f"{MODEL}.together").result(DEADLINE_S) > 1
    with openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key=server.token) as made:
        answer = made.chat.completions.create(model=MODEL, messages=messages(300, 3))
        assert answer.choices[0].message.content == alone[3]
