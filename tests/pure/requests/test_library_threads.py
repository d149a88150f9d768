from __future__ import annotations

import subprocess
import sys
from typing import Final

PROGRAM: Final = """
import sys, threading
import msgspec
from atomr_mp import errors
from atomr_mp.libraries.base import check_fields
from atomr_mp.protocol.libraries.blas import Axpy
from atomr_mp.protocol.layout import Layout
from atomr_mp.protocol.refs import Operand

class Vector(Operand):
    memory = 1
    layout = Layout.contiguous("float32", (4,))
    def to_wire(self):
        raise NotImplementedError

sys.setswitchinterval(1e-6)
requests = [type(f"Axpy{n}", (Axpy,), {}, frozen=True)(x=Vector(), y=Vector()) for n in range(300)]
together = threading.Barrier(4)

def check():
    for request in requests:
        together.wait()
        check_fields(request)

threads = [threading.Thread(target=check) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print("checked", len(requests))
"""


def test_the_first_requests_of_a_kind_may_come_from_several_threads() -> None:
    """Each type of request here is used for the first time by four threads at once."""
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (0, "checked 300\n"), done.stderr
