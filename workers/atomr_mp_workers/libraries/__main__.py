"""Prints the support matrix, taken from the code itself, as JSON for `atomr-mp libraries`."""

from __future__ import annotations

import json
import sys
from typing import Any

from atomr_mp.protocol.libraries import LIBRARIES
from atomr_mp.protocol.libraries.base import element_types
from atomr_mp_workers.libraries import BACKENDS, implementation, requests_on, stand_ins
from atomr_mp_workers.libraries.evidence import verified


def matrix() -> list[dict[str, Any]]:
    """Return a row for each request and each backend that provides it."""
    rows: list[dict[str, Any]] = []
    for library in LIBRARIES:
        for backend in BACKENDS:
            cls = implementation(library, backend)
            if cls is None:
                continue
            for name, request in requests_on(library, backend).items():
                without = cls.unsupported.get(name, ())
                rows.append(
                    {
                        "library": library,
                        "request": name,
                        "backend": backend,
                        "dtypes": [dtype for dtype in element_types(request) if dtype not in without],
                        "verified": verified(library, name, backend),
                    }
                )
    return rows


if __name__ == "__main__":
    stand_ins.install()
    json.dump(matrix(), sys.stdout, indent=1)
    sys.stdout.write("\n")
