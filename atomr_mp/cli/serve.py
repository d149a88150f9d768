"""`atomr-mp serve`: HTTP over a pool, its own or one that runs."""

from __future__ import annotations

import argparse
import contextlib
import os
import secrets
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from atomr_mp import errors, output
from atomr_mp.cli.common import Commands, number_in, seconds, whole
from atomr_mp.cli.start import add_settings, given_settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from atomr_mp.pool import Pool
    from atomr_mp.process.notify import Notifier
    from atomr_mp.protocol.raised import LogErrors
    from atomr_mp.serve.front_end.plan import FrontEndPlan
    from atomr_mp.serve.oip.settings import ModelSetting
    from atomr_mp.serve.parent.saved_files import SavedFiles
    from atomr_mp.startup.config import Gathered

TOKEN_VARIABLE: Final = "ATOMR_MP_SERVE_TOKEN"  # noqa: S105 - the name of a variable
"""Environment variable that has tokens, with commas between."""

MODULES: Final = ("httptools", "uvloop", "prometheus_client")
"""The modules that the extra `serve` brings."""

GRPC_MODULES: Final = ("grpc", "google.protobuf")
"""The modules that the extra `serve-grpc` brings beyond those."""

DRAIN_TIMEOUT_S: Final = 30.0

MOST_FRONT_ENDS: Final = 1024
"""Most front-end processes."""


