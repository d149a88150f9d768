"""Access control: tokens, the request's `Host`, and the `Origin` of a browser's page.

Loopback is not private: every user of the machine reaches it, and so does every web page that a user opens. So a token
is required there too. An unknown name in `Host` is refused, since a page's own name may be made to resolve to this
machine. An `Origin` other than this server is refused as well.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import time
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Final

from atomr_mp import errors
from atomr_mp.serve.http.problems import Problem

LOOK_AGAIN_S: Final = 1.0
"""How often the file of tokens is checked for changes."""

MOST_KNOWN: Final = 64
"""How many spellings of our names are remembered."""

MIN_TOKEN_CHARS: Final = 16
"""Fewest characters of a token; a shorter one can be guessed."""

LOCAL_HOSTS: Final = frozenset({"localhost", "127.0.0.1", "[::1]"})

CHALLENGE: Final = ((b"www-authenticate", b'Bearer realm="atomr-mp"'),)


class Tokens:
    """The tokens that are valid now: given ones, and those of a file, which may change while it is used.

    Args:
        given: Tokens.
        file: A file with one token a line; empty lines and lines that begin with # are skipped. None for no file.

    Raises:
        ConfigurationError: The file cannot be read, has no token, or a token is too short.
    """

    def __init__(self, given: Iterable[str] = (), file: Path | None = None) -> None:
        self._given: Final = [_digest(token) for token in checked(given)]
        self._file: Final = file
        self._of_file: list[bytes] = [] if file is None else [_digest(token) for token in read_tokens(file)]
        self._stamp = None if file is None else _stamp(file)
        self._looked_s = time.monotonic()

    def __bool__(self) -> bool:
        return bool(self._given or self._file)

    def admits(self, token: str) -> bool:
        """Return whether a token is valid; takes as long for every invalid one."""
        digest = _digest(token)
        good = False
        for each in (*self._given, *self._of_file):
            good |= hmac.compare_digest(each, digest)
        return good

    def look_again(self) -> bool:
        """Read the file again if it has changed; return whether it was checked.

        If it cannot be read now, its earlier tokens stay valid.
        """
        if self._file is None:
            return False
        now_s = time.monotonic()
        if now_s - self._looked_s < LOOK_AGAIN_S:
            return False
        self._looked_s = now_s
        try:
            stamp = _stamp(self._file)
            if stamp != self._stamp:
                self._of_file = [_digest(token) for token in read_tokens(self._file)]
                self._stamp = stamp
        except (errors.ConfigurationError, OSError):
            pass
        return True


class Access:
    """Decides which requests are answered.

    Args:
        tokens: Every request needs one of these. If there are none, no request needs a token.
        hosts: Names, with or without a port, that `Host` may have; None for any.
    """

    def __init__(self, tokens: Tokens, hosts: Collection[str] | None) -> None:
        self._tokens: Final = tokens
        self._last = b""
        """The last header that was valid."""
        self._known: set[bytes] = set()
        """Values of `Host` that were found to be ours."""
        self._hosts: Final = None if hosts is None else frozenset(host.lower() for host in hosts)

    @property
    def needs_token(self) -> bool:
        """Whether requests need a token."""
        return bool(self._tokens)

    def check_origin(self, headers: dict[bytes, bytes]) -> None:
        """Refuse a request of another origin's web page, or one that was sent to a name that is not ours.

        Raises:
            Problem: 403.
        """
        named = headers.get(b"host", b"")
        origin = headers.get(b"origin")
        if origin is None and named in self._known:
            return
        host = named.decode("latin-1").lower()
        if self._hosts is not None and host not in self._hosts and without_port(host) not in self._hosts:
            raise Problem(
                403,
                "host_not_allowed",
                f"this server is not {host[:100] or 'without a name'!r}; name it with --allowed-host if it is",
            )
        if len(self._known) < MOST_KNOWN:
            self._known.add(named)
        if origin is not None and (self._hosts is not None or self._tokens):
            scheme, separator, name = origin.decode("latin-1").lower().partition("://")
            if not separator or scheme not in {"http", "https"} or name != host:
                raise Problem(
                    403, "origin_not_allowed", "a web page of another origin may not ask; ask from a program instead"
                )

    def check_token(self, headers: dict[bytes, bytes]) -> None:
        """Refuse a request without a valid token.

        Raises:
            Problem: 401.
        """
        if not self._tokens:
            return
        shown = headers.get(b"authorization", b"")
        if self._tokens.look_again():
            self._last = b""
        if self._last and hmac.compare_digest(shown, self._last):
            return
        scheme, _, token = shown.decode("latin-1").partition(" ")
        if scheme.lower() != "bearer" or not token:
            raise Problem(401, "unauthorized", "send the header `Authorization: Bearer TOKEN`", headers=CHALLENGE)
        if not self._tokens.admits(token.strip()):
            raise Problem(401, "unauthorized", "this token is not known here", headers=CHALLENGE)
        self._last = shown


def without_port(host: str) -> str:
    """Return the name in a `Host` header."""
    name, separator, port = host.rpartition(":")
    return name if separator and port.isdigit() else host


def read_tokens(file: Path) -> list[str]:
    """Return the tokens of a file.

    Raises:
        ConfigurationError: The file cannot be read, has no token, or a token is too short.
    """
    try:
        lines = [line.strip() for line in file.read_text(encoding="utf-8").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise errors.ConfigurationError(f"the token file {file} cannot be read: {error}") from error
    tokens = [line for line in lines if line and not line.startswith("#")]
    if not tokens:
        raise errors.ConfigurationError(f"the token file {file} has no token; write one a line")
    return checked(tokens)


def checked(tokens: Iterable[str]) -> list[str]:
    """Return tokens after checking that a header can carry them and nobody can guess them.

    Raises:
        ConfigurationError: A token is too short, or has a character that no header may have.
    """
    found = list(tokens)
    for token in found:
        if len(token) < MIN_TOKEN_CHARS or not token.isascii() or not token.isprintable() or " " in token:
            raise errors.ConfigurationError(
                f"a token has at least {MIN_TOKEN_CHARS} characters, printable ones of ASCII without spaces; "
                "`openssl rand -hex 32` makes one"
            )
    return found


def _digest(token: str) -> bytes:
    """Return a token's digest; digests of equal length are compared in equal time."""
    return hashlib.sha256(token.encode("utf-8", "replace")).digest()


def _stamp(file: Path) -> tuple[int, int, int]:
    found = os.stat(file)  # noqa: PTH116 - once a second, on the way of a request
    return found.st_mtime_ns, found.st_ino, found.st_size
