"""examples/digits_remote.py: the steps of the guide to remote clients, from keys to answers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Final

import numpy as np

import digits_model
from tests import remote as served
from tests.support import DEADLINE_S, Ledger

EXAMPLES: Final = Path(digits_model.__file__).parent
IMAGES: Final = EXAMPLES / "data/digits_test.npy"


def test_digits_are_read_from_another_process(ledger: Ledger) -> None:
    """They are those that the network gives when it is called directly."""
    keys_dir, key = ledger.path / "keys", ledger.path / "alice.key"
    where = ["--keys-dir", str(keys_dir)]
    server = _command("new", *where)
    client = _command("new", "alice", "--server", server, "--out", str(key))
    assert _command("admit", "alice", client, *where) == "alice is admitted"
    actor = f"{EXAMPLES}/digits.py:Digits"
    with ledger.start(actor, listen=served.LISTEN, keys_dir=str(keys_dir)) as pool:
        read = _read(served.listening(pool), key)
        assert read.returncode == 0, read.stderr
        expected = digits_model.predict(
            digits_model.load(EXAMPLES / "digits_weights.npz"), digits_model.as_images(np.load(IMAGES))
        )
        assert len(expected) > 0
        assert [int(line) for line in read.stdout.split()] == expected.tolist()


def _command(*arguments: str) -> str:
    """Run `atomr-mp keys`, and return what it prints."""
    command = [sys.executable, "-m", "atomr_mp", "keys", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def _read(address: str, key: Path) -> subprocess.CompletedProcess[str]:
    """Run the example."""
    command = [sys.executable, str(EXAMPLES / "digits_remote.py"), address, str(key), str(IMAGES)]
    return subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