def add(commands: Commands) -> argparse.ArgumentParser:
    """Declare the command."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "serve",
        help="answer HTTP",
        description="Answers HTTP with a pool's methods, each at POST /call/Actor.method. With --actor or --config it "
        "starts the pool, and stops it at its end; otherwise it joins one that runs. Ends at Ctrl-C or SIGTERM.",
    )
    add_settings(parser)
    where = parser.add_argument_group("where it listens")
    where.add_argument("--host", default="127.0.0.1", help="address (default: %(default)s, this machine only)")
    where.add_argument(
        "--port", type=whole(0, 65535), default=8000, help="port; 0 for any that is free (default: %(default)s)"
    )
    where.add_argument("--uds", type=Path, metavar="PATH", help="a unix socket for this user only, instead")
    where.add_argument(
        "--workers",
        type=whole(1, MOST_FRONT_ENDS),
        default=1,
        metavar="N",
        help="front-end processes (default: %(default)s)",
    )
    where.add_argument(
        "--grpc-port",
        type=whole(0, 65535),
        metavar="N",
        help="a port for gRPC too, where models are called by the Open Inference Protocol; 0 for any that is free",
    )
    where.add_argument(
        "--grpc-uds", type=Path, metavar="PATH", help="a unix socket for gRPC, for this user only, with one front end"
    )
    who = parser.add_argument_group("who may ask")
    who.add_argument(
        "--token-file",
        type=Path,
        metavar="FILE",
        help=f"tokens, one a line; read again when it changes. Or {TOKEN_VARIABLE} in the environment, with commas "
        "between tokens. Without either, a token is made and shown",
    )
    who.add_argument(
        "--insecure", action="store_true", help="require no TLS beyond loopback, and no token if none is given"
    )
    who.add_argument(
        "--allowed-host",
        action="append",
        default=[],
        metavar="NAME",
        help="a name by which clients reach it; may be given several times",
    )
    who.add_argument(
        "--cors-origin",
        action="append",
        default=[],
        metavar="ORIGIN",
        help="an origin whose web pages may ask, such as https://app.example; may be given several times. '*' is any, "
        "where no token is asked for, and any-with-token is any where one is",
    )
    who.add_argument("--tls-cert", type=Path, metavar="FILE", help="certificate chain, PEM")
    who.add_argument("--tls-key", type=Path, metavar="FILE", help="its private key, PEM")
    life = parser.add_argument_group("how it ends")
    life.add_argument(
        "--drain-delay",
        type=seconds(zero=True),
        default=0.0,
        metavar="S",
        help="seconds after SIGTERM for which it still accepts, but reports not ready (default: %(default)g)",
    )
    life.add_argument(
        "--drain-timeout",
        type=seconds(zero=True),
        default=DRAIN_TIMEOUT_S,
        metavar="S",
        help="seconds that running calls may take after that (default: %(default)g)",
    )
    parser.add_argument(
        "--middleware",
        action="append",
        default=[],
        metavar="TARGET",
        help="own ASGI middleware, in every front end: module:function or path/to/file.py:function, which gets the "
        "application and returns another; may be given several times, the outermost first",
    )
    parser.add_argument(
        "--models",
        type=Path,
        action="append",
        default=[],
        metavar="FILE",
        help="describes models of the Open Inference Protocol: tables in TOML, or a config.pbtxt of Triton's; may be "
        "given several times",
    )
    parser.add_argument(
        "--allow-client-shm",
        action="store_true",
        help="let clients of the Open Inference Protocol have tensors in system shared memory, where whoever may ask "
        "then reads and writes this user's files; on loopback or unix sockets only",
    )
    parser.add_argument(
        "--watch",
        action="store_true",
        help="for development: reload the actors when their files are saved, or modules that they import from their "
        "folders",
    )
    parser.add_argument("--debug", action="store_true", help="include the actor's traceback in errors")
    told = parser.add_argument_group("what standard error tells")
    told.add_argument("--access-log", action="store_true", help="a line for each request")
    told.add_argument(
        "--log-format", choices=("text", "json"), default="text", help="form of its lines (default: %(default)s)"
    )
    told.add_argument(
        "--log-errors",
        choices=("full", "type", "off"),
        help="what is told of an exception that a method raises: its traceback, its type and place only, or nothing; "
        "also in the logs of a pool that is started (default: that pool's setting, else full)",
    )
    told.add_argument(
        "--no-follow", dest="follow", action="store_false", help="do not show what workers write into their logs"
    )
    parser.add_argument(
        "--limit",
        type=_limit,
        action="append",
        default=[],
        metavar="NAME=N",
        help="a limit for clients, such as json_bytes=1000000; may be given several times",
    )
    parser.set_defaults(run=run)
    return parser


def run(options: argparse.Namespace) -> int:
    """Serve until a signal says to end."""
    import logging

    from atomr_mp.serve.server_log import lost_notice, start_logging, tell

    output.protect(lost_notice(options.log_format))
    start_logging(options.log_format)
    if options.log_format == "text":
        return _run(options)
    try:
        return _run(options)
    except (errors.AtomrError, TimeoutError) as error:  # else a line of text
        tell(logging.ERROR, "failed", " ".join(str(error).split()))
    except Exception:
        logging.getLogger("atomr_mp.serve").exception("the server has failed")
    return int(options.error_status)


def _run(options: argparse.Namespace) -> int:
    _check(options)
    with _grpc_kept(options) as grpc_address:
        return _serve(options, grpc_address)


@contextlib.contextmanager
def _grpc_kept(options: argparse.Namespace) -> Iterator[str]:
    """Keep for the front ends where gRPC is answered; return the address, empty if there is none.

    Raises:
        ConfigurationError: It cannot be answered there.
    """
    from atomr_mp.serve.parent import listening

    with contextlib.ExitStack() as kept:
        address = ""
        if options.grpc_port is not None:
            reserved = kept.enter_context(listening.reserve(options.host, options.grpc_port))
            address = listening.shown(reserved.getsockname())
        if options.grpc_uds is not None:
            listening.listen_unix(options.grpc_uds).close()  # a front end makes it anew
            kept.callback(options.grpc_uds.unlink, missing_ok=True)
        yield address


def _serve(options: argparse.Namespace, grpc_address: str) -> int:
    import asyncio

    from atomr_mp.process.notify import Notifier
    from atomr_mp.serve.front_end import middleware
    from atomr_mp.serve.http.cors import Cors
    from atomr_mp.serve.parent import listening
    from atomr_mp.serve.parent.child_output import StrayLines
    from atomr_mp.serve.parent.parent import Parent
    from atomr_mp.serve.parent.pool_keeper import JoinedPoolKeeper, PoolKeeper
    from atomr_mp.serve.parent.pool_story import PoolStory

    begun_s = time.time()
    of_environment = os.environ.pop(TOKEN_VARIABLE, "")  # no business of the pool's processes, which run users' code
    tokens = _tokens(options, of_environment)
    Cors(options.cors_origin, has_tokens=bool(tokens) or options.token_file is not None)
    middleware.check(options.middleware)
    models = _models(options)
    socket = listening.listen(options.host, options.port) if options.uds is None else listening.listen_unix(options.uds)
    pool: Pool | None = None
    supervisor = StrayLines("supervisor")
    try:
        settings = _settings(options)
        saved = _saved(options, settings)  # before the pool reads the files
        start = _starter(options, settings, supervisor.pipe.writing)
        log_errors = _log_errors(options, settings)
        notifier = Notifier()
        told = _Announcement(options, tokens, socket.getsockname(), grpc_address, of_environment, notifier)
        if start is None:
            pool = _joined(options)
            plan = _plan(options, tokens, pool.run_dir, log_errors, models, grpc_address)
            told.is_ready(pool)
            keeper: PoolKeeper | JoinedPoolKeeper = JoinedPoolKeeper(pool, lambda: _joined(options))
        else:
            pool, limit_s = start()
            plan = _plan(options, tokens, pool.run_dir, log_errors, models, grpc_address)
            keeper = PoolKeeper(pool, limit_s, start, told.is_ready)
        story = PoolStory(pool.run_dir, begun_s, follow=options.follow, looks_at_disk=start is None)
        hangup_ends = any(os.isatty(descriptor) for descriptor in range(3))
        asyncio.run(
            Parent(
                plan,
                socket,
                keeper,
                told.accepts,
                story,
                others=[supervisor],
                notifier=notifier,
                saved=saved,
                hangup_ends=hangup_ends,
            ).run()
        )
    except BaseException:
        supervisor.rest()
        socket.close()
        if pool is not None:
            pool.close()
        raise
    finally:
        if options.uds is not None:
            options.uds.unlink(missing_ok=True)
    return 0


def _check(options: argparse.Namespace) -> None:
    """Refuse impossible options before anything is started.

    Raises:
        ConfigurationError: The server cannot run with them.
    """
    import importlib.util

    from atomr_mp.protocol.hosts import is_loopback

    missing = [name for name in MODULES if importlib.util.find_spec(name) is None]
    if missing:
        raise errors.ConfigurationError(
            f"{', '.join(missing)} is not installed; the extra `serve` has it: pip install 'atomr-mp[serve]'"
        )
    if options.grpc_port is not None or options.grpc_uds is not None:
        _check_grpc(options)
    if (options.tls_cert is None) != (options.tls_key is None):
        raise errors.ConfigurationError("--tls-cert and --tls-key go together")
    if options.tls_cert is not None:
        _check_certificate(options.tls_cert, options.tls_key)
    if _has_port(options) and not is_loopback(options.host) and options.tls_cert is None and not options.insecure:
        raise errors.ConfigurationError(
            f"{options.host} is open to other machines and needs --tls-cert and --tls-key: without, anybody on "
            "the way reads the token and the content. Where a proxy or a private network does that, say --insecure"
        )
    if options.allow_client_shm and _has_port(options) and not is_loopback(options.host):
        raise errors.ConfigurationError(
            f"--allow-client-shm is for clients on this machine, and {options.host} is open to others; listen on "
            "127.0.0.1 or at a unix socket"
        )
    of_pool = (options.gpus, options.workers_per_gpu, options.backend, options.standby, options.world, options.set)
    if not (options.actor or options.config) and any(of_pool):
        raise errors.ConfigurationError(
            "--gpus, --workers-per-gpu, --backend, --standby, --world and --set are of a pool that is started: name "
            "its --actor or --config"
        )

    if options.watch and not (options.actor or options.config):
        raise errors.ConfigurationError(
            "--watch is for the actors of a pool that is started: name its --actor or --config"
        )


def _has_port(options: argparse.Namespace) -> bool:
    """Return whether it listens at an address of the machine, and not only at unix sockets."""
    return options.uds is None or options.grpc_port is not None


def _check_grpc(options: argparse.Namespace) -> None:
    """Refuse what keeps gRPC from being answered.

    Raises:
        ConfigurationError: A package is missing, or there are several front ends for a unix socket.
    """
    import importlib.util

    missing = []
    for name in GRPC_MODULES:
        try:
            found = importlib.util.find_spec(name)
        except ModuleNotFoundError:  # not even the package that it is in
            found = None
        if found is None:
            missing.append(name)
    if missing:
        raise errors.ConfigurationError(
            f"{', '.join(missing)} is not installed; the extra `serve-grpc` has it: pip install 'atomr-mp[serve-grpc]'"
        )
    if options.grpc_uds is not None and options.workers > 1:
        raise errors.ConfigurationError(
            "--grpc-uds is for one front end, and --workers asks for more; several share --grpc-port"
        )


def _settings(options: argparse.Namespace) -> Gathered | None:
    """Return the settings of the pool that is started, gathered as `atomr-mp start` does; None if a pool is joined.

    Raises:
        ConfigurationError: They cannot be used.
    """
    if not (options.actor or options.config):
        return None
    from atomr_mp.startup.config import gather

    given = given_settings(options)
    if options.log_errors is not None:
        given["log_errors"] = options.log_errors
    return gather(options.config, given)


def _models(options: argparse.Namespace) -> dict[str, ModelSetting]:
    """Return the models that files describe, and tell what of the files has no effect.

    Raises:
        ConfigurationError: One cannot be used.
    """
    import logging

    from atomr_mp.serve.oip.model_config.files import read
    from atomr_mp.serve.server_log import tell

    described = read(options.models)
    for warning in described.warnings:
        tell(logging.WARNING, "models", warning)
    return described.models


def _log_errors(options: argparse.Namespace, settings: Gathered | None) -> LogErrors:
    """Return how much the server tells of methods' errors: the option comes before the pool's setting."""
    told: LogErrors = options.log_errors or ("full" if settings is None else settings.settings.log_errors)
    return told


def _saved(options: argparse.Namespace, settings: Gathered | None) -> SavedFiles | None:
    """Return the watch over the actors' files; None without the option."""
    if not options.watch or settings is None:
        return None
    from atomr_mp.serve.parent.saved_files import SavedFiles

    return SavedFiles(settings.settings.actors, [] if options.config is None else [options.config])


