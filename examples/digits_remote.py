"""Reads handwritten digits by a pool on another machine: a client that has neither the actor nor its weights.

    server$ atomr-mp start --actor examples/digits.py:Digits --set listen=tcp://10.0.0.5:5570
    client$ python examples/digits_remote.py tcp://10.0.0.5:5570 alice.key images.npy

The images are n by 64 values from 0 (blank) to 16 (ink), in a .npy file. A digit for each is printed, in order.
`docs/remote.md` says how keys are made.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np

import atomr_mp


def main() -> int:
    """Read the images of a file; return the exit status."""
    parser = argparse.ArgumentParser(description="Read handwritten digits by a remote pool.", allow_abbrev=False)
    parser.add_argument("address", help="where the pool admits remote clients: tcp://HOST:PORT")
    parser.add_argument("keys", type=Path, help="this client's key file")
    parser.add_argument("images", type=Path, help="images, n by 64 values, in a .npy file")
    options = parser.parse_args()
    images = np.load(options.images, allow_pickle=False)
    try:
        with atomr_mp.connect(options.address, keys=options.keys) as pool:
            pool.wait_ready()
            for digit in pool.map("Digits.predict", images):
                print(digit)
    except atomr_mp.errors.AtomrError as error:
        print(f"digits_remote: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
