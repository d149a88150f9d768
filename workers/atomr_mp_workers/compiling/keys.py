"""The key of a job in the disk cache: equal jobs have equal keys, and others have others. Pure."""

from __future__ import annotations

import hashlib
from typing import Final

import msgspec

from atomr_mp_workers.compiling.jobs import Job, LinkJob

FORMAT: Final = 1
"""Grows when the same job would give another result, or its entry has another form."""


def key_of(job: Job, toolkit: str) -> str:
    """Return a job's key, 64 hexadecimal digits.

    Args:
        job: The job, as `jobs.check` returns it: all of it counts, but the order of its headers.
        toolkit: The digest of the toolkit, which stands for the compiler, the linker and their headers.
    """
    if not isinstance(job, LinkJob):
        job = msgspec.structs.replace(job, headers=dict(sorted(job.headers.items())))
    return hashlib.sha256(_encode((FORMAT, toolkit, job))).hexdigest()


_encode: Final = msgspec.msgpack.Encoder().encode
"""Each part has its length in front, so no two jobs have the same bytes."""
