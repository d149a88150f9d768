"""Messages between the supervisor and a worker, over a SOCK_SEQPACKET socket pair: one packet, one message. Pure."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from atomr_mp.protocol.codec import U16, U32, U64, Bytes16, Codec, ErrorInfo, Message, Name, Text
from atomr_mp.protocol.session import ActorInfo, Window


class ActorSpec(Message, frozen=True):
    """A user's actor, named, never pickled."""

    name: Name
    target: Text
    """"package.module:Class" or "path/to/file.py:Class", an absolute path."""


# --- supervisor to worker ------------------------------------------------------------------------------------------


class Start(Message, frozen=True, tag="start"):
    """The first message: what this process is to be."""

    pool: Name
    epoch: Bytes16
    device: U16
    name: Name
    backend: Name
    generation: U32
    endpoint: Text
    """ZeroMQ address to bind."""
    actors: list[ActorSpec]
    window: Window


class SessionOpened(Message, frozen=True, tag="session_opened"):
    """Admit a client; answered `SessionAdmitted`. May come before the worker is ready."""

    number: U32
    """The session's short name on this channel and on the board."""
    session: Bytes16
    secret: Bytes16


class SessionEnded(Message, frozen=True, tag="session_ended"):
    """Discard the session's undecoded requests and refuse its routing ids for ever; answered `SessionClosed`."""

    number: U32


class Drain(Message, frozen=True, tag="drain"):
    """Finish what has been received, answer it, and exit with status 0."""


FromSupervisor = Start | SessionOpened | SessionEnded | Drain


# --- worker to supervisor ------------------------------------------------------------------------------------------


class Ready(Message, frozen=True, tag="ready"):
    """All actors are set up and the data socket is bound."""

    actors: list[ActorInfo]


class SessionAdmitted(Message, frozen=True, tag="session_admitted"):
    """Calls of the session will be taken."""

    number: U32


class SessionClosed(Message, frozen=True, tag="session_closed"):
    """Nothing of the session will be started any more."""

    number: U32


class SessionViolated(Message, frozen=True, tag="session_violated"):
    """The session broke the rules of the data plane and should be ended."""

    number: U32
    reason: Annotated[str, msgspec.Meta(max_length=2000)]


class Fault(Message, frozen=True, tag="fault"):
    """The worker cannot go on, and exits: set-up failed, or the context is poisoned."""

    error: ErrorInfo
    started_ns: U64 = 0


FromWorker = Ready | SessionAdmitted | SessionClosed | SessionViolated | Fault

FROM_SUPERVISOR: Final[Codec[FromSupervisor]] = Codec(FromSupervisor, channel="control")
FROM_WORKER: Final[Codec[FromWorker]] = Codec(FromWorker, channel="control")
