"""A device's process in an interpreter of its own: started by the supervisor, never by hand."""

from __future__ import annotations

import argparse

from atomr_mp_workers.boot.worker_main import work


def main() -> None:
    """Be a worker, see `worker_main`."""
    parser = argparse.ArgumentParser(
        prog="atomr_mp_workers", description="internal: started by the supervisor", allow_abbrev=False
    )
    parser.add_argument("--control-fd", type=int, required=True)
    parser.add_argument("--board-fd", type=int, required=True)
    parser.add_argument("--parent", type=int, required=True)
    parser.add_argument("--title", default="", help="shown by ps, otherwise unused")
    options = parser.parse_args()
    work(options.control_fd, options.board_fd, options.parent)


if __name__ == "__main__":
    main()
