from __future__ import annotations

import contextlib
import functools
import itertools
import json
import os
import socket
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st

from atomr_mp import checks, errors
from atomr_mp.serve import problems
from atomr_mp.serve.http import access as access_module
from atomr_mp.serve.http.access import Access, Tokens, read_tokens
from atomr_mp.serve.http.cors import Cors
from atomr_mp.serve.http.exchange import Budget
from atomr_mp.serve.oip import refusals
from atomr_mp.serve.problems import Problem
from tests.in_turn import in_turn
from tests.support import open_descriptors

TOKEN = "a-token-of-some-length"
NEXT = "the-next-token-of-ours"

CLASSES = [each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, errors.AtomrError)]


@in_turn("cls, maybe_executed", itertools.product(CLASSES, (False, True)))
def test_what_may_have_run_is_never_sent_again_by_a_proxy(cls: type[Any], maybe_executed: bool) -> None:  # noqa: FBT001
    """A proxy sends a request again that is answered with 502 or 503."""
    error = cls("on purpose")
    if hasattr(error, "maybe_executed"):
        error.maybe_executed = maybe_executed
    for sent, status_of in itertools.product((False, True), (problems.status_of, refusals.status_of)):
        status = status_of(error, sent=sent)
        told = problems.describe(error, "id-1", debug=False, sent=sent)
        headers = dict(problems.headers_of(error, status, sent=sent))
        assert status in {400, 422, 429, 500, 503, 504}
        assert told["maybe_executed"] is getattr(error, "maybe_executed", sent)
        assert status not in {429, 503} or not told["maybe_executed"]
        assert (b"retry-after" in headers) is (status in {429, 503})
        assert (b"x-should-retry" in headers) is told["maybe_executed"]


@pytest.mark.parametrize("kind", ["directory", "pipe", "device", "socket", "missing"])
def test_what_is_no_file_of_tokens_is_refused_by_its_kind_and_keeps_no_descriptor(kind: str, tmp_path: Path) -> None:
    """It is looked at every second: one descriptor a look would soon be all."""
    path = tmp_path / "tokens"
    with contextlib.ExitStack() as closing:
        if kind == "directory":
            path.mkdir()
        elif kind == "pipe":
            os.mkfifo(path)
        elif kind == "device":
            path.symlink_to("/dev/null")
        elif kind == "socket":
            closing.enter_context(socket.socket(socket.AF_UNIX)).bind(str(path))
        before = open_descriptors()
        with pytest.raises(errors.ConfigurationError) as refused:
            read_tokens(path)
        assert str(path) in str(refused.value)
        assert "Errno 21" not in str(refused.value)
        assert open_descriptors() == before


@pytest.mark.parametrize("status", [429, 503])
def test_a_refusal_that_is_repeated_cannot_be_of_what_may_have_run(status: int) -> None:
    """Whoever writes such a refusal hears of it in the tests."""
    with pytest.raises(checks.BrokenRuleError, match="may have run"):
        Problem(status, "any", "why", maybe_executed=True)


def test_an_error_tells_its_facts_and_hides_what_is_the_actor_s() -> None:
    """The traceback is for `debug`."""
    error = errors.ActorFailed("it raised", exception="ValueError", traceback_text="File secret.py")
    told = problems.describe(error, "id-1", debug=False)
    assert told["facts"] == {"exception": "ValueError", "returned": ""}
    assert (told["code"], told["maybe_executed"], told["request_id"]) == ("actor_failed", True, "id-1")
    assert problems.describe(error, "id-1", debug=True)["facts"]["traceback_text"] == "File secret.py"


@pytest.mark.parametrize("cls", [errors.PoolLost, errors.ActorFailed, errors.CollectiveAborted, errors.WorldMismatch])
def test_an_error_tells_the_rank_that_it_is_of_and_no_other(cls: Any) -> None:
    """Whichever class it is: there is no rank -1 for whoever counts from the end."""
    error = cls("on purpose")
    assert "rank" not in problems.describe(error, "id-1", debug=False)["facts"]
    error.rank = 1
    assert problems.describe(error, "id-1", debug=False)["facts"]["rank"] == 1


def test_a_strange_fact_is_told_as_text() -> None:
    """No error is ever lost because it cannot be sent."""
    error = errors.OutOfMemory("no", requested_bytes=object())  # type: ignore[arg-type]
    assert "object" in json.loads(problems.body_of(error, "", debug=False))["error"]["facts"]["requested_bytes"]


@pytest.mark.parametrize(("seconds", "header"), [(0.0, b"1"), (0.2, b"1"), (2.1, b"3"), (float("inf"), b"1")])
def test_retry_after_is_whole_seconds(seconds: float, header: bytes) -> None:
    """At least one."""
    assert problems.retry_after(seconds) == (b"retry-after", header)


