"""Messages between the supervisor and its zygote, over a SOCK_SEQPACKET socket pair: one packet, one message. Pure."""

from __future__ import annotations

from typing import Final

from atomr_mp.protocol.codec import U32, Codec, Message, Name, Text


class Preload(Message, frozen=True, tag="preload"):
    """Import what a pool's workers need beside the runtime; answered `Warmed`. Comes first.

    With a file descriptor, which takes its output from now on.
    """

    pool: Text
    run_dir: Text
    backend: Name
    """Its modules are imported first."""
    modules: list[Text]
    """The pool's own."""
    limits: list[tuple[Text, Text]]
    """Variables that are added to its environment, since modules may read them only once."""


class Fork(Message, frozen=True, tag="fork"):
    """Make a worker's process; answered `Forked` or `ForkRefused`.

    With three file descriptors: its end of the control channel, its board, and what takes its output.
    """

    id: U32
    environment: list[tuple[bytes, bytes]]
    """Its whole environment, which need not be text."""
    parent: U32
    """Pid of the supervisor, which will be the child's parent."""


ToZygote = Preload | Fork


class Warmed(Message, frozen=True, tag="warmed"):
    """The modules are imported."""

    missing: list[Text]
    """Modules that could not be imported, and why."""


class Forked(Message, frozen=True, tag="forked"):
    """The process is there, and the supervisor's child."""

    id: U32
    pid: U32


class ForkRefused(Message, frozen=True, tag="refused"):
    """A fork would not be safe, or failed: start a fresh interpreter."""

    id: U32
    reason: Text


FromZygote = Warmed | Forked | ForkRefused

TO_ZYGOTE: Final[Codec[ToZygote]] = Codec(ToZygote, channel="zygote")
FROM_ZYGOTE: Final[Codec[FromZygote]] = Codec(FromZygote, channel="zygote")

MAX_PACKET_BYTES: Final = 2**17
"""Largest packet: an environment fits, which the kernel limits to about this for each variable."""
