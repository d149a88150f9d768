"""`atomr-mp resident`, and other commands' output about memory that outlives the workers."""

from __future__ import annotations

import json
import re
from typing import Any, Final

from tests.contract.command.test_cli import cli, refusal
from tests.support import ACTORS, BACKEND, Ledger, wait_generation

HOUSED: Final = f"{ACTORS}/housed.py:Housed"
MIB: Final = 2**20


def test_resident_memory_is_shown_and_freed(ledger: Ledger) -> None:
    """With its users; memory in use is freed by force only."""
    with ledger.start(HOUSED, resident_max_bytes=5 * MIB) as pool:
        where = ("--run-dir", pool.run_dir)
        (device,) = pool.devices
        shown: dict[str, Any] = json.loads(cli("resident", "list", "--json", *where).stdout)
        place = None if BACKEND == "host" else 0
        assert shown == {
            "bytes": 2 * MIB,
            "max_bytes": 5 * MIB,
            "residents": [
                {
                    "name": "weights",
                    "version": "1",
                    "device": place,
                    "gpu": place,
                    "state": "sealed",
                    "bytes": 2 * MIB,
                    "arrays": 2,
                    "users": [{"device": 0, "generation": 1, "pid": device.pid}],
                }
            ],
        }
        table = cli("resident", "list", *where).stdout
        in_words = "all" if place is None else "0"
        assert re.search(rf"weights +1 +{in_words} +sealed +2 MiB +2 +{device.pid}\b", table)
        assert table.endswith("resident memory: 2 MiB of 5 MiB\n")
        assert json.loads(cli("status", "--json", *where).stdout)["resident_bytes"] == 2 * MIB
        assert "resident memory 2 MiB\n" in cli("status", *where).stdout

        assert "in use by device 0 generation 1; with --force" in refusal("resident", "free", "weights", *where)
        assert "no such resident memory" in refusal("resident", "free", "weights", "--version", "2", *where)
        assert "there is no device 7" in refusal("resident", "free", "weights", "--device", "7", *where)
        freed = cli("resident", "free", "weights", "--version", "1", "--force", *where)
        assert freed.stdout.splitlines() == [
            "weights: 2 MiB freed",
            f"still in use; its memory is given back when these have ended: {device.pid} (`atomr-mp restart`)",
        ]
        assert re.search(rf"freed +2 MiB +2 +{device.pid}\b", cli("resident", "list", *where).stdout)
        pool.restart(0)
        wait_generation(pool, 2)
        assert json.loads(cli("resident", "list", "--json", *where).stdout)["bytes"] == 2 * MIB


def test_a_pool_that_has_none_says_so(ledger: Ledger) -> None:
    """And a name that cannot be found is an error."""
    with ledger.start() as pool:
        where = ("--run-dir", pool.run_dir)
        assert cli("resident", "list", *where).stdout == "resident memory: 0 MiB\n"
        assert "resident" not in cli("status", *where).stdout
        told = refusal("resident", "free", "weights", *where)
        assert told == "there is no such resident memory as 'weights'; there is: none"
