"""Key files: a client's own, the server's, and the list of admitted clients. Only their owner may read them.

A client's file has its key pair and the server's public key. A pool's keys are in a directory outside its run
directory: `server.key`, and `admitted.json`, which says who may connect and with which rights. Files are replaced as a
whole, so a reader never sees half of one.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Final, NamedTuple, TypeVar

import msgspec

from atomr_mp import errors
from atomr_mp.protocol.codec import LEAST_SESSION_BYTES, MAX_WEIGHT, MIN_WEIGHT, MOST_SESSIONS
from atomr_mp.protocol.decoders import known

KEY_CHARS: Final = 40
"""Length of a CURVE key in Z85."""

SERVER_FILE: Final = "server.key"
ADMITTED_FILE: Final = "admitted.json"
MAX_FILE_BYTES: Final = 2**20

KEYS_OF_A_NAME: Final = 2
"""How many keys of a name are admitted at a time: the old and the new one while a client changes keys."""

Z85: Final = r"[0-9a-zA-Z.\-:+=^!/*?&<>()\[\]{}@%$#]{40}"
Key = Annotated[str, msgspec.Meta(pattern=f"^{Z85}$")]
ClientName = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")]


class KeyPair(NamedTuple):
    """A CURVE key pair, in Z85."""

    public: str
    secret: str


class ClientKeys(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A client's key file."""

    name: ClientName
    public: Key
    secret: Key
    server: Key
    """The server's public key: the client speaks to no other server."""


