"""Admission: answers libzmq's questions about keys (ZAP), and has the rights of each key. Without sockets."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from atomr_mp.protocol.codec import MOST_SESSIONS
from atomr_mp.remote.keys import ADMITTED_FILE, AdmittedKey, read_admitted

ZAP_VERSION: Final = b"1.0"
DOMAIN: Final = b"atomr-mp"
CURVE: Final = b"CURVE"
CURVE_KEY_BYTES: Final = 32

ANYBODY: Final = AdmittedKey(name="anybody", public=["0" * 40], operate=True, sessions=MOST_SESSIONS)
"""The client of a connection without encryption: a process of this machine."""


class AdmittedKeys:
    """The admitted keys.

    Args:
        directory: The directory of the pool's keys; None for no encryption, which admits everybody.
    """

    def __init__(self, directory: Path | None) -> None:
        self._directory = directory
        self._admitted: dict[str, AdmittedKey] = {}
        self._seen: object = None
        """What the file of the keys was like when it was read."""
        self.refused = 0
        """Number of handshakes that were refused."""
        self.refused_from = ""
        """Where the last of them came from."""

    def read(self) -> None:
        """Read the admitted keys.

        Raises:
            ConfigurationError: They cannot be read; the earlier keys stay admitted.
        """
        if self._directory is not None:
            self._seen = self._look()
            self._admitted = read_admitted(self._directory).by_key()

    @property
    def changed(self) -> bool:
        """Whether the file of the keys has changed since it was read, by a command that knows of no running pool."""
        return self._directory is not None and self._look() != self._seen

    def _look(self) -> object:
        assert self._directory is not None
        try:
            found = (self._directory / ADMITTED_FILE).stat()
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns, found.st_size

    def find(self, user_id: str | None) -> AdmittedKey | None:
        """Return the admitted key of a connection by its `User-Id`; None if it is not admitted now."""
        if self._directory is None:
            return ANYBODY
        return None if user_id is None else self._admitted.get(user_id)

    def answer(self, request: Sequence[bytes]) -> list[bytes]:
        """Return the answer to a question from libzmq.

        A question is [version, id, domain, address, routing id, mechanism, credentials, ...].
        """
        if len(request) < 6 or request[0] != ZAP_VERSION:
            return [ZAP_VERSION, *request[1:2], b"500", b"no question", b"", b""]
        number, domain, mechanism, credentials = request[1], request[2], request[5], request[6:]
        key = ""
        if mechanism == CURVE and domain == DOMAIN and len(credentials) == 1 and len(credentials[0]) == CURVE_KEY_BYTES:
            import zmq.utils.z85

            key = zmq.utils.z85.encode(credentials[0]).decode()
        if key and key in self._admitted:
            return [ZAP_VERSION, number, b"200", b"OK", key.encode(), b""]
        self.refused += 1
        self.refused_from = request[3].decode(errors="replace")
        return [ZAP_VERSION, number, b"400", b"this key is not admitted", b"", b""]
