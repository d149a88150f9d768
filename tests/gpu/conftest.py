"""What holds for the tests that need a GPU."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="session", autouse=True)
def cuda_here() -> None:
    """Let this process have its context, with its threads and descriptors, before a ledger counts any."""
    import cupy
    import torch

    cupy.zeros(1).sum().get()
    torch.zeros(1, device="cuda").sum().item()
