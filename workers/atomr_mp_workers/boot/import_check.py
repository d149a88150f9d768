"""Imports actors and ends. The supervisor runs this as a process of its own before it replaces workers for new code.

It takes the steps of a worker's start before `setup`, beside the running workers. It does not use the device.
"""

from __future__ import annotations

import logging
import os
import sys
from typing import NoReturn

import msgspec

from atomr_mp import output
from atomr_mp.errors import ActorLoadFailed
from atomr_mp.protocol.codec import ErrorInfo
from atomr_mp.protocol.decoders import known
from atomr_mp.protocol.exceptions import traceback_of
from atomr_mp.protocol.messages.control import ActorSpec
from atomr_mp_workers.boot.lifeline import die_with
from atomr_mp_workers.boot.stale_bytecode import remove_stale
from atomr_mp_workers.loading import load


def main() -> NoReturn:
    """Load all actors; exit with status 0 if they load, or with 1 and an `ErrorInfo` that says why.

    Arguments: the supervisor's pid, the descriptor of the actors (a JSON array of `ActorSpec`), the descriptor of the
    error; a fourth at the second attempt, after stale bytecode was removed.
    """
    parent, given, out = map(int, sys.argv[1:4])
    die_with(parent)
    output.protect()
    with open(given, "rb", closefd=False) as file:
        file.seek(0)
        actors = msgspec.json.decode(file.read(), type=known(list[ActorSpec]))
    status = 0
    error = _load(actors)
    if remove_stale() and not sys.argv[4:]:
        for kept in (given, out):
            os.set_inheritable(kept, True)
        os.execv(sys.executable, [*sys.orig_argv, "again"])  # noqa: S606 - this program itself
    if error is not None:
        if error.__cause__ is not None:
            sys.stderr.write(traceback_of(error.__cause__))  # the error itself has one line
        with os.fdopen(out, "wb") as file:
            file.write(msgspec.msgpack.encode(ErrorInfo.of(error)))
        status = 1
    logging.shutdown()
    output.drain()
    os._exit(status)  # threads and exit handlers of the modules must not delay the answer


def _load(actors: list[ActorSpec]) -> ActorLoadFailed | None:
    try:
        for spec in actors:
            load(spec)
    except ActorLoadFailed as error:
        return error
    return None


if __name__ == "__main__":
    main()