class ServerKeys(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A server's key file."""

    public: Key
    secret: Key


class AdmittedKey(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An admitted client and its rights."""

    name: ClientName
    public: Annotated[list[Key], msgspec.Meta(min_length=1, max_length=KEYS_OF_A_NAME)]
    operate: bool = False
    """Whether the client may give orders: restart, reload, admit, stop."""
    weight: Annotated[float, msgspec.Meta(ge=MIN_WEIGHT, le=MAX_WEIGHT)] = 1.0
    """The share of each of its sessions in a busy device's time, beside other clients."""
    sessions: Annotated[int, msgspec.Meta(ge=1, le=MOST_SESSIONS)] = 16
    """Most sessions at a time."""
    max_bytes: Annotated[int, msgspec.Meta(ge=LEAST_SESSION_BYTES)] = 256 * 2**20
    """Most bytes of shared memory for the arrays of unanswered calls of each of its sessions."""
    kernels: bool = False
    """Whether the client may use kernels of its own where clients of the pool's machine may (kernels = "local")."""

    @property
    def rights(self) -> set[str]:
        """The options with which `keys admit` has given it more than calls."""
        return {f"--{name}" for name in ("operate", "kernels") if getattr(self, name)}


class Admitted(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The list of admitted clients."""

    keys: list[AdmittedKey] = []

    def by_key(self) -> dict[str, AdmittedKey]:
        """Return the admitted clients by public key."""
        return {public: each for each in self.keys for public in each.public}

    def find(self, name: str) -> AdmittedKey | None:
        """Return the client with a name, None if there is none."""
        return next((each for each in self.keys if each.name == name), None)

    def admitting(self, new: AdmittedKey) -> Admitted:
        """Return the list with one more key: a new client's, or a client's second.

        Raises:
            ConfigurationError: The key is another client's, or the client has two keys already.
        """
        (public,) = new.public
        owner = self.by_key().get(public)
        if owner is not None and owner.name != new.name:
            raise errors.ConfigurationError(f"this key is admitted already, as that of {owner.name}")
        before = self.find(new.name)
        keys = [*(before.public if before else []), public]
        keys = list(dict.fromkeys(keys))
        if len(keys) > KEYS_OF_A_NAME:
            raise errors.ConfigurationError(
                f"{new.name} has {KEYS_OF_A_NAME} keys already; revoke the old one first: atomr-mp keys revoke "
                f"'{keys[0]}'"
            )
        others = [each for each in self.keys if each.name != new.name]
        return Admitted(keys=[*others, msgspec.structs.replace(new, public=keys)])

    def revoking(self, what: str) -> tuple[Admitted, int]:
        """Return the list without a client's keys, or without one key, and the number of keys removed.

        Raises:
            ConfigurationError: There is no such client and no such key.
        """
        left, revoked = [], 0
        for each in self.keys:
            keys = [] if each.name == what else [public for public in each.public if public != what]
            revoked += len(each.public) - len(keys)
            if keys:
                left.append(msgspec.structs.replace(each, public=keys))
        if not revoked:
            raise errors.ConfigurationError(f"{what!r} is no admitted client and no admitted key")
        return Admitted(keys=left), revoked


def default_keys_dir(pool: str) -> Path:
    """Return the default directory of a pool's keys."""
    base = os.environ.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    return Path(base) / "atomr-mp" / "keys" / pool


def new_pair() -> KeyPair:
    """Return a new key pair. The public key never begins with "-", which commands would take for an option.

    Raises:
        ConfigurationError: The installed libzmq has no CURVE.
    """
    import zmq

    if not zmq.has("curve"):
        raise errors.ConfigurationError("the installed libzmq has no CURVE; install pyzmq from a wheel")
    public, secret = zmq.curve_keypair()
    while public.startswith(b"-"):
        public, secret = zmq.curve_keypair()
    return KeyPair(public.decode(), secret.decode())


def read_client(path: Path) -> ClientKeys:
    """Read a client's key file.

    Raises:
        ConfigurationError: The file does not exist, others may read it, or it is not a client's key file.
    """
    return _read(path, ClientKeys, "a client's key file, as `atomr-mp keys new NAME` writes it")


def read_server(directory: Path) -> ServerKeys:
    """Read a server's keys.

    Raises:
        ConfigurationError: As for `read_client`.
    """
    return _read(directory / SERVER_FILE, ServerKeys, "a server's key file, as `atomr-mp keys new` writes it")


def read_admitted(directory: Path) -> Admitted:
    """Read the list of admitted clients; empty if there is none.

    Raises:
        ConfigurationError: Others may read or write it, or it is not such a list.
    """
    path = directory / ADMITTED_FILE
    if not path.exists():
        return Admitted()
    return _read(path, Admitted, "a list of admitted keys")


def write_new(path: Path, keys: ClientKeys | ServerKeys) -> None:
    """Write a new key file.

    Raises:
        ConfigurationError: The file exists, or cannot be written.
    """
    try:
        _make_private(path.parent)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(_text(keys))
    except FileExistsError as error:
        raise errors.ConfigurationError(f"{path} exists; a key is never overwritten: remove or rename it") from error
    except OSError as error:
        raise errors.ConfigurationError(f"{path} cannot be written: {error.strerror}") from error


def change_admitted(directory: Path, change: Callable[[Admitted], Admitted]) -> Admitted:
    """Replace the list of admitted clients as a whole, one process at a time; return the new list.

    Raises:
        ConfigurationError: It cannot be read or written.
    """
    import fcntl

    try:
        _make_private(directory)
        lock = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            changed = change(read_admitted(directory))
            temporary = directory / f".{ADMITTED_FILE}.{os.getpid()}"
            temporary.unlink(missing_ok=True)
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(_text(changed))
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(directory / ADMITTED_FILE)
        finally:
            os.close(lock)
    except OSError as error:
        raise errors.ConfigurationError(f"{directory}: the admitted keys cannot be written: {error}") from error
    return changed


def check_outside(directory: Path, run_dir: Path) -> None:
    """Check that keys are outside the run directory, where the pool's processes write and a start cleans.

    Raises:
        ConfigurationError: They are inside.
    """
    if directory.absolute().is_relative_to(run_dir.absolute()):
        raise errors.ConfigurationError(f"keys_dir = {str(directory)!r} is in the run directory; keep keys elsewhere")


K = TypeVar("K", ClientKeys, ServerKeys, Admitted)


def _read(path: Path, kind: type[K], what: str) -> K:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            found = os.fstat(file.fileno())
            content = file.read(MAX_FILE_BYTES)
    except OSError as error:
        raise errors.ConfigurationError(f"{path}, {what}, cannot be read: {error.strerror}") from error
    if found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o077:
        raise errors.ConfigurationError(f"{path} has to be yours, and readable by nobody else (chmod 600)")
    try:
        return msgspec.json.decode(content, type=known(kind))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise errors.ConfigurationError(f"{path} is not {what}: {error}") from error


def _make_private(directory: Path) -> None:
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)


def _text(content: ClientKeys | ServerKeys | Admitted) -> bytes:
    return msgspec.json.format(msgspec.json.encode(content), indent=2) + b"\n"


def check_key(text: str) -> str:
    """Return a public key that a person has entered.

    Raises:
        ConfigurationError: It is not a public key.
    """
    try:
        return msgspec.convert(text, known(Key))
    except msgspec.ValidationError as error:
        raise errors.ConfigurationError(
            f"{text!r} is not a public key: {KEY_CHARS} characters of Z85, as `atomr-mp keys new` prints them; quote it"
        ) from error


def check_name(text: str) -> str:
    """Return a client's name that a person has entered.

    Raises:
        ConfigurationError: It cannot be a client's name.
    """
    try:
        return msgspec.convert(text, known(ClientName))
    except msgspec.ValidationError as error:
        raise errors.ConfigurationError(f"{text!r} is not a name: use letters, digits, '_', '.' and '-'") from error
