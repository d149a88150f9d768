"""What the relay takes in: any bytes are a message or are refused, and any key is admitted or is refused."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import hypothesis
from hypothesis import strategies

from atomr_mp import errors
from atomr_mp.protocol.codec import Codec
from atomr_mp.protocol.messages import relay, tunnel
from atomr_mp.relay.admission import AdmittedKeys
from atomr_mp.remote import keys


@hypothesis.given(strategies.binary(max_size=4096))
def test_any_bytes_are_a_message_or_refused(raw: bytes) -> None:
    """They may come from a client, from the relay, or from its supervisor."""
    codecs: list[Codec[Any]] = [tunnel.CONTROL, relay.TO_RELAY, relay.FROM_RELAY]
    for codec in codecs:
        with contextlib.suppress(errors.ProtocolError):
            codec.decode(raw)


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
