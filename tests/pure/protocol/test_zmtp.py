from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atomr_mp import errors
from atomr_mp.protocol.codec import MAX_MESSAGE_BYTES
from atomr_mp.protocol.zmtp import stream
from atomr_mp.protocol.zmtp.stream import MAX_COMMAND_BYTES, Dealer, Router, ZmtpStream

GREETING = b"\xff" + bytes(8) + b"\x7f" + b"\x03\x01" + b"PLAIN".ljust(20, b"\0") + b"\x01" + bytes(31)
"""The greeting of libzmq 4.3."""
WELCOME = b"\x04\x08\x07WELCOME"
READY = b"\x04\x06\x05READY"
LOGIN = GREETING + WELCOME + READY


HELLO = b"\x04\x14\x05HELLO\x04user\x08password"
INITIATE = b"\x04\x34\x08INITIATE\x0bSocket-Type\x00\x00\x00\x06DEALER\x08Identity\x00\x00\x00\x08identity"
ASKING = GREETING + HELLO + INITIATE


def dealer(*, ready: bool = True) -> Dealer:
    """Return a client's end, logged in if asked for."""
    made = Dealer(b"identity", b"user", b"password")
    if ready:
        made.feed(GREETING)
        made.feed(WELCOME)
        made.feed(READY)
    return made


def router(*, ready: bool = True) -> Router:
    """Return a worker's end that knows one user and one routing id; logged in to if asked for."""
    made = Router(
        lambda username, password: (username, password) == (b"user", b"password"),
        lambda username, identity: (username, identity) == (b"user", b"identity"),
    )
    if ready:
        pour(made, ASKING)
    return made


def pour(into: ZmtpStream, content: bytes) -> bytes:
    """Have a stream take bytes as a connection does; return what it answers."""
    answer = b""
    while content:
        if into.room is None:
            answer += into.feed(content)
            content = b""
        else:
            count = min(len(content), len(into.room))
            into.room[:count] = content[:count]
            answer += into.filled(count)
            content = content[count:]
    return answer


def test_the_login_is_what_the_rfcs_say() -> None:
    """RFC 23 for the frames, 24 for PLAIN; byte by byte."""
    logging_in = dealer(ready=False)
    assert logging_in.opening[:12] == b"\xff" + bytes(8) + b"\x7f\x03\x00"
    assert logging_in.opening[12:64] == b"PLAIN".ljust(20, b"\0") + bytes(32)
    assert logging_in.opening[64:] == b"\x04\x14\x05HELLO\x04user\x08password"
    assert logging_in.feed(GREETING) == b""
    initiate = b"\x08INITIATE\x0bSocket-Type\x00\x00\x00\x06DEALER\x08Identity\x00\x00\x00\x08identity"
    assert logging_in.feed(WELCOME) == b"\x04" + bytes([len(initiate)]) + initiate
    assert not logging_in.ready
    assert logging_in.feed(READY) == b""
    assert logging_in.ready


def test_the_other_end_s_part_of_the_login_is_so_too() -> None:
    """It greets at once, without having been greeted."""
    logged_in_to = router(ready=False)
    assert logged_in_to.opening == GREETING[:11] + b"\x00" + GREETING[12:]
    assert logged_in_to.feed(GREETING) == b""
    assert logged_in_to.feed(HELLO) == b"\x04\x08\x07WELCOME"
    assert logged_in_to.feed(INITIATE) == b"\x04\x1c\x05READY\x0bSocket-Type\x00\x00\x00\x06ROUTER"
    assert logged_in_to.ready
    assert logged_in_to.identity == b"identity"
    assert not logged_in_to.refused


@given(st.lists(st.integers(1, 60), max_size=40), st.lists(st.binary(max_size=300), max_size=4))
def test_the_two_ends_understand_each_other(cuts: list[int], messages: list[bytes]) -> None:
    """However the bytes are cut."""
    ends: list[ZmtpStream] = [dealer(ready=False), router(ready=False)]
    on_the_way = [end.opening for end in ends]
    sizes = iter(cuts)
    while any(on_the_way):
        for at, to in ((0, 1), (1, 0)):
            size = next(sizes, 1000)
            on_the_way[to] += pour(ends[to], on_the_way[at][:size])
            on_the_way[at] = on_the_way[at][size:]
    for end in ends:
        assert end.ready
        pour(end, b"".join(map(stream.frame, messages)))
        assert list(end.messages) == messages


@pytest.mark.parametrize(
    ("content", "answer"),
    [
        (HELLO.replace(b"password", b"passw0rd"), b""),
        (HELLO + INITIATE.replace(b"identity", b"somebody"), WELCOME),
        (HELLO + b"\x04\x09\x08INITIATE", WELCOME),
    ],
    ids=["a wrong password", "another's routing id", "no routing id"],
)
def test_who_is_not_let_in_is_told_so(content: bytes, answer: bytes) -> None:
    """The error is one that ZeroMQ's libraries know; later bytes change nothing."""
    logged_in_to = router(ready=False)
    assert pour(logged_in_to, GREETING + content + INITIATE) == answer + b"\x04\x0a\x05ERROR\x03400"
    assert logged_in_to.refused
    assert not logged_in_to.ready
    with pytest.raises(errors.ProtocolError, match="before the login"):
        pour(logged_in_to, stream.frame(b"message"))