def _check_certificate(certificate: Path, key: Path) -> None:
    import ssl

    try:
        ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(certificate, key)
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        raise errors.ConfigurationError(f"{certificate} with {key} is not a usable certificate: {error}") from error


def _tokens(options: argparse.Namespace, of_environment: str) -> list[str]:
    """Return the tokens: those of the environment, a new one, or none where none is needed.

    Raises:
        ConfigurationError: A token is too short, or the file of tokens has none.
    """
    from atomr_mp.serve.http.access import checked, read_tokens

    given = checked(_listed(of_environment))
    if options.token_file is not None:
        read_tokens(options.token_file)
    if given or options.token_file is not None or not _has_port(options) or options.insecure:
        return given
    return [secrets.token_urlsafe(32)]


def _listed(tokens: str) -> list[str]:
    return [token.strip() for token in tokens.split(",") if token.strip()]


def _starter(
    options: argparse.Namespace, settings: Gathered | None, stderr: int
) -> Callable[[], tuple[Pool, float]] | None:
    """Return the function that starts the pool; None if a pool is joined.

    Args:
        options: The command's.
        settings: The pool's.
        stderr: Standard error of the supervisor.
    """
    if settings is None:
        return None
    from atomr_mp.startup.config import DEFAULT

    given = dict(settings.given)
    if settings.sources["pool"] == settings.sources["run_dir"] == DEFAULT:
        given["pool"] = settings.settings.pool  # as `atomr-mp start` calls it, so that the other commands find it

    def start() -> tuple[Pool, float]:
        from atomr_mp.startup.start import begin

        return begin(config=options.config, stderr=stderr, **given)

    return start


