from __future__ import annotations

import json
import os
from collections.abc import Iterator

import httpx
import numpy as np
import pytest

from tests.serving import Answer, Server
from tests.support import ACTORS, Ledger

pytest.importorskip("httptools")
pytest.importorskip("uvloop")

OCTETS = "application/octet-stream"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """A server whose methods take files."""
    with (
        Ledger() as ledger,
        Server(
            ledger,
            *("--limit", "raw_bytes=8000000", "--limit", "form_parts=5"),
            actor=f"{ACTORS}/uploaded.py:Uploaded",
        ) as own,
    ):
        yield own


def post(server: Server, method: str, body: bytes, content_type: str, **headers: str) -> Answer:
    """Call a method with a body."""
    return server.ask("POST", f"/call/Uploaded.{method}", body, {"content-type": content_type, **headers})


def form(server: Server, method: str, *parts: tuple[str, object]) -> Answer:
    """Call a method with a form, as a client's library writes it."""
    request = httpx.Request("POST", "http://localhost", files=parts)  # type: ignore[arg-type] # their own types
    return post(server, method, request.read(), request.headers["content-type"])


def test_a_raw_body_is_the_bytes_and_bytes_come_back_raw(server: Server) -> None:
    """Of any type for files; what else the method takes is in the address."""
    for kind in (OCTETS, "image/png", "audio/x-wav; rate=16000"):
        answer = post(server, "turned?times=2&mark=1", b"\x00\xffa", kind, accept=OCTETS)
        assert (answer.status, answer.headers["content-type"], answer.body) == (200, OCTETS, b"a\xff\x00a\xff\x001")
    assert post(server, "turned", b"", OCTETS).json() == ""
    assert post(server, "turned", b"abc", OCTETS).json() == "Y2Jh"
    large = np.full(7_000_000, 1, np.uint8).tobytes()  # more than bytes may have in a call
    assert post(server, "pixels", large, "image/png").json() == [7_000_000.0, -1.0]
    assert post(server, "shown", b"abc", "image/png").json() == [["", "image/png", 3], None]


def test_a_form_fills_parameters_by_name(server: Server) -> None:
    """Files with their names, and fields."""
    answer = form(
        server,
        "shown",
        ("more", ("b.txt", b"12", "text/plain")),
        ("file", ("ä.png", b"123", "image/png")),
        ("options", (None, json.dumps({"a": [1]}))),
        ("more", ("c.txt", b"", "text/plain")),
    )
    assert answer.json() == [
        ["ä.png", "image/png", 3],
        ["b.txt", "text/plain", 2],
        ["c.txt", "text/plain", 0],
        {"a": [1]},
    ]
    assert form(server, "both", ("right", ("r", b"ab")), ("left", (None, b"ba"))).json() == "YmFhYg=="


@pytest.mark.parametrize(
    ("status", "method", "body", "content_type", "headers", "said"),
    [
        (415, "both", b"", OCTETS, {}, "no parameter that a raw body could be"),
        (415, "turned", b"", "text/plain", {}, "is not read"),
        (415, "turned", b"", "application/x-www-form-urlencoded", {}, "is not read"),
        (400, "turned?content=x", b"", OCTETS, {}, "both in the address and the body"),
        (400, "turned?times=x", b"", OCTETS, {}, "field times"),
        (422, "turned?times=%22x%22", b"", OCTETS, {}, "times"),
        (422, "turned?other=x", b"", OCTETS, {}, "other"),
        (400, "turned", b"x", "multipart/form-data; boundary=x", {}, "not in it"),
        (413, "turned", b"x" * 8_000_001, OCTETS, {}, "8000000 bytes"),
        (413, "turned", b"x" * 8_000_001, "multipart/form-data; boundary=x", {}, "8000000 bytes"),
        (406, "pixels", b"x", OCTETS, {"accept": OCTETS}, "neither an array nor bytes"),
        (403, "turned", b"x", "multipart/form-data; boundary=x", {"origin": "http://other.example"}, "another origin"),
    ],
)
def test_what_does_not_fit_is_refused(
    server: Server, status: int, method: str, body: bytes, content_type: str, headers: dict[str, str], said: str
) -> None:
    """The error says why."""
    answer = post(server, method, body, content_type, **headers)
    assert (answer.status, said in answer.error["message"]) == (status, True), answer


def test_a_body_may_be_larger_than_a_call_s(server: Server) -> None:
    """In both directions, as long as the server's own limits admit it."""
    content = os.urandom(7_000_000)
    answer = post(server, "turned", content, OCTETS, accept=OCTETS)
    assert (answer.status, answer.body == content[::-1]) == (200, True)


def test_a_form_may_have_so_many_parts(server: Server) -> None:
    """And no more, whatever is in them."""
    assert form(server, "turned", *[("content", ("x", b""))] * 6).error["facts"] == {"limit_parts": 5}


def test_the_document_describes_forms_and_raw_bodies(server: Server) -> None:
    """A raw body only where nothing else is needed, since an address cannot be described for one kind of body."""
    paths = server.ask("GET", "/openapi.json").json()["paths"]
    turned = paths["/call/Uploaded.turned"]["post"]
    assert set(turned["requestBody"]["content"]) == {"application/json", OCTETS, "multipart/form-data"}
    assert set(turned["responses"]["200"]["content"]) == {"application/json", OCTETS}
    shown = paths["/call/Uploaded.shown"]["post"]["requestBody"]["content"]["multipart/form-data"]
    assert shown["schema"]["properties"]["file"] == {"type": "string", "format": "binary"}
    assert shown["schema"]["properties"]["more"]["type"] == "array"
    assert shown["encoding"] == {"options": {"contentType": "application/json"}}
    assert OCTETS not in paths["/call/Uploaded.both"]["post"]["requestBody"]["content"]
