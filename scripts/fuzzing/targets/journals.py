"""A map's journal: a file that is opened, refused by a typed error, or repaired."""

from __future__ import annotations

import contextlib
import logging
import random
import shutil
import tempfile
import zlib
from pathlib import Path
from typing import Any, Final, Self

import msgspec

from atomr_mp import errors
from atomr_mp.mapping.journal import VERSION, Done, Failed, Header, Journal, Record, Sent, Unsent, framed
from atomr_mp.mapping.journal_frames import frames
from atomr_mp.mapping.journal_repair import repair
from atomr_mp.protocol import values
from atomr_mp.protocol.codec import ErrorInfo
from fuzzing import trees
from fuzzing.target import Target, damage

METHOD: Final = "Probe.echo"
NAMES: Final = ("value",)
ITEMS: Final = 5


class Journals(Target):
    """A journal's bytes."""

    name = "journal"

    def __enter__(self) -> Self:
        memory = Path("/dev/shm")  # where a sync costs nothing
        self._directory = Path(tempfile.mkdtemp(prefix="atomr-mp-fuzz-", dir=memory if memory.is_dir() else None))
        self._path = self._directory / "journal"
        logging.getLogger("atomr_mp").setLevel(logging.ERROR)  # each repair is told
        return self

    def __exit__(self, *_exc: object) -> None:
        """Remove the files."""
        logging.getLogger("atomr_mp").setLevel(logging.NOTSET)
        shutil.rmtree(self._directory)

    def make(self, rng: random.Random) -> bytes:
        """Return a journal with some records."""
        records: list[Record] = [Header(VERSION, METHOD, list(NAMES))]
        for index in range(rng.randint(0, ITEMS)):
            digest = bytes(16)
            body, sent, _ = values.encode([index, "text"])
            records.append(Sent(index, digest))
            records += rng.choice(
                (
                    [],
                    [Unsent(index)],
                    [Done(index, digest, body, [bytes(each) for each in sent])],
                    [Failed(index, digest, ErrorInfo("actor_failed", "why", {"n": 1}), 1)],
                )
            )
        return b"".join(map(framed, records))

    def mutate(self, rng: random.Random, data: bytes) -> bytes:
        """Return one with damaged bytes, or with another record whose checksum is right."""
        whole = list(frames(data))
        if not whole or rng.random() < 0.4:
            return damage(rng, data)
        at = rng.choice(whole)
        record = trees.mutated(rng, at.record)
        return data[: at.at] + msgspec.msgpack.encode((zlib.crc32(record), record)) + data[at.end :]

    def check(self, data: bytes) -> None:
        """Open it, ask for outcomes; repair it, and open what came of that."""
        for idempotent in (True, False):
            self._path.write_bytes(data)
            with contextlib.suppress(errors.AtomrError):
                self._use(idempotent=idempotent)
        self._path.write_bytes(data)
        try:
            repair(self._path, METHOD, NAMES)
            self._use(idempotent=False)
        except (errors.JournalMismatch, errors.ConfigurationError):  # another job's, or none
            pass
        finally:
            for path in self._directory.iterdir():
                path.unlink()

    def _use(self, *, idempotent: bool) -> None:
        journal = Journal(self._path, METHOD, NAMES, idempotent=idempotent)
        with contextlib.closing(journal):
            for index in range(ITEMS):
                with contextlib.suppress(errors.JournalMismatch, errors.InvalidRequest):
                    outcome: Any = journal.outcome(index, index)
                    if outcome is None and not idempotent:
                        journal.sending(index)
                        journal.done(index, index)
