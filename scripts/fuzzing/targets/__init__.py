"""All targets, one file for each part of the code."""

from __future__ import annotations

from typing import Final

from fuzzing.target import Target
from fuzzing.targets.annotations import Arguments
from fuzzing.targets.boards import Boards
from fuzzing.targets.bodies import Bodies, Refs
from fuzzing.targets.http import Forms, JsonBodies, Npy, OpenaiBodies
from fuzzing.targets.http_streams import HttpStream
from fuzzing.targets.journals import Journals
from fuzzing.targets.live import Client, Control, Remote, Session, Users
from fuzzing.targets.messages import CHANNELS, Messages
from fuzzing.targets.streams import DealerStream, Packed, RouterStream, SessionStream

_PURE: Final[list[type[Target]]] = [
    *(Messages.of(channel) for channel in CHANNELS),
    *(Packed, SessionStream, RouterStream, DealerStream),
    *(Bodies, Refs, Arguments, JsonBodies, OpenaiBodies, Npy, Forms, HttpStream, Journals, Boards),
]
_LIVE: Final[list[type[Target]]] = [Client, Session, Control, Remote, Users]

PURE: Final = {target.name: target for target in _PURE}
"""Targets that need no process."""

LIVE: Final = {target.name: target for target in _LIVE}
"""Targets that start a pool."""

TARGETS: Final = PURE | LIVE
