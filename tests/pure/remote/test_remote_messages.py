"""Messages of remote clients: any bytes are one, or are refused."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import hypothesis
import msgspec
import pytest
from hypothesis import strategies

from atomr_mp import errors
from atomr_mp.gateway.admission import AdmittedKeys
from atomr_mp.protocol.codec import Codec
from atomr_mp.protocol.messages import remote
from atomr_mp.protocol.zmtp.framing import unpack
from atomr_mp.remote import keys

EPOCH = bytes(range(16))
MESSAGES: list[remote.FromRemote] = [
    remote.RemoteHello(1, "a client", EPOCH),
    remote.Resume(
        EPOCH, [remote.Unanswered(3, 2500)], 4, [remote.RemoteGrant(3, 20, 10**6, 4)], [remote.GivenUp(2, 1)]
    ),
    remote.RemoteStreams(
        EPOCH,
        [1],
        [remote.RemoteStream(remote.RemoteCall(3, "Words.tell", 10**6, 1, b"\x91\x01"), 16, 2**24, 10**6, 10**9, 2, 9)],
    ),
    remote.RemoteCredit(EPOCH, [remote.RemoteGrant(3, 24, 2**24, 8)]),
    remote.RemoteCalls(EPOCH, [1, 2], [remote.RemoteCall(3, "Words.count", 10**6, 0, b"\x91\x01")]),
    remote.RemoteCancel(EPOCH, [3]),
    remote.RemoteRelease(EPOCH, 1, [remote.RefsReleased(bytes(22), [7])], [remote.GivenUp(2, 1)]),
    remote.RemoteBye(EPOCH),
]


@pytest.mark.parametrize("message", MESSAGES, ids=[type(each).__name__ for each in MESSAGES])
@hypothesis.given(data=strategies.data())
def test_damaged_bytes_are_a_message_or_refused(message: remote.FromRemote, data: strategies.DataObject) -> None:
    """Cut, flipped or longer: the result is one of the messages, or `ProtocolError`."""
    raw = bytearray(remote.FROM_REMOTE.encode(message))
    for _ in range(data.draw(strategies.integers(1, 4))):
        raw[data.draw(strategies.integers(0, len(raw) - 1))] = data.draw(strategies.integers(0, 255))
    raw = raw[: data.draw(strategies.integers(0, len(raw)))] + data.draw(strategies.binary(max_size=8))
    _decode(bytes(raw))


@hypothesis.given(strategies.binary(max_size=4096))
def test_any_bytes_are_a_message_or_refused(raw: bytes) -> None:
    """They may come from a client, from a gateway, or between a gateway and its supervisor."""
    _decode(raw)
    codecs: list[Codec[Any]] = [remote.TO_REMOTE, remote.TO_GATEWAY, remote.FROM_GATEWAY]
    for codec in (*codecs, remote.FROM_REMOTE_BULK, remote.TO_REMOTE_BULK):
        with contextlib.suppress(errors.ProtocolError):
            codec.decode(raw)


@pytest.mark.parametrize("message", MESSAGES, ids=[type(each).__name__ for each in MESSAGES])
def test_every_message_survives_the_way(message: remote.FromRemote) -> None:
    """As it was."""
    assert remote.FROM_REMOTE.decode(remote.FROM_REMOTE.encode(message)) == message


def test_parts_survive_the_way() -> None:
    """As they were."""
    part = remote.RemotePart(3, 0, 1, b"\x01", 700, [remote.RefLeased(bytes(22), 7)], 1, 2, 0)
    message = remote.RemoteParts(EPOCH, [part, remote.RemotePart(4, 2**40, 0, b"", 10**9, download=10**9)])
    assert remote.TO_REMOTE.decode(remote.TO_REMOTE.encode(message)) == message


@pytest.mark.parametrize("number", [0, -1, 2**53 + 1, 2**63])
def test_an_id_out_of_range_is_refused(number: int) -> None:
    """The gateway's own requests have ids above all that a client may use."""
    raw = msgspec.msgpack.encode(["remote_cancel", EPOCH, [number]])
    with pytest.raises(errors.ProtocolError):
        remote.FROM_REMOTE.decode(raw)


@hypothesis.given(strategies.lists(strategies.binary(max_size=64), max_size=12))
def test_any_question_of_libzmq_is_answered_with_a_refusal(request: list[bytes]) -> None:
    """Whatever it is: only an admitted key is let in."""
    admission = AdmittedKeys(Path("/nonexistent"))
    assert admission.answer(request)[2:3] != [b"200"]


def test_a_revoked_key_is_nobody(tmp_path: Any) -> None:
    """The keys are looked up by what libzmq has named the connection."""
    pair = keys.new_pair()
    keys.change_admitted(
        tmp_path, lambda before: before.admitting(keys.AdmittedKey(name="alice", public=[pair.public]))
    )
    admission = AdmittedKeys(tmp_path)
    admission.read()
    found = admission.find(pair.public)
    assert found is not None
    assert found.name == "alice"
    keys.change_admitted(tmp_path, lambda before: before.revoking("alice")[0])
    admission.read()
    assert admission.find(pair.public) is None
    assert admission.find(None) is None


def _decode(raw: bytes) -> None:
    try:
        header, _ = unpack(memoryview(raw))
        decoded = remote.FROM_REMOTE.decode(header)
    except errors.ProtocolError:
        return
    assert isinstance(decoded, remote.FromRemote)