def _joined(options: argparse.Namespace) -> Pool:
    import atomr_mp
    from atomr_mp.cli.common import run_path

    return atomr_mp.connect(run_dir=run_path(options), name="atomr-mp serve")


def _plan(
    options: argparse.Namespace,
    tokens: list[str],
    run_dir: Path,
    log_errors: LogErrors,
    models: dict[str, ModelSetting],
    grpc_address: str,
) -> FrontEndPlan:
    from atomr_mp.protocol.hosts import LOCAL_HOSTS
    from atomr_mp.serve.front_end.plan import FrontEndPlan
    from atomr_mp.serve.http.limits import Limits

    host = f"[{options.host}]" if ":" in options.host else options.host
    anywhere = {"0.0.0.0", "[::]"}  # noqa: S104 - compared, not bound
    return FrontEndPlan(
        parent_pid=os.getpid(),
        run_dir=str(run_dir),
        tokens=tokens,
        token_file=None if options.token_file is None else str(options.token_file.absolute()),
        allowed_hosts=None
        if options.uds is not None and not options.allowed_host
        else sorted({*options.allowed_host, *LOCAL_HOSTS, *({host} - anywhere)}),
        middleware=options.middleware,
        cors_origins=options.cors_origin,
        own_user_only=options.uds is not None,
        grpc_address=grpc_address,
        grpc_uds="" if options.grpc_uds is None else str(options.grpc_uds.absolute()),
        shared_memory=options.allow_client_shm,
        tls_certificate=None if options.tls_cert is None else str(options.tls_cert.absolute()),
        tls_key=None if options.tls_key is None else str(options.tls_key.absolute()),
        drain_delay_s=options.drain_delay,
        drain_timeout_s=options.drain_timeout,
        debug=options.debug,
        access_log=options.access_log,
        log_format=options.log_format,
        log_errors=log_errors,
        limits=Limits(**dict(options.limit)),
        models=models,
        slots=options.workers,
    )