@pytest.mark.parametrize(
    ("authorization", "admitted"),
    [
        (f"Bearer {TOKEN}", True),
        (f"bearer  {TOKEN} ", True),
        (f"Bearer {TOKEN}x", False),
        (f"Basic {TOKEN}", False),
        ("Bearer", False),
        ("", False),
        ("Bearer \xff\xfe", False),
    ],
)
def test_only_a_token_of_ours_admits(authorization: str, admitted: bool) -> None:  # noqa: FBT001
    """As a bearer's."""
    access = Access(Tokens([TOKEN, "another-token-of-ours"]), None)
    headers = {b"authorization": authorization.encode("latin-1")}
    if admitted:
        access.check_token(headers)
    else:
        with pytest.raises(Problem) as caught:
            access.check_token(headers)
        assert caught.value.status == 401


@pytest.mark.parametrize(
    ("host", "origin", "admitted"),
    [
        (b"localhost:8000", None, True),
        (b"LOCALHOST", None, True),
        (b"[::1]:80", None, True),
        (b"models.example:443", b"https://models.example:443", True),
        (b"localhost:8000", b"http://localhost:8000", True),
        (b"localhost:8000", b"http://localhost:9000", False),
        (b"localhost:8000", b"null", False),
        (b"localhost:8000", b"file://localhost:8000", False),
        (b"evil.example", b"http://evil.example", False),
        (b"", None, False),
        (b"localhost.evil.example", None, False),
        (b"10.0.0.5:8000", None, True),
        (b"[2001:db8::1]:80", None, True),
        (b"2001:db8::1", None, False),
        (b"10.0.0.5.evil.example", None, False),
        (b"10.0.0.5", b"http://evil.example", False),
    ],
)
def test_only_our_names_and_our_own_pages_are_answered(host: bytes, origin: bytes | None, admitted: bool) -> None:  # noqa: FBT001
    """A foreign page may have its own name mean this machine, or ask us directly."""
    access = Access(Tokens(), ["localhost", "127.0.0.1", "[::1]", "models.example"])
    headers = {b"host": host} | ({} if origin is None else {b"origin": origin})
    if admitted:
        access.check_origin(headers)
    else:
        with pytest.raises(Problem) as caught:
            access.check_origin(headers)
        assert caught.value.status == 403


def test_a_file_of_tokens_is_read_again_when_it_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokens are rotated without a restart: only the file's present tokens are valid."""
    now_s = 0.0
    monkeypatch.setattr("time.monotonic", lambda: now_s)
    file = tmp_path / "tokens"
    file.write_text(f"# ours\n{TOKEN}\n\n")
    access = Access(Tokens(file=file), None)

    def admits(token: str) -> bool:
        access.look_again()
        try:
            digest = access.check_token({b"authorization": f"Bearer {token}".encode()})
        except Problem:
            return False
        assert access.admits(digest)
        return True

    assert admits(TOKEN)
    file.write_text(f"{TOKEN}\n{NEXT}\n")
    assert admits(NEXT)
    assert admits(TOKEN)
    file.write_bytes(NEXT.encode() + b"\nshort\n\xff\xfe\n")  # a bad line costs itself only
    assert (admits(TOKEN), admits(NEXT)) == (False, True)

    def replaced_by_pipe() -> None:
        file.unlink()
        os.mkfifo(file)

    for damage in (lambda: file.write_text("short"), lambda: file.write_text(""), file.unlink, replaced_by_pipe):
        file.unlink(missing_ok=True)
        file.write_text(f"{NEXT}\n")
        assert admits(NEXT)
        damage()
        assert admits(NEXT)  # it may be in the middle of being replaced
        now_s += access_module.EMPTY_S
        assert not admits(NEXT)
    file.unlink()
    file.write_text(f"{TOKEN}\n")
    assert (admits(TOKEN), admits(NEXT)) == (True, False)


def test_a_file_that_others_may_write_is_refused(tmp_path: Path) -> None:
    """At the start, and when it changes. A link to a file that only root may write is one of Kubernetes's secrets."""
    file, link = tmp_path / "tokens", tmp_path / "link"
    file.write_text(f"{TOKEN}\n")
    link.symlink_to(file)
    file.chmod(0o640)
    assert read_tokens(link) == [TOKEN]
    for mode in (0o620, 0o602):
        file.chmod(mode)
        with pytest.raises(errors.ConfigurationError, match="chmod go-w"):
            read_tokens(link)


@pytest.mark.parametrize("content", ["", "# nothing\n", "short\n", "has spaces in the middle\n", "\xff" * 20])
def test_a_file_without_good_tokens_is_refused(tmp_path: Path, content: str) -> None:
    """Before anything is served."""
    file = tmp_path / "tokens"
    file.write_text(content, encoding="latin-1")
    with pytest.raises(errors.ConfigurationError):
        read_tokens(file)


