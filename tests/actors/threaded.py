"""A module that starts a thread when it is imported, as some do: a process that has it must not be forked."""

from __future__ import annotations

import threading

threading.Thread(target=threading.Event().wait, daemon=True).start()
