"""A device's process in an interpreter of its own: started by the supervisor, never by hand."""

from __future__ import annotations

import gc
import sys


def main() -> None:
    """Be a worker, see `worker_main`."""
    gc.disable()  # no module that is imported is garbage: to look for some would take a fifth of the start
    from atomr_mp_workers.boot.worker_main import work

    gc.freeze()  # nor will the collector look at them later
    gc.enable()
    options = dict(zip(sys.argv[1::2], sys.argv[2::2], strict=True))
    work(int(options["--control-fd"]), int(options["--board-fd"]), int(options["--parent"]))


if __name__ == "__main__":
    main()
