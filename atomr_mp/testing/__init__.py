"""For crash tests of applications of this package: faults on purpose, and the proof that nothing is left of them.

`start` starts a pool whose processes meet faults; `inject` orders one in it, at a named point: a `Kill`, `Exit`,
`Fail`, `Hang`, `HangInKernel`, `Poison` of the context, a device with `NoMemory` left, or a `FullDisk`. `Faults` does
the same for pools that are started otherwise. A `Ledger` sees that everything is back as it was, `assert_nothing_left`
that nothing of a pool is left over. `docs/testing.md` has examples.
"""

from atomr_mp.protocol.messages.injection import (
    Exit,
    Fail,
    Fault,
    FullDisk,
    Hang,
    HangInKernel,
    Kill,
    NoMemory,
    Point,
    Poison,
)
from atomr_mp.testing.faults import At, Faults, Injection, inject, start
from atomr_mp.testing.ledger import Ledger, assert_nothing_left

__all__ = [
    "At",
    "Exit",
    "Fail",
    "Fault",
    "Faults",
    "FullDisk",
    "Hang",
    "HangInKernel",
    "Injection",
    "Kill",
    "Ledger",
    "NoMemory",
    "Point",
    "Poison",
    "assert_nothing_left",
    "inject",
    "start",
]