@pytest.mark.parametrize("nbytes", [0, 1, 255, 256, 65536])
def test_a_message_is_one_frame(nbytes: int) -> None:
    """Short or long by its size."""
    message = b"x" * nbytes
    head = bytes([0, nbytes]) if nbytes < 256 else b"\x02" + nbytes.to_bytes(8, "big")
    assert stream.frame(message) == head + message
    assert stream.frame_head(nbytes) == head


@given(
    st.lists(st.one_of(st.binary(max_size=300), st.integers(0, 70_000).map(bytes)), max_size=8),
    st.lists(st.integers(1, 70_000), max_size=40),
    st.lists(st.integers(1, 30), max_size=10),
)
def test_messages_come_out_as_they_went_in(messages: list[bytes], cuts: list[int], early: list[int]) -> None:
    """However the bytes are cut; each in memory of its own, which begins where arrays may."""
    taker = dealer(ready=False)
    content = LOGIN + b"".join(map(stream.frame, messages))
    for size in (*early, *cuts):
        pour(taker, content[:size])
        content = content[size:]
    pour(taker, content)
    assert taker.ready
    assert [bytes(message) for message in taker.messages] == messages
    assert taker.room is None


@given(st.binary(max_size=200), st.booleans(), st.sampled_from([dealer, router]))
def test_any_bytes_are_taken_or_refused(content: bytes, ready: bool, made: Callable[..., ZmtpStream]) -> None:  # noqa: FBT001 - drawn
    """Nothing else is raised, and no more memory is asked for than a message may have."""
    taker = made(ready=ready)
    try:
        pour(taker, content if ready else GREETING + content)
    except errors.ProtocolError:
        return
    assert taker.room is None or len(taker.room) <= MAX_MESSAGE_BYTES


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"HTTP/1.1 400 Bad Request".ljust(64), "not ZMTP 3"),
        (GREETING[:10] + b"\x01" + GREETING[11:], "not ZMTP 3"),
        (GREETING.replace(b"PLAIN", b"NULL\0"), "not PLAIN"),
        (GREETING + READY, "out of turn"),
        (GREETING + WELCOME + WELCOME, "out of turn"),
        (GREETING + b"\x04\x00", "ends too early"),
        (GREETING + b"\x04\x0a\x05ERROR\x03400", r"refused: b'400'"),
        (GREETING + b"\x00\x01x", "before the login"),
        (LOGIN + b"\x01\x01x", "messages have one frame"),
        (LOGIN + b"\x08\x01x", "messages have one frame"),
        (LOGIN + b"\x02" + (MAX_MESSAGE_BYTES + 1).to_bytes(8, "big"), "the limit is"),
        (LOGIN + b"\x06" + (MAX_COMMAND_BYTES + 1).to_bytes(8, "big"), "the limit is"),
    ],
)
def test_what_no_worker_says_is_refused(content: bytes, reason: str) -> None:
    """The error has the reason."""
    with pytest.raises(errors.ProtocolError, match=reason):
        pour(dealer(ready=False), content)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (GREETING + INITIATE, "out of turn"),
        (GREETING + HELLO + HELLO, "out of turn"),
        (GREETING + b"\x04\x00", "ends too early"),
        (GREETING + b"\x04\x0b\x05HELLO\xffuser", "ends too early"),
        (GREETING + HELLO.replace(b"\x14", b"\x15") + b"x", "more than a username and a password"),
        (GREETING + HELLO + INITIATE.replace(b"\x00\x00\x08", b"\x00\x00\x09"), "ends too early"),
        (GREETING + HELLO + b"\x00\x01x", "before the login"),
        (GREETING + b"\x06" + (MAX_COMMAND_BYTES + 1).to_bytes(8, "big"), "the limit is"),
        (ASKING + b"\x01\x01x", "messages have one frame"),
        (ASKING + b"\x02" + (MAX_MESSAGE_BYTES + 1).to_bytes(8, "big"), "the limit is"),
    ],
)
def test_what_no_client_says_is_refused(content: bytes, reason: str) -> None:
    """The error has the reason."""
    with pytest.raises(errors.ProtocolError, match=reason):
        pour(router(ready=False), content)


@pytest.mark.parametrize("context", [b"", b"c", b"sixteen bytes ::"])
def test_a_ping_is_answered_with_its_context_whoever_sends_it(context: bytes) -> None:
    """RFC 37 says so; messages before and after it arrive."""
    for taker in (dealer(), router()):
        ping = bytes((4, 7 + len(context))) + b"\x04PING\x00\x0a" + context
        answer = pour(taker, stream.frame(b"before") + ping + stream.frame(b"after"))
        assert answer == bytes((4, 5 + len(context))) + b"\x04PONG" + context
        assert list(taker.messages) == [b"before", b"after"]


@pytest.mark.parametrize("content", [b"", b"\x00", b"\x00\x0a" + b"c" * 17])
def test_a_ping_that_is_none_is_refused(content: bytes) -> None:
    """Its TTL has two bytes, and its context at most 16."""
    with pytest.raises(errors.ProtocolError, match="a TTL of 2 and a context of at most 16"):
        pour(dealer(), bytes((4, 5 + len(content))) + b"\x04PING" + content)


def test_other_commands_after_the_login_are_passed_over() -> None:
    """RFC 23 asks this for unknown commands."""
    for command in (b"\x04PONG", b"\x09SUBSCRIBEx", b"\x00"):
        taker = dealer()
        assert pour(taker, bytes((4, len(command))) + command + stream.frame(b"message")) == b""
        assert list(taker.messages) == [b"message"]
