"""Access control: tokens, the request's `Host`, and the `Origin` of a browser's page.

Loopback is not private: every user of the machine reaches it, and so does every web page that a user opens. So a token
is required there too. An unknown name in `Host` is refused, since a page's own name may be made to resolve to this
machine. An `Origin` other than this server is refused as well.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import os
import stat
import time
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Final

from atomr_mp import errors
from atomr_mp.protocol.hosts import is_address, without_port
from atomr_mp.protocol.words import counted
from atomr_mp.serve.http.cors import NO_CORS, Cors
from atomr_mp.serve.problems import Problem

_LOG: Final = logging.getLogger("atomr_mp.serve")

EMPTY_S: Final = 1.0
"""How long the file of tokens may be empty or missing, as while it is replaced, before none of it is valid."""

MOST_FILE_BYTES: Final = 2**20

MOST_KNOWN: Final = 64
"""How many spellings of our names, and of tokens, are remembered."""

MIN_TOKEN_CHARS: Final = 16
"""Fewest characters of a token; a shorter one can be guessed."""

CHALLENGE: Final = ((b"www-authenticate", b'Bearer realm="atomr-mp"'),)


class Tokens:
    """The tokens that are valid now: given ones, and those of a file, which may change while it is used.

    A file that is empty or missing for a moment is being replaced, and its tokens stay valid for so long. After that
    none of the file is valid.

    Args:
        given: Tokens.
        file: A file with one token a line; empty lines and lines that begin with # are skipped. None for no file.

    A file that cannot be used when this is made is looked at again, as any other time: `read_tokens` refuses it.

    Raises:
        ConfigurationError: A given token is too short.
    """

    def __init__(self, given: Iterable[str] = (), file: Path | None = None) -> None:
        self._given: Final = [_digest(token) for token in checked(given)]
        self._file: Final = file
        self._stamp = None if file is None else _stamp(file)
        found, wrong = ([], "") if file is None else _lenient(file)
        self._of_file: list[bytes] = [_digest(token) for token in found]
        if wrong:
            self._tell(len(found), wrong)
        self._empty_s: float | None = None
        """The time since which the file has no valid token; None if it has one."""

    def __bool__(self) -> bool:
        return bool(self._given or self._file)

    def admits(self, digest: bytes) -> bool:
        """Return whether the token of a digest is valid; takes as long for every invalid one."""
        good = False
        for each in (*self._given, *self._of_file):
            good |= hmac.compare_digest(each, digest)
        return good

    def look_again(self) -> bool:
        """Read the file again if it has changed; return whether other tokens are valid now."""
        if self._file is None:
            return False
        stamp = _stamp(self._file)
        if stamp == self._stamp and self._empty_s is None:
            return False
        found, wrong = _lenient(self._file)
        if not found:
            now_s = time.monotonic()
            if self._empty_s is None:
                self._empty_s = now_s
            if now_s - self._empty_s < EMPTY_S:
                return False
        if stamp != self._stamp or not found:
            self._tell(len(found), wrong)
        self._stamp = stamp
        self._empty_s = None
        before, self._of_file = self._of_file, [_digest(token) for token in found]
        return before != self._of_file

    def _tell(self, count: int, wrong: str) -> None:
        if count:
            _LOG.warning("the token file %s was read again: %s%s", self._file, counted(count, "valid token"), wrong)
        elif self._of_file or wrong:
            _LOG.error("the token file %s has no valid token%s; no token of it is valid now", self._file, wrong)


class Access:
    """Decides which requests are answered.

    Args:
        tokens: Every request needs one of these. If there are none, no request needs a token.
        hosts: Names, with or without a port, that `Host` may have; None for any.
        cors: Decides which web pages of other origins may ask.
    """

    def __init__(self, tokens: Tokens, hosts: Collection[str] | None, cors: Cors = NO_CORS) -> None:
        self.cors: Final = cors
        self._tokens: Final = tokens
        self._valid: Final[dict[bytes, bytes]] = {}
        """Digests of tokens by headers that were found valid."""
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
        if not self._is_ours(host):
            raise Problem(
                403,
                "host_not_allowed",
                f"this server is not {host[:100] or 'without a name'!r}; name it with --allowed-host if it is",
            )
        if len(self._known) < MOST_KNOWN:
            self._known.add(named)
        if origin is not None and (self._hosts is not None or self._tokens or self.cors or _is_form(headers)):
            scheme, separator, name = origin.decode("latin-1").lower().partition("://")
            is_own = bool(separator) and scheme in {"http", "https"} and name == host
            if not is_own and not self.cors.admits(origin):
                raise Problem(
                    403,
                    "origin_not_allowed",
                    "a web page of another origin may not ask; ask from a program, or name the origin by --cors-origin",
                )

    def _is_ours(self, host: str) -> bool:
        """Return whether a name may be this server's."""
        name = without_port(host)
        return self._hosts is None or host in self._hosts or name in self._hosts or is_address(name)

    def check_token(self, headers: dict[bytes, bytes]) -> bytes:
        """Refuse a request without a valid token; return the token's digest, empty if none is needed.

        Raises:
            Problem: 401.
        """
        if not self._tokens:
            return b""
        shown = headers.get(b"authorization", b"")
        if (known := self._valid.get(shown)) is not None:
            return known
        scheme, _, token = shown.decode("latin-1").partition(" ")
        if scheme.lower() != "bearer" or not token:
            raise Problem(401, "unauthorized", "send the header `Authorization: Bearer TOKEN`", headers=CHALLENGE)
        digest = _digest(token.strip())
        if not self._tokens.admits(digest):
            raise Problem(401, "unauthorized", "this token is not known here", headers=CHALLENGE)
        if len(self._valid) < MOST_KNOWN:
            self._valid[shown] = digest
        return digest

    def look_again(self) -> bool:
        """Read the file of tokens again if it has changed; return whether other tokens are valid now."""
        changed = self._tokens.look_again()
        if changed:
            self._valid.clear()
        return changed

    def admits(self, digest: bytes) -> bool:
        """Return whether a request that was admitted by `check_token` would still be."""
        return not self._tokens or self._tokens.admits(digest)


