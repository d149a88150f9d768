"""`atomr-mp keys`: who may connect from other machines."""

from __future__ import annotations

import argparse
import contextlib
import sys
from pathlib import Path

from atomr_mp import errors
from atomr_mp.cli.common import Commands, add_pool, counted, real, whole
from atomr_mp.protocol.codec import LEAST_SESSION_BYTES, MAX_WEIGHT, MIN_WEIGHT, MOST_SESSIONS


def add(commands: Commands) -> argparse.ArgumentParser:
    """Declare the command and those below it."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "keys",
        help="make, admit, revoke and list the keys of remote clients",
        description="Manages who may connect to a pool from other machines (`listen`). A client's secret never leaves "
        "its machine: it makes a pair, and the server admits the public key. A running relay is told at once.",
    )
    below = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    new = below.add_parser(
        "new",
        help="make a key pair: the server's, or with NAME a client's",
        description="Without NAME makes the pool's own key pair and prints its public key. With NAME writes a client's "
        "key file and prints the public key that the server has to admit.",
    )
    new.add_argument("name", metavar="NAME", nargs="?", help="the client's name")
    new.add_argument("--server", metavar="KEY", help="the server's public key; needed with NAME")
    new.add_argument("--out", metavar="FILE", type=Path, help="the client's key file (default: NAME.key)")
    new.set_defaults(run=_new)
    admit = below.add_parser(
        "admit",
        help="admit a client's public key",
        description="Admits a client. A client may have two keys at a time, to change from one to the other; the "
        "options hold for both.",
    )
    admit.add_argument("name", metavar="NAME", help="the client's name")
    admit.add_argument("key", metavar="KEY", help="its public key")
    admit.add_argument("--operate", action="store_true", help="it may give orders: restart, reload, admit")
    admit.add_argument(
        "--kernels",
        action="store_true",
        help="it may launch kernels of its own, as clients of the pool's machine (kernels = 'local')",
    )
    admit.add_argument(
        "--weight",
        type=real(MIN_WEIGHT, MAX_WEIGHT),
        default=1.0,
        metavar="W",
        help="its share of a busy device (default: 1)",
    )
    admit.add_argument(
        "--sessions",
        type=whole(1, MOST_SESSIONS),
        default=16,
        metavar="N",
        help="most sessions at a time (default: 16)",
    )
    admit.add_argument(
        "--max-bytes",
        type=whole(LEAST_SESSION_BYTES),
        default=256 * 2**20,
        metavar="N",
        help="most shared memory for the arrays of each session's calls (default: 256 MiB)",
    )
    admit.set_defaults(run=_admit)
    revoke = below.add_parser(
        "revoke",
        help="revoke a client, or one of its keys",
        description="Revokes all keys of a client, or one key. Sessions of a revoked key end at once.",
    )
    revoke.add_argument("what", metavar="NAME|KEY", help="the client's name, or one public key")
    revoke.set_defaults(run=_revoke)
    listing = below.add_parser(
        "list",
        help="list the admitted clients",
        description="Prints the server's public key, and lists the admitted clients.",
    )
    listing.set_defaults(run=_list)
    for each in (new, admit, revoke, listing):
        add_pool(each)
        each.add_argument(
            "--keys-dir",
            type=Path,
            metavar="DIR",
            help="where the pool's keys are (default: ATOMR_MP_KEYS_DIR, or ~/.config/atomr-mp/keys/POOL)",
        )
    return parser


def _new(options: argparse.Namespace) -> int:
    from atomr_mp.remote import keys

    pair = keys.new_pair()
    if options.name is None:
        path = _directory(options) / keys.SERVER_FILE
        keys.write_new(path, keys.ServerKeys(public=pair.public, secret=pair.secret))
        sys.stderr.write(f"the server's key is in {path}; its public key, for clients:\n")
    else:
        if options.server is None:
            raise errors.ConfigurationError(
                "a client's key file has the server's public key: --server KEY, as `atomr-mp keys new` printed it there"
            )
        name, server = keys.check_name(options.name), keys.check_key(options.server)
        path = options.out or Path(f"{name}.key")
        keys.write_new(path, keys.ClientKeys(name=name, public=pair.public, secret=pair.secret, server=server))
        sys.stderr.write(f"the client's key is in {path}; on the server: atomr-mp keys admit {name} KEY, which is:\n")
    sys.stdout.write(f"{pair.public}\n")
    return 0


def _admit(options: argparse.Namespace) -> int:
    import msgspec

    from atomr_mp.protocol.decoders import known
    from atomr_mp.remote import keys

    try:
        admitted = msgspec.convert(
            {
                "name": keys.check_name(options.name),
                "public": [keys.check_key(options.key)],
                "operate": options.operate,
                "kernels": options.kernels,
                "weight": options.weight,
                "sessions": options.sessions,
                "max_bytes": options.max_bytes,
            },
            known(keys.AdmittedKey),
        )
    except msgspec.ValidationError as error:
        raise errors.ConfigurationError(str(error)) from error
    keys.change_admitted(_directory(options), lambda before: before.admitting(admitted))
    _tell(options)
    sys.stdout.write(f"{options.name} is admitted\n")
    return 0


def _revoke(options: argparse.Namespace) -> int:
    from atomr_mp.remote import keys

    revoked = 0

    def without(before: keys.Admitted) -> keys.Admitted:
        nonlocal revoked
        after, revoked = before.revoking(options.what)
        return after

    keys.change_admitted(_directory(options), without)
    _tell(options)
    sys.stdout.write(f"{counted(revoked, 'key')} revoked\n")
    return 0


def _list(options: argparse.Namespace) -> int:
    from atomr_mp.remote import keys

    directory = _directory(options)
    if (directory / keys.SERVER_FILE).exists():
        sys.stdout.write(f"the server's public key: {keys.read_server(directory).public}\n")
    for each in sorted(keys.read_admitted(directory).keys, key=lambda admitted: admitted.name):
        rights = ("operate" if each.operate else "call") + (", kernels" if each.kernels else "")
        sys.stdout.write(
            f"{each.name}: {rights}, weight {each.weight:g}, {counted(each.sessions, 'session')}, "
            f"{each.max_bytes} bytes a session\n"
        )
        for public in each.public:
            sys.stdout.write(f"    {public}\n")
    return 0


def _tell(options: argparse.Namespace) -> None:
    """Tell the running relay to read the keys. Without a running pool, the next one reads them.

    Raises:
        ConfigurationError: It cannot read them.
    """
    from atomr_mp.cli.common import observe, open_pool

    with contextlib.suppress(errors.PoolUnreachable, errors.InvalidRequest), observe(open_pool(options)) as observer:
        observer.read_keys()


def _directory(options: argparse.Namespace) -> Path:
    """Return where the pool's keys are."""
    import os

    from atomr_mp.remote import keys

    named = options.keys_dir or os.environ.get("ATOMR_MP_KEYS_DIR")  # the setting's variable, as `start` takes it
    if named:
        return Path(named)
    if options.run_dir is not None:
        raise errors.ConfigurationError("the pool is named by its run directory, so its keys need --keys-dir")
    return keys.default_keys_dir(options.pool or os.environ.get("ATOMR_MP_POOL", "default"))
