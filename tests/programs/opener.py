"""A process that opens a slab whose descriptor it is sent, and follows orders about it, a line at a time.

Arguments: the backend, and the path of a socket. Told: "open BYTES HANDLE", "client BYTES", "read OFFSET BYTES",
"write OFFSET TEXT", "close". Says what it has found, or the name of the error's class.
"""

from __future__ import annotations

import gc
import socket
import sys

from atomr_mp import errors
from atomr_mp_workers.device import open_device
from atomr_mp_workers.device.base import SlabMemory

backend, path = sys.argv[1:]
device = open_device(backend)
link = socket.socket(socket.AF_UNIX)
link.connect(path)
memory: SlabMemory | None = None
print("ready", flush=True)
for line in sys.stdin:
    told = line.split()
    try:
        match told:
            case ["open" | "client", nbytes, *handle]:
                descriptors = socket.recv_fds(link, 1, 1)[1]
                received = descriptors[0] if descriptors else None
                if told[0] == "open":
                    memory = device.open_slab(int(nbytes), bytes.fromhex("".join(handle)), received)
                else:
                    assert received is not None
                    memory = device.open_client_slab(int(nbytes), received)
                print("opened", memory.nbytes, flush=True)
            case ["read", offset, length]:
                assert memory is not None
                print("read", memory.bytes(None, int(offset), int(length)).tobytes().hex(), flush=True)
            case ["write", offset, text]:
                assert memory is not None
                part = memory.bytes(None, int(offset), len(text))
                part[:] = list(text.encode())
                del part
                print("written", flush=True)
            case ["close"]:
                memory = None
                gc.collect()
                print("closed", flush=True)
    except (errors.AtomrError, ValueError) as error:
        print(type(error).__name__, flush=True)
