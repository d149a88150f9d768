"""Messages, framing, tokens and credit; `test_values.py` and `test_board.py` have the rest of the package."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any, Final

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from msgspec import inspect

from atomr_mp import errors
from atomr_mp.protocol import token
from atomr_mp.protocol.codec import MAX_SESSION_MESSAGE_BYTES, VERSION, Codec
from atomr_mp.protocol.flow.flight import Flight, Window
from atomr_mp.protocol.messages import control, data, operators, session
from atomr_mp.protocol.messages.devices import DeviceInfo, DeviceState
from atomr_mp.protocol.messages.session import Framing, check_version, frame
from tests.in_turn import in_turn

CHANNELS: Final[dict[str, tuple[Codec[Any], Any]]] = {
    "session, from a client": (session.FROM_CLIENT, session.FromClient),
    "session, from the supervisor": (session.FROM_SUPERVISOR, session.FromSupervisor),
    "control, from the supervisor": (control.FROM_SUPERVISOR, control.FromSupervisor),
    "control, from a worker": (control.FROM_WORKER, control.FromWorker),
    "data, from a client": (data.FROM_CLIENT, data.FromClient),
    "data, from a worker": (data.FROM_WORKER, data.FromWorker),
}
channels = pytest.mark.parametrize("channel", CHANNELS)


# --- strategies ----------------------------------------------------------------------------------------------


def values_of(info: inspect.Type, instead: Mapping[type, st.SearchStrategy[Any]] = {}) -> st.SearchStrategy[Any]:
    """Return a strategy for what messages are made of; some of their structs are drawn from others instead."""
    found: st.SearchStrategy[Any]
    match info:
        case inspect.ListType() | inspect.VarTupleType():
            least = info.min_length or 0
            several = st.lists(values_of(info.item_type, instead), min_size=least, max_size=least + 3)
            found = several if isinstance(info, inspect.ListType) else several.map(tuple)
        case inspect.DictType():
            found = st.dictionaries(values_of(info.key_type), values_of(info.value_type, instead), max_size=3)
        case inspect.UnionType():
            found = st.one_of([values_of(type_, instead) for type_ in info.types])
        case inspect.StructType():
            built = st.builds(info.cls, **{field.name: values_of(field.type, instead) for field in info.fields})
            found = instead.get(info.cls, built)
        case inspect.LiteralType() | inspect.EnumType():
            found = st.sampled_from(info.values if isinstance(info, inspect.LiteralType) else list(info.cls))
        case inspect.IntType():
            found = _integers_of(info)
        case inspect.FloatType():
            found = st.floats(info.ge, info.le, allow_nan=False)
        case inspect.StrType():
            found = st.text(min_size=info.min_length or 0, max_size=min(info.max_length or 30, 30))
        case inspect.BytesType():
            least = info.min_length or 0
            found = st.binary(min_size=least, max_size=min(info.max_length or 30, least + 30))
        case _:
            found = SCALARS[type(info)]
    return found


def _integers_of(info: inspect.IntType) -> st.SearchStrategy[int]:
    low = -(2**63) if info.ge is None else info.ge
    limits = [2**64 - 1]
    if info.le is not None:
        limits.append(info.le)
    if info.lt is not None:
        limits.append(info.lt - 1)
    return st.integers(low, min(limits)) | st.sampled_from([low, min(limits)])


SCALARS: Final[dict[type[inspect.Type], st.SearchStrategy[Any]]] = {
    inspect.BoolType: st.booleans(),
    inspect.NoneType: st.none(),
}


MESSAGES: Final = {name: values_of(inspect.type_info(union)) for name, (_, union) in CHANNELS.items()}

msgpack_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=8) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@st.composite
def damaged(draw: st.DrawFn, messages: st.SearchStrategy[bytes]) -> bytes:
    """Draw a message with something cut, changed or added."""
    message = draw(messages)
    at = draw(st.integers(0, len(message)))
    removed = draw(st.integers(0, 4))
    return message[:at] + draw(st.binary(max_size=4)) + message[at + removed :]


# --- messages ------------------------------------------------------------------------------------------------


@channels
@given(drawn=st.data())
def test_every_message_survives_the_round_trip(channel: str, drawn: st.DataObject) -> None:
    """All fields of all messages, over their whole range, in one encoding."""
    codec, _ = CHANNELS[channel]
    message = drawn.draw(MESSAGES[channel])
    encoded = codec.encode(message)
    assert codec.decode(encoded) == message
    assert codec.decode(memoryview(encoded)) == message
    assert type(codec.decode(encoded)) is type(message)


@channels
@given(drawn=st.data())
def test_any_bytes_are_a_message_or_a_protocol_error(channel: str, drawn: st.DataObject) -> None:
    """Noise, other channels' messages, other structures, and messages that were damaged on the way."""
    codec, _ = CHANNELS[channel]
    others = st.one_of([MESSAGES[name].map(CHANNELS[name][0].encode) for name in CHANNELS])
    received = drawn.draw(
        st.binary() | others | damaged(others) | msgpack_values.map(msgspec.msgpack.encode), label="received"
    )
    with contextlib.suppress(errors.ProtocolError):
        message = codec.decode(received)
        again = codec.encode(message)
        assert codec.encode(codec.decode(again)) == again, "what was admitted can be sent on"


