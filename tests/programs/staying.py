"""A supervisor's helper that stays until it is killed."""

from __future__ import annotations

import signal

signal.pause()