@hypothesis.settings(deadline=None)
@hypothesis.given(
    st.lists(
        st.tuples(st.integers(0, 5), st.integers(0, 60), st.sampled_from(["take", "settle", "close"])), max_size=40
    )
)
def test_bodies_share_their_room(steps: list[tuple[int, int, str]]) -> None:
    """What has come is counted; the body whose progress is the oldest gives way, a complete one never does."""
    budget = Budget(100)
    refused: list[int] = []
    rooms = {at: budget.room(functools.partial(refused.append, at)) for at in range(6)}
    held: dict[int, int] = {}
    complete: set[int] = set()
    for at, count, what in steps:
        if what == "take" and at not in complete:
            others = [each for each in held if each != at and each not in complete]
            held[at] = held.pop(at, 0)
            gave: list[int] = []
            while sum(held.values()) + count > 100 and others:
                gave.append(others.pop(0))
                del held[gave[-1]]
            refused.clear()
            if sum(held.values()) + count > 100:
                with pytest.raises(Problem) as caught:
                    rooms[at].take(count)
                assert caught.value.status == 429
                del held[at]
            else:
                rooms[at].take(count)
                held[at] += count
            assert refused == gave
        elif what == "settle" and at in held:
            rooms[at].settle()
            complete.add(at)
        elif what == "close":
            rooms[at].close()
            held.pop(at, None)
            complete.discard(at)
        assert budget.held == sum(held.values()) <= 100


@pytest.mark.parametrize("content_type", [b"multipart/form-data; boundary=x", b" Multipart/mixed"])
def test_a_foreign_page_cannot_send_a_form_even_where_nothing_else_is_checked(content_type: bytes) -> None:
    """A browser sends one without asking first; JSON it does not."""
    access = Access(Tokens(), None)
    headers = {b"host": b"ours", b"origin": b"https://theirs"}
    access.check_origin(headers | {b"content-type": b"application/json"})
    access.check_origin(headers | {b"content-type": content_type, b"origin": b"https://ours"})
    with pytest.raises(Problem, match="another origin"):
        access.check_origin(headers | {b"content-type": content_type})


ORIGIN = b"https://app.example"


@pytest.mark.parametrize(
    "origin",
    ["app.example", "https://app.example/", "ftp://app.example", "null", "https://", "https://a.b:x", "a\r\nb"],
)
def test_what_is_no_origin_is_refused_at_the_start(origin: str) -> None:
    """A page of it could never ask."""
    with pytest.raises(errors.ConfigurationError, match="no origin"):
        Cors([origin])


def test_any_origin_is_admitted_with_tokens_only_in_so_many_words() -> None:
    """Without tokens the star says enough."""
    with pytest.raises(errors.ConfigurationError, match="any-with-token"):
        Cors(["*"], has_tokens=True)
    for cors in (Cors(["*"]), Cors(["any-with-token"], has_tokens=True)):
        assert dict(cors.headers(ORIGIN))[b"access-control-allow-origin"] == b"*"
        assert cors.admits(b"null")


@hypothesis.given(
    st.sampled_from([b"https://app.example", b"https://APP.example", b"http://app.example", b"null", b"http://ours"])
)
def test_who_may_ask_may_read_the_answer_and_nobody_else(origin: bytes) -> None:
    """The refusal of an origin and the headers for it agree, and a cache keeps the answers for origins apart."""
    access = Access(Tokens(), None, Cors(["https://app.example", "http://localhost:3000"]))
    headers = {b"host": b"ours", b"origin": origin}
    told = dict(access.cors.headers(origin))
    assert told[b"vary"] == b"Origin"
    admitted = origin.lower() == ORIGIN
    assert (told.get(b"access-control-allow-origin") == origin) == admitted
    assert (access.cors.preflight(headers | {b"access-control-request-method": b"POST"}) is not None) == admitted
    if admitted or origin == b"http://ours":
        access.check_origin(headers)
    else:
        with pytest.raises(Problem, match="--cors-origin"):
            access.check_origin(headers)


@hypothesis.given(st.binary(max_size=60))
def test_names_of_headers_that_a_page_asks_for_cannot_say_anything_else(asked: bytes) -> None:
    """They come back as they are, or not at all."""
    headers = {b"origin": ORIGIN, b"access-control-request-method": b"POST", b"access-control-request-headers": asked}
    allowed = dict(Cors([ORIGIN.decode()]).preflight(headers) or ())[b"access-control-allow-headers"]
    assert allowed in {asked, b"authorization, content-type"}
    assert not set(allowed) & set(b"\r\n\0")
