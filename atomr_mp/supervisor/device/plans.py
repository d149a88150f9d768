"""By which plan a device's processes are started: the pool's, or one that a reload tries first."""

from __future__ import annotations

from atomr_mp.supervisor.plan import DevicePlan, Plan


class Plans:
    """The plans of a device.

    Args:
        plan: The pool's plan.
        index: The device's index.
    """

    def __init__(self, plan: Plan, index: int) -> None:
        self._index = index
        self._held = self._in_use = plan
        self._trial: Plan | None = None

    @property
    def held(self) -> Plan:
        """The plan that holds."""
        return self._held

    @property
    def in_use(self) -> Plan:
        """The plan by which the active incarnation was started, and its standby is."""
        return self._in_use

    @property
    def device(self) -> DevicePlan:
        """The device's part of the plan that holds."""
        return self._held.devices[self._index]

    def hold(self, plan: Plan) -> None:
        """Start further incarnations by another plan."""
        self._held, self._trial = plan, None

    def try_next(self, plan: Plan) -> None:
        """Start the next incarnation by another plan, and those after it by the one that holds."""
        self._trial = plan

    def begin(self) -> bool:
        """Turn to the next incarnation's plan; return whether it is on trial, so that no standby can be used."""
        trial, self._trial = self._trial, None
        self._in_use = trial or self._held
        return trial is not None