@channels
@in_turn(
    "received",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"\xc1", id="the byte that msgpack never uses"),
        pytest.param(b"\x91" * 10**6, id="nested a million deep"),
        pytest.param(b"\x81" * 10**6, id="keys nested a million deep"),
        pytest.param(b"\xdd\xff\xff\xff\xff", id="an array of four billion"),
        pytest.param(b"\xdf\xff\xff\xff\xff", id="a map of four billion"),
        pytest.param(b"\x93\x01\xc4\x00\xdd\xff\xff\xff\xff", id="calls of four billion"),
        pytest.param(b"\x91\xdb\xff\xff\xff\xff", id="a string of four billion"),
        pytest.param(b"\x91\xa2\xff\xfe", id="a string that is not UTF-8"),
    ],
)
def test_hostile_bytes_are_a_protocol_error(channel: str, received: bytes) -> None:
    """Bytes that announce more than they hold cost nothing, and no depth ends the process."""
    codec, _ = CHANNELS[channel]
    with pytest.raises(errors.ProtocolError, match=f"the {channel.split(',', maxsplit=1)[0]} channel"):
        codec.decode(received)


@channels
@given(drawn=st.data())
def test_a_message_with_a_field_too_many_or_too_few_is_refused(channel: str, drawn: st.DataObject) -> None:
    """One version, one form: what is missing is not guessed, what is not known is not dropped."""
    codec, _ = CHANNELS[channel]
    fields = msgspec.msgpack.decode(codec.encode(drawn.draw(MESSAGES[channel])))
    with pytest.raises(errors.ProtocolError):
        codec.decode(msgspec.msgpack.encode([*fields, None]))
    with pytest.raises(errors.ProtocolError):
        codec.decode(msgspec.msgpack.encode(fields[:1]) if len(fields) > 1 else b"\x90")


@pytest.mark.parametrize("weight", ["1", b"1", True, None, [1], 1j, "x"])
def test_a_weight_that_is_no_number_is_refused(weight: Any) -> None:
    """Texts and truth values too, which Python would convert."""
    with pytest.raises(errors.InvalidRequest, match=r"weight must be from 0\.01 to 100; got"):
        session.check_weight(weight)


@pytest.mark.parametrize("weight", [0.0, -1.0, 0.0099, 100.5, float("nan"), float("inf"), float("-inf"), 1e300])
def test_a_weight_that_is_none_or_too_much_is_refused(weight: float) -> None:
    """By whoever reads it: no session has everything, or nothing."""
    hello = session.Hello(VERSION, "client", weight=weight)
    with pytest.raises(errors.ProtocolError):
        session.from_client(msgspec.msgpack.encode(hello))
    opened = control.SessionOpened(1, bytes(16), bytes(16), weight=weight)
    with pytest.raises(errors.ProtocolError):
        control.FROM_SUPERVISOR.decode(msgspec.msgpack.encode(opened))
    with pytest.raises(errors.InvalidRequest, match=r"weight must be from 0\.01 to 100; got"):
        session.check_weight(weight)


def test_another_version_is_refused_with_both_numbers() -> None:
    """Peers of two releases part at the hello."""
    check_version(VERSION)
    with pytest.raises(errors.ProtocolError, match=f"version {VERSION + 1}, .* version {VERSION}"):
        check_version(VERSION + 1)


# --- framing -------------------------------------------------------------------------------------------------


@given(messages=st.lists(st.binary(max_size=300), max_size=20), drawn=st.data())
def test_messages_arrive_whole_however_the_stream_was_cut(messages: list[bytes], drawn: st.DataObject) -> None:
    """A stream socket keeps the bytes and their order, and nothing else."""
    stream = b"".join(frame(message) for message in messages)
    cuts = sorted(drawn.draw(st.lists(st.integers(0, len(stream)), max_size=30), label="cuts"))
    framing = Framing()
    received: list[bytes] = []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        received += framing.feed(stream[start:end])
    assert received == messages


@given(st.lists(st.binary(max_size=20), max_size=10))
def test_messages_arrive_whole_byte_by_byte(messages: list[bytes]) -> None:
    """A message is there with its last byte, and not before."""
    framing = Framing()
    for message in messages:
        *most, last = frame(message)
        for byte in most:
            assert list(framing.feed(bytes([byte]))) == []
        assert list(framing.feed(bytes([last]))) == [message]


@given(limit=st.integers(0, 1000), excess=st.integers(1, 2**31), valid=st.binary(max_size=100))
def test_an_oversized_frame_is_refused_at_its_announcement(limit: int, excess: int, valid: bytes) -> None:
    """Nothing of it is waited for, what came before it is delivered, and the stream stays refused."""
    framing = Framing(max(limit, len(valid)))
    announcement = (max(limit, len(valid)) + excess).to_bytes(4, "big")
    arrived = framing.feed(frame(valid) + announcement)
    assert next(arrived) == valid
    with pytest.raises(errors.ProtocolError, match="the limit is"):
        next(arrived)
    with pytest.raises(errors.ProtocolError):
        list(framing.feed(b"more"))


