"""Elementwise arithmetic on arrays in a device's memory: `device.elementwise`."""

from __future__ import annotations

from typing import Final

from atomr_mp.libraries.generated.elementwise import ElementwiseRequests

Reference: Final = ElementwiseRequests
