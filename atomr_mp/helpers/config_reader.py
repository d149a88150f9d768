"""Makes a pool's plan anew from its configuration file: the supervisor runs this as a process, when it reloads.

In a process of its own, since reading the configuration may ask the driver, which may take long.
"""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

from atomr_mp import errors, output
from atomr_mp.process.prctl import die_with_parent
from atomr_mp.startup.config import gather
from atomr_mp.startup.planning import make_plan
from atomr_mp.supervisor.plan import Plan


def main() -> int:
    """Write the plan, or why there is none, to the descriptor; return the exit status: 0 a plan, 1 none.

    Arguments: the supervisor's pid, the descriptor of the plan that it has, the descriptor to write to.
    """
    parent, given, out = map(int, sys.argv[1:])
    die_with_parent(parent)
    output.protect()
    old = Plan.from_descriptor(given)
    assert old.source is not None
    try:
        settings = msgspec.json.decode(old.source.settings)
        plan = make_plan(gather(Path(old.source.file), settings).settings)
    except errors.AtomrError as error:
        _write(out, error.message.encode())
        return 1
    _write(out, msgspec.json.encode(msgspec.structs.replace(plan, source=old.source, temporary=old.temporary)))
    return 0


def _write(descriptor: int, content: bytes) -> None:
    with open(descriptor, "wb") as file:
        file.write(content)


if __name__ == "__main__":
    sys.exit(main())
