"""The plan that a device's processes are started by: the pool's, or one that a reload tries first."""

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
        self._held = self._in_use = self._of_standby = plan
        self._trial: Plan | None = None
        self._beside: Plan | None = None
        """The plan of standbys while a reload sets one up."""

    @property
    def held(self) -> Plan:
        """The plan that holds."""
        return self._held

    @property
    def in_use(self) -> Plan:
        """The plan by which the active incarnation was started, and its standby is."""
        return self._in_use

    @property
    def fits_standby(self) -> bool:
        """Whether the standby was started by the plan that is in use."""
        return self._of_standby is self._in_use

    @property
    def device(self) -> DevicePlan:
        """The device's part of the plan that holds."""
        return self._held.devices[self._index]

    def hold(self, plan: Plan) -> None:
        """Start further incarnations by another plan."""
        self._held, self._trial, self._beside = plan, None, None

    def try_next(self, plan: Plan) -> None:
        """Start the next incarnation by another plan, and those after it by the one that holds."""
        self._trial = plan

    def set_up_by(self, plan: Plan) -> None:
        """Start the next standby by another plan, and the next incarnation too if it comes before that."""
        self._trial = self._beside = plan

    @property
    def changes(self) -> bool:
        """Whether the next incarnation is the first by another plan."""
        return self._trial is not None

    def begin(self) -> bool:
        """Turn to the next incarnation's plan; return whether the present standby can be used for it."""
        trial, self._trial = self._trial, None
        self._in_use = trial or self._held
        return trial is None or self.fits_standby

    def begin_standby(self) -> tuple[Plan, bool]:
        """Return the plan by which a standby is started, and whether a reload sets it up."""
        self._of_standby = self._beside or self._in_use
        return self._of_standby, self._beside is not None

    def promoted(self) -> None:
        """The standby has become the active incarnation."""
        self._in_use, self._trial, self._beside = self._of_standby, None, None