def _is_form(headers: dict[bytes, bytes]) -> bool:
    """Return whether a body is one that a browser sends to another origin without asking there first."""
    return headers.get(b"content-type", b"").lstrip()[:10].lower() == b"multipart/"


def read_tokens(file: Path) -> list[str]:
    """Return the tokens of a file.

    Raises:
        ConfigurationError: The file cannot be used, has no token, or a token is too short.
    """
    tokens = _lines(_content(file))
    if not tokens:
        raise errors.ConfigurationError(f"the token file {file} has no token; write one a line")
    return checked(tokens)


def _lines(content: bytes) -> list[str]:
    lines = (line.strip().decode("ascii", "replace") for line in content.splitlines())
    return [line for line in lines if line and not line.startswith("#")]


def _content(file: Path) -> bytes:
    """Return a file's content after a look at who may change it; links are followed, as secrets of Kubernetes are.

    Raises:
        ConfigurationError: It cannot be read, or others may write it.
    """
    try:
        # Without waiting: a pipe in its place would keep the front end from everybody.
        descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            _check(file, os.fstat(descriptor))
            with os.fdopen(descriptor, "rb", closefd=False) as opened:
                return opened.read(MOST_FILE_BYTES)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise errors.ConfigurationError(f"the token file {file} cannot be read: {error}") from error


def _check(file: Path, found: os.stat_result) -> None:
    """Check what kind of file it is, and who may change it.

    Raises:
        ConfigurationError: It is not used.
    """
    if not stat.S_ISREG(found.st_mode):
        raise errors.ConfigurationError(f"the token file {file} is no regular file")
    if found.st_uid not in {0, os.geteuid()}:
        raise errors.ConfigurationError(f"the token file {file} is neither this user's nor root's")
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise errors.ConfigurationError(f"the token file {file} can be written by others: chmod go-w {file}")
    if found.st_mode & stat.S_IROTH:
        _LOG.warning("the token file %s can be read by every user of this machine", file)
    if found.st_size > MOST_FILE_BYTES:
        raise errors.ConfigurationError(f"the token file {file} has more than {MOST_FILE_BYTES} bytes")


def _lenient(file: Path) -> tuple[list[str], str]:
    """Return the valid tokens of a file, and what is wrong with the file, empty if nothing is."""
    try:
        lines = _lines(_content(file))
    except errors.ConfigurationError as error:
        return [], f" ({error})"
    valid = [line for line in lines if _is_good(line)]
    bad = len(lines) - len(valid)
    return valid, f" ({counted(bad, 'line')} of it cannot be a token)" if bad else ""


def _is_good(token: str) -> bool:
    return len(token) >= MIN_TOKEN_CHARS and token.isascii() and token.isprintable() and " " not in token


def checked(tokens: Iterable[str]) -> list[str]:
    """Return tokens after checking that a header can carry them and that they are hard to guess.

    Raises:
        ConfigurationError: A token is too short, or has a character that no header may have.
    """
    found = list(tokens)
    if not all(map(_is_good, found)):
        raise errors.ConfigurationError(
            f"a token has at least {MIN_TOKEN_CHARS} characters, printable ones of ASCII without spaces; "
            "`openssl rand -hex 32` makes one"
        )
    return found


def _digest(token: str) -> bytes:
    """Return a token's digest; digests of equal length are compared in equal time."""
    return hashlib.sha256(token.encode("utf-8", "replace")).digest()


def _stamp(file: Path) -> tuple[int, ...]:
    """Return figures that differ once a file was replaced or written; empty if it is missing."""
    try:
        found = file.stat()
    except OSError:
        return ()
    return found.st_mtime_ns, found.st_ino, found.st_size, found.st_mode, found.st_uid
