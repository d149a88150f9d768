from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from tests.serving import Server
from tests.support import Ledger

pytest.importorskip("httptools")
openai: Any = pytest.importorskip("openai")


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """A server that the tests share."""
    with Ledger() as ledger, Server(ledger) as own:
        yield own


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[Any]:
    """OpenAI's own client."""
    with openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key=server.token, max_retries=0) as own:
        yield own


def test_models_are_the_actors_that_have_such_methods(client: Any) -> None:
    """The model's name is the actor's."""
    assert [model.id for model in client.models.list()] == ["Served"]
    assert client.models.retrieve("Served").owned_by == "atomr-mp"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("Other")


@pytest.mark.parametrize("form", [{}, {"encoding_format": "float"}])
def test_embeddings_of_many_inputs_run_in_batches(client: Any, form: dict[str, Any]) -> None:
    """A call each, and the vectors in the inputs' order."""
    texts = ["a" * length for length in range(1, 51)]
    found = client.embeddings.create(model="Served", input=texts, **form)
    assert [each.index for each in found.data] == list(range(50))
    assert [each.embedding[0] for each in found.data] == list(range(1, 51))
    assert max(each.embedding[1] for each in found.data) > 8  # together with others
    one = client.embeddings.create(model="Served", input="four", **form)
    assert [each.embedding[0] for each in one.data] == [4.0]


def test_a_chat_is_answered_whole_or_in_parts(client: Any) -> None:
    """Fields of the form that the method has as parameters are handed to it."""
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": "http://127.0.0.1:1/picture"}]
    given = {"model": "Served", "messages": messages, "temperature": 0.5, "max_completion_tokens": 7, "user": "me"}
    said = "http://127.0.0.1:1/picture (2, 0.5, 7)"
    whole = client.chat.completions.create(**given)
    assert (whole.choices[0].message.content, whole.choices[0].finish_reason) == (said, "stop")
    with client.chat.completions.create(**given, stream=True) as stream:
        chunks = list(stream)
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == said
    assert chunks[-1].choices[0].finish_reason == "stop"


def test_urls_in_a_chat_are_text_and_nobody_fetches_them(client: Any) -> None:
    """The method gets the parts of a message as they were sent."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        url = f"http://127.0.0.1:{listening.getsockname()[1]}/picture.png"
        parts = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": url}]
        answer = client.chat.completions.create(model="Served", messages=[{"role": "user", "content": parts}])
        assert answer.choices[0].message.content == f"{parts} (1, 1.0, 100)"
        listening.setblocking(False)
        with pytest.raises(BlockingIOError):
            listening.accept()


def test_errors_are_the_client_s_own_classes(client: Any, server: Server) -> None:
    """They have our code and message. A request that may have run gets no second attempt."""
    with pytest.raises(openai.BadRequestError) as caught:
        client.embeddings.create(model="Served", input=[{"no": "text"}])
    assert (caught.value.code, caught.value.param) == ("invalid_type", "input[0]")
    with pytest.raises(openai.NotFoundError, match="there are: Served"):
        client.embeddings.create(model="Sevred", input="a")
    messages = [{"role": "user", "content": "a"}]
    with pytest.raises(openai.BadRequestError, match="no parameter for it; its parameters are: max_tokens, temp"):
        client.chat.completions.create(model="Served", messages=messages, seed=1)
    tools = [{"type": "function", "function": {"name": "f"}}]
    with pytest.raises(openai.BadRequestError, match="tools is "):
        client.chat.completions.create(model="Served", messages=messages, tools=tools)
    with (
        openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="x" * 20) as stranger,
        pytest.raises(openai.AuthenticationError),
    ):
        stranger.models.list()
    assert server.call("Served.fail").headers["x-should-retry"] == "false"


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("embeddings", []),
        ("embeddings", {"model": "Served"}),
        ("embeddings", {"model": "Served", "input": []}),
        ("embeddings", {"model": "Served", "input": ["a"] * 2049}),
        ("embeddings", {"model": "Served", "input": "a", "encoding_format": "int8"}),
        ("embeddings", {"model": "Served", "input": "a", "dimensions": 0}),
        ("chat/completions", {"model": "Served"}),
        ("chat/completions", {"model": "Served", "messages": ["a"]}),
        ("chat/completions", {"model": "Served", "messages": [{"content": "a"}], "n": 2}),
        ("chat/completions", {"model": "Served", "messages": [{"content": "a"}], "temperature": "warm"}),
    ],
)
def test_what_cannot_be_answered_is_refused(server: Server, path: str, body: Any) -> None:
    """The status is 400, before anything runs where that can be seen."""
    answer = server.ask("POST", f"/v1/{path}", json.dumps(body).encode(), {"content-type": "application/json"})
    assert (answer.status, answer.error["maybe_executed"]) == (400, False)
