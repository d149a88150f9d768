"""`atomr-mp restart`: replace a device's worker."""

from __future__ import annotations

import argparse
import sys
import time
from typing import TYPE_CHECKING, Final

from atomr_mp import errors
from atomr_mp.cli.common import Commands, add_pool, add_timeout, observe, open_pool, whole
from atomr_mp.cli.worlds import tell_held
from atomr_mp.protocol.codec import MAX_DEVICES

if TYPE_CHECKING:
    from atomr_mp.operator.session import OperatorSession
    from atomr_mp.protocol.messages.devices import DeviceInfo

TIMEOUT_S: Final = 360.0
"""The default time limits of a drain and a start, and a margin."""


def add(commands: Commands) -> argparse.ArgumentParser:
    """Declare the command."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "restart",
        help="replace a device's worker",
        description="Replaces a device's worker after it has finished its requests, and waits until the new one is "
        "ready. Also starts a device at once that is stopped, or tripped after too many ends. A worker that is just "
        "starting is waited for, and not started again.",
    )
    parser.add_argument("device", type=whole(0, MAX_DEVICES - 1), metavar="DEVICE", help="index of the device")
    add_timeout(parser, TIMEOUT_S)
    add_pool(parser)
    parser.set_defaults(run=run)
    return parser


def run(options: argparse.Namespace) -> int:
    """Replace a worker and wait for the next."""
    device = options.device
    begun = time.monotonic()
    with observe(open_pool(options)) as observer:
        devices = observer.welcome.devices
        if not 0 <= device < len(devices):
            raise errors.InvalidRequest(f"there is no device {device}; this pool has {len(devices)}")
        observer.restart(device)
        info = _wait_ready(observer, device, begun + options.timeout)
        took_ms = (time.monotonic() - begun) * 1000
        sys.stdout.write(
            f"device {device} is ready: generation {info.generation}, pid {info.pid}, after {took_ms:.0f} ms\n"
        )
        sys.stdout.flush()
        tell_held(observer, {device})
    return 0


def _wait_ready(observer: OperatorSession, device: int, until: float) -> DeviceInfo:
    """Wait for the worker that meets the order, which was taken before."""
    from atomr_mp.protocol.messages.devices import OUT_OF_USE, DeviceState
    from atomr_mp.protocol.messages.session import DeviceChanged, Goodbye

    info = observer.status().workers[device].device
    if info.state is DeviceState.READY:  # a standby has taken over, or the start has ended meanwhile
        return info
    least = info.generation if info.state is DeviceState.STARTING else info.generation + 1
    state = info.state.value
    while True:
        try:
            event = observer.next_event(max(0.001, until - time.monotonic()))
        except TimeoutError as error:
            raise errors.DeadlineExceeded(f"device {device} is not ready yet, it is {state}") from error
        if isinstance(event, Goodbye):
            raise event.error.error()
        if not isinstance(event, DeviceChanged) or event.device.index != device:
            continue
        info = event.device
        state = info.state.value
        if info.state is DeviceState.READY and info.generation >= least:
            return info
        if info.state in OUT_OF_USE:
            raise errors.DeviceUnavailable(f"device {device} did not start: {info.reason}", device=device)
