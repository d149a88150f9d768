"""Messages of every channel: any bytes are a message or a typed error, and a message can be sent on."""

from __future__ import annotations

import contextlib
import random
from typing import Any, ClassVar, Final

from msgspec import inspect

from atomr_mp import errors
from atomr_mp.protocol.codec import Codec
from atomr_mp.protocol.libraries import program
from atomr_mp.protocol.messages import control, data, health, relay, session, tunnel, zygote
from fuzzing.target import Target
from fuzzing.valid import value_of

CHANNELS: Final[dict[str, tuple[Codec[Any], Any]]] = {
    "data-from-client": (data.FROM_CLIENT, data.FromClient),
    "data-from-worker": (data.FROM_WORKER, data.FromWorker),
    "session-from-client": (session.FROM_CLIENT, session.FromClient),
    "session-from-supervisor": (session.FROM_SUPERVISOR, session.FromSupervisor),
    "control-from-supervisor": (control.FROM_SUPERVISOR, control.FromSupervisor),
    "control-from-worker": (control.FROM_WORKER, control.FromWorker),
    "tunnel": (tunnel.CONTROL, tunnel.Control),
    "to-relay": (relay.TO_RELAY, relay.ToRelay),
    "from-relay": (relay.FROM_RELAY, relay.FromRelay),
    "to-zygote": (zygote.TO_ZYGOTE, zygote.ToZygote),
    "from-zygote": (zygote.FROM_ZYGOTE, zygote.FromZygote),
    "from-health": (health.FROM_HEALTH, health.FromHealth),
    "program": (program.DEFINITIONS, program.Definition),
}


class Messages(Target):
    """One channel's messages."""

    _codec: ClassVar[Codec[Any]]
    _info: ClassVar[inspect.Type]

    @classmethod
    def of(cls, channel: str) -> type[Messages]:
        """Return a channel's target."""
        codec, union = CHANNELS[channel]
        return type(channel, (cls,), {"name": channel, "_codec": codec, "_info": inspect.type_info(union)})

    def make(self, rng: random.Random) -> bytes:
        """Return a message."""
        return self._codec.encode(value_of(rng, self._info))

    def check(self, data: bytes) -> None:
        """Decode it; if it is a message, encode it again, and make errors of what says it is one."""
        with contextlib.suppress(errors.ProtocolError):
            message = self._codec.decode(data)
            self._codec.decode(self._codec.encode(message))
            error = getattr(message, "error", None)
            if error is not None:
                str(error.error())