def _limit(text: str) -> tuple[str, int | float]:
    """Return a limit's name and value; the type of an option."""
    from atomr_mp.protocol.words import did_you_mean
    from atomr_mp.serve.http.limits import Limits

    name, _, value = text.partition("=")
    if name not in Limits.__struct_fields__:
        known = ", ".join(Limits.__struct_fields__)
        hint = did_you_mean(name, Limits.__struct_fields__)
        raise argparse.ArgumentTypeError(f"there is no limit {name!r}{hint}; there are: {known}")
    given: Any = number_in(value, float if name.endswith("_s") else int)
    try:
        Limits(**{name: given})
    except errors.ConfigurationError as error:
        raise argparse.ArgumentTypeError(error.message) from error
    return name, given


class _Announcement:
    """Prints the server's address, with a `curl` line, once it accepts and the pool is ready.

    Args:
        options: The command's.
        tokens: The tokens that are valid beside those of a file.
        address: Of the listening socket.
        grpc_address: That of gRPC; empty for none.
        of_environment: The variable's value.
        notifier: Tells the service manager.
    """

    def __init__(
        self,
        options: argparse.Namespace,
        tokens: list[str],
        address: Any,
        grpc_address: str,
        of_environment: str,
        notifier: Notifier,
    ) -> None:
        self._tokens: Final = tokens
        self._of_environment: Final = of_environment
        self._notifier: Final = notifier
        self._unix: Final[Path | None] = options.uds
        self._of_file: Final = options.token_file is not None
        scheme = "http" if options.tls_cert is None else "https"
        host = options.host if ":" not in options.host else f"[{options.host}]"
        self._url: Final = f"{scheme}://localhost" if self._unix else f"{scheme}://{host}:{address[1]}"
        self._grpc: Final = [each for each in (grpc_address, options.grpc_uds) if each]
        self._accepts = False
        self._lines: list[str] = []

    def accepts(self) -> None:
        """Learn that a front end accepts."""
        self._accepts = True
        self._print()

    def is_ready(self, pool: Pool) -> None:
        """Learn that the pool is ready, for the first time or again."""
        if not self._lines:
            self._lines = self._of(pool)
        self._print()

    def _of(self, pool: Pool) -> list[str]:
        from atomr_mp.serve.values.schemas import example, unsuited

        # Trying the line that is shown must do no harm: other methods may delete something, or end workers.
        harmless = [method for method in pool.methods if pool.method_info(method).idempotent]
        methods = sorted(harmless, key=lambda method: unsuited(pool.method_info(method)))
        # A given token is somebody's secret, and output may be kept in a log.
        of_environment = _listed(self._of_environment)
        given = bool(of_environment) or self._of_file
        token = self._tokens[0] if self._tokens and not given else ""
        shown = token
        if given:
            shown = f"${TOKEN_VARIABLE}" if of_environment == [self._of_environment] else "TOKEN"
        quote = '"' if shown.startswith("$") else "'"
        lines = [f"serving pool {pool.name} at {self._unix or self._url}"]
        if self._grpc:
            lines.append(f"with gRPC at {' and '.join(map(str, self._grpc))}")
        if not self._unix:
            # The fragment stays in the browser: no server, proxy or log sees it.
            lines.append(f"watch it at {self._url}/{f'#token={token}' if token else ''}")
        parts = ["curl"]
        if self._unix:
            parts.append(f"--unix-socket {self._unix}")
        if shown:
            parts.append(f"-H {quote}Authorization: Bearer {shown}{quote}")
        if methods:
            body = example(pool.method_info(methods[0]))
            parts.append(f"-H 'Content-Type: application/json' -d '{body}' {self._url}/call/{methods[0]}")
        else:
            parts.append(f"{self._url}/openapi.json")
        return [*lines, " ".join(parts)]

    def _print(self) -> None:
        if self._accepts and self._lines:
            sys.stdout.write("\n".join(self._lines) + "\n")
            sys.stdout.flush()
            self._accepts = False
            self._notifier.ready("serving")
