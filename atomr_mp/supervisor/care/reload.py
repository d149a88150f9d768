"""A rolling reload: the configuration is read again, and the workers are replaced one device at a time.

As much as possible is tried beside the running workers before anything is replaced: a process of its own reads the
configuration, another imports the actors. Where there are standbys, each device's new worker is set up as its standby,
and takes over only when it is ready. If any of that fails, the old worker goes on, and the error is the command's. One
that ends by itself meanwhile has the new one as its next, and the reload goes on.

Members of a world with different code form no epoch. So all members of one are set up beside the running ones, and take
over together. Without standbys they are replaced one by one, as other devices are, and their world waits.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec

from atomr_mp import errors
from atomr_mp.protocol.codec import ErrorInfo
from atomr_mp.protocol.decoders import known
from atomr_mp.protocol.messages.devices import OUT_OF_USE
from atomr_mp.protocol.words import counted
from atomr_mp.supervision.lifecycle import State
from atomr_mp.supervisor.care.helpers import Helpers
from atomr_mp.supervisor.device.device import SupervisedDevice
from atomr_mp.supervisor.loop import Loop
from atomr_mp.supervisor.plan import Plan, merged

CONFIG_READER: Final = "atomr_mp.helpers.config_reader"

IMPORT_CHECK: Final = "atomr_mp_workers.boot.import_check"

REPLAN_S: Final = 60.0
"""How long making the new plan may take; it may have to ask the driver."""

Done = Callable[[errors.AtomrError | None, list[str]], None]
"""Called at the end with the reason of a failure, and with the settings that need a restart of the pool."""


class Reload:
    """One reload, from the order to its end.

    Args:
        plan: The pool's present plan.
        loop: The supervisor's loop.
        helpers: Start the process that plans anew.
        devices: The pool's devices.
        take: Called with the plan that holds from now on.
        renew: Prepares the making of workers by a plan, without old code, then calls its argument.
        done: Called once, at the end.
    """

    def __init__(
        self,
        plan: Plan,
        loop: Loop,
        helpers: Helpers,
        devices: Sequence[SupervisedDevice],
        *,
        take: Callable[[Plan], None],
        renew: Callable[[Plan, Callable[[], None]], None],
        done: Done,
    ) -> None:
        self._old = plan
        self._new = self._named(plan)
        self._loop = loop
        self._helpers = helpers
        self._left = list(devices)
        """Devices that run the old code still; those in `_now` are among them."""
        self._now: list[_Exchange] = []
        """Those that are being replaced."""
        self._replaced = 0
        """Number of devices that run the new code."""
        self._take = take
        self._renew = renew
        self._done = done
        self._pending: list[str] = []
        self._kill: Callable[[], None] | None = None
        """Ends the running helper."""
        self._over = False

    def start(self) -> None:
        """Begin."""
        if self._old.source is None:
            self._check()
        else:
            self._ask(CONFIG_READER, self._old.encoded(), REPLAN_S, self._planned)

    def advance(self) -> None:
        """Look whether the devices that are being replaced are ready, or have failed; to be called at every change."""
        if self._over or not self._now:
            return
        for each in self._now:
            if each.has_failed:
                device = each.device
                state = device.life.state.value
                after = f"device {device.index} is {state}, and its next worker loads what is there then"
                if device.life.state is State.STOPPED:
                    after = (
                        f"device {device.index} is stopped and has no worker; correct that, then `atomr-mp reload` "
                        f"again, or `atomr-mp restart {device.index}`"
                    )
                self._stop_at(device, "the reload stopped at device", device.restarts.lost, f"; {after}")
                return
        if all(each.is_over for each in self._now):
            done, self._now = self._now, []
            for each in done:
                each.device.take_plan(self._new)
                self._left.remove(each.device)
            self._replaced += len(done)
            self._next()

    def give_up(self, error: errors.AtomrError) -> None:
        """Give the reload up: replaced workers stay."""
        if not self._over:
            self._give_up(error)

    def _planned(self, status: int | None, content: bytes) -> None:
        """Adopt the new plan."""
        if self._over:
            return
        try:
            if status is None:
                raise errors.ConfigurationError(f"the configuration was not read within {REPLAN_S:g} s")
            if status != 0:
                raise errors.ConfigurationError(content.decode("utf-8", "replace") or f"status {status}")
            new, self._pending = merged(self._old, msgspec.json.decode(content, type=known(Plan)))
        except (errors.ConfigurationError, msgspec.DecodeError, RecursionError) as error:
            self._give_up(errors.ConfigurationError(f"nothing was reloaded: {error}"))
            return
        self._new = self._named(new)
        self._check()

    def _named(self, plan: Plan) -> Plan:
        """Return a plan whose workers are known to have this reload's code, which no other reload names."""
        return msgspec.structs.replace(plan, code=os.urandom(8).hex())

    def _check(self) -> None:
        """Import the actors in a process beside the running workers."""
        actors, limit_s = msgspec.json.encode(self._new.actors), self._new.settings.start_timeout_s
        self._ask(IMPORT_CHECK, actors, limit_s, self._checked, self._new.devices[0].environment)

    def _checked(self, status: int | None, content: bytes) -> None:
        if self._over:
            return
        if status == 0:
            self._renew(self._new, self._next)
            return
        why = f"a process that imported the actors to try them ended with status {status}"
        if status is None:
            why = f"the actors were not imported within {self._new.settings.start_timeout_s:g} s (start_timeout_s)"
        elif status == 1:
            with contextlib.suppress(msgspec.DecodeError, RecursionError):
                why = msgspec.msgpack.decode(content, type=known(ErrorInfo)).message
        self._give_up(errors.ActorLoadFailed(f"nothing was reloaded: {why}"))

    def _ask(
        self,
        module: str,
        question: bytes,
        timeout_s: float,
        answered: Callable[[int | None, bytes], None],
        environment: Mapping[str, str] | None = None,
    ) -> None:
        try:
            self._kill = self._helpers.ask(module, question, timeout_s, answered, environment)
        except OSError as error:
            self._give_up(errors.ConfigurationError(f"nothing was reloaded: {error}"))

    def _next(self) -> None:
        if self._over:
            return
        if not self._left:
            self._over = True
            self._take(self._new)
            self._done(None, self._pending)
            return
        device = self._left[0]
        if device.life.state is State.QUARANTINED:  # the device runs the new code when it comes back
            device.take_plan(self._new)
            self._left.pop(0)
            self._loop.call_later(0, self._next)
            return
        self._now = [_Exchange(each) for each in self._together(device)]
        for each in self._now:
            if each.device.may_set_up:
                each.device.takeover.set_up(self._new, functools.partial(self._was_set_up, each))
            else:
                each.device.plans.try_next(self._new)
                self._replace(each, anew=True)

    def _together(self, device: SupervisedDevice) -> list[SupervisedDevice]:
        """Return the devices that are replaced together: those of a device's worlds, and of these worlds' devices."""
        found = {device.index}
        worlds = [set(each.devices) for each in self._new.worlds]
        while grown := [each for each in worlds if each & found and not each <= found]:
            found.update(*grown)
        group = [each for each in self._left if each.index in found]
        return group if all(each.may_set_up for each in group) else [device]

    def _was_set_up(self, exchange: _Exchange, error: errors.AtomrError | None) -> None:
        """Go on: a device's new worker is ready beside the old one, has taken its place, or has failed."""
        if self._over:
            return
        if error is not None:
            self._stop_at(
                exchange.device, "the reload stopped before device", error, "; the device keeps its old worker"
            )
            return
        exchange.is_set_up = True
        if all(each.is_set_up for each in self._now):
            for each in self._now:
                if each.device.roles.generation == each.generation:
                    self._replace(each, anew=False)
            self.advance()

    def _replace(self, exchange: _Exchange, *, anew: bool) -> None:
        if not self._over:  # another device's exchange may have failed just now
            exchange.is_ordered = True
            exchange.device.replace("reload", "its worker is replaced, to run the present code", anew=anew)

    def _stop_at(self, device: SupervisedDevice, where: str, lost: errors.AtomrError | None, after: str = "") -> None:
        """Give up, since a device's new worker does not start.

        Args:
            device: The device.
            where: The beginning of the error's text: "at" a device that was replaced, "before" one that goes on.
            lost: Why it does not start, if that is known.
            after: What has become of the device.
        """
        left, new = len(self._left) - 1, self._replaced
        others = [f"{counted(new, 'device')} {'has' if new == 1 else 'have'} the new code"] if new else []
        others += [f"{counted(left, 'other device')} keep{'s' if left == 1 else ''} the old code"] if left else []
        why = (lost.message if lost else device.life.reason).rstrip(".")
        text = f"{where} {device.index}, whose new worker does not start: {why}{after}"
        self._give_up(_like(lost, "; ".join([text, *others])))

    def _give_up(self, error: errors.AtomrError) -> None:
        self._over = True
        if self._kill is not None:
            self._kill()
        self._take(self._old)
        self._done(error, self._pending)


