"""The support matrix, from the code itself, as JSON: `atomr-mp libraries` asks for it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Final

from atomr_mp.protocol.libraries import LIBRARIES
from atomr_mp.protocol.libraries.base import element_types
from atomr_mp_workers.libraries import BACKENDS, implementation, requests_on, stand_ins

VERIFIED: Final = Path(__file__).parent / "verified.json"
"""What ran last on which hardware, by "library.backend"; written by `scripts/test-gpu`."""


def matrix() -> list[dict[str, Any]]:
    """Return a row for each request and backend that provides it."""
    verified: dict[str, Any] = json.loads(VERIFIED.read_text()) if VERIFIED.exists() else {}
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
                        "verified": verified.get(f"{library}.{backend}"),
                    }
                )
    return rows


if __name__ == "__main__":
    stand_ins.install()
    json.dump(matrix(), sys.stdout, indent=1)
    sys.stdout.write("\n")