def test_the_largest_message_is_admitted() -> None:
    """The limit itself is within the limit."""
    message = bytes(MAX_SESSION_MESSAGE_BYTES)
    assert list(Framing().feed(frame(message))) == [message]


# --- tokens --------------------------------------------------------------------------------------------------

epochs = st.binary(min_size=16, max_size=16)
devices = st.integers(0, 2**16 - 1)
generations = st.integers(0, 2**32 - 1)


@given(epochs, devices, generations)
def test_a_token_admits_itself(epoch: bytes, device: int, generation: int) -> None:
    """The same incarnation, and a token of the length that the wire promises."""
    packed = token.pack(epoch, device, generation)
    assert len(packed) == token.TOKEN_BYTES
    assert token.refusal(packed, token.pack(epoch, device, generation)) is None


@given(epochs, epochs, devices, devices, generations, generations)
def test_a_token_of_something_else_is_refused_for_what_is_wrong(
    epoch: bytes, other_epoch: bytes, device: int, other_device: int, generation: int, other_generation: int
) -> None:
    """The pool first, then the device, then the generation, which names both incarnations."""
    here = token.pack(epoch, device, generation)
    refused = token.refusal(token.pack(other_epoch, other_device, other_generation), here)
    if (epoch, device) != (other_epoch, other_device):
        assert isinstance(refused, errors.PoolMismatch)
    elif generation != other_generation:
        assert isinstance(refused, errors.StaleGeneration)
        assert refused.device == device
        assert (refused.generation, refused.current) == (other_generation, generation)
    else:
        assert refused is None
    assert refused is None or refused.maybe_executed is False


@given(st.binary(max_size=2 * token.TOKEN_BYTES))
@example(b"")
def test_any_bytes_for_a_token_are_refused(received: bytes) -> None:
    """They may have any length."""
    here = token.pack(b"\x5a" * 16, 1, 2)
    refused = token.refusal(received, here)
    assert isinstance(refused, errors.RequestError) == (received != here)


# --- credit --------------------------------------------------------------------------------------------------


class Credit(RuleBasedStateMachine):
    """Requests come and are answered in any order; a dict of the unanswered ones is the model."""

    window = Window(requests=4, payload_bytes=100)
    ids = st.integers(0, 8)

    def __init__(self) -> None:
        super().__init__()
        self.flight: Flight[str] = Flight(self.window, device=3)
        self.out: dict[int, int] = {}
        """Payload bytes by id."""

    @rule(request_id=ids, payload_bytes=st.integers(0, 150))
    def add(self, request_id: int, payload_bytes: int) -> None:
        """Send one, if the window and the id allow it."""
        too_many = len(self.out) == self.window.requests
        too_large = bool(self.out) and sum(self.out.values()) + payload_bytes > self.window.payload_bytes
        if too_many or too_large:
            with pytest.raises(errors.Overloaded) as caught:
                self.flight.add(request_id, f"request {request_id}", payload_bytes)
            assert (caught.value.device, caught.value.window) == (3, self.window.requests)
            assert caught.value.maybe_executed is False
            assert self.flight.let_in(request_id, f"request {request_id}", payload_bytes) == 0
        elif request_id in self.out:
            with pytest.raises(errors.ProtocolError, match=f"request {request_id} "):
                self.flight.add(request_id, "another", payload_bytes)
        else:
            self.flight.add(request_id, f"request {request_id}", payload_bytes)
            self.out[request_id] = payload_bytes

    @rule(request_id=ids)
    def take(self, request_id: int) -> None:
        """Answer one, which may not be out, or is no longer."""
        expected = f"request {request_id}" if request_id in self.out else None
        assert self.flight.take(request_id) == expected
        self.out.pop(request_id, None)

    @invariant()
    def the_items_are_in_order(self) -> None:
        """All that is out, oldest first."""
        assert self.flight.items() == [(request_id, f"request {request_id}") for request_id in self.out]

    @invariant()
    def the_count_is_right(self) -> None:
        """Neither a refusal nor a second answer changes it."""
        assert list(self.flight.requests) == list(self.out)


TestCredit = Credit.TestCase


def test_there_is_no_pid_where_there_is_no_process() -> None:
    """Zero would be the caller's own process group to `os.kill`, so reading it raises."""
    info = DeviceInfo(3, "host:3", DeviceState.REBUILDING, 2, "", False, None, 1, "it crashed")
    with pytest.raises(
        errors.DeviceUnavailable, match=r"device 3 is rebuilding and has no process.*it crashed"
    ) as caught:
        _ = info.pid
    assert (caught.value.device, caught.value.maybe_executed) == (3, False)
    assert msgspec.structs.replace(info, worker_pid=77).pid == 77
    standby = operators.StandbyStatus("hot", "none", None, 0, 0, None)
    with pytest.raises(errors.DeviceUnavailable, match="no process stands by"):
        _ = standby.pid
    assert msgspec.structs.replace(standby, standby_pid=78).pid == 78