class _Exchange:
    """The exchange of one device's worker.

    Args:
        device: The device, whose worker is not replaced yet.
    """

    def __init__(self, device: SupervisedDevice) -> None:
        self.device: Final = device
        self.generation: Final = device.roles.generation
        """Its generation before."""
        self.is_set_up = False
        """Whether its new worker was set up beside the old one."""
        self.is_ordered = False
        """Whether the old one has its order to leave."""
        self._is_forgiven = False
        """Whether the old one has ended before that. Its next is by the new plan, so nothing has failed."""
        self._restarts = device.restarts.count
        self._lost = device.restarts.lost
        """The cause of its last worker's end, if it had no worker."""

    @property
    def has_failed(self) -> bool:
        """Whether a new worker has ended meanwhile, or none can start."""
        # An end counts at its first sign; its cause is known once the process has gone, maybe after the next start.
        restarts, state = self.device.restarts, self.device.life.state
        ended = restarts.count > self._restarts and restarts.lost not in {None, self._lost}
        if ended and not (self.is_ordered or self._is_forgiven):
            self._is_forgiven, self._restarts, self._lost = True, restarts.count, restarts.lost
            ended = False
        return ended or state is State.QUARANTINED or (self._is_forgiven and state in OUT_OF_USE)

    @property
    def is_over(self) -> bool:
        """Whether the device has another worker, which is ready."""
        return self.device.life.state is State.READY and self.device.roles.generation > self.generation


def _like(lost: errors.AtomrError | None, text: str) -> errors.AtomrError:
    """Return the error of a reload whose new worker does not start for this reason."""
    if isinstance(lost, errors.ActorLoadFailed):
        return errors.ActorLoadFailed(text)
    if isinstance(lost, errors.SetupFailed):
        return errors.SetupFailed(text, traceback_text=lost.traceback_text)
    return errors.SetupFailed(text)
